//! Answers in a Redis or Valkey server, shared by all turbo servers that use it.
//!
//! ```text
//! looks  ──▶ MGET ─┐
//!                  ├─▶ two connections ◀── opened, watched and reopened by a background task
//! writes ──▶ SET ──┘
//! ```
//!
//! No request waits for a connection: while there is none, nothing is found and nothing is written. A lookup has a time
//! limit, since computing is quicker than a slow server. An error, or several lookup commands in a row that reach their
//! time limit, close the connections, and the server is not used for a while. The log reports once that the server is
//! lost, and once that it answers again.
//!
//! The size of values and of commands is bounded: a large answer takes longer to transfer than to compute, and would
//! delay the small ones. Values expire, since nothing else would remove those of a model that is no longer served.

use std::{
    fmt::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use ::redis::{
    Client, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, Pipeline, RedisError,
    aio::MultiplexedConnection, cmd, pipe,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    Key,
    behind::{Found, Store},
    memory::Values,
    record::{Wanted, decode, encode},
};

/// Prefix of all names, with the version of the format.
const PREFIX: &str = "turbo:1:";
/// Time limit of a lookup command, long enough for a machine whose cores are all computing. A lookup that has taken
/// this long begins no further command.
const LOOK_TIME: Duration = Duration::from_millis(20);
/// After this many lookup commands in a row over their limit, the connections are closed.
const MOST_LATE: u32 = 3;
/// Time limit of a write. It is longer, since no request waits for a write.
const WRITE_TIME: Duration = Duration::from_millis(500);
/// Time limit for opening the connections.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// Time between a failure and the next attempt to connect.
const RETRY: Duration = Duration::from_secs(2);
/// Longest time without a command on a connection: proxies and firewalls close idle connections.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Most bytes of an answer that is written, and of all answers of one command.
const MOST_BYTES: usize = 256 << 10;

/// The address of a Redis server. Neither `Display` nor `Debug` shows the password.
#[derive(Clone)]
pub struct RedisUrl(ConnectionInfo);

/// A text is not the address of a Redis server. The error does not contain the text, which may have a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the address of a Redis server, expected redis://USER:PASSWORD@HOST:PORT/DB (rediss:// with TLS), where all but \
     HOST may be left out and each `@`, `/`, `#` or `%` of a password is written as %40, %2F, %23 or %25; or unix:///PATH"
)]
pub struct NoRedisUrl;

impl std::str::FromStr for RedisUrl {
    type Err = NoRedisUrl;

    fn from_str(text: &str) -> Result<Self, NoRedisUrl> {
        text.into_connection_info().map(Self).map_err(|_| NoRedisUrl)
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.addr().fmt(f)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// Answers in a Redis server.
pub(super) struct Redis {
    line: Arc<Line>,
    ttl: Duration,
    /// `None` while it is being dropped.
    runtime: Option<Runtime>,
}

impl Redis {
    /// Uses the server at `url`; answers expire after `ttl`. Waits up to [`CONNECT_TIME`] for the first connection. It
    /// is no error if there is none by then: connecting is retried.
    ///
    /// # Errors
    /// If a thread cannot be started, or the address needs a feature that this program is built without.
    pub(super) fn open(url: &RedisUrl, ttl: Duration) -> Result<Self, RedisError> {
        let line = Arc::new(Line {
            client: Client::open(url.0.clone())?,
            open: Mutex::new(None),
            opened: AtomicU64::new(0),
            lost: Notify::new(),
            server: Told::new(
                url,
                "answers are shared again",
                "answers are not shared now, and Redis is asked again every two seconds",
            ),
            writing: Told::new(
                url,
                "answers are written to Redis again",
                "answers are not written to Redis now",
            ),
        });
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("turbo-redis").enable_all().build()?;
        let (tried, first) = mpsc::sync_channel(1);
        runtime.spawn(Arc::clone(&line).keep(tried));
        // Lookups before there is a connection find nothing.
        _ = first.recv_timeout(CONNECT_TIME);
        Ok(Self { line, ttl, runtime: Some(runtime) })
    }

    /// Runs `work` on the calling thread, for `most` at most.
    fn bounded<T>(
        &self,
        most: Duration,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, Undone> {
        let runtime = self.runtime.as_ref().expect("it is there until it is dropped");
        match runtime.block_on(async { timeout(most, work).await }) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) if said_by_server(&error) => Err(Undone::Refused(why(&error))),
            Ok(Err(error)) => Err(Undone::Lost(why(&error))),
            Err(_) => Err(Undone::Late(format!("it took more than {} ms to answer", most.as_millis()))),
        }
    }
}

/// Why a command was not done.
enum Undone {
    /// The server answered with an error; the connection can still be used.
    Refused(String),
    /// The connection is broken.
    Lost(String),
    /// It reached its time limit; the server may still execute it.
    Late(String),
}

impl Drop for Redis {
    fn drop(&mut self) {
        // The last handle may be dropped in async code, which must not block.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Store for Redis {
    fn get(&self, wanted: &[Wanted]) -> Vec<Option<Found>> {
        let mut found: Vec<Option<Found>> = wanted.iter().map(|_| None).collect();
        let Some(Connections { mut looks, late, number, .. }) = self.line.connections() else { return found };
        let begun = Instant::now();
        let small = small(wanted);
        let mut rest = &small[..];
        while !rest.is_empty() && begun.elapsed() < LOOK_TIME {
            let (now, later) = rest.split_at(at_once(rest.iter().map(|(_, wanted)| wanted.len)));
            rest = later;
            let command = mget(now.iter().map(|(_, wanted)| *wanted));
            let asked = command.query_async::<Vec<Option<Vec<u8>>>>(&mut looks);
            let records = match self.bounded(LOOK_TIME, asked) {
                Ok(records) => records,
                Err(Undone::Late(_)) if late.fetch_add(1, Relaxed) + 1 < MOST_LATE => break,
                Err(Undone::Late(why) | Undone::Lost(why) | Undone::Refused(why)) => {
                    self.line.lose(number, &why);
                    break;
                }
            };
            late.store(0, Relaxed);
            for (&(at, wanted), record) in now.iter().zip(records) {
                // A damaged or foreign record counts as not found; it is overwritten once the answer is computed.
                let values = record.and_then(|record| decode(wanted, &record).ok().flatten());
                found[at] = values.map(|values| Found { values, renew: false });
            }
            self.line.server.good();
        }
        found
    }

    fn put(&self, answers: &[(Key, Values)]) -> usize {
        let small = answers.iter().filter(|(_, values)| is_small(values.len()));
        let (small, mut written) = (small.collect::<Vec<_>>(), 0);
        let mut rest = &small[..];
        while !rest.is_empty() {
            let Some(Connections { mut writes, number, .. }) = self.line.connections() else { break };
            let (now, later) = rest.split_at(at_once(rest.iter().map(|(_, values)| values.len())));
            rest = later;
            let commands = sets(now, self.ttl);
            match self.bounded(WRITE_TIME, commands.exec_async(&mut writes)) {
                Ok(()) => {
                    written += now.len();
                    self.line.writing.good();
                }
                Err(Undone::Refused(why)) => self.line.writing.bad(&why),
                Err(Undone::Late(why) | Undone::Lost(why)) => self.line.lose(number, &why),
            }
        }
        written
    }
}

/// Whether an answer of this many values is written.
fn is_small(values: usize) -> bool {
    values * size_of::<f32>() <= MOST_BYTES
}

/// Those of `wanted` that may have been written, each with its index.
fn small(wanted: &[Wanted]) -> Vec<(usize, &Wanted)> {
    wanted.iter().enumerate().filter(|(_, wanted)| is_small(wanted.len)).collect()
}

/// How many answers of these lengths go into one command; at least one.
fn at_once(lens: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fits = |len: &usize| {
        bytes += len * size_of::<f32>();
        bytes <= MOST_BYTES
    };
    lens.take_while(fits).count().max(1)
}

fn mget<'a>(wanted: impl Iterator<Item = &'a Wanted>) -> Cmd {
    let mut command = cmd("MGET");
    for wanted in wanted {
        command.arg(name(&wanted.key));
    }
    command
}

fn sets(answers: &[&(Key, Values)], ttl: Duration) -> Pipeline {
    let mut commands = pipe();
    for (key, values) in answers {
        let command = commands.cmd("SET").arg(name(key)).arg(encode(key, values));
        command.arg("EX").arg(ttl.as_secs().max(1)).ignore();
    }
    commands
}

/// The name of an answer in Redis, in hexadecimal, so that it is readable.
fn name(key: &Key) -> String {
    let mut name = String::with_capacity(PREFIX.len() + 2 * key.bytes().len());
    name.push_str(PREFIX);
    for byte in key.bytes() {
        write!(name, "{byte:02x}").expect("a string takes all that is written");
    }
    name
}

/// The connections to the server, which may be lost and reopened.
struct Line {
    client: Client,
    open: Mutex<Option<Connections>>,
    /// How often connections were opened.
    opened: AtomicU64,
    /// Notified when the open connections are lost.
    lost: Notify,
    server: Told,
    writing: Told,
}

/// One connection for lookups and one for writes, so that writes do not delay lookups.
#[derive(Clone)]
struct Connections {
    looks: MultiplexedConnection,
    writes: MultiplexedConnection,
    /// Lookup commands in a row that reached their time limit.
    late: Arc<AtomicU32>,
    /// Tells these connections from earlier ones.
    number: u64,
}

impl Line {
    /// Opens connections whenever there are none; sends to `tried` after each attempt.
    async fn keep(self: Arc<Self>, tried: mpsc::SyncSender<()>) {
        loop {
            let opened = match timeout(CONNECT_TIME, self.connect()).await {
                Ok(opened) => opened.map_err(|error| why(&error)),
                Err(_) => Err("it does not answer".to_owned()),
            };
            let opened = opened.inspect_err(|why| self.server.bad(why)).ok();
            lock(&self.open).clone_from(&opened);
            // Only the first attempt is waited for: later the receiver is gone.
            _ = tried.try_send(());
            if let Some(connections) = opened {
                self.until_lost(connections).await;
            }
            sleep(RETRY).await;
        }
    }

    async fn connect(&self) -> Result<Connections, RedisError> {
        let mut looks = self.client.get_multiplexed_async_connection().await?;
        let writes = self.client.get_multiplexed_async_connection().await?;
        // Some servers accept a connection without a password and then refuse all commands.
        ping(&mut looks).await?;
        Ok(Connections { looks, writes, late: Arc::default(), number: self.opened.fetch_add(1, Relaxed) })
    }

    async fn until_lost(&self, mut connections: Connections) {
        while timeout(HEARTBEAT, self.lost.notified()).await.is_err() {
            let alive = async {
                ping(&mut connections.looks).await?;
                ping(&mut connections.writes).await
            };
            match timeout(CONNECT_TIME, alive).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.lose(connections.number, &why(&error)),
                Err(_) => self.lose(connections.number, "it does not answer"),
            }
        }
    }

    /// The open connections.
    fn connections(&self) -> Option<Connections> {
        lock(&self.open).clone()
    }

    /// Closes the connections of this number, unless that was done before.
    fn lose(&self, number: u64, why: &str) {
        let mut open = lock(&self.open);
        if open.as_ref().is_some_and(|open| open.number == number) {
            *open = None;
            drop(open);
            self.server.bad(why);
            self.lost.notify_one();
        }
    }
}

async fn ping(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    cmd("PING").exec_async(connection).await
}

/// Nothing panics under this lock.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A state that is logged when it turns bad and when it is good again, and at debug level in between.
struct Told {
    redis: String,
    good: &'static str,
    bad: &'static str,
    is_bad: AtomicBool,
}

impl Told {
    fn new(url: &RedisUrl, good: &'static str, bad: &'static str) -> Self {
        Self { redis: url.to_string(), good, bad, is_bad: AtomicBool::new(false) }
    }

    fn good(&self) {
        if self.is_bad.swap(false, Relaxed) {
            tracing::info!(redis = self.redis, "{}", self.good);
        }
    }

    fn bad(&self, why: &str) {
        if self.is_bad.swap(true, Relaxed) {
            tracing::debug!(redis = self.redis, why, "{}", self.bad);
        } else {
            tracing::warn!(redis = self.redis, why, "{}", self.bad);
        }
    }
}

/// Whether an error is the server's answer to a command.
fn said_by_server(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// The error as text, with advice where it is about authentication.
fn why(error: &RedisError) -> String {
    let refused = error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
    match refused {
        true => format!("{error}: check user and password, as in redis://USER:PASSWORD@HOST:PORT/DB"),
        false => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write as _},
        net::{TcpListener, TcpStream},
        thread,
    };

    use super::*;
    use crate::cache::Scope;

    /// A server that finds nothing, and answers far too late while it `is_slow`.
    fn serve(is_slow: &Arc<AtomicBool>) -> RedisUrl {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap()).parse().unwrap();
        let is_slow = Arc::clone(is_slow);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let is_slow = Arc::clone(&is_slow);
                thread::spawn(move || answer(&client, &is_slow));
            }
        });
        url
    }

    /// Answers the commands of `client` until it disconnects. They are lines: `*2`, `$4`, `MGET`, `$7`, `turbo:1`.
    fn answer(mut client: &TcpStream, is_slow: &AtomicBool) -> Option<()> {
        let mut lines = BufReader::new(client).lines().map_while(Result::ok);
        loop {
            let words: usize = lines.next()?.strip_prefix('*')?.parse().ok()?;
            let command: Vec<String> = (0..words).map(|_| lines.nth(1)).collect::<Option<_>>()?;
            let said = match command.split_first()? {
                (name, keys) if name == "MGET" => {
                    if is_slow.load(Relaxed) {
                        thread::sleep(5 * LOOK_TIME);
                    }
                    format!("*{}\r\n{}", keys.len(), "$-1\r\n".repeat(keys.len()))
                }
                _ => "+OK\r\n".to_owned(),
            };
            client.write_all(said.as_bytes()).ok()?;
        }
    }

    #[test]
    fn new_connections_are_not_blamed_for_those_before() {
        let is_slow = Arc::new(AtomicBool::new(false));
        let redis = Redis::open(&serve(&is_slow), Duration::from_secs(60)).unwrap();
        let wanted = [Wanted { key: Scope::of("test").key("pooled", &[&[1]]), len: 1 }];
        let open = || redis.line.connections().map(|open| open.number);
        let opens = |number| {
            let begun = Instant::now();
            while open() != Some(number) {
                assert!(begun.elapsed() < 10 * RETRY, "there is no connection {number}");
                thread::sleep(LOOK_TIME);
            }
        };
        opens(0);
        is_slow.store(true, Relaxed);
        while open() == Some(0) {
            redis.get(&wanted);
        }
        opens(1);
        redis.get(&wanted);
        assert_eq!(open(), Some(1), "it was late once");
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (text, shown) in [
            ("redis://localhost", "localhost:6379"),
            ("redis://:secret@10.0.0.1:7000/3", "10.0.0.1:7000"),
            ("valkey://user:secret@cache.example", "cache.example:6379"),
            ("rediss://user:secret@cache.example:7001", "cache.example:7001"),
            ("unix:///run/redis.sock?pass=secret", "/run/redis.sock"),
        ] {
            let url: RedisUrl = text.parse().unwrap();
            assert_eq!((url.to_string(), format!("{url:?}")), (shown.into(), format!("RedisUrl({shown})")));
        }
        for text in [
            "",
            "localhost:6379",
            "http://:secret@localhost",
            "redis://:sec/ret@localhost",
            "redis://a/secret",
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err().to_string();
            assert!(error.contains("expected redis://") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn names_tell_version_and_key() {
        let keys = [1, 2].map(|id| Scope::of("test").key("pooled", &[&[id]]));
        let names = keys.map(|key| name(&key));
        assert!(names.iter().all(|name| name.starts_with("turbo:1:") && name.len() == 8 + 64), "{names:?}");
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn what_is_never_written_is_not_asked_for() {
        let (key, most) = (Scope::of("test").key("pooled", &[&[1]]), MOST_BYTES / size_of::<f32>());
        let wanted = [1, most + 1, most, 0].map(|len| Wanted { key, len });
        assert_eq!(small(&wanted).iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn what_goes_into_one_command_is_bounded() {
        let most = MOST_BYTES / size_of::<f32>();
        for (lens, expected) in [
            (vec![1; 100], 100),
            (vec![most], 1),
            (vec![most + 1, 1], 1),
            (vec![most / 2, most / 2, 1], 2),
            (vec![0; 2000], 2000),
        ] {
            assert_eq!(at_once(lens.iter().copied()), expected, "{} answers", lens.len());
        }
    }
}
