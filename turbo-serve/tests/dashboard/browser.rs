//! A headless Chromium, controlled over a pipe: no port, and no client library.
//!
//! Its protocol is the one of its developer tools: JSON, a zero byte behind each message.
//! <https://chromedevtools.github.io/devtools-protocol/>

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Time that it may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Browser {
    child: Child,
    stdin: ChildStdin,
    messages: Receiver<Value>,
    session: Value,
    next_id: u64,
    /// Events of the page since the last call of [`Browser::told`].
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// One with an empty page; `None` where there is no Chromium, unless there has to be one.
    pub(crate) fn start() -> Option<Self> {
        let there =
            Command::new("chromium").arg("--version").stderr(Stdio::null()).stdout(Stdio::null()).status();
        let required = std::env::var_os("TURBO_REQUIRE_CHROMIUM").is_some_and(|value| value == "1");
        assert!(there.is_ok() || !required, "no `chromium`: .ci/run installs it");
        if there.is_err() {
            println!("skipped: no `chromium`");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        // It reads commands from descriptor 3, and writes answers to 4.
        command.args(["-c", r#"exec "$@" 3<&0 4>&1 0</dev/null 1>&2"#, "sh", "chromium", "--headless=new"]);
        command.args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args([
            "--disable-background-networking",
            "--remote-debugging-pipe",
            "--window-size=1360,1000",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, messages) = channel();
        thread::spawn(move || {
            let all = BufReader::new(stdout).split(0).map_while(Result::ok);
            all.map(|text| serde_json::from_slice(&text).unwrap())
                .try_for_each(|message| sender.send(message))
        });
        let (session, events) = (Value::Null, Vec::new());
        let mut browser = Self { child, stdin, messages, session, next_id: 0, events, _profile: profile };
        let target =
            browser.call("Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].clone();
        for domain in ["Runtime", "Log", "Network", "Page"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Loads a page, all of it.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        self.wait_for(&format!("location.href === '{url}' && document.readyState === 'complete'"));
    }

    /// Makes the page as wide as a telephone.
    pub(crate) fn narrow(&mut self, width: u32) {
        let metrics = json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": true });
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// Evaluates an expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", &asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let started = Instant::now();
        while self.evaluate(&format!("Boolean({expression})")) != json!(true) {
            let page = self.evaluate("document.body?.innerText");
            assert!(
                started.elapsed() < PATIENCE,
                "never `{expression}` on the page:\n{page}\n{:?}",
                self.events
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Events of the page since the last call, with their names.
    pub(crate) fn told(&mut self) -> Vec<(String, Value)> {
        self.call("Runtime.evaluate", &json!({ "expression": "0" })); // earlier events have arrived by then
        let event = |mut event: Value| {
            (event["method"].as_str().unwrap_or_default().to_owned(), event["params"].take())
        };
        self.events.drain(..).map(event).collect()
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next_id += 1;
        let mut message = json!({ "id": self.next_id, "method": method, "params": params });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.stdin.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut message = match self.messages.recv_timeout(PATIENCE) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("{method}: no answer"),
                Err(RecvTimeoutError::Disconnected) => panic!("{method}: the browser has ended"),
            };
            match message["id"].as_u64() {
                Some(id) if id == self.next_id => {
                    assert!(message["error"].is_null(), "{method}: {message}");
                    return message["result"].take();
                }
                Some(_) => {}
                None => self.events.push(message),
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
