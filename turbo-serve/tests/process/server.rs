//! A server as a child process on a loopback port; ended when dropped.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tonic::{Status, transport::Channel};
use turbo_serve::grpc::proto::tei::{PredictRequest, predict_client::PredictClient};

use crate::{PATIENCE, data};

/// Tokens of a slow request, which takes some seconds of one core.
const SLOW_TOKENS: usize = 16384;

pub(crate) struct Server {
    child: Child,
    scheme: &'static str,
    address: String,
    errors: Option<JoinHandle<String>>,
}

#[derive(Clone, Copy)]
pub(crate) enum Signal {
    Terminate,
    Interrupt,
}

pub(crate) fn tiny_model() -> PathBuf {
    data().join("tiny-sentence")
}

/// The program without the variables of the tests' environment: each of them is an argument.
pub(crate) fn turbo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turbo"));
    // the same on machines with a GPU
    command.env_clear().env("RUST_LOG", "info").env("DEVICE", "cpu").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end; the output is all that it printed, standard output first.
pub(crate) fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = turbo().args(arguments).spawn().unwrap();
    let (stdout, stderr) = (drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap()));
    let status = wait(&mut child);
    (status.code(), stdout.join().unwrap() + &stderr.join().unwrap())
}

impl Server {
    /// Serves the tiny model.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_model(&tiny_model(), arguments)
    }

    pub(crate) fn start_model(model: &Path, arguments: &[&str]) -> Self {
        let mut command = turbo();
        command.args(["serve", "--hostname=127.0.0.1", "--port=0", "--model-id"]).arg(model).args(arguments);
        Self::spawn(command)
    }

    /// Serves a model that takes seconds for [`Server::slow_request`]: it takes as many tokens as its config says, each
    /// of which attends to all others.
    pub(crate) fn start_slow(arguments: &[&str]) -> Self {
        let fixture = data().join("gte-base");
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(fixture.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let config = std::fs::read(fixture.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        config["max_position_embeddings"] = SLOW_TOKENS.into();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        Self::start_model(folder.path(), &[&["--pooling=mean", "--threads=1"], arguments].concat())
    }

    /// Sends a slow request; returns its status once there is one.
    pub(crate) fn slow_request(&self) -> JoinHandle<u16> {
        let address = self.address.clone();
        thread::spawn(move || post(&address, "/embed", &json!({ "inputs": [vec![5; SLOW_TOKENS]] })).0)
    }

    /// Serves the tiny model for a user whose home is `home`.
    pub(crate) fn start_in(home: &Path, arguments: &[&str]) -> Self {
        let mut command = turbo();
        command.env("HOME", home).args(["serve", "--hostname=127.0.0.1", "--port=0", "--model-id"]);
        command.arg(tiny_model()).args(arguments);
        Self::spawn(command)
    }

    /// Starts it and waits until it says where it is.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let errors = child.stderr.take().map(drain);
        let (lines, first_line) = mpsc::channel();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).map(|_| lines.send(line))
        });
        let mut server = Self { child, scheme: "", address: String::new(), errors };
        let line = first_line.recv_timeout(PATIENCE).unwrap();
        let url = line.strip_prefix("listening on ").and_then(|rest| rest.strip_suffix('\n'));
        let scheme = ["http", "https"]
            .into_iter()
            .find_map(|scheme| Some((scheme, url?.strip_prefix(scheme)?.strip_prefix("://")?)));
        let Some((scheme, address)) = scheme else {
            panic!("printed {line:?}, then {}", server.end(Signal::Terminate).1)
        };
        (server.scheme, server.address) = (scheme, address.to_owned());
        server
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        post(&self.address, path, body)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let (status, text) = self.get_text(path);
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The same with the server's key.
    pub(crate) fn get_with_key(&self, path: &str, key: &str) -> Value {
        let request = agent().get(format!("{}://{}{path}", self.scheme, self.address));
        let response = request.header("authorization", format!("Bearer {key}")).call();
        response.unwrap().body_mut().read_json().unwrap()
    }

    /// Asks with the server's key.
    pub(crate) fn post_with_key(&self, path: &str, body: &Value, key: &str) -> Value {
        let request = agent().post(format!("{}://{}{path}", self.scheme, self.address));
        let response = request.header("authorization", format!("Bearer {key}")).send_json(body);
        response.unwrap().body_mut().read_json().unwrap()
    }

    /// Sends a request with headers; returns the answer with its headers.
    #[cfg(feature = "otlp")]
    pub(crate) fn post_with_headers(
        &self,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> ureq::http::Response<ureq::Body> {
        let request = agent().post(format!("{}://{}{path}", self.scheme, self.address));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.send_json(body).unwrap()
    }

    /// Asks over gRPC for labels, which the tiny model does not give; returns how that is refused.
    pub(crate) fn call_in_vain(&self) -> Status {
        let call = async {
            let channel = Channel::from_shared(format!("http://{}", self.address)).unwrap();
            let mut client = PredictClient::new(channel.connect().await.unwrap());
            client.predict(PredictRequest { inputs: "the cat".to_owned(), ..Default::default() }).await
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(call).unwrap_err()
    }

    fn get_text(&self, path: &str) -> (u16, String) {
        let mut response = agent().get(format!("{}://{}{path}", self.scheme, self.address)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// Waits until a metric, with its labels, has that value.
    pub(crate) fn wait_for_metric(&self, name: &str, value: u64) {
        let started = Instant::now();
        let expected = format!("{name} {value}");
        while !self.get_text("/metrics").1.lines().any(|line| line == expected) {
            assert!(started.elapsed() < PATIENCE, "there was no `{expected}`");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks it to end and waits until it has; returns its exit code and its log, which must be a pipe.
    pub(crate) fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        let status = wait(&mut self.child);
        (status.code(), self.errors.take().unwrap().join().unwrap())
    }

    /// The same if its log is not kept; returns its exit code.
    pub(crate) fn end_unread(mut self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        wait(&mut self.child).code()
    }

    /// Asks it to end.
    pub(crate) fn signal(&self, signal: Signal) {
        let name = match signal {
            Signal::Terminate => "TERM",
            Signal::Interrupt => "INT",
        };
        // The shell's own `kill`: there need not be a program of that name.
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn post(address: &str, path: &str, body: &Value) -> (u16, Value) {
    let mut response = agent().post(format!("http://{address}{path}")).send_json(json!(body)).unwrap();
    (response.status().as_u16(), response.body_mut().read_json().unwrap())
}

fn agent() -> ureq::Agent {
    // certificates of tests are made by the tests
    let tls = ureq::tls::TlsConfig::builder().disable_verification(true).build();
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
    let config = config.tls_config(tls);
    config.build().into()
}

pub(crate) fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text).unwrap()
    })
}

/// Waits for the process to end, and kills it if it does not.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("did not end within {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}
