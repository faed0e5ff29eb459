//! Folders as their libraries publish them, from text to the result of their task, against the reference in float64.

use std::{fs, path::Path, sync::Arc};

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde::Deserialize;
use serde_json::{Value, json};
use turbo_models::{
    Checkpoint, Encoded, Encoder, EncoderOptions, LayoutKind, Pooling, RowLens, ScoreFunction, Task, Text,
    Truncation,
    graph::kernels::cuda::{
        Cuda, CudaOptions,
        emulator::{Emulator, Order},
    },
    l2_normalize,
};

use crate::{
    common::{bare_vector, data, encoder, max_difference, vector},
    copies::{copy, error, set},
};

#[derive(Deserialize)]
struct Golden {
    sentences: Vec<Row>,
}

/// A text or a pair of texts, and the expected results.
#[derive(Deserialize)]
struct Row {
    text: OneOrTwo,
    input_ids: Vec<u32>,
    token_type_ids: Vec<u32>,
    pooled: Vec<f32>,
    #[serde(default)]
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrTwo {
    One(String),
    Two(String, String),
}

impl OneOrTwo {
    fn text(&self) -> Text<'_> {
        match self {
            OneOrTwo::One(text) => text.as_str().into(),
            OneOrTwo::Two(first, second) => (first.as_str(), second.as_str()).into(),
        }
    }
}

fn golden(folder: &str) -> Vec<Row> {
    let golden = fs::read(data(folder).join("golden.json")).unwrap();
    serde_json::from_slice::<Golden>(&golden).unwrap().sentences
}

/// Checks the rows of every text of `folder`, in both layouts; 1e-5: there is one layer, and PyTorch's float32 loses
/// 1e-6.
pub(crate) fn matches_from_text(folder: &str) {
    let (checkpoint, golden) = (Checkpoint::open(&data(folder)).unwrap(), golden(folder));
    assert_eq!(checkpoint.warnings(), [""; 0], "{folder}");
    let tokenizer = checkpoint.tokenizer().unwrap();
    let encode = |row: &Row| tokenizer.encode(row.text.text(), Truncation::Right).unwrap();
    let inputs: Vec<_> = golden.iter().map(encode).collect();
    let on_cpu = [LayoutKind::Packed, LayoutKind::Padded].map(|layout| {
        let options = EncoderOptions { layout, ..EncoderOptions::of(&checkpoint) };
        (layout, encoder(&checkpoint, options).unwrap().embed_batch(&inputs).unwrap())
    });
    let emulated = Emulator::or_skip(Order::Forward).map(|emulator| {
        let gpu = Cuda::<f32>::new(Arc::new(emulator), CudaOptions::default());
        let mut encoder = Encoder::new(gpu, &checkpoint, EncoderOptions::of(&checkpoint)).unwrap();
        (LayoutKind::Packed, encoder.embed_batch(&inputs).unwrap())
    });
    for (layout, rows) in on_cpu.into_iter().chain(emulated) {
        for ((row, mut got), input) in golden.iter().zip(rows).zip(&inputs) {
            assert_eq!((&input.input_ids, &input.token_type_ids), (&row.input_ids, &row.token_type_ids));
            let difference = max_difference(&got, &row.pooled);
            assert!(difference < 1e-5, "{folder}, {layout:?}: off by {difference}");
            if checkpoint.normalizes() {
                l2_normalize(&mut got);
                let difference = max_difference(&got, &row.embedding);
                assert!(difference < 1e-5, "{folder}, {layout:?}, normalised: off by {difference}");
            }
        }
    }
}

#[test]
fn splade() {
    matches_from_text("tiny-splade");
    let checkpoint = Checkpoint::open(&data("tiny-splade")).unwrap();
    assert_eq!(checkpoint.task(), Some(Task::SparseEmbedding));
    let words = checkpoint.config().vocab_size;
    let row_lens = |task| checkpoint.row_lens(task).unwrap();
    let sparse = RowLens { pooled: Some(words), tokens: None, selected: None };
    assert_eq!(row_lens(Task::SparseEmbedding), sparse);
    let masked = RowLens { pooled: None, tokens: None, selected: Some(words) };
    assert_eq!(row_lens(Task::MaskedLm), masked);
    let zeros = golden("tiny-splade").iter().flat_map(|row| row.pooled.clone()).filter(|w| *w == 0.0).count();
    assert!(zeros > 20, "most words of a sparse vector weigh nothing: {zeros}");
}

#[test]
fn dense_modules_and_prompts() {
    matches_from_text("tiny-dense");
    let checkpoint = Checkpoint::open(&data("tiny-dense")).unwrap();
    assert_eq!(checkpoint.task(), Some(Pooling::Mean.into()));
    let lens = RowLens { pooled: Some(6), tokens: Some(16), selected: None };
    assert_eq!(checkpoint.row_lens(Pooling::Mean.into()).unwrap(), lens);
    assert!(checkpoint.normalizes());
    assert_eq!(checkpoint.prompts().get("query"), Some("the query: "));
}

/// As EmbeddingGemma is published, except for its sizes: bytes for what the vocabulary lacks, tokens around every text,
/// two matrices, prompts.
#[test]
fn embedding_gemma() {
    let folder = copy("gemma3-base");
    let write = |name: &str, content: Value| write(folder.path(), name, &content);
    write(
        "modules.json",
        modules(&[
            ("", "Transformer"),
            ("1_Pooling", "Pooling"),
            ("2_Dense", "Dense"),
            ("3_Dense", "Dense"),
            ("4_Normalize", "Normalize"),
        ]),
    );
    write("1_Pooling/config.json", json!({"pooling_mode_mean_tokens": true, "include_prompt": true}));
    let identity = "torch.nn.modules.linear.Identity";
    let matrix = |rows: usize, columns: usize| -> Vec<f32> {
        (0..rows * columns).map(|i| ((i * 37 + 11) % 23) as f32 / 23.0 - 0.5).collect()
    };
    for (path, from, to) in [("2_Dense", 24, 40), ("3_Dense", 40, 24)] {
        let config =
            json!({"in_features": from, "out_features": to, "bias": false, "activation_function": identity});
        write(&format!("{path}/config.json"), config);
        let bytes: Vec<u8> = matrix(to, from).into_iter().flat_map(f32::to_le_bytes).collect();
        let weight = TensorView::new(Dtype::F32, vec![to, from], &bytes).unwrap();
        let file = serialize([("linear.weight", weight)], None).unwrap();
        fs::write(folder.path().join(path).join("model.safetensors"), file).unwrap();
    }
    let prompts = json!({"query": "a: ", "document": "b: "});
    write("config_sentence_transformers.json", json!({"prompts": prompts, "default_prompt_name": null}));
    write("tokenizer.json", gemma_s_tokenizer());
    write(
        "tokenizer_config.json",
        json!({
            "add_bos_token": true, "add_eos_token": true, "bos_token": "<bos>", "eos_token": "<eos>",
            "model_max_length": 64, "tokenizer_class": "GemmaTokenizer",
        }),
    );

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.task(), Some(Pooling::Mean.into()));
    assert!(checkpoint.normalizes());
    assert_eq!(checkpoint.prompts().get("query"), Some("a: "));
    let input = checkpoint.tokenizer().unwrap().encode("a ab é", Truncation::Right).unwrap();
    assert_eq!(input.input_ids, [2, 5, 7, 6, 4, 9, 10, 1]);

    let [got, mean] = [vector(&checkpoint, &input), bare_vector(&data("gemma3-base"), Pooling::Mean, &input)];
    let times = |rows: usize, x: &[f32]| -> Vec<f32> {
        let matrix = matrix(rows, x.len());
        matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    };
    assert!(max_difference(&got, &times(24, &times(40, &mean))) < 1e-4);
}

/// The steps of Gemma's tokenizer, with a few of its tokens.
fn gemma_s_tokenizer() -> Value {
    let vocabulary = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "a", "b", "▁a", "ab", "<0xC3>", "<0xA9>"];
    let vocabulary: serde_json::Map<_, _> =
        vocabulary.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), Value::from(id))).collect();
    let special = |id: u32, token: &str| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let piece = |kind: &str, id: &str, type_id: u32| json!({kind: {"id": id, "type_id": type_id}});
    let around = |text: &str, type_id| {
        let special = |token| piece("SpecialToken", token, type_id);
        vec![special("<bos>"), piece("Sequence", text, type_id), special("<eos>")]
    };
    let pair = [around("A", 0), around("B", 1)].concat();
    let named = |token: &str, id: u32| json!({"id": token, "ids": [id], "tokens": [token]});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<pad>"), special(1, "<eos>"), special(2, "<bos>"), special(3, "<unk>")],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
        "post_processor": {
            "type": "TemplateProcessing", "single": around("A", 0),
            "pair": pair,
            "special_tokens": {"<bos>": named("<bos>", 2), "<eos>": named("<eos>", 1)},
        },
        "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary, "merges": [["▁", "a"], ["a", "b"]],
        },
    })
}

/// As Jina's second version is published, except for its sizes: code that lies elsewhere, a class whose head is not in
/// the file, vectors that are not normalised.
#[test]
fn jina_bert() {
    let folder = copy("jina-base");
    let write = |name: &str, content: Value| write(folder.path(), name, &content);
    let config = folder.path().join("config.json");
    set(&config, "architectures", json!(["JinaBertForMaskedLM"]));
    let code = |class: &str| format!("jinaai/jina-bert-implementation--{class}");
    let auto_map = json!({
        "AutoConfig": code("configuration_bert.JinaBertConfig"),
        "AutoModel": code("modeling_bert.JinaBertModel"),
        "AutoModelForMaskedLM": code("modeling_bert.JinaBertForMaskedLM"),
    });
    set(&config, "auto_map", auto_map);
    write("modules.json", modules(&[("", "Transformer"), ("1_Pooling", "Pooling")]));
    write("1_Pooling/config.json", json!({"word_embedding_dimension": 48, "pooling_mode_mean_tokens": true}));
    write("sentence_bert_config.json", json!({"max_seq_length": 64, "do_lower_case": false}));
    let tokenizer = data("tokenizer-wordpiece").join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(tokenizer).unwrap()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocabulary.retain(|_, id| id.as_u64().unwrap() < 97);
    let id = |token: &str| vocabulary[token].as_u64().unwrap() as u32;
    let expected = [id("[CLS]"), id("a"), id("b"), id("[SEP]")];
    write("tokenizer.json", tokenizer);
    write(
        "tokenizer_config.json",
        json!({"do_lower_case": true, "model_max_length": i32::MAX, "tokenizer_class": "BertTokenizer"}),
    );

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.warnings(), [""; 0]);
    assert_eq!((checkpoint.task(), checkpoint.max_input_length()), (Some(Pooling::Mean.into()), 64));
    assert!(!checkpoint.normalizes() && !checkpoint.supports(Task::MaskedLm));
    let input = checkpoint.tokenizer().unwrap().encode("A b", Truncation::Right).unwrap();
    assert_eq!(input.input_ids, expected);
    let [got, mean] = [vector(&checkpoint, &input), bare_vector(&data("jina-base"), Pooling::Mean, &input)];
    assert_eq!(got, mean);
}

/// As GTE-Qwen2 is published, except for its sizes: a generative class, code of its own that lets tokens see all
/// others, and a tokenizer whose class adds the token behind texts that stands for them.
#[test]
fn gte_qwen2() {
    let folder = copy("qwen2-base");
    let write = |name: &str, content: Value| write(folder.path(), name, &content);
    let config = folder.path().join("config.json");
    set(&config, "architectures", json!(["Qwen2ForCausalLM"]));
    set(&config, "is_causal", json!(false));
    let auto_map = json!({
        "AutoModel": "modeling_qwen.Qwen2Model",
        "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM",
    });
    set(&config, "auto_map", auto_map);
    let all = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")];
    write("modules.json", modules(&all));
    write(
        "1_Pooling/config.json",
        json!({"pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true}),
    );
    write("sentence_bert_config.json", json!({"max_seq_length": 20, "do_lower_case": false}));
    write("config_sentence_transformers.json", json!({"prompts": {"query": "a: "}}));
    write("tokenizer.json", qwen_s_tokenizer());
    write(
        "tokenizer_config.json",
        json!({
            "add_eos_token": true, "add_prefix_space": false, "eos_token": "<|endoftext|>",
            "auto_map": {"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", "tokenization_qwen.Qwen2TokenizerFast"]},
            "model_max_length": 32768, "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer",
        }),
    );

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.warnings(), [""; 0]);
    assert_eq!((checkpoint.task(), checkpoint.max_input_length()), (Some(Pooling::LastToken.into()), 20));
    assert!(checkpoint.normalizes());
    assert_eq!(checkpoint.prompts().get("query"), Some("a: "));
    let encode = |text: &str| checkpoint.tokenizer().unwrap().encode(text, Truncation::Right).unwrap();
    let input = encode("a ab é");
    assert_eq!(input.input_ids, [0, 2, 5, 2, 3, 4, 6]);
    assert_eq!(encode(&"b".repeat(30)).input_ids, [vec![1; 19], vec![6]].concat());
    let got = vector(&checkpoint, &input);
    let bare = copy("qwen2-base");
    let last = || bare_vector(bare.path(), Pooling::LastToken, &input);
    assert_ne!(got, last(), "which is causal");
    set(&bare.path().join("config.json"), "is_causal", json!(false));
    assert_eq!(got, last());
}

/// As pplx-embed is published, except for its sizes: code of its own that lets tokens see all others, and a module
/// behind pooling that turns values into whole numbers.
#[test]
fn pplx_embed() {
    let folder = copy("qwen3-base");
    let config = folder.path().join("config.json");
    set(&config, "architectures", json!(["PPLXQwen3Model"]));
    set(&config, "model_type", json!("bidirectional_pplx_qwen3"));
    set(&config, "auto_map", json!({"AutoModel": "modeling.PPLXQwen3Model"}));
    let library = |class: &str| format!("sentence_transformers.models.{class}");
    let list = |quantizer: &str| {
        json!([
            {"idx": 0, "name": "0", "path": "", "type": library("Transformer")},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": library("Pooling")},
            {"idx": 2, "name": "2", "path": "", "type": quantizer, "kwargs": ["quantization"]},
        ])
    };
    write(folder.path(), "modules.json", &list("st_quantize.FlexibleQuantizer"));
    write(folder.path(), "1_Pooling/config.json", &json!({"pooling_mode_mean_tokens": true}));

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.warnings(), [""; 0]);
    assert_eq!(checkpoint.task(), Some(Pooling::Mean.into()));
    assert!(!checkpoint.normalizes() && !checkpoint.supports(Task::SequenceClassification));
    let input = Encoded { input_ids: vec![5, 90, 17, 17, 3], token_type_ids: vec![] };
    let got = vector(&checkpoint, &input);
    let bare = copy("qwen3-base");
    let mean = || bare_vector(bare.path(), Pooling::Mean, &input);
    let codes = |vector: Vec<f32>| -> Vec<f32> {
        vector.into_iter().map(|x| (f64::from(x).tanh() * 127.0).round() as f32).collect()
    };
    assert_ne!(got, codes(mean()), "which is causal");
    set(&bare.path().join("config.json"), "use_bidirectional_attention", json!(true));
    let expected = codes(mean());
    assert_eq!(got, expected);
    assert!(expected.iter().any(|code| code.abs() > 20.0), "{expected:?}");

    // without that module it is a different model
    let digest = checkpoint.digest();
    write(folder.path(), "modules.json", &modules(&[("", "Transformer"), ("1_Pooling", "Pooling")]));
    let plain = Checkpoint::open(folder.path()).unwrap();
    assert!(plain.digest() != digest && vector(&plain, &input) == mean());
    write(folder.path(), "modules.json", &list("quantize.IntQuantizer"));
    let refused = error(folder.path());
    assert!(refused.contains(r#"type is "IntQuantizer", supported: "#), "{refused}");
    // without a list of modules, the family decides
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    assert_eq!(vector(&Checkpoint::open(folder.path()).unwrap(), &input), expected);
}

/// The steps of Qwen's tokenizer, with a few of its tokens.
fn qwen_s_tokenizer() -> Value {
    let end = "<|endoftext|>";
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 6, "content": end, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r" ?\p{L}+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "Ġ": 2, "Ã": 3, "©": 4, "ab": 5}, "merges": [["a", "b"]],
        },
    })
}

/// Writes the file `name` below the folder `to`.
fn write(to: &Path, name: &str, content: &Value) {
    let file = to.join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content.to_string()).unwrap();
}

/// A list of modules with these paths and classes.
fn modules(list: &[(&str, &str)]) -> Value {
    let module = |(path, class): &(&str, &str)| json!({"path": path, "type": format!("sentence_transformers.models.{class}")});
    list.iter().map(module).collect()
}

#[test]
fn cross_encoder() {
    matches_from_text("tiny-cross-encoder");
    let checkpoint = Checkpoint::open(&data("tiny-cross-encoder")).unwrap();
    assert_eq!(checkpoint.task(), Some(Task::SequenceClassification));
    assert_eq!(checkpoint.labels(), ["LABEL_0"]);
    let functions = (checkpoint.score_function(), checkpoint.pair_score_function());
    assert_eq!(functions, (ScoreFunction::Sigmoid, ScoreFunction::Identity));
}

/// Snowflake's copy of GTE has another name for everything; transformers 5 writes the tensors' names as they were.
#[test]
fn gte_by_its_own_name() {
    let folder = copy("gte-mlm");
    set(&folder.path().join("config.json"), "model_type", json!("gte"));
    let opens = || {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.config().model_type, "gte");
        assert!(checkpoint.supports(Task::MaskedLm));
    };
    opens();
    let weights = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let names: Vec<usize> = (0..bytes.len() - 5).filter(|at| &bytes[*at..at + 5] == b"\"new.").collect();
    assert!(names.len() > 10);
    names.into_iter().for_each(|at| bytes[at..at + 5].copy_from_slice(b"\"gte."));
    fs::write(&weights, bytes).unwrap();
    opens();
}
