//! Versions come and go while many clients ask.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use turbo_serve::models::{Models, NotServed, Wanted};

use crate::fake::{Shelf, ask, run, started};

const CLIENTS: usize = 12;
const ROUNDS: usize = 60;

/// Leases `name` until told to end: with a lease a request is answered. Counts answers and refusals.
async fn client(
    models: Models,
    name: &'static str,
    end: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
) {
    while !end.load(SeqCst) {
        match models.lease(Wanted::named(name)).await {
            Ok(model) => {
                let answer = ask(&model).await;
                assert_eq!(answer, Ok(()), "{model:?} was leased and has ended");
                answered.fetch_add(1, SeqCst);
            }
            Err(NotServed::Unloaded { .. }) => {
                refused.fetch_add(1, SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn nobody_who_was_let_in_fails_while_versions_come_and_go() {
    run(async {
        let shelves =
            [Shelf::new("swapped", &["1", "2"]), Shelf::new("gone", &["1"]), Shelf::new("still", &["1"])];
        let models = started(&shelves.each_ref()).await;
        models.unload("swapped/2").await.unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let counts = ["swapped", "gone", "still"].map(|name| (name, Arc::default(), Arc::default()));
        let mut clients = tokio::task::JoinSet::new();
        for (name, answered, refused) in counts.iter().cycle().take(CLIENTS) {
            let (answered, refused) = (Arc::clone(answered), Arc::clone(refused));
            clients.spawn(client(models.clone(), name, Arc::clone(&end), answered, refused));
        }
        for round in 0..ROUNDS {
            let (old, new) = if round % 2 == 0 { ("1", "2") } else { ("2", "1") };
            // The next version first, then the last one goes: the name is always served.
            models.load(&format!("swapped/{new}")).await.unwrap();
            models.unload(&format!("swapped/{old}")).await.unwrap();
            models.unload("gone").await.unwrap();
            assert_eq!(shelves[1].alive.load(SeqCst), 0, "its memory is free");
            models.load("gone").await.unwrap();
        }
        end.store(true, SeqCst);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        for (name, answered, refused) in &counts {
            let (answered, refused) = (answered.load(SeqCst), refused.load(SeqCst));
            assert!(answered >= ROUNDS, "{name}: {answered} answers");
            assert_eq!(refused > 0, *name == "gone", "{name}: {refused} refusals");
        }
        let loads = shelves.each_ref().map(|shelf| shelf.loads.load(SeqCst));
        assert_eq!(loads, [ROUNDS + 2, ROUNDS + 1, 1]);
        let alive = shelves.each_ref().map(|shelf| shelf.alive.load(SeqCst));
        assert_eq!(alive, [1, 1, 1]);
    });
}
