//! Plans made from folded layers are sound for the program as it runs, for every size.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use common::{BERT_BASE, SMALL, Sizes, encoder, families, unfolded_plan};
use proptest::prelude::*;
use turbo_alloc::{check, peak_live_bytes};
use turbo_graph::{Graph, GraphBuilder, Input, LayoutKind, Pass, Program, dim::Extents, passes};

fn program(sizes: Sizes, layout: LayoutKind, passes: &[Pass]) -> Program {
    Program::compile(&encoder(sizes), layout, passes).unwrap()
}

proptest! {
    #[test]
    fn folded_plans_are_sound_unfolded(lens in prop::collection::vec(1_usize..60, 1..12), fused in any::<bool>()) {
        let passes = if fused { passes::ALL.to_vec() } else { passes::paper() };
        let layouts = if fused { vec![LayoutKind::Packed, LayoutKind::Padded] } else { vec![LayoutKind::Padded] };
        for layout in layouts {
            let program = program(SMALL, layout, &passes);
            prop_assert!(program.slots().folded_periods() > 1);
            let (records, plan) = unfolded_plan(&program, &Extents::of(&lens));
            prop_assert_eq!(check(&records, &plan, 256), Ok(()));
        }
    }
}

#[test]
fn the_drawing_itself_folds_too() {
    let program = program(SMALL, LayoutKind::Padded, &[]);
    assert!(program.slots().folded_periods() > 1);
    let (records, plan) = unfolded_plan(&program, &Extents::of(&[5, 9, 2]));
    assert_eq!(check(&records, &plan, 256), Ok(()));
}

#[test]
fn twelve_layers_are_planned_as_one() {
    let program = program(BERT_BASE, LayoutKind::Packed, passes::ALL);
    let extents = Extents::of(&[128; 8]);
    let mut folded = Vec::new();
    program.slots().usage_records_into(&extents, &mut folded);
    let unfolded: Vec<_> = program.usage_records(&extents).into_iter().map(|(_, record)| record).collect();
    // four values a layer, each in one slot for all layers; the rows of the last layer are an output and not planned,
    // but the rows before the first layer are
    assert_eq!((program.slots().folded_periods(), folded.len(), unfolded.len()), (12, 4, 48));
    assert_eq!(peak_live_bytes(&folded), peak_live_bytes(&unfolded), "folding costs no memory here");
}

/// Scores are never stored as a tensor: a text of 8192 tokens takes sixteen times the memory of one of 512.
#[test]
fn memory_grows_with_the_tokens_and_not_with_their_square() {
    for (name, graph) in families::all() {
        let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
        let peak = |len| {
            let mut records = Vec::new();
            program.slots().usage_records_into(&Extents::of(&[len]), &mut records);
            peak_live_bytes(&records)
        };
        assert!(peak(8192) <= 16 * peak(512), "{name}: {} for 8192, {} for 512", peak(8192), peak(512));
    }
}

/// A chain of products: `step(i)` reads the previous value; `skip` lets one layer read what came before all of them.
fn chain(layers: u32, skip: bool) -> Graph {
    let mut g = GraphBuilder::new("chain");
    let (table, ids) = (g.weight("table", &[10, 8]), g.input(Input::InputIds));
    let first = g.embed(table, ids).unwrap();
    let mut x = first;
    for index in 0..layers {
        g.layer(Some(index));
        let weight = g.weight(&format!("w{index}"), &[8, 8]);
        let product = g.matmul(x, weight).unwrap();
        x = g.add(product, if skip { first } else { x }).unwrap();
    }
    g.layer(None);
    let last = g.scale(x, 2.0).unwrap();
    g.output("last", last);
    g.finish().unwrap()
}

/// The layer reads its input in the same node that writes its output: the carry needs two slots.
#[test]
fn a_carry_read_to_the_end_alternates() {
    for layers in [2, 3, 5] {
        let program = Program::compile(&chain(layers, false), LayoutKind::Padded, &[]).unwrap();
        assert!(program.slots().folded_periods() > 1);
        let (records, plan) = unfolded_plan(&program, &Extents::of(&[100]));
        assert_eq!(check(&records, &plan, 256), Ok(()));
    }
}

/// A value that all layers read lives across them: the fold must respect that or give up.
#[test]
fn a_value_from_before_the_layers_outlives_them() {
    for layers in [2, 4] {
        let program = Program::compile(&chain(layers, true), LayoutKind::Padded, &[]).unwrap();
        let (records, plan) = unfolded_plan(&program, &Extents::of(&[100]));
        assert_eq!(check(&records, &plan, 256), Ok(()));
    }
}
