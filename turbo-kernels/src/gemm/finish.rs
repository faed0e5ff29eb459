//! What becomes of products: stored through an epilogue, or folded into the maximum of their sequence.

use std::{marker::PhantomData, ops::Range, slice};

use super::{
    Epilogue,
    format::Format,
    sizes::panel_width,
    tile::{Finish, Met, Place, Tile},
};
use crate::{
    Activation,
    bias_act::{self, with_activation},
    device::SharedMut,
    lanes,
    sequences::Sequences,
    simd::{Kernel, Simd},
};

/// Stores each product through an epilogue.
#[derive(Clone, Copy)]
pub(crate) struct Store<'a> {
    out_features: usize,
    // the parts of an epilogue, which every tile reads
    bias: Option<&'a [f32]>,
    activation: Option<Activation>,
    residual: Option<&'a [f32]>,
    /// The row of the product that is the first of `out` and of the residual.
    first_row: usize,
    /// `[rows, out_features]`; nothing else uses the columns of these panels in the rows of these tiles.
    out: SharedMut<'a, f32>,
}

impl<'a> Store<'a> {
    /// Stores the products of rows from `first_row` on in `out`, `[rows, out_features]`.
    pub(crate) fn new(
        out_features: usize,
        epilogue: Epilogue<&'a [f32]>,
        first_row: usize,
        out: SharedMut<'a, f32>,
    ) -> Store<'a> {
        let (bias, activation, residual) = epilogue.parts();
        Store { out_features, bias, activation, residual, first_row, out }
    }

    /// Whether sums can wait where the results of a whole panel will be.
    pub(super) fn holds_sums(&self) -> bool {
        self.activation.is_none()
    }

    /// Where the results of a row begin, in the panel whose first column is `first`.
    #[inline(always)]
    fn start(&self, row: usize, first: usize) -> usize {
        (row - self.first_row) * self.out_features + first
    }
}

// SAFETY: a place is the columns of one panel in these rows of `out`; other rows and other panels lie elsewhere.
unsafe impl Finish for Store<'_> {
    #[inline(always)]
    fn bias(&self) -> Option<&[f32]> {
        self.bias
    }

    #[inline(always)]
    fn place(&self, rows: Range<usize>, first: usize, width: usize) -> Option<Place<'_>> {
        let whole = first + width <= self.out_features;
        (whole && self.activation.is_none()).then(|| {
            let (start, len) = (self.start(rows.start, first), (rows.len() - 1) * self.out_features + width);
            let residual = self.residual.map(|residual| &residual[start..start + len]);
            Place { values: self.out.part(start, len), residual, stride: self.out_features }
        })
    }

    #[inline(always)]
    fn meets(&self, tile: Tile, first: usize) -> Met {
        let start = self.start(tile.first_row, first);
        Met {
            to: self.out.as_mut_ptr().wrapping_add(start),
            added: self.residual.map(|residual| residual.as_ptr().wrapping_add(start)),
            stride: self.out_features,
            rows: tile.rows,
        }
    }

    #[inline(always)]
    fn finish<F: Format, S: Simd>(&self, s: S, tile: Tile, first: usize, products: &mut [f32]) {
        let (width, stride) = (panel_width::<S>(), self.out_features);
        let columns = width.min(stride - first);
        let (start, len) = (self.start(tile.first_row, first), (tile.rows - 1) * stride + columns);
        let out = self.out.part(start, len);
        let lines = &mut products[..tile.rows * width];
        if let Some(activation) = self.activation {
            if columns == width {
                let high = out.part(S::LANES, len - S::LANES);
                let to = Halves { first: [out, high], stride };
                // SAFETY: nothing else uses these columns of these rows.
                return unsafe { activate::<F, S, false>(s, lines, activation, to) };
            }
            activate_in_place::<F, S>(s, lines, activation);
        }
        let residual = self.residual.map(|residual| &residual[start..start + len]);
        for (row, line) in lines.chunks_exact(width).enumerate() {
            // SAFETY: nothing else uses these columns of these rows, and one row is borrowed at a time.
            let out = unsafe { out.slice(row * stride, columns) };
            for (at, (out, product)) in out.chunks_mut(S::LANES).zip(line.chunks_exact(S::LANES)).enumerate()
            {
                let product = s.load(product);
                let finished = residual.map_or(product, |residual| {
                    let residual = &residual[row * stride + at * S::LANES..][..out.len()];
                    s.add(product, lanes::read(s, residual, 0.0))
                });
                lanes::write(s, finished, out);
            }
        }
    }
}

/// Where the two halves of the first line of panel width go, and those of the next lines.
pub(crate) struct Halves<'a> {
    pub(crate) first: [SharedMut<'a, f32>; 2],
    /// Values from one line to the next.
    pub(crate) stride: usize,
}

/// Activates products, whole lines of panel width, and stores them: as they are, or with `PUT` as the format packs
/// them.
///
/// # Safety
/// Nothing else uses the places meanwhile.
#[inline(always)]
pub(crate) unsafe fn activate<F: Format, S: Simd, const PUT: bool>(
    s: S,
    products: &[f32],
    activation: Activation,
    to: Halves<'_>,
) {
    let count = products.len() / panel_width::<S>();
    let len = count.saturating_sub(1) * to.stride + Activate::<F, PUT>::words::<S>();
    let [low, high] = to.first.map(|first| first.part(0, len).as_mut_ptr());
    let lines = products.as_ptr();
    s.call(Activate::<F, PUT> {
        lines,
        count,
        activation,
        low,
        high,
        stride: to.stride,
        format: PhantomData,
    });
}

/// Activates products, whole lines of panel width.
#[inline(always)]
pub(crate) fn activate_in_place<F: Format, S: Simd>(s: S, products: &mut [f32], activation: Activation) {
    let count = products.len() / panel_width::<S>();
    let low = products.as_mut_ptr();
    let high = low.wrapping_add(S::LANES);
    let (lines, stride) = (low.cast_const(), panel_width::<S>());
    s.call(Activate::<F, false> { lines, count, activation, low, high, stride, format: PhantomData });
}

/// A function of its own, with a loop for each activation: inlined, it would choose the activation anew for each
/// vector, or read its tables again. It takes pointers, for the reason that [`super::words`] gives for those of a
/// product.
struct Activate<F, const PUT: bool> {
    /// Valid for reading `count` lines.
    lines: *const f32,
    count: usize,
    activation: Activation,
    /// Valid for writing the words of `count` half lines, `stride` from one to the next, which may be those of `lines`.
    low: *mut f32,
    high: *mut f32,
    stride: usize,
    format: PhantomData<F>,
}

impl<F: Format, const PUT: bool> Activate<F, PUT> {
    /// Words of half a line.
    #[inline(always)]
    fn words<S: Simd>() -> usize {
        if PUT { F::words_of::<S>(1, 0, 0).len() } else { S::LANES }
    }
}

impl<F: Format, const PUT: bool> Kernel for Activate<F, PUT> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { mut lines, count, activation, mut low, mut high, stride, .. } = self;
        with_activation!(activation, ACTIVATION => {
            for _ in 0..count {
                // SAFETY: a line, as the creator of `self` promised.
                let products = unsafe { [s.load_ptr(lines), s.load_ptr(lines.add(S::LANES))] };
                for (product, to) in products.into_iter().zip([low, high]) {
                    // SAFETY: the words of half a line, which nothing else uses.
                    let to = unsafe { slice::from_raw_parts_mut(to, Self::words::<S>()) };
                    let activated = bias_act::apply(s, F::ACCURACY, ACTIVATION, product);
                    if PUT { F::put(s, activated, to) } else { s.store(activated, to) }
                }
                lines = lines.wrapping_add(panel_width::<S>());
                (low, high) = (low.wrapping_add(stride), high.wrapping_add(stride));
            }
        });
    }
}

/// Keeps the greatest product of each sequence; the tiles of a sequence must come in their order.
#[derive(Clone, Copy)]
pub(super) struct KeepGreatest<'a> {
    pub(super) out_features: usize,
    pub(super) sequences: Sequences<'a>,
    /// `[batch_size, out_features]`, the greatest so far; nothing else uses the columns of these panels.
    pub(super) out: SharedMut<'a, f32>,
}

// SAFETY: there is no place; only `finish` writes to `out`.
unsafe impl Finish for KeepGreatest<'_> {
    #[inline(always)]
    fn bias(&self) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn finish<F: Format, S: Simd>(&self, s: S, tile: Tile, first: usize, products: &mut [f32]) {
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
            // SAFETY: the creator of `self` promised that these columns are used by nothing else, and one sequence is
            // borrowed at a time.
            let out = unsafe { self.out.slice(b * self.out_features + first, columns) };
            for (most, product) in out.chunks_mut(S::LANES).zip(products.chunks_exact(S::LANES)) {
                let greater = lanes::greater_or_nan(s, lanes::read(s, most, 0.0), s.load(product));
                lanes::write(s, greater, most);
            }
        }
    }
}
