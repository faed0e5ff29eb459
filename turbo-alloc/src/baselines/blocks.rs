//! Regions of device memory that are cut into blocks: best fit, split, merge with free neighbours.
//!
//! What PyTorch's pools and onnxruntime's arena have in common; their sizes and split rules differ.

/// Where a block starts: the region it was cut from, and the offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    region: usize,
    offset: usize,
}

#[derive(Clone, Debug)]
struct Block {
    at: Address,
    bytes: usize,
    free: bool,
}

/// All blocks, by address; the blocks of a region cover it without holes.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    regions: usize,
}

impl Blocks {
    /// Adds a region as one free block.
    pub(super) fn add_region(&mut self, bytes: usize) {
        self.blocks.push(Block { at: Address { region: self.regions, offset: 0 }, bytes, free: true });
        self.regions += 1;
    }

    /// Takes the smallest free block of at least `size` bytes (of equals the lowest address), cut down to `size` if
    /// `split` returns `true` for the block's bytes.
    pub(super) fn take_best_fit(&mut self, size: usize, split: impl Fn(usize) -> bool) -> Option<Address> {
        let fitting = self.blocks.iter().enumerate().filter(|(_, block)| block.free && block.bytes >= size);
        let (i, _) = fitting.min_by_key(|(_, block)| block.bytes)?;
        let Block { at, bytes, .. } = self.blocks[i];
        self.blocks[i].free = false;
        if bytes > size && split(bytes) {
            self.blocks[i].bytes = size;
            let rest = Address { offset: at.offset + size, ..at };
            self.blocks.insert(i + 1, Block { at: rest, bytes: bytes - size, free: true });
        }
        Some(at)
    }

    /// Frees the block at this address and merges it with its free neighbours.
    pub(super) fn give_back(&mut self, at: Address) {
        let i = self.blocks.binary_search_by_key(&at, |block| block.at).expect("it was taken from here");
        self.blocks[i].free = true;
        self.merge_with_next(i);
        if i > 0 {
            self.merge_with_next(i - 1);
        }
    }

    fn merge_with_next(&mut self, i: usize) {
        if let [block, next, ..] = &mut self.blocks[i..]
            && block.free
            && next.free
            && block.at.region == next.at.region
        {
            block.bytes += next.bytes;
            self.blocks.remove(i + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(region, offset, bytes, free)` of every block.
    fn layout(blocks: &Blocks) -> Vec<(usize, usize, usize, bool)> {
        blocks.blocks.iter().map(|b| (b.at.region, b.at.offset, b.bytes, b.free)).collect()
    }

    #[test]
    fn fits_best_splits_and_merges_within_a_region() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.take_best_fit(1, |_| true), None);
        blocks.add_region(100);
        blocks.add_region(60);
        let a = blocks.take_best_fit(50, |_| true).unwrap();
        let b = blocks.take_best_fit(70, |_| true).unwrap();
        let c = blocks.take_best_fit(10, |_| false).unwrap(); // the rest of region 1, uncut
        assert_eq!(
            layout(&blocks),
            [(0, 0, 70, false), (0, 70, 30, true), (1, 0, 50, false), (1, 50, 10, false)]
        );
        blocks.give_back(a);
        blocks.give_back(b);
        assert_eq!(layout(&blocks), [(0, 0, 100, true), (1, 0, 50, true), (1, 50, 10, false)]);
        blocks.give_back(c);
        assert_eq!(layout(&blocks), [(0, 0, 100, true), (1, 0, 60, true)]);
    }
}
