//! Many clients at once, of every kind: with good requests and bad ones, with some that make their batch fail or panic,
//! and with clients that disconnect at any moment. Afterwards nothing is left behind.

use std::time::{Duration, Instant};

use turbo_serve::{
    cache::ResponseCache,
    engine::{Engine, EngineConfig, EngineError, Health, Infer, InferRequest, Input},
};

use crate::{
    fake::{BREAKS, FAILS, PANICS, config, embed, eventually, firsts, request, wait},
    texts,
};

const SLOTS: usize = 16;
const CLIENTS: u64 = 24;

/// What became of a client's requests.
#[derive(Default)]
struct Tally {
    answered: usize,
    invalid: usize,
    failed: usize,
    overloaded: usize,
    gone: usize,
}

#[test]
fn nothing_is_left_behind() {
    clients_of_every_kind(config());
}

#[test]
fn nothing_is_left_behind_where_answers_are_kept() {
    let cache = Some(ResponseCache::in_memory(ResponseCache::LEAST_BYTES).unwrap());
    clients_of_every_kind(EngineConfig { cache, ..config() });
}

fn clients_of_every_kind(config: EngineConfig) {
    let config = EngineConfig { max_concurrent_requests: SLOTS, tokenization_workers: 2, ..config };
    let (engine, _control) = texts::start(&config);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    let clients: Vec<_> = (0..CLIENTS).map(|seed| runtime.spawn(client(engine.clone(), seed, end))).collect();
    let mut total = Tally::default();
    for client in clients {
        let Tally { answered, invalid, failed, overloaded, gone } = runtime.block_on(client).unwrap();
        total.answered += answered;
        total.invalid += invalid;
        total.failed += failed;
        total.overloaded += overloaded;
        total.gone += gone;
    }
    let Tally { answered, invalid, failed, overloaded, gone } = total;
    for (what, count) in [
        ("answered", answered),
        ("invalid", invalid),
        ("failed", failed),
        ("overloaded", overloaded),
        ("gone", gone),
    ] {
        assert!(count > 0, "none was {what}");
    }

    // Only a request that takes every slot tells that each of them is free.
    let all =
        InferRequest { inputs: (1..=SLOTS as u32).map(|id| Input::Ids(vec![id])).collect(), ..request([]) };
    eventually(|| wait(engine.infer(all.clone())).is_ok());
    let ids: Vec<u32> = (1..=SLOTS as u32).collect();
    assert_eq!(firsts(&wait(engine.infer(all)).unwrap()), ids);
    assert_eq!(engine.health(), Health::Ready);
    wait(engine.stop());
    assert_eq!(embed(&engine, [&[1]]), Err(EngineError::Stopping));
}

/// Sends one request after the other, and drops some before they are answered.
async fn client(engine: Engine, seed: u64, end: Instant) -> Tally {
    let (mut random, mut tally) = (Random(seed), Tally::default());
    while Instant::now() < end {
        let ids: Vec<u32> = (0..=random.below(5)).map(|_| 1 + random.below(800)).collect();
        let mut inputs: Vec<_> = ids
            .iter()
            .map(|id| match random.below(2) {
                0 => Input::Ids(vec![*id, 1, 2]),
                _ => Input::Text(format!("{id} 1 2")),
            })
            .collect();
        let bad = match random.below(400) {
            0 => Some(Input::Ids(vec![PANICS])),
            1 => Some(Input::Ids(vec![BREAKS])),
            2..20 => Some(Input::Ids(vec![FAILS])),
            20..40 => Some(Input::Ids(vec![1000])),
            40..60 => Some(Input::Text("no number".into())),
            60..80 => Some(Input::Text(String::new())),
            _ => None,
        };
        let is_good = bad.is_none();
        inputs.extend(bad);
        let answer = engine.infer(InferRequest { inputs, ..request([]) });
        // A third are dropped: at once, or while they are tokenized, wait or run.
        let patience = match random.below(3) {
            0 => Duration::from_micros(random.below(500).into()),
            _ => Duration::from_secs(20),
        };
        match tokio::time::timeout(patience, answer).await {
            Err(_) => {
                assert!(patience < Duration::from_secs(1), "an answer never came");
                tally.gone += 1;
            }
            Ok(Ok(response)) => {
                assert!(is_good);
                assert_eq!(firsts(&response), ids);
                tally.answered += 1;
            }
            // Its own fault, or that of another request in its batch.
            Ok(Err(EngineError::Backend(_))) => tally.failed += 1,
            Ok(Err(EngineError::Overloaded { .. })) => {
                tally.overloaded += 1;
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            Ok(Err(error)) => {
                assert!(!is_good, "{error}");
                tally.invalid += 1;
            }
        }
    }
    tally
}

/// Numbers that look random and are the same in each run (Knuth's linear congruential generator).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % end
    }
}
