//! Runs: bits, buckets, chunks, and what happens to bad batches.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use std::{borrow::Cow, error::Error};

use common::{NamedNoise, SMALL, batch, cpu, encoder, on_cpu, on_threads, sequences};
use proptest::prelude::*;
use turbo_graph::{
    Capacity, Executor, ExecutorConfig, GraphBuilder, GraphError, Input, LayoutKind, OutputId, PlannerConfig,
    Policy, Pooling, Program, Rhs, Staging, WeightSource, dim::Extents, memory, passes,
};
use turbo_kernels::Cpu;

fn executor(layout: LayoutKind, threads: usize, config: ExecutorConfig) -> Executor<Cpu> {
    let program = Program::compile(&encoder(SMALL), layout, passes::ALL).unwrap();
    on_threads(threads, program, config)
}

/// The capacity that exactly holds a batch of these lengths.
fn capacity(lens: &[usize]) -> Capacity {
    let max_seq_len = *lens.iter().max().unwrap();
    Capacity { batch_size: lens.len(), total_tokens: lens.iter().sum(), max_seq_len, selected_rows: 0 }
}

fn embed(executor: &mut Executor<Cpu>, sequences: &[Vec<u32>]) -> Vec<Vec<f32>> {
    executor.run(&batch(sequences)).unwrap();
    let (hidden, pooled) =
        (executor.output("last_hidden_state").unwrap(), executor.output("pooled").unwrap());
    (0..sequences.len())
        .map(|sequence| {
            let mut values = Vec::new();
            executor.read(hidden, sequence, &mut values).unwrap();
            executor.read(pooled, sequence, &mut values).unwrap();
            values
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_bits_of_a_sequence_do_not_depend_on_its_batch(
        lens in prop::collection::vec(1_usize..=64, 1..7), threads in 1_usize..=3, padded in any::<bool>(),
    ) {
        let layout = if padded { LayoutKind::Padded } else { LayoutKind::Packed };
        let ids = sequences(&lens, SMALL.vocab_size);
        let together = embed(&mut executor(layout, threads, ExecutorConfig::default()), &ids);
        let mut alone = executor(LayoutKind::Packed, 1, ExecutorConfig::default());
        for (ids, together) in ids.iter().zip(&together) {
            let alone = &embed(&mut alone, std::slice::from_ref(ids))[0];
            prop_assert!(alone.iter().map(|v| v.to_bits()).eq(together.iter().map(|v| v.to_bits())));
        }
    }
}

#[test]
fn within_a_reserved_capacity_no_chunk_is_added() {
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let planner = PlannerConfig { chunk_bytes: 4096, ..PlannerConfig::default() };
        let mut executor = executor(layout, 1, planner.into());
        executor
            .reserve(Capacity { batch_size: 8, total_tokens: 128, max_seq_len: 64, selected_rows: 0 })
            .unwrap();
        let reserved = executor.footprint_bytes();
        assert!(reserved > 0);
        for lens in [&[1][..], &[64], &[64, 64], &[1; 8], &[16; 8], &[3, 50, 7]] {
            embed(&mut executor, &sequences(lens, SMALL.vocab_size));
            assert_eq!(executor.footprint_bytes(), reserved, "{lens:?}");
        }
    }
}

/// With the paper's policy and no kept bindings, memory follows the length of the request.
#[test]
fn the_papers_policy_gives_chunks_back() {
    let planner = PlannerConfig { policy: Policy::Paper, chunk_bytes: 4096, ..PlannerConfig::default() };
    let mut executor = executor(LayoutKind::Packed, 1, ExecutorConfig { planner, cached_bindings: 0 });
    let mut footprint = |len| {
        embed(&mut executor, &sequences(&[len], SMALL.vocab_size));
        executor.footprint_bytes()
    };
    let (short, long, short_again) = (footprint(4), footprint(64), footprint(4));
    assert!(short < long && short_again < long, "{short} {long} {short_again}");
}

#[test]
fn a_full_cache_of_bindings_starts_over() {
    let config = ExecutorConfig { cached_bindings: 2, ..ExecutorConfig::default() };
    let (mut small, mut large) =
        (executor(LayoutKind::Packed, 1, config), executor(LayoutKind::Packed, 1, ExecutorConfig::default()));
    for len in [1, 20, 40, 60, 20, 1, 33] {
        let ids = sequences(&[len], SMALL.vocab_size);
        assert_eq!(embed(&mut small, &ids), embed(&mut large, &ids));
    }
}

#[test]
fn bad_batches_are_errors_and_the_next_one_runs() {
    let mut executor = executor(LayoutKind::Packed, 1, ExecutorConfig::default());
    let good = sequences(&[5], SMALL.vocab_size);
    let expected = embed(&mut executor, &good);

    assert!(matches!(executor.run(&Staging::new()), Err(GraphError::EmptyBatch)));
    let mut batch = Staging::new();
    assert!(matches!(batch.push(&[], &[]), Err(GraphError::EmptyBatch)));
    assert!(matches!(batch.push(&[1, 2], &[0]), Err(GraphError::TokenTypes { expected: 2, got: 1 })));
    batch.push(&[49, 50], &[]).unwrap();
    let outside = executor.run(&batch).unwrap_err();
    assert!(outside.to_string().contains("index 50 is outside the table of 50 rows"), "{outside}");

    assert_eq!(embed(&mut executor, &good), expected);
    let pooled = executor.output("pooled").unwrap();
    let missing = executor.read(pooled, 1, &mut Vec::new()).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "expected one of the 1 sequences of the last batch, counted from 0, got 1"
    );
}

#[test]
fn a_missing_weight_is_named() {
    struct Without(&'static str);
    impl WeightSource for Without {
        fn weight(
            &self,
            name: &str,
            shape: &[usize],
        ) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>> {
            if name == self.0 {
                return Err("no such tensor".into());
            }
            NamedNoise.weight(name, shape).map(|values| values.into_owned().into())
        }
    }
    let program = Program::compile(&encoder(SMALL), LayoutKind::Packed, passes::ALL).unwrap();
    let refused = Executor::new(cpu(), program, &Without("layer.1.key.bias"), PlannerConfig::default());
    let refused = refused.err().expect("a weight is missing");
    assert_eq!(refused.to_string(), "weight layer.1.key.bias: no such tensor");
}

/// The memory held is what the plans say: for one batch the chunks of its plan, and the rows of both outputs.
#[test]
fn the_footprint_is_that_of_the_plan() {
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let planner = PlannerConfig { chunk_bytes: 4096, ..PlannerConfig::default() };
        let mut executor = executor(layout, 1, ExecutorConfig { planner, cached_bindings: 0 });
        assert_eq!((executor.footprint_bytes(), executor.output_bytes()), (0, 0));
        let lens = [40, 40, 40];
        embed(&mut executor, &sequences(&lens, SMALL.vocab_size));
        let planned = memory::plan_batches(executor.program(), &[Extents::of(&lens)], planner).unwrap();
        assert_eq!(executor.footprint_bytes(), planned[0].plan.footprint(), "{layout:?}");
        assert_eq!(executor.output_bytes(), 4 * (3 * 40 + 3) * SMALL.hidden_size, "{layout:?}");
        assert_eq!(executor.planned_bytes(capacity(&lens)).unwrap(), executor.footprint_bytes());
        assert_eq!(executor.output_bytes_of(capacity(&lens)), executor.output_bytes());
    }
}

#[test]
fn planned_bytes_grow_with_the_batch_and_cost_nothing() {
    let executor =
        executor(LayoutKind::Packed, 1, PlannerConfig { chunk_bytes: 256, ..Default::default() }.into());
    let planned = |tokens| executor.planned_bytes(capacity(&[tokens])).unwrap();
    assert!(planned(16) < planned(64) && planned(64) < planned(512));
    assert_eq!(executor.footprint_bytes(), 0);
}

/// After a failed run neither its results can be read nor those of the batch before.
#[test]
fn after_a_failed_run_there_is_nothing_to_read() {
    let mut executor = executor(LayoutKind::Packed, 1, ExecutorConfig::default());
    embed(&mut executor, &sequences(&[5], SMALL.vocab_size));
    let mut batch = Staging::new();
    batch.push(&[1, 2, 50], &[]).unwrap();
    executor.run(&batch).unwrap_err();
    let pooled = executor.output("pooled").unwrap();
    let missing = executor.read(pooled, 0, &mut Vec::new()).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "expected one of the 0 sequences of the last batch, counted from 0, got 0"
    );

    embed(&mut executor, &sequences(&[5], SMALL.vocab_size));
    executor.reserve(Capacity { batch_size: 1, total_tokens: 8, max_seq_len: 8, selected_rows: 0 }).unwrap();
    let missing = executor.read(pooled, 0, &mut Vec::new()).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "expected one of the 0 sequences of the last batch, counted from 0, got 0"
    );
}

/// A run can be stopped between any two layers, before the first and after the last. A stopped run has no answer, and
/// the next batch runs.
#[test]
fn a_batch_can_be_stopped_between_layers() {
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let mut executor = executor(layout, 2, ExecutorConfig::default());
        let ids = sequences(&[5, 40], SMALL.vocab_size);
        let expected = embed(&mut executor, &ids);
        let pooled = executor.output("pooled").unwrap();
        let batch = batch(&ids);
        let questions = SMALL.num_layers as usize + 1;
        for allowed in 0..=questions {
            let mut asked = 0;
            let run = executor.run_while(&batch, || {
                asked += 1;
                asked <= allowed
            });
            match run {
                Ok(()) => assert_eq!((asked, allowed), (questions, questions)),
                Err(GraphError::Stopped) => {
                    assert_eq!(asked, allowed + 1);
                    let missing = executor.read(pooled, 0, &mut Vec::new()).unwrap_err();
                    assert_eq!(
                        missing.to_string(),
                        "expected one of the 0 sequences of the last batch, counted from 0, got 0"
                    );
                }
                Err(other) => panic!("{other}"),
            }
            assert_eq!(embed(&mut executor, &ids), expected);
        }
    }
}

/// Asking for memory that no machine has is an error, and the executor goes on with what it can get.
#[test]
fn a_capacity_beyond_all_memory_is_refused() {
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        for tokens in [1 << 58, 1 << 60, usize::MAX / 4, usize::MAX] {
            let mut executor = executor(layout, 1, ExecutorConfig::default());
            let good = sequences(&[5, 9], SMALL.vocab_size);
            let expected = embed(&mut executor, &good);
            let capacity =
                Capacity { batch_size: 2, total_tokens: tokens, max_seq_len: tokens, selected_rows: 0 };
            let refused = executor.reserve(capacity).unwrap_err();
            assert!(refused.to_string().starts_with("out of device memory"), "{refused}");
            assert!(executor.planned_bytes(capacity).is_err());
            assert_eq!(embed(&mut executor, &good), expected);
        }
    }
}

/// Two sequences of 64 tokens have 128, whatever is reserved for; and reserved bindings stay, however few are kept
/// otherwise.
#[test]
fn rows_that_no_batch_can_have_take_nothing() {
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let footprint = |total_tokens| {
            let config = ExecutorConfig { cached_bindings: 1, ..ExecutorConfig::default() };
            let mut executor = executor(layout, 1, config);
            let capacity = Capacity { batch_size: 2, total_tokens, max_seq_len: 64, selected_rows: 0 };
            executor.reserve(capacity).unwrap();
            (executor.footprint_bytes(), executor.planned_bytes(capacity).unwrap())
        };
        assert_eq!(footprint(16_384), footprint(128), "{layout:?}");
    }
}

/// Selected tokens take no memory if the program selects none, even as many as can be counted.
#[test]
fn a_program_that_selects_nothing_needs_no_room_for_selected_rows() {
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let within = capacity(&[5, 9]);
        let selected = Capacity { selected_rows: usize::MAX, ..within };
        let footprint = |capacity| {
            let mut executor = executor(layout, 1, ExecutorConfig::default());
            executor.reserve(capacity).unwrap();
            (executor.footprint_bytes(), executor.planned_bytes(capacity).unwrap())
        };
        assert_eq!(footprint(selected), footprint(within), "{layout:?}");
    }
}

/// Without kept bindings, a batch is planned for exactly its own sizes.
#[test]
fn without_kept_bindings_nothing_is_rounded_up() {
    let planner =
        PlannerConfig { policy: Policy::Paper, chunk_bytes: 256, scale: 1.0, ..PlannerConfig::default() };
    let planned = |cached_bindings, tokens| {
        let executor = executor(LayoutKind::Packed, 1, ExecutorConfig { planner, cached_bindings });
        executor.planned_bytes(capacity(&[tokens])).unwrap()
    };
    assert!(planned(0, 40) < planned(0, 41) && planned(0, 41) < planned(0, 42));
    assert_eq!(planned(1, 40), planned(1, 42));
}

/// Scores of 2²⁰ × 2²⁰ for 64 heads exceed any address space: the planner grows a chunk that the device cannot
/// allocate, and both start over.
#[test]
fn chunks_that_cannot_be_had_leave_no_trace() {
    let mut g = GraphBuilder::new("wide scores");
    let (table, ids) = (g.weight("table", &[10, 64]), g.input(Input::InputIds));
    let x = g.embed(table, ids).unwrap();
    let heads = g.split_heads(x, 64).unwrap();
    let scores = g.batched_matmul(heads, heads, Rhs::Transposed).unwrap();
    let context = g.batched_matmul(scores, heads, Rhs::Normal).unwrap();
    let rows = g.merge_heads(context).unwrap();
    let pooled = g.pool(rows, Pooling::Mean).unwrap();
    g.output("pooled", pooled);
    let program = Program::compile(&g.finish().unwrap(), LayoutKind::Padded, &[]).unwrap();
    let mut executor = on_cpu(program);
    let answer = |executor: &mut Executor<Cpu>| {
        let (mut batch, mut values) = (Staging::new(), Vec::new());
        batch.push(&[1, 2, 3], &[]).unwrap();
        executor.run(&batch).unwrap();
        executor.read(pooled_of(executor), 0, &mut values).unwrap();
        values
    };
    let expected = answer(&mut executor);
    let footprint = executor.footprint_bytes();
    let capacity = Capacity { batch_size: 1, total_tokens: 1 << 20, max_seq_len: 1 << 20, selected_rows: 0 };
    let refused = executor.reserve(capacity).unwrap_err();
    assert!(matches!(refused, GraphError::Device(_)), "{refused}");
    assert_eq!(executor.footprint_bytes(), 0);
    assert_eq!(answer(&mut executor), expected);
    assert_eq!(executor.footprint_bytes(), footprint);
}

fn pooled_of(executor: &Executor<Cpu>) -> OutputId {
    executor.output("pooled").unwrap()
}

/// The largest buckets are bound first, so that all others find room in their chunks.
#[test]
fn all_buckets_together_take_what_the_largest_takes() {
    for layout in [LayoutKind::Packed, LayoutKind::Padded] {
        let planner = PlannerConfig { chunk_bytes: 4096, ..PlannerConfig::default() };
        let mut executor = executor(layout, 1, planner.into());
        let reserved = Capacity { batch_size: 32, total_tokens: 1024, max_seq_len: 64, selected_rows: 0 };
        executor.reserve(reserved).unwrap();
        let planned = |lens: &[usize]| executor.planned_bytes(capacity(lens)).unwrap();
        let largest = planned(&[32; 32]).max(planned(&[64; 16]));
        // padded, 29 sequences of 33 tokens are planned as 32 of 48: half as much again
        let reserved = executor.footprint_bytes();
        assert!(
            reserved <= largest + largest / 2 + 4096,
            "{layout:?}: {reserved}, the largest takes {largest}"
        );
    }
}

/// An output that is neither a row per token nor one per sequence is read whole, a block per sequence.
#[test]
fn heads_can_be_read_too() {
    let mut g = GraphBuilder::new("heads");
    let (table, ids) = (g.weight("table", &[10, 4]), g.input(Input::InputIds));
    let x = g.embed(table, ids).unwrap();
    let heads = g.split_heads(x, 2).unwrap();
    g.output("rows", x);
    g.output("heads", heads);
    let program = Program::compile(&g.finish().unwrap(), LayoutKind::Padded, &[]).unwrap();
    let mut executor = on_cpu(program);
    executor.run(&batch(&sequences(&[1, 3], 10))).unwrap();
    let (mut rows, mut heads) = (Vec::new(), Vec::new());
    executor.read(executor.output("rows").unwrap(), 1, &mut rows).unwrap();
    executor.read(executor.output("heads").unwrap(), 1, &mut heads).unwrap();
    let column = |head: usize, row: usize, column: usize| rows[row * 4 + head * 2 + column];
    let expected = (0..2).flat_map(|h| (0..3).flat_map(move |r| (0..2).map(move |c| (h, r, c))));
    assert_eq!(heads, expected.map(|(h, r, c)| column(h, r, c)).collect::<Vec<_>>());
}
