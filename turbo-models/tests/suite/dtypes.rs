//! What lower precision costs against f32, which the golden tests compare with the reference. Measured on every
//! instruction set of the machine, because each multiplies bf16 and bytes in its own way.

use std::fs;

use turbo_models::{
    Checkpoint, Cpu, CpuOptions, DType, Encoded, Encoder, EncoderOptions, Isa, Staging, Truncation,
};

use crate::{
    common::{data, golden_rows},
    golden::FIXTURES,
    minilm,
    similarity::{least_cosine, pairwise, spearman},
};

/// Least agreement that a dtype must keep with f32 in a sentence encoder.
struct Bounds {
    /// Of the two vectors of one text.
    cosine: f64,
    /// Of the similarities of all pairs of texts: their order is what a search shows.
    spearman: f64,
}

/// For all-MiniLM-L6-v2, over texts as people write them.
fn bounds(dtype: DType) -> Bounds {
    match dtype {
        DType::F32 => Bounds { cosine: 1.0, spearman: 1.0 },
        DType::Bf16 => Bounds { cosine: 0.9995, spearman: 0.999 },
        DType::Int8 => Bounds { cosine: 0.99, spearman: 0.99 },
    }
}

fn encoder(checkpoint: &Checkpoint, isa: Isa, dtype: DType) -> Encoder<Cpu> {
    let options = EncoderOptions { dtype, ..EncoderOptions::of(checkpoint) };
    let cpu = Cpu::new(CpuOptions { isa: Some(isa), ..CpuOptions::default() }).unwrap();
    Encoder::new(cpu, checkpoint, options).unwrap()
}

#[test]
fn real_sentences_keep_their_meaning() {
    let Some(folder) = minilm::folder() else { return };
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let tokenizer = checkpoint.tokenizer().unwrap();
    let sentences = fs::read_to_string(data("sentences.txt")).unwrap();
    let inputs: Vec<Encoded> =
        sentences.lines().map(|text| tokenizer.encode(text, Truncation::Right).unwrap()).collect();
    assert_eq!(inputs.len(), 200);

    for isa in Isa::available() {
        let embed = |dtype| encoder(&checkpoint, isa, dtype).embed_batch(&inputs).unwrap();
        let [f32, bf16, int8] = DType::ALL.map(embed);
        for (dtype, vectors) in [(DType::Bf16, bf16), (DType::Int8, int8)] {
            assert!(vectors != f32, "{isa}: {dtype} is not what was computed");
            let (cosine, order) =
                (least_cosine(&vectors, &f32), spearman(&pairwise(&vectors), &pairwise(&f32)));
            println!("{isa}, {dtype}: least cosine {cosine:.6}, Spearman {order:.6}");
            let bounds = bounds(dtype);
            assert!(cosine >= bounds.cosine, "{isa}, {dtype}: a cosine of {cosine}");
            assert!(order >= bounds.spearman, "{isa}, {dtype}: a rank correlation of {order}");
        }
    }
}

/// All rows that the task returns for `inputs`, as one list; every token is selected.
fn rows(checkpoint: &Checkpoint, isa: Isa, dtype: DType, inputs: &[Encoded]) -> Vec<f32> {
    let (mut encoder, mut staging) = (encoder(checkpoint, isa, dtype), Staging::new());
    for input in inputs {
        staging.push(&input.input_ids, &input.token_type_ids).unwrap();
        if encoder.selected_len().is_some() {
            let every_token: Vec<u32> = (0..input.input_ids.len() as u32).collect();
            staging.select(&every_token).unwrap();
        }
    }
    encoder.run(&staging).unwrap();
    let mut rows = Vec::new();
    for sequence in 0..inputs.len() {
        if encoder.pooled_len().is_some() {
            encoder.pooled(sequence, &mut rows).unwrap();
        }
        if encoder.token_len().is_some() {
            encoder.tokens(sequence, &mut rows).unwrap();
        }
        if encoder.selected_len().is_some() {
            encoder.selected(sequence, &mut rows).unwrap();
        }
    }
    rows
}

/// The length of the difference of two lists, relative to that of the second.
fn relative_error(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let square_sum = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
    let difference = square_sum(&mut got.iter().zip(expected).map(|(got, expected)| got - expected));
    (difference / square_sum(&mut expected.iter().copied())).sqrt()
}

/// How far bf16 and int8 may differ from f32, relative to the rows' length.
///
/// About twice what was measured: at most 0.028 and 0.070 for ModernBERT, and 0.026 and 0.047 for the gated BERTs
/// (Jina's), where the processor widens bf16. A wrong scale or zero point gives an error as large as the rows
/// themselves. If both factors of a gate have an error, their product has both. ELECTRA's words are told apart by
/// products of 8 columns, in which few errors cancel out.
fn family_bounds(model_type: &str, fixture: &str) -> (f32, f32) {
    match model_type {
        "bert" if fixture.starts_with("jina") => (0.06, 0.12),
        "bert" | "roberta" | "xlm-roberta" | "camembert" | "distilbert" => (0.025, 0.06),
        "electra" | "albert" | "mpnet" | "deberta-v2" => (0.025, 0.1),
        "nomic_bert" | "new" | "qwen3" | "qwen2" | "mistral" | "llama" | "gemma3_text" => (0.03, 0.1),
        "modernbert" => (0.06, 0.12),
        other => panic!("no bounds for {other}"),
    }
}

#[test]
fn every_family_and_head_stays_near_f32() {
    for fixture in FIXTURES {
        let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
        let golden = golden_rows(fixture, checkpoint.config().num_hidden_layers);
        let inputs: Vec<Encoded> = golden.into_iter().map(|row| row.input).collect();
        let (bf16, int8) = family_bounds(&checkpoint.config().model_type, fixture);
        for isa in Isa::available() {
            let f32 = rows(&checkpoint, isa, DType::F32, &inputs);
            for (dtype, bound) in [(DType::Bf16, bf16), (DType::Int8, int8)] {
                let error = relative_error(&rows(&checkpoint, isa, dtype, &inputs), &f32);
                assert!(error > 0.0, "{fixture} on {isa}: {dtype} is not what was computed");
                assert!(error < bound, "{fixture} on {isa}, {dtype}: off by {error}");
            }
        }
    }
}
