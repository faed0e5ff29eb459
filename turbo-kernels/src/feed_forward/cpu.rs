//! Feed-forward layers on the CPU: both products as one step of the team, group of rows by group of rows.
//!
//! ```text
//! (pack x) │ up: group × run of panels │ (gate, pack) │ down: group × run of panels │ normalise rows
//! ```
//!
//! A group has as many rows as leave its packed hidden values in half of a second-level cache. Where a thread has more
//! rows than that, larger groups go through in blocks of their hidden values: up and down once for each block. Where
//! the format packs value by value, the first product's epilogue writes them in the order in which the second one reads
//! them; gates, and formats that have to see whole rows, take a stage between.

use super::{FeedForward, Hidden};
use crate::{
    Activation, Epilogue, KernelError,
    bias_act::{self, Accuracy, with_activation},
    device::{Course, Cpu, CpuQueue, Group, OneRoom, Piece, RING, SharedMut, Stage, Team},
    gemm::{
        Block, Blocks, Cut, Finish, Format, Groups, Halves, PackedWeight, Panels, ProductRows, RUN, Store,
        Tile, activate, activate_in_place, features, panel_width, row_of,
    },
    norm::NormGroup,
    simd::{Kernel, Simd, SupportedIsa},
};

/// Stages, in their order.
const PACK: usize = 0;
const UP: usize = 1;
const REARRANGE: usize = 2;
const DOWN: usize = 3;
const NORMALISE: usize = 4;

/// How many times as much memory the values between the products of a group may take as packed rows may take of a
/// second-level cache: each is written and read once, in order, and both weights are read once for each group. On a Zen
/// 5 server three times as much takes 1 to 3 % off the time of 500 rows times 768 × 3072 in int8, up to 3 % off gated
/// layers of 768 × 1152, and up to 11 % off those of 1024 × 3072; twelve times as much is no better.
const RAW_VALUES: usize = 3;
/// A thread that helps with the rows of others leaves them the last pieces, one in so many of a group: it has to fetch
/// the hidden values from their caches, and in the end they wait for it. On a Zen 4 server whose two cores share no
/// cache that takes 1 to 1.5 % off the time of 128 rows times 768 × 3072 in f32, and some 1 % in int8; where they share
/// one it makes no difference. Half as many left are too few, and more are no better.
const LEFT_TO_OWNERS: usize = 5;

pub(crate) fn feed_forward(
    cpu: &Cpu,
    queue: &mut CpuQueue,
    x: &[f32],
    layer: FeedForward<'_, PackedWeight, &[f32]>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let rows = layer.check([features(layer.up), features(layer.down)], &x, &out)?;
    if out.is_empty() {
        return Ok(());
    }
    let values = scratch_values(&layer, rows, queue.threads());
    let (team, scratch) = queue.team_and_shared(values)?;
    on_team(cpu.supported_isa(), team, x, layer, out, scratch);
    Ok(())
}

/// Values of scratch that a layer takes for `rows` rows.
pub(crate) fn scratch_values(
    layer: &FeedForward<'_, PackedWeight, &[f32]>,
    rows: usize,
    threads: usize,
) -> usize {
    Cutting::of(layer, rows, threads).scratch.iter().sum()
}

/// Computes a checked layer of at least one row, with at least as much scratch as it takes.
pub(crate) fn on_team(
    isa: SupportedIsa,
    team: &mut Team,
    x: &[f32],
    layer: FeedForward<'_, PackedWeight, &[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let rows = out.len() / layer.down.out_features();
    let cutting = Cutting::of(&layer, rows, team.threads());
    let work = Work::new(isa, cutting, x, layer, scratch, out, team.threads());
    work.course().run(team, |_, piece| work.run(piece));
}

/// How rows are cut into groups and hidden values into blocks, and what memory that takes.
struct Cutting {
    between: Between,
    groups: Groups,
    /// The blocks of the hidden values.
    blocks: Blocks,
    /// A single block: all of a row of `x`.
    whole: Blocks,
    /// Words for packed rows of `x`, for packed hidden values, and for those that are written as rows first.
    scratch: [usize; 3],
}

impl Cutting {
    fn of(layer: &FeedForward<'_, PackedWeight, &[f32]>, rows: usize, threads: usize) -> Cutting {
        let (up, down) = (layer.up, layer.down);
        let between = Between::of(layer.hidden, up, down);
        let row_words = up.tile_words(1).max(down.tile_words(1)).max(between.row_words(up) / RAW_VALUES);
        let blocks = match between {
            Between::Nothing => down.blocks(),
            Between::Rows => Blocks::whole(down.in_features()),
        };
        let block_words = up.in_features() + down.block_words(1, blocks.longest()) + down.out_features();
        let tile_rows = up.tile_rows().min(down.tile_rows());
        let (groups, blocks) = Groups::in_blocks(rows, tile_rows, row_words, (blocks, block_words), threads);
        let whole = Blocks::whole(up.in_features());
        let apart = groups.rows_apart();
        let rows_between = groups.tracks() * (groups.room_rows() + apart) - apart;
        let scratch = [
            ProductRows::words(groups, whole, up, RING),
            ProductRows::ring_words(groups, blocks, down, 1),
            rows_between * between.row_words(up),
        ];
        Cutting { between, groups, blocks, whole, scratch }
    }
}

/// A layer over its rows: what a piece of each stage reads and writes.
struct Work<'a> {
    isa: SupportedIsa,
    layer: FeedForward<'a, PackedWeight, &'a [f32]>,
    cutting: Cutting,
    x: &'a [f32],
    /// Rows of `x` as the first product reads them.
    input: ProductRows<'a>,
    up: Cut,
    raw: Raw<'a>,
    /// Hidden values as the second product reads them.
    packed: ProductRows<'a>,
    down: Cut,
    norm: Option<NormGroup<'a>>,
    out: SharedMut<'a, f32>,
}

impl<'a> Work<'a> {
    fn new(
        isa: SupportedIsa,
        cutting: Cutting,
        x: &'a [f32],
        layer: FeedForward<'a, PackedWeight, &'a [f32]>,
        scratch: &'a mut [f32],
        out: &'a mut [f32],
        threads: usize,
    ) -> Work<'a> {
        let Cutting { between, groups, blocks, whole, scratch: [for_x, for_hidden, _] } = cutting;
        let (for_x, rest) = scratch.split_at_mut(for_x);
        let (for_hidden, for_raw) = rest.split_at_mut(for_hidden);
        let (values, width) = (SharedMut::new(for_raw), layer.up.out_features());
        let out = SharedMut::new(out);
        // a thread with rows of its own is left their last panels
        let cut = if groups.tracks() == threads { Cut::of_panels } else { Cut::new };
        Work {
            isa,
            x,
            input: ProductRows::of(groups, whole, layer.up, x, RING, SharedMut::new(for_x)),
            up: cut(groups, Panels::of_block(layer.up, blocks), threads),
            raw: Raw { values, groups, width, between },
            packed: ProductRows::ring(groups, blocks, layer.down, 1, SharedMut::new(for_hidden)),
            down: cut(groups, Panels::in_blocks(layer.down, blocks), threads),
            norm: layer.norm.map(|weights| NormGroup { isa, weights, out }),
            out,
            cutting,
            layer,
        }
    }

    /// Each stage has what it reads from the stages before it in its group, and a place in the rings is free once the
    /// group that had it is done: the course runs no piece sooner.
    fn course(&self) -> Course<5> {
        let Cutting { between, groups, blocks, .. } = self.cutting;
        let mut stages = [Stage::default(); 5];
        stages[PACK] = Stage::shared(self.input.pieces());
        stages[UP] = self.up.stage();
        stages[REARRANGE] = Stage::shared(if between == Between::Nothing { 0 } else { self.packed.pieces() });
        stages[DOWN] = self.down.stage();
        stages[NORMALISE] = Stage::shared(self.norm.map_or(0, |norm| norm.pieces(groups.most_rows())));
        // A second-level cache has room for the hidden values of one group only, or for a block of them. Where there
        // are none, int8 still writes a scale and a zero point for each row.
        let writer = [UP, REARRANGE].into_iter().find(|&stage| stages[stage].pieces() > 0);
        let one_room = writer.map(|writer| OneRoom { writer, last_reader: DOWN });
        let left_to_owners = stages.iter().map(Stage::pieces).sum::<usize>() / LEFT_TO_OWNERS;
        let (tracks, groups) = (groups.tracks(), groups.count() * blocks.count());
        Course { tracks, groups, stages, one_room, left_to_owners }
    }

    fn run(&self, Piece { group, stage, index }: Piece) {
        let (group, block) = self.cutting.blocks.of_group(group);
        match stage {
            PACK if block.is_first() => self.pack(group, index),
            UP => self.multiply_up(group, block, index),
            REARRANGE => self.rearrange(group, index),
            DOWN => self.multiply_down(group, block, index),
            NORMALISE if block.is_last() => self.normalise(group, index),
            // rows of x are packed before the first block, and normalised behind the last
            PACK | NORMALISE => {}
            _ => unreachable!("there are five stages"),
        }
    }

    fn pack(&self, group: Group, index: usize) {
        // SAFETY: a piece has its own rows.
        unsafe { self.input.pack(group, index, |row| row_of(self.x, row, self.layer.up)) }
    }

    fn multiply_up(&self, group: Group, block: Block, index: usize) {
        let FeedForward { up, up_bias, hidden, .. } = self.layer;
        let rows = (group, self.cutting.whole.get(0));
        match (self.cutting.between, hidden) {
            (Between::Nothing, Hidden::Activation(activation)) => {
                let (to, stride) = (self.packed.of_group(group), self.packed.stride());
                let columns = (block.values().start, block.values().end);
                let cut = self.up.behind(columns.0 / up.panel_width());
                // SAFETY: the group is packed, and the piece has its own panels or tiles of the hidden values.
                unsafe {
                    self.input.multiply(
                        rows,
                        cut,
                        index,
                        Put { bias: up_bias, activation, columns, to, stride },
                    );
                }
            }
            // SAFETY: the group is packed, and the piece has its own panels or tiles of the raw values.
            _ => unsafe {
                self.input.multiply(rows, self.up, index, self.raw.store(group, up_bias, hidden));
            },
        }
    }

    /// Gates raw values, if there is a gate, and packs them.
    fn rearrange(&self, group: Group, index: usize) {
        if let Hidden::Gate(activation) = self.layer.hidden {
            for row in self.cutting.groups.rows_of_piece(group, index).0 {
                // SAFETY: a piece has its own rows.
                let values = unsafe { self.raw.row_mut(group, row) };
                self.isa.run(GateRow { activation, values });
            }
        }
        let width = self.layer.down.in_features();
        // SAFETY: a piece has its own rows, raw and packed.
        unsafe { self.packed.pack(group, index, |row| &self.raw.row(group, row)[..width]) }
    }

    fn multiply_down(&self, group: Group, block: Block, index: usize) {
        let FeedForward { down, down_bias, residual, .. } = self.layer;
        let finish = Store::new(down.out_features(), Epilogue::sum(down_bias, residual), 0, self.out);
        // SAFETY: the group is packed, and the piece has its own panels or tiles of the output.
        unsafe { self.packed.multiply((group, block), self.down, index, finish) }
    }

    fn normalise(&self, group: Group, index: usize) {
        let norm = self.norm.expect("without a norm its stage has no pieces");
        // SAFETY: all columns of the rows are there, and no other piece has these rows.
        unsafe { norm.run(self.cutting.groups.rows(group), index) }
    }
}

/// What stands between the first product's epilogue and the second product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// Nothing: the epilogue packs.
    Nothing,
    /// The values of whole rows.
    Rows,
}

impl Between {
    fn of(hidden: Hidden, up: &PackedWeight, down: &PackedWeight) -> Between {
        let direct = matches!(hidden, Hidden::Activation(_)) && up.packs_rows_like(down);
        if direct && down.packs_value_by_value() { Between::Nothing } else { Between::Rows }
    }

    /// Raw values in a row.
    fn row_words(self, up: &PackedWeight) -> usize {
        match self {
            Between::Nothing => 0,
            Between::Rows => up.out_features(),
        }
    }
}

/// Results of the first product, row by row, of one group of each track.
#[derive(Clone, Copy)]
struct Raw<'a> {
    values: SharedMut<'a, f32>,
    groups: Groups,
    width: usize,
    between: Between,
}

impl<'a> Raw<'a> {
    /// The finish that stores the products of a group.
    fn store<'s>(&self, group: Group, bias: Option<&'s [f32]>, hidden: Hidden) -> Store<'s>
    where
        'a: 's,
    {
        let epilogue = match (hidden, bias) {
            (Hidden::Activation(activation), None) => Epilogue::Act(activation),
            (Hidden::Activation(activation), Some(bias)) => Epilogue::BiasAct(bias, activation),
            (Hidden::Gate(_), None) => Epilogue::None,
            (Hidden::Gate(_), Some(bias)) => Epilogue::Bias(bias),
        };
        Store::new(self.width, epilogue, self.groups.rows(group).start, self.of_track(group))
    }

    /// Where the values of a group lie.
    fn of_track(&self, group: Group) -> SharedMut<'a, f32> {
        debug_assert!(self.between == Between::Rows);
        let values = self.groups.most_rows() * self.width;
        self.values.part(group.track * (values + self.groups.rows_apart() * self.width), values)
    }

    fn start(&self, group: Group, row: usize) -> usize {
        (row - self.groups.rows(group).start) * self.width
    }

    /// # Safety
    /// Nothing else uses the row while the result lives.
    unsafe fn row_mut(&self, group: Group, row: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.of_track(group).slice(self.start(group, row), self.width) }
    }

    /// # Safety
    /// Nothing writes the row while the result lives.
    unsafe fn row(&self, group: Group, row: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.of_track(group).read(self.start(group, row), self.width) }
    }
}

/// `values = activation(left) · right`, in the left half.
struct GateRow<'a> {
    activation: Activation,
    values: &'a mut [f32],
}

impl Kernel for GateRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (left, right) = self.values.split_at_mut(self.values.len() / 2);
        let whole = left.len() - left.len() % S::LANES;
        let (left, left_rest) = left.split_at_mut(whole);
        let (right, right_rest) = right.split_at(whole);
        with_activation!(self.activation, ACTIVATION => {
            // whole vectors in a loop of their own, in which nothing is left to decide
            for (left, right) in left.chunks_exact_mut(S::LANES).zip(right.chunks_exact(S::LANES)) {
                let activated = bias_act::apply(s, Accuracy::Full, ACTIVATION, s.load(left));
                s.store(s.mul(activated, s.load(right)), left);
            }
            if !left_rest.is_empty() {
                let activated = bias_act::apply(s, Accuracy::Full, ACTIVATION, s.load_partial(left_rest, 0.0));
                s.store_partial(s.mul(activated, s.load_partial(right_rest, 0.0)), left_rest);
            }
        });
    }
}

/// Puts activated products into the order in which the second product reads them.
#[derive(Clone, Copy)]
struct Put<'a> {
    bias: Option<&'a [f32]>,
    activation: Activation,
    /// The first column that is put, and the first behind it that is not.
    columns: (usize, usize),
    /// The tiles of the group; nothing else uses the columns of these panels in the tiles of a piece.
    to: SharedMut<'a, f32>,
    stride: usize,
}

// SAFETY: there is no place; only `finish` writes to `to`.
unsafe impl Finish for Put<'_> {
    #[inline(always)]
    fn bias(&self) -> Option<&[f32]> {
        self.bias
    }

    #[inline(always)]
    fn finish<F: Format, S: Simd>(&self, s: S, tile: Tile, first: usize, products: &mut [f32]) {
        let to = self.to.part(tile.index * self.stride, self.stride);
        let (start, end) = self.columns;
        let words_of = |row: usize, column: usize| F::words_of::<S>(tile.rows, row, column - start);
        let width = panel_width::<S>();
        let lines = &mut products[..tile.rows * width];
        if first + width <= end {
            let stride = words_of(1, first).start - words_of(0, first).start;
            let first = [first, first + S::LANES].map(|column| {
                let words = words_of(0, column).start..words_of(tile.rows - 1, column).end;
                to.part(words.start, words.len())
            });
            // SAFETY: the creator of `self` promised that nothing else uses these columns of these rows.
            return unsafe { activate::<F, S, true>(s, lines, self.activation, Halves { first, stride }) };
        }
        activate_in_place::<F, S>(s, lines, self.activation);
        // tile registers multiply the last run as a whole
        let run_end = start + (end - start).next_multiple_of(RUN * F::PER_WORD);
        for (row, line) in lines.chunks_exact_mut(width).enumerate() {
            // behind the last column lies nothing: where a format pairs values, the last one's partner must be 0
            line[end - first..].fill(0.0);
            for (column, values) in (first..run_end).step_by(S::LANES).zip(line.chunks_exact(S::LANES)) {
                let words = words_of(row, column);
                // SAFETY: the creator of `self` promised that nothing else uses these columns of these rows, and one
                // row is borrowed at a time.
                let words = unsafe { to.slice(words.start, words.len()) };
                F::put(s, s.load(values), words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::{CpuOptions, DType, Device, Gemm, Isa, device::shared_values};

    fn values(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i + seed) * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
    }

    /// Whatever an earlier operation left in scratch, even NaN, reaches no result, although a run of words is
    /// multiplied as a whole, including words behind the last column.
    #[test]
    fn what_lies_in_scratch_reaches_nobody() {
        for (rows, size, wide) in [(32, 312, 1200), (5, 40, 200), (29, 48, 33)] {
            let (x, nan) = (values(rows * size, 1), vec![f32::NAN; 64 * wide]);
            let cpus = Isa::available()
                .map(|isa| Cpu::new(CpuOptions { threads: NonZeroUsize::new(1), isa: Some(isa) }).unwrap());
            for (cpu, dtype) in cpus.flat_map(|cpu| DType::ALL.map(|dtype| (cpu.clone(), dtype))) {
                let up = cpu.pack(&values(wide * size, 2), wide, size, dtype).unwrap();
                let down = cpu.pack(&values(size * wide, 3), size, wide, dtype).unwrap();
                let gelu = Hidden::Activation(Activation::GeluErf);
                let layer = FeedForward {
                    up: &up,
                    up_bias: None,
                    hidden: gelu,
                    down: &down,
                    down_bias: None,
                    residual: None,
                    norm: None,
                };
                let mut queue = cpu.queue().unwrap();
                let (mut of_nan, mut got) = (vec![0.0; 64 * size], vec![0.0; rows * size]);
                cpu.gemm(&mut queue, &nan, &down, Epilogue::None, &mut of_nan).unwrap();
                assert!(of_nan.iter().all(|v| v.is_nan()));
                cpu.feed_forward(&mut queue, &x, layer, &mut got).unwrap();
                assert!(got.iter().all(|v| v.is_finite()), "{} {dtype} {size} {wide}", cpu.isa());
            }
        }
    }

    /// Layers of BERT-base, of ModernBERT, and one whose gates are wide.
    #[test]
    fn no_batch_takes_more_scratch_than_the_one_that_a_queue_is_warmed_with() {
        let gelu = Activation::GeluErf;
        let layers = [
            (768, 3072, Hidden::Activation(gelu)),
            (768, 1152, Hidden::Gate(gelu)),
            (1024, 3072, Hidden::Gate(gelu)),
        ];
        for (isa, dtype) in Isa::available().flat_map(|isa| DType::ALL.map(|dtype| (isa, dtype))) {
            for (threads, (size, wide, hidden)) in
                [1, 2, 3, 8].into_iter().flat_map(|threads| layers.map(|l| (threads, l)))
            {
                let options = CpuOptions { threads: NonZeroUsize::new(threads), isa: Some(isa) };
                let cpu = Cpu::new(options).unwrap();
                let outputs = hidden.up_features(wide);
                let up = cpu.pack(&vec![0.0; outputs * size], outputs, size, dtype).unwrap();
                let down = cpu.pack(&vec![0.0; size * wide], size, wide, dtype).unwrap();
                let layer = FeedForward {
                    up: &up,
                    up_bias: None,
                    hidden,
                    down: &down,
                    down_bias: None,
                    residual: None,
                    norm: None,
                };
                let values = |rows| scratch_values(&layer, rows, threads);
                let warm = values(cpu.rows_of_most_scratch(5000)).max(threads * shared_values(isa));
                let most = (1..=5000).map(values).max().unwrap();
                assert!(
                    most <= warm,
                    "{isa} {dtype} {threads} threads, {size} × {wide} {hidden:?}: {most} > {warm}"
                );
            }
        }
    }

    /// The scale and zero point that int8 keeps for each row exist without hidden values too, with room for one group
    /// at a time.
    #[test]
    fn a_layer_without_hidden_values_gives_its_bias() {
        let [rows, size, wide] = [300, 64, 4096];
        let (x, bias) = (values(rows * wide, 1), values(size, 2));
        for isa in Isa::available() {
            let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(2), isa: Some(isa) }).unwrap();
            for dtype in DType::ALL {
                let up = cpu.pack(&[], 0, wide, dtype).unwrap();
                let down = cpu.pack(&[], size, 0, dtype).unwrap();
                let layer = FeedForward {
                    up: &up,
                    up_bias: None,
                    hidden: Hidden::Activation(Activation::GeluErf),
                    down: &down,
                    down_bias: Some(&bias[..]),
                    residual: None,
                    norm: None,
                };
                let mut got = vec![f32::NAN; rows * size];
                cpu.feed_forward(&mut cpu.queue().unwrap(), &x, layer, &mut got).unwrap();
                assert!(got.chunks_exact(size).all(|row| row == bias), "{isa} {dtype}");
            }
        }
    }

    /// The weight decides the instruction set, not the device that multiplies it.
    #[test]
    fn weights_of_two_instruction_sets_make_a_layer() {
        let [rows, size, wide] = [29, 40, 130];
        let of = |isa| Cpu::new(CpuOptions { threads: NonZeroUsize::new(2), isa: Some(isa) }).unwrap();
        let cpus: Vec<Cpu> = Isa::available().map(of).collect();
        let x = values(rows * size, 1);
        for (first, second) in cpus.iter().flat_map(|first| cpus.iter().map(move |second| (first, second))) {
            for dtype in DType::ALL {
                let up = first.pack(&values(wide * size, 2), wide, size, dtype).unwrap();
                let down = second.pack(&values(size * wide, 3), size, wide, dtype).unwrap();
                let mut queue = first.queue().unwrap();
                let gelu = Activation::GeluErf;
                let (mut hidden, mut want, mut got) =
                    (vec![0.0; rows * wide], vec![0.0; rows * size], vec![0.0; rows * size]);
                first.gemm(&mut queue, &x, &up, Epilogue::Act(gelu), &mut hidden).unwrap();
                first.gemm(&mut queue, &hidden, &down, Epilogue::None, &mut want).unwrap();
                let layer = FeedForward {
                    up: &up,
                    up_bias: None,
                    hidden: Hidden::Activation(gelu),
                    down: &down,
                    down_bias: None,
                    residual: None,
                    norm: None,
                };
                first.feed_forward(&mut queue, &x, layer, &mut got).unwrap();
                assert_eq!(got, want, "{dtype}: {} and {}", first.isa(), second.isa());
            }
        }
    }
}
