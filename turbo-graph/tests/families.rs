//! Graphs in the shape of today's encoders: what the passes make of them, and that it computes the same.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use std::fmt::Write;

use common::{families, on_cpu, sequences, twin, unfolded_plan};
use proptest::prelude::*;
use turbo_alloc::check;
use turbo_graph::{
    Executor, Graph, LayoutKind, Op, OutputSet, Pass, Program, Staging,
    dim::{Dim, Extents},
    passes, print,
};
use turbo_kernels::Cpu;

const LENS: [usize; 5] = [9, 1, 30, 4, 17];

const OUTPUTS: [&str; 3] = ["tokens", "pooled", "selected"];

/// The last and the first token of every sequence but short ones.
fn selected(ids: &[u32]) -> Vec<u32> {
    if ids.len() > 3 { vec![ids.len() as u32 - 1, 0] } else { Vec::new() }
}

/// An executor, and what it gives for a batch.
struct Model(Executor<Cpu>);

impl Model {
    fn of(graph: &Graph, layout: LayoutKind, passes: &[Pass]) -> Self {
        let program = Program::compile(graph, layout, passes).unwrap();
        Model(on_cpu(program))
    }

    /// All outputs of each sequence, one after the other.
    fn answers(&mut self, ids: &[Vec<u32>]) -> Vec<Vec<f32>> {
        self.answers_of(ids, &OUTPUTS, OutputSet::ALL)
    }

    /// The outputs of these names, from a run for `wanted`.
    fn answers_of(&mut self, ids: &[Vec<u32>], names: &[&str], wanted: OutputSet) -> Vec<Vec<f32>> {
        let mut batch = Staging::new();
        for ids in ids {
            batch.push(ids, &[]).unwrap();
            batch.select(&selected(ids)).unwrap();
        }
        self.0.run_for(&batch, wanted, || true).unwrap();
        let named: Vec<_> = names.iter().map(|name| self.0.output(name)).collect();
        let mut answer = |sequence| {
            let mut values = Vec::new();
            named.iter().flatten().for_each(|&output| self.0.read(output, sequence, &mut values).unwrap());
            values
        };
        (0..ids.len()).map(&mut answer).collect()
    }
}

/// The answers of the naive twin, one sequence after the other, and how far others may be from it.
fn expected(graph: &Graph, ids: &[Vec<u32>]) -> (Vec<f32>, f32) {
    let picked: Vec<Vec<u32>> = ids.iter().map(|ids| selected(ids)).collect();
    let batch: Vec<twin::Sequence<'_>> =
        ids.iter().zip(&picked).map(|(ids, selected)| twin::Sequence { ids, types: &[], selected }).collect();
    twin::answers(graph, &OUTPUTS, &batch)
}

fn assert_close(a: &[f32], b: &[Vec<f32>], allowed: f32, what: &str) {
    let worst = twin::distance(a, &b.concat());
    assert!(worst <= allowed, "{what}: differs by {worst}, allowed are {allowed}");
    assert!(a.iter().all(|value| value.is_finite()), "{what}");
}

#[test]
fn every_prefix_of_the_passes_computes_the_same() {
    let ids = sequences(&LENS, families::VOCABULARY);
    for (name, graph) in families::all() {
        let drawn = Model::of(&graph, LayoutKind::Padded, &[]).answers(&ids).concat();
        let (_, allowed) = expected(&graph, &ids);
        for count in 1..=passes::ALL.len() {
            let fused = Model::of(&graph, LayoutKind::Padded, &passes::ALL[..count]).answers(&ids);
            assert_close(&drawn, &fused, allowed, &format!("{name}, {}", passes::ALL[count - 1].name));
        }
        let papers = Model::of(&graph, LayoutKind::Padded, &passes::paper()).answers(&ids);
        assert_close(&drawn, &papers, allowed, &format!("{name}, the paper's passes"));
    }
}

/// Compares with the drawing, evaluated operator by operator in f64, a sequence at a time.
#[test]
fn every_family_computes_what_is_drawn() {
    let ids = sequences(&LENS, families::VOCABULARY);
    for (name, graph) in families::all() {
        let (drawn, allowed) = expected(&graph, &ids);
        for (layout, passes) in [(LayoutKind::Padded, &[][..]), (LayoutKind::Packed, passes::ALL)] {
            assert_close(&drawn, &Model::of(&graph, layout, passes).answers(&ids), allowed, name);
        }
    }
}

/// The fused graph of each family: every line of it is a launch.
#[test]
fn little_is_left_of_each_family() {
    let mut shown = String::new();
    for (name, graph) in families::all() {
        let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
        writeln!(shown, "{name}, {} drawn\n{}", graph.nodes().len(), print::brief(program.graph())).unwrap();
    }
    insta::assert_snapshot!(shown);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    /// Packed or padded, alone or among others, a sequence gives the same bits.
    #[test]
    fn the_bits_of_a_sequence_do_not_depend_on_its_batch(
        lens in prop::collection::vec(1_usize..=64, 1..6), padded in any::<bool>(),
    ) {
        let layout = if padded { LayoutKind::Padded } else { LayoutKind::Packed };
        let ids = sequences(&lens, families::VOCABULARY);
        for (name, graph) in families::all() {
            let together = Model::of(&graph, layout, passes::ALL).answers(&ids);
            let mut alone = Model::of(&graph, LayoutKind::Packed, passes::ALL);
            for (ids, together) in ids.iter().zip(&together) {
                let alone = &alone.answers(std::slice::from_ref(ids))[0];
                prop_assert!(alone.iter().map(|v| v.to_bits()).eq(together.iter().map(|v| v.to_bits())), "{name}");
            }
        }
    }

    #[test]
    fn folded_plans_are_sound_unfolded(lens in prop::collection::vec(1_usize..60, 1..12), drawn in any::<bool>()) {
        for (name, graph) in families::all() {
            let (layout, passes) =
                if drawn { (LayoutKind::Padded, &[][..]) } else { (LayoutKind::Packed, passes::ALL) };
            let program = Program::compile(&graph, layout, passes).unwrap();
            let extents = Extents { selected_rows: lens[0], ..Extents::of(&lens) };
            let (records, plan) = unfolded_plan(&program, &extents);
            prop_assert_eq!(check(&records, &plan, 256), Ok(()), "{}", name);
        }
    }
}

/// Where local and global layers alternate, a period of three is planned; the first layer differs from all others.
#[test]
fn layers_that_take_turns_fold() {
    let folded = |name: &str, layout, passes| {
        Program::compile(&families::family(name), layout, passes).unwrap().slots().folded_periods()
    };
    for (layout, passes) in [(LayoutKind::Packed, passes::ALL), (LayoutKind::Padded, &[])] {
        assert_eq!(folded("ModernBERT", layout, passes), 2);
        for name in ["Qwen3", "MPNet", "DeBERTa", "Nomic", "experts", "SPLADE", "masked words", "classifier"]
        {
            assert!(folded(name, layout, passes) > 1, "{name}");
        }
    }
    let text = Program::compile(&families::family("ModernBERT"), LayoutKind::Packed, passes::ALL)
        .unwrap()
        .graph()
        .to_string();
    assert!(text.contains("┌ 2 times these 3 layers"), "{text}");
}

/// No family needs a head copied, a score stored, or an addition of its own.
#[test]
fn what_should_fuse_does() {
    for (name, graph) in families::all() {
        let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
        let left: Vec<String> =
            program.nodes().iter().map(|node| node.op).filter(is_unfused).map(|op| op.to_string()).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
    }
}

fn is_unfused(op: &Op) -> bool {
    matches!(
        op,
        Op::SplitHeads(_)
            | Op::MergeHeads
            | Op::BatchedMatMul { .. }
            | Op::AddRelativeBias(_)
            | Op::Mask(_)
            | Op::Softmax
            | Op::ScaleMaskSoftmax { .. }
            | Op::Add
            | Op::AddBias
            | Op::Mul
            | Op::Scale { .. }
    )
}

/// A run for the vector of one token alone does not compute the hidden state of all; a run for both gives the same
/// bits.
#[test]
fn the_vector_of_one_token_goes_its_own_way() {
    let rows_of_products = |name: &str, output: &str| -> Vec<Dim> {
        let program = Program::compile(&families::family(name), LayoutKind::Packed, passes::ALL).unwrap();
        let nodes = program.nodes_for(output);
        let products = nodes.iter().filter(|node| !node.op.factors().is_empty());
        products.map(|node| program.value(node.output).shape.0[0]).collect()
    };
    let before = [Dim::TotalTokens; 6].as_slice();
    for (name, last) in [
        // queries leave a merged matrix, and then each path has a product of queries
        ("BERT", [Dim::BatchSize, Dim::TotalTokens, Dim::BatchSize, Dim::BatchSize].as_slice()),
        // rotated queries stay
        ("Nomic", &[Dim::TotalTokens, Dim::BatchSize, Dim::BatchSize]),
        ("DeBERTa", &[Dim::BatchSize, Dim::TotalTokens, Dim::BatchSize, Dim::BatchSize]),
    ] {
        assert_eq!(rows_of_products(name, "pooled"), [before, last].concat(), "{name}");
        let tokens = rows_of_products(name, "tokens");
        assert!(tokens.iter().all(|rows| *rows == Dim::TotalTokens), "{name}: {tokens:?}");

        for layout in [LayoutKind::Packed, LayoutKind::Padded] {
            let mut model = Model::of(&families::family(name), layout, passes::ALL);
            let ids = sequences(&[9, 1, 17], families::VOCABULARY);
            for (output, other) in [("tokens", "pooled"), ("pooled", "tokens")] {
                let all = model.answers_of(&ids, &[output], OutputSet::ALL);
                let wanted = model.0.output(output).into_iter().collect();
                assert!(all == model.answers_of(&ids, &[output], wanted), "{name}, {layout:?}: {output}");
                let other_id = model.0.output(other).unwrap();
                let refused = model.0.read(other_id, 0, &mut Vec::new()).unwrap_err();
                assert_eq!(
                    refused.to_string(),
                    format!(
                        "output {other:?} was not computed: add it to the outputs that the batch is run for"
                    )
                );
            }
        }
    }
}

/// Many batches select nothing: then what stands behind the selection is not launched.
#[test]
fn a_batch_may_select_nothing() {
    let graph = families::family("masked words");
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let mut model = Model::of(&graph, layout, passes::ALL);
        let (some, none) = (model.answers(&[vec![1, 2, 3, 4]]), model.answers(&[vec![1, 2, 3]]));
        assert_eq!([some[0].len(), none[0].len()], [2 * families::VOCABULARY, 0]);
    }
}

/// Behind the last attention, rows that no output needs are not computed.
#[test]
fn the_last_feed_forward_is_of_the_rows_that_are_read() {
    let rows_of_products = |name: &str| -> Vec<Dim> {
        let program = Program::compile(&families::family(name), LayoutKind::Packed, passes::ALL).unwrap();
        let products = program.nodes().iter().filter(|node| !node.op.factors().is_empty());
        products.map(|node| program.value(node.output).shape.0[0]).collect()
    };
    // three products a layer; of the last layer, only keys and values are needed for every row
    let all = [Dim::TotalTokens; 6].as_slice();
    let last = [Dim::BatchSize, Dim::TotalTokens, Dim::BatchSize, Dim::BatchSize];
    assert_eq!(rows_of_products("classifier"), [all, &last, &[Dim::BatchSize; 2]].concat());
    // several tokens of a sequence may be selected, so all tokens have queries
    let last = [Dim::TotalTokens, Dim::SelectedRows, Dim::SelectedRows];
    assert_eq!(rows_of_products("masked words"), [all, &last, &[Dim::SelectedRows; 2]].concat());
}
