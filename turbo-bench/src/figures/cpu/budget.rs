//! The estimated time of each regime.

use super::{
    Regime, TURBO, Work, scaling,
    stream::{self, Policy},
    turn::{BELIEVED_MS, PAUSE, TURN_MS, Turn, turns},
};
use crate::figures::rounds::Cost;

/// Seconds until a process has loaded its model.
const START: f64 = 4.0;
/// Seconds for each process that multiplies: to start it and to pack the weights, and for its turns of a round.
const PRODUCTS: Cost = Cost { fixed: 8.0, round: 6.5 };
/// Seconds of a round of products in which the machine's ceilings are measured.
const LOOKS: f64 = 6.0;

/// The estimated time of a regime. `floor` gives the least milliseconds of a batch, and `absent` is the number of
/// processes to start.
pub(super) fn estimate(regime: &Regime, floor: impl Fn(&[u32]) -> f64, absent: usize) -> Cost {
    let names: Vec<&str> = std::iter::once(TURBO).chain(regime.rivals.iter().map(String::as_str)).collect();
    let start = absent as f64 * START;
    let run = |rival: &str, lens: &[u32]| slowness(rival) * floor(&padded(rival, lens));
    match &regime.work {
        Work::Products { .. } => {
            let all = names.len() as f64;
            Cost { fixed: PRODUCTS.fixed * all, round: LOOKS + PRODUCTS.round * all }
        }
        Work::Batches(batches) => {
            let (mut looks, mut round) = (0.0, 0.0);
            for batch in batches {
                let ms: Vec<f64> = names.iter().map(|rival| run(rival, batch)).collect();
                looks += ms.iter().map(|&ms| if ms < BELIEVED_MS { 2.0 * ms } else { ms }).sum::<f64>();
                round += ms.iter().zip(turns(&ms)).map(|(&ms, turn)| turn_ms(ms, turn)).sum::<f64>();
                round += turn_ms(TURN_MS, Turn { warm_up: 0, runs: 1 }); // of the peak
            }
            Cost { fixed: start + looks / 1e3, round: round / 1e3 }
        }
        Work::Stream { lens, requests } => {
            let lens = stream::lens(lens, *requests);
            let whole = |rival: &str| slowness(rival) * floor(&lens) / 1e3;
            // Each look runs a fifth of the batches of each policy.
            let of_policy = |rival: &str| stream::LOOKS as f64 / stream::PROBE as f64 * whole(rival);
            let samples = names.iter().map(|rival| Policy::of(rival).len() as f64 * of_policy(rival));
            let best = names.iter().filter(|rival| **rival != TURBO).map(|rival| slowness(rival));
            let worth = stream::HOPELESS * best.fold(f64::INFINITY, f64::min);
            let run = names.iter().filter(|rival| slowness(rival) <= worth);
            let round: f64 = run.map(|rival| whole(rival)).sum();
            // Every shape of the winners is run once before the rounds.
            Cost { fixed: start + samples.sum::<f64>() + round + 2.0, round }
        }
        Work::Scaling(batches) => {
            let ways = |rival: &str, batch: &Vec<u32>| {
                let ms = run(rival, batch);
                [2.0 * ms, ms, ms].map(|ms| turn_ms(ms, scaling::turn(ms))).iter().sum::<f64>()
            };
            let all = names.iter().flat_map(|rival| batches.iter().map(|batch| ways(rival, batch)));
            Cost { fixed: start, round: all.sum::<f64>() / 1e3 }
        }
    }
}

/// Milliseconds of a turn whose runs take `ms` each.
fn turn_ms(ms: f64, Turn { warm_up, runs }: Turn) -> f64 {
    (warm_up + runs) as f64 * ms + PAUSE.as_secs_f64() * 1e3
}

/// About how many times the floor a rival takes for long inputs.
fn slowness(rival: &str) -> f64 {
    match rival {
        TURBO => 1.15,
        "torch" => 2.3,
        "ct2" => 1.5,
        _ => 1.3,
    }
}

/// The lengths that a rival computes for a batch: the others pad it, turbo does not.
fn padded(rival: &str, lens: &[u32]) -> Vec<u32> {
    let longest = lens.iter().copied().max().unwrap_or(0);
    if rival == TURBO { lens.to_vec() } else { vec![longest; lens.len()] }
}
