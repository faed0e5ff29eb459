//! One connection without an async runtime. Each direction is a plain system call, so a measured time is the server's
//! and hardly the client's.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use hyper::body::Bytes;

use super::client::ROUTE;

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection that is kept open.
pub struct Plain {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Plain {
    /// Connects to the server at `address`.
    ///
    /// # Errors
    /// When there is no connection.
    pub fn to(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context("cannot connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, answer: vec![0; 1 << 20] })
    }

    /// Requests the vectors of a body's texts. Returns the time from the first byte sent to the last one read.
    ///
    /// # Errors
    /// When anything but an answer comes back.
    pub fn time(&mut self, body: &Bytes) -> Result<Duration> {
        let head = format!(
            "POST {ROUTE} HTTP/1.1\r\nhost: turbo\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let request = [head.as_bytes(), body].concat();
        let begin = Instant::now();
        self.stream.write_all(&request)?;
        let mut length = 0;
        loop {
            let read = self.stream.read(&mut self.answer[length..]).context("no answer came")?;
            ensure!(read > 0, "the answer was cut off after {length} bytes");
            length += read;
            if is_whole(&self.answer[..length])? {
                break;
            }
        }
        let time = begin.elapsed();
        if !self.answer.starts_with(b"HTTP/1.1 200 ") {
            bail!("expected an answer, got {}", String::from_utf8_lossy(&self.answer[..length]));
        }
        Ok(time)
    }
}

/// Whether the head has arrived, and as much of the body as it announces.
fn is_whole(answer: &[u8]) -> Result<bool> {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(false) };
    let head = std::str::from_utf8(&answer[..end])?;
    let mut lengths = head.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let length = lengths.next().with_context(|| format!("expected a length, got {head}"))??;
    Ok(answer.len() >= end + 4 + length)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Asks a server that sends `answer` in two pieces.
    fn asked(answer: &'static str) -> Result<Duration> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].ends_with(b"content-length: 2\r\n\r\n{}"));
            let (first, rest) = answer.split_at(answer.len() / 2);
            stream.write_all(first.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            stream.write_all(rest.as_bytes()).unwrap();
        });
        let time = Plain::to(address)?.time(&Bytes::from_static(b"{}"));
        server.join().unwrap();
        time
    }

    #[test]
    fn a_time_is_that_of_the_whole_answer() {
        let time = asked("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[[]]").unwrap();
        assert!(time >= Duration::from_millis(20), "{time:?}");
        let said = |answer| asked(answer).unwrap_err().to_string();
        assert!(said("HTTP/1.1 429 No\r\ncontent-length: 2\r\n\r\n{}").contains("429 No"));
        assert!(said("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n[").contains("cut off after"));
        assert!(said("HTTP/1.1 200 OK\r\nserver: it\r\n\r\n").contains("expected a length"));
    }
}
