//! Folders as their libraries publish them, from text to the result of their task, against the reference in float64.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView, serialize},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, LayoutKind, ModelError, OpenOptions,
    Pooling, RowLens, ScoreFunction, Staging, Task, Text, TextTokenizer, TokenizeError, Truncation,
    graph::kernels::cuda::{
        Cuda, CudaOptions,
        emulator::{Emulator, Order},
    },
    l2_normalize,
};

use crate::common::{data, max_difference};

/// What to do if a task lacks the requested rows.
const HINT: &str = ": create the encoder with a task and outputs that have them (`EncoderOptions`)";

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

pub(crate) fn encoder(checkpoint: &Checkpoint, options: EncoderOptions) -> Result<Encoder<Cpu>, ModelError> {
    Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), checkpoint, options)
}

/// Checks the rows of every text of `folder`, in both layouts; 1e-5: there is one layer, and PyTorch's float32 loses
/// 1e-6.
fn matches_from_text(folder: &str) {
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

/// The result of the folder's own task for one input.
fn vector(checkpoint: &Checkpoint, input: &Encoded) -> Vec<f32> {
    pooled(checkpoint, checkpoint.task().unwrap(), input)
}

/// The same for a folder that names no task.
fn bare_vector(folder: &Path, pooling: Pooling, input: &Encoded) -> Vec<f32> {
    pooled(&Checkpoint::open(folder).unwrap(), pooling.into(), input)
}

fn pooled(checkpoint: &Checkpoint, task: Task, input: &Encoded) -> Vec<f32> {
    let options = EncoderOptions { task, ..EncoderOptions::of(checkpoint) };
    encoder(checkpoint, options).unwrap().embed_batch(std::slice::from_ref(input)).unwrap().remove(0)
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

/// Language models that are rerankers: a template writes the pairs, and logits of the next token make the score. One
/// has its own vocabulary matrix and its own words to judge by.
#[test]
fn logit_score() {
    for (folder, function) in
        [("tiny-logit-score", ScoreFunction::Sigmoid), ("tiny-logit-score-one", ScoreFunction::Identity)]
    {
        matches_from_text(folder);
        let checkpoint = Checkpoint::open(&data(folder)).unwrap();
        assert_eq!(checkpoint.task(), Some(Task::SequenceClassification));
        assert_eq!(checkpoint.labels(), ["LABEL_0"]);
        let functions = (checkpoint.score_function(), checkpoint.pair_score_function());
        assert_eq!(functions, (ScoreFunction::Sigmoid, function));
        assert_eq!(checkpoint.row_lens(Task::SequenceClassification).unwrap().pooled, Some(1));
        // whichever token is padding, the last token is the last one
        assert_eq!(checkpoint.padding_id(Task::SequenceClassification).unwrap(), None);
    }
}

#[test]
fn a_written_pair_is_cut_before_the_end_of_its_template() {
    let checkpoint = Checkpoint::open(&data("tiny-logit-score")).unwrap();
    let tokenizer = checkpoint.tokenizer().unwrap();
    let ids = |tokenizer: &TextTokenizer, document: &str, truncation| {
        tokenizer.encode(("the cat", document), truncation).map(|encoded| encoded.input_ids)
    };
    let whole = ids(tokenizer, "a dog", Truncation::Off).unwrap();
    let of_template =
        tokenizer.encode("<|end|>\n<|start|>answer<|end|>\n", Truncation::Off).unwrap().input_ids;
    let end = &of_template[..];
    assert!(whole.ends_with(end) && end.len() > 4, "{end:?}");
    for limit in 0..whole.len() {
        let limited = tokenizer.limited_to(limit);
        let error = ids(&limited, "a dog", Truncation::Off).unwrap_err();
        assert!(matches!(error, TokenizeError::TooLong { limit: got, .. } if got == limit), "{error}");
        let left = ids(&limited, "a dog", Truncation::Left);
        let right = ids(&limited, "a dog", Truncation::Right);
        if limit == 0 {
            assert_eq!((left, right), (Err(TokenizeError::Empty), Err(TokenizeError::Empty)));
            continue;
        }
        assert_eq!(left.unwrap(), whole[whole.len() - limit..]);
        let kept = end.len().min(limit);
        assert_eq!(right.unwrap(), [&whole[..limit - kept], &end[end.len() - kept..]].concat(), "{limit}");
    }
    let told = tokenizer.with_instruction("Is it a dog?").unwrap();
    assert!(told.writes_pairs() && ids(&told, "a dog", Truncation::Off).unwrap() != whole);
    let cut = ids(&told.limited_to(60), "a dog", Truncation::Right).unwrap();
    assert!(cut.ends_with(end) && cut.len() == 60, "{cut:?}");
    // a single text is not written by the template
    let one = tokenizer.encode("<|start|>the", Truncation::Off).unwrap().input_ids;
    assert_eq!(one.len(), 2, "{one:?}");
}

#[test]
fn a_logit_score_that_makes_no_sense_is_refused() {
    let changed = |file: &str, field: &str, value: Value| {
        let folder = copy("tiny-logit-score");
        set(&folder.path().join(file), field, value);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let error = checkpoint.graph(Task::SequenceClassification).err().unwrap().to_string();
        assert!(checkpoint.warnings().iter().any(|warning| warning.ends_with(&error)), "{error}");
        error
    };
    for (file, field, value, why) in [
        ("1_LogitScore/config.json", "true_token_id", json!(5000), "LogitScore names token 5000"),
        ("1_LogitScore/config.json", "false_token_id", json!(267), "LogitScore names token 267"),
        ("config.json", "tie_word_embeddings", json!(false), "tensor lm_head.weight is missing"),
        ("config.json", "final_logit_softcapping", json!(30.0), "final_logit_softcapping is \"30\""),
        ("config.json", "is_causal", json!(false), "is_causal is \"false\""),
    ] {
        let said = changed(file, field, value);
        assert!(said.contains(why), "{field}: {said}");
    }
    let folder = copy("tiny-logit-score");
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let said = error(folder.path());
    assert!(said.contains("chat_template.jinja: chat_template: it does not write"), "{said}");
}

/// A copy of a fixture, to be changed.
pub(crate) fn copy(fixture: &str) -> TempDir {
    fn copy_below(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy_below(&entry.path(), &to),
                false => drop(fs::copy(entry.path(), to).unwrap()),
            }
        }
    }
    let to = tempfile::tempdir().unwrap();
    copy_below(&data(fixture), to.path());
    to
}

pub(crate) fn set(file: &Path, field: &str, value: Value) {
    let mut json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    json[field] = value;
    fs::write(file, json.to_string()).unwrap();
}

pub(crate) fn error(folder: &Path) -> String {
    let error = Checkpoint::open(folder).err().unwrap().to_string();
    error.replace(&format!("{}/", fs::canonicalize(folder).unwrap().display()), "")
}

#[test]
fn another_dense_module_may_be_asked_for() {
    let folder = copy("tiny-dense");
    fs::rename(folder.path().join("2_Dense"), folder.path().join("2_Dense_12")).unwrap();
    assert_eq!(error(folder.path()), "2_Dense/config.json: there is no such file");
    fs::rename(folder.path().join("2_Dense_12"), folder.path().join("2_Dense")).unwrap();
    let options = OpenOptions { dense_path: Some("2_Dense".into()) };
    let checkpoint = Checkpoint::open_with(folder.path(), &options).unwrap();
    assert_eq!(checkpoint.row_lens(Pooling::Mean.into()).unwrap().pooled, Some(12));
    // this module takes what the first one returns
    let options = OpenOptions { dense_path: Some("3_Dense".into()) };
    let refused = Checkpoint::open_with(folder.path(), &options).err().unwrap().to_string();
    assert!(refused.ends_with("3_Dense/config.json: in_features: is 12, expected 16"), "{refused}");
}

#[test]
fn a_dense_module_without_its_tensors_is_named() {
    let folder = copy("tiny-dense");
    set(&folder.path().join("3_Dense/config.json"), "bias", json!(true));
    assert_eq!(error(folder.path()), "3_Dense/model.safetensors: tensor linear.bias is missing");
    set(&folder.path().join("3_Dense/config.json"), "out_features", json!(7));
    let wrong = "3_Dense/model.safetensors: tensor linear.weight has shape [6, 12], expected [7, 12]";
    assert_eq!(error(folder.path()), wrong);
}

/// Pickles are not read, whichever part they hold.
#[test]
fn pickled_weights_are_named() {
    for module in ["", "2_Dense"] {
        let folder = copy("tiny-dense");
        let dir = folder.path().join(module);
        let mut file = dir.join("model.safetensors");
        for pickle in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
            fs::rename(&file, dir.join(pickle)).unwrap();
            let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
            let expected = format!(r#"the file of weights is "{pickle}", supported: model.safetensors"#);
            assert!(error.ends_with(&expected), "{error}");
            assert_eq!(error.contains("2_Dense: "), module == "2_Dense", "{error}");
            file = dir.join(pickle);
        }
    }
}

/// What later versions of the library write in place of the module classes of `tiny-splade`.
#[test]
fn splade_of_later_versions() {
    let folder = copy("tiny-splade");
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling",
            "type": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"},
    ]);
    fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    let inputs = json!({"transformer_task": "fill-mask", "module_output_name": "token_embeddings"});
    fs::write(folder.path().join("sentence_bert_config.json"), inputs.to_string()).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), r#"{"model_max_length": 9}"#).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!((checkpoint.task(), checkpoint.max_input_length()), (Some(Task::SparseEmbedding), 9));
}

/// Wherever a folder says so, it is up to requests where texts are cut.
#[test]
fn arguments_of_the_tokenizer_may_want_texts_cut_on_the_left() {
    let folder = copy("tiny-sentence");
    let file = folder.path().join("sentence_bert_config.json");
    set(&file, "tokenizer_args", json!({"truncation_side": "left"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let left = "sentence_bert_config.json: truncation_side in tokenizer_args is left, ";
    let warnings = checkpoint.warnings();
    assert!(warnings.iter().any(|warning| warning.starts_with(left)), "{warnings:?}");
}

/// Later versions of the library say in their own file what `tiny-cross-encoder` says in `config.json`.
#[test]
fn cross_encoders_of_later_versions() {
    let folder = copy("tiny-cross-encoder");
    let library = folder.path().join("config_sentence_transformers.json");
    let function = || Checkpoint::open(folder.path()).unwrap().pair_score_function();
    fs::write(&library, r#"{"activation_fn": "torch.nn.modules.activation.Sigmoid"}"#).unwrap();
    assert_eq!(function(), ScoreFunction::Sigmoid);
    fs::write(&library, r#"{"activation_fn": null}"#).unwrap();
    assert_eq!(function(), ScoreFunction::Identity);
    set(&folder.path().join("config.json"), "sentence_transformers", Value::Null);
    assert_eq!(function(), ScoreFunction::Sigmoid, "one label, and nobody says otherwise");
}

/// With an unknown activation there are vectors, but no scores.
#[test]
fn an_unknown_activation_stops_a_cross_encoder_only() {
    const TANH: &str = r#"{"activation_fn": "torch.nn.modules.activation.Tanh"}"#;
    let write = |folder: &TempDir| {
        fs::write(folder.path().join("config_sentence_transformers.json"), TANH).unwrap();
        Checkpoint::open(folder.path()).unwrap()
    };
    let folder = copy("tiny-cross-encoder");
    let checkpoint = write(&folder);
    assert!(checkpoint.supports(Pooling::Cls.into()) && !checkpoint.supports(Task::SequenceClassification));
    let why = r#"activation_fn is "torch.nn.modules.activation.Tanh", supported: Identity, Sigmoid, Softmax"#;
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.starts_with("no sequence-classification: ") && warning.ends_with(why), "{warning}");
    let refused = encoder(&checkpoint, EncoderOptions::of(&checkpoint)).err().unwrap().to_string();
    assert!(refused.ends_with(&format!("config_sentence_transformers.json: {why}")), "{refused}");

    let folder = copy("tiny-sentence");
    let checkpoint = write(&folder);
    assert_eq!(checkpoint.warnings(), [""; 0]);
    assert!(encoder(&checkpoint, EncoderOptions::of(&checkpoint)).is_ok());
}

/// A reranker that would have to write its answer.
#[test]
fn models_that_write_give_vectors_only() {
    let folder = copy("qwen3-base");
    set(&folder.path().join("config.json"), "architectures", json!(["Qwen3ForCausalLM"]));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.task(), None);
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.starts_with("config.json: Qwen3ForCausalLM writes words, "), "{warning}");
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

/// In the masked language model's head, the reference's own class applies GELU whatever the layers have; the models'
/// own code applies the layers' activation. Expected for "gte" are the first logits from the reference in float64.
#[test]
fn gte_s_words_are_activated_otherwise_under_each_name() {
    const EXPECTED: [f32; 6] = [-0.622_884_8, 2.362_23, -0.976_795_73, -1.955_075_9, 1.121_784_4, 3.172_685];
    let folder = copy("gte-mlm");
    let config = folder.path().join("config.json");
    let logits = |model_type: &str| {
        set(&config, "model_type", json!(model_type));
        word_logits(folder.path())
    };
    assert_eq!(logits("gte"), logits("new"), "the layers have GELU, too");
    set(&config, "rope_scaling", Value::Null);
    set(&config, "hidden_act", json!("relu"));
    let (gte, new) = (logits("gte"), logits("new"));
    assert!(max_difference(&gte[..EXPECTED.len()], &EXPECTED) < 1e-4, "{gte:?}");
    assert!(max_difference(&new, &gte) > 1e-2, "{new:?}");
}

/// The class names a head that the file does not have: there are vectors, but no logits.
#[test]
fn a_missing_head_is_one_line_where_it_is_wanted() {
    let folder = copy("bert-base");
    set(&folder.path().join("config.json"), "architectures", json!(["BertForSequenceClassification"]));
    set(&folder.path().join("config.json"), "id2label", json!({"0": "no", "1": "yes", "2": "perhaps"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.task(), Some(Task::SequenceClassification));
    assert_eq!(checkpoint.labels(), ["no", "yes", "perhaps"]);
    let missing = "model.safetensors: tensor classifier.weight is missing";
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.starts_with("no sequence-classification: ") && warning.ends_with(missing), "{warning}");
    assert!(!checkpoint.supports(Task::SequenceClassification));
    let refused = encoder(&checkpoint, EncoderOptions::of(&checkpoint)).err().unwrap().to_string();
    assert!(refused.ends_with(missing), "{refused}");
    let options = EncoderOptions { task: Pooling::Cls.into(), ..EncoderOptions::of(&checkpoint) };
    assert!(encoder(&checkpoint, options).is_ok());
}

#[test]
fn more_labels_than_logits_are_noticed() {
    let folder = copy("bert-seqcls");
    set(&folder.path().join("config.json"), "id2label", json!({"0": "no", "1": "yes"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let refused = checkpoint.graph(Task::SequenceClassification).unwrap_err().to_string();
    assert!(refused.ends_with("tensor classifier.weight has shape [3, 16], expected [2, 16]"), "{refused}");
}

/// `num_labels` counts, as in version 5 of the reference; if the weights fit the names instead, the error names both
/// fields.
#[test]
fn a_number_of_labels_counts_before_other_names() {
    let folder = copy("bert-seqcls");
    let config = folder.path().join("config.json");
    set(&config, "num_labels", json!(3));
    set(&config, "id2label", json!({"0": "no", "1": "yes"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.labels(), ["LABEL_0", "LABEL_1", "LABEL_2"]);
    assert!(checkpoint.supports(Task::SequenceClassification));
    set(&config, "num_labels", json!(5));
    set(&config, "id2label", json!({"0": "no", "1": "yes", "2": "perhaps"}));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let refused = checkpoint.graph(Task::SequenceClassification).unwrap_err().to_string();
    let why = "config.json: num_labels: is 5 and counts before the 3 names of id2label, but tensor classifier.weight \
               has shape [3, 16]: make both fields say what it has";
    assert!(refused.ends_with(why), "{refused}");
}

/// If labels are counted from 1, there are vectors, but no logits.
#[test]
fn labels_that_make_no_sense_stop_a_classifier_only() {
    let folder = copy("bert-seqcls");
    let from_one = json!({"1": "no", "2": "yes", "3": "perhaps"});
    set(&folder.path().join("config.json"), "id2label", from_one);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.labels(), [""; 0]);
    assert!(checkpoint.supports(Pooling::Cls.into()) && !checkpoint.supports(Task::SequenceClassification));
    let why = r#"config.json: id2label: "3" is not one of 0, 1, 2, …"#;
    let [warning] = checkpoint.warnings() else { panic!("{:?}", checkpoint.warnings()) };
    assert!(warning.starts_with("no sequence-classification: ") && warning.ends_with(why), "{warning}");
    let refused = encoder(&checkpoint, EncoderOptions::of(&checkpoint)).err().unwrap().to_string();
    assert!(refused.ends_with(why), "{refused}");
}

#[test]
fn a_task_that_the_family_has_no_head_for_is_refused() {
    let checkpoint = Checkpoint::open(&data("qwen3-base")).unwrap();
    let refused = checkpoint.graph(Task::MaskedLm).unwrap_err().to_string();
    let supported = "embedding, sequence-classification, token-classification";
    assert_eq!(refused, format!("qwen3 models have no head for masked-lm here, supported: {supported}"));
    assert!(!checkpoint.supports(Task::SparseEmbedding) && checkpoint.supports(Pooling::LastToken.into()));
    let nomic = Checkpoint::open(&data("nomic-base")).unwrap();
    let refused = nomic.graph(Task::QuestionAnswering).unwrap_err().to_string();
    assert_eq!(refused, "nomic_bert models have no head for question-answering here, supported: embedding");
}

#[test]
fn rows_that_a_task_does_not_give_are_refused() {
    let checkpoint = Checkpoint::open(&data("bert-seqcls")).unwrap();
    let mut encoder = encoder(&checkpoint, EncoderOptions::of(&checkpoint)).unwrap();
    assert_eq!((encoder.pooled_len(), encoder.token_len(), encoder.selected_len()), (Some(3), None, None));
    let input = turbo_models::Encoded { input_ids: vec![5, 6], token_type_ids: Vec::new() };
    assert_eq!(encoder.embed_batch(&[input]).unwrap()[0].len(), 3);
    let refused = encoder.tokens(0, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(refused, format!("sequence-classification gives no token rows{HINT}"));
    let refused = encoder.selected(0, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(refused, format!("sequence-classification gives no selected rows{HINT}"));
}

/// A separate vocabulary matrix, if the file says that it is not the embedding table.
#[test]
fn words_may_have_a_matrix_of_their_own() {
    let folder = copy("bert-mlm");
    set(&folder.path().join("config.json"), "tie_word_embeddings", json!(false));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let refused = checkpoint.graph(Task::MaskedLm).unwrap_err().to_string();
    assert!(refused.ends_with("tensor cls.predictions.decoder.weight is missing"), "{refused}");
    let folder = copy("bert-mlm-legacy");
    set(&folder.path().join("config.json"), "tie_word_embeddings", json!(false));
    assert!(Checkpoint::open(folder.path()).unwrap().supports(Task::MaskedLm));
}

/// Flips the signs of an f32 tensor in the file `weights`.
fn negate(weights: &Path, tensor: &str) {
    let mut bytes = fs::read(weights).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let [start, end] = [0_usize, 1].map(|at| header[tensor]["data_offsets"][at].as_u64().unwrap() as usize);
    for value in bytes[data + start..data + end].as_chunks_mut::<4>().0 {
        *value = (-f32::from_le_bytes(*value)).to_le_bytes();
    }
    fs::write(weights, bytes).unwrap();
}

/// The vocabulary logits of one token.
fn word_logits(folder: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let options = EncoderOptions { task: Task::MaskedLm, ..EncoderOptions::of(&checkpoint) };
    let mut encoder = encoder(&checkpoint, options).unwrap();
    let mut batch = Staging::new();
    batch.push(&[5, 6, 7], &[0, 0, 0]).unwrap();
    batch.select(&[1]).unwrap();
    encoder.run(&batch).unwrap();
    let mut logits = Vec::new();
    encoder.selected(0, &mut logits).unwrap();
    logits
}

/// Two matrices that differ are not shared, whatever the configuration says, as in the reference.
#[test]
fn a_matrix_of_their_own_counts_where_the_file_has_one() {
    let folder = copy("bert-mlm-legacy");
    negate(&folder.path().join("model.safetensors"), "cls.predictions.decoder.weight");
    let logits = word_logits(folder.path());
    assert_ne!(logits, word_logits(&data("bert-mlm-legacy")));
    for tied in [true, false] {
        set(&folder.path().join("config.json"), "tie_word_embeddings", json!(tied));
        assert_eq!(word_logits(folder.path()), logits, "{tied}");
    }
}

/// Changes the tensors of the file `weights`.
fn change(weights: &Path, change: impl FnOnce(&mut BTreeMap<String, TensorView<'_>>)) {
    let bytes = fs::read(weights).unwrap();
    let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors().into_iter().collect();
    change(&mut tensors);
    fs::write(weights, serialize(tensors, None).unwrap()).unwrap();
}

/// Later versions of the reference write both biases if they are not shared, and compute with that of the matrix.
#[test]
fn of_two_biases_of_words_that_of_the_matrix_counts() {
    for (fixture, head) in [
        ("bert-mlm", "cls.predictions"),
        ("jina-mlm", "cls.predictions"),
        ("roberta-mlm", "lm_head"),
        ("camembert-mlm", "lm_head"),
        ("mpnet-mlm", "lm_head"),
        ("albert-mlm", "predictions"),
    ] {
        let [bias, of_matrix] = [format!("{head}.bias"), format!("{head}.decoder.bias")];
        let (expected, folder) = (copy(fixture), copy(fixture));
        negate(&expected.path().join("model.safetensors"), &bias);
        let expected = word_logits(expected.path());
        assert_ne!(expected, word_logits(folder.path()), "{fixture}");
        let weights = folder.path().join("model.safetensors");
        change(&weights, |tensors| drop(tensors.insert(of_matrix.clone(), tensors[&bias].clone())));
        negate(&weights, &of_matrix);
        assert_eq!(word_logits(folder.path()), expected, "{fixture}");
        change(&weights, |tensors| drop(tensors.remove(&bias)));
        assert_eq!(word_logits(folder.path()), expected, "{fixture}, that of the matrix alone");
    }
}

/// Files that keep a shared tensor under one name may use the head's: `save_model` of the safetensors library does.
#[test]
fn the_matrix_of_the_words_stands_for_a_table_that_the_file_lacks() {
    for (fixture, table, matrix) in [
        ("bert-mlm", "bert.embeddings.word_embeddings", "cls.predictions.decoder"),
        ("roberta-mlm", "roberta.embeddings.word_embeddings", "lm_head.decoder"),
        ("albert-mlm", "albert.embeddings.word_embeddings", "predictions.decoder"),
        ("distilbert-mlm", "distilbert.embeddings.word_embeddings", "vocab_projector"),
        ("electra-mlm", "electra.embeddings.word_embeddings", "generator_lm_head"),
        ("modernbert-mlm", "model.embeddings.tok_embeddings", "decoder"),
        ("gte-mlm", "new.embeddings.word_embeddings", "lm_head.decoder"),
    ] {
        let [table, matrix] = [table, matrix].map(|name| format!("{name}.weight"));
        let folder = copy(fixture);
        change(&folder.path().join("model.safetensors"), |tensors| {
            let words = tensors.remove(&table).unwrap();
            tensors.insert(matrix, words);
        });
        assert_eq!(word_logits(folder.path()), word_logits(&data(fixture)), "{fixture}");
        let input = Encoded { input_ids: vec![5, 6, 7], token_type_ids: Vec::new() };
        let vector = |folder: &Path| bare_vector(folder, Pooling::Mean, &input);
        assert_eq!(vector(folder.path()), vector(&data(fixture)), "{fixture}");
        set(&folder.path().join("config.json"), "tie_word_embeddings", json!(false));
        let (_, of_model) = table.split_once('.').unwrap();
        let missing = format!("model.safetensors: tensor {of_model} is missing");
        assert_eq!(error(folder.path()), missing, "{fixture}");
    }
}
