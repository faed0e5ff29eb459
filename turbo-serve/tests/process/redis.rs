//! `--cache-url`: servers with one Redis share answers, and none depends on it.
//!
//! It is a real one, which each test starts for itself. Where there is no `redis-server` the tests say so and pass, unless
//! `TURBO_REQUIRE_REDIS=1`.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ::redis::{Client, Commands, Connection};
use serde_json::{Value, json};

use super::{
    PATIENCE,
    cache::metric,
    server::{Server, Signal, run},
};

/// A Redis of a test's own, behind a unix socket; ended when dropped.
struct Redis {
    process: Child,
    dir: PathBuf,
}

impl Redis {
    /// `None` where there is none.
    fn start(dir: &Path, arguments: &[&str]) -> Option<Self> {
        // Redis leaves the socket of one that was killed, and others must not connect before this one listens.
        drop(std::fs::remove_file(dir.join("redis.sock")));
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "no"]);
        command.args(arguments).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
        let process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                let required = std::env::var_os("TURBO_REQUIRE_REDIS").is_some_and(|value| value == "1");
                assert!(!required, "redis-server: {error} (Debian: apt-get install redis-server)");
                println!("skipped: redis-server: {error}");
                return None;
            }
        };
        let redis = Self { process, dir: dir.to_owned() };
        eventually("a Redis that listens", || {
            std::os::unix::net::UnixStream::connect(redis.dir.join("redis.sock")).is_ok()
        });
        Some(redis)
    }

    fn url(&self) -> String {
        url(&self.dir)
    }

    /// A client of it.
    fn connect(&self) -> Connection {
        Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Waits until this many answers are there.
    fn wait_for(&self, answers: usize) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        eventually("as many answers", || {
            names = self.connect().keys::<_, Vec<Vec<u8>>>("turbo:1:*").unwrap();
            names.len() >= answers
        });
        assert_eq!(names.len(), answers);
        names
    }

    /// Suspends it, so that it answers nothing, or resumes it.
    fn signal(&self, name: &str) {
        let kill = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.process.id())]).status();
        assert!(kill.unwrap().success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn url(dir: &Path) -> String {
    format!("unix://{}/redis.sock", dir.display())
}

fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < PATIENCE, "there was no {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn start(url: &str, arguments: &[&str]) -> Server {
    Server::start(&[&["--cache-url", url], arguments].concat())
}

/// The answers to the texts with these numbers, each in a request of its own.
fn embed(server: &Server, texts: std::ops::Range<usize>) -> Vec<Value> {
    let one = |n| {
        let (status, rows) = server.post("/embed", &json!({ "inputs": format!("cat {n}") }));
        assert_eq!(status, 200, "{rows}");
        rows
    };
    texts.map(one).collect()
}

fn hits(server: &Server, tier: &str) -> f64 {
    metric(server, &format!("turbo_cache_hits{{tier=\"{tier}\"}}")).unwrap()
}

fn misses(server: &Server) -> f64 {
    metric(server, "turbo_cache_misses").unwrap()
}

/// Ends a server and returns all of its log.
fn log(server: Server) -> String {
    let (code, log) = server.end(Signal::Terminate);
    assert_eq!(code, Some(0), "{log}");
    log
}

const GONE: &str = "answers are not shared now";
const BACK: &str = "answers are shared again";

#[test]
fn servers_share_answers_of_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(dir.path(), &[]) else { return };
    let (one, other) = (start(&redis.url(), &[]), start(&redis.url(), &["--threads=1"]));
    let rows = embed(&one, 0..20);
    assert_eq!((misses(&one), hits(&one, "redis")), (20.0, 0.0));
    for name in redis.wait_for(20) {
        let ttl: i64 = redis.connect().ttl(name).unwrap();
        assert!((1..=604_800).contains(&ttl), "{ttl}");
    }
    assert_eq!(embed(&other, 0..20), rows);
    let found = hits(&other, "redis");
    // On a busy machine a lookup may reach its time limit.
    assert!(found > 0.0 && found + misses(&other) == 20.0, "{found} were found");
    assert_eq!(embed(&other, 0..20), rows);
    assert_eq!(hits(&other, "memory"), 20.0);
    for server in [one, other] {
        let log = log(server);
        assert!(!log.contains("WARN"), "{log}");
    }

    let third = start(&redis.url(), &["--dtype=bf16", "--cache-url-ttl-s=7"]);
    embed(&third, 0..20);
    assert_eq!((misses(&third), hits(&third, "redis")), (20.0, 0.0), "another dtype is another model");
    assert_eq!(
        redis
            .wait_for(40)
            .into_iter()
            .filter(|name| redis.connect().ttl::<_, i64>(name).unwrap() <= 7)
            .count(),
        20
    );
}

#[test]
fn what_is_shared_is_kept_in_the_folder_too() {
    let dir = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(dir.path(), &[]) else { return };
    let first = start(&redis.url(), &[]);
    let rows = embed(&first, 0..20);
    redis.wait_for(20);
    let folder = dir.path().join("answers");
    let folder = ["--cache-dir", folder.to_str().unwrap()];
    let both = start(&redis.url(), &folder);
    assert_eq!(embed(&both, 0..20), rows);
    assert!(hits(&both, "redis") > 0.0);
    log(both);
    let last = Server::start(&folder);
    assert_eq!(embed(&last, 0..20), rows);
    assert_eq!(hits(&last, "folder"), 20.0, "what was found and what was computed");
}

#[test]
fn requests_go_on_while_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(dir.path(), &[]) else { return };
    let server = start(&redis.url(), &[]);
    embed(&server, 0..5);
    redis.wait_for(5);
    drop(redis);
    embed(&server, 5..25);
    assert_eq!(misses(&server), 25.0);
    let again = Redis::start(dir.path(), &[]).unwrap();
    let mut asked = 25;
    eventually("answer in a Redis that is back", || {
        embed(&server, asked..asked + 1);
        asked += 1;
        !again.connect().keys::<_, Vec<Vec<u8>>>("turbo:1:*").unwrap().is_empty()
    });
    let log = log(server);
    assert_eq!([GONE, BACK].map(|line| log.matches(line).count()), [1, 1], "{log}");
}

#[test]
fn a_slow_one_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(dir.path(), &[]) else { return };
    let server = start(&redis.url(), &[]);
    redis.signal("STOP");
    embed(&server, 0..20); // none would come
    redis.signal("CONT");
    let mut asked = 20;
    eventually("answer in a Redis that is fast again", || {
        embed(&server, asked..asked + 1);
        asked += 1;
        redis.connect().keys::<_, Vec<Vec<u8>>>("turbo:1:*").unwrap().len() >= 25
    });
    let log = log(server);
    assert!(
        log.contains(GONE) && log.contains("it took more than 20 ms to answer") && log.contains(BACK),
        "{log}"
    );
}

#[test]
fn what_somebody_else_wrote_is_not_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(dir.path(), &[]) else { return };
    let first = start(&redis.url(), &[]);
    let rows = embed(&first, 0..6);
    let names = redis.wait_for(6);
    let mut connection = redis.connect();
    let answers: Vec<Vec<u8>> = connection.mget(&names).unwrap();
    let mut changed = answers[0].clone();
    *changed.last_mut().unwrap() ^= 1;
    for (name, garbage) in
        names.iter().zip([&b""[..], b"garbage", &[0; 4096], &changed, &answers[5], &answers[4]])
    {
        connection.set::<_, _, ()>(name, garbage).unwrap();
    }
    let second = start(&redis.url(), &[]);
    assert_eq!(embed(&second, 0..6), rows);
    assert_eq!((misses(&second), hits(&second, "redis")), (6.0, 0.0));
    eventually("right answer again", || connection.mget::<_, Vec<Vec<u8>>>(&names).unwrap() == answers);
    connection.del::<_, ()>(&names[0]).unwrap();
    connection.lpush::<_, _, ()>(&names[0], "not even a text").unwrap();
    let third = start(&redis.url(), &[]);
    assert_eq!(embed(&third, 0..6), rows);
}

#[test]
fn a_wrong_password_is_told_and_none_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(dir.path(), &["--requirepass", "hunter2"]) else { return };
    for password in ["", "?pass=tiger3"] {
        let server = start(&format!("{}{password}", redis.url()), &[]);
        embed(&server, 0..3);
        let log = log(server);
        assert!(log.contains(GONE) && log.contains("check user and password"), "{log}");
        assert!(!log.contains("tiger3"), "{log}");
    }
    let server = start(&format!("{}?pass=hunter2", redis.url()), &[]);
    embed(&server, 0..3);
    let log = log(server);
    assert!(!log.contains("WARN") && !log.contains("hunter2"), "{log}");
}

#[test]
fn one_that_takes_nothing_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(dir.path(), &["--maxmemory", "1", "--maxmemory-policy", "noeviction"])
    else {
        return;
    };
    let server = start(&redis.url(), &[]);
    embed(&server, 0..3);
    server.wait_for_metric("turbo_cache_unwritten{tier=\"redis\"}", 3);
    let log = log(server);
    assert!(log.contains("answers are not written to Redis now") && log.contains("OOM"), "{log}");
    assert!(!log.contains(GONE), "{log}");
}

#[test]
fn where_there_is_none_serving_begins_without() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(&url(dir.path()), &[]);
    embed(&server, 0..3);
    server.wait_for_metric("turbo_cache_unwritten{tier=\"redis\"}", 3);
    assert!(log(server).contains(GONE));

    let (code, output) =
        run(&["serve", "--port=0", "--model-id=none", "--cache-url=redis://:hun/ter2@localhost"]);
    assert!(code == Some(1) && output.contains("expected redis://"), "{output}");
    assert!(!output.contains("ter2"), "{output}");
}
