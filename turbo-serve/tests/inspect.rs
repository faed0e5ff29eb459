//! `turbo inspect` as a process, on the tests' tiny model: what it says is what the model and its plan are.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn inspect(arguments: &[&str]) -> Output {
    inspect_model("tiny-sentence", arguments)
}

fn inspect_model(model: &str, arguments: &[&str]) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data").join(model);
    let mut turbo = Command::new(env!("CARGO_BIN_EXE_turbo"));
    turbo.env_clear().arg("inspect").arg("--model-id").arg(model).arg("--threads=1");
    turbo.args(arguments).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    said(inspect(arguments))
}

fn said(output: Output) -> String {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The first line that begins so, in columns.
fn line<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.starts_with(start));
    line.unwrap_or_else(|| panic!("no line begins with {start:?}\n{text}")).split_whitespace().collect()
}

#[test]
fn it_says_what_the_model_is_and_what_fusion_makes_of_it() {
    let text = printed(&["--seq-len=7"]);
    // embeddings (103 + 2 + 64) · 32 and a norm; two layers of 4 · (32² + 32), 2 · 32 · 64 + 96, and two norms
    let parameters = 169 * 32 + 64 + 2 * (4 * (1024 + 32) + 2 * 2048 + 96 + 128);
    assert_eq!(line(&text, "total")[1..3], ["37", &parameters.to_string()]);
    for pass in [
        "as drawn",
        "fuse embeddings",
        "merge projections",
        "fuse bias, residual, norm",
        "fuse bias, activation",
        "fuse scale, bias, mask, softmax",
        "head transposes away",
        "fuse attention",
        "dead values",
        "pack",
    ] {
        line(&text, pass);
    }
    assert_eq!(line(&text, "merge projections")[2..7], ["2", "places", "54", "→", "46"], "{text}");
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(110), "{widest:?} columns\n{text}");
}

/// The tiny model has positions for fewer tokens than are usual.
#[test]
fn without_a_length_the_model_s_own_is_the_most() {
    assert!(printed(&[]).contains("1 × 64 tokens"));
}

#[test]
fn it_says_what_a_dtype_gains_and_costs() {
    let text = printed(&["--seq-len=7"]);
    let [f32, bf16, int8] = ["f32", "bf16", "int8"].map(|dtype| line(&text, &format!("{dtype} ")));
    assert_eq!(f32[1], "*", "f32 is in use: {text}");
    assert!(text.contains("computed in f32"), "{text}");
    for ceiling in [" GFLOP/s in f32, ", " in bf16, ", " GOP/s in int8, ", " GB/s from memory\n"] {
        assert!(text.contains(ceiling), "{ceiling:?} is not in\n{text}");
    }
    let weights = |line: &[&str]| line[if line[1] == "*" { 2 } else { 1 }].parse::<f64>().unwrap();
    assert!(weights(&f32) > weights(&bf16) && weights(&bf16) > weights(&int8), "{text}");
    assert!(int8.join(" ").ends_with("cosine ≥ 0.99, ranks ≥ 0.99"), "{text}");
    let text = printed(&["--seq-len=7", "--dtype=int8"]);
    assert_eq!(line(&text, "int8 ")[1], "*", "{text}");
    assert!(text.contains("computed in int8") && !text.contains("computed in f32"), "{text}");
    assert!(text.contains(" int8\n") || text.contains(" int8 "), "operators name their dtype: {text}");
}

/// A model so small that every plan is one chunk of the planner's least size.
#[test]
fn the_memory_is_that_of_the_plan() {
    let text = printed(&["--seq-len=7,64", "--batch-size=2"]);
    for said in ["memory plan of 2 × 7 tokens", "memory plan of 2 × 64 tokens after 2 × 7 tokens"] {
        assert!(text.contains(said), "{said:?} is not in\n{text}");
    }
    assert_eq!(line(&text, "chunk 0")[2..], ["2.00", "MiB", "obtained"]);
    assert_eq!(line(&text, "footprint")[1..3], ["2.00", "MiB"]);
    // Most is alive during attention: queries, keys and values, what it gives, and the layer's input for the sum.
    let peak = 2 * 7 * (96 + 32 + 32) * 4;
    assert_eq!(line(&text, "peak live")[2..4], [&format!("{:.2}", peak as f64 / 1024.0), "KiB"], "{text}");
    let second = text.split("after 2 × 7 tokens").nth(1).unwrap();
    assert_eq!(line(second, "chunk 0")[2..], ["2.00", "MiB", "kept"]);
}

#[test]
fn every_graph_and_the_plan_become_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = folder.path().join("made");
    let text = printed(&["--seq-len=7,64", "--passes", "--svg", pictures.to_str().unwrap()]);
    let mut files: Vec<String> = fs::read_dir(&pictures)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files.first().map(String::as_str), Some("graph-0-drawn.svg"));
    assert_eq!(files.last().map(String::as_str), Some("memory.svg"));
    for file in &files {
        let picture = fs::read_to_string(pictures.join(file)).unwrap();
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{file}");
        assert!(text.lines().any(|line| line == file), "{file} is not said");
    }
    assert_eq!(
        text.matches("── graph after").count(),
        files.len() - 2,
        "with --passes every graph is printed"
    );
}

#[test]
fn the_padded_layout_has_its_own_graph_and_plan() {
    let text = printed(&["--layout=padded", "--seq-len=7"]);
    assert!(text.contains("[batch_size, padded_len, 96]") && !text.contains("total_tokens"), "{text}");
}

/// What is special of a family is in its graph and its numbers.
#[test]
fn families_and_heads_are_seen() {
    for (model, arguments, expected) in [
        ("mpnet-base", &[][..], &["relative"][..]),
        ("deberta-base", &[], &["position_scores", "16 places"]),
        ("modernbert-base", &[], &["rotary", "attention ±4", "gate"]),
        ("nomic-base", &[], &["rotary", "gate"]),
        ("qwen3-base", &[], &["rms_norm", "causal", "of keys and values", "head_rms_norm"]),
        ("gemma3-base", &[], &["rotary", "attention 3×16/1", "±4", "embed_tokens ", "gate GeluTanh"]),
        ("bert-mlm", &[], &["task masked-lm", "selected_rows", "[2, "]),
        ("bert-seqcls", &[], &["task sequence-classification, ", " labels"]),
        ("bert-seqcls", &["--task=embedding"], &["pooling not given, Mean here"]),
        ("tiny-splade", &[], &["task sparse-embedding"]),
    ] {
        let output = inspect_model(model, &[arguments, &["--seq-len=9", "--batch-size=2"]].concat());
        let text = said(output);
        for part in expected {
            assert!(text.contains(part), "{model}: {part:?} is not in\n{text}");
        }
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(110), "{model}: {widest:?} columns\n{text}");
    }
}

/// A model of rotary positions has no table of them, so the tiny one takes as many as its config says.
#[test]
fn eight_thousand_tokens_are_planned() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data/modernbert-base");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let config = fs::read(fixture.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["max_position_embeddings"] = 8192.into();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();

    let text = said(inspect_model(folder.path().to_str().unwrap(), &["--seq-len=1024,8192"]));
    let peak = |after: &str| -> f64 {
        let plan = text.split(after).nth(1).unwrap();
        let peak = line(plan, "peak live");
        let unit = if peak[3] == "MiB" { 1024.0 } else { 1.0 };
        peak[2].parse::<f64>().unwrap() * unit
    };
    let (short, long) = (peak("memory plan of 1 × 1024 tokens"), peak("after 1 × 1024 tokens"));
    assert!((long / short - 8.0).abs() < 0.2, "memory grows with the tokens: {short} KiB, then {long} KiB");
}

#[test]
fn what_cannot_be_inspected_is_refused_in_one_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let no_folder = file.path().to_str().unwrap();
    let cases = [
        (&["--seq-len=65"][..], "--seq-len: 65 tokens, but the model has 64 positions"),
        (&["--seq-len=2", "--batch-size=4294967295"], "a batch has fewer than 2³² tokens"),
        (&["--seq-len=2", "--svg", no_folder], "cannot make"),
        (&["--task=question-answering"], "--task question-answering: tiny-sentence has no weights for it"),
    ];
    for (arguments, said) in cases {
        let output = inspect(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(output.stdout.is_empty() && errors.contains(said), "{said:?} is not in {errors:?}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

/// The pictures of the README, where `cargo xtask model` has brought the model.
#[test]
fn the_readme_shows_what_is_drawn_today() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let models = std::env::var("TURBO_MODELS_DIR").map_or_else(|_| root.join("models"), Into::into);
    let minilm = models.join("minilm");
    if !minilm.is_dir() {
        let required = std::env::var_os("TURBO_REQUIRE_MINILM").is_some_and(|value| value == "1");
        assert!(!required, "{} is not there", minilm.display());
        eprintln!("skipped: {} is not there", minilm.display());
        return;
    }
    let command = "turbo inspect minilm --seq-len 200,300 --svg pictures";
    assert!(fs::read_to_string(root.join("README.md")).unwrap().contains(command));
    let pictures = tempfile::tempdir().unwrap();
    let folder = pictures.path().to_str().unwrap();
    said(inspect_model(minilm.to_str().unwrap(), &["--seq-len", "200,300", "--svg", folder]));
    for (shown, drawn) in [("minilm-graph.svg", "graph-10-pack.svg"), ("minilm-memory.svg", "memory.svg")] {
        let shown = fs::read_to_string(root.join("docs").join(shown)).unwrap();
        assert!(
            fs::read_to_string(pictures.path().join(drawn)).unwrap() == shown,
            "{drawn} is another picture now"
        );
    }
}
