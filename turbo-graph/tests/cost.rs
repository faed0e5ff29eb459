//! What BERT-base costs, against numbers worked out by hand.

mod common;

use common::{BERT_BASE, encoder};
use turbo_graph::{Graph, LayoutKind, Program, dim::Extents, passes};

/// Per token, twelve layers multiply by 4 · 768² and 2 · 768 · 3072 weights, and scores and contexts take 4 · 768 operations
/// per key and layer. Norms, activations and softmax are the rest, below a per cent.
#[test]
fn bert_base_takes_170_mflop_a_token_and_37_kflop_a_key() {
    for seq_len in [1, 16, 40, 128, 512_usize] {
        for layout in [LayoutKind::Padded, LayoutKind::Packed] {
            let program = Program::compile(&encoder(BERT_BASE), layout, passes::ALL).expect("it compiles");
            let total = program.graph().total_cost(&Extents::of(&[seq_len; 3])).flops as f64;
            let by_hand = (169.87e6 + 36.864e3 * seq_len as f64) * (3 * seq_len) as f64;
            let ratio = total / by_hand;
            assert!(
                (1.0..1.01).contains(&ratio),
                "{layout:?}, {seq_len} tokens: {ratio} of what was worked out"
            );
        }
    }
}

/// Packed, a short sequence costs only its own length; padded, that of the longest.
#[test]
fn padding_is_paid_for_in_the_padded_layout_alone() {
    let flops = |layout, lens: &[usize]| {
        let program = Program::compile(&encoder(BERT_BASE), layout, passes::ALL).expect("it compiles");
        program.graph().total_cost(&Extents::of(lens)).flops
    };
    let packed = |lens: &[usize]| flops(LayoutKind::Packed, lens);
    assert_eq!(packed(&[100, 7]), packed(&[100]) + packed(&[7]));
    assert_eq!(flops(LayoutKind::Padded, &[100, 7]), flops(LayoutKind::Padded, &[100, 100]));
}

/// The purpose of fusion: no pass makes operators hand more bytes to each other, and all together halve them.
#[test]
fn no_pass_makes_a_graph_dearer() {
    let (drawn, extents) = (encoder(BERT_BASE), Extents::of(&[40, 40]));
    let handed_on = |graph: &Graph| graph.total_cost(&extents).bytes - graph.weight_bytes_read(&extents);
    let mut bytes = vec![handed_on(&drawn)];
    Program::compile_traced(&drawn, LayoutKind::Packed, passes::ALL, |step| {
        bytes.push(handed_on(&step.graph));
    })
    .expect("it compiles");
    assert!(bytes.is_sorted_by(|before, after| after <= before), "{bytes:?}");
    assert!(bytes[bytes.len() - 1] * 2 < bytes[0], "{bytes:?}");
}
