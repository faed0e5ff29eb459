//! Asking for the pooled rows alone saves work, and changes nothing else.

use turbo_models::{
    Capacity, Checkpoint, Cpu, CpuOptions, DType, Encoded, Encoder, EncoderMemory, EncoderOptions,
    LayoutKind, ModelError, Outputs, PlannerConfig, Pooling, RowKind, Staging, Task,
    graph::{Program, dim::Extents, passes},
};

use crate::common::{data, golden_rows};

fn encoder(checkpoint: &Checkpoint, options: EncoderOptions) -> Encoder<Cpu> {
    Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), checkpoint, options).unwrap()
}

/// The bits are the same, though the last layer computes one row of each input if pooling needs no more.
#[test]
fn pooled_rows_are_the_same() {
    let poolings = [Pooling::Cls, Pooling::LastToken, Pooling::Mean];
    let fixtures = [
        "bert-odd",
        "mpnet-long",
        "deberta-own",
        "deberta-long",
        "jina-base",
        "jina-code",
        "modernbert-base",
        "nomic-experts",
        "qwen3-base",
        "gemma3-base",
    ];
    for fixture in fixtures {
        let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
        let rows = golden_rows(fixture, checkpoint.config().num_hidden_layers);
        let inputs: Vec<Encoded> = rows.into_iter().map(|row| row.input).collect();
        for layout in [LayoutKind::Packed, LayoutKind::Padded] {
            for (pooling, dtype) in poolings.iter().flat_map(|p| DType::ALL.map(|dtype| (*p, dtype))) {
                let options =
                    EncoderOptions { layout, dtype, task: pooling.into(), ..EncoderOptions::of(&checkpoint) };
                let mut of_this_batch = encoder(&checkpoint, options.clone());
                let for_this_batch = pooled_rows_of_a_run_for_them(&mut of_this_batch, &inputs);
                let pooled = EncoderOptions { outputs: Outputs::Pooled, ..options.clone() };
                let [all, pooled] = [options, pooled]
                    .map(|options| encoder(&checkpoint, options).embed_batch(&inputs).unwrap());
                assert!(all == pooled, "{fixture}, {layout:?}, {pooling:?}, {dtype}: other bits");
                assert!(
                    all == for_this_batch,
                    "{fixture}, {layout:?}, {pooling:?}, {dtype}: other bits of a batch"
                );
            }
        }
    }
}

fn pooled_rows_of_a_run_for_them(encoder: &mut Encoder<Cpu>, inputs: &[Encoded]) -> Vec<Vec<f32>> {
    let mut batch = Staging::new();
    inputs.iter().for_each(|input| batch.push(&input.input_ids, &input.token_type_ids).unwrap());
    encoder.run_for(&batch, [RowKind::Pooled], || true).unwrap();
    let refused = encoder.tokens(0, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "output \"last_hidden_state\" was not computed: add it to the outputs that the batch is run for"
    );
    let row = |sequence| {
        let mut row = Vec::new();
        encoder.pooled(sequence, &mut row).unwrap();
        row
    };
    (0..inputs.len()).map(row).collect()
}

/// Behind the last attention, one token of each input is computed if pooling reads no more; for the mean, all tokens
/// are.
#[test]
fn pooling_one_token_saves_the_last_feed_forward_of_the_others() {
    let fixtures = [
        "albert-base",
        "bert-base",
        "camembert-base",
        "deberta-base",
        "distilbert-base",
        "electra-base",
        "gte-base",
        "jina-base",
        "jina-code",
        "modernbert-base",
        "mpnet-base",
        "nomic-base",
        "nomic-experts",
        "qwen3-base",
        "qwen2-base",
        "mistral-base",
        "llama-base",
        "gemma3-base",
        "roberta-base",
        "xlm-roberta-base",
    ];
    let extents = Extents::of(&[30, 2, 17]);
    let others = (extents.total_tokens - extents.batch_size) as u64;
    for fixture in fixtures {
        let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
        let cost = |pooling: Pooling, outputs| {
            let graph = checkpoint.graph_with(pooling, outputs).unwrap();
            let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
            program.graph().total_cost(&extents)
        };
        let config = checkpoint.config();
        // two products at least, and one with the contexts
        let saved = (4 * config.intermediate_size + 2 * config.hidden_size) * config.hidden_size;
        for pooling in [Pooling::Cls, Pooling::LastToken] {
            let [all, pooled] = [Outputs::All, Outputs::Pooled].map(|outputs| cost(pooling, outputs));
            assert!(
                pooled.flops + others * saved as u64 <= all.flops,
                "{fixture}, {pooling:?}: {} operations of {}",
                pooled.flops,
                all.flops
            );
        }
        assert_eq!(cost(Pooling::Mean, Outputs::All), cost(Pooling::Mean, Outputs::Pooled), "{fixture}");
    }
}

#[test]
fn rows_of_tokens_are_not_there() {
    let checkpoint = Checkpoint::open(&data("bert-base")).unwrap();
    let options = EncoderOptions { outputs: Outputs::Pooled, ..EncoderOptions::of(&checkpoint) };
    let mut encoder = encoder(&checkpoint, options);
    assert_eq!((encoder.pooled_len(), encoder.token_len()), (Some(32), None));
    encoder.embed_batch(&[Encoded { input_ids: vec![1, 2], token_type_ids: vec![] }]).unwrap();
    let error = encoder.tokens(0, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ModelError::Rows { rows: "token", .. }), "{error}");
}

/// A task with one kind of rows keeps it.
#[test]
fn tasks_without_pooled_rows_lose_nothing() {
    for (fixture, task) in [("bert-tokcls", Task::TokenClassification), ("bert-mlm", Task::MaskedLm)] {
        let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
        let [all, pooled] = [Outputs::All, Outputs::Pooled].map(|outputs| {
            let options = EncoderOptions { task, outputs, ..EncoderOptions::of(&checkpoint) };
            let encoder = encoder(&checkpoint, options);
            (encoder.pooled_len(), encoder.token_len(), encoder.selected_len())
        });
        assert_eq!(all, pooled, "{fixture}");
    }
}

/// A row of logits per selected token is not an activation, and larger than all activations.
#[test]
fn the_memory_of_a_reserved_encoder_has_its_outputs() {
    let checkpoint = Checkpoint::open(&data("bert-mlm")).unwrap();
    let options = EncoderOptions {
        task: Task::MaskedLm,
        planner: PlannerConfig { chunk_bytes: 4096, ..PlannerConfig::default() },
        ..EncoderOptions::of(&checkpoint)
    };
    let mut encoder = encoder(&checkpoint, options);
    let bytes = |encoder: &Encoder<Cpu>| {
        let EncoderMemory { footprint_bytes, output_bytes, .. } = encoder.memory();
        (footprint_bytes, output_bytes)
    };
    assert_eq!(bytes(&encoder), (0, 0));
    let capacity = Capacity { batch_size: 4, total_tokens: 64, max_seq_len: 24, selected_rows: 48 };
    encoder.reserve(capacity).unwrap();
    let reserved = bytes(&encoder);
    assert_eq!(reserved.1, 4 * 48 * checkpoint.config().vocab_size);
    let planned = encoder.planned_bytes(capacity);
    // other buckets may need a little more room than the chunks of the largest have
    let held = reserved.0 + reserved.1;
    assert!(held >= planned && held < 2 * planned, "{held} bytes are held, {planned} planned");

    let mut batch = Staging::new();
    batch.push(&[1; 24], &[]).unwrap();
    batch.select(&[3, 23]).unwrap();
    encoder.run(&batch).unwrap();
    assert_eq!(bytes(&encoder), reserved);
}
