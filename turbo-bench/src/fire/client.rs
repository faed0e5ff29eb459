//! Connections to a server, kept open between requests, and single requests over them.

use std::{cell::RefCell, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, StatusCode,
    body::Bytes,
    client::conn::http1::{SendRequest, handshake},
    header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The header that says how long the client still waits, in milliseconds.
const DEADLINE: HeaderName = HeaderName::from_static("x-request-deadline-ms");
/// The route of all requests: they ask for vectors.
pub const ROUTE: &str = "/embed";

/// A complete response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

type Sender = SendRequest<Full<Bytes>>;

/// A pool of connections, as many as requests were under way at a time.
pub struct Connections {
    address: SocketAddr,
    host: HeaderValue,
    idle: RefCell<Vec<Sender>>,
}

impl Connections {
    /// Makes an empty pool for the server at `address`.
    ///
    /// # Errors
    /// None in practice: an address is a valid host name.
    pub fn to(address: SocketAddr) -> Result<Self> {
        let host = HeaderValue::from_str(&address.to_string()).context("an address is printable")?;
        Ok(Self { address, host, idle: RefCell::default() })
    }

    /// Sends a body and waits for the whole answer. A `deadline` is sent along as the time that this client waits.
    ///
    /// # Errors
    /// When there is no connection, or it ends before the answer does.
    pub async fn ask(&self, body: Bytes, deadline: Option<Duration>) -> Result<Answer> {
        let mut request = Request::post(ROUTE)
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(deadline) = deadline {
            request = request.header(DEADLINE, HeaderValue::from(deadline.as_millis().max(1) as u64));
        }
        self.send(request.body(Full::new(body))?).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Answer> {
        let mut sender = self.sender().await?;
        let response = sender.send_request(request).await.context("no answer came")?;
        let status = response.status();
        let body = response.into_body().collect().await.context("the answer was cut off")?.to_bytes();
        self.idle.borrow_mut().push(sender);
        Ok(Answer { status, body })
    }

    /// Reads a gauge from the server's `/metrics`, whatever its labels; `None` if there is none of this name.
    ///
    /// # Errors
    /// As [`Self::ask`], and when the gauge is not a number.
    pub async fn gauge(&self, name: &str) -> Result<Option<f64>> {
        let request = Request::get("/metrics").header(HOST, &self.host).body(Full::default())?;
        let text = self.send(request).await?.body;
        let text = String::from_utf8_lossy(&text);
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let Some(value) = text.lines().find(of_name).and_then(|line| line.rsplit(' ').next()) else {
            return Ok(None);
        };
        value.parse().map(Some).with_context(|| format!("{name}: expected a number, got {value:?}"))
    }

    /// A free connection: the one used last, so that surplus connections stay idle.
    async fn sender(&self) -> Result<Sender> {
        loop {
            let Some(mut idle) = self.idle.borrow_mut().pop() else { break };
            if idle.ready().await.is_ok() {
                return Ok(idle);
            }
        }
        let stream = TcpStream::connect(self.address).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // An error of the connection reaches the request on it.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(sender)
    }
}
