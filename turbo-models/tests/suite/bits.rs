//! On the CPU the bits of an answer depend on the input alone, whatever the other inputs of its batch and the number of
//! threads.

use std::{cell::RefCell, num::NonZeroUsize};

use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use turbo_models::{
    Checkpoint, Cpu, CpuOptions, DType, Encoded, Encoder, EncoderOptions, InputLimits, Isa, LayoutKind,
    Pooling, Staging, Task,
};

use crate::common::data;

/// A fixture and the task that is computed.
type Case = (&'static str, Task);

/// Hidden size 96 in heads of 32, intermediate size 200: no multiple of every vector width.
const ODD: Case = ("bert-odd", Task::Embedding { pooling: Pooling::Mean });

/// One encoder per number of threads.
fn encoders(
    checkpoint: &Checkpoint,
    isa: Isa,
    dtype: DType,
    layout: LayoutKind,
    task: Task,
) -> Vec<Encoder<Cpu>> {
    let encoder = |threads| {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: Some(isa) }).unwrap();
        let options = EncoderOptions { layout, task, dtype, ..EncoderOptions::of(checkpoint) };
        Encoder::new(cpu, checkpoint, options).unwrap()
    };
    [1, 2, 3].map(encoder).into()
}

/// The bits of every row that the task gives, for each input of one batch. Every other token is selected.
fn answers(encoder: &mut Encoder<Cpu>, batch: &[Encoded]) -> Vec<Vec<u32>> {
    let selected = |input: &Encoded| -> Vec<u32> { (0..input.input_ids.len() as u32).step_by(2).collect() };
    let mut staging = Staging::new();
    for input in batch {
        staging.push(&input.input_ids, &input.token_type_ids).unwrap();
        if encoder.selected_len().is_some() {
            staging.select(&selected(input)).unwrap();
        }
    }
    encoder.run(&staging).unwrap();
    let mut answer = |sequence: usize| {
        let (mut values, mut expected) = (Vec::new(), 0);
        if let Some(len) = encoder.pooled_len() {
            encoder.pooled(sequence, &mut values).unwrap();
            expected += len;
        }
        if let Some(len) = encoder.token_len() {
            encoder.tokens(sequence, &mut values).unwrap();
            expected += len * batch[sequence].input_ids.len();
        }
        if let Some(len) = encoder.selected_len() {
            encoder.selected(sequence, &mut values).unwrap();
            expected += len * selected(&batch[sequence]).len();
        }
        assert_eq!(values.len(), expected);
        values.into_iter().map(f32::to_bits).collect()
    };
    (0..batch.len()).map(&mut answer).collect()
}

fn inputs(limits: InputLimits) -> impl Strategy<Value = Encoded> {
    let types = limits.type_vocab_size.clamp(1, 2) as u32;
    vec((0..limits.vocab_size as u32, 0..types), 1..=limits.max_input_length).prop_map(|tokens| {
        let (input_ids, token_type_ids) = tokens.into_iter().unzip();
        Encoded { input_ids, token_type_ids }
    })
}

fn bits_do_not_depend_on_company((fixture, task): Case, layout: LayoutKind, cases: u32) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let batches = vec(inputs(checkpoint.limits()), 1..10);
    for (isa, dtype) in Isa::available().flat_map(|isa| DType::ALL.map(|dtype| (isa, dtype))) {
        let encoders = RefCell::new(encoders(&checkpoint, isa, dtype, layout, task));
        let test = |batch: Vec<Encoded>| {
            let mut encoders = encoders.borrow_mut();
            let alone: Vec<Vec<u32>> =
                batch.chunks(1).map(|input| answers(&mut encoders[0], input).remove(0)).collect();
            for (index, encoder) in encoders.iter_mut().enumerate() {
                let threads = index + 1;
                for (sequence, (together, alone)) in answers(encoder, &batch).iter().zip(&alone).enumerate() {
                    prop_assert!(
                        together == alone,
                        "{fixture}, {isa}, {dtype}, {threads} threads, sequence {sequence}"
                    );
                }
            }
            Ok(())
        };
        // the same kernels run whatever the products compute in, so fewer cases are enough
        let cases = if dtype == DType::F32 { cases } else { cases.div_ceil(4) };
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        TestRunner::new(config).run(&batches, test).unwrap();
    }
}

#[test]
fn packed() {
    bits_do_not_depend_on_company(ODD, LayoutKind::Packed, 24);
}

#[test]
fn padded() {
    bits_do_not_depend_on_company(ODD, LayoutKind::Padded, 24);
}

/// Masks, biases, positions, gates and heads, each in a model that has them.
#[test]
fn every_family_and_task() {
    let embedding = |pooling| Task::Embedding { pooling };
    let cases = [
        ("mpnet-base", embedding(Pooling::Max)),
        ("deberta-own", embedding(Pooling::Cls)),
        ("deberta-tokcls", Task::TokenClassification),
        ("modernbert-base", embedding(Pooling::Cls)),
        ("nomic-base", embedding(Pooling::Mean)),
        ("nomic-experts", embedding(Pooling::Mean)),
        ("gte-base", embedding(Pooling::MeanSqrtLen)),
        ("jina-base", embedding(Pooling::Mean)),
        ("jina-code", embedding(Pooling::Cls)),
        ("qwen3-wide", embedding(Pooling::LastToken)),
        ("qwen2-full", embedding(Pooling::LastToken)),
        ("llama-base", embedding(Pooling::LastToken)),
        ("gemma3-base", embedding(Pooling::Mean)),
        ("modernbert-mean", Task::SequenceClassification),
        ("electra-tokcls", Task::TokenClassification),
        ("albert-qa", Task::QuestionAnswering),
        ("roberta-mlm", Task::MaskedLm),
        ("bert-mlm", Task::SparseEmbedding),
    ];
    for case in cases {
        for layout in [LayoutKind::Packed, LayoutKind::Padded] {
            bits_do_not_depend_on_company(case, layout, 4);
        }
    }
}
