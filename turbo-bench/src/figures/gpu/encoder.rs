//! BERT-base with random weights: one request, equal batches, and ragged ones.

use serde::{Deserialize, Serialize};

use super::{Dtype, contest::Timed, overlap::Overlap};
use crate::{figures::agree::Agreement, figures::planning, workload};

/// Name of the other contestant that runs the model as transformers has it.
pub const EAGER: &str = "eager";
/// Name of the one that runs `torch.compile(mode="max-autotune")` of the model. It is compiled for each shape anew,
/// which takes a minute or more.
pub const COMPILED: &str = "compiled";

/// The most rows of a batch: its tokens, including padding where it is padded.
const ROWS: u32 = 16_384;

/// What all contestants compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Tokens of each request.
    pub lens: Vec<u32>,
}

/// One short request.
pub const ONE: &str = "1 × 128";
/// A batch without padding.
pub const EQUAL: &str = "32 × 512";
/// Requests of all lengths.
pub const RAGGED: &str = "5 to 500 tokens";

impl Workload {
    /// All workloads.
    #[must_use]
    pub fn all() -> [Workload; 3] {
        let ragged = workload::uniform(&(5..=500), 512, 0).into_iter().map(|len| len as u32).collect();
        [
            Workload { name: ONE, lens: vec![128] },
            Workload { name: EQUAL, lens: vec![512; 32] },
            Workload { name: RAGGED, lens: ragged },
        ]
    }

    /// Tokens of all requests, without padding.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.lens.iter().map(|&len| u64::from(len)).sum()
    }

    /// Batches in order of arrival. Each has as many requests as fit without padding.
    #[must_use]
    pub fn packed(&self) -> Vec<Vec<u32>> {
        cut(&self.lens, |batch| batch.iter().sum())
    }

    /// Batches in order of length, which is best for an engine that pads. Each has as many requests as fit with
    /// padding.
    #[must_use]
    pub fn padded(&self) -> Vec<Vec<u32>> {
        let mut lens = self.lens.clone();
        lens.sort_unstable();
        cut(&lens, |batch| batch.len() as u32 * batch.iter().max().copied().unwrap_or(0))
    }

    /// Whether all its requests have one length, so that a model can be compiled for it.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.lens.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// Cuts requests into batches of at most [`ROWS`] rows.
fn cut(lens: &[u32], rows: impl Fn(&[u32]) -> u32) -> Vec<Vec<u32>> {
    let mut batches: Vec<Vec<u32>> = Vec::new();
    for &len in lens {
        match batches.last_mut() {
            Some(batch) if rows(&[batch, &[len][..]].concat()) <= ROWS => batch.push(len),
            _ => batches.push(vec![len]),
        }
    }
    batches
}

/// What was found for one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Name of the workload.
    pub workload: String,
    /// The type that all compute in.
    pub dtype: Dtype,
    /// Tokens of all requests.
    pub tokens: u64,
    /// The times of each contestant for all requests.
    pub times: Vec<Timed>,
}

impl Case {
    /// Tokens per second if all of them take `us` microseconds.
    #[must_use]
    pub fn tokens_per_s(&self, us: f64) -> f64 {
        self.tokens as f64 / (us * 1e-6)
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Encoders {
    /// How closely all compute the same as turbo in f32 on the same GPU.
    pub agreement: Vec<Agreed>,
    /// What was timed.
    pub cases: Vec<Case>,
    /// What planning costs beside running, in bf16, one request at a time.
    pub planning: Option<planning::Summary>,
    /// The batches of [`RAGGED`] in bf16, one behind the other.
    #[serde(default)]
    pub overlap: Option<Overlap>,
}

/// How close a contestant's vectors are to those of turbo in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreed {
    /// The type that they were computed in.
    pub dtype: Dtype,
    /// The contestant, and how close it is.
    #[serde(flatten)]
    pub agreement: Agreement,
}

impl Encoders {
    /// Adds a case, or replaces an earlier one of the same workload and type, which had fewer contestants.
    pub fn keep(&mut self, case: Case) {
        let same = |it: &Case| (&it.workload, it.dtype) == (&case.workload, case.dtype);
        match self.cases.iter_mut().find(|it| same(it)) {
            Some(place) => *place = case,
            None => self.cases.push(case),
        }
    }

    /// The case of a workload.
    #[must_use]
    pub fn case(&self, workload: &str, dtype: Dtype) -> Option<&Case> {
        self.cases.iter().find(|it| (it.workload.as_str(), it.dtype) == (workload, dtype))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_full_and_lose_nobody() {
        let [one, equal, ragged] = Workload::all();
        assert_eq!((one.packed(), one.padded()), (vec![vec![128]], vec![vec![128]]));
        assert_eq!((equal.packed().len(), equal.padded().len()), (1, 1));
        assert!(one.is_equal() && equal.is_equal() && !ragged.is_equal());
        let (packed, padded) = (ragged.packed(), ragged.padded());
        assert_eq!(packed.concat(), ragged.lens);
        assert_eq!(padded.concat().len(), ragged.lens.len());
        assert!(packed.iter().all(|batch| batch.iter().sum::<u32>() <= ROWS));
        assert!(packed[..packed.len() - 1].iter().all(|batch| batch.iter().sum::<u32>() + 500 > ROWS));
        assert!(padded.iter().all(|batch| batch.len() as u32 * batch[batch.len() - 1] <= ROWS));
        assert!(ragged.tokens() > 100_000, "batches enough that the first counts little");
    }

    #[test]
    fn what_was_found_before_batches_overlapped_is_still_read() {
        let found: Encoders = serde_json::from_str(r#"{"agreement":[],"cases":[],"planning":null}"#).unwrap();
        assert_eq!(found.overlap, None);
    }

    #[test]
    fn a_case_with_more_who_took_part_replaces_the_one_before() {
        let case = |workload: &str, tokens| Case {
            workload: workload.to_owned(),
            dtype: Dtype::Bf16,
            tokens,
            times: vec![],
        };
        let mut found = Encoders::default();
        [case(ONE, 1), case(EQUAL, 2), case(ONE, 3)].into_iter().for_each(|case| found.keep(case));
        assert_eq!(found.cases.iter().map(|it| it.tokens).collect::<Vec<_>>(), [3, 2]);
        assert_eq!(found.case(EQUAL, Dtype::Bf16).map(|it| it.tokens_per_s(1.0)), Some(2e6));
        assert_eq!(found.case(EQUAL, Dtype::F32), None);
    }
}
