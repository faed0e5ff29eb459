//! The padded cost: a table by `(seq_len, batch_size)`, measured sparsely and updated while serving.
//!
//! In: costs of batches in which every sequence is padded to `seq_len`. Out: an [`Estimate`] for any batch.
//! Source: Fang et al., PPoPP'21, §6.3: sample the parameter space, interpolate, update with what real batches
//! cost. Departs from it: a running maximum over length comes first, because Algorithm 2 is optimal only for a
//! cost that never falls with length, and measured tables do fall here and there.

use serde::{Deserialize, Serialize};

use super::grid::Grid;
use super::{BatchTotal, Estimate, check_measurement};
use crate::candidate::Candidate;
use crate::error::SchedError;

/// Share of a new measurement in an updated cell. A step in machine speed is followed to 90 % in ten batches,
/// while the noise of single measurements is damped to a third of its standard deviation.
const LEARNING_RATE: f64 = 0.2;

/// The most by which a batch is believed to have been slower than estimated: one during which the machine stood still
/// says nothing about the next. A larger step in machine speed is followed in a few more batches.
const MOST_SLOWER: f64 = 4.0;

/// A batch that lies outside the grid by more than this share of its size opens a row or a column; a nearer
/// one corrects the edge. So the grid grows with the logarithm of the sizes seen, not with their number.
const KNOT_SPACING: f64 = 0.125;

/// The most cells: no file may make the table fill the memory.
const MAX_CELLS: usize = 1 << 18;

/// Cost of padded batches by `(seq_len, batch_size)`, in the caller's unit.
///
/// Never falls with length. Between measurements it is linear in both directions; below the first length it is
/// flat, beyond the last length and batch size it goes on along the last slope; a table with one length is flat.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Points", into = "Points")]
pub struct CostTable {
    grid: Grid,
}

/// One measurement: the padded length, the batch size, the cost of the whole batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    seq_len: u32,
    batch_size: usize,
    batch_total: BatchTotal,
}

/// What a saved table holds: the measurements, from which everything else follows.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Points {
    points: Vec<Point>,
}

impl CostTable {
    /// Builds a table from measurements `(seq_len, batch_size, cost of the whole batch)`, in any order.
    ///
    /// # Errors
    /// [`SchedError::NoMeasurement`] for an empty list, [`SchedError::Cost`] or [`SchedError::Zero`] for a value
    /// that cannot be, [`SchedError::Repeated`] for a point given twice, [`SchedError::TooLarge`].
    pub fn from_measurements(
        measurements: impl IntoIterator<Item = (u32, usize, BatchTotal)>,
    ) -> Result<Self, SchedError> {
        let points: Vec<_> = measurements.into_iter().collect();
        let seq_lens = sorted(points.iter().map(|point| point.0));
        let batch_sizes = sorted(points.iter().map(|point| point.1));
        if points.is_empty() {
            return Err(SchedError::NoMeasurement);
        }
        if seq_lens.len().saturating_mul(batch_sizes.len()) > MAX_CELLS {
            let (seq_lens, batch_sizes) = (seq_lens.len(), batch_sizes.len());
            return Err(SchedError::TooLarge { seq_lens, batch_sizes, max: MAX_CELLS });
        }
        let mut grid = Grid::over(seq_lens, batch_sizes);
        for (seq_len, batch_size, cost) in points {
            check_measurement(seq_len, batch_size, cost)?;
            let row = grid.seq_lens.partition_point(|&len| len < seq_len);
            let column = grid.batch_sizes.partition_point(|&size| size < batch_size);
            let cell = grid.index(row, column);
            if grid.measured[cell].replace(cost.0).is_some() {
                return Err(SchedError::Repeated { seq_len, batch_size });
            }
        }
        grid.complete();
        Ok(Self { grid })
    }

    /// What a batch of `batch_size` sequences padded to `seq_len` costs, and where the number comes from.
    /// A measured cost may have been raised to the running maximum over shorter lengths.
    #[must_use]
    pub fn estimate(&self, seq_len: u32, batch_size: usize) -> Estimate {
        let (cost, source) = self.grid.at(seq_len, batch_size);
        Estimate { cost: BatchTotal(cost), source }
    }

    /// What `candidate` costs when padded to its longest sequence.
    #[must_use]
    pub fn cost(&self, candidate: &Candidate) -> BatchTotal {
        self.estimate(candidate.max_seq_len, candidate.batch_size).cost
    }

    /// The largest batch size measured at every length up to `seq_len` and at the measured length that follows,
    /// so that no cost up to it is extrapolated to larger batches. It never rises with `seq_len`.
    #[must_use]
    pub fn largest_batch_size(&self, seq_len: u32) -> usize {
        let rows = self.grid.seq_lens.partition_point(|&len| len < seq_len) + 1;
        let width = self.grid.batch_sizes.len();
        let last_measured = |row: &[Option<f64>]| row.iter().rposition(Option::is_some);
        let column = self.grid.measured.chunks_exact(width).take(rows).filter_map(last_measured).min();
        column.map_or(0, |column| self.grid.batch_sizes[column])
    }

    /// Learns from a batch that ran padded to `seq_len` and cost `measured`.
    ///
    /// The relative error of the estimate is carried over to the nearest cell, which follows it as an exponential
    /// moving average: old measurements fade, and one slow batch does little.
    ///
    /// An inferred cell becomes a measured one. If its first batch was faster than estimated, the cell takes that cost
    /// at once, since no batch is faster than it can be; if it was slower, the cell follows as always. Otherwise a
    /// batch during which the machine stood still would have its size avoided, and nothing would ever put that right.
    ///
    /// Cells of shorter lengths that cost more, and so hold this one up, follow as well. Cost O(cells); allocates only
    /// when the grid grows.
    ///
    /// # Errors
    /// [`SchedError::Cost`] when `measured` is not finite and above 0, [`SchedError::Zero`] for a size of 0.
    pub fn update(
        &mut self,
        seq_len: u32,
        batch_size: usize,
        measured: BatchTotal,
    ) -> Result<(), SchedError> {
        check_measurement(seq_len, batch_size, measured)?;
        let error = (measured.0 / self.estimate(seq_len, batch_size).cost.0).min(MOST_SLOWER);
        let row_len = self.knot_near(&self.grid.seq_lens, seq_len, f64::from, u32::abs_diff);
        let column_size =
            self.knot_near(&self.grid.batch_sizes, batch_size, |size| size as f64, usize::abs_diff);
        let estimate = self.estimate(row_len, column_size).cost.0;
        let target = estimate * error;

        let row = self.open_row(row_len);
        let column = self.open_column(column_size);
        let cell = self.grid.index(row, column);
        let follow = |old: f64| old + LEARNING_RATE * (target - old);
        self.grid.measured[cell] = Some(follow(self.grid.measured[cell].unwrap_or(estimate.min(target))));
        let width = self.grid.batch_sizes.len();
        let shorter = self.grid.measured[..cell].iter_mut().skip(column).step_by(width).flatten();
        shorter.filter(|cost| **cost > target).for_each(|cost| *cost = follow(*cost));
        self.grid.complete();
        Ok(())
    }

    /// The knot that learns from a measurement at `x`: the nearest, or `x` itself if it is far outside and there is
    /// room.
    fn knot_near<T: Copy + Ord>(
        &self,
        knots: &[T],
        x: T,
        value: impl Fn(T) -> f64,
        distance: impl Fn(T, T) -> T,
    ) -> T {
        let near = knots[nearest(knots, x, distance)];
        let outside = x < knots[0] || x > knots[knots.len() - 1];
        let far = (value(x) - value(near)).abs() > KNOT_SPACING * value(near);
        let room = self.grid.measured.len() * 4 <= MAX_CELLS;
        if outside && far && room { x } else { near }
    }

    /// The row of `seq_len`, opened if there is none.
    fn open_row(&mut self, seq_len: u32) -> usize {
        self.grid.seq_lens.binary_search(&seq_len).unwrap_or_else(|row| {
            let (start, width) = (self.grid.index(row, 0), self.grid.batch_sizes.len());
            self.grid.seq_lens.insert(row, seq_len);
            self.grid.measured.splice(start..start, std::iter::repeat_n(None, width));
            row
        })
    }

    /// The column of `batch_size`, opened if there is none.
    fn open_column(&mut self, batch_size: usize) -> usize {
        self.grid.batch_sizes.binary_search(&batch_size).unwrap_or_else(|column| {
            self.grid.batch_sizes.insert(column, batch_size);
            for row in 0..self.grid.seq_lens.len() {
                let cell = self.grid.index(row, column);
                self.grid.measured.insert(cell, None);
            }
            column
        })
    }
}

impl TryFrom<Points> for CostTable {
    type Error = SchedError;

    fn try_from(Points { points }: Points) -> Result<Self, SchedError> {
        Self::from_measurements(
            points.into_iter().map(|point| (point.seq_len, point.batch_size, point.batch_total)),
        )
    }
}

impl From<CostTable> for Points {
    fn from(CostTable { grid }: CostTable) -> Self {
        let cells =
            grid.seq_lens.iter().flat_map(|&len| grid.batch_sizes.iter().map(move |&size| (len, size)));
        let points = cells.zip(&grid.measured).filter_map(|((seq_len, batch_size), cost)| {
            cost.map(|cost| Point { seq_len, batch_size, batch_total: BatchTotal(cost) })
        });
        Self { points: points.collect() }
    }
}

/// The distinct values, ascending.
fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Position of the knot nearest to `x`, the lower one at equal distance.
fn nearest<T: Copy + Ord>(knots: &[T], x: T, distance: impl Fn(T, T) -> T) -> usize {
    let above = knots.partition_point(|&knot| knot < x);
    if above == 0 {
        return 0;
    }
    if above == knots.len() || distance(knots[above - 1], x) <= distance(knots[above], x) {
        return above - 1;
    }
    above
}
