//! Hidden states against those of the reference implementation in float64.

use std::{collections::BTreeSet, fs};

use serde_json::Value;
use turbo_graph::{Executor, Op, Pass, PlannerConfig, Program, passes};
use turbo_models::{Checkpoint, Cpu, CpuOptions, Encoded, LayoutKind, Pooling, Staging};

use crate::common::{Row, data, golden_rows, max_difference};

/// The reference itself loses up to 1e-5 in float32, in values of magnitude 3 after at most three layers; another
/// order of summation may lose as much again, and this leaves room for a few times that. A dropped bias, a wrong
/// activation or a mask off by one is off by 1e-2 and more.
const TOLERANCE: f32 = 1e-4;

/// Every way to compute the same thing.
fn variants() -> Vec<(&'static str, LayoutKind, Vec<Pass>)> {
    vec![
        ("packed, fused", LayoutKind::Packed, passes::ALL.to_vec()),
        ("padded, fused", LayoutKind::Padded, passes::ALL.to_vec()),
        ("padded, fused as in the paper", LayoutKind::Padded, passes::paper()),
        ("padded, unfused", LayoutKind::Padded, Vec::new()),
    ]
}

/// Hidden states of the inputs of each batch.
fn hidden(checkpoint: &Checkpoint, layout: LayoutKind, passes: &[Pass], batches: &[&[Row]]) -> Vec<Vec<f32>> {
    let graph = checkpoint.graph(Pooling::Mean).unwrap();
    let program = Program::compile(&graph, layout, passes).unwrap();
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let mut executor = Executor::new(cpu, program, checkpoint, PlannerConfig::default()).unwrap();
    let output = executor.output("last_hidden_state").unwrap();
    let mut all = Vec::new();
    for batch in batches {
        let mut staging = Staging::new();
        for Row { input: Encoded { input_ids, token_type_ids }, .. } in *batch {
            staging.push(input_ids, token_type_ids).unwrap();
        }
        executor.run(&staging).unwrap();
        for sequence in 0..batch.len() {
            let mut rows = Vec::new();
            executor.read(output, sequence, &mut rows).unwrap();
            all.push(rows);
        }
    }
    all
}

fn matches_the_reference(fixture: &str) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let rows = golden_rows(fixture, checkpoint.config().num_hidden_layers);
    let longest = rows.iter().map(|row| row.input.input_ids.len()).max().unwrap();
    assert_eq!(longest, checkpoint.max_input_length(), "{fixture}: the goldens reach the limit");
    let batched: Vec<&[Row]> = vec![&rows];
    let alone: Vec<&[Row]> = rows.chunks(1).collect();
    for (name, layout, passes) in variants() {
        let outputs = hidden(&checkpoint, layout, &passes, &batched);
        let alone = hidden(&checkpoint, layout, &passes, &alone);
        for ((row, output), alone) in rows.iter().zip(&outputs).zip(&alone) {
            let difference = max_difference(output, &row.hidden);
            let tokens = row.input.input_ids.len();
            assert!(difference < TOLERANCE, "{fixture}, {name}, {tokens} tokens: off by {difference}");
            assert!(bits(output).eq(bits(alone)), "{fixture}, {name}, {tokens} tokens: company changes bits");
        }
    }
    let layouts = [LayoutKind::Packed, LayoutKind::Padded];
    let [packed, padded] = layouts.map(|layout| hidden(&checkpoint, layout, passes::ALL, &batched));
    assert!(bits(&packed.concat()).eq(bits(&padded.concat())), "{fixture}: the layout changes bits");
}

fn bits(values: &[f32]) -> impl Iterator<Item = u32> {
    values.iter().map(|value| value.to_bits())
}

/// Whatever the family, fusion leaves one operator of the embeddings, one of attention and two norms in a layer, and
/// layers are planned once.
fn is_fused_and_folded(fixture: &str) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let graph = checkpoint.graph(Pooling::Mean).unwrap();
    let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
    let count = |is: fn(&Op) -> bool| program.nodes().iter().filter(|node| is(&node.op)).count();
    let layers = count(|op| matches!(op, Op::Attention { .. }));
    assert!(layers >= checkpoint.config().num_hidden_layers as usize, "{fixture}");
    assert_eq!(count(|op| matches!(op, Op::EmbedSumLayerNorm { .. })), 1, "{fixture}");
    assert_eq!(count(|op| matches!(op, Op::BiasResidualLayerNorm { .. })), 2 * layers, "{fixture}");
    assert_eq!(count(|op| matches!(op, Op::Linear { .. })), 2 * layers + usize::from(projects(&checkpoint)));
    let unfused = [Op::Embed, Op::MergeHeads, Op::Mask, Op::Softmax, Op::Add, Op::AddBias];
    assert!(program.nodes().iter().all(|node| !unfused.contains(&node.op)), "{fixture}: {}", program.graph());
    // a period may be cut where the first or the last layer is not whole
    let folded = program.slots().folded_periods();
    assert!(folded + 1 >= layers && folded >= layers.min(2), "{fixture}: {folded} of {layers} layers folded");
}

/// Whether the embeddings are narrower than the layers.
fn projects(checkpoint: &Checkpoint) -> bool {
    checkpoint.config().embedding_size != checkpoint.config().hidden_size
}

macro_rules! fixtures {
    ($($test:ident: $fixture:literal),* $(,)?) => {
        $(#[test] fn $test() {
            matches_the_reference($fixture);
            is_fused_and_folded($fixture);
        })*

        const FIXTURES: &[&str] = &[$($fixture),*];
    };
}

fixtures! {
    base: "bert-base",
    relu: "bert-relu",
    masked_lm_with_legacy_names: "bert-mlm-legacy",
    bfloat16_file: "bert-bf16",
    float16_file: "bert-f16",
    sharded: "bert-sharded",
    odd_sizes: "bert-odd",
    roberta: "roberta-base",
    roberta_with_a_head: "roberta-seqcls",
    distilbert: "distilbert-base",
    distilbert_with_a_head: "distilbert-seqcls",
    electra: "electra-base",
    electra_with_a_head: "electra-rtd",
    albert: "albert-base",
    albert_with_groups_of_inner_layers: "albert-groups",
    albert_with_a_head: "albert-mlm",
}

#[test]
fn no_fixture_is_forgotten() {
    let folders =
        fs::read_dir(data("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_encoder = |name: &String| {
        let golden = fs::read(data(name).join("golden.json"));
        golden.is_ok_and(|golden| serde_json::from_slice::<Value>(&golden).unwrap()["kind"] == "encoder")
    };
    let folders: BTreeSet<String> = folders.filter(is_encoder).collect();
    assert_eq!(folders, FIXTURES.iter().map(|name| (*name).to_owned()).collect());
}
