//! What each pass makes of the textbook encoder, and that it computes the same.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use common::{SMALL, encoder, on_cpu, sequences, twin};
use turbo_graph::{LayoutKind, Pass, Program, Staging, passes};

#[test]
fn every_pass_shows_what_it_does() {
    let graph = encoder(SMALL);
    let mut shown = format!("drawn\n{graph}");
    Program::compile_traced(&graph, LayoutKind::Packed, passes::ALL, |step| {
        shown += &format!("\n{}: {} rewritten\n", step.pass, step.rewrites);
        if step.rewrites > 0 {
            shown += &step.graph.to_string();
        }
    })
    .unwrap();
    insta::assert_snapshot!(shown);
}

#[test]
fn the_papers_passes_leave_scores_as_a_tensor() {
    let program = Program::compile(&encoder(SMALL), LayoutKind::Padded, &passes::paper()).unwrap();
    insta::assert_snapshot!(program.graph());
}

#[test]
fn every_prefix_of_the_passes_computes_the_same() {
    let drawn = run(&[], LayoutKind::Padded);
    let inputs = inputs();
    let batch: Vec<twin::Sequence<'_>> =
        inputs.iter().map(|(ids, types)| twin::Sequence { ids, types, selected: &[] }).collect();
    let (_, allowed) = twin::answers(&encoder(SMALL), &OUTPUTS, &batch);
    let assert_close = |passes: &[Pass], layout, what: &str| {
        let worst = twin::distance(&drawn, &run(passes, layout));
        assert!(worst <= allowed, "{what}: differs by {worst}, allowed are {allowed}");
    };
    for count in 1..=passes::ALL.len() {
        assert_close(&passes::ALL[..count], LayoutKind::Padded, passes::ALL[count - 1].name);
    }
    assert_close(&passes::paper(), LayoutKind::Padded, "the paper's passes");
    assert_close(passes::ALL, LayoutKind::Packed, "the packed layout");
}

#[test]
fn packing_needs_the_attention_pass() {
    let refused = Program::compile(&encoder(SMALL), LayoutKind::Packed, &passes::paper()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "batched_matmul needs padded rows: the packed layout needs the attention pass, which fuses \
         softmax(mask(q·kᵀ))·v only if nothing else reads its steps"
    );
}

const OUTPUTS: [&str; 2] = ["last_hidden_state", "pooled"];

/// Ids and token types of a ragged batch.
fn inputs() -> Vec<(Vec<u32>, Vec<u32>)> {
    let with_types = |(index, ids): (usize, Vec<u32>)| {
        let types = (0..ids.len()).map(|token| u32::from(token > index)).collect();
        (ids, types)
    };
    sequences(&[9, 1, 17, 4], SMALL.vocab_size).into_iter().enumerate().map(with_types).collect()
}

/// Hidden states and pooled rows of that batch, a sequence after the other.
fn run(passes: &[Pass], layout: LayoutKind) -> Vec<f32> {
    let program = Program::compile(&encoder(SMALL), layout, passes).unwrap();
    let mut executor = on_cpu(program);
    let mut batch = Staging::new();
    inputs().iter().for_each(|(ids, types)| batch.push(ids, types).unwrap());
    executor.run(&batch).unwrap();
    let (outputs, mut values) = (OUTPUTS.map(|name| executor.output(name).unwrap()), Vec::new());
    for sequence in 0..batch.batch_size() {
        outputs.iter().for_each(|&output| executor.read(output, sequence, &mut values).unwrap());
    }
    assert_eq!(values.len(), (31 + 4) * SMALL.hidden_size);
    values
}

#[test]
fn the_picture_shows_every_operator_of_one_layer() {
    let program = Program::compile(&encoder(SMALL), LayoutKind::Packed, passes::ALL).unwrap();
    let picture = turbo_graph::print::svg(program.graph(), "an <encoder>");
    for text in [
        "an &lt;encoder&gt;",
        "3 layers, one after the other:",
        "→ pooled",
        "→ last_hidden_state",
        "attention 3×8",
        "feed_forward GeluErf",
        "[total_tokens, 72]",
    ] {
        assert!(picture.contains(text), "{text}");
    }
    assert_eq!(picture.matches("rx=\"6\"").count(), 6, "a box per operator, layers once");
}
