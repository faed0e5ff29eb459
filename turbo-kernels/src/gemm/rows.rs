//! Rows on their way into a product: cut into even tiles, and multiplied where they lie, or packed group by group into a
//! ring that stays in cache.

use std::ops::Range;

use super::{
    PackedWeight,
    blocks::{Block, Blocks},
    format::{Format, FormatKernel},
    pack::{EvenTiles, LikeTiles, MOST_ROWS},
    tile::{Finish, Order, Tile, TileRows, TileRun, Tiles},
};
use crate::{
    device::{Group, MOST_TRACKS, RING, SharedMut, Stage},
    simd::{Simd, TILES_SIDE, is_intel},
};

/// Rows of the groups that are alive at once: half of a second-level cache, the rest is for panels.
const ALIVE_BYTES: usize = 512 << 10;
/// The same where there are tile registers: all processors that have them have caches of 2 MiB. On an Intel server (family
/// 6, model 167) feed-forward layers of BERT-base with 500 tokens take a fifth less time in bf16 than with half of this, and
/// some 7 % less in int8; half as much again is no better.
const ALIVE_BYTES_OF_REGISTERS: usize = 1 << 20;
/// Of a second-level cache: rows that are alive in blocks, with what their sums meet. Panels pass through it all the same: on
/// a Zen 5 server that has no more, half of it or three quarters are no better.
const CACHE_BYTES: usize = 1 << 20;
/// Tiles of a group at least, or each would have all panels come from memory for itself.
const GROUP_TILES: usize = 2;
/// Rows of each thread with which products of wide rows take as much scratch as with more of them: the smallest groups, in
/// rings or alone. What narrower rows take stays within what a queue has from the beginning
/// ([`shared_values`](crate::device::shared_values)), but for a feed-forward layer whose inputs are about as wide as its
/// hidden values, thousands of them.
pub(crate) const ROWS_OF_MOST_SCRATCH: usize = RING * GROUP_TILES * MOST_ROWS;
/// Multiply-adds of words that are worth a piece: some ten microseconds. Of this and what follows a weight with a
/// [`PackedWeight::pace`] takes that many more.
const PIECE_WORK: usize = 1 << 20;
/// What is worth a piece where threads would wait for each other otherwise.
const FINE_WORK: usize = PIECE_WORK / 4;
/// Multiply-adds in the time that a word of weights takes to arrive from memory.
const WORK_PER_WEIGHT: usize = 16;

/// Tiles of a track, at least. A thread that has its own rows reads what it wrote itself, in every operator; where threads
/// share the panels of a weight instead, each has written half of every row, which is late where cores lie far apart.
/// One tile would have each thread read all of a weight for a few rows.
const TRACK_TILES: usize = 2;
/// The same on Intel processors, whose cores get less from memory each, and all lie on one mesh: where threads share the
/// panels, each asks for half of them. Layers of BERT-base with 56 rows take 15 to 21 % less time in f32 than with two (family
/// 6, models 167 and 207), those with 80 rows 3 to 12 %; with tile registers, whose tiles are larger and through with a panel
/// sooner, 128 rows take a quarter less in bf16 and 15 % less in int8. With eight they gain no more.
const TRACK_TILES_OF_INTEL: usize = 4;

/// Bytes of rows that are alive at once, where tiles have so many rows at most.
fn alive_bytes(tile_rows: usize) -> usize {
    if tile_rows == TILES_SIDE { ALIVE_BYTES_OF_REGISTERS } else { ALIVE_BYTES }
}

/// Tracks for some tiles: no more than there are threads.
fn track_count(tiles: EvenTiles, threads: usize) -> usize {
    let least = if is_intel() { TRACK_TILES_OF_INTEL } else { TRACK_TILES };
    (tiles.count() / least).clamp(1, threads.min(MOST_TRACKS))
}

/// Rows in tiles, tiles in tracks, which are as long as each other, and tracks in groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    tiles: EvenTiles,
    /// Rows of a tile at most.
    tile_rows: usize,
    tracks: usize,
    tiles_per_group: usize,
    /// Pieces in which the rows of a tile are packed.
    pieces_per_tile: usize,
}

impl Groups {
    /// Groups of rows, at least one of them, of which each takes `row_words` in a second-level cache, counting those that
    /// other groups have there meanwhile.
    pub(crate) fn new(rows: usize, tile_rows: usize, row_words: usize, threads: usize) -> Groups {
        let tiles = EvenTiles::new(rows, tile_rows);
        let tracks = track_count(tiles, threads);
        // equally long: a thread that is done first would have to fetch rows from the caches of the others
        Groups::of((tiles.in_parts(tracks), tile_rows), tracks, (row_words, alive_bytes(tile_rows)), threads)
    }

    /// Groups as [`Groups::new`] makes them, and one block; or, where more rows fit a cache if they go through it in
    /// `blocks`, of which each row takes `block_words` with all that meets it, larger groups and these.
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

    /// One track, so that groups come in the order of their rows, one after the other.
    pub(crate) fn in_order(rows: usize, weight: &PackedWeight, threads: usize) -> Groups {
        let row_words = ProductRows::alive_words(rows, weight, 1);
        let tiles = (EvenTiles::new(rows, weight.tile_rows()), weight.tile_rows());
        Groups::of(tiles, 1, (row_words, alive_bytes(weight.tile_rows())), threads)
    }

    /// Groups of rows that take `row_words` each and `room` bytes together, in tiles of at most so many rows.
    fn of(
        (tiles, tile_rows): (EvenTiles, usize),
        tracks: usize,
        (row_words, room): (usize, usize),
        threads: usize,
    ) -> Groups {
        let tile_bytes = tiles.most_rows() * row_words * size_of::<f32>();
        let of_track = tiles.count().div_ceil(tracks);
        let most = (room / tile_bytes.max(1)).max(GROUP_TILES).min(of_track);
        // as even as they can be
        let tiles_per_group = of_track.div_ceil(of_track.div_ceil(most));
        // where tiles are few, threads that share them would wait for the one that packs
        let pieces = if threads > tracks { 2 * threads / tracks } else { 1 };
        let pieces_per_tile = pieces.div_ceil(tiles_per_group).min(tiles.most_rows());
        Groups { tiles, tile_rows, tracks, tiles_per_group, pieces_per_tile }
    }

    /// Tracks, each for a thread, or some.
    pub(crate) fn tracks(&self) -> usize {
        self.tracks
    }

    /// Groups of a track.
    pub(crate) fn count(&self) -> usize {
        self.tiles.count().div_ceil(self.tracks).div_ceil(self.tiles_per_group)
    }

    /// Tiles of a group, which may be none: tracks differ by a tile.
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

    /// The rows of a piece, and the tile of the group that they are in; none behind the last tile.
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

    /// Rows that all groups with as many tiles have room for. Scratch is for so many, and so never more for fewer rows
    /// whose tiles happen to be higher.
    pub(crate) fn room_rows(&self) -> usize {
        self.tiles_per_group * self.tile_rows
    }

    /// Rows between what two tracks write as rows, for caches: processors prefetch on behind the rows of one thread, and
    /// would take those of the other.
    pub(crate) fn rows_apart(&self) -> usize {
        self.tile_rows
    }

    /// Rows of the largest group.
    pub(crate) fn most_rows(&self) -> usize {
        self.tiles_per_group * self.tiles.most_rows()
    }
}

/// Some panels of a weight, one behind the other, and how many words of each are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels {
    count: usize,
    words: usize,
    pace: usize,
}

impl Panels {
    /// All panels, of which a product reads a block at a time.
    pub(crate) fn in_blocks(weight: &PackedWeight, blocks: Blocks) -> Panels {
        let words = weight.panel_words().div_ceil(blocks.count());
        Panels { count: weight.panel_count(), words, pace: weight.pace() }
    }

    /// The panels of `weight` whose results are a block of the values of what comes behind it.
    pub(crate) fn of_block(weight: &PackedWeight, blocks: Blocks) -> Panels {
        let count = match blocks.count() {
            1 => weight.panel_count(),
            _ => blocks.longest().div_ceil(weight.panel_width()),
        };
        Panels { count, words: weight.panel_words(), pace: weight.pace() }
    }
}

/// How a group of tiles and the panels of a weight are cut into pieces: runs of panels with all tiles; the last panels
/// one by one and with some of the tiles, so that threads end together.
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

    /// No panel is cut, so that the tiles that meet it come one after another.
    pub(crate) fn of_panels(groups: Groups, panels: Panels, threads: usize) -> Cut {
        let Panels { count: panels, words, pace } = panels;
        let work = (groups.most_rows() + WORK_PER_WEIGHT * pace) * words / pace;
        // at least eight pieces a thread, where there are as many panels
        let most = (panels * groups.tracks() * groups.count()).div_ceil(8 * threads);
        let panels_per_piece = (PIECE_WORK / work.max(1)).clamp(1, most.min(panels).max(1));
        Cut { first: 0, panels, panels_per_piece, tiles: groups.tiles_per_group, fine: 0, parts: 1 }
    }

    /// The same cut of as many panels, `first` behind the first ones.
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

    /// Tiles of the group and panels of piece `index`, counted from the first of the cut.
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

/// Where they lie.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// All of them, as they are.
    InPlace(&'a [f32]),
    /// The packed tiles of some groups.
    Ring(SharedMut<'a, f32>),
}

impl<'a> ProductRows<'a> {
    /// Words that a row of `rows` takes in a second-level cache on its way into a product with `weight`, where `slots`
    /// groups are alive at once.
    pub(crate) fn alive_words(rows: usize, weight: &PackedWeight, slots: usize) -> usize {
        if weight.takes_rows(rows) { weight.in_features() } else { slots * weight.tile_words(1) }
    }

    /// Groups of packed rows of a track that are alive at once.
    ///
    /// A thread that has a track to itself packs a group when it is through with the one before: one is enough, and as it
    /// may be larger, panels are read less often. On a Zen 5 server that takes up to 3 % off the time of 128 and 500 rows in
    /// bf16 and int8. Where threads share a track, some pack the next group while others multiply: a ring, unless no cache
    /// would hold it. There 40 rows of 3072 values times 768 columns take 81 % of the peak with one, and 92 with one group
    /// after the other.
    pub(crate) fn slots(rows: usize, weight: &PackedWeight, threads: usize) -> usize {
        let tiles = EvenTiles::new(rows, weight.tile_rows());
        if track_count(tiles, threads) == threads {
            return 1;
        }
        let group = GROUP_TILES * weight.tile_words(weight.tile_rows()) * size_of::<f32>();
        if RING * group <= alive_bytes(weight.tile_rows()) { RING } else { 1 }
    }

    /// Words of scratch for rows that meet `weight`, in a ring of `slots` groups if they have to be packed.
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

    /// Rows to be packed into a ring of `slots` groups, as many words as [`ProductRows::ring_words`] says.
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

    /// The rows of `x`, to be packed into `scratch`, as many words as [`ProductRows::words`] says, unless the weight takes
    /// them where they lie.
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

    /// Packs piece `index` of `group`, if there is one: `row(i)` are the values of row `i`, or a block of them.
    ///
    /// # Safety
    /// Nothing else packs, puts or multiplies these rows, or those whose place they take, meanwhile.
    pub(crate) unsafe fn pack<'x>(&self, group: Group, index: usize, row: impl Fn(usize) -> &'x [f32]) {
        let (rows, tile) = self.groups.rows_of_piece(group, index);
        if !rows.is_empty() {
            let of_tile = self.groups.tiles.range(self.groups.tiles(group).start + tile);
            let to = self.of_group(group).part(tile * self.stride, self.stride);
            self.weight.run(PackRows { rows, of_tile, row, to });
        }
    }

    /// Multiplies a block of the values of some rows of a group: piece `index`, as `cut` says.
    ///
    /// # Safety
    /// The group has been packed, if its rows are, and nothing writes it meanwhile.
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
        // Written once, where they stay: as elements of an array that is mapped they are copied, in vectors, and wait for what
        // was stored before them. With one tile of int8 that was 3 % of the time.
        // SAFETY: the caller's promise: the words of the group have been written, and stay as they are.
        let (higher, lower) = unsafe {
            (self.run(of_group.start, higher, words, block), self.run(of_group.start, lower, words, block))
        };
        self.weight.run(&Tiles { tiles: [&higher, &lower], panels, weight: self.weight, block, finish });
    }

    /// Some tiles of the group whose first tile is `first` and whose words are `words`, if they have to be packed.
    ///
    /// # Safety
    /// While the result lives, nothing writes these words.
    #[inline(always)]
    unsafe fn run(
        &self,
        first: usize,
        LikeTiles { tiles, rows, first_row }: LikeTiles,
        words: SharedMut<'a, f32>,
        block: Block,
    ) -> TileRun<'a> {
        let (index, count) = (tiles.start - first, tiles.len());
        let (order, step, values) = match self.source {
            Source::InPlace(x) => {
                let stride = self.weight.in_features();
                // without a tile it may begin behind the last row
                let range = first_row * stride + block.values().start..(first_row + count * rows) * stride;
                (Order::Rows { stride }, rows * stride, x.get(range).unwrap_or(&[]))
            }
            Source::Ring(_) => {
                // SAFETY: the caller's promise.
                let values = unsafe { words.read(index * self.stride, count * self.stride) };
                (Order::Packed, self.stride, values)
            }
        };
        TileRun { first: Tile { first_row, rows, index }, count, order, step, values }
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
