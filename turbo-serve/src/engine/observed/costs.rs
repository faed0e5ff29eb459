//! What batches cost, as a table of lengths by batch sizes.

use std::time::Duration;

use turbo_sched::{Candidate, CostModel, Layout, Limits, Source};

/// What batches of sequences of one length cost, and which were measured at start.
#[derive(Clone, Debug, PartialEq)]
pub struct CostMap {
    /// How sequences share a tensor; the costs depend on it.
    pub layout: Layout,
    /// Tokens of each sequence, ascending.
    pub seq_lens: Vec<u32>,
    /// Sequences of a batch, ascending.
    pub batch_sizes: Vec<usize>,
    /// A row for each length, with a cell for each batch size; `None` where no such batch is formed.
    pub cells: Vec<Option<Cell>>,
    /// The linear model of packed costs.
    pub line: Option<Line>,
    /// The batches measured before the first request.
    pub measured: Vec<MeasuredBatch>,
}

/// What a batch costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// In seconds.
    pub seconds: f64,
    /// Whether the cost was measured, interpolated or extrapolated.
    pub source: Source,
}

/// Coefficients of the seconds of a packed batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// For the batch itself.
    pub fixed: f64,
    /// For each token.
    pub per_token: f64,
    /// For each unit of the sum of squared lengths.
    pub per_len_sq: f64,
    /// For each sequence.
    pub per_request: f64,
}

/// A batch that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredBatch {
    /// Its size.
    pub candidate: Candidate,
    /// The time that it took.
    pub took: Duration,
}

/// The state of a [`CostMap`], in memory that does not grow.
#[derive(Default)]
pub(super) struct Costs {
    seq_lens: Vec<u32>,
    batch_sizes: Vec<usize>,
    cells: Vec<Option<Cell>>,
    line: Option<Line>,
    measured: Vec<MeasuredBatch>,
}

impl Costs {
    pub(super) fn new(
        costs: &CostModel,
        limits: Limits,
        max_seq_len: u32,
        measured: &[(Candidate, Duration)],
    ) -> Self {
        let most = usize::try_from(limits.max_batch_tokens.get()).unwrap_or(usize::MAX);
        let batch_sizes: Vec<usize> = steps(limits.max_batch_size.get().min(most));
        let seq_lens: Vec<u32> =
            steps(max_seq_len as usize).into_iter().filter_map(|len| u32::try_from(len).ok()).collect();
        let layout = costs.layout();
        let place = |&seq_len: &u32, &batch_size: &usize| {
            let nothing = Cell { seconds: 0.0, source: Source::Extrapolated };
            limits.admits(layout, &alike(seq_len, batch_size)).then_some(nothing)
        };
        let cells = seq_lens.iter().flat_map(|len| batch_sizes.iter().map(move |size| place(len, size)));
        let cells = cells.collect();
        let measured = measured.iter().map(|&(candidate, took)| MeasuredBatch { candidate, took }).collect();
        let mut map = Self { seq_lens, batch_sizes, cells, line: None, measured };
        map.follow(costs);
        map
    }

    /// Takes over the current estimates of `costs`. Allocates nothing.
    pub(super) fn follow(&mut self, costs: &CostModel) {
        let Self { seq_lens, batch_sizes, cells, .. } = self;
        let places = seq_lens.iter().flat_map(|&len| batch_sizes.iter().map(move |&size| alike(len, size)));
        for (batch, cell) in places.zip(cells) {
            if let Some(cell) = cell {
                let estimate = costs.estimate(&batch);
                *cell = Cell { seconds: estimate.cost.0, source: estimate.source };
            }
        }
        self.line = match costs {
            CostModel::Padded(_) => None,
            CostModel::Packed(packed) => Some(Line {
                fixed: packed.fixed(),
                per_token: packed.per_token(),
                per_len_sq: packed.per_len_sq(),
                per_request: packed.per_request(),
            }),
        };
    }

    pub(super) fn map(&self, layout: Layout) -> CostMap {
        let Self { seq_lens, batch_sizes, cells, line, measured } = self;
        CostMap {
            layout,
            seq_lens: seq_lens.clone(),
            batch_sizes: batch_sizes.clone(),
            cells: cells.clone(),
            line: *line,
            measured: measured.clone(),
        }
    }
}

/// A batch of sequences of one length.
fn alike(seq_len: u32, batch_size: usize) -> Candidate {
    let (len, size) = (u64::from(seq_len), batch_size as u64);
    Candidate {
        batch_size,
        max_seq_len: seq_len,
        total_tokens: len.saturating_mul(size),
        sum_len_sq: len.saturating_mul(len).saturating_mul(size),
    }
}

/// The rounded powers of √2 below `most`, each once, and `most` itself.
fn steps(most: usize) -> Vec<usize> {
    let powers = (0..).map(|n| 2_f64.powf(f64::from(n) / 2.0).round() as usize);
    let mut steps: Vec<usize> = powers.take_while(|&step| step < most).collect();
    steps.push(most.max(1));
    steps.dedup();
    steps
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU64, NonZeroUsize};

    use turbo_sched::{BatchTotal, PackedCost};

    use super::*;

    /// Costs of a machine on which a token takes a millisecond.
    fn costs() -> CostModel {
        let cost = |lens: &[u32]| {
            let candidate: Candidate = lens.iter().copied().collect();
            (candidate, BatchTotal(candidate.total_tokens as f64 * 1e-3))
        };
        let batches = [cost(&[2]), cost(&[16]), cost(&[4; 4]), cost(&[16, 2, 2])];
        CostModel::Packed(Box::new(PackedCost::fit(batches).unwrap()))
    }

    #[test]
    fn the_map_says_what_the_model_says_of_batches_that_may_be() {
        let limits = Limits {
            max_batch_size: NonZeroUsize::new(6).unwrap(),
            max_batch_tokens: NonZeroU64::new(20).unwrap(),
        };
        let costs = costs();
        let measured = [([2].into_iter().collect(), Duration::from_millis(2))];
        let map = Costs::new(&costs, limits, 24, &measured).map(Layout::Packed);
        assert_eq!(map.batch_sizes, [1, 2, 3, 4, 6]);
        assert_eq!(map.seq_lens, [1, 2, 3, 4, 6, 8, 11, 16, 23, 24]);
        for (row, &seq_len) in map.cells.chunks(map.batch_sizes.len()).zip(&map.seq_lens) {
            for (cell, &batch_size) in row.iter().zip(&map.batch_sizes) {
                let may_be = batch_size == 1 || seq_len as usize * batch_size <= 20;
                assert_eq!(cell.is_some(), may_be, "{batch_size} of {seq_len}");
                let batch: Candidate = std::iter::repeat_n(seq_len, batch_size).collect();
                if let Some(cell) = cell {
                    assert_eq!(cell.seconds, costs.cost(&batch).0, "{batch_size} of {seq_len}");
                    assert!((cell.seconds - batch.total_tokens as f64 * 1e-3).abs() < 1e-6);
                }
            }
        }
        assert!((map.line.unwrap().per_token - 1e-3).abs() < 1e-6);
        assert_eq!(map.measured[0].took, Duration::from_millis(2));
    }

    #[test]
    fn steps_end_where_they_are_told_to() {
        assert_eq!(steps(1), [1]);
        assert_eq!(steps(8), [1, 2, 3, 4, 6, 8]);
        assert_eq!(steps(9), [1, 2, 3, 4, 6, 8, 9]);
        assert_eq!(steps(0), [1]);
    }
}
