//! What only one family does.

use turbo_kernels::{Cpu, CpuOptions};
use turbo_models::{Checkpoint, Encoded, Encoder, EncoderOptions};

use crate::common::data;

fn open(fixture: &str) -> (Checkpoint, Encoder<Cpu>) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let options = EncoderOptions::of(&checkpoint);
    let encoder = Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), &checkpoint, options).unwrap();
    (checkpoint, encoder)
}

#[test]
fn distilbert_ignores_token_types() {
    let (_, mut encoder) = open("distilbert-base");
    let mut vector = |token_type_ids: &[u32]| {
        let input = Encoded { input_ids: vec![7, 8, 9], token_type_ids: token_type_ids.to_vec() };
        encoder.embed_batch(&[input]).unwrap()
    };
    assert_eq!(vector(&[0, 1, 9]), vector(&[]));
}
