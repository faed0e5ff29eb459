//! What becomes of products: stored through an epilogue, or folded into the maximum of their sequence.

use super::{
    Epilogue,
    format::Format,
    pack::panel_width,
    tile::{Finish, Tile},
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

impl Finish for Store<'_> {
    #[inline(always)]
    fn finish<F: Format, S: Simd>(&self, s: S, tile: Tile<'_>, first: usize, products: &[f32]) {
        let columns = panel_width::<S>().min(self.out_features - first);
        for (row, products) in products.chunks_exact(panel_width::<S>()).take(tile.rows).enumerate() {
            let start = (tile.first_row - self.first_row + row) * self.out_features + first;
            // SAFETY: the creator of `self` promised that these columns of these rows are written by nobody else, and
            // one row is borrowed at a time.
            let out = unsafe { self.out.slice(start, columns) };
            for (half, out) in out.chunks_mut(S::LANES).enumerate() {
                let at = half * S::LANES..half * S::LANES + out.len();
                let v = s.load(&products[half * S::LANES..]);
                let part = |values: &[f32], first: usize| {
                    lanes::read(s, &values[first + at.start..first + at.end], 0.0)
                };
                let v = match self.epilogue {
                    Epilogue::None => v,
                    Epilogue::Bias(bias) => s.add(v, part(bias, first)),
                    Epilogue::Act(activation) => bias_act::apply(s, activation, v),
                    Epilogue::BiasAct(bias, activation) => {
                        bias_act::apply(s, activation, s.add(v, part(bias, first)))
                    }
                    Epilogue::Residual(residual) => s.add(v, part(residual, start)),
                    Epilogue::BiasResidual { bias, residual } => {
                        s.add(s.add(v, part(bias, first)), part(residual, start))
                    }
                };
                lanes::write(s, v, out);
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
