//! The binary as a user meets it: arguments, signals, exit codes, what it prints.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod cache;
mod changes;
mod config;
mod costs;
#[cfg(unix)]
mod full_disk;
mod machine;
#[cfg(unix)]
mod redis;
mod server;
#[cfg(feature = "otlp")]
mod spans;
mod tei;

use std::{
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use server::{Server, Signal, run, tiny_model, turbo};

#[test]
fn it_prints_where_it_is_and_answers_there() {
    let server = Server::start(&[]);
    let (status, rows) = server.post("/embed", &json!({ "inputs": ["the cat", "a dog sat"] }));
    assert_eq!((status, rows.as_array().map(Vec::len)), (200, Some(2)));
    assert_eq!(server.get("/health").0, 200);
    let (_, metrics) = server.get("/metrics");
    let resident = |line: &str| line.strip_prefix("process_resident_memory_bytes ")?.parse::<f64>().ok();
    let resident = metrics.as_str().unwrap().lines().find_map(resident);
    assert!(resident.is_none_or(|bytes| bytes > 1e6), "{resident:?}");
    assert!(!cfg!(target_os = "linux") || resident.is_some(), "{metrics}");
    let (_, info) = server.get("/info");
    assert_eq!(info["max_input_length"], 48);
    assert_eq!(info["served_model_name"], "tiny-sentence");
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn arguments_reach_the_engine() {
    let server = Server::start(&[
        "--batching=naive",
        "--layout=padded",
        "--threads=1",
        "--pooling=cls",
        "--auto-truncate=false",
        "--max-batch-tokens=96",
        "--max-batch-requests=2",
        "--max-client-batch-size=3",
        "--max-concurrent-requests=4",
        "--json-output",
    ]);
    let (_, info) = server.get("/info");
    for (field, expected) in [
        ("model_type", json!({ "embedding": { "pooling": "cls" } })),
        ("auto_truncate", json!(false)),
        ("max_batch_tokens", json!(96)),
        ("max_batch_requests", json!(2)),
        ("max_client_batch_size", json!(3)),
        ("max_concurrent_requests", json!(4)),
    ] {
        assert_eq!(info[field], expected, "{field}");
    }
    let long = "cat ".repeat(100);
    assert_eq!(server.post("/embed", &json!({ "inputs": long })).0, 422);
    assert_eq!(server.post("/embed", &json!({ "inputs": ["cat", "dog", "sat"] })).0, 200);
    let (code, output) = server.end(Signal::Interrupt);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{output}");
}

#[test]
fn a_line_of_json_has_each_key_once() {
    let server = Server::start(&["--json-output"]);
    let refusal = server.call_in_vain();
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
    let line = output.lines().find(|line| line.contains("not answered")).unwrap();
    assert_eq!(line.matches("\"message\":").count(), 1, "{line}");
    assert_eq!(serde_json::from_str::<Value>(line).unwrap()["why"], refusal.message());
}

/// What a server logs from its start to its end.
fn logged(variables: [(&str, &str); 2]) -> String {
    let mut command = turbo();
    command.envs(variables).args(["serve", "--hostname=127.0.0.1", "--port=0", "--model-id"]);
    command.arg(tiny_model());
    let (code, output) = Server::spawn(command).end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
    output
}

#[test]
fn a_filter_of_the_log_that_is_none_is_told() {
    for (name, other) in [("RUST_LOG", "LOG_LEVEL"), ("LOG_LEVEL", "RUST_LOG")] {
        let output = logged([(name, "turbo=loud"), (other, "")]);
        assert!(output.contains(&format!("{name} \"turbo=loud\" cannot be used (")), "{output}");
        assert!(output.contains("loading"), "what is shown without it: {output}");
    }
}

#[test]
fn the_log_has_the_level_of_either_variable() {
    for (own, other, is_shown) in [("", "ERROR", false), ("", "info", true), ("info", "error", true)] {
        let output = logged([("RUST_LOG", own), ("LOG_LEVEL", other)]);
        assert_eq!(output.contains("loading"), is_shown, "RUST_LOG={own} LOG_LEVEL={other}: {output}");
    }
}

#[test]
fn arguments_choose_what_the_model_does() {
    let start = |fixture: &str, arguments: &[&str]| Server::start_model(&data().join(fixture), arguments);
    let embed = |server: &Server, text: &str| server.post("/embed", &json!({ "inputs": text }));

    let server = start("pipeline-fill-mask-wordpiece", &["--pooling=splade"]);
    assert_eq!(server.get("/info").1["model_type"], json!({ "embedding": { "pooling": "splade" } }));
    assert_eq!(server.post("/embed_sparse", &json!({ "inputs": "the cat" })).0, 200);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));

    let surprising = [
        (
            "bert-seqcls",
            "--pooling=cls",
            "pooling is set, so there are vectors: without it, this folder is for ",
        ),
        ("bert-qa", "--pooling=mean", "without it, this folder is for question-answering"),
        ("bert-mlm", "--threads=1", "for vectors, set pooling to cls or mean"),
        ("tiny-dense", "--default-prompt=say ", "get the default one prompt=\"say \""),
    ];
    for (fixture, argument, said) in surprising {
        let (code, output) = start(fixture, &[argument]).end(Signal::Terminate);
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains(said), "{said} is not in\n{output}");
    }

    let server = start("tiny-sentence", &["--pooling=max"]);
    assert_eq!(server.get("/info").1["model_type"], json!({ "embedding": { "pooling": "max" } }));
    assert_eq!(embed(&server, "the cat").0, 200);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));

    let plain = start("tiny-dense", &[]);
    for (argument, prompt) in [
        ("--default-prompt-name=query", "the query: "),
        ("--default-prompt=say ", "say "),
        ("--json-output", ""),
    ] {
        let server = start("tiny-dense", &[argument]);
        assert_eq!(embed(&server, "cat"), embed(&plain, &format!("{prompt}cat")), "{argument}");
        assert_eq!(server.end(Signal::Terminate).0, Some(0));
    }
    let narrow = start("tiny-dense", &["--dense-path=2_Dense"]);
    let width = |server: &Server| embed(server, "cat").1[0].as_array().unwrap().len();
    assert_ne!(width(&narrow), width(&plain), "one dense module instead of two");
    assert_eq!(plain.end(Signal::Terminate).0, Some(0));

    let folder = data().join("tiny-dense");
    let refused = |argument: &str| {
        run(&["serve", "--port=0", "--hostname=127.0.0.1", "--model-id", path(&folder), argument])
    };
    assert_fails(refused("--default-prompt-name=x"), &["`x`", "`document`, `query`"]);
    assert_fails(refused("--dense-path=9_Dense"), &["9_Dense"]);
    let no_head = "pooling is set to splade, which takes the head of a masked language model: ";
    assert_fails(refused("--pooling=splade"), &[no_head, "tiny-dense"]);
}

#[test]
fn inputs_longer_than_a_batch_are_cut_and_that_is_said() {
    let server = Server::start(&["--max-batch-tokens=20"]);
    let (_, info) = server.get("/info");
    assert_eq!((&info["max_input_length"], &info["max_batch_tokens"]), (&json!(20), &json!(20)));
    assert_eq!(server.post("/embed", &json!({ "inputs": "cat ".repeat(100) })).0, 200);
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("inputs are cut to fit into a batch"), "{output}");
}

#[test]
fn requests_larger_than_all_slots_are_refused_and_that_is_said() {
    let server = Server::start(&["--max-client-batch-size=9", "--max-concurrent-requests=4"]);
    assert_eq!(server.get("/info").1["max_client_batch_size"], 4);
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("no more inputs than max_concurrent_requests"), "{output}");
    assert!(output.contains("max_client_batch_size=9"), "{output}");
}

#[test]
fn every_way_to_batch_gives_the_same_answers() {
    let texts = ["the cat sat on the mat", "a dog", "", "the dog sat and the cat sat and the dog"];
    let mut first = None;
    for batching in ["dp", "naive", "none", "token-budget", "sorted-window"] {
        for dispatch in ["hungry", "lazy"] {
            for layout in ["packed", "padded"] {
                let way = [
                    format!("--batching={batching}"),
                    format!("--dispatch={dispatch}"),
                    format!("--layout={layout}"),
                ];
                // Long enough for a machine with other things to do: what is late by prediction is refused.
                let way = [&way[0], &way[1], &way[2], "--slo-ms=2000"];
                let server = Server::start(&way);
                let ask = |text: &str| {
                    let (address, body) = (server.address().to_owned(), json!({ "inputs": [text, text] }));
                    thread::spawn(move || server::post(&address, "/embed", &body))
                };
                let asked: Vec<_> = texts.iter().map(|text| ask(text)).collect();
                let answers: Vec<_> = asked.into_iter().map(|answer| answer.join().unwrap()).collect();
                assert!(answers.iter().all(|(status, _)| *status == 200), "{way:?}: {answers:?}");
                assert_eq!(first.get_or_insert_with(|| answers.clone()), &answers, "{way:?}");
                server.wait_for_metric("te_queue_size", 0);
                assert_eq!(server.end(Signal::Terminate).0, Some(0), "{way:?}");
            }
        }
    }
}

#[test]
fn accepted_requests_are_answered_before_it_ends() {
    // It waits a second for other requests to share the batch, so this one is surely underway when the signal arrives.
    let server = Server::start(&["--dispatch=lazy", "--slo-ms=4000"]);
    let address = server.address().to_owned();
    let client = thread::spawn(move || server::post(&address, "/embed", &json!({ "inputs": "the cat" })));
    server.wait_for_metric("te_embed_count", 1);
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(client.join().unwrap().0, 200);
    assert_eq!(code, Some(0), "{output}");
}

/// A supervisor that took the log as a pipe, and does not look.
#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let (unread, log) = std::io::pipe().unwrap();
    let mut command = turbo();
    command.env("RUST_LOG", "trace").stderr(log);
    command.args(["serve", "--hostname=127.0.0.1", "--port=0", "--model-id"]).arg(tiny_model());
    let server = Server::spawn(command);
    // each is some kilobytes of the log, of which a pipe takes 64
    for _ in 0..200 {
        assert_eq!(server.get("/health").0, 200);
    }
    assert_eq!(server.end_unread(Signal::Terminate), Some(0));
    drop(unread);
}

#[test]
fn told_twice_it_refuses_what_is_not_answered() {
    let server = Server::start_slow(&[]);
    let client = server.slow_request();
    server.wait_for_metric("te_embed_count", 1);
    server.signal(Signal::Terminate);
    // Two signals at once count as one: the first has been handled when connections are refused.
    let told = Instant::now();
    while TcpStream::connect(server.address()).is_ok() {
        assert!(told.elapsed() < PATIENCE, "it goes on listening");
        thread::sleep(Duration::from_millis(5));
    }
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(client.join().unwrap(), 503);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("error: told twice to stop"), "{output}");
    let refusal = output.lines().find(|line| line.contains("not answered")).unwrap();
    assert!(
        ["method=POST", "path=\"/embed\"", "status=503"].iter().all(|said| refusal.contains(said)),
        "{refusal}"
    );
}

#[test]
fn what_is_not_answered_within_the_grace_is_refused() {
    let server = Server::start_slow(&["--shutdown-grace-ms=200"]);
    let client = server.slow_request();
    server.wait_for_metric("te_embed_count", 1);
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(client.join().unwrap(), 503);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("error: requests still ran after 200ms"), "{output}");
}

#[test]
fn a_folder_without_a_tokenizer_serves_ids() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(tiny_model().join(file), folder.path().join(file)).unwrap();
    }
    let no_pooling = run(&["serve", "--port=0", "--hostname=127.0.0.1", "--model-id", path(folder.path())]);
    assert_fails(no_pooling, &["--pooling"]);
    let server = Server::start_model(folder.path(), &["--pooling=mean"]);
    assert_eq!(server.post("/embed", &json!({ "inputs": [[2, 5, 3]] })).0, 200);
    assert_eq!(server.post("/embed", &json!({ "inputs": "text" })).0, 422);
    let (code, output) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{output}");
    let said = ": it has no tokenizer (tokenizer.json, vocab.txt, or vocab.json and merges.txt), and texts need one: \
                requests can send only token ids";
    let warnings: Vec<&str> = output.lines().filter(|line| line.contains(said)).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("WARN"), "{output}");
}

#[test]
fn a_bad_model_is_one_clear_line() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |model: &Path| run(&["serve", "--port=0", "--hostname=127.0.0.1", "--model-id", path(model)]);
    assert_fails(serve(&folder.path().join("missing")), &["missing", "no such folder"]);
    assert_fails(serve(folder.path()), &["config.json"]);
    std::fs::copy(tiny_model().join("config.json"), folder.path().join("config.json")).unwrap();
    assert_fails(serve(folder.path()), &["safetensors"]);
    let weights = std::fs::read(tiny_model().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    assert_fails(serve(folder.path()), &["model.safetensors"]);
}

#[test]
fn what_cannot_work_is_told_before_the_model_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let tiny = tiny_model();
    let serve = |more: &[&str]| {
        let arguments = ["serve", "--hostname=127.0.0.1", "--model-id", path(&tiny)];
        run(&[&arguments, more].concat())
    };
    assert_fails(serve(&["--port", &port]), &["cannot listen on 127.0.0.1", &port]);
    // a GPU that no machine has; the reason given depends on the machine and on the features of the build
    assert_fails(serve(&["--port=0", "--device=cuda:4000000"]), &["--device cuda:4000000: "]);
    assert_fails(
        serve(&["--port=0", "--max-batch-tokens=47", "--auto-truncate=false"]),
        &["--max-batch-tokens 47: ", "48"],
    );
    let no_pooling = data().join("bert-base");
    let serve_it = ["serve", "--hostname=127.0.0.1", "--port=0", "--model-id", path(&no_pooling)];
    assert_fails(run(&serve_it), &["bert-base", "--pooling cls, mean, last-token or max"]);
    // The largest body counts as it comes, and once more as it unpacks.
    for bytes in ["2000", "4004"] {
        let bodies = ["--port=0", "--max-body-bytes-in-flight", bytes, "--payload-limit=2000"];
        let said = format!("--max-body-bytes-in-flight {bytes}: expected at least 4005");
        assert_fails(serve(&bodies), &[&said, "(2000)"]);
    }
    let answers = ["--port=0", "--max-answer-bytes-in-flight=0"];
    assert_fails(serve(&answers), &["--max-answer-bytes-in-flight 0: expected at least 1"]);
    // Nothing is read of a model.
    let empty = tempfile::tempdir().unwrap();
    for (arguments, said) in [
        (
            &["--max-concurrent-requests=2000000"][..],
            "--max-concurrent-requests 2000000: expected at most 1048576",
        ),
        (&["--tokenization-workers=5000"], "--tokenization-workers 5000: expected at most 1024"),
        (&["--payload-limit=0"], "--payload-limit 0: expected at least 1"),
        (&["--device=cuda:0", "--dtype=int8"], "--dtype int8: a GPU computes in f32, bf16 or float16"),
    ] {
        let serve = ["serve", "--hostname=127.0.0.1", "--port=0", "--model-id", path(empty.path())];
        assert_fails(run(&[&serve, arguments].concat()), &[said]);
    }
    let minilm =
        ["serve", "--hostname=127.0.0.1", "--port=0", "--model-id=minilm", "--turbo-models-dir=nowhere"];
    assert_fails(run(&minilm), &["cargo xtask model"]);

    let model = path(&tiny);
    assert_fails(serve(&["--port=0", "--tls-cert=nowhere", "--tls-key=nowhere"]), &["TLS: nowhere: "]);
    assert_fails(serve(&["--port=0", "--tls-cert=alone"]), &["--tls-cert alone: --tls-key is missing"]);
    assert_fails(serve(&["--port=0", "--tls-key=alone"]), &["--tls-key alone: --tls-cert is missing"]);
    assert_fails(
        serve(&["--port=0", "--uds-path", model]),
        &["cannot listen on --uds-path", model, "not a socket"],
    );
    for (argument, said) in [
        ("--api-key=", "it is empty: give a key"),
        ("--cors-allow-origin=example.org", "expected `*`, or scheme, host and port"),
    ] {
        let (code, output) = serve(&[argument]);
        assert_eq!(code, Some(2), "{argument}: {output}");
        assert!(output.contains(said), "{argument}: {output}");
    }
}

#[test]
fn arguments_guard_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        std::fs::write(folder.path().join(name), content).unwrap();
        folder.path().join(name)
    };
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (file("cert", &signed.cert.pem()), file("key", &signed.signing_key.serialize_pem()));
    let server = Server::start(&["--tls-cert", path(&cert), "--tls-key", path(&key), "--api-key=secret"]);
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.get("/info").0, 401);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}

#[cfg(unix)]
#[test]
fn a_unix_socket_lasts_as_long_as_its_server() {
    use std::{io::Read, io::Write, os::unix::net::UnixStream};
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("turbo");
    let server = Server::start(&["--uds-path", path(&socket)]);
    let mut client = UnixStream::connect(&socket).unwrap();
    client.write_all(b"GET /info HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("tiny-sentence"), "{answer}");
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
    assert!(!socket.exists());
}

#[test]
fn the_machines_name_is_no_address_to_listen_on() {
    for (hostname, expected) in [("a-name-that-leads-nowhere", "0.0.0.0:"), ("127.0.0.1", "127.0.0.1:")] {
        let mut command = turbo();
        command.env("HOSTNAME", hostname).args(["serve", "--port=0", "--model-id"]).arg(tiny_model());
        let server = Server::spawn(command);
        assert!(server.address().starts_with(expected), "{hostname}: {}", server.address());
        assert_eq!(server.end(Signal::Terminate).0, Some(0));
    }
}

#[test]
fn devices_are_listed() {
    let (code, output) = run(&["devices"]);
    assert_eq!(code, Some(0));
    assert!(output.starts_with("cpu ("), "{output}");
    for said in ["f32 ", "bf16 ", "int8 ", "GFLOP/s", "GOP/s", "memory ", "\ncuda:"] {
        assert!(output.contains(said), "{said:?} is not in\n{output}");
    }
}

#[test]
fn the_environment_chooses_vector_instructions() {
    let devices = |isa: &str| {
        let output = turbo().arg("devices").env("TURBO_CPU", isa).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, output) = devices("portable");
    assert!(code == Some(0) && output.starts_with("cpu (portable, "), "{output}");
    let bf16 = output.lines().find(|line| line.trim_start().starts_with("bf16 ")).expect("a line of bf16");
    assert!(bf16.ends_with("widened to f32: no AVX512-BF16 in use"), "{bf16}");
    assert_fails(devices("sse9"), &["TURBO_CPU: unknown instruction set \"sse9\"", "avx2 or portable"]);
}

#[test]
fn a_dtype_is_told_as_the_device_computes_it() {
    let tiny = tiny_model();
    for (device, expected) in [("cpu", "computed in bf16"), ("cuda:4000000", "computed in float16")] {
        let inspect = ["inspect", "--dtype=float16", "--seq-len=16", "--threads=1", "--device", device];
        let (code, output) = run(&[&inspect[..], &["--model-id", path(&tiny)]].concat());
        assert!(code == Some(0) && output.contains(expected), "{output}");
    }
}

/// What a model would take of a GPU is told where there is none.
#[test]
fn memory_of_a_gpu_is_predicted() {
    let tiny = tiny_model();
    let inspect = |more: &[&str]| {
        let arguments = ["inspect", "--device=cuda:4000000", "--seq-len=16,32", "--model-id", path(&tiny)];
        run(&[&arguments, more].concat())
    };
    let weights = |dtype: &str| {
        let (code, output) = inspect(&["--dtype", dtype]);
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("1 × 32 tokens") && output.contains("activations"), "{output}");
        assert!(!output.contains("GFLOP/s"), "nothing of this processor: {output}");
        let line = output.lines().find(|line| line.starts_with("weights")).expect("a line of weights");
        let size: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        (size, line.ends_with("KiB"))
    };
    let (in_f32, in_bf16) = (weights("f32"), weights("bf16"));
    assert!(in_f32.1 && in_bf16.1 && (in_f32.0 / in_bf16.0 - 2.0).abs() < 0.02, "{in_f32:?}, {in_bf16:?}");
    assert_fails(inspect(&["--dtype=int8"]), &["--dtype int8", "f32, bf16 or float16"]);
}

/// Exit code 1, and one line that says all of `said`.
fn assert_fails((code, output): (Option<i32>, String), said: &[&str]) {
    assert_eq!(code, Some(1), "{output}");
    let errors: Vec<_> = output.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{output}");
    assert!(said.iter().all(|said| errors[0].contains(said)), "{said:?} not in {output}");
    assert!(output.ends_with(&format!("{}\n", errors[0])) && !output.contains("panicked"), "{output}");
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Time that a step of a test may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// The folder of the tests' model, built into another crate's tests.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data")
}
