//! What only one family does.

use std::{borrow::Cow, collections::BTreeMap, error::Error, fs, path::Path, sync::Mutex};

use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView, serialize},
};
use serde_json::Value;
use tempfile::TempDir;
use turbo_graph::{Executor, Program, passes};
use turbo_models::{
    Checkpoint, Cpu, CpuOptions, Encoded, Encoder, EncoderOptions, LayoutKind, PlannerConfig, Pooling, Task,
    TokenizeError, WeightSource,
};

use crate::common::{data, golden_rows, max_difference};

fn open(fixture: &str) -> (Checkpoint, Encoder<Cpu>) {
    open_folder(&data(fixture))
}

fn open_folder(folder: &Path) -> (Checkpoint, Encoder<Cpu>) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let options = EncoderOptions::of(&checkpoint);
    let encoder = Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), &checkpoint, options).unwrap();
    (checkpoint, encoder)
}

/// A copy of a fixture's folder with other fields in its `config.json`.
fn copy(fixture: &str, fields: &[(&str, Value)]) -> TempDir {
    let (from, to) = (data(fixture), tempfile::tempdir().unwrap());
    fs::copy(from.join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    fields.iter().for_each(|(field, value)| config[*field] = value.clone());
    fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
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

/// Positions depend on the ids, so a padding id inside a text shifts all that follow. The goldens have such rows.
#[test]
fn roberta_s_goldens_have_padding_inside() {
    let rows = golden_rows("roberta-base", 2);
    let inside = |ids: &[u32]| ids[..ids.len() - 1].contains(&1);
    assert!(rows.iter().filter(|row| inside(&row.input.input_ids)).count() > 5);
}

#[test]
fn roberta_takes_as_many_tokens_as_there_are_rows_behind_that_of_padding() {
    let (checkpoint, mut encoder) = open("roberta-base");
    assert_eq!((checkpoint.config().max_position_embeddings, checkpoint.max_input_length()), (66, 64));
    let limits = encoder.limits();
    assert_eq!(limits.check_ids(&[5; 65]), Err(TokenizeError::TooLong { tokens: 65, limit: 64 }));
    for ids in [[5; 64], [1; 64]] {
        let input = Encoded { input_ids: ids.to_vec(), token_type_ids: Vec::new() };
        assert_eq!(encoder.embed_batch(&[input]).unwrap()[0].len(), 32);
    }
    let two_texts = Encoded { input_ids: vec![5, 6], token_type_ids: vec![0, 1] };
    let only_one = TokenizeError::TokenType { id: 1, type_vocab_size: 1 };
    assert_eq!(limits.check(&two_texts), Err(only_one));
}

/// Without a matrix between embeddings and layers, ELECTRA is BERT.
#[test]
fn electra_projects_only_where_widths_differ() {
    let bert = data("bert-base");
    let folder = copy("bert-base", &[("model_type", "electra".into()), ("embedding_size", 32.into())]);
    let input = Encoded { input_ids: vec![7, 8, 9], token_type_ids: vec![0, 1, 1] };
    let [vector, expected] = [folder.path(), &bert]
        .map(|folder| open_folder(folder).1.embed_batch(std::slice::from_ref(&input)).unwrap());
    assert_eq!(vector, expected);

    let folder = copy("bert-base", &[("model_type", "electra".into()), ("embedding_size", 16.into())]);
    let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
    assert!(
        error.contains("embeddings.word_embeddings.weight has shape [600, 32], expected [600, 16]"),
        "{error}"
    );
}

/// A model without token types is one whose token type rows are 0.
#[test]
fn jina_may_have_no_token_types() {
    let folder = copy("jina-base", &[]);
    let file = folder.path().join("model.safetensors");
    let model = fs::read(&file).unwrap();
    let zeros = vec![0_u8; 4 * 2 * 48];
    let table = "embeddings.token_type_embeddings.weight";
    let tensors = SafeTensors::deserialize(&model).unwrap().tensors().into_iter().map(|(name, tensor)| {
        if name == table {
            assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &[2, 48][..]));
            (name, TensorView::new(Dtype::F32, vec![2, 48], &zeros).unwrap())
        } else {
            (name, tensor)
        }
    });
    fs::write(file, serialize(tensors, None).unwrap()).unwrap();
    let none = copy("jina-base", &[("type_vocab_size", 0.into())]);
    let [vector, expected] = [none.path(), folder.path()].map(|folder| {
        let (_, mut encoder) = open_folder(folder);
        let input = Encoded { input_ids: vec![7, 8, 9], token_type_ids: Vec::new() };
        encoder.embed_batch(&[input]).unwrap()
    });
    assert_eq!(vector, expected);
}

/// Both spellings of what is scored with positions, and numbers that mean the default.
#[test]
fn deberta_s_configurations_say_one_thing_in_several_ways() {
    let input = Encoded { input_ids: (0..30).collect(), token_type_ids: Vec::new() };
    let vector = |fixture: &str, fields: &[(&str, Value)]| {
        let folder = copy(fixture, fields);
        open_folder(folder.path()).1.embed_batch(std::slice::from_ref(&input)).unwrap()
    };
    let expected = vector("deberta-base", &[]);
    for (field, value) in [
        ("pos_att_type", "p2c|c2p".into()),
        ("pos_att_type", "C2P | p2c".into()),
        ("max_relative_positions", 64.into()),
        ("max_relative_positions", Value::Null),
        ("norm_rel_ebd", "Layer_Norm|none".into()),
        ("conv_kernel_size", 0.into()),
        ("embedding_size", 32.into()),
        ("attention_head_size", 8.into()),
    ] {
        assert_eq!(vector("deberta-base", &[(field, value.clone())]), expected, "{field}: {value}");
    }
    let other = vector("deberta-base", &[("norm_rel_ebd", "none".into())]);
    assert_ne!(other, expected, "positions were normed");
    let other = vector("deberta-base", &[("max_relative_positions", 24.into())]);
    assert_ne!(other, expected, "where the steps of the logarithm lie");
    let own = vector("deberta-own", &[]);
    assert_eq!(vector("deberta-own", &[("position_buckets", Value::Null)]), own);
}

#[test]
fn what_deberta_does_not_compute_is_refused() {
    let refused = |fields: &[(&str, Value)]| {
        let folder = copy("deberta-base", fields);
        let opened = Checkpoint::open(folder.path()).and_then(|checkpoint| checkpoint.graph(Pooling::Mean));
        opened.err().unwrap().to_string().replace(&format!("{}/", folder.path().display()), "")
    };
    for (field, value, expected) in [
        ("relative_attention", false.into(), "relative_attention is \"false\", supported: true"),
        ("conv_kernel_size", 3.into(), "conv_kernel_size is \"3\", supported: 0"),
        ("pos_att_type", "c2p".into(), "pos_att_type is \"c2p\", supported: p2c|c2p"),
        ("pos_att_type", Value::Null, "pos_att_type is \"null\", supported: p2c|c2p"),
        ("embedding_size", 16.into(), "embedding_size is \"16\", supported: 32, the hidden_size"),
        ("pooler_hidden_size", 16.into(), "pooler_hidden_size is \"16\", supported: 32, the hidden_size"),
        (
            "position_buckets",
            126.into(),
            "position_buckets: is 126, expected at least 2, and half of them less than 63, one less than the positions",
        ),
    ] {
        assert_eq!(refused(&[(field, value)]), format!("config.json: {expected}"));
    }
    let error = refused(&[("position_buckets", 124.into())]);
    assert!(error.contains("encoder.rel_embeddings.weight has shape"), "{error}");
    let error = refused(&[("position_buckets", 16.into())]);
    assert!(
        error.ends_with("encoder.rel_embeddings.weight has shape [16, 32], expected [32, 32]"),
        "{error}"
    );
    let error = refused(&[("share_att_key", false.into())]);
    assert!(error.ends_with("encoder.layer.0.attention.self.pos_key_proj.weight is missing"), "{error}");
    let error = Checkpoint::open(&data("deberta-base")).unwrap().graph(Task::MaskedLm).err().unwrap();
    assert!(error.to_string().contains("masked-lm"), "{error}");
}

/// Counts how often each weight is read.
struct Counting<'a>(&'a Checkpoint, Mutex<BTreeMap<String, u32>>);

impl WeightSource for Counting<'_> {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>> {
        *self.1.lock().unwrap().entry(name.to_owned()).or_default() += 1;
        self.0.weight(name, shape)
    }
}

/// 16 weights of an inner layer, 2 of the projection, 3 tables and a norm.
#[test]
fn albert_loads_what_its_layers_share_once() {
    for (fixture, inner_layers) in [("albert-base", 1), ("albert-groups", 2 * 2)] {
        let checkpoint = Checkpoint::open(&data(fixture)).unwrap();
        let graph = checkpoint.graph(Pooling::Mean).unwrap();
        let program = Program::compile(&graph, LayoutKind::Packed, passes::ALL).unwrap();
        let (cpu, counting) =
            (Cpu::new(CpuOptions::default()).unwrap(), Counting(&checkpoint, Mutex::default()));
        Executor::new(cpu, program, &counting, PlannerConfig::default()).unwrap();
        let counts = counting.1.into_inner().unwrap();
        assert_eq!(counts.len(), 16 * inner_layers + 2 + 3 + 2, "{fixture}");
        assert!(counts.values().all(|&count| count == 1), "{fixture}: {counts:?}");
    }
}

/// No tensor bounds layers that share weights, so the numbers themselves are bounded.
#[test]
fn albert_has_no_absurd_number_of_layers() {
    let cases = [
        ("num_hidden_layers", u32::MAX, 128),
        ("inner_group_num", u32::MAX, 128 / 4),
        ("num_hidden_groups", 5, 4),
    ];
    for (field, got, limit) in cases {
        let folder = copy("albert-groups", &[(field, got.into())]);
        let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
        assert!(
            error.ends_with(&format!("config.json: {field}: is {got}, expected at most {limit}")),
            "{error}"
        );
    }
    let deepest = copy("albert-base", &[("num_hidden_layers", 128.into())]);
    assert_eq!(Checkpoint::open(deepest.path()).unwrap().config().num_hidden_layers, 128);
}

/// If the file says so, every token sees all others. Expected are the first values of the first token, from the
/// reference in float64 under a mask that hides nothing.
#[test]
fn qwen3_sees_the_whole_input_where_the_file_says_so() {
    const EXPECTED: [f32; 6] = [1.269_101_8, 0.934_260_6, -1.684_833, -1.279_933_6, 0.808_793_3, 0.619_436_3];
    let values = |fields: &[(&str, Value)]| {
        let (_, mut encoder) = open_folder(copy("qwen3-base", fields).path());
        let input = Encoded { input_ids: vec![5, 6, 7, 8, 9], token_type_ids: Vec::new() };
        encoder.embed_batch(&[input]).unwrap();
        let mut rows = Vec::new();
        encoder.tokens(0, &mut rows).unwrap();
        rows[..EXPECTED.len()].to_vec()
    };
    let causal = values(&[]);
    assert!(max_difference(&causal, &EXPECTED) > 0.1, "{causal:?}");
    for (field, says_full) in [("use_bidirectional_attention", true), ("is_causal", false)] {
        let full = values(&[(field, says_full.into())]);
        assert!(max_difference(&full, &EXPECTED) < 1e-4, "{field}: {full:?}");
        assert_eq!(values(&[(field, (!says_full).into())]), causal, "{field}");
    }
}

/// Code in a folder may do things that its configuration does not mention.
#[test]
fn a_decoder_of_its_own_code_that_does_not_say_whether_it_is_causal_is_told_of() {
    let warnings = |fixture: &str, fields: &[(&str, Value)]| {
        let folder = copy(fixture, fields);
        Checkpoint::open(folder.path()).unwrap().warnings().to_vec()
    };
    let code = |class: &str| ("auto_map", serde_json::json!({class: "modeling_qwen.Qwen2Model"}));
    let [own, other] = ["AutoModel", "AutoModelForCausalLM"].map(code);
    let told = "config.json: is_causal is not given, the model's own code may let tokens see those behind them; \
        computed as causal";
    for fixture in ["qwen2-base", "qwen3-base", "llama-base"] {
        assert_eq!(warnings(fixture, &[]), [""; 0], "{fixture}");
        assert_eq!(warnings(fixture, std::slice::from_ref(&other)), [""; 0], "{fixture}");
        for silent in [vec![], vec![("is_causal", Value::Null)]] {
            assert_eq!(warnings(fixture, &[vec![own.clone()], silent].concat()), [told], "{fixture}");
        }
        for field in ["is_causal", "use_bidirectional_attention"] {
            for value in [true, false] {
                let fields = [own.clone(), (field, value.into())];
                assert_eq!(warnings(fixture, &fields), [""; 0], "{fixture}, {field}: {value}");
            }
        }
    }
    // this family sees all tokens, whatever the file says
    assert_eq!(warnings("jina-base", &[own]), [""; 0]);
}

/// Its tokens see no more than a window, at which inputs end. A folder whose own limit is as short causes no warning.
#[test]
fn mistral_s_inputs_end_at_its_window() {
    let (checkpoint, encoder) = open("mistral-base");
    assert_eq!((encoder.limits().max_input_length, checkpoint.max_input_length()), (64, 64));
    let warning =
        "config.json: sliding_window is 64 of 512 positions: inputs end there, where it hides nothing yet";
    assert_eq!(checkpoint.warnings(), [warning]);

    let warnings = |fields: &[(&str, Value)], max_seq_length: usize| {
        let folder = copy("mistral-base", fields);
        let library = format!(r#"{{"max_seq_length": {max_seq_length}}}"#);
        fs::write(folder.path().join("sentence_bert_config.json"), library).unwrap();
        Checkpoint::open(folder.path()).unwrap().warnings().to_vec()
    };
    assert_eq!(warnings(&[], 64), [""; 0]);
    // the window explains it all, whether the limit is within the positions or not
    for longer in [65, 512, 513] {
        assert_eq!(warnings(&[], longer), [warning], "{longer}");
    }
    let all = [("sliding_window", Value::Null)];
    assert_eq!(warnings(&all, 512), [""; 0]);
    let beyond = "sentence_bert_config.json: max_seq_length is 513, the model has 512 positions";
    assert_eq!(warnings(&all, 513), [beyond]);
    let folder = copy("mistral-base", &[("sliding_window", Value::Null)]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!((checkpoint.max_input_length(), checkpoint.warnings()), (512, &[][..]));
}

/// Layers are global if the file lists them, or else every so many, as in the reference; transformers 5 writes rotation
/// speeds by kind of layer.
#[test]
fn gemma3_s_layers_and_positions_may_be_said_otherwise() {
    let rows = |fields: &[(&str, Value)]| {
        let (_, mut encoder) = open_folder(copy("gemma3-base", fields).path());
        let ids: Vec<u32> = (5..40).collect();
        encoder.embed_batch(&[Encoded { input_ids: ids, token_type_ids: Vec::new() }]).unwrap();
        let mut rows = Vec::new();
        encoder.tokens(0, &mut rows).unwrap();
        rows
    };
    let listed = rows(&[]);
    let by_kind = serde_json::json!({
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    });
    let later = [("rope_parameters", by_kind), ("rope_theta", 5.into()), ("rope_local_base_freq", 7.into())];
    let same: [&[(&str, Value)]; 4] = [
        &[("layer_types", Value::Null)],
        &[("layer_types", Value::Null), ("sliding_window_pattern", 6.into())],
        &[("sliding_window", 9.into())],
        &later,
    ];
    for fields in same {
        assert!(rows(fields) == listed, "{fields:?}");
    }
    let others: [&[(&str, Value)]; 5] = [
        &[("layer_types", Value::Null), ("sliding_window_pattern", 5.into())],
        &[("sliding_window", 10.into())],
        &[("rope_theta", 5.into())],
        &[("rope_local_base_freq", 7.into())],
        &[("query_pre_attn_scalar", 16.into())],
    ];
    for fields in others {
        assert!(max_difference(&rows(fields), &listed) > 1e-3, "{fields:?}");
    }
    let folder = copy("gemma3-base", &[("query_pre_attn_scalar", 0.into())]);
    let error = Checkpoint::open(folder.path()).err().unwrap().to_string();
    assert!(error.ends_with("config.json: query_pre_attn_scalar: is 0, expected more than 0"), "{error}");
}

/// As Voyage's models are published: a matrix changes the width of rows, those of tokens and so those of texts.
#[test]
fn qwen3_s_projection() {
    let folder =
        copy("qwen3-base", &[("num_labels", 8.into()), ("use_bidirectional_attention", true.into())]);
    let input = Encoded { input_ids: vec![5, 90, 17, 17, 3], token_type_ids: vec![] };
    let rows = |folder: &Path| {
        let checkpoint = Checkpoint::open(folder).unwrap();
        let options = EncoderOptions { task: Pooling::Mean.into(), ..EncoderOptions::of(&checkpoint) };
        let cpu = Cpu::new(CpuOptions::default()).unwrap();
        let mut encoder = Encoder::new(cpu, &checkpoint, options).unwrap();
        let pooled = encoder.embed_batch(std::slice::from_ref(&input)).unwrap().remove(0);
        let mut tokens = Vec::new();
        encoder.tokens(0, &mut tokens).unwrap();
        assert_eq!((encoder.pooled_len(), encoder.token_len()), (Some(pooled.len()), Some(tokens.len() / 5)));
        (pooled, tokens)
    };
    let (pooled, tokens) = rows(folder.path());
    assert_eq!((pooled.len(), tokens.len()), (32, 5 * 32), "there is no such matrix");

    let file = folder.path().join("model.safetensors");
    let weights: Vec<f32> = (0..8 * 32).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect();
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let model = fs::read(&file).unwrap();
    let matrix = TensorView::new(Dtype::F32, vec![8, 32], &bytes).unwrap();
    let tensors = SafeTensors::deserialize(&model).unwrap().tensors();
    let tensors = tensors.into_iter().chain([("linear.weight".to_owned(), matrix)]);
    fs::write(file, serialize(tensors, None).unwrap()).unwrap();
    let product = |row: &[f32]| -> Vec<f32> {
        let dot =
            |weights: &[f32]| row.iter().zip(weights).map(|(x, w)| f64::from(x * w)).sum::<f64>() as f32;
        weights.chunks_exact(32).map(dot).collect()
    };
    let (got_pooled, got_tokens) = rows(folder.path());
    let expected: Vec<f32> = tokens.chunks_exact(32).flat_map(product).collect();
    assert!(max_difference(&got_tokens, &expected) < 1e-4, "{got_tokens:?}");
    assert!(max_difference(&got_pooled, &product(&pooled)) < 1e-4, "{got_pooled:?}");
    // the library saves the labels' names instead of their number
    let again = |labels: Value| {
        let fields = [("id2label", labels), ("use_bidirectional_attention", true.into())];
        let again = copy("qwen3-base", &fields);
        fs::copy(folder.path().join("model.safetensors"), again.path().join("model.safetensors")).unwrap();
        again
    };
    let names = (0..8).map(|i| (i.to_string(), format!("LABEL_{i}").into())).collect();
    assert_eq!(rows(again(Value::Object(names)).path()), (got_pooled, got_tokens));
    let error = Checkpoint::open(again(Value::Null).path()).err().unwrap();
    assert!(error.to_string().ends_with("linear.weight has shape [8, 32], expected [2, 32]"), "{error}");
}

/// NVIDIA's Llama is Llama in which every token sees all others.
#[test]
fn llama_in_both_directions() {
    let rows = |fields: &[(&str, Value)]| {
        let folder = copy("llama-base", fields);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert!(checkpoint.warnings().is_empty(), "{:?}", checkpoint.warnings());
        let options = EncoderOptions { task: Pooling::Mean.into(), ..EncoderOptions::of(&checkpoint) };
        let mut encoder =
            Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), &checkpoint, options).unwrap();
        let input = Encoded { input_ids: vec![5, 90, 17, 17, 3], token_type_ids: vec![] };
        encoder.embed_batch(std::slice::from_ref(&input)).unwrap();
        let mut tokens = Vec::new();
        encoder.tokens(0, &mut tokens).unwrap();
        tokens
    };
    let both = rows(&[
        ("model_type", "llama_bidirec".into()),
        ("architectures", vec!["LlamaBidirectionalModel"].into()),
    ]);
    assert_eq!(both, rows(&[("is_causal", false.into())]));
    assert!(max_difference(&both, &rows(&[])) > 1e-3);
}

/// A decoder classifies by the last token that is not padding; if there is only padding, by the first.
#[test]
fn padding_at_the_end_changes_no_label() {
    let input = |ids: &[u32]| Encoded { input_ids: ids.to_vec(), token_type_ids: vec![0; ids.len()] };
    let (checkpoint, mut classifier) = open("qwen3-rerank");
    let mut labels = |ids: &[u32]| classifier.embed_batch(&[input(ids)]).unwrap();
    let alike: [[&[u32]; 2]; 4] = [
        [&[5, 7, 9], &[5, 7, 9, 0]],
        [&[5, 7, 9], &[5, 7, 9, 0, 0]],
        [&[5, 0, 9], &[5, 0, 9, 0]],
        [&[0], &[0, 0]],
    ];
    for [short, long] in alike {
        assert_eq!(labels(short), labels(long), "{long:?}");
    }
    assert_ne!(labels(&[5, 7, 9]), labels(&[5, 7, 0, 9]), "inside an input it is seen");

    let options = EncoderOptions { task: Pooling::LastToken.into(), ..EncoderOptions::of(&checkpoint) };
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let mut embedder = Encoder::new(cpu, &checkpoint, options).unwrap();
    let mut vector = |ids: &[u32]| embedder.embed_batch(&[input(ids)]).unwrap();
    assert_ne!(
        vector(&[5, 7, 9]),
        vector(&[5, 7, 9, 0]),
        "a vector is that of the last token, whatever it is"
    );
}

/// The other tokens would see what is dropped at the end.
#[test]
fn a_classifier_by_the_last_token_that_sees_the_whole_input_is_refused() {
    let refused = |fields: &[(&str, Value)]| {
        let folder = copy("qwen3-rerank", fields);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let cpu = Cpu::new(CpuOptions::default()).unwrap();
        let refused = Encoder::new(cpu, &checkpoint, EncoderOptions::of(&checkpoint))
            .err()
            .map(|error| error.to_string());
        // this is known before anything is packed
        assert_eq!(checkpoint.supports(Task::SequenceClassification), refused.is_none());
        let warned =
            checkpoint.warnings().iter().any(|warning| warning.starts_with("no sequence-classification: "));
        assert_eq!(warned, refused.is_some());
        refused
    };
    for (field, value) in [("is_causal", false), ("use_bidirectional_attention", true)] {
        let error = refused(&[(field, value.into())]).unwrap();
        let expected = format!("{field} is \"{value}\", supported: {}, where the last token", !value);
        assert!(error.contains(&expected), "{error}");
    }
    let no_padding = [("is_causal", false.into()), ("pad_token_id", (-1).into())];
    assert_eq!(refused(&no_padding), None);
}
