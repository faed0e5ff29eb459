//! What a model has done is counted, over all protocols.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use turbo_serve::{
    engine::{InferRequest, OutputKind},
    models::{Models, Wanted},
};

use crate::fake::{Engine, run};

#[test]
fn who_comes_again_is_counted_the_last_time() {
    run(async {
        let engine = Arc::new(Engine::new("a", Arc::default()));
        let served = Models::single(Arc::clone(&engine)).find(Wanted::named("a")).unwrap();
        let counted = async |retries: bool| {
            let request = InferRequest { retries, ..InferRequest::new(Vec::new(), OutputKind::RAW) };
            drop(served.engine().infer(request).await);
            let statistics = served.statistics();
            (statistics.answered.count, statistics.failed.count)
        };
        engine.full.store(true, SeqCst);
        assert_eq!(
            [counted(true).await, counted(true).await, counted(false).await],
            [(0, 0), (0, 0), (0, 1)]
        );
        engine.full.store(false, SeqCst);
        assert_eq!(counted(true).await, (1, 1));
    });
}
