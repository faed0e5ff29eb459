//! Experts on the CPU: a row is computed only by the experts that it has.
//!
//! ```text
//! choose experts of rows │ sort │ expert by expert: gather its rows │ feed forward │ add them, weighted, where they belong
//! ```
//!
//! The rows of an expert are copied side by side, so that its two products are a [feed-forward layer](FeedForward) like
//! any other. Copying and adding rows takes a hundredth of the time of the products, and memory that does not grow with
//! the batch: an expert with many rows computes them part by part.
//!
//! A row is a sum over its experts in ascending order, each a chain of its own, so its bits depend neither on the other
//! rows, nor on the threads, nor on which other rows chose an expert.

use std::ops::Range;

use super::Experts;
use crate::{
    FeedForward, Hidden, KernelError, Routing,
    device::{Cpu, CpuQueue, SharedMut, Team},
    feed_forward,
    gemm::{EvenTiles, PackedWeight, ROWS_OF_MOST_SCRATCH, features, row_of},
    lanes,
    simd::{Kernel, Simd, SupportedIsa},
};

/// Pairs of a row and an expert that are sorted at once. Room for all of them is taken whatever the batch has, because
/// scratch must not grow with a later batch.
const MOST_PAIRS: usize = if cfg!(test) { 1 << 9 } else { 1 << 15 };
/// Words of a pair: its expert, its weight, its place.
const PAIR_WORDS: usize = 3;
/// Values that are worth a piece when rows are copied or added.
const PIECE: usize = 16 * 1024;
/// How many values are copied in the time that a logit takes, for its exponential.
const LOGIT_VALUES: usize = 32;

pub(crate) fn experts(
    cpu: &Cpu,
    queue: &mut CpuQueue,
    x: &[f32],
    logits: &[f32],
    layer: &Experts<'_, PackedWeight>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let Routing { num_experts, top_k } = layer.routing;
    layer.check(num_experts, features, &x, &logits, &out)?;
    check_packing("number of matrices of up that are packed as the first", layer.up)?;
    check_packing("number of matrices of down that are packed as the first", layer.down)?;
    if out.is_empty() {
        return Ok(());
    }
    let [in_features, out_features] = [layer.up[0].in_features(), layer.down[0].out_features()];
    let most = MOST_PAIRS / top_k;
    for (part, out) in out.chunks_mut(most * out_features).enumerate() {
        let (first, rows) = (part * most, out.len() / out_features);
        let x = &x[first * in_features..][..rows * in_features];
        let logits = &logits[first * num_experts..][..rows * num_experts];
        Rows { isa: cpu.supported_isa(), x, logits, layer, out }.run(queue)?;
    }
    Ok(())
}

/// All experts have to be packed as the first: other dtypes or instruction sets would take other scratch.
fn check_packing(argument: &'static str, weights: &[PackedWeight]) -> Result<(), KernelError> {
    let got = weights.iter().filter(|weight| weight.packs_rows_like(&weights[0])).count();
    match weights.len() {
        all if got == all => Ok(()),
        all => {
            let expected = format!("{all}, all of them").into();
            Err(KernelError::Size { kernel: super::NAME, argument, expected, got })
        }
    }
}

/// Rows whose pairs are sorted at once.
struct Rows<'a> {
    isa: SupportedIsa,
    x: &'a [f32],
    logits: &'a [f32],
    layer: &'a Experts<'a, PackedWeight>,
    out: &'a mut [f32],
}

impl Rows<'_> {
    fn run(self, queue: &mut CpuQueue) -> Result<(), KernelError> {
        let routing = self.layer.routing;
        let most = self.most_at_once(queue.threads());
        // however the rows fall to experts: few rows may take more scratch than many, depending on how they are cut
        let values = (1..=most).map(|rows| self.values_for(rows, queue.threads())).max().unwrap_or(0);
        let (team, scratch) = queue.team_and_shared(PAIR_WORDS * MOST_PAIRS + values)?;
        let (pairs, scratch) = scratch.split_at_mut(PAIR_WORDS * MOST_PAIRS);
        let chosen = Chosen::by(routing, self.logits, team, pairs);
        let out = SharedMut::new(self.out);
        Work { isa: self.isa, x: self.x, layer: self.layer, chosen, scratch, out }.run(team, most);
        Ok(())
    }

    /// Rows that an expert computes at once: as many as take the most scratch.
    fn most_at_once(&self, threads: usize) -> usize {
        let rows = self.logits.len() / self.layer.routing.num_experts;
        rows.min(threads.saturating_mul(ROWS_OF_MOST_SCRATCH))
    }

    /// Values of scratch that `rows` rows of an expert take; all experts have one shape.
    fn values_for(&self, rows: usize, threads: usize) -> usize {
        let layer = self.layer.expert(0);
        let copied = layer.up.in_features() + layer.down.out_features();
        rows * copied + feed_forward::scratch_values(&layer, rows, threads)
    }
}

impl<'w> Experts<'w, PackedWeight> {
    fn expert<'v>(&self, index: usize) -> FeedForward<'w, PackedWeight, &'v [f32]> {
        FeedForward {
            up: &self.up[index],
            up_bias: None,
            hidden: Hidden::Activation(self.activation),
            down: &self.down[index],
            down_bias: None,
            residual: None,
            norm: None,
        }
    }
}

/// Rows whose experts are chosen.
struct Work<'a> {
    isa: SupportedIsa,
    x: &'a [f32],
    layer: &'a Experts<'a, PackedWeight>,
    chosen: Chosen<'a>,
    scratch: &'a mut [f32],
    out: SharedMut<'a, f32>,
}

impl Work<'_> {
    fn run(self, team: &mut Team, most: usize) {
        let Work { isa, x, layer, chosen, scratch, out } = self;
        for expert in 0..layer.routing.num_experts {
            let own = layer.expert(expert);
            let [in_features, out_features] = [own.up.in_features(), own.down.out_features()];
            for run in chosen.runs(expert, most) {
                let pair = |index: usize| chosen.pair(run.start + index);
                let (gathered, rest) = scratch.split_at_mut(run.len() * in_features);
                let (made, rest) = rest.split_at_mut(run.len() * out_features);
                let to = SharedMut::new(gathered);
                share_rows(team, run.len(), in_features, |index| {
                    // SAFETY: each row of the copy is written by one piece.
                    let to = unsafe { to.slice(index * in_features, in_features) };
                    to.copy_from_slice(row_of(x, pair(index).row, own.up));
                });
                feed_forward::on_team(isa, team, gathered, layer.expert(expert), made, rest);
                share_rows(team, run.len(), out_features, |index| {
                    let Pair { row, weight, is_first } = pair(index);
                    let made = &made[index * out_features..][..out_features];
                    // SAFETY: an expert has a row once, so each row of the output is used by one piece.
                    let out = unsafe { out.slice(row * out_features, out_features) };
                    isa.run(AddWeighted { made, weight, is_first, out });
                });
            }
        }
    }
}

/// Calls `work` for each row; a piece has as many rows, of `values` values each, as make [`PIECE`] values.
fn share_rows(team: &mut Team, rows: usize, values: usize, work: impl Fn(usize) + Sync) {
    let of_piece = (PIECE / values.max(1)).max(1);
    team.for_each_piece(rows.div_ceil(of_piece), |_, piece| {
        (piece * of_piece..rows.min((piece + 1) * of_piece)).for_each(&work);
    });
}

/// A row and an expert that it has.
struct Pair {
    row: usize,
    weight: f32,
    /// Whether it is the first expert of the row.
    is_first: bool,
}

/// Which experts rows have, sorted by expert. Words are passed as f32 whatever they hold.
struct Chosen<'s> {
    /// The weights of the pairs of each row, in the order of their experts.
    weights: &'s [f32],
    /// The numbers of these pairs: those of an expert side by side, in the order of their rows.
    order: &'s [f32],
    /// Where the pairs of each expert begin, and where those of the last end.
    starts: [usize; Routing::MOST_EXPERTS + 1],
    top_k: usize,
}

impl<'s> Chosen<'s> {
    /// Chooses by the logits of whole rows; `words` has room for all pairs.
    fn by(routing: Routing, logits: &[f32], team: &mut Team, words: &'s mut [f32]) -> Chosen<'s> {
        let Routing { num_experts, top_k } = routing;
        let rows = logits.len() / num_experts;
        let (experts, words) = words.split_at_mut(rows * top_k);
        let (weights, words) = words.split_at_mut(rows * top_k);
        let order = &mut words[..rows * top_k];
        let to = [SharedMut::new(experts), SharedMut::new(weights)];
        share_rows(team, rows, LOGIT_VALUES * num_experts, |row| {
            // SAFETY: the pairs of each row are written by one piece.
            let [experts, weights] = to.map(|to| unsafe { to.slice(row * top_k, top_k) });
            let of_row = routing.weights(&logits[row * num_experts..][..num_experts]);
            let own = of_row.into_iter().enumerate().filter_map(|(expert, weight)| Some((expert, weight?)));
            for ((expert, weight), own) in experts.iter_mut().zip(weights).zip(own) {
                (*expert, *weight) = (word(own.0), own.1);
            }
        });
        let mut starts = [0; Routing::MOST_EXPERTS + 1];
        experts.iter().for_each(|&expert| starts[number(expert) + 1] += 1);
        (0..num_experts).for_each(|expert| starts[expert + 1] += starts[expert]);
        let mut next = starts;
        for (pair, &expert) in experts.iter().enumerate() {
            let place = &mut next[number(expert)];
            order[*place] = word(pair);
            *place += 1;
        }
        Chosen { weights, order, starts, top_k }
    }

    /// Places of the pairs of an expert, cut as evenly as possible if there are more than `most`.
    fn runs(&self, expert: usize, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let [start, end] = [self.starts[expert], self.starts[expert + 1]];
        let runs = EvenTiles::new(end - start, most);
        (0..runs.count())
            .map(move |index| runs.range(index))
            .map(move |run| start + run.start..start + run.end)
    }

    /// The pair at a place.
    fn pair(&self, place: usize) -> Pair {
        let pair = number(self.order[place]);
        Pair { row: pair / self.top_k, weight: self.weights[pair], is_first: pair.is_multiple_of(self.top_k) }
    }
}

/// A small number as a word.
fn word(number: usize) -> f32 {
    f32::from_bits(number as u32)
}

/// The number that a word holds.
fn number(word: f32) -> usize {
    word.to_bits() as usize
}

/// `out = weight · made` for the first expert of a row, then `out += weight · made`, in slices of one length.
struct AddWeighted<'a> {
    made: &'a [f32],
    weight: f32,
    is_first: bool,
    out: &'a mut [f32],
}

impl Kernel for AddWeighted<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let weight = s.splat(self.weight);
        if self.is_first {
            lanes::map(s, [self.made], 0.0, self.out, |[made]| s.mul(weight, made));
        } else {
            lanes::update_with(s, self.out, [self.made], |sum, [made]| s.mul_add(weight, made, sum));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Activation, Cpu, CpuOptions, DType, Device, Experts, Gemm, Routing};

    #[test]
    fn experts_of_two_dtypes_are_refused() {
        let cpu = Cpu::new(CpuOptions::default()).unwrap();
        let pack = |dtype| cpu.pack(&[0.5; 16], 4, 4, dtype).unwrap();
        let [same, mixed] = [[DType::F32; 2], [DType::F32, DType::Bf16]].map(|dtypes| dtypes.map(pack));
        let run = |up, down| {
            let routing = Routing { num_experts: 2, top_k: 1 };
            let layer = Experts { routing, up, activation: Activation::GeluErf, down };
            cpu.experts(&mut cpu.queue().unwrap(), &[1.0; 4], &[1.0, 0.0], layer, &mut [0.0; 4])
        };
        run(&same, &same).unwrap();
        for (up, down, name) in [(&mixed, &same, "up"), (&same, &mixed, "down")] {
            let error = run(up, down).unwrap_err().to_string();
            let said = format!(
                "experts: number of matrices of {name} that are packed as the first is 1, expected 2, all of them"
            );
            assert_eq!(error, said);
        }
    }
}
