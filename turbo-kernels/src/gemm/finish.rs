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
        let width = panel_width::<S>();
        for half in 0..width / S::LANES {
            let column = first + half * S::LANES;
            if column >= self.out_features {
                break;
            }
            let columns = S::LANES.min(self.out_features - column);
            let read = |values: &[f32], at: usize| lanes::read(s, &values[at..at + columns], 0.0);
            // one loop for each epilogue, with nothing to decide in it
            macro_rules! rows {
                (|$product:ident, $at:ident| $finished:expr) => {
                    for row in 0..tile.rows {
                        let $at = (tile.first_row - self.first_row + row) * self.out_features + column;
                        let $product = s.load(&products[row * width + half * S::LANES..]);
                        let finished = $finished;
                        // SAFETY: the creator of `self` promised that these columns of these rows are written by
                        // nobody else, and one row is borrowed at a time.
                        lanes::write(s, finished, unsafe { self.out.slice($at, columns) });
                    }
                };
            }
            match self.epilogue {
                Epilogue::None => rows!(|v, at| v),
                Epilogue::Bias(bias) => {
                    let bias = read(bias, column);
                    rows!(|v, at| s.add(v, bias));
                }
                Epilogue::Act(activation) => rows!(|v, at| bias_act::apply(s, activation, v)),
                Epilogue::BiasAct(bias, activation) => {
                    let bias = read(bias, column);
                    rows!(|v, at| bias_act::apply(s, activation, s.add(v, bias)));
                }
                Epilogue::Residual(residual) => rows!(|v, at| s.add(v, read(residual, at))),
                Epilogue::BiasResidual { bias, residual } => {
                    let bias = read(bias, column);
                    rows!(|v, at| s.add(s.add(v, bias), read(residual, at)));
                }
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
