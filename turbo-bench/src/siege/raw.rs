//! Requests as raw bytes over connections of their own, including requests that no client library would send.

use std::{fmt, io, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use hyper::body::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::PATIENCE;
use crate::fire::client::ROUTE;

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A whole answer, with this status.
    Whole(u16),
    /// A part of an answer.
    Cut,
    /// The connection was closed without an answer.
    Closed,
    /// The connection broke without an answer.
    Broken(io::ErrorKind),
    /// Nothing came, and the connection is still open.
    Silence,
    /// No connection could be made.
    NoConnection(io::ErrorKind),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(status) => write!(f, "{status}"),
            Self::Cut => f.write_str("cut"),
            Self::Closed => f.write_str("closed"),
            Self::Broken(kind) => write!(f, "broken: {kind}"),
            Self::Silence => f.write_str("silence"),
            Self::NoConnection(kind) => write!(f, "no connection: {kind}"),
        }
    }
}

/// A request for vectors; `connection` is the value of that header (`close`, `keep-alive`).
pub(super) fn request(body: &Bytes, connection: &str) -> Vec<u8> {
    request_to(ROUTE, body, connection)
}

/// The same for another route.
pub(super) fn request_to(route: &str, body: &Bytes, connection: &str) -> Vec<u8> {
    [head_to(route, body.len(), connection).as_bytes(), body].concat()
}

/// The head of a request with a body of so many bytes.
pub(super) fn head(length: usize, connection: &str) -> String {
    head_to(ROUTE, length, connection)
}

fn head_to(route: &str, length: usize, connection: &str) -> String {
    format!(
        "POST {route} HTTP/1.1\r\nhost: turbo\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: {connection}\r\n\r\n"
    )
}

/// Connects.
pub(super) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    within(PATIENCE, TcpStream::connect(address)).await.and_then(without_delay)
}

/// Connects with a receive buffer of so many bytes.
pub(super) async fn connect_narrow(address: SocketAddr, room: u32) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(room)?;
    within(PATIENCE, socket.connect(address)).await.and_then(without_delay)
}

fn without_delay(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends bytes.
pub(super) async fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    within(PATIENCE, stream.write_all(bytes)).await
}

async fn within<T>(patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(patience, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Sends bytes over a new connection and reads one answer.
pub(super) async fn say(address: SocketAddr, bytes: &[u8], patience: Duration) -> Reply {
    match connect(address).await {
        Ok(mut stream) => {
            // A server may answer and close before it has read everything.
            drop(within(patience, stream.write_all(bytes)).await);
            reply(&mut stream, patience).await
        }
        Err(error) => Reply::NoConnection(error.kind()),
    }
}

/// Gets the body of a route.
pub(super) async fn get(address: SocketAddr, route: &str) -> Result<String> {
    let mut stream = connect(address).await.context("cannot connect")?;
    let request = format!("GET {route} HTTP/1.1\r\nhost: turbo\r\nconnection: close\r\n\r\n");
    send(&mut stream, request.as_bytes()).await?;
    let mut answer = String::new();
    within(PATIENCE, stream.read_to_string(&mut answer)).await?;
    let body = answer.split_once("\r\n\r\n").filter(|_| answer.starts_with("HTTP/1.1 200 "));
    Ok(body.with_context(|| format!("{route}: expected an answer, got {answer:?}"))?.1.to_owned())
}

/// Reads one answer.
pub(super) async fn reply(stream: &mut TcpStream, patience: Duration) -> Reply {
    let mut answer = Vec::new();
    let ended = timeout(patience, read(stream, &mut answer)).await;
    match ended {
        Ok(Ok(true)) => status(&answer).map_or(Reply::Cut, Reply::Whole),
        _ if !answer.is_empty() => Reply::Cut,
        Ok(Ok(false)) => Reply::Closed,
        Ok(Err(error)) => Reply::Broken(error.kind()),
        Err(_) => Reply::Silence,
    }
}

/// Reads one answer to its end; returns its number of bytes.
pub(super) async fn whole_answer(stream: &mut TcpStream) -> io::Result<usize> {
    let mut answer = Vec::new();
    match within(PATIENCE, read(stream, &mut answer)).await? {
        true => Ok(answer.len()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads until the connection ends; returns the number of bytes.
pub(super) async fn drain(stream: &mut TcpStream) -> io::Result<usize> {
    let (mut count, mut piece) = (0, vec![0; 64 << 10]);
    loop {
        match within(PATIENCE, stream.read(&mut piece)).await? {
            0 => return Ok(count),
            read => count += read,
        }
    }
}

/// Reads into `answer`; returns whether a whole answer came before the end.
async fn read(stream: &mut TcpStream, answer: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 16 << 10];
    while !is_whole(answer) {
        match stream.read(&mut piece).await? {
            0 => return Ok(false),
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    Ok(true)
}

/// Whether the head has arrived, and as much of the body as it announces. Without a length only the head is checked.
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
