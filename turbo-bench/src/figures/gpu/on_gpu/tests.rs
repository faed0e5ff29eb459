//! Tests on an emulated GPU that the timed operations compute what their names say.

use std::sync::Arc;

use turbo_kernels::{
    DType, bf16,
    cuda::emulator::{Edit, Emulator, Order},
};

use super::{super::operation, *};
use crate::rival::turbo::Turbo;

/// Enough turns to see that there are times.
const ONCE: Turns = Turns { us: 1.0, rounds: 1 };

/// An emulated GPU, where there is a C++ compiler.
fn gpu() -> Option<Cuda<f32>> {
    Some(Cuda::new(Arc::new(Emulator::or_skip(Order::Forward)?), Default::default()))
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data").join(name)
}

fn softmax(x: &[f64], columns: usize) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(|x| x.exp() / sum).collect::<Vec<_>>()
    };
    x.chunks(columns).flat_map(of_row).collect()
}

fn norm(x: &[f64], gain: &[f64], offset: &[f64]) -> Vec<f64> {
    let of_row = |row: &[f64]| {
        let len = row.len() as f64;
        let mean = row.iter().sum::<f64>() / len;
        let deviation = (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / len).sqrt();
        row.iter()
            .zip(gain.iter().zip(offset))
            .map(|(x, (g, o))| (x - mean) / deviation * g + o)
            .collect::<Vec<_>>()
    };
    x.chunks(gain.len()).flat_map(of_row).collect()
}

/// Attention of heads that lie in merged rows, for sequences of these lengths.
fn attention(x: &[f64], lens: &[usize], (heads, dim): (usize, usize)) -> Vec<f64> {
    let value =
        |token: usize, part: usize, head: usize, at: usize| x[((token * 3 + part) * heads + head) * dim + at];
    let (mut out, mut first) = (Vec::new(), 0);
    for &len in lens {
        for query in first..first + len {
            for head in 0..heads {
                let dot =
                    |key| (0..dim).map(|at| value(query, 0, head, at) * value(key, 1, head, at)).sum::<f64>();
                let scores: Vec<f64> =
                    (first..first + len).map(|key| dot(key) / (dim as f64).sqrt()).collect();
                let weights = softmax(&scores, len);
                let of =
                    |at| weights.iter().zip(first..).map(|(w, key)| w * value(key, 2, head, at)).sum::<f64>();
                out.extend((0..dim).map(of));
            }
        }
        first += len;
    }
    out
}

/// Each operation computes what its name says, on the inputs that PyTorch's side has too: against loops in f64.
#[test]
fn what_is_timed_is_what_it_is_called() {
    let Some(gpu) = gpu() else { return };
    const ROWS: u64 = 6;
    const COLUMNS: usize = 24;
    type Textbook = fn(&[Vec<f64>]) -> Vec<f64>;
    let (rows, columns) = (ROWS, COLUMNS as u64);
    let lens = vec![4, 1, 3];
    let table: [(Operation, Textbook); 7] = [
        (Operation::Softmax { rows, columns }, |x| softmax(&x[0], COLUMNS)),
        (Operation::LayerNorm { rows, columns }, |x| norm(&x[0], &x[1], &x[2])),
        (Operation::ResidualLayerNorm { rows, columns }, |x| {
            let sum = x[0].iter().zip(&x[4]).enumerate().map(|(at, (a, b))| a + b + x[3][at % COLUMNS]);
            norm(&sum.collect::<Vec<_>>(), &x[1], &x[2])
        }),
        (Operation::Embedding { rows, columns }, |x| {
            let row = |place| operation::id(place, ROWS) as usize * COLUMNS;
            (0..ROWS).flat_map(|place| x[0][row(place)..][..COLUMNS].to_vec()).collect()
        }),
        (Operation::Attention { lens, num_heads: 2, head_dim: 8 }, |x| attention(&x[0], &[4, 1, 3], (2, 8))),
        (Operation::Copy { rows, columns }, |x| x[0].clone()),
        (Operation::Product { rows, columns }, |x| {
            let weight: Vec<f64> = operation::values(COLUMNS * COLUMNS, 1).map(f64::from).collect();
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let of_row = |row: &[f64]| weight.chunks(COLUMNS).map(|w| dot(row, w)).collect::<Vec<_>>();
            x[0].chunks(COLUMNS).flat_map(of_row).collect()
        }),
    ];
    for (operation, textbook) in table {
        let inputs = kernels::inputs(&operation).into_iter();
        let inputs: Vec<Vec<f64>> = inputs
            .map(|(len, seed)| operation::values(len as usize, seed).map(f64::from).collect())
            .collect();
        let expected: Vec<f32> = textbook(&inputs).into_iter().map(|value| value as f32).collect();
        let mut kernels = Kernels::new(&gpu, &operation, &[Way::Chosen]).unwrap();
        let got = kernels.sample(Way::Chosen, operation.results()).unwrap();
        let error = operation::relative_error(&got, &expected);
        assert!(error < Dtype::F32.allowed_error(), "{}: off by {error}", operation.name());
        assert!(kernels.time(0, 2).unwrap() > 0.0);
    }
}

/// All ways to reduce give the same results in every type, so all of them are timed.
#[test]
fn reductions_are_timed_that_agree() {
    let Some(gpu) = gpu() else { return };
    let lineup = Lineup { turns: ONCE, ..REDUCTIONS };
    for (index, dtype) in Dtype::ALL.into_iter().enumerate() {
        for operation in
            [Operation::Softmax { rows: 5, columns: 40 }, Operation::LayerNorm { rows: 3, columns: 768 }]
        {
            let found = operations::measure(&gpu, None, &lineup, (&operation, dtype), index).unwrap();
            assert_eq!((&found.absent[..], found.launched.len()), (&[][..], 0));
            let who: Vec<&str> = found.times.iter().map(|timed| timed.who.as_str()).collect();
            assert_eq!(who, [TURBO, rows::CLASSICAL, "1 row", "2 rows", "4 rows"]);
            assert!(found.times.iter().all(|timed| timed.median_us > 0.0), "{found:?}");
            assert!(found.error.is_some_and(|error| error <= dtype.allowed_error()), "{found:?}");
        }
    }
}

#[test]
fn ceilings_are_rates() {
    let Some(gpu) = gpu() else { return };
    let small = [Operation::Copy { rows: 4, columns: 8 }, Operation::Product { rows: 4, columns: 8 }];
    let found = ceilings(&gpu, None, [&small[0], &small[1]], ONCE).unwrap();
    assert!(found.copy() > 0.0 && Dtype::ALL.iter().all(|dtype| found.product(*dtype) > 0.0), "{found:?}");
    assert!(found.launch_us > 0.0 && found.enqueue_us > 0.0, "{found:?}");
}

/// If there is a Python with PyTorch (`TURBO_PEERS_PYTHON`, as for the figure `cpu`), it computes the same on a CPU.
#[test]
fn the_other_side_computes_the_same() {
    let Some(gpu) = gpu() else { return };
    let Some(python) = std::env::var_os("TURBO_PEERS_PYTHON").filter(|python| !python.is_empty()) else {
        println!("skipped: TURBO_PEERS_PYTHON names no Python with PyTorch");
        return;
    };
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let mut torch = Torch::start(Path::new(&python), &peers, "cpu").unwrap();
    let (rows, columns) = (6, 24);
    let lineup = Lineup { turbo: &[(TURBO, Way::Chosen)], others: &["eager"], turns: ONCE };
    for operation in [
        Operation::Softmax { rows, columns },
        Operation::LayerNorm { rows, columns },
        Operation::ResidualLayerNorm { rows, columns },
        Operation::BiasGelu { rows, columns },
        Operation::Embedding { rows, columns },
        Operation::Copy { rows, columns },
        Operation::Product { rows, columns },
    ] {
        for dtype in Dtype::ALL {
            let found = operations::measure(&gpu, Some(&mut torch), &lineup, (&operation, dtype), 0).unwrap();
            assert_eq!(
                (found.times.len(), &found.absent[..]),
                (2, &[][..]),
                "{} {found:?}",
                operation.name()
            );
        }
    }
    let sdpa = Lineup { others: &["sdpa"], ..lineup };
    for lens in [vec![5, 5], vec![4, 1, 3]] {
        let operation = Operation::Attention { lens, num_heads: 2, head_dim: 16 };
        let found = operations::measure(&gpu, Some(&mut torch), &sdpa, (&operation, Dtype::F32), 0).unwrap();
        assert_eq!((found.times.len(), &found.absent[..]), (2, &[][..]), "{found:?}");
    }
}

#[test]
fn an_encoder_is_timed_in_every_type() {
    let Some(gpu) = gpu() else { return };
    let workloads =
        [Workload { name: "1 × 8", lens: vec![8] }, Workload { name: "ragged", lens: vec![5, 9, 2] }];
    let planning = planning::Data { lens: 5..=20, requests: 2, ..planning::Data::default() };
    let batches = [vec![5, 3], vec![9], vec![2, 4, 1]];
    let work =
        Work { model: &data("tiny-sentence"), workloads: &workloads, batches: &batches, planning: &planning };
    let mut kept = 0;
    let found = encoder::measure(&gpu, work, None, |_| {
        kept += 1;
        Ok(())
    });
    let found = found.unwrap();
    assert_eq!((found.cases.len(), found.agreement.len(), kept), (2 * 3, 3, 2 * 3 + 2));
    assert!(
        found.cases.iter().all(|case| case.times[0].median_us > 0.0 && case.times.len() == 1),
        "{found:?}"
    );
    assert_eq!(found.cases[1].tokens, 16);
    assert!(found.planning.is_some_and(|planned| planned.percent > 0.0));
    assert!(found.overlap.is_some_and(|overlap| overlap.tokens == 24 && overlap.timeline.0.len() == 3));
}

/// A GPU that computes only when the host looks is never done while the next batch is launched. One that computes as it
/// launches always is. So the share is known without a clock.
#[test]
fn batches_are_launched_while_another_one_runs() {
    let Some(emulator) = Emulator::or_skip(Order::Forward).map(Arc::new) else { return };
    let gpu = Cuda::<bf16>::new(emulator.clone(), Default::default());
    let mut turbo = Turbo::load(&data("tiny-sentence"), gpu, DType::F32).unwrap();
    let mut measure = || {
        let batches = [vec![5, 3], vec![9], vec![2, 4, 1], vec![7]];
        overlap::measure(&mut turbo, &batches, Dtype::Bf16, ONCE).unwrap()
    };
    let at_once = measure();
    emulator.lag();
    let lagging = measure();
    assert_eq!([&at_once, &lagging].map(|it| it.timeline.hidden()), [Some(0.0), Some(1.0)]);
    for found in [at_once, lagging] {
        assert!(found.timeline.is_in_order() && found.timeline.0.len() == 4, "{found:?}");
        assert_eq!((found.tokens, found.times.len()), (31, 2));
        assert!(found.gain().is_some_and(|gain| gain > 0.0), "{found:?}");
    }
}

#[test]
fn golden_models_are_compared_and_what_fails_is_told() {
    let Some(gpu) = gpu() else { return };
    let check = suite::model(&gpu.with_float::<bf16>(), Dtype::Bf16, &data("bert-base"));
    assert_eq!((check.what.as_str(), &check.failed), ("model: bert-base", &None));
    assert!(check.worst.is_some_and(|worst| worst > 1e-4), "bf16 leaves a trace: {check:?}");
    // f16 is no f32
    let check = suite::model(&gpu.with_float::<turbo_kernels::f16>(), Dtype::F32, &data("bert-base"));
    assert!(check.failed.is_some_and(|why| why.contains("allowed are")));
    let check = suite::model(&gpu, Dtype::F32, &data("no-such-model"));
    assert!(check.failed.is_some() && check.worst.is_none());

    let families: [suite::Family<Cuda<f32>>; 2] = [("good", |_| ()), ("bad", |_| panic!("value 3 is wrong"))];
    let mut checks = Vec::new();
    suite::kernels(&gpu, Dtype::F32, &families, &mut |check| checks.push(check));
    let failed = checks.iter().map(|check| check.failed.as_deref());
    assert!(failed.eq([None, Some("value 3 is wrong")]), "{checks:?}");
    assert!(line(&checks[1]).ends_with("f32 kernels: bad: FAILED: value 3 is wrong"));
}

/// Tensor cores are for values that are aligned, as a server's are.
#[test]
fn wrong_kernels_of_aligned_values_are_found() {
    let Some(emulator) = Emulator::or_skip(Order::Forward) else { return };
    let edit = Edit { from: "wgmma_wait<1>(scores);", to: "" };
    let gpu: Cuda<bf16> = Cuda::new(Arc::new(emulator.edited(edit)), Default::default());
    let mut checks = Vec::new();
    let families: [suite::Family<Cuda<bf16>>; 1] = [("attention", turbo_kernels::suite::attention)];
    suite::kernels(&gpu, Dtype::Bf16, &families, &mut |check| checks.push(check));
    assert!(checks[0].failed.is_some(), "{checks:?}");
}
