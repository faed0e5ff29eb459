//! What only whole processes can show: how much memory stays resident once a model is loaded, and that processes that
//! start together share a cache of packed weights.
//!
//! Each process is this program again: an environment variable tells it to load a model and print what that took.

mod folder;

use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde::{Deserialize, Serialize};
use turbo_models::{Checkpoint, Cpu, CpuOptions, DType, Encoded, Encoder, EncoderOptions, PackedCache};

/// The variable that holds a child's orders: a [`Start`] as JSON.
const CHILD: &str = "TURBO_MODELS_TEST_START";

/// Memory that is not the model's: code, tokenizer, threads, what the allocator keeps.
const OTHER_BYTES: usize = 64 << 20;

/// What a process should load.
#[derive(Serialize, Deserialize)]
struct Start {
    folder: String,
    dtype: String,
    cache: Option<String>,
}

/// What a process reports.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    /// `None` if the system does not tell.
    resident_bytes: Option<usize>,
    packed_bytes: usize,
    table_bytes: usize,
    batch_bytes: usize,
    /// Numbers of restored and packed weights.
    cache_use: Option<(usize, usize)>,
    warning: Option<String>,
    vector: Vec<u32>,
}

fn main() {
    match env::var(CHILD) {
        Ok(start) => {
            let report = load(&serde_json::from_str(&start).expect("the parent wrote it"));
            println!("{}", serde_json::to_string(&report).expect("numbers and text"));
        }
        Err(_) => {
            let dir = tempfile::tempdir().expect("a folder for the model");
            let model = dir.path().join("model");
            folder::write(&model).expect("room for the model");
            little_stays_resident(&model);
            processes_share_a_cache(&model, &dir.path().join("cache"));
            println!("memory and cache of whole processes: ok");
        }
    }
}

/// In the child: loads, runs one text, and reports what that took.
fn load(start: &Start) -> Report {
    let checkpoint = Checkpoint::open(Path::new(&start.folder)).expect("the parent wrote it");
    let cache = start.cache.as_ref().map(|dir| PackedCache::open(Path::new(dir)).expect("a folder"));
    let dtype = start.dtype.parse().expect("a dtype");
    let options = EncoderOptions { dtype, packed_cache: cache, ..EncoderOptions::of(&checkpoint) };
    let cpu = Cpu::new(CpuOptions::default()).expect("every machine has one");
    let mut encoder = Encoder::new(cpu, &checkpoint, options).expect("the folder is sound");
    let input = Encoded { input_ids: (0..64).map(|i| i * 97).collect(), token_type_ids: Vec::new() };
    let vectors = encoder.embed_batch(&[input]).expect("the input fits");
    let (memory, cache_use) = (encoder.memory(), encoder.cache_use());
    Report {
        resident_bytes: resident_bytes(),
        packed_bytes: memory.packed_bytes,
        table_bytes: memory.table_bytes,
        batch_bytes: memory.footprint_bytes + memory.output_bytes,
        cache_use: cache_use.map(|used| (used.restored, used.packed)),
        warning: cache_use.and_then(|used| used.warning.clone()),
        vector: vectors[0].iter().map(|value| value.to_bits()).collect(),
    }
}

/// Of this process; `None` if there is no `/proc`.
fn resident_bytes() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10)
}

fn start(model: &Path, dtype: DType, cache: Option<&Path>) -> Child {
    let text = |path: &Path| path.to_str().expect("a path of letters").to_owned();
    let start = Start { folder: text(model), dtype: dtype.to_string(), cache: cache.map(text) };
    Command::new(env::current_exe().expect("this program"))
        .env(CHILD, serde_json::to_string(&start).expect("text"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

fn report(child: Child) -> Report {
    let output = child.wait_with_output().expect("it was started");
    assert!(output.status.success(), "the child says why above");
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// Nothing of the file stays in memory, and nothing is in memory twice.
fn little_stays_resident(model: &Path) {
    let file = fs::metadata(model.join("model.safetensors")).expect("it was written").len() as usize;
    for dtype in DType::ALL {
        let report = report(start(model, dtype, None));
        let model_bytes = report.packed_bytes + report.table_bytes;
        if dtype == DType::F32 {
            assert!(model_bytes >= file * 9 / 10, "{model_bytes} of {file} bytes are accounted for");
        }
        let bound = model_bytes * 115 / 100 + report.batch_bytes + OTHER_BYTES;
        assert!(bound < model_bytes + file, "{dtype}: the test would not see the file's pages");
        match report.resident_bytes {
            Some(resident) => {
                assert!(resident <= bound, "{dtype}: {resident} bytes, at most {bound}: {report:?}")
            }
            None => eprintln!("skipped: the system does not say how much memory is resident"),
        }
    }
}

fn processes_share_a_cache(model: &Path, cache: &Path) {
    for dtype in DType::ALL {
        let expected = report(start(model, dtype, None)).vector;
        let together: Vec<Child> = (0..3).map(|_| start(model, dtype, Some(cache))).collect();
        for child in together {
            let report = report(child);
            assert_eq!((&report.warning, &report.vector), (&None, &expected), "{dtype}");
        }
        let later = report(start(model, dtype, Some(cache)));
        assert_eq!((&later.warning, &later.vector), (&None, &expected), "{dtype}");
        let (restored, packed) = later.cache_use.expect("there is a cache");
        assert!(restored > 0 && packed == 0, "{dtype}: {restored} restored, {packed} packed");
    }
    let files = fs::read_dir(cache).expect("it was used").count();
    assert_eq!(files, DType::ALL.len(), "a file for each dtype, and nothing else");
}
