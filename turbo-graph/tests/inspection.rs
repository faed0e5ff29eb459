//! What people look at: the graph in columns, and the memory plan as a value.

mod common;

use common::{SMALL, encoder, families};
use turbo_alloc::{Ledger, check};
use turbo_graph::{LayoutKind, PlannerConfig, Program, dim::Extents, memory, passes, print};

fn program(layout: LayoutKind) -> Program {
    Program::compile(&encoder(SMALL), layout, passes::ALL).expect("it compiles")
}

#[test]
fn a_graph_fits_a_hundred_columns() {
    let expected = "
  %13   embed_sum_layer_norm ε=1e-12           [total_tokens, 24]  of ids types positions
┌ 3 layers like this one: each next one reads %55 for %13
│ %144  linear 24→72                           [total_tokens, 72]  of %13
│ %34   attention 3×8 ×0.35355338              [total_tokens, 24]  of %144
│ %42   linear_layer_norm ε=1e-12 24→24        [total_tokens, 24]  of %34 %13
│ %55   feed_forward GeluErf ε=1e-12 24→40→24  [total_tokens, 24]  of %42
└ out of the last: %139 → last_hidden_state
  %140  pool Mean                              [batch_size, 24]    of %139 → pooled
";
    assert_eq!(
        print::brief(program(LayoutKind::Packed).graph()).to_string(),
        expected.trim_start_matches('\n')
    );
    let drawn = print::brief(&encoder(SMALL)).to_string();
    assert!(drawn.lines().all(|line| line.chars().count() <= 100), "{drawn}");
}

#[test]
fn families_fit_too() {
    for (name, graph) in families::all() {
        let fused = Program::compile(&graph, LayoutKind::Packed, passes::ALL).expect("it compiles");
        for graph in [&graph, fused.graph()] {
            let shown = print::brief(graph).to_string();
            assert!(shown.lines().all(|line| line.chars().count() <= 100), "{name}\n{shown}");
            let picture = print::svg(graph, name);
            assert_eq!(picture.contains("2 times 3 layers, one after the other:"), name == "ModernBERT");
        }
    }
}

#[test]
fn planned_batches_are_what_a_planner_answers() {
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let program = program(layout);
        let extents = [200, 40_000, 10].map(|len| Extents::of(&[len]));
        let planned = memory::plan_batches(&program, &extents, PlannerConfig::default()).unwrap();
        let (mut ledger, activations) = (Ledger::default(), program.usage_records(&extents[0]).len());
        for (batch, extents) in planned.iter().zip(&extents) {
            assert_eq!(batch.extents, *extents);
            assert_eq!(check(&batch.records(), &batch.plan, 256), Ok(()), "{layout:?}");
            assert_eq!(ledger.apply(&batch.plan), Ok(()));
            assert!(batch.peak_live_bytes() <= batch.plan.footprint());
            assert_eq!(batch.slots.iter().map(|slot| slot.values).sum::<usize>(), activations);
        }
        assert!(planned[1].plan.footprint() < planned[1].unshared_bytes / 2, "{layout:?}");
        assert!(!planned[1].plan.grow.is_empty(), "a longer batch needs more");
        assert!(!planned[2].plan.release.is_empty(), "a shorter one gives it back");
    }
}

#[test]
fn the_picture_has_every_slot_at_every_length() {
    let program = program(LayoutKind::Packed);
    let extents = [200, 240].map(|len| Extents::of(&[len]));
    let planned = memory::plan_batches(&program, &extents, PlannerConfig::default()).unwrap();
    let picture = memory::svg(["200 tokens", "then 240 tokens"].into_iter().zip(&planned));
    assert_eq!(picture.matches("<title>").count(), 2 * planned[0].slots.len());
    for slot in &planned[0].slots {
        assert!(picture.contains(&format!(">{}<", slot.name)), "{} is not in the legend", slot.name);
    }
}
