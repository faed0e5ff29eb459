//! `turbo bench` as a process, on the tests' tiny model: what it prints, and what it refuses.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    bench_model("tiny-sentence", arguments)
}

fn bench_model(model: &str, arguments: &[&str]) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data").join(model);
    let mut turbo = Command::new(env!("CARGO_BIN_EXE_turbo"));
    turbo.env_clear().arg("bench").arg("--model-id").arg(model).arg("--threads=1");
    turbo.args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    said(&bench(arguments))
}

fn said(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Name of each field of a line, in order, and whether it holds a positive number.
fn fields(line: &str) -> Vec<String> {
    // Names in order of appearance: a parsed object would sort them.
    let names = line.trim_matches(['{', '}']).split(",\"").map(|field| field.trim_start_matches('"'));
    names.map(|field| field.split_once("\":").unwrap().0.to_owned()).collect()
}

#[test]
fn each_case_is_one_json_line() {
    let text = printed(&["--json", "--seq-len=5,40", "--batch-size=1,3", "--reps=5"]);
    let lines: Vec<&str> = text.lines().collect();
    let about = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        (line["batch"].as_u64().unwrap(), line["seq_len"].as_u64().unwrap())
    };
    assert_eq!(lines.iter().map(|line| about(line)).collect::<Vec<_>>(), [(1, 5), (1, 40), (3, 5), (3, 40)]);
    for line in lines {
        let expected = [
            "peer",
            "model",
            "variant",
            "threads",
            "batch",
            "seq_len",
            "median_ms",
            "p10",
            "p90",
            "floor_ms",
            "gflops",
        ];
        assert_eq!(fields(line), expected);
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&value["peer"], &value["model"], &value["variant"], &value["threads"]),
            (&"turbo".into(), &"tiny-sentence".into(), &"f32".into(), &1.into())
        );
        let number = |name: &str| value[name].as_f64().unwrap();
        assert!(number("p10") <= number("median_ms") && number("median_ms") <= number("p90"), "{line}");
        assert!(number("p10") > 0.0 && number("floor_ms") > 0.0 && number("gflops") > 0.0, "{line}");
    }
}

/// The tiny model has positions for fewer tokens than are usual.
#[test]
fn without_a_length_the_model_s_own_is_the_most() {
    let case: Value = serde_json::from_str(printed(&["--json", "--reps=3"]).trim()).unwrap();
    assert_eq!(case["seq_len"], 64, "{case}");
}

#[test]
fn each_policy_is_one_json_line() {
    let policies = ["single", "naive20", "sorted20", "dp"];
    let text =
        printed(&["--json", "--workload=uniform:5:60:50:seed0", &format!("--policy={}", policies.join(","))]);
    assert_eq!(text.lines().count(), policies.len(), "{text}");
    for (line, policy) in text.lines().zip(policies) {
        let expected = [
            "peer",
            "model",
            "variant",
            "threads",
            "workload",
            "policy",
            "total_s",
            "requests_per_s",
            "tokens_per_s",
        ];
        assert_eq!(fields(line), expected);
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["policy"], policy);
        assert_eq!(value["workload"], "uniform:5:60:50:seed0");
        let (requests, tokens) =
            (value["requests_per_s"].as_f64().unwrap(), value["tokens_per_s"].as_f64().unwrap());
        // fifty lengths from 5 to 60 by seed 0: 1395 tokens
        assert!((tokens / requests - 1395.0 / 50.0).abs() < 0.01, "{line}");
    }
}

#[test]
fn people_get_a_table_with_every_operator() {
    let text = printed(&["--seq-len=7", "--profile", "--reps=5"]);
    for said in [
        "tiny-sentence, f32, packed",
        "GFLOP/s in f32",
        "floor/median",
        "feed_forward GeluErf 32→64→32",
        "attention",
        "linear_layer_norm",
        "in short: matrix products",
    ] {
        assert!(text.contains(said), "{said:?} is not in\n{text}");
    }
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(110), "{widest:?} columns\n{text}");
}

#[test]
fn every_dtype_is_timed() {
    for dtype in ["bf16", "int8", "bfloat16"] {
        let text = printed(&["--seq-len=7", "--reps=3", "--dtype", dtype]);
        let named = if dtype == "bfloat16" { "bf16" } else { dtype };
        assert!(text.contains(&format!("tiny-sentence, {named}, packed")), "{text}");
    }
}

/// Every kind of model and head runs: what it costs has a floor, and every operator a family.
#[test]
fn every_family_and_every_head_is_timed() {
    for (model, arguments) in [
        ("mpnet-base", &["--seq-len=9"][..]),
        ("modernbert-base", &["--seq-len=9"]),
        ("nomic-base", &["--seq-len=9"]),
        ("qwen3-base", &["--seq-len=9"]),
        ("bert-mlm", &["--seq-len=9", "--batch-size=3"]),
        ("bert-seqcls", &["--seq-len=9"]),
        ("bert-seqcls", &["--seq-len=9", "--task=embedding"]),
        ("tiny-splade", &["--seq-len=9"]),
    ] {
        let text = said(&bench_model(model, &[arguments, &["--reps=3", "--profile"]].concat()));
        assert!(text.contains(model) && text.contains("in short: matrix products"), "{model}:\n{text}");
        let embeds = text.contains("from ids to the last hidden state");
        let head = ["-mlm", "-seqcls", "-splade"].iter().any(|head| model.contains(head));
        assert_eq!(embeds, !head || arguments.contains(&"--task=embedding"), "{model}:\n{text}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    let cases = [
        (&["--seq-len=65"][..], 1, "--seq-len: 65 tokens, but the model has 64 positions"),
        (&["--workload=uniform:60:70:9:seed0"], 1, "tokens, but the model has 64 positions"),
        (&["--task=masked-lm"], 1, "--task masked-lm: tiny-sentence has no weights for it"),
        (&["--max-seconds=inf"], 1, "--max-seconds inf: expected a number of seconds"),
        (&["--workload=uniform:5:60"], 2, "3 parts between colons, expected uniform:LO:HI:COUNT:seedS"),
        (&["--workload=uniform:5:60:9:seed0", "--policy=naive"], 2, "unknown policy \"naive\""),
        (&["--dtype=f64"], 2, "possible values: f32"),
        (
            &["--seq-len=4294967295", "--batch-size=2"],
            1,
            "--seq-len: 4294967295 tokens, but the model has 64 positions",
        ),
        (
            &["--seq-len=8", "--batch-size=100000000000"],
            1,
            "--batch-size 100000000000: a batch has fewer than 2³² tokens",
        ),
    ];
    for (arguments, code, said) in cases {
        let output = bench(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(output.stdout.is_empty() && errors.contains(said), "{said:?} is not in {errors:?}");
        assert!(code == 2 || errors.lines().count() == 1, "{errors}");
    }
}
