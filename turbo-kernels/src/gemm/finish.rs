//! What becomes of products: stored through an epilogue, or folded into the maximum of their sequence.

use super::{
    Epilogue,
    format::Format,
    pack::panel_width,
    tile::{Finish, Met, Place, Tile},
};
use crate::{bias_act, device::SharedMut, lanes, sequences::Sequences, simd::Simd};

/// Stores each product through an epilogue.
#[derive(Clone, Copy)]
pub(crate) struct Store<'a> {
    pub(crate) out_features: usize,
    pub(crate) epilogue: Epilogue<&'a [f32]>,
    /// Which row of the product is the first of `out` and of the residual.
    pub(crate) first_row: usize,
    /// `[rows, out_features]`; nobody else writes the columns of these panels in the rows of these tiles.
    pub(crate) out: SharedMut<'a, f32>,
}

impl Store<'_> {
    /// Whether sums can wait where the results of a whole panel will be.
    pub(super) fn holds_sums(&self) -> bool {
        self.epilogue.parts().1.is_none()
    }
}

impl Finish for Store<'_> {
    #[inline(always)]
    fn bias(&self) -> Option<&[f32]> {
        self.epilogue.parts().0
    }

    #[inline(always)]
    fn place(&self, tile: Tile<'_>, first: usize, width: usize) -> Option<Place<'_>> {
        let (_, activation, residual) = self.epilogue.parts();
        let whole = first + width <= self.out_features;
        (whole && activation.is_none()).then(|| {
            let start = (tile.first_row - self.first_row) * self.out_features + first;
            let len = (tile.rows - 1) * self.out_features + width;
            let residual = residual.map(|residual| &residual[start..start + len]);
            Place { values: self.out.part(start, len), residual, stride: self.out_features }
        })
    }

    #[inline(always)]
    fn meets(&self, tile: Tile<'_>, first: usize) -> Met {
        let start = (tile.first_row - self.first_row) * self.out_features + first;
        let (_, _, residual) = self.epilogue.parts();
        Met {
            to: self.out.as_mut_ptr().wrapping_add(start),
            added: residual.map(|residual| residual.as_ptr().wrapping_add(start)),
            stride: self.out_features,
            rows: tile.rows,
        }
    }

    #[inline(always)]
    fn finish<F: Format, S: Simd>(&self, s: S, tile: Tile<'_>, first: usize, products: &[f32]) {
        for (half, column) in
            (first..self.out_features.min(first + panel_width::<S>())).step_by(S::LANES).enumerate()
        {
            let columns = S::LANES.min(self.out_features - column);
            let span = Span { row: tile.first_row - self.first_row, column, columns };
            let lines = products.chunks_exact(panel_width::<S>()).take(tile.rows);
            let products = lines.map(|line| &line[half * S::LANES..][..S::LANES]);
            // whole vectors in a loop of their own, in which nothing is left to decide
            if columns == S::LANES {
                self.finish_columns::<F, S, true>(s, span, products);
            } else {
                self.finish_columns::<F, S, false>(s, span, products);
            }
        }
    }
}

/// Where the results of some rows go: at most a vector of each.
#[derive(Clone, Copy)]
struct Span {
    /// The first one.
    row: usize,
    column: usize,
    columns: usize,
}

impl Store<'_> {
    #[inline(always)]
    fn finish_columns<'p, F: Format, S: Simd, const WHOLE: bool>(
        &self,
        s: S,
        span: Span,
        products: impl ExactSizeIterator<Item = &'p [f32]>,
    ) {
        let Span { row, column, columns } = span;
        let stride = self.out_features;
        let (start, len) = (row * stride + column, (products.len() - 1) * stride + columns);
        let out = self.out.part(start, len);
        let read =
            |values: &[f32]| if WHOLE { s.load(values) } else { s.load_partial(&values[..columns], 0.0) };
        // one loop for each epilogue
        macro_rules! rows {
            (|$product:ident, $at:ident| $finished:expr) => {
                for (row, product) in products.enumerate() {
                    let ($product, $at) = (s.load(product), row * stride);
                    let finished = $finished;
                    // SAFETY: `out` has these columns of all rows. The creator of `self` promised that nobody else
                    // writes them, and one row is borrowed at a time.
                    let to = unsafe { out.slice_unchecked($at, columns) };
                    if WHOLE { s.store(finished, to) } else { s.store_partial(finished, to) }
                }
            };
        }
        match self.epilogue {
            Epilogue::None | Epilogue::Bias(_) => rows!(|v, at| v),
            Epilogue::Act(activation) | Epilogue::BiasAct(_, activation) => {
                rows!(|v, at| bias_act::apply(s, F::ACCURACY, activation, v));
            }
            Epilogue::Residual(residual) | Epilogue::BiasResidual { residual, .. } => {
                let residual = &residual[start..start + len];
                rows!(|v, at| s.add(v, read(&residual[at..])));
            }
        }
    }
}

/// Keeps the greatest product of each sequence; the tiles of a sequence must come in their order.
#[derive(Clone, Copy)]
pub(super) struct KeepGreatest<'a> {
    pub(super) out_features: usize,
    pub(super) sequences: Sequences<'a>,
    /// `[batch_size, out_features]`, the greatest so far; nobody else uses the columns of these panels.
    pub(super) out: SharedMut<'a, f32>,
}

impl Finish for KeepGreatest<'_> {
    #[inline(always)]
    fn bias(&self) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn place(&self, _: Tile<'_>, _: usize, _: usize) -> Option<Place<'_>> {
        None
    }

    #[inline(always)]
    fn meets(&self, _: Tile<'_>, _: usize) -> Met {
        Met::NOTHING
    }

    #[inline(always)]
    fn finish<F: Format, S: Simd>(&self, s: S, tile: Tile<'_>, first: usize, products: &[f32]) {
        let columns = panel_width::<S>().min(self.out_features - first);
        let mut b = self.sequences.of_row(tile.first_row);
        for (row, products) in products.chunks_exact(panel_width::<S>()).take(tile.rows).enumerate() {
            let row = tile.first_row + row;
            while row >= self.sequences.end(b) {
                b += 1;
            }
            if !self.sequences.tokens(b).contains(&row) {
                continue;
            }
            // SAFETY: the creator of `self` promised that these columns are used by nobody else, and one sequence is
            // borrowed at a time.
            let out = unsafe { self.out.slice(b * self.out_features + first, columns) };
            for (most, product) in out.chunks_mut(S::LANES).zip(products.chunks_exact(S::LANES)) {
                let greater = lanes::greater_or_nan(s, lanes::read(s, most, 0.0), s.load(product));
                lanes::write(s, greater, most);
            }
        }
    }
}
