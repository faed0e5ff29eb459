//! From a folder and a text to logits, for every task: the logits are those of the reference's pipelines. What is made
//! of them is tested in `tasks`.

use std::fs;

use serde_json::Value;
use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, Staging, Task, Text, TextTokenizer,
    Truncation, tasks::mask_positions,
};

use crate::common::{data, max_difference};

/// The pipelines compute in float32, and sum in a different order.
const TOLERANCE: f32 = 2e-5;

/// The folder `fixture`, opened and compiled for its own task, and its golden cases.
fn open(fixture: &str) -> (Checkpoint, Encoder<Cpu>, Vec<Value>) {
    let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
    let options = EncoderOptions::of(&checkpoint);
    let encoder = Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), &checkpoint, options).unwrap();
    let golden: Value =
        serde_json::from_slice(&fs::read(data(fixture).join("golden.json")).unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    (checkpoint, encoder, cases)
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn batch_of(inputs: &[Encoded]) -> Staging {
    let mut batch = Staging::new();
    for input in inputs {
        batch.push(&input.input_ids, &input.token_type_ids).unwrap();
    }
    batch
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32], of: &Value) {
    let difference = max_difference(got, expected);
    assert!(difference < TOLERANCE, "{of}: off by {difference}");
}

fn tokenizer(checkpoint: &Checkpoint) -> &TextTokenizer {
    checkpoint.tokenizer().unwrap()
}

#[test]
fn logits_of_labels() {
    let (checkpoint, mut encoder, cases) = open("pipeline-classify");
    assert_eq!(checkpoint.task(), Some(Task::SequenceClassification));
    assert_eq!(checkpoint.labels(), ["LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"]);
    for case in cases {
        let texts: Vec<&str> =
            case["inputs"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        let text =
            if let [first, second] = texts[..] { Text::Pair(first, second) } else { Text::One(texts[0]) };
        let input = tokenizer(&checkpoint).encode(text, Truncation::Off).unwrap();
        encoder.run(&batch_of(&[input])).unwrap();
        let mut logits = Vec::new();
        encoder.pooled(0, &mut logits).unwrap();
        assert_close(&logits, &numbers(&case["logits"]), &case["inputs"]);
    }
}

#[test]
fn logits_of_tokens() {
    for kind in ["wordpiece", "roberta", "xlm-roberta"] {
        let (checkpoint, mut encoder, cases) = open(&format!("pipeline-entities-{kind}"));
        assert_eq!(checkpoint.task(), Some(Task::TokenClassification));
        assert_eq!(checkpoint.labels(), ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]);
        let encode = |case: &Value| {
            tokenizer(&checkpoint).encode(case["text"].as_str().unwrap(), Truncation::Off).unwrap()
        };
        let inputs: Vec<Encoded> = cases.iter().map(encode).collect();
        encoder.run(&batch_of(&inputs)).unwrap();
        for (sequence, case) in cases.iter().enumerate() {
            let mut logits = Vec::new();
            encoder.tokens(sequence, &mut logits).unwrap();
            assert_close(&logits, &numbers(&case["logits"]), &case["text"]);
        }
    }
}

#[test]
fn logits_of_starts_and_ends() {
    for kind in ["wordpiece", "roberta", "xlm-roberta"] {
        let (checkpoint, mut encoder, cases) = open(&format!("pipeline-answers-{kind}"));
        assert_eq!(checkpoint.task(), Some(Task::QuestionAnswering));
        for case in cases {
            let [max_len, stride] = ["max_len", "stride"].map(|field| case[field].as_u64().unwrap() as usize);
            let (question, context) = (case["question"].as_str().unwrap(), case["context"].as_str().unwrap());
            let windows = tokenizer(&checkpoint).windows(question, context, max_len, stride).unwrap();
            let inputs: Vec<Encoded> = windows.iter().map(|window| window.encoded()).collect();
            encoder.run(&batch_of(&inputs)).unwrap();
            for (sequence, expected) in case["windows"].as_array().unwrap().iter().enumerate() {
                let (starts, ends) = (numbers(&expected["start"]), numbers(&expected["end"]));
                let expected: Vec<f32> =
                    starts.iter().zip(&ends).flat_map(|(start, end)| [*start, *end]).collect();
                let mut logits = Vec::new();
                encoder.tokens(sequence, &mut logits).unwrap();
                assert_close(&logits, &expected, &case["question"]);
            }
        }
    }
}

#[test]
fn logits_of_masked_words() {
    for kind in ["wordpiece", "roberta"] {
        let (checkpoint, mut encoder, cases) = open(&format!("pipeline-fill-mask-{kind}"));
        assert_eq!(checkpoint.task(), Some(Task::MaskedLm));
        let (mask, _) = tokenizer(&checkpoint).mask_token().unwrap();
        for case in cases {
            let input =
                tokenizer(&checkpoint).encode(case["text"].as_str().unwrap(), Truncation::Off).unwrap();
            let masks: Vec<u32> =
                mask_positions(&input.input_ids, mask).into_iter().map(|place| place as u32).collect();
            let mut batch = batch_of(&[input]);
            batch.select(&masks).unwrap();
            encoder.run(&batch).unwrap();
            let mut logits = Vec::new();
            encoder.selected(0, &mut logits).unwrap();
            let expected: Vec<f32> = case["logits"].as_array().unwrap().iter().flat_map(numbers).collect();
            assert_close(&logits, &expected, &case["text"]);
        }
    }
}
