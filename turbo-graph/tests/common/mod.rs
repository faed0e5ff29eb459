//! A post-norm encoder drawn as a textbook draws it, and weights that depend on their names alone.

#![allow(dead_code)] // every suite uses its part

pub(crate) mod families;
pub(crate) mod twin;

use std::{borrow::Cow, error::Error, num::NonZeroUsize};

use turbo_alloc::{MemoryPlan, Planner, PlannerConfig, UsageRecord};
use turbo_graph::{
    Activation, AttentionMask, Executor, ExecutorConfig, Graph, GraphBuilder, GraphError, Input, Pooling,
    Positions, Program, Rhs, Staging, ValueId, WeightSource, dim::Extents,
};
use turbo_kernels::{Cpu, CpuOptions};

/// The greatest of some distances; NaN if one of them is, which `f32::max` would lose.
pub(crate) fn greatest(distances: impl Iterator<Item = f32>) -> f32 {
    distances.fold(0.0, |most, distance| if distance > most || distance.is_nan() { distance } else { most })
}

/// Sizes of an encoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) num_layers: u32,
    pub(crate) hidden_size: usize,
    pub(crate) num_heads: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) vocab_size: usize,
    pub(crate) positions: usize,
}

pub(crate) const SMALL: Sizes = Sizes {
    num_layers: 3,
    hidden_size: 24,
    num_heads: 3,
    intermediate_size: 40,
    vocab_size: 50,
    positions: 64,
};

pub(crate) const BERT_BASE: Sizes = Sizes {
    num_layers: 12,
    hidden_size: 768,
    num_heads: 12,
    intermediate_size: 3072,
    vocab_size: 30522,
    positions: 512,
};

pub(crate) fn encoder(sizes: Sizes) -> Graph {
    draw(sizes, |index| format!("layer.{index}")).expect("the drawing is right")
}

/// An encoder whose layers all have the weights of one.
pub(crate) fn encoder_of_one_layer_s_weights(sizes: Sizes) -> Graph {
    draw(sizes, |_| "layer".to_owned()).expect("the drawing is right")
}

fn draw(sizes: Sizes, layer_name: impl Fn(u32) -> String) -> Result<Graph, GraphError> {
    let hidden = sizes.hidden_size;
    let mut g = GraphBuilder::new("encoder");
    let table = |g: &mut GraphBuilder, name, rows, input| {
        let (table, ids) = (g.weight(name, &[rows, hidden]), g.input(input));
        g.embed(table, ids)
    };
    let words = table(&mut g, "words", sizes.vocab_size, Input::InputIds)?;
    let types = table(&mut g, "types", 2, Input::TokenTypeIds)?;
    let positions = table(&mut g, "positions", sizes.positions, Input::PositionIds(Positions::FromZero))?;
    let sum = g.add(words, types)?;
    let sum = g.add(sum, positions)?;
    let mut x = norm(&mut g, "norm", sum, hidden)?;
    for index in 0..sizes.num_layers {
        g.layer(Some(index));
        x = layer(&mut g, &sizes, &layer_name(index), x)?;
    }
    g.layer(None);
    let pooled = g.pool(x, Pooling::Mean)?;
    g.output("last_hidden_state", x);
    g.output("pooled", pooled);
    g.finish()
}

fn layer(g: &mut GraphBuilder, sizes: &Sizes, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
    let (hidden, heads) = (sizes.hidden_size, sizes.num_heads);
    let [q, k, v] = ["query", "key", "value"].map(|part| {
        let projected = linear(g, &format!("{name}.{part}"), x, hidden, hidden)?;
        g.split_heads(projected, heads)
    });
    let scores = g.batched_matmul(q?, k?, Rhs::Transposed)?;
    let scores = g.scale(scores, 1.0 / ((hidden / heads) as f32).sqrt())?;
    let scores = g.mask(scores, AttentionMask::Full)?;
    let probabilities = g.softmax(scores)?;
    let context = g.batched_matmul(probabilities, v?, Rhs::Normal)?;
    let context = g.merge_heads(context)?;
    let attended = linear(g, &format!("{name}.attended"), context, hidden, hidden)?;
    let attended = g.add(attended, x)?;
    let attended = norm(g, &format!("{name}.attended.norm"), attended, hidden)?;

    let wide = linear(g, &format!("{name}.wide"), attended, hidden, sizes.intermediate_size)?;
    let wide = g.activate(wide, Activation::GeluErf)?;
    let narrow = linear(g, &format!("{name}.narrow"), wide, sizes.intermediate_size, hidden)?;
    let sum = g.add(narrow, attended)?;
    norm(g, &format!("{name}.norm"), sum, hidden)
}

fn linear(g: &mut GraphBuilder, name: &str, x: ValueId, k: usize, n: usize) -> Result<ValueId, GraphError> {
    let (weight, bias) =
        (g.weight(&format!("{name}.weight"), &[n, k]), g.weight(&format!("{name}.bias"), &[n]));
    let product = g.matmul(x, weight)?;
    g.add_bias(product, bias)
}

fn norm(g: &mut GraphBuilder, name: &str, x: ValueId, hidden: usize) -> Result<ValueId, GraphError> {
    let (gain, offset) =
        (g.weight(&format!("{name}.gain"), &[hidden]), g.weight(&format!("{name}.offset"), &[hidden]));
    g.layer_norm(x, gain, Some(offset), 1e-12)
}

/// Values in ±0.5 drawn from the tensor's name, gains around 1.
pub(crate) struct NamedNoise;

impl WeightSource for NamedNoise {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>> {
        let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let centre = if name.ends_with("gain") { 1.0 } else { 0.0 };
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            centre + (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        Ok(std::iter::repeat_with(next).take(shape.iter().product()).collect())
    }
}

/// The processor, all of its threads.
pub(crate) fn cpu() -> Cpu {
    Cpu::new(CpuOptions::default()).expect("there is a processor")
}

/// `program` on the processor, with weights that depend on their names alone.
pub(crate) fn on_cpu(program: Program) -> Executor<Cpu> {
    Executor::new(cpu(), program, &NamedNoise, ExecutorConfig::default()).expect("it loads")
}

/// The same on this many threads.
pub(crate) fn on_threads(
    threads: usize,
    program: Program,
    config: impl Into<ExecutorConfig>,
) -> Executor<Cpu> {
    let options = CpuOptions { threads: NonZeroUsize::new(threads), ..CpuOptions::default() };
    let device = Cpu::new(options).expect("there is a processor");
    Executor::new(device, program, &NamedNoise, config).expect("it loads")
}

/// A batch of these sequences.
pub(crate) fn batch<'a>(sequences: impl IntoIterator<Item = &'a Vec<u32>>) -> Staging {
    let mut batch = Staging::new();
    sequences.into_iter().for_each(|ids| batch.push(ids, &[]).expect("no sequence is empty"));
    batch
}

/// Ids for sequences of these lengths, different in every place.
pub(crate) fn sequences(lens: &[usize], vocab_size: usize) -> Vec<Vec<u32>> {
    let id = |sequence: usize, token: usize| ((sequence * 31 + token * 17 + 3) % vocab_size) as u32;
    lens.iter().enumerate().map(|(s, &len)| (0..len).map(|t| id(s, t)).collect()).collect()
}

/// Plans the slots of `program` and gives every activation the place of its slot.
pub(crate) fn unfolded_plan(program: &Program, extents: &Extents) -> (Vec<UsageRecord>, MemoryPlan) {
    let mut folded = Vec::new();
    program.slots().usage_records_into(extents, &mut folded);
    let mut plan = Planner::new(PlannerConfig::default())
        .expect("the slots can be planned")
        .plan(&folded)
        .expect("the slots can be planned");
    let (values, records): (Vec<_>, Vec<_>) = program.usage_records(extents).into_iter().unzip();
    let places = values
        .iter()
        .map(|&value| plan.placements[program.slots().of_value(value).expect("every activation has a slot")]);
    plan.placements = places.collect();
    (records, plan)
}
