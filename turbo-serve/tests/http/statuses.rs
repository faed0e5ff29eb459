//! Everything that can go wrong: the right status and type, always a JSON body in the protocol's form, and the next
//! request works.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use turbo_serve::{
    engine::{Health, Priority, Urgency},
    http::{HttpOptions, Metrics, router},
    net::{InFlightLimits, bounded},
};

use crate::fake::{
    Fake, PAYLOAD_LIMIT, Reply, Running, Server, assert_tei, classifier, empty, invalid, refuses, routes,
    sparse,
};

/// Checks an error of OpenAI's routes.
#[track_caller]
pub(crate) fn assert_openai(what: &str, reply: &Reply, status: u16, error_type: &str, said: &str) {
    assert_eq!(reply.status, status, "{what}: {}", reply.text());
    assert_eq!(reply.header("content-type"), "application/json", "{what}");
    let body = reply.json();
    assert_eq!(body["type"], error_type, "{what}: {body}");
    assert_eq!(body["code"], status, "{what}: {body}");
    let message = body["message"].as_str().unwrap_or_else(|| panic!("{what}: no `message` in {body}"));
    assert!(message.contains(said), "{what}: {message:?} does not say {said:?}");
    let error = json!({ "message": message, "type": error_type, "param": null, "code": null });
    assert_eq!(body["error"], error, "{what}: {body}");
    assert_eq!(body.as_object().unwrap().len(), 4, "{what}: {body}");
}

#[track_caller]
fn assert_works(server: &Running) {
    assert_eq!(server.post("/embed", r#"{"inputs":"a text"}"#).status, 200);
}

const VALIDATION: &str = "Validation";

/// `inputs` that are wrong on every route: value, status, type, part of the sentence.
fn bad_inputs() -> Vec<(&'static str, u16, &'static str, &'static str)> {
    vec![
        ("[]", 400, "Empty", "` cannot be empty"),
        ("null", 422, VALIDATION, "null, expected a text"),
        ("true", 422, VALIDATION, "boolean `true`, expected a text"),
        ("7", 422, VALIDATION, "integer `7`, expected a text"),
        ("{\"a\":1}", 422, VALIDATION, "map, expected a text"),
        ("[null]", 422, VALIDATION, "null, expected a text, a list of token ids or a token id"),
        ("[[]]", 400, "Empty", "input 0 has no tokens"),
        ("[[1],[]]", 400, "Empty", "input 1 has no tokens"),
        (
            "[1,-1]",
            422,
            VALIDATION,
            "integer `-1`, expected a token id (an integer from 0 to 4294967295) at [1]",
        ),
        ("[[1,2],[3,1.5]]", 422, VALIDATION, "floating point `1.5`, expected a token id"),
        ("[[1,4294967296]]", 422, VALIDATION, "integer `4294967296`, expected a token id"),
        ("[[1,99999999999999999999999]]", 422, VALIDATION, "expected a token id"),
        ("[[1e400]]", 422, VALIDATION, "number out of range"),
        ("[1,\"a\"]", 422, VALIDATION, "string \"a\", expected a token id"),
        ("[\"a\",1]", 422, VALIDATION, "integer `1`, expected a text or a list of token ids at [1]"),
        ("[[[1]]]", 422, VALIDATION, "sequence, expected a token id"),
        ("[[[[[[[[[[[[1]]]]]]]]]]]]", 422, VALIDATION, "sequence, expected a token id"),
        ("\"overloaded\"", 429, "Overloaded", "overloaded"),
        ("\"too late\"", 429, "Overloaded", "predicted in 1250 ms, and wanted within 50 ms: retry in 1.2 s"),
        ("\"expired\"", 504, "Expired", "not answered within 50 ms"),
        ("\"tokenizer\"", 422, "Tokenizer", "it is of no use"),
        ("\"no tokenizer\"", 422, "Tokenizer", "send token ids"),
        ("\"backend\"", 424, "Backend", "the \"device\" is\non fire"),
        ("\"panic\"", 424, "Backend", "inference failed: the engine panicked"),
        ("[\"nan\",\"b\"]", 424, "Backend", "the answer to input 1 has the value NaN"),
        ("\"infinity\"", 424, "Backend", "infinity"),
        ("\"stopping\"", 503, "Unhealthy", "stopping"),
        ("\"invalid id\"", 422, VALIDATION, "token id 1000"),
        ("\"\\ud800\"", 400, VALIDATION, "body is not JSON"),
    ]
}

#[test]
fn inputs_that_are_wrong() {
    let server = Server::start();
    for (inputs, status, error_type, said) in bad_inputs() {
        for path in ["/embed", "/embed_all"] {
            let reply = server.post(path, format!(r#"{{"inputs":{inputs}}}"#));
            assert_tei(&format!("{path} {inputs}"), &reply, status, error_type, said);
            assert_works(&server);
        }
        for path in ["/v1/embeddings", "/embeddings"] {
            let reply = server.post(path, format!(r#"{{"input":{inputs}}}"#));
            assert_openai(&format!("{path} {inputs}"), &reply, status, error_type, said);
            assert_works(&server);
        }
    }
    let nine = json!({ "inputs": vec!["a"; 9] }).to_string();
    for path in ["/embed", "/embed_all"] {
        let said = "batch size 9 > maximum allowed batch size 8";
        assert_tei(path, &server.post(path, &nine), 422, VALIDATION, said);
    }
    let none = server.post("/v1/embeddings", r#"{"input":[]}"#);
    assert_openai("none", &none, 400, "Empty", "`input` cannot be empty");
}

/// Errors of the engine that a text asks the fake for: text, status, type, part of the sentence.
const ASKED_FOR: [(&str, u16, &str, &str); 10] = [
    ("overloaded", 429, "Overloaded", "overloaded"),
    ("too late", 429, "Overloaded", "predicted in 1250 ms"),
    ("expired", 504, "Expired", "not answered within 50 ms"),
    ("tokenizer", 422, "Tokenizer", "it is of no use"),
    ("no tokenizer", 422, "Tokenizer", "send token ids"),
    ("backend", 424, "Backend", "on fire"),
    ("panic", 424, "Backend", "inference failed: the engine panicked"),
    ("nan", 424, "Backend", "has the value NaN"),
    ("infinity", 424, "Backend", "has the value infinity"),
    ("stopping", 503, "Unhealthy", "stopping"),
];

#[test]
fn the_engines_errors_are_told_on_every_route() {
    let one = |field: &str, text: &str| json!({ field: text });
    let (sentences, texts) = (
        |text: &str| json!({"inputs": {"source_sentence": text, "sentences": ["b"]}}),
        |text: &str| json!({"query": text, "texts": ["a", "b"]}),
    );
    let (vectors, weights) = (Server::start(), Server::with_model(sparse()));
    let (scores, ranks) = (Server::with_model(classifier(["x", "y"])), Server::with_model(classifier(["x"])));
    for (text, status, error_type, said) in ASKED_FOR {
        let pairs = json!({ "inputs": [[text, "b"], ["c"]] });
        for (server, path, body) in [
            (&weights, "/embed_sparse", one("inputs", text)),
            (&vectors, "/similarity", sentences(text)),
            (&vectors, "/pipeline/sentence-similarity", sentences(text)),
            (&scores, "/predict", one("inputs", text)),
            (&scores, "/predict", pairs),
            (&scores, "/pipeline/text-classification", one("inputs", text)),
            (&ranks, "/rerank", texts(text)),
        ] {
            let reply = server.post(path, body.to_string());
            assert_tei(&format!("{path} {body}"), &reply, status, error_type, said);
        }
        if !["nan", "infinity"].contains(&text) {
            let reply = vectors.post("/tokenize", one("inputs", text).to_string());
            assert_tei(&format!("/tokenize {text}"), &reply, status, error_type, said);
        }
    }
    assert_works(&vectors);
}

#[test]
fn bodies_that_are_wrong_on_the_other_routes() {
    let (vectors, weights) = (Server::start(), Server::with_model(sparse()));
    let (scores, ranks) = (Server::with_model(classifier(["x", "y"])), Server::with_model(classifier(["x"])));
    let nine = json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"]).to_string();
    let many = format!(r#"{{"query":"q","texts":{nine}}}"#);
    let eight =
        format!(r#"{{"inputs":{{"source_sentence":"s","sentences":{}}}}}"#, nine.replace(r#","i""#, ""));
    let too_large = format!(r#"{{"inputs":"{}"}}"#, "a".repeat(PAYLOAD_LIMIT));
    refuses(
        &weights,
        "/embed_sparse",
        [
            (r#"{"inputs":[]}"#, empty("`inputs` cannot be empty")),
            (r#"{"inputs":["a",7]}"#, invalid("a text or a list of token ids at [1]")),
        ],
    );
    refuses(
        &scores,
        "/predict",
        [
            (r#"{"inputs":[]}"#, empty("`inputs` cannot be empty")),
            (r#"{"inputs":[1,2]}"#, invalid("integer `1`, expected a text or a list of texts")),
            (r#"{"inputs":["a","b","c"]}"#, invalid("invalid length 3, expected a text, a pair")),
            (r#"{"inputs":[["a"],[]]}"#, invalid("0 texts, expected one or two at [1]")),
            (r#"{"inputs":"a","raw_scores":1}"#, invalid("integer `1`, expected a boolean")),
        ],
    );
    refuses(
        &ranks,
        "/rerank",
        [
            (r#"{"texts":["a"]}"#, invalid("missing field `query`")),
            (r#"{"query":"q"}"#, invalid("missing field `texts`")),
            (r#"{"query":"q","texts":[]}"#, empty("`texts` cannot be empty")),
            (r#"{"query":"q","texts":"a"}"#, invalid("string \"a\", expected a sequence")),
            (r#"{"query":"q","texts":["a",7]}"#, invalid("integer `7`, expected a string")),
            (&many, invalid("batch size 9 > maximum allowed batch size 8")),
        ],
    );
    refuses(
        &vectors,
        "/similarity",
        [
            (r#"{"inputs":"a"}"#, invalid("string \"a\", expected a JSON object")),
            (r#"{"inputs":["a",["b"]]}"#, invalid("sequence, expected a JSON object")),
            (
                r#"{"inputs":{"source_sentence":"a","sentences":["b"]},"parameters":[true]}"#,
                invalid("sequence, expected a JSON object"),
            ),
            (r#"{"inputs":{"sentences":["a"]}}"#, invalid("missing field `source_sentence`")),
            (
                r#"{"inputs":{"source_sentence":"a","sentences":[]}}"#,
                empty("`inputs.sentences` cannot be empty"),
            ),
            (
                r#"{"inputs":{"source_sentence":"a","sentences":["b","invalid id"]}}"#,
                invalid("`inputs.sentences`: input 1 has token id 1000"),
            ),
            (
                r#"{"inputs":{"source_sentence":"invalid id","sentences":["b"]}}"#,
                invalid("`inputs.source_sentence`: input 0 has token id 1000"),
            ),
            (&eight, invalid("batch size 9 > maximum allowed batch size 8")),
        ],
    );
    refuses(
        &vectors,
        "/tokenize",
        [
            (r#"{"inputs":[]}"#, empty("`inputs` cannot be empty")),
            (r#"{"inputs":[1]}"#, invalid("integer `1`, expected a text at [0]")),
            (r#"{"inputs":"a","prompt_name":"x"}"#, invalid("`prompt_name` is `x`")),
        ],
    );
    refuses(
        &vectors,
        "/decode",
        [
            (r#"{"ids":[]}"#, empty("`ids` cannot be empty")),
            (r#"{"ids":[[]]}"#, empty("input 0 has no tokens")),
            (r#"{"ids":[[1],[]]}"#, empty("input 1 has no tokens")),
            (r#"{"ids":"a"}"#, invalid("string \"a\", expected a list of token ids")),
            (r#"{"ids":[1,-1]}"#, invalid("integer `-1`, expected a token id")),
            (r#"{"inputs":[1]}"#, invalid("missing field `ids`")),
        ],
    );
    for path in [
        "/embed_sparse",
        "/similarity",
        "/predict",
        "/rerank",
        "/tokenize",
        "/decode",
        "/invocations",
        "/pipeline/fill-mask",
    ] {
        assert_tei(path, &vectors.post(path, "{"), 400, VALIDATION, "body is not JSON");
        assert_tei(path, &vectors.post(path, "[]"), 422, VALIDATION, "expected a JSON object");
        assert_tei(path, &vectors.post(path, &too_large), 413, VALIDATION, "larger than the limit");
        let text = vectors.send("POST", path, &[("content-type", "text/plain")], "{}");
        assert_tei(path, &text, 415, VALIDATION, "expected content-type");
        assert_tei(path, &vectors.get(path), 405, VALIDATION, "does not take GET");
    }
    assert_works(&vectors);
}

#[test]
fn bodies_that_are_wrong() {
    let server = Server::start();
    let deep = format!(r#"{{"inputs":{}1{}}}"#, "[".repeat(4000), "]".repeat(4000));
    let deep_unknown = format!(r#"{{"inputs":"a","x":{}1{}}}"#, "[".repeat(4000), "]".repeat(4000));
    let too_large = format!(r#"{{"inputs":"{}"}}"#, "a".repeat(PAYLOAD_LIMIT));
    for (body, status, said) in [
        ("", 400, "body is not JSON: EOF"),
        ("{", 400, "body is not JSON: EOF"),
        ("not JSON", 400, "body is not JSON: expected ident"),
        (r#"{"inputs":"a"} x"#, 400, "body is not JSON: trailing characters"),
        (r#"{"inputs":"a",}"#, 400, "body is not JSON: trailing comma"),
        (r#"{"inputs":"a", normalize: true}"#, 400, "body is not JSON: key must be a string"),
        ("{}", 422, "missing field `inputs`"),
        ("null", 422, "expected a JSON object"),
        ("[\"a\", true]", 422, "expected a JSON object"),
        ("\"a\"", 422, "expected a JSON object"),
        (r#"{"inputs":"a","inputs":"b"}"#, 422, "duplicate field `inputs`"),
        (r#"{"inputs":"a","truncate":"yes"}"#, 422, "string \"yes\", expected a boolean"),
        (r#"{"inputs":"a","truncation_direction":"up"}"#, 422, "unknown variant `up`, expected"),
        (r#"{"inputs":"a","prompt_name":"query"}"#, 422, "`prompt_name` is `query`"),
        (r#"{"inputs":"a","prompt_name":7}"#, 422, "integer `7`, expected a string"),
        (&deep, 422, "sequence, expected a token id"),
        (&too_large, 413, "larger than the limit of 10000 bytes"),
    ] {
        for path in ["/embed", "/embed_all"] {
            assert_tei(&format!("{path} {body:.60}"), &server.post(path, body), status, VALIDATION, said);
            assert_works(&server);
        }
    }
    for (body, said) in [
        (r#"{"inputs":"a","normalize":1}"#, "integer `1`, expected a boolean"),
        (r#"{"inputs":"a","dimensions":-1}"#, "integer `-1`, expected"),
        (r#"{"inputs":"a","dimensions":0}"#, "`dimensions` is 0, the model's rows have 1 to 4 values"),
        (r#"{"inputs":"a","dimensions":5}"#, "`dimensions` is 5"),
        (
            r#"{"inputs":"aaaaaaaaaaaaaaaaaaaaaaaaa","truncate":false}"#,
            "input 0 has at least 26 tokens, at most 16 are possible",
        ),
    ] {
        assert_tei(body, &server.post("/embed", body), 422, VALIDATION, said);
    }
    let many = json!({ "input": vec!["a"; 2049] }).to_string();
    let hundred = json!({ "input": vec!["a"; 100], "dimensions": 9 }).to_string();
    for (body, status, said) in [
        ("{", 400, "body is not JSON"),
        (&many, 422, "batch size 2049 > maximum allowed batch size 2048"),
        (&hundred, 422, "`dimensions` is 9"),
        (r#"{"inputs":"a"}"#, 422, "missing field `input`"),
        (
            r#"{"input":"a","encoding_format":"hex"}"#,
            422,
            "unknown variant `hex`, expected `float` or `base64`",
        ),
        (r#"{"input":"a","dimensions":9}"#, 422, "`dimensions` is 9"),
        (&too_large, 413, "larger than the limit of 10000 bytes"),
    ] {
        assert_openai(body, &server.post("/v1/embeddings", body), status, VALIDATION, said);
        assert_works(&server);
    }
    assert_eq!(
        server.post("/embed", deep_unknown).status,
        200,
        "depth in a field that is ignored does no harm"
    );
}

#[test]
fn a_long_value_is_not_told_in_full() {
    let engine = Arc::new(Fake::new(Health::Ready));
    let server = Running::start(router(engine, Metrics::install().unwrap(), HttpOptions::default()));
    // The part that is left out begins between two letters, or inside one.
    for before in ["", "a"] {
        let long = before.to_owned() + &"é".repeat(500_000);
        let body = json!({ "input": "a", "dimensions": long }).to_string();
        let reply = server.post("/v1/embeddings", &body);
        let said = "é\", expected a whole number, 0 or above at line 1";
        assert_openai("a megabyte", &reply, 422, VALIDATION, said);
        assert_openai("a megabyte", &reply, 422, VALIDATION, &format!("invalid type: string \"{before}é"));
        assert!(reply.body.len() < 4000, "{} bytes", reply.body.len());
    }
}

#[test]
fn a_body_that_is_not_utf8_is_not_json() {
    let server = Server::start();
    assert_tei("bytes", &server.post("/embed", b"{\"inputs\":\"\xff\xfe\"}"), 400, VALIDATION, "not JSON");
    assert_works(&server);
}

#[test]
fn a_body_in_another_encoding_is_told_which_is_read() {
    let server = Server::start();
    let text = r#"{"inputs":"a"}"#;
    let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let marked = "body begins with a byte order mark, expected JSON in UTF-8 without";
    let utf16 = "body is UTF-16, expected JSON in UTF-8 without";
    for (body, said) in [
        ([&b"\xef\xbb\xbf"[..], text.as_bytes()].concat(), marked),
        ([&b"\xff\xfe"[..], &little].concat(), utf16),
        ([&b"\xfe\xff"[..], &big].concat(), utf16),
        (little, utf16),
        (big, utf16),
    ] {
        assert_tei(said, &server.post("/embed", body), 400, VALIDATION, said);
    }
}

#[test]
fn a_refused_body_is_read_to_its_end_before_the_answer() {
    // Discarded bytes are not held: there may be far more of them than this limit.
    let limits = InFlightLimits { bodies: 20_000, answers: usize::MAX };
    let server = Running::start(bounded(routes(Fake::new(Health::Ready).into()), limits));
    // far more than the buffers of two sockets: an answer to a connection closed too early would be lost
    let body = format!(r#"{{"inputs":"{}"}}"#, "a".repeat(20 << 20));
    let text = [("content-type", "text/plain")];
    for _ in 0..2 {
        assert_tei("20 MiB", &server.post("/embed", &body), 413, VALIDATION, "limit of 10000 bytes");
        let reply = server.send("POST", "/embed", &text, &body);
        assert_tei("20 MiB of text", &reply, 415, VALIDATION, "content-type");
        assert_tei("20 MiB to nowhere", &server.post("/nowhere", &body), 404, VALIDATION, "no route");
        assert_tei("20 MiB to /info", &server.post("/info", &body), 405, VALIDATION, "does not take POST");
    }
    assert_works(&server);
}

#[test]
fn content_types() {
    let server = Server::start();
    let body = r#"{"inputs":"a"}"#;
    for content_type in ["application/json", "Application/JSON; charset=utf-8", "application/ld+json"] {
        let reply = server.send("POST", "/embed", &[("content-type", content_type)], body);
        assert_eq!(reply.status, 200, "{content_type}");
    }
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "json", "application/jsonp", ""] {
        let reply = server.send("POST", "/embed", &[("content-type", content_type)], body);
        let said = format!("expected content-type `application/json`, got `{content_type}`");
        assert_tei(content_type, &reply, 415, VALIDATION, &said);
        assert_works(&server);
    }
    let openai = server.send("POST", "/v1/embeddings", &[("content-type", "text/plain")], r#"{"input":"a"}"#);
    assert_openai("text", &openai, 415, VALIDATION, "expected content-type");
}

/// `{"inputs":"a text"}` as gzip, and as zlib, which is what HTTP calls deflate.
const GZIP: &str = "1f8b0800000000000203ab56cacc2b282d2956b2524a542849ad2851aa05006469f47113000000";
const DEFLATE: &str = "789cab56cacc2b282d2956b2524a542849ad2851aa0500433106a4";
/// The two halves of the first, each a gzip body by itself.
const FIRST_HALF: &str = "1f8b0800000000000203ab56cacc2b282d2956b202003a2c4dbc0a000000";
const SECOND_HALF: &str = "1f8b0800000000000203534a542849ad2851aa05008693e62c09000000";
/// Such a gzip body with 20 000 letters `a`: twice the limit.
const LARGE: &str = "1f8b0800000000000203edc1b10d00100004c05d7e0cdb283522412576b786e2ee4e5a1f7bcd945400000000000000000000000000000000000000be90fb00eb5b5f482d4e0000";

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn compressed_bodies_are_unpacked_within_the_limit() {
    let server = Server::start();
    let plain = br#"{"inputs":"a text"}"#;
    let send = |encoding: &str, body: &[u8]| {
        let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
        server.send("POST", "/embed", &headers, body)
    };
    let expected = server.post("/embed", plain).json();
    for (encoding, body) in [
        ("gzip", from_hex(GZIP)),
        ("GZip", from_hex(GZIP)),
        ("x-gzip", from_hex(GZIP)),
        ("deflate", from_hex(DEFLATE)),
        ("Deflate", from_hex(DEFLATE)),
        ("identity", plain.to_vec()),
        ("Identity", plain.to_vec()),
    ] {
        let reply = send(encoding, &body);
        assert_eq!((reply.status, reply.json()), (200, expected.clone()), "{encoding}");
    }
    // A body is a series of members (RFC 1952), and nothing else.
    let (first, second) = (from_hex(FIRST_HALF), from_hex(SECOND_HALF));
    let reply = send("gzip", &[&first[..], &second].concat());
    assert_eq!((reply.status, reply.json()), (200, expected), "two members");
    for (what, encoding, packed) in [("gzip", "gzip", from_hex(GZIP)), ("zlib", "deflate", from_hex(DEFLATE))]
    {
        let more = [&packed[..], b"more"].concat();
        assert_tei(what, &send(encoding, &more), 400, VALIDATION, "cannot be read to its end");
    }
    let reply = send("gzip", &from_hex(LARGE));
    assert_tei("large", &reply, 413, VALIDATION, "body is larger than the limit of 10000 bytes");
    assert_tei("torn", &send("gzip", &from_hex(GZIP)[..20]), 400, VALIDATION, "cannot be read to its end");
    assert_tei("not packed", &send("gzip", plain), 400, VALIDATION, "cannot be read to its end");
    for encoding in ["br", "zstd", "gzip, gzip", ""] {
        let said = format!("content-encoding is `{encoding}`, expected `gzip`, `deflate` or none");
        assert_tei(encoding, &send(encoding, plain), 415, VALIDATION, &said);
    }
    assert_works(&server);
}

#[test]
fn routes_and_methods_that_do_not_exist() {
    let server = Server::start();
    for path in ["/embedd", "/embed/", "/v3/health", "/%00", "//embed"] {
        assert_tei(path, &server.get(path), 404, VALIDATION, "no route");
    }
    assert_openai("/v1/nowhere", &server.get("/v1/nowhere"), 404, VALIDATION, "no route `/v1/nowhere`");
    for (method, path, allowed) in
        [("GET", "/embed", "POST"), ("PUT", "/embed_all", "POST"), ("POST", "/info", "GET,HEAD")]
    {
        let reply = server.send(method, path, &[], "");
        assert_tei(path, &reply, 405, VALIDATION, &format!("`{path}` does not take {method}"));
        assert_eq!(reply.header("allow"), allowed);
    }
    assert_openai("GET /embeddings", &server.get("/embeddings"), 405, VALIDATION, "does not take GET");
    assert_works(&server);
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let server = Server::start();
    for (path, field) in [("/embed", "inputs"), ("/v1/embeddings", "input")] {
        for text in ["overloaded", "too late"] {
            let reply = server.post(path, format!(r#"{{"{field}":"{text}"}}"#));
            assert_eq!(reply.status, 429);
            // 1.2003 s, rounded up
            assert_eq!(reply.header("retry-after"), "2");
            assert_eq!(reply.header("retry-after-ms"), "1201");
        }
    }
    for text in ["backend", "expired"] {
        let reply = server.post("/embed", format!(r#"{{"inputs":"{text}"}}"#));
        assert!(!reply.headers.contains_key("retry-after"), "{text}");
    }
}

/// Routes of every protocol, bodies that they answer, and the protocol that words their errors.
const ASKED: [(&str, &str, &str); 5] = [
    ("/embed", r#"{"inputs":"a"}"#, "tei"),
    ("/pipeline/feature-extraction", r#"{"inputs":"a"}"#, "tei"),
    ("/", r#"{"inputs":"a"}"#, "tei"),
    ("/v1/embeddings", r#"{"input":"a"}"#, "openai"),
    (
        "/v2/models/fake/infer",
        r#"{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["a"]}]}"#,
        "kserve",
    ),
];

fn send_urgent(server: &Server, path: &str, body: &str, header: (&str, &str)) -> Reply {
    server.send("POST", path, &[("content-type", "application/json"), header], body)
}

#[test]
fn urgency_comes_from_the_head() {
    let server = Server::start();
    for (path, body, _) in ASKED {
        let asked = Instant::now();
        assert_eq!(
            send_urgent(&server, path, body, ("x-request-deadline-ms", "30000")).status,
            200,
            "{path}"
        );
        let seen = server.engine.seen.lock().unwrap().take().unwrap().urgency;
        let within = seen.deadline.unwrap() - asked;
        assert!(within >= Duration::from_secs(30) && within < Duration::from_secs(40), "{path}: {within:?}");
        assert_eq!(seen.priority, Priority::Normal, "{path}");
        assert_eq!(send_urgent(&server, path, body, ("X-Request-Priority", "high")).status, 200, "{path}");
        let seen = server.engine.seen.lock().unwrap().take().unwrap().urgency;
        assert_eq!(seen, Urgency { deadline: None, priority: Priority::High }, "{path}");
    }
    let two = r#"{"instances":[{"inputs":"a"},{"inputs":"b"}]}"#;
    assert_eq!(send_urgent(&server, "/vertex", two, ("x-request-priority", "low")).status, 200);
    let seen = server.engine.seen.lock().unwrap().take().unwrap().urgency;
    assert_eq!(seen.priority, Priority::Low, "of every instance");
}

#[test]
fn the_time_of_a_request_that_is_handed_on_runs_from_its_head() {
    let (embedding, ranker) = (Server::start(), Server::with_model(classifier(["fits"])));
    for (server, path, body) in [
        (&embedding, "/", r#"{"inputs":"a"}"#),
        (&embedding, "/invocations", r#"{"inputs":"a"}"#),
        (&ranker, "/rerank", r#"{"query":"a","texts":["b"]}"#),
        (&ranker, "/rerank", r#"{"query":"a","documents":["b"]}"#),
    ] {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-request-deadline-ms: 30000\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n\r\n"
        );
        let mut client = TcpStream::connect(server.address).unwrap();
        client.write_all(head.as_bytes()).unwrap();
        // When a client is told to go on, its head has been read.
        let mut told = [0; 25];
        client.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
        let gone_on = Instant::now();
        client.write_all(body.as_bytes()).unwrap();
        let mut status = [0; 12];
        client.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200", "{path}");
        let seen = server.engine.seen.lock().unwrap().take().unwrap().urgency;
        let left = seen.deadline.unwrap() - gone_on;
        assert!(left < Duration::from_secs(30), "{path}, {body}: {left:?}");
    }
}

#[test]
fn what_only_the_tokenizer_looks_at_has_its_time_too() {
    let server = Server::start();
    let ids: Vec<u32> = "wait".chars().map(u32::from).collect();
    for (path, body) in
        [("/tokenize", r#"{"inputs":"wait"}"#.to_owned()), ("/decode", format!(r#"{{"ids":{ids:?}}}"#))]
    {
        let reply = send_urgent(&server, path, &body, ("x-request-deadline-ms", "50"));
        assert_tei(path, &reply, 504, "Expired", "not answered within");
    }
}

#[test]
fn urgency_that_nobody_understands_is_refused_in_the_routes_words() {
    let server = Server::start();
    for (path, body, words) in ASKED {
        for (header, value, said) in [
            (
                "x-request-deadline-ms",
                "soon",
                "`x-request-deadline-ms` is `soon`, expected a whole number of",
            ),
            ("x-request-deadline-ms", "0", "`x-request-deadline-ms` is `0`, expected a whole number of"),
            ("x-request-priority", "urgent", "is `urgent`, expected one of `low`, `normal`, `high`"),
        ] {
            let reply = send_urgent(&server, path, body, (header, value));
            match words {
                "tei" => assert_tei(path, &reply, 400, VALIDATION, said),
                "openai" => assert_openai(path, &reply, 400, VALIDATION, said),
                _ => {
                    assert_eq!(reply.status, 400, "{path}: {}", reply.text());
                    assert!(
                        reply.json()["error"].as_str().unwrap().contains(said),
                        "{path}: {}",
                        reply.text()
                    );
                }
            }
        }
    }
    assert_works(&server);
}

#[test]
fn health_follows_the_engine() {
    for (health, said) in [
        (Health::Ready, None),
        (Health::Starting, Some("being prepared")),
        (Health::Failing, Some("cannot be run")),
        (Health::Stopping, Some("stopping")),
    ] {
        let server = Server::with_health(health);
        for path in ["/health", "/ping", "/"] {
            let reply = server.get(path);
            match said {
                None => assert_eq!((reply.status, reply.text()), (200, ""), "{path}"),
                Some(said) => assert_tei(path, &reply, 503, "Unhealthy", said),
            }
        }
    }
}
