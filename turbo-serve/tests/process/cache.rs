//! `--cache-bytes`: what is answered once is not computed again.

use serde_json::json;

use super::server::{Server, Signal, run};

/// The value of a metric, by its name and labels.
pub(crate) fn metric(server: &Server, name: &str) -> Option<f64> {
    let (_, metrics) = server.get("/metrics");
    metrics.as_str()?.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn an_answer_comes_again_without_being_computed() {
    let server = Server::start(&[]);
    let ask = || server.post("/embed", &json!({ "inputs": ["the cat", "a dog sat"] }));
    let first = ask();
    assert_eq!(first.0, 200);
    let batches = metric(&server, "te_batch_next_size_count");
    assert_eq!(ask(), first);
    assert_eq!(metric(&server, "te_batch_next_size_count"), batches);
    assert_eq!(metric(&server, "turbo_cache_misses"), Some(2.0));
    assert_eq!(metric(&server, "turbo_cache_hits{tier=\"memory\"}"), Some(2.0));
    assert_eq!(metric(&server, "turbo_cache_entries{tier=\"memory\"}"), Some(2.0));
    assert_eq!(metric(&server, "te_request_input_length_count"), Some(4.0));
    assert!(metric(&server, "turbo_cache_bytes{tier=\"memory\"}").unwrap() > 64.0);
    assert_eq!(server.get("/info").1["cache_bytes"], 256 << 20);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}

#[test]
fn no_bytes_are_no_cache() {
    let server = Server::start(&["--cache-bytes=0"]);
    let ask = || server.post("/embed", &json!({ "inputs": "the cat" }));
    assert_eq!(ask(), ask());
    assert_eq!(metric(&server, "te_batch_next_size_count"), Some(2.0));
    assert_eq!(metric(&server, "turbo_cache_misses"), Some(0.0));
    assert_eq!(server.get("/info").1["cache_bytes"], 0);
    assert_eq!(server.end(Signal::Terminate).0, Some(0));
}

#[test]
fn a_number_of_bytes_is_expected() {
    for (value, said) in [("much", "268435456, 256MiB or 1GB"), ("1000", "expected 65536 or more, or 0")] {
        let (code, output) = run(&["serve", "--model-id=minilm", "--cache-bytes", value]);
        assert_eq!(code, Some(2), "{output}");
        assert!(
            output.contains(value) && output.contains("--cache-bytes") && output.contains(said),
            "{output}"
        );
    }
}
