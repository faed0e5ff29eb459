//! Asking for the pooled rows alone saves work, and changes nothing else.

use turbo_models::{
    Checkpoint, Cpu, CpuOptions, DType, Encoded, Encoder, EncoderOptions, LayoutKind, ModelError, Outputs,
    Pooling, Task,
};

use crate::common::{data, golden_rows};

fn encoder(checkpoint: &Checkpoint, options: EncoderOptions) -> Encoder<Cpu> {
    Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), checkpoint, options).unwrap()
}

/// The same bits, though the last layer computes one row of each input where pooling needs no more.
#[test]
fn pooled_rows_are_the_same() {
    let poolings = [Pooling::Cls, Pooling::LastToken, Pooling::Mean];
    for fixture in ["bert-odd", "mpnet-long", "modernbert-base", "qwen3-base"] {
        let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
        let rows = golden_rows(fixture, checkpoint.config().num_hidden_layers);
        let inputs: Vec<Encoded> = rows.into_iter().map(|row| row.input).collect();
        for layout in [LayoutKind::Packed, LayoutKind::Padded] {
            for (pooling, dtype) in poolings.iter().flat_map(|p| DType::ALL.map(|dtype| (*p, dtype))) {
                let options =
                    EncoderOptions { layout, dtype, task: pooling.into(), ..EncoderOptions::of(&checkpoint) };
                let pooled = EncoderOptions { outputs: Outputs::Pooled, ..options.clone() };
                let [all, pooled] = [options, pooled]
                    .map(|options| encoder(&checkpoint, options).embed_batch(&inputs).unwrap());
                assert!(all == pooled, "{fixture}, {layout:?}, {pooling:?}, {dtype}: other bits");
            }
        }
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
