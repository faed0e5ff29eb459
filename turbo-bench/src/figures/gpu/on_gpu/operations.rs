//! Operations in turbo's and PyTorch's ways, side by side.

use anyhow::Result;
use turbo_kernels::{
    Float, bf16,
    cuda::{Cuda, Reduction},
    f16,
};

use super::{
    super::{
        Absent, Dtype, Measured, Operation, Torch, attention,
        contest::{TURBO, Turns, contest},
        operation::relative_error,
        rows,
        torch::Prepared,
    },
    kernels::{Kernels, Way},
};

/// Turns for operations that take a tenth of a millisecond.
pub(super) const LONG: Turns = Turns { us: 20_000.0, rounds: 9 };
/// Turns for operations that take some microseconds, of which there are many.
const SHORT: Turns = Turns { us: 3_000.0, rounds: 5 };
/// Number of values of each result that are compared.
const SAMPLE: u64 = 4096;

/// The contestants, and their turns.
pub(super) struct Lineup<'a> {
    /// turbo's ways; the first is the one that others are compared with.
    pub(super) turbo: &'a [(&'a str, Way)],
    /// PyTorch's ways, if it is present.
    pub(super) others: &'a [&'a str],
    pub(super) turns: Turns,
}

/// The lineup for [`rows::wide`].
pub(super) const WIDE: Lineup<'static> =
    Lineup { turbo: &[(TURBO, Way::Chosen)], others: &[rows::EAGER, rows::AUTOTUNED], turns: LONG };

/// The lineup for [`attention::cases`].
pub(super) const ATTENTION: Lineup<'static> =
    Lineup { turbo: &[(TURBO, Way::Chosen)], others: &attention::OTHERS, turns: LONG };

/// The lineup for [`rows::reductions`].
pub(super) const REDUCTIONS: Lineup<'static> = Lineup {
    turbo: &[
        (TURBO, Way::Chosen),
        (rows::CLASSICAL, Way::By(Reduction::Classic)),
        (rows::BATCHED[0].0, Way::By(Reduction::Batched(rows::BATCHED[0].1))),
        (rows::BATCHED[1].0, Way::By(Reduction::Batched(rows::BATCHED[1].1))),
        (rows::BATCHED[2].0, Way::By(Reduction::Batched(rows::BATCHED[2].1))),
    ],
    others: &[rows::EAGER, rows::COMPILED],
    turns: SHORT,
};

/// Measures each contestant at case number `index`.
///
/// # Errors
/// When the device fails, or PyTorch ends.
pub(super) fn measure(
    gpu: &Cuda<f32>,
    torch: Option<&mut Torch>,
    lineup: &Lineup<'_>,
    (operation, dtype): (&Operation, Dtype),
    index: usize,
) -> Result<Measured> {
    match dtype {
        Dtype::F32 => measure_as(gpu, torch, lineup, (operation, dtype), index),
        Dtype::F16 => measure_as(&gpu.with_float::<f16>(), torch, lineup, (operation, dtype), index),
        Dtype::Bf16 => measure_as(&gpu.with_float::<bf16>(), torch, lineup, (operation, dtype), index),
    }
}

fn measure_as<F: Float>(
    device: &Cuda<F>,
    mut torch: Option<&mut Torch>,
    lineup: &Lineup<'_>,
    (operation, dtype): (&Operation, Dtype),
    index: usize,
) -> Result<Measured> {
    let ways: Vec<Way> = lineup.turbo.iter().map(|(_, way)| *way).collect();
    let mut kernels = Kernels::new(device, operation, &ways)?;
    let expected = kernels.sample(ways[0], SAMPLE)?;
    let mut found = Measured {
        operation: operation.clone(),
        dtype,
        times: Vec::new(),
        error: None,
        launched: Vec::new(),
        absent: Vec::new(),
    };
    let judge = |found: &mut Measured, who: &str, values: &[f32]| {
        let error = relative_error(values, &expected);
        let is_same = error <= dtype.allowed_error();
        if is_same {
            found.error = Some(found.error.unwrap_or(0.0).max(error));
        } else {
            let why = format!("computes something else than {TURBO}: off by {error:.1e} of the length");
            found.absent.push(Absent { who: who.to_owned(), why });
        }
        is_same
    };
    // the number of turbo's way, by contestant
    let (mut names, mut ours) = (vec![lineup.turbo[0].0.to_owned()], vec![0]);
    for (number, (who, way)) in lineup.turbo.iter().enumerate().skip(1) {
        if judge(&mut found, who, &kernels.sample(*way, SAMPLE)?) {
            names.push((*who).to_owned());
            ours.push(number);
        }
    }
    if let Some(torch) = torch.as_deref_mut() {
        for &way in lineup.others {
            match torch.prepare(operation, dtype, way)? {
                Err(why) => found.absent.push(Absent { who: way.to_owned(), why }),
                Ok(how) => {
                    if judge(&mut found, way, &torch.sample(way, SAMPLE)?) {
                        names.push(way.to_owned());
                        if how == Prepared::Launched {
                            found.launched.push(way.to_owned());
                        }
                    }
                }
            }
        }
    }
    found.times =
        contest(&names, lineup.turns, index, |who, runs| match (ours.get(who), torch.as_deref_mut()) {
            (Some(&way), _) => kernels.time(way, runs),
            (None, Some(torch)) => torch.time(&names[who], runs),
            (None, None) => unreachable!("without PyTorch all that take part are turbo's"),
        })?;
    Ok(found)
}
