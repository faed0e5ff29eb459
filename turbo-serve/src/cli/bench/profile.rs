//! Which operators the time goes to, and how close each kind is to what the machine can do.

use std::{
    collections::HashMap,
    fmt::Write,
    time::{Duration, Instant},
};

use anyhow::Result;
use turbo_models::graph::{Graph, Op, Staging, dim::Extents, kernels::limits::Limits};

use super::engine::{Effort, Engine, repeat};
use crate::cli::output::{count, ms, percent, rate};

/// Time of each node over all runs, in the order in which they run.
pub(super) struct Profile {
    runs: u32,
    /// From the call to the first node: ids to the device, and the plan.
    before: Duration,
    nodes: Vec<Duration>,
}

impl Profile {
    /// Runs `batch` node by node as often as `effort` says.
    ///
    /// # Errors
    /// What the executor fails with.
    pub(super) fn measure(engine: &mut Engine, batch: &Staging, effort: Effort) -> Result<Self> {
        let count = engine.executor.program().nodes().len();
        let mut profile = Profile { runs: 0, before: Duration::ZERO, nodes: vec![Duration::ZERO; count] };
        let mut starts = Vec::with_capacity(count + 1);
        repeat(effort, || {
            starts.clear();
            let call = Instant::now();
            engine.executor.run_observed(batch, |_| starts.push(Instant::now()))?;
            starts.push(Instant::now());
            profile.add(call, &starts);
            Ok(())
        })?;
        Ok(profile)
    }

    fn add(&mut self, call: Instant, starts: &[Instant]) {
        self.runs += 1;
        self.before += starts[0] - call;
        for (time, ends) in self.nodes.iter_mut().zip(starts.windows(2)) {
            *time += ends[1] - ends[0];
        }
    }

    /// A table by kind of operator, the longest first.
    pub(super) fn table(&self, graph: &Graph, extents: &Extents, limits: &Limits) -> String {
        let (mut of_kind, mut of_family) = (HashMap::new(), [Duration::ZERO; Family::ALL.len()]);
        for (node, &time) in graph.nodes().iter().zip(&self.nodes) {
            *of_kind.entry(graph.kind(node)).or_insert(Duration::ZERO) += time / self.runs;
            of_family[Family::of(&node.op) as usize] += time / self.runs;
        }
        let total = of_kind.values().sum::<Duration>() + self.before / self.runs;
        let mut kinds = graph.cost_by_kind(extents, limits);
        kinds.sort_by_key(|kind| std::cmp::Reverse(of_kind[&kind.kind]));

        let Extents { batch_size, total_tokens, .. } = extents;
        let mut text = format!(
            "\nwhere the time goes: batch of {batch_size}, {total_tokens} tokens, node by node, mean of {} runs\n\
             {:<34} {:>5} {:>10} {:>8} {:>9} {:>9} {:>9} {:>9}\n",
            self.runs, "operator", "nodes", "ms", "share", "FLOP", "GFLOP/s", "GB/s", "of limit"
        );
        for kind in &kinds {
            let time = of_kind[&kind.kind];
            let per_second = |amount: u64| rate(amount as f64 / 1e9 / time.as_secs_f64());
            _ = writeln!(
                text,
                "{:<34} {:>5} {:>10.3} {:>6.1} % {:>9} {:>9} {:>9} {:>7.0} %",
                kind.kind,
                kind.nodes,
                ms(time),
                percent(ms(time), ms(total)),
                count(kind.cost.flops),
                per_second(kind.cost.flops),
                per_second(kind.cost.bytes),
                percent(ms(kind.limit), ms(time)),
            );
        }
        let before = ms(self.before / self.runs);
        let share = percent(before, ms(total));
        _ = writeln!(
            text,
            "{:<34} {:>5} {before:>10.3} {share:>6.1} %",
            "ids to the device, and the plan", ""
        );
        let whole = graph.total_cost(extents);
        _ = writeln!(
            text,
            "{:<34} {:>5} {:>10.3} {:>6.1} % {:>9} {:>9}",
            "total",
            graph.nodes().len(),
            ms(total),
            100.0,
            count(whole.flops),
            rate(whole.flops as f64 / 1e9 / total.as_secs_f64()),
        );
        let families = Family::ALL.map(|family| {
            format!("{} {:.1} %", family.name(), percent(ms(of_family[family as usize]), ms(total)))
        });
        _ = writeln!(text, "in short: {}", families.join(", "));
        text + "of limit: time at the ceiling that it meets first, with every byte from memory; caches can beat it"
    }
}

/// Operators as a figure groups them.
#[derive(Clone, Copy)]
enum Family {
    Products,
    Attention,
    Norms,
    Rest,
}

impl Family {
    const ALL: [Family; 4] = [Family::Products, Family::Attention, Family::Norms, Family::Rest];

    fn of(op: &Op) -> Self {
        match op {
            Op::MatMul
            | Op::Linear { .. }
            | Op::ResidualLinear { .. }
            | Op::LinearMaxPool
            | Op::LinearLayerNorm { .. }
            | Op::FeedForward(_)
            | Op::Experts { .. } => Family::Products,
            Op::Attention { .. }
            | Op::BatchedMatMul { .. }
            | Op::PositionScores { .. }
            | Op::AddRelativeBias(_)
            | Op::Mask(_)
            | Op::Softmax
            | Op::ScaleMaskSoftmax { .. } => Family::Attention,
            Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::HeadRmsNorm { .. }
            | Op::ResidualLayerNorm { .. }
            | Op::BiasResidualLayerNorm { .. } => Family::Norms,
            _ => Family::Rest,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Family::Products => "matrix products",
            Family::Attention => "attention",
            Family::Norms => "norms",
            Family::Rest => "the rest",
        }
    }
}
