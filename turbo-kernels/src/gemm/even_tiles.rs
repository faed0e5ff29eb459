//! Rows cut into tiles that are as even as possible.

use std::ops::Range;

/// Rows cut into tiles whose heights differ by at most one: 40 = 14 + 13 + 13, so no tile is nearly empty. The higher
/// ones come first, so that tiles of one height lie side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvenTiles {
    rows: usize,
    count: usize,
    /// Parts with equally many tiles, which divide the rows as evenly as possible; each has its own higher tiles.
    parts: usize,
}

impl EvenTiles {
    /// Tiles of at most `most` rows.
    pub(crate) fn new(rows: usize, most: usize) -> EvenTiles {
        EvenTiles { rows, count: rows.div_ceil(most), parts: 1 }
    }

    /// The same rows in `parts` parts, which may take a few more tiles.
    pub(super) fn in_parts(self, parts: usize) -> EvenTiles {
        EvenTiles { count: self.count.next_multiple_of(parts), parts, ..self }
    }

    /// The number of tiles.
    pub(crate) fn count(self) -> usize {
        self.count
    }

    /// The number of rows.
    pub(crate) fn rows(self) -> usize {
        self.rows
    }

    /// Rows of the highest tile.
    pub(super) fn most_rows(self) -> usize {
        self.rows.div_ceil(self.count.max(1))
    }

    /// Rows of tile `index`.
    #[inline(always)]
    pub(crate) fn range(self, index: usize) -> Range<usize> {
        self.start(index)..self.start(index + 1)
    }

    /// The first row of tile `index`; behind the last one, the number of rows.
    #[inline(always)]
    pub(super) fn start(self, index: usize) -> usize {
        let of_part = self.tiles_of_part();
        self.part(index / of_part).row(index % of_part)
    }

    /// The rows of all tiles in their order, if there is one part.
    #[inline(always)]
    pub(crate) fn ranges(self) -> TileRanges {
        debug_assert_eq!(self.parts, 1);
        TileRanges { left: self.count, part: self.part(0) }
    }

    /// Some tiles of one part, divided into the higher and the lower ones; either may be none.
    #[inline(always)]
    pub(super) fn by_height(self, tiles: Range<usize>) -> (LikeTiles, LikeTiles) {
        let of_part = self.tiles_of_part();
        let number = if self.parts == 1 { 0 } else { tiles.start / of_part };
        debug_assert!(tiles.is_empty() || (tiles.end - 1) / of_part == number);
        let (part, first) = (self.part(number), number * of_part);
        let border = (first + part.higher).clamp(tiles.start, tiles.end);
        let (higher, lower) = (tiles.start..border, border..tiles.end);
        let first_row = |tiles: &Range<usize>| part.row(tiles.start - first);
        (
            LikeTiles { first_row: first_row(&higher), tiles: higher, rows: part.least + 1 },
            LikeTiles { first_row: first_row(&lower), tiles: lower, rows: part.least },
        )
    }

    #[inline(always)]
    fn tiles_of_part(self) -> usize {
        // without the division, which most callers do not need, and for which products of a few rows have no time
        if self.parts == 1 { self.count.max(1) } else { (self.count / self.parts).max(1) }
    }

    /// Part `number`; behind the last one, a part without rows.
    #[inline(always)]
    fn part(self, number: usize) -> Part {
        let start = |number: usize| match number {
            0 => 0,
            _ if number >= self.parts => self.rows,
            _ => (self.rows * number).div_ceil(self.parts),
        };
        let first = start(number);
        let rows = start(number + 1) - first;
        let of_part = self.tiles_of_part();
        Part { start: first, least: rows / of_part, higher: rows % of_part }
    }
}

/// Consecutive tiles of one height.
pub(super) struct LikeTiles {
    pub(super) tiles: Range<usize>,
    /// Rows of each.
    pub(super) rows: usize,
    pub(super) first_row: usize,
}

/// A part of [`EvenTiles`], or what is left of it.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The first row.
    start: usize,
    /// Rows of the lowest tile.
    least: usize,
    /// Tiles with one row more, which come first.
    higher: usize,
}

impl Part {
    /// The first row of tile `index`.
    #[inline(always)]
    fn row(self, index: usize) -> usize {
        self.start + index * self.least + self.higher.min(index)
    }
}

/// Rows of even tiles, one after another.
#[derive(Clone, Debug)]
pub(crate) struct TileRanges {
    left: usize,
    part: Part,
}

impl Iterator for TileRanges {
    type Item = Range<usize>;

    #[inline(always)]
    fn next(&mut self) -> Option<Range<usize>> {
        self.left = self.left.checked_sub(1)?;
        let Part { start, least, higher } = self.part;
        let end = start + least + usize::from(higher > 0);
        self.part = Part { start: end, least, higher: higher.saturating_sub(1) };
        Some(start..end)
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for TileRanges {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_spread_evenly() {
        let tiles = EvenTiles::new(40, 14);
        assert_eq!((0..tiles.count()).map(|i| tiles.range(i)).collect::<Vec<_>>(), [0..14, 14..27, 27..40]);
        for (rows, parts) in (1..200).flat_map(|rows| [1, 2, 3].map(|parts| (rows, parts))) {
            let tiles = EvenTiles::new(rows, 14).in_parts(parts);
            let ranges: Vec<_> = (0..tiles.count()).map(|i| tiles.range(i)).collect();
            let heights: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
            assert_eq!(heights.iter().sum::<usize>(), rows);
            assert!(parts > 1 || tiles.ranges().eq(ranges), "{heights:?}");
            assert_eq!(heights.iter().max(), Some(&tiles.most_rows()));
            assert!(tiles.most_rows() <= 14 && heights.iter().all(|height| height + 1 >= tiles.most_rows()));
            let of_parts: Vec<&[usize]> = heights.chunks(tiles.count() / parts).collect();
            assert!(of_parts.iter().all(|heights| heights.iter().is_sorted_by(|a, b| a >= b)), "{heights:?}");
            let rows_of = |part: &&[usize]| part.iter().sum::<usize>();
            let [least, most] = [of_parts.iter().map(rows_of).min(), of_parts.iter().map(rows_of).max()];
            assert!(most <= least.map(|least| least + 1), "{heights:?}");
        }
    }

    #[test]
    fn tiles_of_one_height_lie_side_by_side() {
        for (rows, parts) in (1..200).flat_map(|rows| [1, 2, 3].map(|parts| (rows, parts))) {
            let tiles = EvenTiles::new(rows, 14).in_parts(parts);
            let of_part = tiles.count() / parts;
            for first in 0..tiles.count() {
                for end in first..=(first / of_part + 1) * of_part {
                    let like: [LikeTiles; 2] = tiles.by_height(first..end).into();
                    let all = like.iter().flat_map(|LikeTiles { tiles, rows, first_row }| {
                        (0..tiles.len()).map(move |i| first_row + i * rows..first_row + (i + 1) * rows)
                    });
                    assert!(
                        all.eq((first..end).map(|i| tiles.range(i))),
                        "{rows} in {parts}: {first}..{end}"
                    );
                    assert_eq!((like[0].tiles.start, like[1].tiles.end), (first, end));
                    assert_eq!(like[0].tiles.end, like[1].tiles.start);
                }
            }
        }
    }
}
