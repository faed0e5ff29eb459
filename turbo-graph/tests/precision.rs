//! Products in bf16 and int8: which they are, what they cost, and that their bits depend on the sequence alone.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use common::{BERT_BASE, SMALL, encoder, families, on_threads, sequences};
use turbo_graph::{
    Activation, DType, ExecutorConfig, Graph, GraphBuilder, Input, LayoutKind, Op, Pooling, Program, Staging,
    ValueId, dim::Extents, passes, print,
};
use turbo_kernels::limits::Limits;

const QUANTISED: [DType; 2] = [DType::Bf16, DType::Int8];

fn compile(graph: &Graph, layout: LayoutKind, dtype: DType) -> Program {
    Program::compile(graph, layout, passes::ALL).unwrap().with_dtype(dtype)
}

/// Layers and the vocabulary take the dtype, heads stay f32, and so does everything when no dtype is set.
#[test]
fn products_in_layers_and_with_the_vocabulary_take_the_dtype() {
    for (name, graph) in families::all() {
        let drawn = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
        assert!(drawn.nodes().iter().all(|node| drawn.graph().dtype(node) == DType::F32), "{name}");
        for dtype in DType::ALL {
            let program = compile(&graph, LayoutKind::Packed, dtype);
            for node in program.nodes() {
                let vocabulary = program.value(node.output).shape.last_fixed() == Some(families::VOCABULARY);
                let expected = match node.op {
                    Op::Attention { .. } if dtype == DType::Int8 => DType::Bf16,
                    Op::Attention { .. } => dtype,
                    op if op.factors().is_empty() => DType::F32,
                    // the product that chooses experts
                    _ if program.value(node.output).shape.last_fixed() == Some(families::EXPERTS) => {
                        DType::F32
                    }
                    _ if node.layer.is_some() || vocabulary => dtype,
                    _ => DType::F32,
                };
                assert_eq!(program.graph().dtype(node), expected, "{name}: {}", node.op);
            }
        }
    }
}

/// A product outside of all layers, and one in a layer, each before an operator of another layer: whether it could be
/// fused with that operator changes nothing.
#[test]
fn a_product_keeps_its_dtype_whatever_follows_it() {
    type Follow = fn(&mut GraphBuilder, ValueId, ValueId) -> ValueId;
    let follows: [Follow; 5] = [
        |g, products, _| g.pool(products, Pooling::Max).unwrap(),
        |g, products, rows| g.add(products, rows).unwrap(),
        |g, products, _| g.activate(products, Activation::Relu).unwrap(),
        |g, products, _| {
            let bias = g.weight("bias", &[8]);
            g.add_bias(products, bias).unwrap()
        },
        |g, products, _| {
            let gain = g.weight("gain", &[8]);
            g.layer_norm(products, gain, None, 1e-5).unwrap()
        },
    ];
    let layers = [(None, Some(0), DType::F32), (Some(0), None, DType::Int8)];
    let cases = follows.into_iter().flat_map(|follow| layers.map(|layers| (follow, layers)));
    for (follow, (layer, next, expected)) in cases {
        let mut g = GraphBuilder::new("followed");
        let (words, head) = (g.weight("words", &[50, 8]), g.weight("head", &[8, 8]));
        let ids = g.input(Input::InputIds);
        let rows = g.embed(words, ids).unwrap();
        g.layer(layer);
        let products = g.matmul(rows, head).unwrap();
        g.layer(next);
        let result = follow(&mut g, products, rows);
        g.output("result", result);
        let graph = g.finish().unwrap();
        for passes in [passes::ALL, &[]] {
            let program = Program::compile(&graph, LayoutKind::Packed, passes).unwrap();
            let program = program.with_dtype(DType::Int8);
            let product = program.nodes().iter().find(|node| !node.op.factors().is_empty()).unwrap();
            assert_eq!(program.graph().dtype(product), expected, "{layer:?} {next:?}: {}", product.op);
        }
    }
}

#[test]
fn what_is_not_f32_is_said() {
    let program = compile(&families::family("classifier"), LayoutKind::Packed, DType::Int8);
    let expected = "
  %9    embed_sum_layer_norm ε=1e-5                  [total_tokens, 32]  of ids positions
┌ 2 layers like this one: each next one reads %51 for %9
│ %149  linear 32→96 int8                            [total_tokens, 96]  of %9
│ %30   attention 4×8 ×0.35355338 bf16               [total_tokens, 32]  of %149
│ %38   linear_layer_norm ε=1e-5 32→32 int8          [total_tokens, 32]  of %30 %9
│ %51   feed_forward GeluErf ε=1e-5 32→40→32 int8    [total_tokens, 32]  of %38
└
";
    let shown = print::brief(program.graph()).to_string();
    assert!(shown.starts_with(expected.trim_start_matches('\n')), "{shown}");
    assert!(program.graph().to_string().contains("linear int8 (%9,"), "{}", program.graph());
}

/// BERT-base: 85 million weights in its layers, so they take 170 million operations per token.
#[test]
fn a_narrower_dtype_costs_fewer_bytes_and_less_time() {
    let extents = Extents::of(&[128]);
    let of = |dtype| compile(&encoder(BERT_BASE), LayoutKind::Packed, dtype);
    let weights = |dtype| of(dtype).graph().weight_bytes_read(&extents) as f64;
    let (all, in_layers) = (weights(DType::F32), 4.0 * 84.9e6);
    for (dtype, share) in [(DType::Bf16, 0.5), (DType::Int8, 0.25)] {
        let saved = (all - weights(dtype)) / (in_layers * (1.0 - share));
        assert!((saved - 1.0).abs() < 0.01, "{dtype}: {saved} of what was worked out");
    }

    let total = |dtype| of(dtype).graph().total_cost(&extents);
    let (f32, bf16, int8) = (total(DType::F32), total(DType::Bf16), total(DType::Int8));
    assert_eq!([f32.bf16_flops, f32.int8_ops, bf16.int8_ops], [0; 3]);
    assert_eq!([f32.flops, f32.flops], [bf16.flops, int8.flops], "as many operations");
    let attention = 128 * 128 * 12 * 4 * 768;
    assert_eq!((int8.bf16_flops, int8.int8_ops + attention), (attention, bf16.bf16_flops));
    assert!(f32.bytes > bf16.bytes && bf16.bytes > int8.bytes);

    // on a machine that computes and reads faster in proportion as a type is smaller
    let limits = Limits { flops: 1e9, bf16_flops: 2e9, int8_ops: 4e9, memory_bytes: 1e9 };
    let floor = |dtype| of(dtype).graph().floor(&Extents::of(&[1]), &limits);
    assert!(floor(DType::F32) > floor(DType::Bf16) && floor(DType::Bf16) > floor(DType::Int8));
}

/// Last hidden states and pooled rows of each sequence.
fn embed(layout: LayoutKind, dtype: DType, threads: usize, ids: &[&[u32]]) -> Vec<Vec<f32>> {
    let program = compile(&encoder(SMALL), layout, dtype);
    let mut executor = on_threads(threads, program, ExecutorConfig::default());
    let mut batch = Staging::new();
    ids.iter().for_each(|ids| batch.push(ids, &[]).unwrap());
    executor.run(&batch).unwrap();
    let outputs = ["last_hidden_state", "pooled"].map(|name| executor.output(name).unwrap());
    let mut answer = |sequence| {
        let mut values = Vec::new();
        outputs.iter().for_each(|&output| executor.read(output, sequence, &mut values).unwrap());
        values
    };
    (0..ids.len()).map(&mut answer).collect()
}

#[test]
fn the_bits_of_a_sequence_do_not_depend_on_its_batch() {
    let ids = sequences(&[9, 1, 33, 64, 17], SMALL.vocab_size);
    let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
    for dtype in QUANTISED {
        for (layout, threads) in [(LayoutKind::Packed, 1), (LayoutKind::Packed, 2), (LayoutKind::Padded, 2)] {
            let together = embed(layout, dtype, threads, &ids);
            for (ids, together) in ids.iter().zip(together) {
                let alone = &embed(LayoutKind::Packed, dtype, 1, &[ids])[0];
                assert!(
                    alone.iter().map(|v| v.to_bits()).eq(together.iter().map(|v| v.to_bits())),
                    "{dtype}, {layout:?}, {threads} threads, {} tokens",
                    ids.len()
                );
            }
        }
    }
}

/// The weights here are noise, which hides errors less than the weights of a model do: every layer's rows point the
/// same way to some parts in a thousand for bf16 (8 bits), and to some in a hundred for int8.
#[test]
fn rows_point_where_those_of_f32_do() {
    let ids = sequences(&[40], SMALL.vocab_size);
    let rows = |dtype| embed(LayoutKind::Packed, dtype, 2, &[&ids[0]]).remove(0);
    let exact = rows(DType::F32);
    for (dtype, least) in [(DType::Bf16, 0.999), (DType::Int8, 0.98)] {
        let rows = rows(dtype);
        let pairs = exact.chunks(SMALL.hidden_size).zip(rows.chunks(SMALL.hidden_size));
        let worst = pairs.map(|(a, b)| cosine(a, b)).fold(f64::INFINITY, f64::min);
        assert!(worst >= least && worst < 1.0 - 1e-9, "{dtype}: {worst}");
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
