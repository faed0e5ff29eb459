//! Real text in, right vectors out: a whole model folder behind the routes, against its golden answers.

use std::{path::Path, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};
use turbo_models::{Cpu, CpuOptions};
use turbo_serve::{
    engine::{Engine, EngineConfig, Model, OpenOptions},
    http::{HttpOptions, Metrics, router},
};

use crate::{
    fake::{Running, assert_tei},
    statuses::assert_openai,
};

/// The golden values are float64; ours are f32, through two layers, of a size around 2: a few units in the last place.
const TOLERANCE: f32 = 2e-6;

#[derive(Deserialize)]
struct Golden {
    sentences: Vec<Sentence>,
}

#[derive(Deserialize)]
pub(crate) struct Sentence {
    pub(crate) text: String,
    pub(crate) input_ids: Vec<u32>,
    /// Mean of the token rows.
    mean: Vec<f32>,
    /// The same, normalised.
    embedding: Vec<f32>,
}

pub(crate) fn start() -> (Running, Vec<Sentence>) {
    start_with(|model| model)
}

/// Starts what `change` makes of the model.
pub(crate) fn start_with(change: impl FnOnce(Model) -> Model) -> (Running, Vec<Sentence>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data/tiny-sentence");
    let golden: Golden = serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let metrics = Metrics::install().unwrap();
    let device = Cpu::new(CpuOptions::default()).unwrap();
    let model = Model::open(&folder, device, OpenOptions::default()).unwrap();
    let config = EngineConfig { warm_up: Duration::from_millis(50), ..EngineConfig::default() };
    let engine = Engine::start(change(model), &config).unwrap();
    let server = Running::start(router(Arc::new(engine), metrics, HttpOptions::default()));
    (server, golden.sentences)
}

#[track_caller]
fn assert_near(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let far = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far <= TOLERANCE, "{what}: {far} apart, at most {TOLERANCE} expected");
}

fn rows(value: &Value) -> Vec<Vec<f32>> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn text_and_ids_become_the_golden_vectors() {
    let (server, sentences) = start();
    let texts: Vec<&str> = sentences.iter().map(|sentence| sentence.text.as_str()).collect();
    let ids: Vec<&[u32]> = sentences.iter().map(|sentence| sentence.input_ids.as_slice()).collect();
    for (what, inputs) in [("text", json!(texts)), ("ids", json!(ids))] {
        let reply = server.post("/embed", json!({ "inputs": inputs }).to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let tokens: usize = ids.iter().map(|ids| ids.len()).sum();
        assert_eq!(reply.header("x-compute-tokens").parse(), Ok(tokens), "{what}");
        let raw = server.post("/embed", json!({ "inputs": inputs, "normalize": false }).to_string());
        for (row, sentence) in rows(&reply.json()).iter().zip(&sentences) {
            assert_near(&format!("{what} {:?}", sentence.text), row, &sentence.embedding);
        }
        for (row, sentence) in rows(&raw.json()).iter().zip(&sentences) {
            assert_near(&format!("{what} {:?}, not normalised", sentence.text), row, &sentence.mean);
        }
        // the same bytes alone as among others: no bit depends on batch mates
        for (index, input) in inputs.as_array().unwrap().iter().enumerate() {
            let alone = server.post("/embed", json!({ "inputs": input }).to_string());
            assert_eq!(rows(&alone.json())[0], rows(&reply.json())[index], "{what} {input}");
        }
    }
}

#[test]
fn token_rows_average_to_the_pooled_row() {
    let (server, sentences) = start();
    for sentence in &sentences {
        let reply = server.post("/embed_all", json!({ "inputs": sentence.text }).to_string());
        let tokens = rows(&reply.json()[0]);
        assert_eq!(tokens.len(), sentence.input_ids.len(), "{:?}", sentence.text);
        let mean: Vec<f32> = (0..sentence.mean.len())
            .map(|column| tokens.iter().map(|row| row[column]).sum::<f32>() / tokens.len() as f32)
            .collect();
        assert_near(&sentence.text, &mean, &sentence.mean);
    }
}

#[test]
fn openai_gives_the_same_vectors() {
    let (server, sentences) = start();
    let texts: Vec<&str> = sentences.iter().map(|sentence| sentence.text.as_str()).collect();
    let body = json!({ "input": texts, "model": "any", "encoding_format": "base64" });
    let reply = server.post("/v1/embeddings", body.to_string()).json();
    assert_eq!(reply["model"], "tiny-sentence");
    let tokens: usize = sentences.iter().map(|sentence| sentence.input_ids.len()).sum();
    assert_eq!(reply["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
    for (index, sentence) in sentences.iter().enumerate() {
        let bytes = STANDARD.decode(reply["data"][index]["embedding"].as_str().unwrap()).unwrap();
        let row: Vec<f32> =
            bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_near(&sentence.text, &row, &sentence.embedding);
    }
}

#[test]
fn limits_are_those_of_the_folder() {
    let (server, _) = start();
    let info = server.get("/info").json();
    assert_eq!((&info["max_input_length"], &info["model_dtype"]), (&json!(48), &json!("float32")));
    assert_eq!(info["model_type"], json!({"embedding": {"pooling": "mean"}}));
    let long = "hello ".repeat(60);
    let reply = server.post("/embed", json!({ "inputs": long, "truncate": false }).to_string());
    assert_tei("62 tokens", &reply, 422, "Validation", "62 tokens, at most 48 are possible");
    let reply = server.post("/embed", json!({ "inputs": [2, 103, 3] }).to_string());
    assert_tei("id 103", &reply, 422, "Validation", "token id 103");
    let ids: Vec<u32> = vec![5; 49];
    let reply = server.post("/embed", json!({ "inputs": ids, "truncate": false }).to_string());
    assert_tei("49 ids", &reply, 422, "Validation", "49 tokens");
    for truncation_direction in ["left", "right"] {
        let body = json!({ "inputs": long, "truncate": true, "truncation_direction": truncation_direction });
        let reply = server.post("/embed", body.to_string());
        assert_eq!((reply.status, reply.header("x-compute-tokens")), (200, "48"), "{truncation_direction}");
    }
}

#[test]
fn vllm_s_length_cuts_texts_and_ids_as_the_tokenizer_does() {
    let (server, sentences) = start();
    let rows = |body: Value| {
        let reply = server.post("/v1/embeddings", body.to_string()).json();
        let row: Vec<f32> = serde_json::from_value(reply["data"][0]["embedding"].clone())
            .unwrap_or_else(|error| panic!("{error}: {reply}"));
        (row, reply["usage"]["prompt_tokens"].as_u64().unwrap())
    };
    let long = sentences.iter().max_by_key(|sentence| sentence.input_ids.len()).unwrap();
    let (ids, count) = (&long.input_ids, long.input_ids.len());
    assert!(count > 6, "{ids:?}");
    for most in 3..count {
        let cut = |input: Value, side: &str| {
            rows(json!({ "input": input, "truncate_prompt_tokens": most, "truncation_side": side }))
        };
        // What is left of a text stands between its special tokens.
        let right = [&ids[..most - 1], &ids[count - 1..]].concat();
        let left = [&ids[..1], &ids[count - most + 1..]].concat();
        assert_eq!(cut(json!(long.text), "right"), rows(json!({ "input": right })), "{most}");
        assert_eq!(cut(json!(long.text), "left"), rows(json!({ "input": left })), "{most}");
        // Ids are cut as they are: special tokens get no special treatment.
        assert_eq!(cut(json!(ids), "right"), rows(json!({ "input": ids[..most] })), "{most}");
        assert_eq!(cut(json!(ids), "left"), rows(json!({ "input": ids[count - most..] })), "{most}");
        assert_eq!(cut(json!(long.text), "right").1, most as u64);
    }
    let whole = rows(json!({ "input": long.text }));
    for most in [count, 48] {
        assert_eq!(rows(json!({ "input": long.text, "truncate_prompt_tokens": most })), whole);
    }
    let longer = "hello ".repeat(60);
    assert_eq!(rows(json!({ "input": longer, "truncate_prompt_tokens": -1 })).1, 48);
    let reply = server.post("/v1/embeddings", r#"{"input":"hello","truncate_prompt_tokens":1}"#);
    let said = "input 0: its special tokens alone are more than the limit of 1";
    assert_openai("one token", &reply, 422, "Validation", said);
}

#[test]
fn vllm_s_scores_of_vectors_are_their_cosines() {
    let (server, sentences) = start();
    let texts: Vec<&str> = sentences.iter().map(|sentence| sentence.text.as_str()).collect();
    let body = json!({ "text_1": texts[0], "text_2": texts });
    let reply = server.post("/score", body.to_string()).json();
    for (index, sentence) in sentences.iter().enumerate() {
        let pairs = sentences[0].embedding.iter().zip(&sentence.embedding);
        let expected: f32 = pairs.map(|(a, b)| a * b).sum();
        let got = reply["data"][index]["score"].as_f64().unwrap() as f32;
        assert!((got - expected).abs() <= 4.0 * TOLERANCE, "{got} at {index}, expected {expected}");
    }
}

#[test]
fn cohere_s_types_are_the_same_vectors_alone_and_in_company() {
    let (server, sentences) = start();
    let texts: Vec<&str> = sentences.iter().map(|sentence| sentence.text.as_str()).collect();
    let ask = |texts: Value| {
        let body = json!({ "texts": texts, "embedding_types": ["float", "base64", "binary", "ubinary"] });
        let reply = server.post("/v2/embed", body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    };
    let together = ask(json!(texts));
    let tokens: usize = sentences.iter().map(|sentence| sentence.input_ids.len()).sum();
    assert_eq!(together["meta"]["billed_units"]["input_tokens"], tokens);
    let by_type = &together["embeddings"];
    let floats = rows(&by_type["float"]);
    for (index, sentence) in sentences.iter().enumerate() {
        assert_near(&sentence.text, &floats[index], &sentence.embedding);
        let bytes = STANDARD.decode(by_type["base64"][index].as_str().unwrap()).unwrap();
        let row: Vec<u8> = floats[index].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(bytes, row, "{}", sentence.text);
        let bits = floats[index].iter().map(|value| if value.is_sign_negative() { '0' } else { '1' });
        let bits: String = bits.collect();
        for (at, byte) in by_type["ubinary"][index].as_array().unwrap().iter().enumerate() {
            assert_eq!(format!("{:08b}", byte.as_u64().unwrap()), bits[8 * at..8 * at + 8]);
            assert_eq!(by_type["binary"][index][at], byte.as_i64().unwrap() - 128);
        }
        let alone = ask(json!([sentence.text]));
        for (name, vectors) in by_type.as_object().unwrap() {
            assert_eq!(alone["embeddings"][name][0], vectors[index], "{name} {}", sentence.text);
        }
    }
    let long = json!({ "texts": ["hello", "hello ".repeat(20)], "truncate": "NONE", "max_tokens": 8 });
    let said = "input 1 has at least 22 tokens, at most 8 are possible: shorten it";
    assert_openai("22 tokens", &server.post("/v2/embed", long.to_string()), 422, "Validation", said);
    let short = json!({ "texts": [texts[0]], "output_dimension": 8 });
    let answer = server.post("/v2/embed", short.to_string()).json();
    let row = rows(&answer["embeddings"]["float"]).remove(0);
    assert!(
        row.len() == 8 && (row.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-5,
        "{row:?}"
    );
}

#[test]
fn vllm_s_rows_are_the_same_alone_and_in_company() {
    let (server, sentences) = start();
    let texts: Vec<&str> = sentences.iter().map(|sentence| sentence.text.as_str()).collect();
    let ask = |input: Value, task: &str, active: bool| {
        let body = json!({ "input": input, "task": task, "use_activation": active });
        let reply = server.post("/pooling", body.to_string());
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["data"].clone()
    };
    for (task, active) in [("embed", true), ("embed", false), ("token_embed", true), ("token_embed", false)] {
        let together = ask(json!(texts), task, active);
        for (index, sentence) in sentences.iter().enumerate() {
            let alone = ask(json!(sentence.text), task, active);
            assert_eq!(alone[0]["data"], together[index]["data"], "{task} {active} {}", sentence.text);
            if task == "embed" {
                let row: Vec<f32> = serde_json::from_value(alone[0]["data"].clone()).unwrap();
                assert_near(&sentence.text, &row, if active { &sentence.embedding } else { &sentence.mean });
                continue;
            }
            let tokens = rows(&alone[0]["data"]);
            assert_eq!(tokens.len(), sentence.input_ids.len());
            let raw = server.post("/embed_all", json!({ "inputs": sentence.text }).to_string()).json();
            for (got, raw) in tokens.iter().zip(rows(&raw[0])) {
                let norm =
                    if active { raw.iter().map(|value| value * value).sum::<f32>().sqrt() } else { 1.0 };
                let expected: Vec<f32> = raw.iter().map(|value| value / norm).collect();
                assert_near(&sentence.text, got, &expected);
            }
        }
    }
}
