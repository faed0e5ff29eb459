//! On the CPU the bits of an answer are those of the input alone: with any batch mates, any number of threads.

use std::{cell::RefCell, num::NonZeroUsize};

use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, Isa, LayoutKind, Pooling, Staging,
};

use crate::common::data;

/// Hidden size 96 in heads of 32, intermediate size 200: no multiple of every vector width.
const FIXTURE: &str = "bert-odd";

/// One encoder per number of threads.
fn encoders(checkpoint: &Checkpoint, isa: Isa, layout: LayoutKind) -> Vec<Encoder<Cpu>> {
    let encoder = |threads| {
        let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(threads), isa: Some(isa) }).unwrap();
        let options = EncoderOptions { layout, task: Pooling::Mean.into(), ..EncoderOptions::of(checkpoint) };
        Encoder::new(cpu, checkpoint, options).unwrap()
    };
    [1, 2, 3].map(encoder).into()
}

/// The bits of the pooled vector and of every token's, for each input of one batch.
fn answers(encoder: &mut Encoder<Cpu>, batch: &[Encoded]) -> Vec<Vec<u32>> {
    let mut staging = Staging::new();
    for input in batch {
        staging.push(&input.input_ids, &input.token_type_ids).unwrap();
    }
    encoder.run(&staging).unwrap();
    let mut answer = |sequence| {
        let mut values = Vec::new();
        encoder.pooled(sequence, &mut values).unwrap();
        encoder.tokens(sequence, &mut values).unwrap();
        assert_eq!(values.len(), (1 + batch[sequence].input_ids.len()) * encoder.hidden_size());
        values.into_iter().map(f32::to_bits).collect()
    };
    (0..batch.len()).map(&mut answer).collect()
}

fn inputs(vocab_size: u32, limit: usize) -> impl Strategy<Value = Encoded> {
    vec((0..vocab_size, 0_u32..2), 1..=limit).prop_map(|tokens| {
        let (input_ids, token_type_ids) = tokens.into_iter().unzip();
        Encoded { input_ids, token_type_ids }
    })
}

fn bits_do_not_depend_on_company(layout: LayoutKind) {
    let checkpoint = Checkpoint::open(&data(FIXTURE)).unwrap();
    let limits = checkpoint.limits();
    let batches = vec(inputs(limits.vocab_size as u32, limits.max_input_length), 1..10);
    for isa in Isa::available() {
        let encoders = RefCell::new(encoders(&checkpoint, isa, layout));
        let test = |batch: Vec<Encoded>| {
            let mut encoders = encoders.borrow_mut();
            let alone: Vec<Vec<u32>> =
                batch.chunks(1).map(|input| answers(&mut encoders[0], input).remove(0)).collect();
            for (index, encoder) in encoders.iter_mut().enumerate() {
                let threads = index + 1;
                for (sequence, (together, alone)) in answers(encoder, &batch).iter().zip(&alone).enumerate() {
                    prop_assert!(together == alone, "{isa}, {threads} threads, sequence {sequence}");
                }
            }
            Ok(())
        };
        let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
        TestRunner::new(config).run(&batches, test).unwrap();
    }
}

#[test]
fn packed() {
    bits_do_not_depend_on_company(LayoutKind::Packed);
}

#[test]
fn padded() {
    bits_do_not_depend_on_company(LayoutKind::Padded);
}
