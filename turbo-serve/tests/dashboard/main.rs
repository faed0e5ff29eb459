//! The live page in a browser: it shows what `/metrics` says, sends requests to its server only, and survives its end.
//!
//! Without `chromium` the tests of the page say so and pass, unless `TURBO_REQUIRE_CHROMIUM=1`.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod browser;
#[path = "../process/server.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod server;

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};

use browser::Browser;
use server::{Server, Signal, tiny_model, turbo};

/// Time that a server may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// The folder of the tests' models, built into another crate's tests.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../turbo-models/tests/data")
}

/// A server of the tiny model on this port.
fn start(port: u16, arguments: &[&str]) -> Server {
    let mut command = turbo();
    command.args(["serve", "--hostname=127.0.0.1", "--model-id"]).arg(tiny_model());
    command.arg(format!("--port={port}")).args(arguments);
    Server::spawn(command)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Texts of many lengths, some of them again.
fn ask(server: &Server, requests: usize) {
    for n in 0..requests {
        let text = |words: usize| "the cat sat on a dog ".repeat(words % 9 + 1);
        let inputs: Vec<String> = (0..n % 7 + 1).map(|i| format!("{} {n}", text(n + i * i))).collect();
        for inputs in [&inputs[..], &inputs[..1]] {
            assert_eq!(server.post("/embed", &json!({ "inputs": inputs })).0, 200);
        }
    }
}

/// What the page shows of each metric that it names.
const SHOWN: &str = "Object.fromEntries([...document.querySelectorAll('data[data-metric]')]\
    .filter((element) => element.dataset.metric).map((element) => [element.dataset.metric, Number(element.value)]))";

/// The numbers of `/metrics` with these names.
fn counted<'a>(server: &Server, names: impl Iterator<Item = &'a String>) -> BTreeMap<String, f64> {
    let (_, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().unwrap().to_owned();
    let of = |name: &String| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name.as_str())?.strip_prefix(' '));
        (name.clone(), line.map_or(0.0, |number| number.parse().unwrap()))
    };
    names.map(of).collect()
}

/// Waits until the page shows this many answered inputs, and compares all that it shows with `/metrics`.
#[track_caller]
fn check_numbers(browser: &mut Browser, server: &Server, answered: u64) {
    browser.wait_for(&format!(
        "({SHOWN})['te_embed_success'] === {answered} && ({SHOWN})['te_queue_size'] === 0"
    ));
    let shown: BTreeMap<String, f64> = serde_json::from_value(browser.evaluate(SHOWN)).unwrap();
    assert_eq!(shown.len(), 24, "{shown:?}");
    assert_eq!(shown, counted(server, shown.keys()));
    // as people read it: with commas
    let written = browser.evaluate(
        "[...document.querySelectorAll('data[data-metric]')].every((element) => element.textContent.replaceAll(',', '') === element.value)",
    );
    assert_eq!(written, json!(true));
}

/// Errors in the page, and its requests to other servers.
fn complaints(browser: &mut Browser, origin: &str) -> Vec<String> {
    let told = browser.told();
    let wrong = |(method, params): &(String, Value)| match method.as_str() {
        "Runtime.exceptionThrown" => true,
        "Runtime.consoleAPICalled" => params["type"] != "log",
        "Log.entryAdded" => params["entry"]["level"] == "error",
        "Network.requestWillBeSent" => {
            let url = params["request"]["url"].as_str().unwrap_or_default();
            !url.starts_with(origin) && !url.starts_with("data:")
        }
        _ => false,
    };
    assert!(told.iter().any(|(method, _)| method == "Network.requestWillBeSent"), "nothing is told at all");
    told.iter().filter(|event| wrong(event)).map(|(method, params)| format!("{method} {params}")).collect()
}

#[test]
fn the_page_shows_what_the_metrics_say_and_outlives_its_server() {
    let Some(mut browser) = Browser::start() else { return };
    let port = free_port();
    let origin = format!("http://127.0.0.1:{port}/");
    let server = start(port, &[]);
    browser.open(&format!("{origin}dashboard"));

    browser.wait_for("document.getElementById('state').textContent === 'live'");
    browser.wait_for("document.getElementById('quiet').innerText.includes('Nothing has been asked yet')");
    ask(&server, 40);
    let (_, data) = server.get("/dashboard/data");
    let totals = &data["observed"]["totals"];
    assert!(totals["cache_memory"].as_u64() >= Some(40), "{totals}");
    assert!(totals["padded_tokens"].as_u64() > totals["tokens"].as_u64(), "{totals}");
    check_numbers(&mut browser, &server, totals["answered"].as_u64().unwrap());
    browser.wait_for("document.getElementById('quiet').hidden");
    for drawn in [
        "#shelf figure",
        "#rate path",
        "#queue path",
        "#heat circle",
        "#scatter circle",
        "#memory path",
        "#cache path",
    ] {
        browser.wait_for(&format!("document.querySelectorAll('{drawn}').length > 0"));
    }
    let rows = "[...document.querySelectorAll('#shelf figure svg')].every((svg) => /^batch of \\d+: \\d+ tokens/.test(svg.getAttribute('aria-label')))";
    browser.wait_for(rows);
    assert_eq!(complaints(&mut browser, &origin), [""; 0]);

    browser.evaluate("document.getElementById('pause').click()");
    let (code, log) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{log}");
    let state = |gone, is| {
        format!(
            "document.getElementById('gone').hidden !== {gone} && document.getElementById('state').textContent === '{is}'"
        )
    };
    browser.wait_for(&state(true, "no answer"));
    let again = start(port, &[]);
    browser.wait_for(&state(false, "paused"));
    browser.evaluate("document.getElementById('pause').click()");
    browser.wait_for(&state(false, "live"));
    check_numbers(&mut browser, &again, 0);
    ask(&again, 3);
    check_numbers(&mut browser, &again, 9);
}

#[test]
fn the_page_asks_for_the_key_and_keeps_it_for_its_tab() {
    let Some(mut browser) = Browser::start() else { return };
    let server = start(free_port(), &["--api-key=secret"]);
    let origin = format!("http://{}/", server.address());
    browser.open(&format!("{origin}dashboard"));
    browser.wait_for("!document.getElementById('locked').hidden && document.getElementById('main').hidden");
    let mut type_in = |key| {
        let key = format!("document.getElementById('key').value = '{key}'");
        browser.evaluate(&format!("{key}; document.getElementById('unlock').requestSubmit()"));
        browser.evaluate("sessionStorage.length")
    };
    assert_eq!(type_in("secret\u{142}"), json!(0), "no header can hold it");
    assert_eq!(type_in("secret"), json!(1));
    browser.wait_for("document.getElementById('locked').hidden && !document.getElementById('main').hidden");
    browser.open(&format!("{origin}dashboard"));
    browser.wait_for("!document.getElementById('main').hidden");
    assert_eq!(browser.evaluate("localStorage.length"), json!(0));
}

#[test]
fn a_server_that_has_nothing_to_show_says_why() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("turbo.toml");
    let model_id = json!(tiny_model().to_str().unwrap()); // a string of TOML, too
    std::fs::write(&file, format!("[[models]]\nname = \"somebody\"\nmodel_id = {model_id}\n")).unwrap();
    let mut command = turbo();
    command.args(["serve", "--hostname=127.0.0.1", "--port=0", "--config"]).arg(&file);
    let server = Server::spawn(command);
    browser.open(&format!("http://{}/models/somebody/versions/9/dashboard", server.address()));
    browser.wait_for("document.getElementById('quiet').innerText.includes('no version `9`')");
    let said = "document.getElementById('gone').hidden && document.getElementById('main').hidden";
    assert_eq!(browser.evaluate(said), json!(true));
}

#[test]
fn a_narrow_page_has_no_width_to_scroll() {
    let Some(mut browser) = Browser::start() else { return };
    let server = start(free_port(), &[]);
    ask(&server, 10);
    browser.narrow(360);
    browser.open(&format!("http://{}/dashboard", server.address()));
    browser.wait_for("document.querySelectorAll('#shelf figure').length > 0");
    let wide = browser.evaluate("document.documentElement.scrollWidth");
    assert_eq!(wide, json!(360));
}
