//! Loading and unloading real models under load.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use serde_json::{Value, json};

use crate::{
    config::{file, written},
    server::{Server, Signal, post, turbo},
};

const ROUNDS: usize = 15;
const CLIENTS: usize = 4;

const TWO: &str = "
[server]
hostname = '127.0.0.1'
port = 0
[[models]]
name = 'stays'
model_id = '{data}/tiny-sentence'
[[models]]
name = 'comes'
model_id = '{data}/tiny-dense'
";

/// What a client of `model` got until it was told to end: answers, and times that it was told that there is no such
/// model. Anything else fails the test.
fn client(address: &str, model: &str, expected: &Value, end: &AtomicBool) -> [usize; 2] {
    let mut got = [0; 2];
    while !end.load(SeqCst) {
        let (status, answer) =
            post(address, &format!("/models/{model}/embed"), &json!({ "inputs": "the cat" }));
        match status {
            200 => assert_eq!(&answer, expected, "{model}"),
            404 => assert!(answer["error"].as_str().unwrap().contains("is not loaded"), "{model}: {answer}"),
            other => panic!("{model}: {other}, {answer}"),
        }
        got[usize::from(status == 404)] += 1;
    }
    got
}

#[test]
fn no_request_fails_while_a_model_comes_and_goes() {
    let folder = written(TWO);
    let mut command = turbo();
    command.args(["serve", "--cost-cache=off", "--packed-cache=off", "--cache-bytes=0"]);
    command.args(["--config", &file(&folder)]);
    let server = Server::spawn(command);
    let models = ["stays", "comes"];
    let expected = models.map(|model| {
        let (status, answer) =
            server.post(&format!("/models/{model}/embed"), &json!({ "inputs": "the cat" }));
        assert_eq!(status, 200, "{model}: {answer}");
        answer
    });
    assert_ne!(expected[0], expected[1]);
    let end = AtomicBool::new(false);
    let got = thread::scope(|scope| {
        let clients: Vec<_> = (0..2 * CLIENTS)
            .map(|number| {
                let (address, model, expected) =
                    (server.address(), models[number % 2], &expected[number % 2]);
                let end = &end;
                scope.spawn(move || client(address, model, expected, end))
            })
            .collect();
        for _ in 0..ROUNDS {
            for change in ["unload", "load"] {
                let told = server.post(&format!("/v2/repository/models/comes/{change}"), &json!({}));
                assert_eq!(told.0, 200, "{change}: {}", told.1);
                // All clients see the model in its present state.
                thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        end.store(true, SeqCst);
        let mut got = [[0; 2]; 2];
        for (number, client) in clients.into_iter().enumerate() {
            let counts = client.join().unwrap();
            (0..2).for_each(|kind| got[number % 2][kind] += counts[kind]);
        }
        got
    });
    let [[answered, refused], [came, gone]] = got;
    assert_eq!(refused, 0, "nothing has happened to the one that stays: {got:?}");
    assert!(answered > ROUNDS && came > ROUNDS && gone > 0, "{got:?}");
    let (code, log) = server.end(Signal::Terminate);
    assert!(code == Some(0) && !log.contains("panicked"), "{log}");
}
