//! Serving, against clients that are slow or go, and while it stops.

mod clients;
mod stopping;

use std::{net::SocketAddr, time::Duration};

use axum::{
    body::Body,
    http::{Request, Response},
};
use hyper::{body::Incoming, client::conn::http2};
use tokio::net::TcpListener;

use super::serve::Waits;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);
const WAITS: Waits =
    Waits { head: LONG, stall: LONG, moment: SHORT, first: SHORT, farewell: LONG, grace: LONG };

/// A listener on a loopback port.
async fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn ask(client: &mut http2::SendRequest<Body>, path: &str) -> hyper::Result<Response<Incoming>> {
    let request = Request::get(format!("http://turbo{path}")).body(Body::empty()).unwrap();
    client.send_request(request).await
}
