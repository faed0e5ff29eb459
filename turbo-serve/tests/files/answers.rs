//! What each command writes, from each format to each, and its errors.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    command::{run, run_with_input, turbo},
    model,
};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const TEXTS: [&str; 4] = ["the cat sat on the mat", "a dog", "", "the dog, \"the\" cat"];

#[test]
fn every_format_of_the_input_gives_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = model("tiny-sentence");
    let write = |name: &str, content: String| fs::write(folder.path().join(name), content).unwrap();
    write("in.txt", TEXTS.join("\r\n") + "\n");
    write("in.jsonl", TEXTS.map(|text| json!({ "id": 7, "body": text }).to_string()).join("\n"));
    let quoted = TEXTS.map(|text| format!("\"{}\"", text.replace('"', "\"\"")));
    write("in.csv", format!("id,body\n{}", quoted.clone().map(|text| format!("7,{text}\n")).concat()));
    write("in.tsv", format!("body\tid\n{}", quoted.map(|text| format!("{text}\t7\n")).concat()));
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // A ranking that returns its texts is a Parquet file with texts.
    let rank = ["--query=cat", "--return-text", "--quiet", &path("in.txt"), &path("texts.parquet")];
    assert_eq!(run(turbo("rerank", &model("tiny-cross-encoder"), &rank)).0, Some(0));

    let (code, expected, said) = run(turbo("embed", &tiny, &["--quiet", &path("in.txt")]));
    assert_eq!((code, said.as_str(), lines(&expected).len()), (Some(0), "", 4));
    for (name, column) in [
        ("in.jsonl", "--column=body"),
        ("in.csv", "--column=body"),
        ("in.tsv", "--text-field=body"),
        ("texts.parquet/part-00000.parquet", "--column=text"),
    ] {
        let (code, answers, said) = run(turbo("embed", &tiny, &["--quiet", column, &path(name)]));
        assert_eq!((code, said.as_str()), (Some(0), ""), "{name}");
        assert_eq!(answers, expected, "{name}");
    }
    let from_pipe = turbo("embed", &tiny, &["-", "--quiet", "--input-format=jsonl", "--column=body"]);
    let jsonl = fs::read(path("in.jsonl")).unwrap();
    assert_eq!(run_with_input(from_pipe, &jsonl), (Some(0), expected.clone(), String::new()));

    // The vectors are cut and normalised as the flags say.
    let flags = ["--quiet", "--dimensions=8", "--normalize=true", &path("in.txt")];
    for row in lines(&run(turbo("embed", &tiny, &flags)).1) {
        let vector: Vec<f64> =
            row["embedding"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
        let length = vector.iter().map(|value| value * value).sum::<f64>();
        // Each of eight squares is rounded to f32.
        assert!(vector.len() == 8 && (length - 1.0).abs() < 1e-6, "{length}");
    }
}

#[test]
fn some_bad_rows_are_exit_code_three() {
    let tiny = model("tiny-sentence");
    let input = "{\"text\": \"a cat\"}\n{\"text\": 3}\n";
    let command = turbo("embed", &tiny, &["--input-format=jsonl", "--auto-truncate=false"]);
    let (code, answers, said) =
        run_with_input(command, format!("{input}{{\"text\": \"{}\"}}\n", "cat ".repeat(100)).as_bytes());
    assert_eq!(code, Some(3));
    let answers = lines(&answers);
    assert!(answers[0]["embedding"].is_array());
    assert_eq!(answers[1]["error"], "field \"text\" is a number, expected a text");
    assert!(answers[2]["error"].as_str().unwrap().contains("longer than 48 tokens"), "{}", answers[2]);
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said[0], "standard input:2: field \"text\" is a number, expected a text");
    assert!(said[1].starts_with("standard input:3: ") && said[2].starts_with("3 rows, "), "{said:?}");
    assert!(said[2].ends_with("; 2 have no answer") && said.len() == 3, "{said:?}");

    // Twenty bad rows are reported, then that more are counted; the last line says how many.
    for (rows, more, said_lines) in
        [(50, &[][..], 22), (50, &["--quiet"], 22), (20, &[], 21), (20, &["--quiet"], 20)]
    {
        let command = turbo("embed", &tiny, &[&["--input-format=jsonl"], more].concat());
        let (code, answers, said) = run_with_input(command, "oops\n".repeat(rows).as_bytes());
        assert_eq!(
            (code, answers.lines().count(), said.lines().count()),
            (Some(3), rows, said_lines),
            "{said}"
        );
        let further = said.contains("further rows without an answer are only counted");
        let counted = said.ends_with(&format!("; {rows} have no answer\n"));
        assert_eq!((further, counted), (rows > 20, said_lines > 20), "{said}");
    }
}

#[test]
fn documents_are_scored_and_the_best_found() {
    let cross_encoder = model("tiny-cross-encoder");
    let documents = "the cat sat\na dog\nthe mat\non the mat sat a cat\n";
    let score = |more: &[&str]| {
        let arguments = [&["--query=the cat", "--quiet"], more].concat();
        let (code, answers, said) =
            run_with_input(turbo("rerank", &cross_encoder, &arguments), documents.as_bytes());
        assert_eq!((code, said.as_str()), (Some(0), ""));
        lines(&answers)
    };
    let all = score(&[]);
    assert_eq!(all.iter().map(|row| row["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let best = score(&["--top-k=2", "--return-text"]);
    let by_score = |row: &Value| row["score"].as_f64().unwrap();
    let mut expected = all.clone();
    expected.sort_by(|a, b| by_score(b).total_cmp(&by_score(a)));
    for (best, expected) in best.iter().zip(&expected) {
        assert_eq!((&best["index"], &best["score"]), (&expected["index"], &expected["score"]));
        assert_eq!(best["text"], documents.lines().nth(best["index"].as_u64().unwrap() as usize).unwrap());
    }
    assert_eq!(best.len(), 2);

    // The same documents in one row, ranked.
    let row = json!({ "query": "the cat", "documents": documents.lines().collect::<Vec<_>>() }).to_string();
    let command = turbo("rerank", &cross_encoder, &["--input-format=jsonl", "--quiet", "--top-k=3"]);
    let (code, answers, _) = run_with_input(command, format!("{row}\n{row}\n").as_bytes());
    let rankings = lines(&answers);
    assert_eq!((code, rankings.len()), (Some(0), 2));
    let ranking = rankings[1]["ranking"].as_array().unwrap();
    assert_eq!(ranking.len(), 3);
    for (ranked, expected) in ranking.iter().zip(&expected) {
        assert_eq!((&ranked["index"], &ranked["score"]), (&expected["index"], &expected["score"]));
    }
}

#[test]
fn a_language_model_is_told_what_to_judge_documents_by() {
    let score = |more: &[&str]| {
        let arguments = [&["--query=the cat", "--quiet"], more].concat();
        let command = turbo("rerank", &model("tiny-logit-score"), &arguments);
        let (code, answers, said) = run_with_input(command, b"a dog says hello\n");
        assert_eq!((code, said.as_str()), (Some(0), ""));
        lines(&answers)[0]["score"].as_f64().unwrap()
    };
    assert_eq!(score(&["--instruction=Is it about the cat?"]), score(&[]), "the template's own words");
    assert_ne!(score(&["--instruction=Does it say hello?"]), score(&[]));
}

#[test]
fn pairs_are_classified() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.csv");
    fs::write(&input, "premise,hypothesis\nthe cat,a cat sat\na dog,the mat\n").unwrap();
    let arguments = [input.to_str().unwrap(), "--quiet", "--column=premise", "--pair-column=hypothesis"];
    let (code, answers, said) = run(turbo("classify", &model("tiny-cross-encoder"), &arguments));
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let answers = lines(&answers);
    assert_eq!(answers.len(), 2);
    let score = answers[0]["labels"][0]["score"].as_f64().unwrap();
    assert!(answers[0]["labels"][0]["label"].is_string() && score.is_finite(), "{}", answers[0]);
    // The order of a pair matters.
    fs::write(&input, "hypothesis,premise\nthe cat,a cat sat\n").unwrap();
    let turned = lines(&run(turbo("classify", &model("tiny-cross-encoder"), &arguments)).1);
    assert_ne!(turned[0]["labels"][0]["score"], answers[0]["labels"][0]["score"]);
}

/// The folder's own answers, from the reference implementation; scores are f32 of a model of two layers.
fn golden(model: &Path) -> Value {
    serde_json::from_slice(&fs::read(model.join("golden.json")).unwrap()).unwrap()
}

fn assert_close(got: &Value, expected: &Value) {
    let (got, expected) = (got.as_f64().unwrap(), expected.as_f64().unwrap());
    assert!((got - expected).abs() < 1e-4, "{got}, expected {expected}");
}

/// Sends a line of JSON per row, and returns the command's answers.
fn ask(command: &str, model: &Path, more: &[&str], rows: &[Value]) -> Vec<Value> {
    let input: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let arguments = [&["--quiet", "--input-format=jsonl"], more].concat();
    let (code, answers, said) = run_with_input(turbo(command, model, &arguments), input.as_bytes());
    // One of these folders has a tokenizer with one token more than the model, which is a warning.
    assert!(code == Some(0) && said.lines().all(|line| line.starts_with("warning: ")), "{said}");
    lines(&answers)
}

#[test]
fn labels_are_those_of_the_reference() {
    let folder = model("pipeline-classify");
    let golden = golden(&folder);
    let cases: Vec<&Value> = golden["cases"].as_array().unwrap().iter().collect();
    let (singles, pairs): (Vec<&Value>, Vec<&Value>) =
        cases.into_iter().partition(|case| case["inputs"].as_array().unwrap().len() == 1);
    assert!(!singles.is_empty() && !pairs.is_empty());
    for (cases, more) in [(singles, &[][..]), (pairs, &["--pair-column=b"])] {
        let row = |case: &&Value| json!({ "text": case["inputs"][0], "b": case["inputs"][1] });
        let answers = ask("classify", &folder, more, &cases.iter().map(row).collect::<Vec<_>>());
        for (answer, case) in answers.iter().zip(cases) {
            let (got, expected) =
                (answer["labels"].as_array().unwrap(), case["scores"]["softmax"].as_array().unwrap());
            assert_eq!(got.len(), expected.len());
            for (got, expected) in got.iter().zip(expected) {
                assert_eq!(got["label"], expected["label"]);
                assert_close(&got["score"], &expected["score"]);
            }
        }
    }
}

#[test]
fn entities_are_those_of_the_reference() {
    for tokenizer in ["wordpiece", "xlm-roberta"] {
        let folder = model(&format!("pipeline-entities-{tokenizer}"));
        let golden = golden(&folder);
        let cases = golden["cases"].as_array().unwrap();
        let rows: Vec<Value> = cases.iter().map(|case| json!({ "text": case["text"] })).collect();
        for aggregation in ["none", "simple", "first", "average", "max"] {
            let answers = ask("classify", &folder, &["--aggregation", aggregation], &rows);
            for (answer, case) in answers.iter().zip(cases) {
                let got = answer["entities"].as_array().unwrap();
                let expected = case["entities"][aggregation].as_array().unwrap();
                assert_eq!(got.len(), expected.len(), "{answer}, expected {expected:?}");
                for (got, expected) in got.iter().zip(expected) {
                    assert_eq!(
                        (&got["entity"], &got["start"], &got["end"]),
                        (&expected["label"], &expected["start"], &expected["end"])
                    );
                    assert_close(&got["score"], &expected["score"]);
                    let characters = case["text"].as_str().unwrap().chars();
                    let (start, end) =
                        (got["start"].as_u64().unwrap() as usize, got["end"].as_u64().unwrap() as usize);
                    let stretch: String = characters.skip(start).take(end - start).collect();
                    assert_eq!(got["word"], stretch);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_done_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("in.csv");
    fs::write(&csv, "id,body\n1,a cat\n").unwrap();
    let csv = csv.to_str().unwrap();
    let not_parquet = folder.path().join("in.parquet");
    fs::write(&not_parquet, "no").unwrap();
    let not_parquet = not_parquet.to_str().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (jsonl, json, npy) = (out("out.jsonl"), out("out.json"), out("out.npy"));
    let (embedder, cross_encoder) = (model("tiny-sentence"), model("tiny-cross-encoder"));
    let (classifier, tagger) = (model("pipeline-classify"), model("pipeline-entities-wordpiece"));
    let cases: [(&str, &Path, &[&str], &str); 22] = [
        ("embed", &embedder, &[csv, &jsonl], "in.csv: no column \"text\", it has: id, body"),
        ("embed", &embedder, &["nope.txt", &jsonl], "nope.txt: No such file"),
        (
            "embed",
            &embedder,
            &["in.doc", &jsonl],
            "(known: .txt .jsonl .ndjson .csv .tsv .parquet): pass --input-format",
        ),
        ("embed", &embedder, &[csv, &json], "(known: .jsonl .ndjson .npy .parquet): pass --format"),
        ("embed", &embedder, &[not_parquet, &jsonl], "in.parquet: "),
        (
            "embed",
            &embedder,
            &["-", "--input-format=parquet", &jsonl],
            "standard input: Parquet is read from its end",
        ),
        ("embed", &embedder, &[csv, "--column=body", "--format=npy"], "-: NPY needs a file"),
        (
            "embed",
            &embedder,
            &[csv, &jsonl, "--column=body", "--dimensions=33"],
            "the model's vectors have 32",
        ),
        (
            "embed",
            &embedder,
            &[csv, &jsonl, "--column=body", "--pooling=splade"],
            "--pooling splade: this command writes dense vectors; for sparse ones use POST /embed_sparse",
        ),
        (
            "embed",
            &embedder,
            &[csv, &jsonl, "--column=body", "--prompt-name=q"],
            "the model's prompts are: none",
        ),
        (
            "classify",
            &embedder,
            &[csv, &jsonl, "--column=body"],
            "expected a model for sequence or token classification",
        ),
        (
            "classify",
            &cross_encoder,
            &["--pair-column=b"],
            "lines of text have one column, and 2 are needed: text, b",
        ),
        ("rerank", &embedder, &["--query=q"], "it is for embedding, expected a cross-encoder"),
        ("rerank", &cross_encoder, &["--query=q", csv, &npy, "--column=body"], "NPY holds vectors only"),
        ("rerank", &cross_encoder, &[csv, &jsonl], "no column \"query\", it has: id, body"),
        (
            "rerank",
            &cross_encoder,
            &["--query=q", "--instruction=be good"],
            "--instruction: the model has no template of pairs",
        ),
        ("embed", &embedder, &["--column=review"], "--column review: lines of text have no columns"),
        ("classify", &classifier, &["--column=review"], "--column review: lines of text have no columns"),
        (
            "rerank",
            &cross_encoder,
            &["--query=q", "--column=review"],
            "--documents-column review: lines of text have no columns",
        ),
        ("classify", &classifier, &["--aggregation=max"], "expected a model that labels tokens"),
        ("classify", &tagger, &["--top-k=2"], "expected a model that labels whole texts"),
        ("classify", &tagger, &["--raw-scores"], "expected a model that labels whole texts"),
    ];
    for (command, model, arguments, said) in cases {
        let (code, stdout, stderr) = run(turbo(command, model, arguments));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said) && stderr.starts_with("error: "), "{said:?} is not in {stderr:?}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "something was begun: {left:?}");
}

/// A reader that closes the pipe early is no error.
#[test]
fn a_reader_that_leaves_ends_it_in_peace() {
    let tiny = model("tiny-sentence");
    let command = format!(
        "yes 'the cat' | {} embed --model-id {} --quiet | head -n 2",
        env!("CARGO_BIN_EXE_turbo"),
        tiny.display()
    );
    let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!((text.lines().count(), String::from_utf8(output.stderr).unwrap().as_str()), (2, ""));
}

#[test]
fn the_help_says_what_happens_to_bad_rows() {
    for command in ["embed", "classify", "rerank"] {
        let mut turbo = std::process::Command::new(env!("CARGO_BIN_EXE_turbo"));
        let help = turbo.args([command, "--help"]).output().unwrap().stdout;
        let help = String::from_utf8(help).unwrap();
        for said in
            ["Examples:", "--resume", "NaN", "Exit codes:", "| head", "16 MiB", "--column", "HF_TOKEN"]
        {
            assert!(help.contains(said), "{command}: {said} is not in\n{help}");
        }
    }
}

/// The real model, where `cargo xtask model` has brought it.
#[test]
fn minilm_knows_what_is_alike() {
    let models =
        std::env::var("TURBO_MODELS_DIR").map_or_else(|_| crate::model("../../../models"), Into::into);
    let minilm = models.join("minilm");
    if !minilm.is_dir() {
        let required = std::env::var_os("TURBO_REQUIRE_MINILM").is_some_and(|value| value == "1");
        assert!(!required, "{} is not there", minilm.display());
        eprintln!("skipped: {} is not there", minilm.display());
        return;
    }
    let texts = "A cat sits on the mat.\nThe kitten lies on a rug.\nInterest rates rose again.\n";
    let (code, answers, said) = run_with_input(turbo("embed", &minilm, &["--quiet"]), texts.as_bytes());
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let vectors: Vec<Vec<f64>> = lines(&answers)
        .iter()
        .map(|row| row["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect())
        .collect();
    let cosine = |a: usize, b: usize| vectors[a].iter().zip(&vectors[b]).map(|(a, b)| a * b).sum::<f64>();
    assert_eq!(vectors[0].len(), 384);
    assert!((cosine(0, 0) - 1.0).abs() < 1e-5, "its folder says that vectors are normalised");
    assert!(cosine(0, 1) > 0.4 && cosine(0, 2) < 0.2, "{} {}", cosine(0, 1), cosine(0, 2));
}

#[test]
fn an_output_does_not_take_the_place_of_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let input = "{\"text\": \"a cat\"}\n";
    fs::write(path("in.jsonl"), input).unwrap();
    fs::hard_link(path("in.jsonl"), path("other name.jsonl")).unwrap();
    fs::create_dir(path("parts.parquet")).unwrap();
    fs::write(path("parts.parquet/part-00000.jsonl"), input).unwrap();
    for (from, to) in [
        ("in.jsonl", "in.jsonl"),
        ("in.jsonl", "parts.parquet/../in.jsonl"),
        ("in.jsonl", "other name.jsonl"),
        ("parts.parquet/part-00000.jsonl", "parts.parquet"),
    ] {
        let (code, _, said) =
            run(turbo("embed", &model("tiny-sentence"), &[&path(from), &path(to), "--overwrite"]));
        assert_eq!(code, Some(1), "{to}");
        assert!(said.contains("it is the input") && said.lines().count() == 1, "{said}");
        assert_eq!(fs::read_to_string(path(from)).unwrap(), input);
    }
}

#[test]
fn what_is_wrong_is_told_before_the_output_is_begun() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("in.jsonl"), "{\"text\": \"a cat\"}\n").unwrap();
    fs::write(path("twice.csv"), "text,text\na,b\n").unwrap();
    fs::write(path("out.npy"), "precious").unwrap();
    fs::create_dir(path("folder")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    for (input, output, more, said_so) in [
        ("in.jsonl", "out.npy", "--column=body", "in.jsonl:1: no column \"body\", it has: text"),
        ("twice.csv", "out.npy", "--quiet", "it has several columns \"text\""),
        ("in.jsonl", "no folder/out.npy", "--quiet", "out.npy: its folder does not exist"),
        ("in.jsonl", "folder", "--format=jsonl", "folder: it is a folder, expected a file"),
        ("in.jsonl", "out.npy", "--format=parquet", "out.npy: it is a file, and Parquet"),
        ("in.jsonl", "socket", "--format=jsonl", "socket: it is no regular file; `-` is standard output"),
    ] {
        let arguments = [&path(input), &path(output), "--overwrite", more];
        let (code, _, said) = run(turbo("embed", &model("tiny-sentence"), &arguments));
        assert!(code == Some(1) && said.contains(said_so), "{said}");
    }
    assert_eq!(fs::read_to_string(path("out.npy")).unwrap(), "precious");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5, "nothing was left beside");
}

#[test]
fn an_output_that_is_there_is_told_before_the_model_is_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (name, content) in
        [("in.txt", "a cat\n"), ("out.npy", ""), ("out.jsonl", ""), ("out.jsonl.unfinished", "{\"job\": {}}")]
    {
        fs::write(path(name), content).unwrap();
    }
    let no_model = folder.path();
    let best = ["--query=cat", "--top-k=2", &path("in.txt"), &path("out.jsonl")];
    let (code, _, said) = run(turbo("rerank", no_model, &best));
    assert!(code == Some(1) && said.contains("is unfinished: pass --overwrite to start over\n"), "{said}");
    for (output, said_so) in [
        ("out.npy", "out.npy exists: pass --overwrite to replace it"),
        ("out.jsonl", "out.jsonl exists and is unfinished: pass --resume"),
        ("no folder/out.npy", "out.npy: its folder does not exist"),
    ] {
        let (code, _, said) = run(turbo("embed", no_model, &[&path("in.txt"), &path(output)]));
        assert!(code == Some(1) && said.contains(said_so) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn poolings_of_sparse_vectors_are_not_offered() {
    let help = run(turbo("embed", &model("tiny-sentence"), &["--help"])).1;
    assert!(help.contains("last-token") && !help.contains("splade"), "{help}");
    let mut command = turbo("embed", &model("tiny-sentence"), &["--quiet"]);
    command.env("POOLING", "splade");
    let (code, _, said) = run(command);
    assert!(code == Some(1) && said.contains("this command writes dense vectors"), "{said}");
    assert!(said.contains("the variable POOLING"), "{said}");
}

#[test]
fn ranking_lines_needs_a_query() {
    let (code, _, said) = run_with_input(turbo("rerank", &model("tiny-cross-encoder"), &[]), b"a cat\n");
    assert_eq!(code, Some(1));
    assert!(said.contains("pass --query") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_column_may_be_both_of_a_pair() {
    let input = "{\"text\": \"a cat\"}\n";
    let pairs = ["--input-format=jsonl", "--pair-column=text", "--quiet", "--raw-scores"];
    let classified = |arguments: &[&str]| {
        let command = turbo("classify", &model("tiny-cross-encoder"), arguments);
        let (code, answers, said) = run_with_input(command, input.as_bytes());
        assert_eq!((code, said.as_str()), (Some(0), ""));
        lines(&answers)[0]["labels"][0]["score"].clone()
    };
    let scored = ["--query=a cat", "--quiet"];
    let expected = run_with_input(turbo("rerank", &model("tiny-cross-encoder"), &scored), b"a cat\n").1;
    let logit = lines(&expected)[0]["score"].clone();
    assert_eq!(classified(&pairs), logit, "this cross-encoder asks for logits");
    let score = 1.0 / (1.0 + (-logit.as_f64().unwrap()).exp());
    assert_close(&classified(&pairs[..3]), &json!(score));
}

#[test]
fn nobody_has_to_read_what_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("in.jsonl"), "{\"text\": 1}\n".repeat(9)).unwrap();
    let mut command = turbo("embed", &model("tiny-sentence"), &[&path("in.jsonl"), &path("out.jsonl")]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stderr(writer);
    assert_eq!(run(command).0, Some(3));
    assert_eq!(fs::read_to_string(path("out.jsonl")).unwrap().lines().count(), 9);
}
