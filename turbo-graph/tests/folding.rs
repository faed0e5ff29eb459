//! Random layered graphs: whatever folds, its plan is sound for the program as it runs, value by value.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use common::unfolded_plan;
use proptest::prelude::*;
use turbo_alloc::check;
use turbo_graph::{Graph, GraphBuilder, Input, LayoutKind, Pooling, Program, ValueId, dim::Extents, passes};

/// Columns of every value except those that a product widens.
const NARROW: usize = 8;
const WIDE: usize = 24;

/// One node of a layer; operands count back from the newest value, so that 0 is the newest.
#[derive(Clone, Copy, Debug)]
enum Step {
    Scale {
        of: usize,
    },
    Add {
        a: usize,
        b: usize,
    },
    Product {
        of: usize,
    },
    /// To another width and back, so that values of two shapes live in a layer.
    Widened {
        of: usize,
    },
}

/// A layer, and how one copy of it is made unlike the others.
#[derive(Clone, Debug)]
struct Plan {
    prefix: Vec<Step>,
    /// Layers of these kinds alternate.
    kinds: Vec<Vec<Step>>,
    layers: u32,
    /// This layer computes one node more.
    odd: Option<u32>,
    suffix: Vec<Step>,
    /// Values of this many layers ago are outputs.
    outputs: Vec<usize>,
    /// How many values of the layers before a layer may read: 1 is a proper carry.
    reach: usize,
    /// Every layer may read the first value too, which then lives across all of them.
    global: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let of = || 0..6_usize;
    prop_oneof![
        of().prop_map(|of| Step::Scale { of }),
        (of(), of()).prop_map(|(a, b)| Step::Add { a, b }),
        of().prop_map(|of| Step::Product { of }),
        of().prop_map(|of| Step::Widened { of }),
    ]
}

fn steps(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), len)
}

fn plans() -> impl Strategy<Value = Plan> {
    let kinds = prop::collection::vec(steps(1..7), 1..4);
    let layers = (kinds, 0..10_u32, prop::option::weighted(0.2, 0..10_u32));
    let around = (
        steps(0..3),
        steps(0..3),
        prop::collection::vec(0..30_usize, 0..3),
        1..3_usize,
        prop::bool::weighted(0.3),
    );
    (layers, around).prop_map(|((kinds, layers, odd), (prefix, suffix, outputs, reach, global))| Plan {
        prefix,
        kinds,
        layers,
        odd,
        suffix,
        outputs,
        reach,
        global,
    })
}

/// Draws on top of `values`, all `NARROW`; each step appends one value.
fn draw(g: &mut GraphBuilder, name: &str, steps: &[Step], values: &mut Vec<ValueId>) {
    for (index, step) in steps.iter().enumerate() {
        let back = |count: usize| values[values.len() - 1 - count.min(values.len() - 1)];
        let next = match *step {
            Step::Scale { of } => g.scale(back(of), 0.5),
            Step::Add { a, b } => g.add(back(a), back(b)),
            Step::Product { of } => {
                let weight = g.weight(&format!("{name}.{index}"), &[NARROW, NARROW]);
                g.matmul(back(of), weight)
            }
            Step::Widened { of } => {
                let up = g.weight(&format!("{name}.{index}.up"), &[WIDE, NARROW]);
                let down = g.weight(&format!("{name}.{index}.down"), &[NARROW, WIDE]);
                let wide = g.matmul(back(of), up).unwrap();
                g.matmul(wide, down)
            }
        };
        values.push(next.unwrap());
    }
}

fn graph(plan: &Plan) -> Graph {
    let mut g = GraphBuilder::new("layered");
    let (table, ids) = (g.weight("table", &[10, NARROW]), g.input(Input::InputIds));
    let mut all = vec![g.embed(table, ids).unwrap()];
    draw(&mut g, "prefix", &plan.prefix, &mut all);
    for index in 0..plan.layers {
        g.layer(Some(index));
        // a layer sees the last value of those before it, or a few
        let mut seen = if plan.global { vec![all[0]] } else { Vec::new() };
        seen.extend_from_slice(&all[all.len().saturating_sub(plan.reach)..]);
        let before = seen.len();
        let kind = &plan.kinds[index as usize % plan.kinds.len()];
        draw(&mut g, &format!("layer.{index}"), kind, &mut seen);
        if plan.odd == Some(index) {
            draw(&mut g, "odd", &[Step::Scale { of: 0 }], &mut seen);
        }
        all.extend_from_slice(&seen[before..]);
    }
    g.layer(None);
    draw(&mut g, "suffix", &plan.suffix, &mut all);
    let last = *all.last().unwrap();
    let pooled = g.pool(last, Pooling::Mean).unwrap();
    g.output("pooled", pooled);
    let mut named = std::collections::BTreeSet::new();
    for back in &plan.outputs {
        let index = all.len() - 1 - back.min(&(all.len() - 1));
        if named.insert(index) {
            g.output(&format!("value {index}"), all[index]);
        }
    }
    g.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn plans_of_layered_graphs_are_sound(plan in plans(), dead_too in any::<bool>()) {
        let passes = if dead_too { &[][..] } else { passes::ALL };
        for layout in [LayoutKind::Padded, LayoutKind::Packed] {
            let program = Program::compile(&graph(&plan), layout, passes).unwrap();
            let (records, plan) = unfolded_plan(&program, &Extents::of(&[40, 7]));
            prop_assert_eq!(check(&records, &plan, 256), Ok(()), "{}", program.graph());
        }
    }
}

/// The third layer reads the result of the first, which is an output and so is not planned; only the second layer
/// itself reads what it hands on.
#[test]
fn a_layer_may_read_what_the_first_layer_read() {
    let mut g = GraphBuilder::new("again");
    let (table, ids) = (g.weight("table", &[10, NARROW]), g.input(Input::InputIds));
    let first = g.embed(table, ids).unwrap();
    g.output("first", first);
    let mut handed_on = first;
    for layer in 0..3 {
        g.layer(Some(layer));
        let read = if layer == 2 { first } else { handed_on };
        handed_on = g.scale(read, 0.5).unwrap();
        let doubled = g.add(handed_on, handed_on).unwrap();
        g.output(&format!("doubled {layer}"), doubled);
    }
    let program = Program::compile(&g.finish().unwrap(), LayoutKind::Packed, &[]).unwrap();
    let (records, plan) = unfolded_plan(&program, &Extents::of(&[40, 7]));
    assert_eq!(check(&records, &plan, 256), Ok(()), "{}", program.graph());
}

/// The property above would hold for a planner that never folds; so a good part of these graphs must fold.
#[test]
fn layered_graphs_fold() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let folded = (0..400).filter(|_| {
        let plan = plans().new_tree(&mut runner).unwrap().current();
        let program = Program::compile(&graph(&plan), LayoutKind::Packed, passes::ALL).unwrap();
        program.slots().folded_periods() > 1
    });
    let folded = folded.count();
    assert!(folded > 100, "{folded} of 400 graphs were folded");
}
