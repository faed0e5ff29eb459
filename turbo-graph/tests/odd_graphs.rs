//! Graphs that no textbook draws: every pass must leave them right, if need be by leaving them alone.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use common::{batch, on_cpu, sequences, twin};
use turbo_graph::{
    Activation, AttentionMask, Graph, GraphBuilder, GraphError, HeadColumns, Input, LayoutKind, Op, Pass,
    Pooling, PositionBuckets, Positions, Program, Rhs, Routing, Staging, ValueId, passes,
};

const HIDDEN: usize = 8;
const VOCABULARY: usize = 10;

/// A graph of rows of `HIDDEN` columns: `draw` goes from the embedded ids to the output `rows`.
fn graph(draw: impl Fn(&mut GraphBuilder, ValueId) -> Result<ValueId, GraphError>) -> Graph {
    let mut g = GraphBuilder::new("odd");
    let (table, ids) = (g.weight("table", &[VOCABULARY, HIDDEN]), g.input(Input::InputIds));
    let x = g.embed(table, ids).unwrap();
    let rows = draw(&mut g, x).unwrap();
    g.layer(None);
    g.output("rows", rows);
    g.finish().unwrap()
}

fn biased(g: &mut GraphBuilder, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
    let weight = g.weight(&format!("{name}.weight"), &[HIDDEN, HIDDEN]);
    let bias = g.weight(&format!("{name}.bias"), &[HIDDEN]);
    let product = g.matmul(x, weight)?;
    g.add_bias(product, bias)
}

fn norm(g: &mut GraphBuilder, x: ValueId) -> Result<ValueId, GraphError> {
    let (gain, offset) = (g.weight("gain", &[HIDDEN]), g.weight("offset", &[HIDDEN]));
    g.layer_norm(x, gain, Some(offset), 1e-12)
}

/// Lengths of the sequences that graphs are compared on.
const LENS: [usize; 2] = [5, 3];

fn rows(graph: &Graph, passes: &[Pass]) -> Vec<f32> {
    let program = Program::compile(graph, LayoutKind::Padded, passes).unwrap();
    let mut executor = on_cpu(program);
    executor.run(&batch(&sequences(&LENS, VOCABULARY))).unwrap();
    let (output, mut values) = (executor.output("rows").unwrap(), Vec::new());
    (0..2).for_each(|sequence| executor.read(output, sequence, &mut values).unwrap());
    assert_eq!(values.len(), 8 * HIDDEN);
    values
}

/// Exact except for the order of sums.
fn fusing_changes_nothing(graph: &Graph) {
    let (drawn, fused) = (rows(graph, &[]), rows(graph, passes::ALL));
    assert_close(graph, &["rows"], [&[], &[]], &drawn, &fused);
}

/// Checks that outputs of these names are as close as rounding allows, with these tokens of each sequence selected.
fn assert_close(graph: &Graph, names: &[&str], selected: [&[u32]; 2], a: &[f32], b: &[f32]) {
    let ids = sequences(&LENS, VOCABULARY);
    let sequence = |(ids, selected)| twin::Sequence { ids, types: &[], selected };
    let batch: Vec<twin::Sequence<'_>> = ids.iter().map(Vec::as_slice).zip(selected).map(sequence).collect();
    let (worst, (_, allowed)) = (twin::distance(a, b), twin::answers(graph, names, &batch));
    assert!(worst <= allowed, "differs by {worst}, allowed are {allowed}\n{graph}");
}

#[test]
fn a_biased_product_that_is_its_own_residual() {
    fusing_changes_nothing(&graph(|g, x| {
        let y = biased(g, "y", x)?;
        let twice = g.add(y, y)?;
        norm(g, twice)
    }));
}

/// Queries that are the keys too, as in the Reformer.
#[test]
fn queries_that_are_the_keys() {
    fusing_changes_nothing(&graph(|g, x| {
        let (q, v) = (biased(g, "q", x)?, biased(g, "v", x)?);
        let (q, v) = (g.split_heads(q, 2)?, g.split_heads(v, 2)?);
        let scores = g.batched_matmul(q, q, Rhs::Transposed)?;
        let scores = g.mask(scores, AttentionMask::Full)?;
        let probabilities = g.softmax(scores)?;
        let context = g.batched_matmul(probabilities, v, Rhs::Normal)?;
        g.merge_heads(context)
    }));
}

/// The activation belongs to the layer after that of its product, and something of that layer stands between them.
#[test]
fn a_pattern_across_layers() {
    fusing_changes_nothing(&graph(|g, x| {
        g.layer(Some(0));
        let y = biased(g, "y", x)?;
        g.layer(Some(1));
        let z = biased(g, "z", x)?;
        let active = g.activate(y, Activation::Tanh)?;
        g.add(active, z)
    }));
}

/// Embeddings whose sum is read twice, and one that is added to itself.
#[test]
fn embeddings_that_are_read_twice() {
    fusing_changes_nothing(&graph(|g, x| {
        let twice = g.add(x, x)?;
        let four = g.add(twice, twice)?;
        norm(g, four)
    }));
    fusing_changes_nothing(&graph(|g, x| {
        let table = g.weight("other", &[VOCABULARY, HIDDEN]);
        let ids = g.input(Input::InputIds);
        let y = g.embed(table, ids)?;
        let sum = g.add(x, x)?;
        let sum = g.add(sum, y)?;
        norm(g, sum)
    }));
}

#[test]
fn a_softmax_without_mask_or_scale() {
    fusing_changes_nothing(&graph(|g, x| {
        let heads = g.split_heads(x, 4)?;
        let scores = g.batched_matmul(heads, heads, Rhs::Transposed)?;
        let masked = g.mask(scores, AttentionMask::Full)?;
        let scaled = g.scale(masked, 0.5)?; // after the mask: −∞ stays −∞
        let probabilities = g.softmax(scaled)?;
        let context = g.batched_matmul(probabilities, heads, Rhs::Normal)?;
        g.merge_heads(context)
    }));
}

#[test]
fn an_output_in_the_middle_of_a_pattern_stays() {
    let mut g = GraphBuilder::new("middle");
    let (table, ids) = (g.weight("table", &[VOCABULARY, HIDDEN]), g.input(Input::InputIds));
    let x = g.embed(table, ids).unwrap();
    let y = biased(&mut g, "y", x).unwrap();
    let active = g.activate(y, Activation::Relu).unwrap();
    let pooled = g.pool(active, Pooling::Cls).unwrap();
    g.output("rows", y);
    g.output("pooled", pooled);
    fusing_changes_nothing(&g.finish().unwrap());
}

/// Rows of table `name` for `ids`.
fn lookup(g: &mut GraphBuilder, name: &str, ids: Input) -> Result<ValueId, GraphError> {
    let (table, ids) = (g.weight(name, &[VOCABULARY, HIDDEN]), g.input(ids));
    g.embed(table, ids)
}

fn fused_lookups(graph: &Graph) -> Vec<Op> {
    let program = Program::compile(graph, LayoutKind::Padded, passes::ALL).unwrap();
    let ops = program.nodes().iter().map(|node| node.op);
    ops.filter(|op| matches!(op, Op::Embed | Op::EmbedSumLayerNorm { .. })).collect()
}

#[test]
fn two_lookups_fuse_as_three_do_and_four_stay_apart() {
    let positions = Input::PositionIds(Positions::AfterPad { pad_id: 3 });
    let others = [positions, Input::TokenTypeIds, Input::PositionIds(Positions::FromZero)];
    for (terms, expected) in [
        (1, vec![Op::EmbedSumLayerNorm { lookups: 2, epsilon: 1e-12 }]),
        (2, vec![Op::EmbedSumLayerNorm { lookups: 3, epsilon: 1e-12 }]),
        (3, vec![Op::Embed; 4]),
    ] {
        let sum = graph(|g, x| {
            let mut sum = x;
            for (index, &ids) in others[..terms].iter().enumerate() {
                let term = lookup(g, &format!("table {index}"), ids)?;
                sum = g.add(sum, term)?;
            }
            norm(g, sum)
        });
        assert_eq!(fused_lookups(&sum), expected);
        fusing_changes_nothing(&sum);
    }
}

#[test]
fn lookups_added_from_the_right_stay_apart() {
    let sum = graph(|g, x| {
        let (a, b) = (lookup(g, "a", Input::TokenTypeIds)?, lookup(g, "b", Input::InputIds)?);
        let right = g.add(a, b)?;
        let sum = g.add(x, right)?;
        norm(g, sum)
    });
    assert_eq!(fused_lookups(&sum), [Op::Embed; 3]);
    fusing_changes_nothing(&sum);
}

fn product(g: &mut GraphBuilder, name: &str, x: ValueId, columns: usize) -> Result<ValueId, GraphError> {
    let weight = g.weight(name, &[columns, HIDDEN]);
    g.matmul(x, weight)
}

/// The fused `graph`, as names of operators, after a check that it computes the same.
fn left(graph: &Graph) -> Vec<&'static str> {
    fusing_changes_nothing(graph);
    let program = Program::compile(graph, LayoutKind::Padded, passes::ALL).unwrap();
    program.nodes().iter().map(|node| node.op.name()).collect()
}

fn half(first: usize) -> HeadColumns {
    HeadColumns { first, num_heads: 1, head_dim: HIDDEN / 2 }
}

/// Of three products of one input, only those are merged whose readers read by columns.
#[test]
fn a_product_that_is_read_whole_stays_apart() {
    let graph = graph(|g, x| {
        let (a, b, c) =
            (product(g, "a", x, HIDDEN)?, product(g, "b", x, HIDDEN)?, product(g, "c", x, HIDDEN)?);
        let split = |g: &mut GraphBuilder, value| {
            let heads = g.split_heads(value, 2)?;
            g.merge_heads(heads)
        };
        let (a, whole, c) = (split(g, a)?, split(g, b)?, split(g, c)?);
        let sum = g.add(a, c)?;
        let sum = g.add(sum, whole)?;
        g.mul(sum, b)
    });
    let left = left(&graph);
    assert_eq!(left.iter().filter(|name| **name == "matmul").count(), 2, "{left:?}");
}

/// Two layers read one value; merging their products would compute for one layer in the other.
#[test]
fn products_of_two_layers_stay_apart() {
    let graph = graph(|g, x| {
        let mut parts = Vec::new();
        for layer in 0..2 {
            g.layer(Some(layer));
            let rows = product(g, &format!("layer.{layer}"), x, HIDDEN)?;
            let heads = g.split_heads(rows, 2)?;
            parts.push(g.merge_heads(heads)?);
        }
        g.add(parts[0], parts[1])
    });
    assert_eq!(left(&graph).iter().filter(|name| **name == "matmul").count(), 2);
}

#[test]
fn rotations_are_merged_where_columns_meet_and_tables_agree() {
    let rotations = |second: usize, same_table: bool, read_whole: bool| {
        let graph = graph(|g, x| {
            let (table, other) = (g.rotary_table(&[1.0, 0.3], 9), g.rotary_table(&[1.0, 0.4], 9));
            let q = g.rotary(x, half(0), table)?;
            let k = g.rotary(x, half(second), if same_table { table } else { other })?;
            let (queries, keys) = (g.split_heads(q, 1)?, g.split_heads(k, 1)?);
            let scores = g.batched_matmul(queries, keys, Rhs::Transposed)?;
            let scores = g.mask(scores, AttentionMask::Causal)?;
            let (probabilities, values) = (g.softmax(scores)?, g.split_heads(x, 1)?);
            let context = g.batched_matmul(probabilities, values, Rhs::Normal)?;
            if read_whole {
                let whole = g.pool(k, Pooling::Cls)?;
                g.output("whole", whole);
            }
            g.merge_heads(context)
        });
        left(&graph).iter().filter(|name| **name == "rotary").count()
    };
    assert_eq!(rotations(HIDDEN / 2, true, false), 1);
    assert_eq!(rotations(HIDDEN / 2, true, true), 2, "one is read whole");
    assert_eq!(rotations(HIDDEN / 2, false, false), 2, "the tables differ");
    assert_eq!(rotations(0, true, false), 2, "both turn the same columns");
}

/// `a · b` where both factors are activated, where the activated one is read again, and where inputs differ.
#[test]
fn what_is_no_gate_stays_apart() {
    type Draw = fn(&mut GraphBuilder, ValueId) -> Result<ValueId, GraphError>;
    let draw: [Draw; 3] = [
        |g, x| {
            let a = product(g, "a", x, HIDDEN)?;
            let a = g.activate(a, Activation::Silu)?;
            g.mul(a, a)
        },
        |g, x| {
            let (a, b) = (product(g, "a", x, HIDDEN)?, product(g, "b", x, HIDDEN)?);
            let a = g.activate(a, Activation::Silu)?;
            let gated = g.mul(a, b)?;
            g.add(gated, a)
        },
        |g, x| {
            let a = product(g, "a", x, HIDDEN)?;
            let b = product(g, "b", a, HIDDEN)?;
            let a = g.activate(a, Activation::Silu)?;
            g.mul(a, b)
        },
    ];
    for draw in draw {
        let left = left(&graph(draw));
        assert!(left.contains(&"mul") && !left.contains(&"gate"), "{left:?}");
    }
}

/// The maximum of activated logits, in three cases: the activation falls, the logits are a result too, and it fuses.
#[test]
fn a_maximum_takes_in_products_that_nobody_else_reads() {
    let left = |activation, logits_are_named: bool| {
        let mut g = GraphBuilder::new("maximum");
        let (table, ids) = (g.weight("table", &[VOCABULARY, HIDDEN]), g.input(Input::InputIds));
        let x = g.embed(table, ids).unwrap();
        let logits = biased(&mut g, "logits", x).unwrap();
        let active = g.activate(logits, activation).unwrap();
        let most = g.pool(active, Pooling::Max).unwrap();
        g.output("rows", x);
        g.output("pooled", most);
        if logits_are_named {
            g.output("logits", logits);
        }
        left(&g.finish().unwrap())
    };
    assert_eq!(left(Activation::Log1pRelu, false), ["embed", "linear_max_pool", "activate"]);
    assert_eq!(left(Activation::GeluErf, false), ["embed", "linear", "pool"]);
    assert_eq!(left(Activation::Relu, true), ["embed", "linear", "pool", "activate"]);
}

#[test]
fn sums_of_products_are_residuals_on_one_side() {
    let both = graph(|g, x| {
        let (a, b) = (biased(g, "a", x)?, biased(g, "b", x)?);
        g.add(a, b)
    });
    assert_eq!(left(&both), ["embed", "linear", "residual_linear"]);
    let itself = graph(|g, x| {
        let a = biased(g, "a", x)?;
        g.add(a, a)
    });
    assert_eq!(left(&itself), ["embed", "linear", "add"]);
}

/// Experts become one operator only if nothing else reads their matrices and the values between them, and all of it is
/// in one layer.
#[test]
fn experts_whose_parts_something_else_reads() {
    let wide = |g: &mut GraphBuilder, x: ValueId| {
        let logits = product(g, "router", x, 3)?;
        let up = product(g, "up", x, 3 * HIDDEN)?;
        let wide = g.activate(up, Activation::GeluErf)?;
        let weighted = g.weigh_experts(wide, logits, Routing { num_experts: 3, top_k: 2 })?;
        Ok::<_, GraphError>([up, wide, weighted])
    };
    let narrow = |g: &mut GraphBuilder, name: &str, wide| {
        let weight = g.weight(name, &[HIDDEN, 3 * HIDDEN]);
        g.matmul(wide, weight)
    };
    let alone = graph(|g, x| {
        let [_, _, weighted] = wide(g, x)?;
        let narrow = narrow(g, "down", weighted)?;
        g.add(narrow, x)
    });
    assert_eq!(left(&alone), ["embed", "matmul", "experts", "add"]);
    let drawn = ["matmul", "linear", "weigh_experts", "matmul"];
    let twice = graph(|g, x| {
        let [_, _, weighted] = wide(g, x)?;
        let once = narrow(g, "down", weighted)?;
        let [_, _, weighted] = wide(g, once)?;
        narrow(g, "down", weighted)
    });
    assert_eq!(left(&twice), [&["embed"][..], &drawn, &drawn].concat());
    let other_layer = graph(|g, x| {
        g.layer(Some(0));
        let [_, _, weighted] = wide(g, x)?;
        g.layer(Some(1));
        narrow(g, "down", weighted)
    });
    assert_eq!(left(&other_layer), [&["embed"][..], &drawn].concat());
    for read_again in 0..3 {
        let graph = graph(|g, x| {
            let wide = wide(g, x)?;
            let (down, again) = (narrow(g, "down", wide[2])?, narrow(g, "again", wide[read_again])?);
            g.add(down, again)
        });
        assert!(left(&graph).contains(&"weigh_experts"), "{read_again}: {graph}");
    }
}

/// The wide rows of a feed-forward are its residual too, so that they have to be stored.
#[test]
fn wide_rows_that_are_the_residual_too() {
    let activated = graph(|g, x| {
        g.layer(Some(0));
        let wide = product(g, "up", x, HIDDEN)?;
        let wide = g.activate(wide, Activation::Relu)?;
        let narrow = product(g, "down", wide, HIDDEN)?;
        g.add(narrow, wide)
    });
    assert_eq!(left(&activated), ["embed", "linear", "residual_linear"]);
    let gated = graph(|g, x| {
        g.layer(Some(0));
        let halves = product(g, "up", x, 2 * HIDDEN)?;
        let wide = g.gate(halves, Activation::Silu)?;
        let narrow = biased(g, "down", wide)?;
        let sum = g.add(narrow, wide)?;
        norm(g, sum)
    });
    assert_eq!(left(&gated), ["embed", "matmul", "gate", "linear_layer_norm"]);
}

/// The norm of a product, its bias and the product again: the product must be stored to be added.
#[test]
fn a_product_that_is_added_to_itself_with_its_bias() {
    let graph = graph(|g, x| {
        let product = product(g, "m", x, HIDDEN)?;
        let bias = g.weight("bias", &[HIDDEN]);
        let biased = g.add_bias(product, bias)?;
        let sum = g.add(biased, product)?;
        norm(g, sum)
    });
    assert_eq!(left(&graph), ["embed", "matmul", "bias_residual_layer_norm"]);
}

/// The first sequence selects a token twice, the second none.
const PICKED: [&[u32]; 2] = [&[4, 1, 4], &[]];

/// Outputs `a` and `b` of these sequences.
fn picked(graph: &Graph, layout: LayoutKind, passes: &[Pass]) -> Vec<f32> {
    let program = Program::compile(graph, layout, passes).unwrap();
    let mut executor = on_cpu(program);
    let mut batch = Staging::new();
    for (ids, selected) in sequences(&LENS, VOCABULARY).iter().zip(PICKED) {
        batch.push(ids, &[]).unwrap();
        batch.select(selected).unwrap();
    }
    executor.run(&batch).unwrap();
    let (outputs, mut values) = (["a", "b"].map(|name| executor.output(name).unwrap()), Vec::new());
    for sequence in 0..2 {
        outputs.iter().for_each(|&output| executor.read(output, sequence, &mut values).unwrap());
    }
    values
}

/// Rows that are picked more than once: in two ways, twice in one way, before and after an operator.
#[test]
fn rows_that_are_picked_more_than_once() {
    type Draw = fn(&mut GraphBuilder, ValueId, ValueId) -> Result<[ValueId; 2], GraphError>;
    const POSITIONS: PositionBuckets = PositionBuckets { span: 4, max_distance: None };
    let draw: [Draw; 6] = [
        |g, _, y| Ok([g.pool(y, Pooling::Cls)?, g.pool(y, Pooling::LastToken)?]),
        |g, _, y| Ok([g.pool(y, Pooling::Cls)?, g.pool(y, Pooling::Cls)?]),
        |g, x, y| Ok([g.pool(y, Pooling::Cls)?, g.pool(x, Pooling::Cls)?]),
        |g, x, y| Ok([g.select(x)?, g.select(y)?]),
        |g, x, y| Ok([g.select(y)?, g.pool(x, Pooling::LastToken)?]),
        |g, x, y| {
            let table = g.weight("positions", &[POSITIONS.count(), HIDDEN]);
            let heads = HeadColumns { first: 0, num_heads: 2, head_dim: HIDDEN / 2 };
            let scores = g.position_scores(x, heads, table, POSITIONS)?;
            Ok([g.select(scores)?, g.select(y)?])
        },
    ];
    for draw in draw {
        let mut g = GraphBuilder::new("picked");
        let (table, ids) = (g.weight("table", &[VOCABULARY, HIDDEN]), g.input(Input::InputIds));
        let x = g.embed(table, ids).unwrap();
        let y = biased(&mut g, "y", x).unwrap();
        let sum = g.add(x, y).unwrap();
        let y = norm(&mut g, sum).unwrap();
        let [a, b] = draw(&mut g, x, y).unwrap();
        g.output("a", a);
        g.output("b", b);
        let graph = g.finish().unwrap();
        let drawn = picked(&graph, LayoutKind::Padded, &[]);
        for layout in [LayoutKind::Padded, LayoutKind::Packed] {
            let fused = picked(&graph, layout, passes::ALL);
            assert_close(&graph, &["a", "b"], PICKED, &drawn, &fused);
        }
    }
}
