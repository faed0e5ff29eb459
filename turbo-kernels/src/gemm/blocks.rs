//! Blocks of `k`: a product of long rows takes one part of their values after another.
//!
//! An unfinished sum waits where its result will be, and resumes from there: it stays one chain over ascending `k`, to
//! the bit.

use std::ops::Range;

use super::RUN;
use crate::device::Group;

/// Block lengths are multiples of this: whole runs of every format that can be cut, whole panels of every instruction
/// set.
const UNIT: usize = 2 * RUN;

/// Values of `k` cut into blocks, all as long as the first except the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    values: usize,
    of_block: usize,
}

impl Blocks {
    /// One block.
    pub(crate) fn whole(values: usize) -> Blocks {
        Blocks { values, of_block: values }
    }

    /// The fewest blocks of at most `most` values each, or a unit more, and as even as possible.
    pub(crate) fn of_at_most(most: usize, values: usize) -> Blocks {
        let count = values.div_ceil(most).max(1);
        Blocks { values, of_block: values.div_ceil(count).next_multiple_of(UNIT).min(values) }
    }

    /// The same values in one block.
    pub(crate) fn joined(self) -> Blocks {
        Blocks::whole(self.values)
    }

    /// The number of blocks, at least one.
    pub(crate) fn count(self) -> usize {
        self.values.div_ceil(self.of_block.max(1)).max(1)
    }

    /// Values of the longest block.
    pub(crate) fn longest(self) -> usize {
        self.of_block
    }

    /// Block `index`.
    pub(crate) fn get(self, index: usize) -> Block {
        let start = index * self.of_block;
        Block { start, end: self.values.min(start + self.of_block), of: self.values }
    }

    /// The group of rows and the block that a group of a course stands for: all blocks of some rows, then of the next
    /// rows.
    pub(crate) fn of_group(self, Group { track, number }: Group) -> (Group, Block) {
        (Group { track, number: number / self.count() }, self.get(number % self.count()))
    }
}

/// Some of the values of `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    start: usize,
    end: usize,
    /// The number of all values of `k`.
    of: usize,
}

impl Block {
    /// All of `values`, as one block.
    pub(crate) fn whole(values: usize) -> Block {
        Block { start: 0, end: values, of: values }
    }

    /// The range of its values.
    pub(crate) fn values(self) -> Range<usize> {
        self.start..self.end
    }

    /// Whether sums begin with this block.
    pub(crate) fn is_first(self) -> bool {
        self.start == 0
    }

    /// Whether sums are complete after this block.
    pub(crate) fn is_last(self) -> bool {
        self.end == self.of
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_are_all_values_in_their_order(values in 0..10_000usize, most in 1..4000usize) {
            for blocks in [Blocks::whole(values), Blocks::of_at_most(most, values)] {
                let all: Vec<Block> = (0..blocks.count()).map(|index| blocks.get(index)).collect();
                prop_assert!(all.iter().flat_map(|block| block.values()).eq(0..values));
                prop_assert!(all.iter().all(|block| block.values().len() <= blocks.longest()));
                prop_assert!(all.iter().all(|block| block.values().start % UNIT == 0));
                let [first, last] = [Block::is_first, Block::is_last]
                    .map(|is| all.iter().map(|block| is(*block)).collect::<Vec<_>>());
                prop_assert!(first.iter().enumerate().all(|(i, is)| *is == (i == 0)));
                prop_assert!(last.iter().rev().enumerate().all(|(i, is)| *is == (i == 0)));
            }
            prop_assert!(Blocks::of_at_most(most, values).longest() < most + UNIT);
            prop_assert_eq!(Blocks::of_at_most(most, values).joined(), Blocks::whole(values));
        }
    }

    #[test]
    fn a_group_goes_by_block_by_block() {
        let blocks = Blocks::of_at_most(1536, 3072);
        let group = |number| Group { track: 1, number };
        assert_eq!(blocks.of_group(group(5)), (group(2), blocks.get(1)));
        assert_eq!(blocks.get(1).values(), 1536..3072);
        assert_eq!(Blocks::whole(7).of_group(group(5)), (group(5), Blocks::whole(7).get(0)));
    }
}
