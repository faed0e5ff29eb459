//! The packed cost: what a batch without padding costs, as a linear function of four sizes, learnt while serving.
//!
//! In: measured batches. Out: `fixed + per_token·total_tokens + per_len_sq·sum_len_sq + per_request·batch_size`.
//! The terms are what a pass over a transformer consists of: reading the weights and launching, everything that
//! works token by token, attention, and what is done once per sequence (gathering, pooling, answering). No
//! coefficient is negative, so the cost never falls as a batch grows.
//!
//! Fit: least squares on the *relative* error, so that a short batch counts as much as a long one. Served batches fade
//! out as they age; the warm-up keeps a small constant weight. If traffic shows only one kind of batch, the warm-up
//! says what the others cost *relative to that one*, which forgetting alone would unlearn. So its costs are scaled by
//! how much slower the machine is now than it was then: the warm-up does not hold back the costs of a slower machine.

use serde::{Deserialize, Serialize};

use super::{BatchTotal, Estimate, Source, check_measurement, nnls};
use crate::candidate::Candidate;
use crate::error::SchedError;

/// Weight kept by the past when a batch is learnt: half of the weight lies on the last 34 batches.
const RETAIN: f64 = 0.98;

/// Weight of the whole warm-up, in batches. Recent traffic reaches `1 / (1 − RETAIN)` = 50, so it decides wherever it
/// says something.
const WARM_UP_WEIGHT: f64 = 2.0;

/// The least that a batch is believed to have cost, as a multiple of its prediction. Since the error is relative, a
/// batch that was wrongly timed at a thirtieth of its cost would count as nine hundred.
const LEAST_BELIEVED: f64 = 0.5;

/// The most by which the machine is believed to have been slower than predicted during a batch: one during which it
/// stood still says nothing about shapes that traffic does not show. The fit needs no such bound: slow batches weigh
/// little.
const MOST_SLOWER: f64 = 4.0;

/// Cost of packed batches, in the caller's unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Learnt", into = "Learnt")]
pub struct PackedCost {
    learnt: Learnt,
    /// The line through the warm-up alone.
    at_warm_up: Line,
    line: Line,
}

/// Coefficients in the order of [`features`].
type Line = [f64; nnls::N];

/// What a saved model holds: all that was measured, from which the coefficients follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Learnt {
    warm_up: Moments,
    recent: Moments,
    slowdown: Slowdown,
    /// The largest of each size that was measured.
    largest: Candidate,
}

/// How much slower than at warm-up recent batches were: a weighted mean that starts at 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slowdown {
    sum: f64,
    weight: f64,
}

/// Weighted sums over batches: normal equations of the relative error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Moments {
    gram: [[f64; nnls::N]; nnls::N],
    rhs: [f64; nnls::N],
}

impl PackedCost {
    /// Fits the model to the batches of a warm-up. To tell the four terms apart, it should hold short and long
    /// sequences, alone and in batches.
    ///
    /// # Errors
    /// [`SchedError::NoMeasurement`] for an empty list, [`SchedError::Cost`] or [`SchedError::Zero`] for a value
    /// that cannot be.
    pub fn fit(measurements: impl IntoIterator<Item = (Candidate, BatchTotal)>) -> Result<Self, SchedError> {
        let (mut warm_up, mut largest, mut count) = (Moments::default(), Candidate::default(), 0.0);
        for (candidate, cost) in measurements {
            check_measurement(candidate.max_seq_len, candidate.batch_size, cost)?;
            warm_up.add(&candidate, cost);
            largest = largest_of(&largest, &candidate);
            count += 1.0;
        }
        if count == 0.0 {
            return Err(SchedError::NoMeasurement);
        }
        warm_up.scale(WARM_UP_WEIGHT / count);
        let slowdown = Slowdown { sum: WARM_UP_WEIGHT, weight: WARM_UP_WEIGHT };
        Ok(Self::solved(Learnt { warm_up, recent: Moments::default(), slowdown, largest }))
    }

    /// What `candidate` costs.
    #[must_use]
    pub fn cost(&self, candidate: &Candidate) -> BatchTotal {
        BatchTotal(on(&self.line, candidate))
    }

    /// What `candidate` costs, and whether larger batches than it were measured. It is never
    /// [`Source::Measured`]: every answer of a fitted line is inferred.
    #[must_use]
    pub fn estimate(&self, candidate: &Candidate) -> Estimate {
        let inside = largest_of(&self.learnt.largest, candidate) == self.learnt.largest;
        let source = if inside { Source::Interpolated } else { Source::Extrapolated };
        Estimate { cost: self.cost(candidate), source }
    }

    /// Learns from a batch that ran; a measurement that is far from its prediction is believed only in part. Constant
    /// time, no allocation.
    ///
    /// # Errors
    /// [`SchedError::Cost`] when `measured` is not finite and above 0, [`SchedError::Zero`] for an empty batch.
    pub fn update(&mut self, candidate: &Candidate, measured: BatchTotal) -> Result<(), SchedError> {
        check_measurement(candidate.max_seq_len, candidate.batch_size, measured)?;
        let (least, most) = believed(self.cost(candidate));
        let Learnt { recent, slowdown, largest, .. } = &mut self.learnt;
        recent.scale(RETAIN);
        recent.add(candidate, BatchTotal(measured.0.max(least)));
        slowdown.sum =
            slowdown.sum * RETAIN + measured.0.clamp(least, most) / on(&self.at_warm_up, candidate);
        slowdown.weight = slowdown.weight * RETAIN + 1.0;
        *largest = largest_of(largest, candidate);
        self.line = self.learnt.solve();
        Ok(())
    }

    /// Cost of a batch before its first token.
    #[must_use]
    pub fn fixed(&self) -> f64 {
        self.line[0]
    }

    /// Cost per token of `total_tokens`.
    #[must_use]
    pub fn per_token(&self) -> f64 {
        self.line[1]
    }

    /// Cost per unit of `sum_len_sq`.
    #[must_use]
    pub fn per_len_sq(&self) -> f64 {
        self.line[2]
    }

    /// Cost per request of `batch_size`.
    #[must_use]
    pub fn per_request(&self) -> f64 {
        self.line[3]
    }

    fn solved(learnt: Learnt) -> Self {
        let at_warm_up = nnls::solve(&learnt.warm_up.gram, &learnt.warm_up.rhs);
        Self { at_warm_up, line: learnt.solve(), learnt }
    }
}

impl Learnt {
    /// The line through recent batches and the warm-up, the latter as if it had run on the machine of today.
    fn solve(&self) -> Line {
        let faster = self.slowdown.weight / self.slowdown.sum;
        let mut all = self.recent.clone();
        for i in 0..nnls::N {
            // Sizes are stored divided by the cost: once in `rhs`, twice in `gram`.
            all.rhs[i] += self.warm_up.rhs[i] * faster;
            (0..nnls::N).for_each(|j| all.gram[i][j] += self.warm_up.gram[i][j] * faster * faster);
        }
        nnls::solve(&all.gram, &all.rhs)
    }
}

impl Moments {
    /// Adds a batch with weight 1; dividing its sizes by its cost makes the error relative.
    fn add(&mut self, candidate: &Candidate, cost: BatchTotal) {
        let features = features(candidate).map(|size| size / cost.0);
        for (i, size) in features.into_iter().enumerate() {
            self.rhs[i] += size;
            (0..nnls::N).for_each(|j| self.gram[i][j] += size * features[j]);
        }
    }

    fn scale(&mut self, factor: f64) {
        self.rhs.iter_mut().chain(self.gram.as_flattened_mut()).for_each(|sum| *sum *= factor);
    }
}

impl TryFrom<Learnt> for PackedCost {
    type Error = SchedError;

    fn try_from(learnt: Learnt) -> Result<Self, SchedError> {
        let of = |name, moments: &Moments| {
            let mut sums = moments.rhs.iter().chain(moments.gram.as_flattened());
            match sums.find(|sum| !sum.is_finite() || **sum < 0.0) {
                Some(&got) => Err(SchedError::Sum { name, bound: "not negative", got }),
                None => Ok(()),
            }
        };
        of("warm_up", &learnt.warm_up)?;
        of("recent", &learnt.recent)?;
        for got in [learnt.slowdown.sum, learnt.slowdown.weight] {
            if !(got.is_finite() && got > 0.0) {
                return Err(SchedError::Sum { name: "slowdown", bound: "above 0", got });
            }
        }
        let packed = Self::solved(learnt);
        match packed.at_warm_up.iter().any(|&coefficient| coefficient > 0.0) {
            true => Ok(packed),
            false => Err(SchedError::NoMeasurement),
        }
    }
}

impl From<PackedCost> for Learnt {
    fn from(packed: PackedCost) -> Self {
        packed.learnt
    }
}

/// The least and the most that a batch is believed to have cost; without bounds if a line that came from a file
/// predicts something impossible.
fn believed(BatchTotal(predicted): BatchTotal) -> (f64, f64) {
    match predicted.is_normal() {
        true => (LEAST_BELIEVED * predicted, MOST_SLOWER * predicted),
        false => (0.0, f64::INFINITY),
    }
}

/// The sizes in the order of the coefficients.
fn features(candidate: &Candidate) -> Line {
    [1.0, candidate.total_tokens as f64, candidate.sum_len_sq as f64, candidate.batch_size as f64]
}

/// The value of a line at a batch.
fn on(line: &Line, candidate: &Candidate) -> f64 {
    features(candidate).into_iter().zip(line).map(|(size, coefficient)| size * coefficient).sum()
}

/// The larger of each size.
fn largest_of(a: &Candidate, b: &Candidate) -> Candidate {
    Candidate {
        batch_size: a.batch_size.max(b.batch_size),
        max_seq_len: a.max_seq_len.max(b.max_seq_len),
        total_tokens: a.total_tokens.max(b.total_tokens),
        sum_len_sq: a.sum_len_sq.max(b.sum_len_sq),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with known coefficients.
    fn machine(lens: &[u32], slowdown: f64) -> (Candidate, BatchTotal) {
        let candidate: Candidate = lens.iter().copied().collect();
        let [_, tokens, squares, size] = features(&candidate);
        (candidate, BatchTotal(slowdown * (2e-3 + 3e-5 * tokens + 4e-8 * squares + 1e-5 * size)))
    }

    fn warm_up() -> Vec<(Candidate, BatchTotal)> {
        let batches: [&[u32]; 8] =
            [&[8], &[128], &[512], &[8; 8], &[64; 4], &[8; 64], &[128; 16], &[512, 8, 8, 8]];
        batches.into_iter().map(|lens| machine(lens, 1.0)).collect()
    }

    fn error(model: &PackedCost, lens: &[u32], slowdown: f64) -> f64 {
        let (candidate, cost) = machine(lens, slowdown);
        (model.cost(&candidate).0 / cost.0 - 1.0).abs()
    }

    #[test]
    fn recovers_a_machine_that_is_linear() {
        let model = PackedCost::fit(warm_up()).unwrap();
        for lens in [&[20][..], &[300, 300], &[5; 100], &[512; 32]] {
            assert!(error(&model, lens, 1.0) < 1e-3, "{lens:?}: {}", error(&model, lens, 1.0));
        }
        assert!((model.fixed() / 2e-3 - 1.0).abs() < 1e-2, "{model:?}");
        assert!((model.per_token() / 3e-5 - 1.0).abs() < 1e-2, "{model:?}");
        assert!((model.per_len_sq() / 4e-8 - 1.0).abs() < 1e-2, "{model:?}");
    }

    #[test]
    fn follows_a_machine_that_slows_down() {
        let mut model = PackedCost::fit(warm_up()).unwrap();
        for i in 0..800_usize {
            let slowdown = if i < 500 { 1.0 } else { 2.0 };
            let lens = vec![8 + (i as u32 * 37) % 300; 1 + i % 9];
            let (candidate, cost) = machine(&lens, slowdown);
            model.update(&candidate, cost).unwrap();
        }
        // Of the weight of the fast batches 0.2 % is left, and a fast batch counts four times a slow one.
        for lens in [&[100][..], &[20; 8], &[300; 4]] {
            assert!(error(&model, lens, 2.0) < 0.01, "{lens:?}: {}", error(&model, lens, 2.0));
        }
    }

    /// A model that has learnt from `batches` more, of a machine that is `slowdown` times as slow.
    fn after(mut model: PackedCost, batches: usize, slowdown: f64) -> PackedCost {
        for i in 0..batches {
            let lens = vec![8 + (i as u32 * 37) % 60; 1 + i % 9];
            let (candidate, cost) = machine(&lens, slowdown);
            model.update(&candidate, cost).unwrap();
        }
        model
    }

    #[test]
    fn follows_a_machine_however_much_it_changes() {
        let before = after(PackedCost::fit(warm_up()).unwrap(), 300, 1.0);
        for slowdown in [0.1, 10.0] {
            let model = after(before.clone(), 500, slowdown);
            for lens in [&[16][..], &[20; 8], &[512]] {
                let error = error(&model, lens, slowdown);
                assert!(error < 0.02, "{slowdown} {lens:?}: {error}");
            }
        }
    }

    /// A neighbour takes the machine as soon as it is warm.
    #[test]
    fn a_warm_up_that_was_far_too_fast_is_soon_forgotten() {
        let fast = warm_up().into_iter().map(|(candidate, cost)| (candidate, BatchTotal(cost.0 / 100.0)));
        let model = after(PackedCost::fit(fast).unwrap(), 50, 1.0);
        for lens in [&[16][..], &[20; 8], &[512]] {
            let error = error(&model, lens, 1.0);
            assert!(error < 0.2, "{lens:?}: {error}");
        }
    }

    #[test]
    fn one_mismeasured_batch_does_little() {
        let before = after(PackedCost::fit(warm_up()).unwrap(), 300, 1.0);
        for factor in [1.0 / 30.0, 400.0] {
            let mut model = before.clone();
            let (candidate, cost) = machine(&[16], factor);
            model.update(&candidate, cost).unwrap();
            for lens in [&[16][..], &[512], &[64; 4]] {
                let error = error(&model, lens, 1.0);
                assert!(error < 0.25, "{factor} {lens:?}: {error}");
            }
        }
    }

    #[test]
    fn uniform_traffic_does_not_unlearn_the_rest() {
        let mut model = PackedCost::fit(warm_up()).unwrap();
        let (candidate, cost) = machine(&[16], 1.0);
        (0..10_000).for_each(|_| model.update(&candidate, cost).unwrap());
        for lens in [&[512][..], &[128; 16], &[8; 64]] {
            assert!(error(&model, lens, 1.0) < 0.01, "{lens:?}: {}", error(&model, lens, 1.0));
        }
    }

    #[test]
    fn noise_on_similar_batches_does_not_unlearn_the_rest() {
        let mut model = PackedCost::fit(warm_up()).unwrap();
        for i in 0..1000_u32 {
            let noise = 0.9 + 0.2 * f64::from(i * 7919 % 101) / 100.0;
            let (candidate, cost) = machine(&[14 + i % 5, 16], noise);
            model.update(&candidate, cost).unwrap();
        }
        for lens in [&[512][..], &[128; 16], &[8; 64]] {
            assert!(error(&model, lens, 1.0) < 0.1, "{lens:?}: {}", error(&model, lens, 1.0));
        }
    }

    #[test]
    fn never_falls_as_a_batch_grows_whatever_was_measured() {
        let falling = [(&[8_u32][..], 9.0), (&[8, 8], 5.0), (&[512], 1.0), (&[512, 512], 0.5)];
        let model = PackedCost::fit(
            falling.map(|(lens, cost)| (lens.iter().copied().collect::<Candidate>(), BatchTotal(cost))),
        )
        .unwrap();
        let (mut candidate, mut last) = (Candidate::default(), 0.0);
        for len in [1, 500, 2, 1000] {
            candidate.add(len);
            let cost = model.cost(&candidate).0;
            assert!(cost >= last && cost > 0.0, "{cost} after {last}");
            last = cost;
        }
    }

    #[test]
    fn says_what_lies_outside_of_the_warm_up() {
        let mut model = PackedCost::fit(warm_up()).unwrap();
        let longer: Candidate = [513].into_iter().collect();
        assert_eq!(model.estimate(&[100].into_iter().collect()).source, Source::Interpolated);
        assert_eq!(model.estimate(&longer).source, Source::Extrapolated);
        model.update(&longer, BatchTotal(0.03)).unwrap();
        assert_eq!(model.estimate(&longer).source, Source::Interpolated);
    }

    #[test]
    fn impossible_measurements_are_named() {
        let mut model = PackedCost::fit(warm_up()).unwrap();
        let batch: Candidate = [7, 5].into_iter().collect();
        for (cost, shown) in
            [(0.0, "got 0"), (-1.5, "got -1.5"), (f64::NAN, "got NaN"), (f64::INFINITY, "got inf")]
        {
            let error = model.update(&batch, BatchTotal(cost)).unwrap_err().to_string();
            assert!(error.contains("batch_size 2 at max_seq_len 7") && error.contains(shown), "{error}");
        }
        assert!(matches!(PackedCost::fit([]), Err(SchedError::NoMeasurement)));
    }
}
