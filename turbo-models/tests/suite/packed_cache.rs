//! Encoders that share a cache of packed weights: what is restored, and when the file is not used.

use std::{fs, path::Path, time::Duration};

use turbo_models::{
    CacheUse, Checkpoint, Cpu, CpuOptions, DType, Encoded, Encoder, EncoderOptions, PackedCache, Pooling,
    Task,
};

use crate::{
    common::data,
    copies::{copy_to, set_modified},
};

/// Makes an encoder; returns what the cache did for it, and the encoder's rows.
fn start(folder: &Path, cache: Option<&Path>, options: impl Fn(EncoderOptions) -> EncoderOptions) -> Started {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let packed_cache = cache.map(|dir| PackedCache::open(dir).unwrap());
    let options = options(EncoderOptions { packed_cache, ..EncoderOptions::of(&checkpoint) });
    let mut encoder = Encoder::new(Cpu::new(CpuOptions::default()).unwrap(), &checkpoint, options).unwrap();
    let input = Encoded { input_ids: (1..20).collect(), token_type_ids: vec![] };
    let rows = encoder.embed_batch(&[input]).unwrap().remove(0);
    Started { cache_use: encoder.cache_use().cloned(), rows }
}

struct Started {
    cache_use: Option<CacheUse>,
    rows: Vec<f32>,
}

impl Started {
    /// Numbers of restored and packed weights; nothing may have gone wrong.
    fn counts(&self) -> (usize, usize) {
        let CacheUse { restored, packed, warning, .. } = self.cache_use.as_ref().unwrap();
        assert_eq!(*warning, None);
        (*restored, *packed)
    }
}

#[test]
fn the_second_start_restores_every_matrix() {
    let cache = tempfile::tempdir().unwrap();
    // several files; dense modules; gates; tied words; a row minus another
    for fixture in [
        "bert-sharded",
        "tiny-dense",
        "modernbert-base",
        "qwen3-wide",
        "gemma3-listed",
        "bert-f16",
        "albert-groups",
        "tiny-logit-score",
    ] {
        for dtype in DType::ALL {
            let of = |cache| start(&data(fixture), cache, |options| EncoderOptions { dtype, ..options });
            let (without, first, second) = (of(None), of(Some(cache.path())), of(Some(cache.path())));
            assert_eq!(without.cache_use, None);
            let ((restored, packed), again) = (first.counts(), second.counts());
            assert!(restored == 0 && packed > 0, "{fixture}, {dtype}: {restored} and {packed}");
            assert_eq!(again, (packed, 0), "{fixture}, {dtype}");
            assert_eq!((&first.rows, &second.rows), (&without.rows, &without.rows), "{fixture}, {dtype}");
        }
    }
}

#[test]
fn tasks_share_what_they_share() {
    let cache = tempfile::tempdir().unwrap();
    let of = |task: Task| {
        start(&data("bert-seqcls"), Some(cache.path()), |options| EncoderOptions { task, ..options }).counts()
    };
    let (_, of_layers) = of(Pooling::Mean.into());
    let (restored, packed) = of(Task::SequenceClassification);
    // in the last layer only one token has a query, so the matrix of queries is separate from that of keys and values
    assert_eq!(
        (restored, packed),
        (of_layers - 1, 4),
        "two of the last layer, the pooler's and the classifier's"
    );
    // the vector of the first token goes the same way behind the last attention
    assert_eq!(of(Pooling::Cls.into()), (of_layers - 1 + 2, 0));
    assert_eq!(of(Task::SequenceClassification), (of_layers - 1 + 4, 0));
}

/// The path and name of the folder are not part of the weights' identity.
#[test]
fn a_copy_with_its_times_is_the_same_model() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [here, there] = ["here/a", "there/b"].map(|folder| dir.path().join(folder));
    [&here, &there].into_iter().for_each(|folder| copy_to(&data("tiny-sentence"), folder));
    let (_, packed) = start(&here, Some(cache.path()), |options| options).counts();
    assert_eq!(start(&there, Some(cache.path()), |options| options).counts(), (packed, 0));
}

#[test]
fn a_changed_model_is_packed_anew() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = dir.path().join("model");
    copy_to(&data("tiny-dense"), &model);
    let mut files = Vec::new();
    let mut is_new = |what: &str| {
        let started = start(&model, Some(cache.path()), |options| options);
        assert!(matches!(started.counts(), (0, 1..)), "{what}: {:?}", started.cache_use);
        assert_eq!(started.rows, start(&model, None, |options| options).rows, "{what}");
        let file = started.cache_use.unwrap().file;
        assert!(!files.contains(&file), "{what}");
        files.push(file);
    };
    is_new("first");

    let weights = model.join("model.safetensors");
    let modified = fs::metadata(&weights).unwrap().modified().unwrap();
    set_modified(&weights, modified + Duration::from_nanos(1000));
    is_new("a microsecond later");

    // another training of the same shape, in an archive that keeps no times
    let mut bytes = fs::read(&weights).unwrap();
    let data_begins = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for value in bytes[data_begins..].as_chunks_mut::<4>().0 {
        *value = (f32::from_le_bytes(*value) * 0.75).to_le_bytes();
    }
    fs::write(&weights, &bytes).unwrap();
    set_modified(&weights, modified + Duration::from_nanos(1000));
    is_new("other values at the same time");

    let dense = model.join("2_Dense/model.safetensors");
    set_modified(&dense, fs::metadata(&dense).unwrap().modified().unwrap() + Duration::from_secs(1));
    is_new("another dense module");
}

#[test]
fn a_damaged_file_costs_a_warning_and_is_repaired() {
    let cache = tempfile::tempdir().unwrap();
    let of = || start(&data("bert-base"), Some(cache.path()), |options| options);
    let (first, expected) = (of(), of().rows);
    let (file, (_, packed)) = (&first.cache_use.as_ref().unwrap().file, first.counts());
    let mut bytes = fs::read(file).unwrap();
    bytes[4096 + 17] ^= 1; // of the first image
    fs::write(file, &bytes).unwrap();
    let repaired = of();
    let CacheUse { restored, packed: anew, warning, .. } = repaired.cache_use.clone().unwrap();
    assert_eq!((restored, anew), (packed - 1, 1));
    let warning = warning.unwrap();
    assert!(warning.starts_with(&file.display().to_string()), "{warning}");
    assert!(warning.ends_with(" is damaged; packed anew"), "{warning}");
    let after = of();
    assert_eq!(after.counts(), (packed, 0));
    assert_eq!((repaired.rows, after.rows), (expected.clone(), expected));
}
