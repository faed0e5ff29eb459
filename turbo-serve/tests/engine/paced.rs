//! A runner whose batches take a time that follows from their tokens, with some noise.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use turbo_sched::Candidate;
use turbo_serve::engine::{Capacity, Engine, EngineConfig, Progress, Rows, RunError, Runner, Sequence};

use crate::fake::{Control, HIDDEN_SIZE, model};

/// The time of a batch besides that of its tokens.
pub(crate) const FIXED: Duration = Duration::from_millis(2);
/// The time of each token.
pub(crate) const PER_TOKEN: Duration = Duration::from_millis(2);

/// Lengths of the sequences of each batch that ran.
pub(crate) type Ran = Arc<Mutex<Vec<Vec<usize>>>>;

struct Paced {
    capacity: Capacity,
    batch: Vec<usize>,
    ran: Ran,
    /// Half the width of the noise, as a fraction of the time.
    noise: f64,
    random: u64,
}

impl Paced {
    /// Uniform from −1 to 1.
    fn random(&mut self) -> f64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

impl Runner for Paced {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError> {
        self.capacity = capacity;
        Ok(())
    }

    fn footprint(&mut self, _: &Candidate) -> usize {
        0
    }

    fn submit(
        &mut self,
        batch: &mut dyn Iterator<Item = Sequence<'_>>,
        _: &mut dyn FnMut() -> bool,
    ) -> Result<(), RunError> {
        self.batch = batch.map(|sequence| sequence.input_ids.len()).collect();
        let tokens = self.batch.iter().sum::<usize>() as u32;
        let time = (FIXED + PER_TOKEN * tokens).mul_f64(1.0 + self.noise * self.random());
        std::thread::sleep(time);
        self.ran.lock().unwrap().push(self.batch.clone());
        Ok(())
    }

    fn poll(&mut self) -> Result<Progress, RunError> {
        Ok(Progress::Done)
    }

    fn read(&mut self, sequence: usize, _: Rows, to: &mut Vec<f32>) -> Result<(), RunError> {
        to.extend([self.batch[sequence] as f32; HIDDEN_SIZE]);
        Ok(())
    }
}

/// An engine over such a runner, after it has measured it, and the batches that ran, those of the measurement included.
pub(crate) fn start(config: &EngineConfig, noise: f64) -> (Engine, Ran) {
    let ran = Ran::default();
    let mut model = model(&Arc::new(Control::default()));
    let shared = Arc::clone(&ran);
    model.build = Box::new(move |capacity| {
        let ran = Arc::clone(&shared);
        Ok(Box::new(Paced { capacity, batch: Vec::new(), ran, noise, random: 1 }))
    });
    let config = EngineConfig { warm_up: Duration::from_millis(500), ..config.clone() };
    (Engine::start(model, &config).unwrap(), ran)
}
