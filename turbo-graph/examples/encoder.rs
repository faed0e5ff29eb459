//! A small encoder from its drawing to its answers: what the passes leave of it, what time and memory it takes, and
//! whether it still computes the same.
//!
//! ```text
//! cargo run --release -p turbo-graph --example encoder                      texts of 7 and 40 tokens; then one of 128
//! cargo run --release -p turbo-graph --example encoder -- 5,5,300 12,12     a batch for each word
//! ```
//! The weights are invented. The fused program, whose rows are packed, is compared with the drawing, which runs padded
//! and operator by operator.

use std::{borrow::Cow, error::Error, time::Instant};

use turbo_graph::{
    Activation, AttentionMask, Executor, Graph, GraphBuilder, GraphError, Input, LayoutKind, PlannerConfig,
    Pooling, Program, Rhs, Staging, ValueId, WeightSource, kernels, memory, passes, print,
};

const HIDDEN: usize = 128;
const HEADS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let len = |word: &str| word.parse::<usize>().map_err(|error| format!("{word}: {error}"));
    let parse = |words: String| words.split(',').map(len).collect::<Result<Vec<_>, _>>();
    let mut batches = std::env::args().skip(1).map(parse).collect::<Result<Vec<_>, _>>()?;
    if batches.is_empty() {
        batches = vec![vec![7, 40], vec![128]];
    }
    let graph = encoder()?;
    println!("as drawn, {} nodes\n{}", graph.nodes().len(), print::brief(&graph));
    let drawn = Program::compile(&graph, LayoutKind::Padded, &[])?;
    let fused = Program::compile_traced(&graph, LayoutKind::Packed, passes::ALL, |step| {
        if step.rewrites > 0 {
            println!("{:32} {:2} times, {:2} nodes left", step.pass, step.rewrites, step.graph.nodes().len());
        }
    })?;
    println!("\nfused and packed\n{}", print::brief(fused.graph()));

    let cpu = kernels::Cpu::new(kernels::CpuOptions::default())?;
    let config = PlannerConfig { chunk_bytes: 64 << 10, ..PlannerConfig::default() };
    let mut answers = Vec::new();
    for (name, program) in [("drawn", drawn), ("fused", fused)] {
        let mut executor = Executor::new(cpu.clone(), program, &Invented, config)?;
        let pooled = executor.output("pooled").ok_or("the drawing names it")?;
        let mut rows = Vec::new();
        for lens in &batches {
            let mut batch = Staging::new();
            for &len in lens {
                let ids: Vec<u32> = (0..1000).cycle().step_by(37).take(len).collect();
                batch.push(&ids, &[])?; // without token types
            }
            let mut millis = f64::INFINITY;
            for _ in 0..5 {
                let start = Instant::now();
                executor.run(&batch)?; // the first run makes the plan
                millis = millis.min(start.elapsed().as_secs_f64() * 1e3);
            }
            (0..lens.len()).try_for_each(|text| executor.read(pooled, text, &mut rows))?;
            let plan = memory::plan_batches(executor.program(), &[batch.extents()], config)?.remove(0);
            let (planned, unshared) = (plan.plan.footprint() >> 10, plan.unshared_bytes >> 10);
            println!(
                "{name}, {lens:?}: {millis:.2} ms, {planned} KiB planned for activations instead of {unshared}"
            );
        }
        answers.push(rows);
    }
    let differences = answers[0].iter().zip(&answers[1]).map(|(drawn, fused)| (drawn - fused).abs());
    let most = differences.max_by(f32::total_cmp).unwrap_or(0.0); // NaN counts as the most
    println!("the answers differ by {most:.0e} at most");
    assert!(most < 1e-5, "passes must not change what a graph computes");
    Ok(())
}

/// Three layers over word embeddings, as a textbook draws them. Weights are read by the names that they get here.
fn encoder() -> Result<Graph, GraphError> {
    let mut g = GraphBuilder::new("encoder");
    let (ids, words) = (g.input(Input::InputIds), g.weight("words", &[1000, HIDDEN]));
    let mut x = g.embed(words, ids)?;
    for layer in 0..3 {
        g.layer(Some(layer)); // layers that are alike are planned and printed once
        let name = |part| format!("layer.{layer}.{part}");
        let mut heads = |part| {
            let projected = linear(&mut g, x, &name(part), HIDDEN)?;
            g.split_heads(projected, HEADS)
        };
        let (query, key, value) = (heads("query")?, heads("key")?, heads("value")?);
        let scores = g.batched_matmul(query, key, Rhs::Transposed)?;
        let scores = g.scale(scores, ((HIDDEN / HEADS) as f32).sqrt().recip())?;
        let scores = g.mask(scores, AttentionMask::Full)?;
        let weights = g.softmax(scores)?;
        let context = g.batched_matmul(weights, value, Rhs::Normal)?;
        let context = g.merge_heads(context)?;
        let projected = linear(&mut g, context, &name("out"), HIDDEN)?;
        x = add_norm(&mut g, projected, x, &name("out.norm"))?;
        let wide = linear(&mut g, x, &name("up"), 4 * HIDDEN)?;
        let wide = g.activate(wide, Activation::GeluErf)?;
        let narrow = linear(&mut g, wide, &name("down"), HIDDEN)?;
        x = add_norm(&mut g, narrow, x, &name("down.norm"))?;
    }
    g.layer(None);
    let pooled = g.pool(x, Pooling::Mean)?;
    g.output("pooled", pooled);
    g.finish()
}

fn linear(g: &mut GraphBuilder, x: ValueId, name: &str, outputs: usize) -> Result<ValueId, GraphError> {
    let inputs = g.columns(x).expect("no batch determines the width of a row");
    let (weight, bias) = (g.weight(name, &[outputs, inputs]), g.weight(&format!("{name}.bias"), &[outputs]));
    let product = g.matmul(x, weight)?;
    g.add_bias(product, bias)
}

fn add_norm(g: &mut GraphBuilder, x: ValueId, residual: ValueId, name: &str) -> Result<ValueId, GraphError> {
    let gain = g.weight(name, &[HIDDEN]);
    let sum = g.add(x, residual)?;
    g.layer_norm(sum, gain, None, 1e-12)
}

/// Each tensor's values follow from its name.
struct Invented;

impl WeightSource for Invented {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>> {
        let seed: u32 = name.bytes().map(u32::from).sum();
        let values = 0..shape.iter().product::<usize>();
        Ok(values.map(|i| (f64::from(seed) + (i * i) as f64).sin() as f32 / 10.0).collect())
    }
}
