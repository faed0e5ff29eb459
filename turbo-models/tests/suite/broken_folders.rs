//! Every broken folder gives one line that names the file and what is wrong in it. None of them panics, and none makes
//! the loader allocate memory by a number that it read.

use std::{collections::BTreeMap, fs, path::Path};

use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};
use tempfile::TempDir;
use turbo_models::Checkpoint;

/// Name, type, shape and bytes of each tensor in a file.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// How something is broken, and the message about it.
type Case<T> = (fn(&mut T), &'static str);

/// A sound model folder that a test then breaks.
struct Folder(TempDir);

impl Folder {
    fn sound() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({
            "model_type": "bert", "vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 6, "max_position_embeddings": 3, "type_vocab_size": 2
        });
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let folder = Self(dir);
        folder.write_tensors("model.safetensors", &tensors());
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), content).unwrap();
    }

    fn write_tensors(&self, name: &str, tensors: &Tensors) {
        self.write(name, file_of(tensors));
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path().join(name)).unwrap()
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    fn set(&self, field: &str, value: Value) {
        let mut config: Value = serde_json::from_slice(&self.read("config.json")).unwrap();
        config[field] = value;
        self.write("config.json", config.to_string());
    }

    /// Replaces the header's JSON and keeps the data.
    fn edit_header(&self, edit: impl FnOnce(&mut Value)) {
        let file = self.read("model.safetensors");
        let (length, rest) = file.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let mut header: Value = serde_json::from_slice(header).unwrap();
        edit(&mut header);
        let header = header.to_string();
        self.write("model.safetensors", framed(header.as_bytes(), data));
    }

    /// The one line that opening it gives, without the folder's own path.
    fn error(&self) -> String {
        let error = Checkpoint::open(self.path()).err().expect("a broken folder must not open").to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        let path = fs::canonicalize(self.path()).unwrap();
        error.replace(&format!("{}/", path.display()), "")
    }
}

fn framed(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

fn file_of(tensors: &Tensors) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    serialize(views, None).unwrap()
}

/// All weights of a BERT of one layer.
fn tensors() -> Tensors {
    let mut tensors = Tensors::new();
    let mut add = |name: String, shape: &[usize]| {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        tensors.insert(name, (Dtype::F32, shape.to_vec(), bytes));
    };
    for (table, rows) in [("word", 5), ("token_type", 2), ("position", 3)] {
        add(format!("embeddings.{table}_embeddings.weight"), &[rows, 4]);
    }
    let linear = [
        ("attention.self.query", 4, 4),
        ("attention.self.key", 4, 4),
        ("attention.self.value", 4, 4),
        ("attention.output.dense", 4, 4),
        ("intermediate.dense", 6, 4),
        ("output.dense", 4, 6),
    ];
    for (name, outputs, inputs) in linear {
        add(format!("encoder.layer.0.{name}.weight"), &[outputs, inputs]);
        add(format!("encoder.layer.0.{name}.bias"), &[outputs]);
    }
    for name in ["embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"] {
        add(format!("{name}.LayerNorm.weight"), &[4]);
        add(format!("{name}.LayerNorm.bias"), &[4]);
    }
    tensors
}

const WORDS: &str = "embeddings.word_embeddings.weight";

#[test]
fn the_sound_folder_opens() {
    let folder = Folder::sound();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.max_input_length(), 3);
    assert_eq!(checkpoint.name(), folder.path().file_name().unwrap().to_string_lossy());
    assert!(checkpoint.tokenizer().is_none() && checkpoint.pooling().is_none());
    assert!(checkpoint.warnings().is_empty());
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error = Checkpoint::open(Path::new("no/such/folder")).err().unwrap().to_string();
    assert!(error.starts_with("no/such/folder: "), "{error}");
}

#[test]
fn broken_configurations() {
    let folder = Folder::sound();
    folder.remove("config.json");
    assert_eq!(folder.error(), "config.json: there is no such file");
    folder.write("config.json", "{\"model_type\":");
    assert_eq!(folder.error(), "config.json: EOF while parsing a value at line 1 column 14");
    folder.write("config.json", "[1]");
    assert_eq!(folder.error(), "config.json: invalid type: sequence, expected a map at line 1 column 0");
}

/// Sizes are trusted only when the weights have them, so an absurd one fails at the first tensor, at once.
#[test]
fn absurd_sizes() {
    let cases = [
        ("num_hidden_layers", "tensor encoder.layer.1.attention.self.query.weight is missing"),
        ("vocab_size", "tensor embeddings.word_embeddings.weight has shape [5, 4], expected [4294967295, 4]"),
        (
            "max_position_embeddings",
            "tensor embeddings.position_embeddings.weight has shape [3, 4], expected [4294967295, 4]",
        ),
        (
            "intermediate_size",
            "tensor encoder.layer.0.intermediate.dense.weight has shape [6, 4], expected [4294967295, 4]",
        ),
    ];
    for (field, why) in cases {
        let folder = Folder::sound();
        folder.set(field, json!(u32::MAX));
        assert_eq!(folder.error(), format!("model.safetensors: {why}"));
    }
    let folder = Folder::sound();
    folder.set("hidden_size", json!(4_294_967_294_u32));
    assert_eq!(
        folder.error(),
        format!("model.safetensors: tensor {WORDS} has shape [5, 4], expected [5, 4294967294]")
    );
}

#[test]
fn broken_tensors() {
    let cases: [Case<Tensors>; 4] = [
        (
            |tensors| drop(tensors.remove("encoder.layer.0.output.dense.bias")),
            "tensor encoder.layer.0.output.dense.bias is missing",
        ),
        (
            |tensors| tensors.get_mut(WORDS).unwrap().1 = vec![4, 5],
            "tensor embeddings.word_embeddings.weight has shape [4, 5], expected [5, 4]",
        ),
        (
            |tensors| tensors.get_mut(WORDS).unwrap().1 = vec![20],
            "tensor embeddings.word_embeddings.weight has shape [20], expected [5, 4]",
        ),
        (
            |tensors| tensors.get_mut(WORDS).unwrap().0 = Dtype::I32,
            "tensor embeddings.word_embeddings.weight holds I32, expected F32, F16 or BF16",
        ),
    ];
    for (break_it, why) in cases {
        let folder = Folder::sound();
        let mut tensors = tensors();
        break_it(&mut tensors);
        folder.write_tensors("model.safetensors", &tensors);
        assert_eq!(folder.error(), format!("model.safetensors: {why}"));
    }
}

#[test]
fn broken_headers() {
    let sound = Folder::sound().read("model.safetensors");
    let length = sound.len() - 8;
    let huge = [&u64::MAX.to_le_bytes(), &sound[8..]].concat();
    let beyond = [&(length as u64 + 1).to_le_bytes(), &sound[8..]].concat();
    let cases: [(&[u8], String); 6] = [
        (&sound[..5], "5 bytes are too few for a safetensors header".to_owned()),
        (&huge, format!("the header claims 18446744073709551615 bytes, the file has {length}")),
        (&beyond, format!("the header claims {} bytes, the file has {length}", length + 1)),
        (&framed(b"not JSON", &[]), "invalid JSON in header: expected ident at line 1 column 2".to_owned()),
        (
            &framed(b"\xff\xfe", &[]),
            "invalid UTF-8 in header: invalid utf-8 sequence of 1 bytes from index 0".to_owned(),
        ),
        (&framed(b"{}", &[0; 3]), "the header describes less than the file's 3 bytes of data".to_owned()),
    ];
    for (file, why) in cases {
        let folder = Folder::sound();
        folder.write("model.safetensors", file);
        assert_eq!(folder.error(), format!("model.safetensors: {why}"));
    }
}

#[test]
fn truncated_weights() {
    let folder = Folder::sound();
    let sound = folder.read("model.safetensors");
    folder.write("model.safetensors", &sound[..sound.len() - 100]);
    let error = folder.error();
    assert!(error.starts_with("model.safetensors: tensor ") && error.contains("lie outside"), "{error}");
    folder.write("model.safetensors", "");
    assert!(folder.error().starts_with("model.safetensors: "), "{}", folder.error());
}

#[test]
fn lying_headers() {
    let cases: [Case<Value>; 6] = [
        (
            |header| header[WORDS]["shape"] = json!([5, 5]),
            "tensor embeddings.word_embeddings.weight: bytes 112..192 do not hold [5, 5] values of F32",
        ),
        (
            |header| header[WORDS]["shape"] = json!([u64::MAX, 4]),
            "tensor embeddings.word_embeddings.weight: bytes 112..192 do not hold [18446744073709551615, 4] values of F32",
        ),
        (
            |header| header[WORDS]["data_offsets"] = json!([1_000_000_000_080_u64, 1_000_000_000_160_u64]),
            "tensor embeddings.word_embeddings.weight: bytes 1000000000080..1000000000160 lie outside the file's",
        ),
        (
            |header| header[WORDS]["data_offsets"] = json!([0, 80]),
            "tensor embeddings.word_embeddings.weight: its bytes overlap another tensor's, or leave a hole before it",
        ),
        (
            |header| header[WORDS]["dtype"] = json!("F31"),
            "tensor embeddings.word_embeddings.weight: unknown variant `F31`",
        ),
        (
            |header| header[WORDS]["data_offsets"] = json!([-1, 80]),
            "tensor embeddings.word_embeddings.weight: invalid value: integer `-1`",
        ),
    ];
    for (lie, why) in cases {
        let folder = Folder::sound();
        folder.edit_header(lie);
        let error = folder.error();
        let expected = format!("model.safetensors: {why}");
        assert!(error.starts_with(&expected), "{error}\ninstead of\n{expected}");
    }
}

/// Two entries of the same name are one tensor; the bytes of the other belong to none.
#[test]
fn duplicate_tensors() {
    let header = br#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#;
    let folder = Folder::sound();
    folder.write("model.safetensors", framed(header, &[0; 4]));
    let error = folder.error();
    assert!(error.starts_with("model.safetensors: tensor a: its bytes overlap"), "{error}");
}

#[test]
fn missing_weights() {
    let folder = Folder::sound();
    folder.remove("model.safetensors");
    assert!(folder.error().starts_with("model.safetensors: "), "{}", folder.error());
}

/// A folder whose weights are in two files, as the index `map` says.
fn sharded(edit: impl FnOnce(&mut BTreeMap<String, String>)) -> Folder {
    let folder = Folder::sound();
    folder.remove("model.safetensors");
    let (words, rest): (Tensors, Tensors) = tensors().into_iter().partition(|(name, _)| name == WORDS);
    folder.write_tensors("one.safetensors", &words);
    folder.write_tensors("two.safetensors", &rest);
    let mut map: BTreeMap<String, String> =
        rest.into_keys().map(|name| (name, "two.safetensors".to_owned())).collect();
    map.insert(WORDS.to_owned(), "one.safetensors".to_owned());
    edit(&mut map);
    folder.write("model.safetensors.index.json", json!({"weight_map": map}).to_string());
    folder
}

#[test]
fn sound_shards_open() {
    Checkpoint::open(sharded(|_| ()).path()).unwrap();
}

const INDEX: &str = "model.safetensors.index.json";

/// As a copy that was interrupted leaves it.
#[test]
fn an_index_beside_the_one_file_is_not_read() {
    let folder = Folder::sound();
    folder.write(INDEX, "");
    Checkpoint::open(folder.path()).unwrap();
}

#[test]
fn broken_shards() {
    let set_shard = |shard: &'static str| {
        sharded(move |map| drop(map.insert(WORDS.to_owned(), shard.to_owned()))).error()
    };
    for outside in ["../one.safetensors", "/one.safetensors", "sub/one.safetensors", "..", ".", ""] {
        let expected = format!("{INDEX}: weight_map: {outside:?} is not the name of a file in this folder");
        assert_eq!(set_shard(outside), expected);
    }
    assert!(set_shard("three.safetensors").starts_with("three.safetensors: "));
    assert_eq!(set_shard("two.safetensors"), format!("two.safetensors: tensor {WORDS} is missing"));
    let unlisted = sharded(|map| drop(map.remove(WORDS))).error();
    assert_eq!(unlisted, format!("{INDEX}: tensor {WORDS} is missing"));
    let folder = sharded(|_| ());
    folder.write(INDEX, "{}");
    assert_eq!(folder.error(), format!("{INDEX}: weight_map: is missing"));
    folder.write(INDEX, r#"{"weight_map": {"a": 1}}"#);
    assert_eq!(folder.error(), format!("{INDEX}: weight_map: invalid type: integer `1`, expected a string"));
}

/// One change to a file.
#[derive(Clone, Debug)]
enum Damage {
    Flip { at: prop::sample::Index, bit: u8 },
    Set { at: prop::sample::Index, to: u8 },
    Cut { at: prop::sample::Index },
    Grow { by: usize },
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<prop::sample::Index>(), 0_u8..8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        4 => (any::<prop::sample::Index>(), prop::sample::select(b"{}[]\",:0189-eE.\\\0\xff".to_vec()))
            .prop_map(|(at, to)| Damage::Set { at, to }),
        1 => any::<prop::sample::Index>().prop_map(|at| Damage::Cut { at }),
        1 => (1_usize..9).prop_map(|by| Damage::Grow { by }),
    ]
}

fn apply(file: &mut Vec<u8>, damage: &Damage, header_len: usize) {
    if file.is_empty() {
        return;
    }
    let in_header = file.len().min(header_len);
    match damage {
        Damage::Flip { at, bit } => file[at.index(in_header)] ^= 1 << bit,
        Damage::Set { at, to } => file[at.index(in_header)] = *to,
        Damage::Cut { at } => file.truncate(at.index(file.len())),
        Damage::Grow { by } => file.resize(file.len() + by, 0),
    }
}

proptest! {
    /// Whatever happens to the weights, opening them succeeds or fails with one line.
    #[test]
    fn damaged_weights_never_panic(damages in prop::collection::vec(damage(), 1..4)) {
        let folder = Folder::sound();
        let mut file = folder.read("model.safetensors");
        let header_len = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        for damage in &damages {
            apply(&mut file, damage, header_len);
        }
        folder.write("model.safetensors", &file);
        if let Err(error) = Checkpoint::open(folder.path()) {
            let error = error.to_string();
            prop_assert_eq!(error.lines().count(), 1, "{}", &error);
            prop_assert!(error.contains("model.safetensors: "), "{}", &error);
        }
    }

    /// The same for the tokenizer.
    #[test]
    fn damaged_tokenizers_never_panic(damages in prop::collection::vec(damage(), 1..4)) {
        let sound = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny-sentence/tokenizer.json");
        let folder = Folder::sound();
        let mut file = fs::read(sound).unwrap();
        for damage in &damages {
            apply(&mut file, damage, usize::MAX);
        }
        folder.write("tokenizer.json", &file);
        if let Err(error) = Checkpoint::open(folder.path()) {
            let error = error.to_string();
            prop_assert_eq!(error.lines().count(), 1, "{}", &error);
            prop_assert!(error.contains("tokenizer.json: "), "{}", &error);
        }
    }

    /// The same for the configuration of every family.
    #[test]
    fn damaged_configurations_of_any_family_never_panic(
        damages in prop::collection::vec(damage(), 1..4),
        family in prop::sample::select(vec![
            "albert-groups", "distilbert-seqcls", "electra-mlm", "mpnet-mlm", "modernbert-mean", "nomic-base", "nomic-experts",
            "gte-rerank", "deberta-own", "qwen3-wide", "qwen2-full", "mistral-rerank", "llama-base", "gemma3-listed",
            "jina-code",
        ]),
    ) {
        let sound = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(family);
        let folder = Folder::sound();
        folder.write("model.safetensors", fs::read(sound.join("model.safetensors")).unwrap());
        let mut file = fs::read(sound.join("config.json")).unwrap();
        for damage in &damages {
            apply(&mut file, damage, usize::MAX);
        }
        folder.write("config.json", &file);
        match Checkpoint::open(folder.path()) {
            Ok(checkpoint) => prop_assert!(checkpoint.warnings().iter().all(|line| line.lines().count() == 1)),
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1, "{}", error),
        }
    }

    /// The same for the configuration.
    #[test]
    fn damaged_configurations_never_panic(damages in prop::collection::vec(damage(), 1..4)) {
        let folder = Folder::sound();
        let mut file = folder.read("config.json");
        for damage in &damages {
            apply(&mut file, damage, usize::MAX);
        }
        folder.write("config.json", &file);
        if let Err(error) = Checkpoint::open(folder.path()) {
            prop_assert_eq!(error.to_string().lines().count(), 1, "{}", error);
        }
    }
}
