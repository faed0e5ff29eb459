//! A request as bytes over a connection of its own: what no client library would send.

use std::{io, net::SocketAddr, time::Duration};

use hyper::body::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::fire::client::ROUTE;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A whole answer, with this status.
    Whole(u16),
    /// A part of one.
    Cut,
    /// The connection was closed without a word.
    Closed,
    /// Nothing, and the connection is still open.
    Silence,
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(status) => write!(f, "{status}"),
            Self::Cut => f.write_str("cut"),
            Self::Closed => f.write_str("closed"),
            Self::Silence => f.write_str("silence"),
        }
    }
}

/// A request for vectors; `connection` says what becomes of the connection (`close`, `keep-alive`).
pub(super) fn request(body: &Bytes, connection: &str) -> Vec<u8> {
    [head(body.len(), connection).as_bytes(), body].concat()
}

/// The head of a request with a body of so many bytes.
pub(super) fn head(length: usize, connection: &str) -> String {
    format!(
        "POST {ROUTE} HTTP/1.1\r\nhost: turbo\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: {connection}\r\n\r\n"
    )
}

/// Connects.
pub(super) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends bytes over a new connection and reads one answer.
pub(super) async fn say(address: SocketAddr, bytes: &[u8], patience: Duration) -> io::Result<Reply> {
    let mut stream = connect(address).await?;
    // A server may answer, and close, before it has read everything.
    drop(timeout(patience, stream.write_all(bytes)).await);
    Ok(reply(&mut stream, patience).await)
}

/// Reads one answer.
pub(super) async fn reply(stream: &mut TcpStream, patience: Duration) -> Reply {
    let mut answer = Vec::new();
    match timeout(patience, read(stream, &mut answer)).await {
        Ok(true) => status(&answer).map_or(Reply::Cut, Reply::Whole),
        Ok(false) if answer.is_empty() => Reply::Closed,
        Ok(false) => Reply::Cut,
        Err(_) if answer.is_empty() => Reply::Silence,
        Err(_) => Reply::Cut,
    }
}

/// Whether a whole answer came before the end.
async fn read(stream: &mut TcpStream, answer: &mut Vec<u8>) -> bool {
    let mut piece = [0; 16 << 10];
    loop {
        if is_whole(answer) {
            return true;
        }
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return false,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
        }
    }
}

/// Whether the head is there, and as much of a body as it says; without a length the head is all that is looked at.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    answer.len() >= end + 4 + length.unwrap_or(0)
}

fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.1 ").or(answer.strip_prefix(b"HTTP/1.0 "))?;
    std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_length_has_come() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]";
        assert!(is_whole(answer) && !is_whole(&answer[..answer.len() - 1]) && !is_whole(&answer[..30]));
        assert_eq!(status(answer), Some(200));
        assert_eq!([status(b"HTTP/1.1 4"), status(b"hello")], [None, None]);
    }
}
