//! Rows on their way into a product: cut into even tiles, and multiplied where they lie or packed, group by group, into
//! a ring that stays in cache.

use std::ops::Range;

use super::{
    PackedWeight,
    blocks::{Block, Blocks},
    even_tiles::{EvenTiles, LikeTiles},
    format::{Format, FormatKernel},
    sizes::MOST_ROWS,
    tile::{Finish, LaidTiles, Order, Tile, TileRows, Tiles},
};
use crate::{
    device::{Group, MOST_TRACKS, RING, SharedMut, Stage},
    simd::{Simd, TILE_REGISTERS_SIDE, is_intel},
};

/// Bytes of the rows of all groups that are alive at once: half of a second-level cache. The rest is for panels.
const ALIVE_BYTES: usize = 512 << 10;
/// The same with tile registers: all processors that have them have second-level caches of 2 MiB. On an Intel server
/// (family 6, model 167), feed-forward layers of BERT-base with 500 tokens take a fifth less time in bf16 than with
/// half as much, and some 7 % less in int8; half as much again is no better.
const ALIVE_BYTES_OF_REGISTERS: usize = 1 << 20;
/// Bytes of a second-level cache for rows that are alive in blocks, together with the results that hold their sums.
/// Panels pass through the same cache: on a Zen 5 server whose cache is no larger, half of it or three quarters are no
/// better.
const CACHE_BYTES: usize = 1 << 20;
/// The fewest tiles of a group; with fewer, each tile would fetch all panels from memory for itself.
const GROUP_TILES: usize = 2;
/// Rows of each thread at which products of wide rows take the most scratch: the smallest groups, in rings or alone.
/// More rows take no more. Narrower rows stay within what a queue has from the beginning
/// (`shared_values` of the device), except in a feed-forward layer whose inputs are about as wide as
/// its hidden values, thousands of them.
pub(crate) const ROWS_OF_MOST_SCRATCH: usize = RING * GROUP_TILES * MOST_ROWS;
/// Multiply-adds of words that are worth a piece: some ten microseconds. A weight's [`PackedWeight::pace`] multiplies
/// this and the two constants below.
const PIECE_WORK: usize = 1 << 20;
/// What is worth a piece where threads would otherwise wait for each other.
const FINE_WORK: usize = PIECE_WORK / 4;
/// Multiply-adds in the time that a word of weights takes to arrive from memory.
const WORK_PER_WEIGHT: usize = 16;

/// The fewest tiles of a track. A thread with rows of its own reads what it wrote itself, in every operator. Where two
/// threads share the panels of a weight instead, each has written half of every row, and the other half comes late
/// where cores lie far apart. With tracks of one tile, each thread would read the whole weight for a few rows.
const TRACK_TILES: usize = 2;
/// The same on Intel processors, whose cores get less from memory each and all lie on one mesh: threads that share the
/// panels each ask for half of them. Layers of BERT-base with 56 rows take 15 to 21 % less time in f32 than with two
/// (family 6, models 167 and 207), those with 80 rows 3 to 12 %. With tile registers, whose tiles are larger and finish
/// a panel sooner, 128 rows take a quarter less in bf16 and 15 % less in int8. With eight they gain no more.
const TRACK_TILES_OF_INTEL: usize = 4;

/// Bytes of rows that are alive at once, in tiles of at most `tile_rows` rows.
fn alive_bytes(tile_rows: usize) -> usize {
    if tile_rows == TILE_REGISTERS_SIDE { ALIVE_BYTES_OF_REGISTERS } else { ALIVE_BYTES }
}

/// The number of tracks for `tiles`: no more than there are threads.
fn track_count(tiles: EvenTiles, threads: usize) -> usize {
    let least = if is_intel() { TRACK_TILES_OF_INTEL } else { TRACK_TILES };
    (tiles.count() / least).clamp(1, threads.min(MOST_TRACKS))
}

/// Rows cut into tiles, tiles into tracks of equal length, and tracks into groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    tiles: EvenTiles,
    /// The most rows of a tile.
    tile_rows: usize,
    tracks: usize,
    tiles_per_group: usize,
    /// Pieces in which the rows of a tile are packed.
    pieces_per_tile: usize,
}

impl Groups {
    /// Groups of `rows` rows, at least one. Each row takes `row_words` of a second-level cache, which include what
    /// other groups have there at the same time.
    pub(crate) fn new(rows: usize, tile_rows: usize, row_words: usize, threads: usize) -> Groups {
        let tiles = EvenTiles::new(rows, tile_rows);
        let tracks = track_count(tiles, threads);
        // equally long: a thread that finished first would have to fetch rows from the caches of the others
        Groups::of((tiles.in_parts(tracks), tile_rows), tracks, (row_words, alive_bytes(tile_rows)), threads)
    }

    /// The groups of [`Groups::new`], in one block; or larger groups in `blocks`, if more rows fit a cache that way.
    /// Each row of a block takes `block_words`, with everything that meets it.
    pub(crate) fn in_blocks(
        rows: usize,
        tile_rows: usize,
        row_words: usize,
        (blocks, block_words): (Blocks, usize),
        threads: usize,
    ) -> (Groups, Blocks) {
        let whole = Groups::new(rows, tile_rows, row_words, threads);
        let tiles = (whole.tiles, tile_rows);
        let cut = Groups::of(tiles, whole.tracks, (block_words, CACHE_BYTES), threads);
        if blocks.count() > 1 && cut.tiles_per_group > whole.tiles_per_group {
            (cut, blocks)
        } else {
            (whole, blocks.joined())
        }
    }

    /// Groups in a single track, so that they come in the order of their rows, one after another.
    pub(crate) fn in_order(rows: usize, weight: &PackedWeight, threads: usize) -> Groups {
        let row_words = ProductRows::alive_words(rows, weight, 1);
        let tiles = (EvenTiles::new(rows, weight.tile_rows()), weight.tile_rows());
        Groups::of(tiles, 1, (row_words, alive_bytes(weight.tile_rows())), threads)
    }

    /// Groups in tiles of at most `tile_rows` rows, where each row takes `row_words` and a group has `room` bytes.
    fn of(
        (tiles, tile_rows): (EvenTiles, usize),
        tracks: usize,
        (row_words, room): (usize, usize),
        threads: usize,
    ) -> Groups {
        let tile_bytes = tiles.most_rows() * row_words * size_of::<f32>();
        let of_track = tiles.count().div_ceil(tracks);
        let most = (room / tile_bytes.max(1)).max(GROUP_TILES).min(of_track);
        // as even as possible
        let tiles_per_group = of_track.div_ceil(of_track.div_ceil(most));
        // where tiles are few, threads that share them would wait for the one that packs
        let pieces = if threads > tracks { 2 * threads / tracks } else { 1 };
        let pieces_per_tile = pieces.div_ceil(tiles_per_group).min(tiles.most_rows());
        Groups { tiles, tile_rows, tracks, tiles_per_group, pieces_per_tile }
    }

    /// The number of tracks, each for one thread or several.
    pub(crate) fn tracks(&self) -> usize {
        self.tracks
    }

    /// The number of groups in a track.
    pub(crate) fn count(&self) -> usize {
        self.tiles.count().div_ceil(self.tracks).div_ceil(self.tiles_per_group)
    }

    /// The tiles of a group. There may be none, because tracks differ by a tile.
    pub(crate) fn tiles(&self, group: Group) -> Range<usize> {
        let track = self.track(group.track);
        let first = (track.start + group.number * self.tiles_per_group).min(track.end);
        first..track.end.min(first + self.tiles_per_group)
    }

    /// Tiles of a track.
    fn track(&self, track: usize) -> Range<usize> {
        let start = |track: usize| (self.tiles.count() * track).div_ceil(self.tracks);
        start(track)..start(track + 1)
    }

    /// Pieces in which the rows of a group are packed.
    pub(crate) fn pieces(&self) -> usize {
        self.tiles_per_group * self.pieces_per_tile
    }

    /// The rows of a piece, and the index of their tile in the group; no rows behind the last tile.
    pub(crate) fn rows_of_piece(&self, group: Group, piece: usize) -> (Range<usize>, usize) {
        let (tile, part) = (piece / self.pieces_per_tile, piece % self.pieces_per_tile);
        let tiles = self.tiles(group);
        if tile >= tiles.len() {
            return (0..0, tile);
        }
        let rows = self.tiles.range(tiles.start + tile);
        let start = |part: usize| rows.start + rows.len() * part / self.pieces_per_tile;
        (start(part)..start(part + 1), tile)
    }

    /// Rows of one group.
    pub(crate) fn rows(&self, group: Group) -> Range<usize> {
        let tiles = self.tiles(group);
        self.tiles.start(tiles.start)..self.tiles.start(tiles.end)
    }

    /// Rows for which every group of as many tiles has room. Scratch is sized by this, so fewer rows never need more
    /// scratch when their tiles happen to be higher.
    pub(crate) fn room_rows(&self) -> usize {
        self.tiles_per_group * self.tile_rows
    }

    /// Rows kept between what two tracks write as rows, for the sake of caches: processors prefetch past the rows of
    /// one thread, and would take those of the other.
    pub(crate) fn rows_apart(&self) -> usize {
        self.tile_rows
    }

    /// Rows of the largest group.
    pub(crate) fn most_rows(&self) -> usize {
        self.tiles_per_group * self.tiles.most_rows()
    }
}

/// Consecutive panels of a weight, and how many words of each are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels {
    count: usize,
    words: usize,
    pace: usize,
}

impl Panels {
    /// All panels of `weight`, which a product reads a block at a time.
    pub(crate) fn in_blocks(weight: &PackedWeight, blocks: Blocks) -> Panels {
        let words = weight.panel_words().div_ceil(blocks.count());
        Panels { count: weight.panel_count(), words, pace: weight.pace() }
    }

    /// The panels of `weight` whose results are one block of values for the product that follows.
    pub(crate) fn of_block(weight: &PackedWeight, blocks: Blocks) -> Panels {
        let count = match blocks.count() {
            1 => weight.panel_count(),
            _ => blocks.longest().div_ceil(weight.panel_width()),
        };
        Panels { count, words: weight.panel_words(), pace: weight.pace() }
    }
}

/// How a group of tiles and the panels of a weight are cut into pieces.
///
/// Most pieces are a run of panels with all tiles. The last panels come one by one, each with some of the tiles, so
/// that the threads end together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// The first panel.
    first: usize,
    panels: usize,
    panels_per_piece: usize,
    tiles: usize,
    /// Panels that are cut finely, and into how many parts each.
    fine: usize,
    parts: usize,
}

impl Cut {
    pub(crate) fn new(groups: Groups, panels: Panels, threads: usize) -> Cut {
        let coarse = Cut::of_panels(groups, panels, threads);
        let work = groups.most_rows() * panels.words / panels.pace;
        let parts = (work / FINE_WORK).clamp(1, groups.tiles_per_group);
        let fine = if threads > 1 && parts > 1 { threads.min(coarse.panels) } else { 0 };
        Cut { fine, parts, ..coarse }
    }

    /// A cut that splits no panel, so that the tiles that meet a panel come one after another.
    pub(crate) fn of_panels(groups: Groups, panels: Panels, threads: usize) -> Cut {
        let Panels { count: panels, words, pace } = panels;
        let work = (groups.most_rows() + WORK_PER_WEIGHT * pace) * words / pace;
        // at least eight pieces per thread, where there are enough panels
        let most = (panels * groups.tracks() * groups.count()).div_ceil(8 * threads);
        let panels_per_piece = (PIECE_WORK / work.max(1)).clamp(1, most.min(panels).max(1));
        Cut { first: 0, panels, panels_per_piece, tiles: groups.tiles_per_group, fine: 0, parts: 1 }
    }

    /// The same cut, beginning at panel `first`.
    pub(crate) fn behind(self, first: usize) -> Cut {
        Cut { first, ..self }
    }

    /// Pieces of a group.
    pub(crate) fn stage(&self) -> Stage {
        Stage { shared: self.runs(), free: self.fine * self.parts }
    }

    fn runs(&self) -> usize {
        (self.panels - self.fine).div_ceil(self.panels_per_piece)
    }

    /// The tiles of the group and the panels of piece `index`, counted from the first of the cut.
    fn get(&self, index: usize) -> (Range<usize>, Range<usize>) {
        match index.checked_sub(self.runs()) {
            None => {
                let first = index * self.panels_per_piece;
                (0..self.tiles, first..(self.panels - self.fine).min(first + self.panels_per_piece))
            }
            Some(index) => {
                let (panel, part) = (self.panels - self.fine + index / self.parts, index % self.parts);
                let start = |part: usize| self.tiles * part / self.parts;
                (start(part)..start(part + 1), panel..panel + 1)
            }
        }
    }
}

/// Rows as a product reads them.
#[derive(Clone, Copy)]
pub(crate) struct ProductRows<'a> {
    groups: Groups,
    weight: &'a PackedWeight,
    /// Words from one tile to the next.
    stride: usize,
    slots: usize,
    source: Source<'a>,
}

/// Where the rows lie.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// All of them, unpacked.
    InPlace(&'a [f32]),
    /// The packed tiles of some groups.
    Ring(SharedMut<'a, f32>),
}

impl<'a> ProductRows<'a> {
    /// Words that a row takes in a second-level cache on its way into a product of `rows` rows with `weight`, with
    /// `slots` groups alive at once.
    pub(crate) fn alive_words(rows: usize, weight: &PackedWeight, slots: usize) -> usize {
        if weight.takes_rows(rows) { weight.in_features() } else { slots * weight.tile_words(1) }
    }

    /// Groups of packed rows of a track that are alive at once.
    ///
    /// A thread with a track of its own packs a group after it has finished the one before. One is enough, and since it
    /// may be larger, panels are read less often: on a Zen 5 server that takes up to 3 % off the time of 128 and 500
    /// rows in bf16 and int8. Where threads share a track, some pack the next group while others multiply: a ring,
    /// unless no cache would hold it. Such rows, 40 of 3072 values times 768 columns, reach 81 % of the peak with a
    /// ring and 92 % with one group after the other.
    pub(crate) fn slots(rows: usize, weight: &PackedWeight, threads: usize) -> usize {
        let tiles = EvenTiles::new(rows, weight.tile_rows());
        if track_count(tiles, threads) == threads {
            return 1;
        }
        let group = GROUP_TILES * weight.tile_words(weight.tile_rows()) * size_of::<f32>();
        if RING * group <= alive_bytes(weight.tile_rows()) { RING } else { 1 }
    }

    /// Words of scratch for rows of a product with `weight`: a ring of `slots` groups, if they have to be packed.
    pub(crate) fn words(groups: Groups, blocks: Blocks, weight: &PackedWeight, slots: usize) -> usize {
        if weight.takes_rows(groups.tiles.rows()) {
            0
        } else {
            Self::ring_words(groups, blocks, weight, slots)
        }
    }

    /// Words of a ring of `slots` groups.
    pub(crate) fn ring_words(groups: Groups, blocks: Blocks, weight: &PackedWeight, slots: usize) -> usize {
        let of_group = groups.tiles_per_group * weight.block_words(groups.tile_rows, blocks.longest());
        groups.tracks() * slots * of_group
    }

    /// Rows to be packed into `words`, a ring of `slots` groups of the size that [`ProductRows::ring_words`] gives.
    pub(crate) fn ring(
        groups: Groups,
        blocks: Blocks,
        weight: &'a PackedWeight,
        slots: usize,
        words: SharedMut<'a, f32>,
    ) -> Self {
        let stride = weight.block_words(groups.tiles.most_rows(), blocks.longest());
        ProductRows { groups, weight, stride, slots, source: Source::Ring(words) }
    }

    /// The rows of `x`, where they lie if the weight takes them so, or else to be packed into `scratch`, of the size
    /// that [`ProductRows::words`] gives.
    pub(crate) fn of(
        groups: Groups,
        blocks: Blocks,
        weight: &'a PackedWeight,
        x: &'a [f32],
        slots: usize,
        scratch: SharedMut<'a, f32>,
    ) -> Self {
        let ring = Self::ring(groups, blocks, weight, slots, scratch);
        if weight.takes_rows(groups.tiles.rows()) {
            Self { source: Source::InPlace(x), ..ring }
        } else {
            ring
        }
    }

    /// Pieces in which a group is packed.
    pub(crate) fn pieces(&self) -> usize {
        match self.source {
            Source::InPlace(_) => 0,
            Source::Ring(_) => self.groups.pieces(),
        }
    }

    /// Packs piece `index` of `group`, if there is one; `row(i)` gives the values of row `i`, or a block of them.
    ///
    /// # Safety
    /// Meanwhile, nothing else packs, puts or multiplies these rows, or the rows whose place they take.
    pub(crate) unsafe fn pack<'x>(&self, group: Group, index: usize, row: impl Fn(usize) -> &'x [f32]) {
        let (rows, tile) = self.groups.rows_of_piece(group, index);
        if !rows.is_empty() {
            let of_tile = self.groups.tiles.range(self.groups.tiles(group).start + tile);
            let to = self.of_group(group).part(tile * self.stride, self.stride);
            self.weight.run(PackRows { rows, of_tile, row, to });
        }
    }

    /// Multiplies a block of the values of some rows of a group: piece `index` of `cut`.
    ///
    /// # Safety
    /// The group has been packed, if its rows are packed at all, and nothing writes it meanwhile. Nothing else uses
    /// what `finish` writes for the rows and panels of this piece.
    pub(crate) unsafe fn multiply(
        &self,
        (group, block): (Group, Block),
        cut: Cut,
        index: usize,
        finish: impl Finish,
    ) {
        let (tiles, panels) = cut.get(index);
        let panel = |number: usize| self.weight.panel_count().min(cut.first + number);
        let panels = panel(panels.start)..panel(panels.end);
        let of_group = self.groups.tiles(group);
        let words = self.of_group(group);
        let (first, end) = (tiles.start.min(of_group.len()), tiles.end.min(of_group.len()));
        let (higher, lower) = self.groups.tiles.by_height(of_group.start + first..of_group.start + end);
        // Written once, where they stay: elements of a mapped array would be copied, in vectors, and the copy would
        // wait for earlier stores. With one tile of int8 that was 3 % of the time.
        // SAFETY: the caller's promise: the words of the group have been written, and stay as they are.
        let (higher, lower) = unsafe {
            (self.laid(of_group.start, higher, words, block), self.laid(of_group.start, lower, words, block))
        };
        self.weight.run(&Tiles { tiles: [&higher, &lower], panels, weight: self.weight, block, finish });
    }

    /// Some tiles of the group whose first tile is `first`; `words` are the group's, if its rows are packed.
    ///
    /// # Safety
    /// Nothing writes these words while the result lives.
    #[inline(always)]
    unsafe fn laid(
        &self,
        first: usize,
        LikeTiles { tiles, rows, first_row }: LikeTiles,
        words: SharedMut<'a, f32>,
        block: Block,
    ) -> LaidTiles<'a> {
        let (index, count) = (tiles.start - first, tiles.len());
        let (order, step, values) = match self.source {
            Source::InPlace(x) => {
                let stride = self.weight.in_features();
                // without a tile, the range may begin behind the last row
                let range = first_row * stride + block.values().start..(first_row + count * rows) * stride;
                (Order::Rows { stride }, rows * stride, x.get(range).unwrap_or(&[]))
            }
            Source::Ring(_) => {
                // SAFETY: the caller's promise.
                let values = unsafe { words.read(index * self.stride, count * self.stride) };
                (Order::Packed, self.stride, values)
            }
        };
        LaidTiles { first: Tile { first_row, rows, index }, count, order, step, values }
    }

    /// Words from one tile of a group to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// The words of a group; none where rows are not packed.
    pub(crate) fn of_group(&self, group: Group) -> SharedMut<'a, f32> {
        let Source::Ring(ring) = self.source else { return SharedMut::new(&mut []) };
        let slots = self.slots.min(self.groups.count());
        let slot = group.track * slots + group.number % slots;
        let words = self.groups.tiles_per_group * self.stride;
        ring.part(slot * words, words)
    }
}

struct PackRows<'a, R> {
    rows: Range<usize>,
    of_tile: Range<usize>,
    row: R,
    /// The tile; nothing else uses these rows of it.
    to: SharedMut<'a, f32>,
}

impl<'x, R: Fn(usize) -> &'x [f32]> FormatKernel for PackRows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<F: Format, S: Simd>(self, s: S) {
        let mut rows = [&[][..]; MOST_ROWS];
        let first = self.rows.start - self.of_tile.start;
        let count = self.rows.len();
        rows.iter_mut().zip(self.rows).for_each(|(values, row)| *values = (self.row)(row));
        // SAFETY: the creator of `self` was promised that nothing else uses these rows.
        let mut to = unsafe { TileRows::new(self.to, self.of_tile.len(), first) };
        F::pack_rows(s, &rows[..count], &mut to);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tracks_have_as_many_rows_as_each_other() {
        for (threads, rows) in (1..=4).flat_map(|threads| (1..400).map(move |rows| (threads, rows))) {
            let groups = Groups::new(rows, 14, 768 * RING, threads);
            let rows_of = |track: usize| {
                (0..groups.count()).map(|number| groups.rows(Group { track, number }).len()).sum::<usize>()
            };
            let of_tracks: Vec<usize> = (0..groups.tracks()).map(rows_of).collect();
            assert_eq!(of_tracks.iter().sum::<usize>(), rows);
            let (least, most) = (of_tracks.iter().min().unwrap(), of_tracks.iter().max().unwrap());
            assert!(most - least <= 1, "{threads} threads, {rows} rows: {of_tracks:?}");
        }
    }

    proptest! {
        #[test]
        fn groups_are_the_tiles_in_their_order(
            count in 1..60usize, tracks in 1..9usize, most in 1..9usize, pieces in 1..4usize,
        ) {
            let tracks = tracks.min(count);
            let of_track = count.div_ceil(tracks);
            let tiles = EvenTiles::new(count * 3, 3);
            let groups =
                Groups { tiles, tile_rows: 3, tracks, tiles_per_group: most.min(of_track), pieces_per_tile: pieces };
            let all = (0..tracks).flat_map(|track| (0..groups.count()).map(move |number| Group { track, number }));
            let mut next = 0;
            for group in all {
                prop_assert_eq!(groups.rows(group).len(), groups.tiles(group).len() * 3);
                prop_assert!(groups.tiles(group).is_empty() || groups.tiles(group).start == next);
                let rows = (0..groups.pieces()).flat_map(|piece| groups.rows_of_piece(group, piece).0);
                prop_assert!(rows.eq(groups.rows(group)));
                next += groups.tiles(group).len();
            }
            prop_assert_eq!(next, count);
        }

        #[test]
        fn pieces_cover_every_tile_and_panel_once(
            tiles in 1..9usize, panels in 0..40usize, panels_per_piece in 1..9usize, fine in 0..5usize,
            parts in 1..9usize,
        ) {
            let (fine, parts) = (fine.min(panels), parts.min(tiles));
            let cut = Cut { first: 0, panels, panels_per_piece, tiles, fine, parts };
            let mut seen = vec![0; tiles * panels];
            let stage = cut.stage();
            for piece in 0..stage.shared + stage.free {
                let (tiles_of, panels_of) = cut.get(piece);
                for tile in tiles_of {
                    panels_of.clone().for_each(|panel| seen[tile * panels + panel] += 1);
                }
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
        }
    }
}
