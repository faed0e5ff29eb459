//! Cost files: what comes back is what was saved, and a bad file is named.

use std::error::Error;
use std::fs;

use turbo_sched::cost::{load, save};
use turbo_sched::{BatchTotal, Candidate, CostTable, PackedCost, SchedError};

fn table() -> CostTable {
    let points = [(16, 1, 0.001_7), (16, 8, 0.1 + 0.2), (300, 1, 1e-9)];
    CostTable::from_measurements(points.map(|(len, size, cost)| (len, size, BatchTotal(cost))))
        .expect("three valid points")
}

fn packed() -> PackedCost {
    let batches: [(&[u32], f64); 3] = [(&[8], 0.001), (&[300], 0.03), (&[8; 16], 0.009)];
    let batches = batches.map(|(lens, cost)| (lens.iter().copied().collect::<Candidate>(), BatchTotal(cost)));
    PackedCost::fit(batches).expect("three valid batches")
}

#[test]
fn a_table_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("padded.json");
    let mut saved = table();
    saved.update(400, 3, BatchTotal(0.5)).unwrap();
    save(&path, &table()).unwrap();
    save(&path, &saved).unwrap(); // replaces what is there
    let loaded: CostTable = load(&path).unwrap();
    for len in [1, 16, 17, 299, 300, 400, 512] {
        for size in 1..20 {
            assert_eq!(loaded.estimate(len, size), saved.estimate(len, size), "({len}, {size})");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the file written aside is gone");
}

#[test]
fn a_packed_cost_comes_back_and_goes_on_learning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packed.json");
    let mut saved = packed();
    let batch: Candidate = [100, 20].into_iter().collect();
    saved.update(&batch, BatchTotal(0.02)).unwrap();
    save(&path, &saved).unwrap();
    let mut loaded: PackedCost = load(&path).unwrap();
    assert_eq!(loaded, saved);
    loaded.update(&batch, BatchTotal(0.03)).unwrap();
    saved.update(&batch, BatchTotal(0.03)).unwrap();
    assert_eq!(loaded, saved);
}

#[test]
fn what_another_server_writes_aside_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packed.json");
    // Files of another process 1; the saves of the other tests here take a few of these numbers.
    let aside = |n: u32| folder.path().join(format!("packed.json.{}-{n}.tmp", std::process::id()));
    (0..100).for_each(|n| fs::write(aside(n), "half").unwrap());
    save(&path, &packed()).unwrap();
    assert_eq!(load::<PackedCost>(&path).unwrap(), packed());
    assert!((0..100).all(|n| fs::read(aside(n)).is_ok_and(|text| text == b"half")));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 101, "and nothing is left beside them");
}

/// The message of an error and of its source.
fn told(error: &SchedError) -> (String, String) {
    (error.to_string(), error.source().expect("a file has a reason").to_string())
}

#[test]
fn a_bad_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("costs.json");
    let good = serde_json::to_string(&table()).unwrap();
    for (text, part) in [
        ("", "EOF while parsing"),
        (&good[..good.len() / 2], "EOF while parsing"),
        ("[1, 2]", "expected"),
        (r#"{"points":[]}"#, "no measurement given"),
        (r#"{"points":[{"seq_len":5,"batch_size":1,"batch_total":-2}]}"#, "got -2"),
        (r#"{"points":[{"seq_len":5,"batch_size":1,"per_request":2}]}"#, "unknown field `per_request`"),
        (r#"{"points":[{"seq_len":0,"batch_size":1,"batch_total":2}]}"#, "seq_len must be above 0"),
    ] {
        fs::write(&path, text).unwrap();
        let error = load::<CostTable>(&path).unwrap_err();
        assert!(matches!(error, SchedError::Parse { .. }), "{error:?}");
        let (told, why) = told(&error);
        assert!(told.contains("costs.json") && why.contains(part), "{text}: {told}: {why}");
    }
}

#[test]
fn packed_sums_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packed.json");
    let good = serde_json::to_value(packed()).unwrap();
    for (pointer, value, part) in [
        ("/warm_up/rhs/1", -1.0, "warm_up must be finite and not negative, got -1"),
        ("/slowdown/sum", 0.0, "slowdown must be finite and above 0, got 0"),
        ("/recent/gram/2/3", -5.0, "recent must be finite and not negative, got -5"),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value.into();
        fs::write(&path, bad.to_string()).unwrap();
        let (told, why) = told(&load::<PackedCost>(&path).unwrap_err());
        assert!(told.contains("packed.json") && why.contains(part), "{told}: {why}");
    }
}

#[test]
fn a_missing_file_or_folder_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nowhere").join("costs.json");
    let (read, write) = (load::<CostTable>(&path).unwrap_err(), save(&path, &table()).unwrap_err());
    assert!(matches!(read, SchedError::Read { .. }) && read.to_string().contains("costs.json"), "{read}");
    assert!(matches!(write, SchedError::Write { .. }) && write.to_string().contains("costs.json"), "{write}");
}
