//! Measured points of a padded cost, completed to a full grid that never falls with length.
//!
//! In: cells `(seq_len, batch_size)`, some measured. Out: a cost at any length and batch size.
//!
//! A cell that was not measured is inferred from its own row: linear between two measured batch sizes, along
//! the last slope beyond them, in proportion to the batch size below them or where a row has one point only.
//! Then each column is made non-decreasing in length: measured cells by a running maximum, inferred ones
//! clamped between their measured neighbours, so that a guess never overrules a measurement. The cost is
//! *not* forced to rise with the batch size: the split does not need it, and a batch of 8 that runs faster
//! than one of 7 is worth knowing.

use super::Source;

/// Cells by row (`seq_lens`) and column (`batch_sizes`), both strictly ascending; each row has a measured cell.
#[derive(Debug, Clone, Default)]
pub(super) struct Grid {
    pub(super) seq_lens: Vec<u32>,
    pub(super) batch_sizes: Vec<usize>,
    /// As measured, row by row.
    pub(super) measured: Vec<Option<f64>>,
    /// Completed and monotone, row by row; follows from `measured`.
    filled: Vec<Cell>,
    /// Cost per further request beyond the last column, per row; never falls from row to row.
    slope_beyond: Vec<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    cost: f64,
    source: Source,
}

/// A value on an axis, between two of its knots.
struct Between {
    low: usize,
    high: usize,
    /// 0 at `low`, 1 at `high`, above 1 beyond the last knot.
    share: f64,
    source: Source,
}

impl Grid {
    /// An unmeasured grid over these axes. Not usable before cells are set and [`Grid::complete`] ran.
    pub(super) fn over(seq_lens: Vec<u32>, batch_sizes: Vec<usize>) -> Self {
        let cells = seq_lens.len() * batch_sizes.len();
        Self { seq_lens, batch_sizes, measured: vec![None; cells], ..Self::default() }
    }

    /// Position of a cell in the arrays.
    pub(super) fn index(&self, row: usize, column: usize) -> usize {
        row * self.batch_sizes.len() + column
    }

    /// The cost at any length and batch size; both at least 1.
    pub(super) fn at(&self, seq_len: u32, batch_size: usize) -> (f64, Source) {
        let rows = between(&self.seq_lens, f64::from, seq_len);
        let (low, low_source) = self.in_row(rows.low, batch_size);
        if rows.low == rows.high {
            return (low, low_source.max(rows.source));
        }
        let (high, high_source) = self.in_row(rows.high, batch_size);
        (low + rows.share * (high - low), rows.source.max(low_source).max(high_source))
    }

    /// The cost of a batch size at the length of a row.
    fn in_row(&self, row: usize, batch_size: usize) -> (f64, Source) {
        let cells = &self.filled[row * self.batch_sizes.len()..][..self.batch_sizes.len()];
        let (first, last) = (self.batch_sizes[0], self.batch_sizes[cells.len() - 1]);
        if batch_size < first {
            return (cells[0].cost * batch_size as f64 / first as f64, Source::Extrapolated);
        }
        if batch_size > last {
            let beyond = (batch_size - last) as f64 * self.slope_beyond[row];
            return (cells[cells.len() - 1].cost + beyond, Source::Extrapolated);
        }
        let columns = between(&self.batch_sizes, |size| size as f64, batch_size);
        let (low, high) = (cells[columns.low], cells[columns.high]);
        let source = columns.source.max(low.source).max(high.source);
        (low.cost + columns.share * (high.cost - low.cost), source)
    }

    /// Derives every cell from the measured ones. O(cells); allocates only when the grid has grown.
    pub(super) fn complete(&mut self) {
        self.filled.clear();
        self.slope_beyond.clear();
        let width = self.batch_sizes.len();
        for row in self.measured.chunks_exact(width) {
            infer(&self.batch_sizes, row, &mut self.filled);
        }
        for column in 0..width {
            self.make_monotone(column);
        }
        let mut steepest = 0.0_f64;
        for cells in self.filled.chunks_exact(width) {
            steepest = steepest.max(last_slope(&self.batch_sizes, cells));
            self.slope_beyond.push(steepest);
        }
    }

    /// Makes a column non-decreasing in length, without moving a measured cell for the sake of an inferred one.
    fn make_monotone(&mut self, column: usize) {
        let (width, height) = (self.batch_sizes.len(), self.seq_lens.len());
        let column = |row: usize| row * width + column;

        let mut floor = 0.0_f64;
        for cell in (0..height).map(column) {
            let cell = &mut self.filled[cell];
            if cell.source == Source::Measured {
                floor = floor.max(cell.cost);
                cell.cost = floor;
            }
        }
        let mut ceiling = f64::INFINITY;
        for cell in (0..height).rev().map(column) {
            let cell = &mut self.filled[cell];
            cell.cost = cell.cost.min(ceiling);
            if cell.source == Source::Measured {
                ceiling = cell.cost;
            }
        }
        let mut floor = 0.0_f64;
        for cell in (0..height).map(column) {
            let cell = &mut self.filled[cell];
            floor = floor.max(cell.cost);
            cell.cost = floor;
        }
    }
}

/// Appends the cells of a row, from those that were measured, of which there is at least one.
fn infer(batch_sizes: &[usize], row: &[Option<f64>], cells: &mut Vec<Cell>) {
    let size = |column: usize| batch_sizes[column] as f64;
    let mut measured = row.iter().enumerate().filter_map(|(column, cost)| Some((column, (*cost)?)));
    let (mut before_last, mut last, mut next) = (None, None, measured.next());
    for column in 0..row.len() {
        let (cost, source) = match (last, next) {
            (_, Some((here, cost))) if here == column => {
                (before_last, last, next) = (last, next, measured.next());
                (cost, Source::Measured)
            }
            (Some((low, a)), Some((high, b))) => {
                let share = (size(column) - size(low)) / (size(high) - size(low));
                (a + share * (b - a), Source::Interpolated)
            }
            (Some((low, cost)), None) => {
                let slope = match before_last {
                    Some((earlier, less)) => ((cost - less) / (size(low) - size(earlier))).max(0.0),
                    None => cost / size(low),
                };
                (cost + slope * (size(column) - size(low)), Source::Extrapolated)
            }
            (None, Some((first, cost))) => (cost * size(column) / size(first), Source::Extrapolated),
            (None, None) => unreachable!("a row is opened by a measurement"),
        };
        cells.push(Cell { cost, source });
    }
}

/// Cost per further request at the end of a row; in proportion where the row is one cell wide.
fn last_slope(batch_sizes: &[usize], cells: &[Cell]) -> f64 {
    match (batch_sizes, cells) {
        ([.., a, b], [.., low, high]) => ((high.cost - low.cost) / (b - a) as f64).max(0.0),
        ([.., size], [.., cell]) => cell.cost / *size as f64,
        _ => 0.0,
    }
}

/// Finds the knots around `x`. Below the first knot, its value holds; beyond the last, the line through the last two
/// goes on.
fn between<T: Copy + Ord>(knots: &[T], value: impl Fn(T) -> f64, x: T) -> Between {
    let last = knots.len() - 1;
    let (low, high, source) = match knots.binary_search(&x) {
        Ok(knot) => return Between { low: knot, high: knot, share: 0.0, source: Source::Measured },
        Err(0) => return Between { low: 0, high: 0, share: 0.0, source: Source::Extrapolated },
        Err(knot) if knot > last => (last.saturating_sub(1), last, Source::Extrapolated),
        Err(knot) => (knot - 1, knot, Source::Interpolated),
    };
    let share = if low == high {
        0.0
    } else {
        (value(x) - value(knots[low])) / (value(knots[high]) - value(knots[low]))
    };
    Between { low, high, share, source }
}
