//! A minimal client of `POST /embed`: `{"inputs": [text, …]}` in, `[[number, …], …]` out.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

/// The time limit of a request: longer than a dozen sentences take on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One vector for each text, in their order.
///
/// # Errors
/// When the server cannot be reached, answers with a status other than 200 (its answer is in the message), or sends
/// another number of vectors.
pub(super) fn embed(address: &str, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false) // the body says what is wrong
        .proxy(None) // the server is on this machine
        .build()
        .new_agent();
    let url = format!("{address}/embed");
    let mut response =
        agent.post(&url).send_json(json!({ "inputs": texts })).with_context(|| format!("POST {url}"))?;
    let status = response.status();
    let body =
        response.body_mut().read_to_string().with_context(|| format!("reading the answer of {url}"))?;
    ensure!(status == 200, "POST {url}: {status}: {body}");
    let vectors: Vec<Vec<f32>> =
        serde_json::from_str(&body).with_context(|| format!("POST {url}: not a list of vectors"))?;
    ensure!(vectors.len() == texts.len(), "POST {url}: {} vectors for {} texts", vectors.len(), texts.len());
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::thread;

    /// Answers one request with `status` and `body`. Returns the address, and a thread that gives the request's body
    /// when joined.
    fn answering(status: &'static str, body: &'static str) -> (String, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut sent = vec![0; length];
            reader.read_exact(&mut sent).unwrap();
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
            String::from_utf8(sent).unwrap()
        });
        (address, server)
    }

    #[test]
    fn texts_become_vectors() {
        let (address, server) = answering("200 OK", "[[1, 0.5], [-2e-1, 0]]");
        assert_eq!(embed(&address, &["a", "b"]).unwrap(), [[1.0, 0.5], [-0.2, 0.0]]);
        let sent: serde_json::Value = serde_json::from_str(&server.join().unwrap()).unwrap();
        assert_eq!(sent, json!({ "inputs": ["a", "b"] }));
    }

    #[test]
    fn refusals_and_nonsense_are_explained() {
        let cases = [
            ("422 Unprocessable Entity", r#"{"error":"too long"}"#, "too long"),
            ("200 OK", "[[1.0]]", "1 vectors for 2 texts"),
            ("200 OK", "hello", "not a list of vectors"),
        ];
        for (status, body, expected) in cases {
            let (address, server) = answering(status, body);
            let error = embed(&address, &["a", "b"]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            server.join().unwrap();
        }
    }
}
