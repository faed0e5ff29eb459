//! The digest of a model: whatever changes an answer changes it, and nothing else does.

use std::{fs, path::Path, time::SystemTime};

use turbo_models::Checkpoint;

use crate::{
    common::data,
    copies::{copy_to, set_modified},
};

fn digest(folder: &Path) -> String {
    Checkpoint::open(folder).unwrap().digest()
}

#[test]
fn a_copy_is_the_same_model_and_a_changed_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for fixture in ["tiny-sentence", "tiny-dense"] {
        let folder = dir.path().join(fixture).join("elsewhere");
        copy_to(&data(fixture), &folder);
        set_modified(&folder.join("model.safetensors"), SystemTime::UNIX_EPOCH);
        let original = digest(&data(fixture));
        assert_eq!(digest(&folder), original, "{fixture}");

        // the last byte of the last tensor
        let weights = folder.join("model.safetensors");
        let whole = fs::read(&weights).unwrap();
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        fs::write(&weights, changed).unwrap();
        assert_ne!(digest(&folder), original, "{fixture}");
        fs::write(&weights, whole).unwrap();

        let config = folder.join("config.json");
        let text = fs::read_to_string(&config).unwrap();
        assert!(text.contains("1e-12"));
        fs::write(&config, text.replace("1e-12", "1e-11")).unwrap();
        assert_ne!(digest(&folder), original, "{fixture}");
    }
    let dense = dir.path().join("tiny-dense/elsewhere");
    fs::copy(data("tiny-dense").join("config.json"), dense.join("config.json")).unwrap();
    let weights = dense.join("2_Dense/model.safetensors");
    let mut changed = fs::read(&weights).unwrap();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&weights, changed).unwrap();
    assert_ne!(digest(&dense), digest(&data("tiny-dense")), "a module behind pooling");
}

#[test]
fn every_model_has_its_own() {
    let mut digests: Vec<String> = ["tiny-sentence", "tiny-dense", "bert-sharded", "bert-f16", "bert-seqcls"]
        .map(|fixture| digest(&data(fixture)))
        .to_vec();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 5);
}
