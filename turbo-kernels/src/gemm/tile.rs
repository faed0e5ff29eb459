//! Tiles of rows and panels of a weight, how they are multiplied, and what becomes of the products: a [`Finish`].

use std::{cell::Cell, marker::PhantomData, ops::Range, ptr};

use super::{
    blocks::Block,
    format::{Format, FormatKernel},
    sizes::{MOST_ROWS, MOST_WIDTH, RUN, panel_width},
    tile_registers::TileRegisters,
    words::{multiply, tile_rows},
};
use crate::{
    device::SharedMut,
    simd::{Kernel, LINE_BYTES, LINE_VALUES, Simd, opaque},
};

/// How many bytes ahead of its reading the first tile that meets a panel prefetches it, past its end into the next one.
/// Measured on a Zen 5 server, 10 rows times 64 MB of weights: without prefetching 38 % of the multiply-add peak, with
/// 4 KiB 62 %, with 16 KiB 90 %, and with twice that no more.
const DISTANCE: usize = 16 << 10;
/// The most bytes of a panel that is still in a second-level cache when it is multiplied, if it was asked for while
/// another panel of its size, and that one's rows, went through the cache: a quarter of the smallest such cache.
const ASKED_BYTES: usize = 256 << 10;

/// What becomes of the products of a tile.
///
/// # Safety
/// A place is part of what the finish writes for these rows and this panel; places of other rows, and of other panels,
/// do not overlap it.
pub(crate) unsafe trait Finish: Copy + Send + Sync {
    /// What is added to the products, if anything is.
    fn bias(&self) -> Option<&[f32]>;

    /// Where to store the products of some rows with the panel of `width` columns that begins at `first`, if that is
    /// all to do.
    #[inline(always)]
    fn place(&self, _rows: Range<usize>, _first: usize, _width: usize) -> Option<Place<'_>> {
        None
    }

    /// Where the products of a tile with the panel that begins at column `first` meet memory that may be in no cache. Any
    /// address is sound: it is only prefetched.
    #[inline(always)]
    fn meets(&self, _tile: Tile, _first: usize) -> Met {
        Met::NOTHING
    }

    /// Takes products for which there is no such place, in format `F` and with the bias added. Line `i` of `products`,
    /// of panel width, is row `i` of the tile; values behind the last column mean nothing.
    fn finish<F: Format, S: Simd>(&self, s: S, tile: Tile, first: usize, products: &mut [f32]);
}

/// Where the products of some rows and a whole panel are stored.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The first row's first column, and what follows.
    pub(crate) values: SharedMut<'a, f32>,
    /// What is added to the products, laid out as they are.
    pub(crate) residual: Option<&'a [f32]>,
    /// Values from one row to the next, in both.
    pub(crate) stride: usize,
}

/// Tiles of rows times a run of panels: panel by panel, each with the tiles in their order.
pub(super) struct Tiles<'a, F> {
    /// Tiles side by side, those of each height; either may be none.
    pub(super) tiles: [&'a LaidTiles<'a>; 2],
    /// The numbers of the panels.
    pub(super) panels: Range<usize>,
    pub(super) weight: &'a super::PackedWeight,
    /// Which values of the panels the tiles hold.
    pub(super) block: Block,
    /// Nothing else uses what it writes for these rows and panels.
    pub(super) finish: F,
}

/// Room for the largest product: [`MOST_ROWS`] rows of [`MOST_WIDTH`] values. No vector in it straddles two cache
/// lines.
#[repr(align(64))]
pub(crate) struct Products(pub(crate) [f32; MOST_ROWS * MOST_WIDTH]);

impl Products {
    pub(crate) fn new() -> Products {
        Products([0.0; MOST_ROWS * MOST_WIDTH])
    }

    /// Lines of panel width, one behind the other.
    #[inline(always)]
    pub(crate) fn place<S: Simd>(&mut self) -> Place<'_> {
        Place { values: SharedMut::new(&mut self.0), residual: None, stride: panel_width::<S>() }
    }
}

/// Some rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// Its index in its group.
    pub(crate) index: usize,
}

/// Consecutive tiles of one height, and the words that they are multiplied from.
#[derive(Clone, Copy)]
pub(crate) struct LaidTiles<'a> {
    pub(crate) first: Tile,
    /// How many.
    pub(crate) count: usize,
    pub(crate) order: Order,
    /// Words from one tile to the next.
    pub(crate) step: usize,
    /// The values of the first tile, and what follows.
    pub(crate) values: &'a [f32],
}

impl<'a> LaidTiles<'a> {
    /// A single tile, packed in its format.
    pub(crate) fn packed(first_row: usize, rows: usize, values: &'a [f32]) -> LaidTiles<'a> {
        let first = Tile { first_row, rows, index: 0 };
        LaidTiles { first, count: 1, order: Order::Packed, step: 0, values }
    }

    /// Tile `number` of these.
    #[inline(always)]
    fn tile(&self, number: usize) -> Tile {
        let Tile { first_row, rows, index } = self.first;
        Tile { first_row: first_row + number * rows, rows, index: index + number }
    }

    /// The rows of all tiles.
    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.first.first_row..self.first.first_row + self.count * self.first.rows
    }
}

/// How the values of a tile are laid out.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// As their format packs them.
    Packed,
    /// Row after row, `stride` values from one to the next: see [`super::words::rows_are_tiles`].
    Rows { stride: usize },
}

/// Rows of a tile that are being packed.
pub(crate) struct TileRows<'a> {
    tile: SharedMut<'a, f32>,
    /// Rows of the tile.
    rows: usize,
    first: usize,
}

impl<'a> TileRows<'a> {
    /// Rows from `first` on of a tile of `rows` rows.
    ///
    /// # Safety
    /// Nothing else uses the words of the rows that are packed while the result lives.
    pub(crate) unsafe fn new(tile: SharedMut<'a, f32>, rows: usize, first: usize) -> TileRows<'a> {
        TileRows { tile, rows, first }
    }

    /// The words of run `number` of the row that is `row` behind the first; every run of a row has `words` words.
    #[inline(always)]
    pub(super) fn run(&mut self, row: usize, number: usize, words: usize) -> &mut [f32] {
        // SAFETY: runs do not overlap, one is borrowed at a time, and nothing else uses these rows.
        unsafe { self.tile.slice((number * self.rows + self.first + row) * words, words) }
    }

    /// The places of the first `runs` runs of `rows` rows, each of `words` words.
    ///
    /// # Panics
    /// When the tile has no room for them.
    #[inline(always)]
    pub(super) fn runs(&mut self, rows: usize, runs: usize, words: usize) -> Runs {
        assert!(self.first + rows <= self.rows);
        let first = self.tile.part(0, runs * self.rows * words).as_mut_ptr();
        Runs { first: first.wrapping_add(self.first * words), row: words, run: self.rows * words }
    }

    /// The words kept for that row, behind all runs.
    #[inline(always)]
    pub(super) fn kept(&mut self, row: usize, (runs, run_words): (usize, usize), words: usize) -> &mut [f32] {
        // SAFETY: as for `run`: what is kept of a row is its own.
        unsafe { self.tile.slice(runs * self.rows * run_words + (self.first + row) * words, words) }
    }
}

/// Where the runs of some rows of a tile lie.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    first: *mut f32,
    /// Words from one row to the next, and from one run to the next.
    row: usize,
    run: usize,
}

impl Runs {
    /// Where run `number` of the row that is `row` behind the first lies.
    #[inline(always)]
    pub(super) fn place(&self, row: usize, number: usize) -> *mut f32 {
        self.first.wrapping_add(number * self.run + row * self.row)
    }
}

/// By reference: moving an argument that was written in parts a moment ago waits until it lies in a cache.
impl<E: Finish> FormatKernel for &Tiles<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, s: S) {
        // SAFETY: nothing else multiplies on this thread before this returns.
        let (mut products, mut registers) = (Products::new(), unsafe { TileRegisters::new(s) });
        let room = products.place::<S>();
        let (block, finish) = (self.block, &self.finish);
        let line = |value: usize| value / F::PER_WORD * panel_width::<S>();
        // divisions for all panels at once: a tile takes only some thousand cycles
        let count = self.tiles.iter().map(|tiles| tiles.count).sum::<usize>();
        let mut sharing = Sharing::of::<S>(count);
        let runs = block.values().len() / (RUN * F::PER_WORD);
        let met_per_run = tile_rows::<S, F>().div_ceil(runs.max(1));
        for panel in self.panels.clone() {
            let (whole, first) = (self.weight.panel(panel), panel * panel_width::<S>());
            // the words that the format keeps lie behind the last values
            let end = if block.is_last() { whole.len() } else { line(block.values().end) };
            let words = &whole[line(block.values().start)..end];
            let bias = self.finish.bias().map(|bias| &bias[first..]);
            let lines = words.len() / panel_width::<S>();
            let [mut first_share, mut share] = sharing.of_panel::<S>(words, whole.len());
            let mut left = count;
            for tiles in self.tiles.into_iter().filter(|tiles| tiles.count > 0) {
                left -= tiles.count;
                let ahead = Ahead {
                    shares: [first_share, share],
                    met: finish.meets(tiles.first, first),
                    met_per_run,
                    is_last: left == 0,
                    next_rows: panel == 0 && matches!(tiles.order, Order::Rows { .. }),
                };
                let finished = |number: usize| {
                    let tile = tiles.tile(number);
                    s.call(FinishTile::<F, E> {
                        finish,
                        tile,
                        first,
                        products: room.values,
                        format: PhantomData,
                    });
                };
                let results = match finish.place(tiles.rows(), first, panel_width::<S>()) {
                    Some(place) => Results { step: tiles.first.rows * place.stride, place, finished: None },
                    None => {
                        debug_assert!(block.is_first() && block.is_last(), "sums have no room");
                        Results { step: 0, place: room, finished: Some(&finished) }
                    }
                };
                // SAFETY: only products of these rows with this panel use the place, as `Finish` says, and the creator
                // of `self` promised that there are no others; `room` is borrowed here.
                unsafe {
                    multiply::<S, F>(s, &mut registers, tiles, Panel { words, ahead }, block, bias, results)
                };
                first_share = share.behind(lines * (tiles.count - 1));
                share = share.behind(lines * tiles.count);
            }
        }
        sharing.leave();
    }
}

/// [`Finish::finish`] of one tile, as a function of its own.
struct FinishTile<'a, F, E> {
    finish: &'a E,
    tile: Tile,
    first: usize,
    /// The products of the tile; nothing else uses them meanwhile.
    products: SharedMut<'a, f32>,
    format: PhantomData<F>,
}

impl<F: Format, E: Finish> Kernel for FinishTile<'_, F, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the creator of `self` promised it.
        let products = unsafe { self.products.slice(0, self.tile.rows * panel_width::<S>()) };
        self.finish.finish::<F, S>(s, self.tile, self.first, products);
    }
}

/// Where the products of some tiles with a panel go.
pub(crate) struct Results<'a> {
    /// The place of the first tile, and what follows.
    pub(crate) place: Place<'a>,
    /// Values from the place of one tile to that of the next; 0 if all share one place.
    pub(crate) step: usize,
    /// Called with the number of each tile whose products are there.
    pub(crate) finished: Option<&'a dyn Fn(usize)>,
}

impl<'a> Results<'a> {
    /// The results of one tile.
    pub(crate) fn of_one(place: Place<'a>) -> Results<'a> {
        Results { place, step: 0, finished: None }
    }
}

/// A panel of a weight, and what is prefetched while tiles are multiplied by it.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    /// Its words, packed in its format.
    pub(crate) words: &'a [f32],
    pub(crate) ahead: Ahead,
}

impl<'a> Panel<'a> {
    /// A panel that is already in a cache.
    pub(crate) fn cached(words: &'a [f32]) -> Panel<'a> {
        let shares = [Share { from: words.as_ptr(), advance: 0 }; 2];
        let ahead = Ahead { shares, met: Met::NOTHING, met_per_run: 0, is_last: false, next_rows: false };
        Panel { words, ahead }
    }
}

/// The lines of weights that one tile prefetches while it is multiplied by a panel.
#[derive(Clone, Copy)]
struct Share {
    from: *const f32,
    /// Bytes to advance for each line of the panel.
    advance: usize,
}

impl Share {
    /// The share of the first tile that meets `panel`.
    #[inline(always)]
    fn of_first<S: Simd>(panel: &[f32]) -> Share {
        Share { from: panel.as_ptr().wrapping_byte_add(DISTANCE), advance: line_bytes::<S>() }
    }

    /// The share that begins `lines` lines of the panel behind this one.
    #[inline(always)]
    fn behind(self, lines: usize) -> Share {
        Share { from: self.from.wrapping_byte_add(lines * self.advance), ..self }
    }
}

thread_local! {
    /// The panel, or the block of one, that this thread has asked for and not yet multiplied: null if there is none.
    static ASKED_FOR: Cell<*const f32> = const { Cell::new(ptr::null()) };
}

/// How the tiles that meet a panel share the prefetching of weights.
struct Sharing {
    /// Whether there is more than one tile.
    several: bool,
    /// Bytes for each line of the panel: if the first tile has lines of its own to ask for, and if it has none.
    advances: [usize; 2],
    asked_for: *const f32,
}

impl Sharing {
    /// Sharing among `tiles` tiles, whichever panel comes first.
    #[inline(always)]
    fn of<S: Simd>(tiles: usize) -> Sharing {
        let advances = [tiles.max(2) - 1, tiles.max(1)].map(|sharing| line_bytes::<S>().div_ceil(sharing));
        Sharing { several: tiles > 1, advances, asked_for: ASKED_FOR.get() }
    }

    /// The shares of the first tile and of the second; the panel behind `panel` begins `step` words behind its start.
    #[inline(always)]
    fn of_panel<S: Simd>(&mut self, panel: &[f32], step: usize) -> [Share; 2] {
        let next = panel.as_ptr().wrapping_add(step);
        let is_asked_for = self.asked_for == panel.as_ptr();
        self.asked_for = if self.several && size_of_val(panel) <= ASKED_BYTES { next } else { ptr::null() };
        let [of_others, of_all] = self.advances;
        if is_asked_for && self.several {
            let first = Share { from: next, advance: of_all };
            [first, first.behind(panel.len() / panel_width::<S>())]
        } else {
            [Share::of_first::<S>(panel), Share { from: next, advance: of_others }]
        }
    }

    /// Remembers what was asked for until this thread multiplies again.
    #[inline(always)]
    fn leave(self) {
        ASKED_FOR.set(self.asked_for);
    }
}

/// Bytes of a line of a panel.
const fn line_bytes<S: Simd>() -> usize {
    panel_width::<S>() * size_of::<f32>()
}

/// Memory that the results of a tile meet: a panel's width in each row.
#[derive(Clone, Copy)]
pub(crate) struct Met {
    /// Where the first row is written.
    pub(crate) to: *mut f32,
    /// What is added to the first row, if anything is.
    pub(crate) added: Option<*const f32>,
    /// Values from one row to the next, in both.
    pub(crate) stride: usize,
    pub(crate) rows: usize,
}

impl Met {
    /// The results stay in caches.
    pub(crate) const NOTHING: Met = Met { to: ptr::null_mut(), added: None, stride: 0, rows: 0 };

    /// What the tile meets that is `number` tiles behind this one.
    #[inline(always)]
    fn behind(self, number: usize) -> Met {
        let values = number * self.rows * self.stride;
        let added = self.added.map(|added| added.wrapping_add(values));
        Met { to: self.to.wrapping_add(values), added, ..self }
    }
}

/// Lines to prefetch.
///
/// All tiles that meet a panel prefetch the next one, each a part of it: while they find their own in the second-level
/// cache, memory has time, and lines are asked for at an even pace. The first tile of a panel that nobody has asked for
/// prefetches what it reads itself a little later, and the other tiles share the next panel without it. On a Zen 5
/// server this second way, used for every panel, took a tenth off the time of 128 rows times cold weights on two
/// threads. On an Intel server (family 6, model 167), sharing among all tiles takes another 6 to 14 % off f32 products
/// of 40 rows, and up to 6 % off those of 128 rows.
///
/// Lines that results are stored to are prefetched too, a row or two with each run of `k`: a store to a line that is in
/// no cache keeps the stores behind it waiting, and all of them at once stall the product itself. On a Zen 4 server,
/// results that are not in the second-level cache otherwise cost a tile some 500 cycles, a tenth of its time with bytes
/// of 768 values.
///
/// Rows that are not packed lie wherever the operator before left them, and meet the first panel first: there, each
/// tile prefetches the rows of the next one, a line of each with each run of `k`. On a Zen 5 server that takes 5 % off
/// the time of 800 rows from the third-level cache times 384 × 384, and 1 % off that of 500 rows times 768 × 768.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// The share of the first tile, and that of the second; those of the others lie behind it.
    shares: [Share; 2],
    /// What the first tile meets; the others meet what lies behind it.
    met: Met,
    /// Rows of `met` that are prefetched with each run of `k`.
    met_per_run: usize,
    /// Whether the last of these tiles is also the last of its thread.
    is_last: bool,
    /// Whether the rows behind those of a tile are prefetched too.
    pub(super) next_rows: bool,
}

impl Ahead {
    /// What is prefetched with the first of `count` tiles.
    #[inline(always)]
    pub(super) fn start(&self, count: usize) -> AheadOfTile {
        let met = MetAhead::new(self.met, self.is_last && count == 1);
        AheadOfTile { share: self.shares[0], met, met_per_run: self.met_per_run }
    }

    /// What is prefetched with tile `number` of `count`, continuing `before`, that of the tile before it. The format
    /// keeps `kept` words for each column.
    #[inline(always)]
    pub(super) fn go_on(&self, before: AheadOfTile, kept: usize, number: usize, count: usize) -> AheadOfTile {
        let share = if number == 1 { self.shares[1] } else { before.share.behind(kept) };
        let met = MetAhead::new(self.met.behind(number), self.is_last && number + 1 == count);
        AheadOfTile { share, met, ..before }
    }
}

/// The part of [`Ahead`] that one tile has yet to prefetch.
#[derive(Clone, Copy)]
pub(super) struct AheadOfTile {
    share: Share,
    met: MetAhead,
    met_per_run: usize,
}

impl AheadOfTile {
    /// Prefetches the lines that go with the next line of the panel.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, s: S) {
        // In the order of addresses and without a condition, which would take a tenth of the time of a few rows.
        s.prefetch(self.share.from);
        if line_bytes::<S>() > LINE_BYTES {
            s.prefetch(self.share.from.wrapping_byte_add(LINE_BYTES));
        }
        // otherwise the compiler takes a register for each of the next addresses
        self.share.from = opaque(self.share.from.wrapping_byte_add(self.share.advance).cast()).cast();
    }

    /// Prefetches the lines that go with the next `lines` lines of the panel, each once.
    #[inline(always)]
    pub(super) fn ask_for_lines<S: Simd>(&mut self, s: S, lines: usize) {
        let end = self.share.from.wrapping_byte_add(lines * self.share.advance);
        for at in (0..lines * self.share.advance).step_by(LINE_BYTES) {
            s.prefetch(self.share.from.wrapping_byte_add(at));
        }
        self.share.from = end;
    }

    /// Prefetches the rows of [`Met`] that go with the next run of `k`, if any are left.
    #[inline(always)]
    pub(super) fn ask_for_met<S: Simd>(&mut self, s: S) {
        for _ in 0..self.met_per_run.min(self.met.left()) {
            let start = self.met.next_row() * self.met.of.stride;
            for line in (start..start + panel_width::<S>()).step_by(LINE_VALUES) {
                s.prefetch_to_write(self.met.of.to.wrapping_add(line));
                if let Some(added) = self.met.of.added {
                    s.prefetch(added.wrapping_add(line));
                }
            }
        }
    }
}

/// The rows of [`Met`] in the order in which they are prefetched.
///
/// A processor that sees addresses at equal distances prefetches on by itself, some 16 rows ahead. Rows of the next
/// tile are welcome: without them f32 products take 0.3 % more time. But behind the last tile of a thread lie rows that
/// another thread writes, which then has to fetch its own lines back. So there the two rows of each pair are swapped.
/// On a Zen 4 server whose two cores share no cache, the other thread takes 1 to 2 % more time than the first for 64
/// rows times 768 × 768; without the swap it took 5 % more.
#[derive(Clone, Copy)]
struct MetAhead {
    of: Met,
    /// Rows that have been prefetched.
    done: usize,
    /// Whether the two rows of each pair are swapped.
    swaps: bool,
}

impl MetAhead {
    #[inline(always)]
    fn new(of: Met, last_tile: bool) -> MetAhead {
        MetAhead { of, done: 0, swaps: last_tile }
    }

    #[inline(always)]
    fn left(&self) -> usize {
        self.of.rows - self.done
    }

    /// The next row, if one is left.
    #[inline(always)]
    fn next_row(&mut self) -> usize {
        let (row, other) = (self.done, self.done ^ usize::from(self.swaps));
        self.done += 1;
        // the last of an odd number of rows has no partner
        if other < self.of.rows { other } else { row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::supported;

    /// What some tiles prefetch of weights while they meet a panel.
    struct MeetPanel {
        tiles: usize,
        /// Of the panel.
        lines: usize,
        /// Whether this thread has asked for it.
        asked_for: bool,
    }

    impl Kernel for MeetPanel {
        /// The bytes behind the panel's start at which each line of each tile prefetches, the bytes of a line, and whether the
        /// next panel counts as asked for.
        type Output = (Vec<Vec<usize>>, usize, bool);

        #[inline(always)]
        fn run<S: Simd>(self, _: S) -> Self::Output {
            let panel = vec![0.0; self.lines * panel_width::<S>()];
            ASKED_FOR.set(if self.asked_for { panel.as_ptr() } else { ptr::null() });
            let mut sharing = Sharing::of::<S>(self.tiles);
            let [first, second] = sharing.of_panel::<S>(&panel, panel.len());
            sharing.leave();
            let of_tile = |tile: usize| {
                let share = if tile == 0 { first } else { second.behind(self.lines * (tile - 1)) };
                let line = |line| share.behind(line).from.addr() - panel.as_ptr().addr();
                (0..self.lines).map(line).collect()
            };
            let next = panel.as_ptr_range().end;
            ((0..self.tiles).map(of_tile).collect(), line_bytes::<S>(), ASKED_FOR.get() == next)
        }
    }

    #[test]
    fn tiles_share_the_next_panel_among_them() {
        let tiles = (1..40).chain([200]);
        for (tiles, lines) in tiles.flat_map(|tiles| [1, 7, 384, 1536, 3072].map(|lines| (tiles, lines))) {
            for (asked_for, isa) in supported().flat_map(|isa| [(false, isa), (true, isa)]) {
                let (at, line, next_is) = isa.run(MeetPanel { tiles, lines, asked_for });
                assert_eq!(next_is, tiles > 1 && lines * line <= ASKED_BYTES, "{tiles} times {lines}");
                let all_share = asked_for && tiles > 1;
                if !all_share {
                    let own: Vec<usize> = (0..lines).map(|number| DISTANCE + number * line).collect();
                    assert_eq!(at[0], own, "{tiles} times {lines}");
                }
                let shared = at[usize::from(!all_share)..].concat();
                let Some(last) = shared.last() else { continue };
                // no gap, from the first byte to the last one
                assert_eq!(shared[0], lines * line, "{tiles} times {lines}");
                assert!(shared.windows(2).all(|two| two[0] < two[1] && two[1] - two[0] <= line));
                assert!(last + line >= 2 * lines * line, "{tiles} times {lines}: {last}");
            }
        }
    }

    #[test]
    fn each_row_that_results_meet_is_asked_for_once() {
        for (rows, last_tile) in (0..=MOST_ROWS).flat_map(|rows| [(rows, false), (rows, true)]) {
            let mut met = MetAhead::new(Met { rows, ..Met::NOTHING }, last_tile);
            let mut asked: Vec<usize> = (0..rows).map(|_| met.next_row()).collect();
            assert_eq!(met.left(), 0);
            let even = |three: &[usize]| three[1].wrapping_sub(three[0]) == three[2].wrapping_sub(three[1]);
            assert_eq!(asked.windows(3).any(even), !last_tile && rows > 2, "{asked:?}");
            asked.sort_unstable();
            assert!(asked.iter().copied().eq(0..rows));
        }
    }
}
