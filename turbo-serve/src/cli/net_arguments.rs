//! Arguments about the addresses of a server and the requests that it accepts.

use std::{
    io::{ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use axum::Router;
use clap::Args;
use tokio::net::TcpSocket;
use turbo_serve::net::{self, ApiKey, Listener, Origin, Tls};

use super::number::port;

/// Connections that the system accepts before the server gets to them.
const BACKLOG: u32 = 1024;

#[derive(Args, Clone)]
#[command(next_help_heading = "Network")]
pub(super) struct NetArguments {
    /// Address to listen on, by default 0.0.0.0
    ///
    /// 0.0.0.0 is every address of this machine. The variable HOSTNAME counts only if it is an address: shells and
    /// containers keep the machine's own name there.
    #[arg(long, value_name = "IP|NAME")]
    hostname: Option<String>,
    /// Port to listen on; 0 picks a free one
    #[arg(short, long, env, value_name = "N", value_parser = port, default_value_t = 3000)]
    port: u16,
    /// Unix socket to listen on as well as the port
    ///
    /// It is created at start and removed at the end; a socket that an earlier server has left behind is replaced. It
    /// has no TLS.
    #[arg(long, env, value_name = "FILE")]
    uds_path: Option<PathBuf>,
    /// Certificate for TLS, as a PEM file
    ///
    /// In the file, the certificates that sign it follow it. With a certificate, the port accepts only TLS. A renewed
    /// one is read at the next start.
    #[arg(long, env, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, as a PEM file
    #[arg(long, env, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Key that requests must have (`Authorization: Bearer KEY`)
    ///
    /// Health, metrics, /docs and the dashboard's page need no key. Better set it by the variable: other users of this
    /// machine can see the arguments of its processes.
    #[arg(long, env, hide_env_values = true, value_name = "KEY")]
    api_key: Option<ApiKey>,
    /// Origins whose web pages may send requests
    ///
    /// For example `https://example.org`, several separated by commas; by default, all. If some are given, requests of
    /// pages from other origins are refused, except GET and HEAD requests and those of the server's own pages.
    #[arg(
        long,
        env,
        value_name = "ORIGIN",
        value_delimiter = ',',
        default_value = "*",
        hide_default_value = true
    )]
    cors_allow_origin: Vec<Origin>,
}

/// Addresses to listen on, which no other process can take any more.
pub(super) struct Claimed {
    socket: TcpSocket,
    address: SocketAddr,
    tls: Option<Tls>,
    uds_path: Option<PathBuf>,
}

impl NetArguments {
    /// Looks at what can be told before anything is opened. The halves of TLS may come from a file, a flag or a
    /// variable, so that only all of these together tell whether one is missing.
    ///
    /// # Errors
    /// One half of TLS without the other; files that are none of it.
    pub(super) fn check(&self) -> Result<()> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), None) => {
                bail!("--tls-cert {}: --tls-key is missing, TLS needs both", cert.display())
            }
            (None, Some(key)) => bail!("--tls-key {}: --tls-cert is missing, TLS needs both", key.display()),
            _ => self.tls().map(drop),
        }
    }

    fn tls(&self) -> Result<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Ok(Some(Tls::open(cert, key).context("TLS")?)),
            _ => Ok(None),
        }
    }

    /// Finds out what cannot work, at once: loading a model may take minutes. `port` goes before the one given here.
    pub(super) async fn claim(&self, port: Option<u16>) -> Result<Claimed> {
        let port = port.unwrap_or(self.port);
        let tls = self.tls()?;
        let address = match &self.hostname {
            Some(hostname) => resolve(hostname, port).await?,
            None => SocketAddr::new(usual_address(std::env::var("HOSTNAME").ok()), port),
        };
        let socket = bind(address).with_context(|| cannot_listen(address))?;
        if let Some(path) = &self.uds_path {
            unix::check(path).await?;
        }
        Ok(Claimed { socket, address, tls, uds_path: self.uds_path.clone() })
    }

    /// What stands before all routes.
    pub(super) fn guard(&self, router: Router) -> Router {
        let router = match &self.api_key {
            Some(key) => net::protect(router, key.clone()),
            None => router,
        };
        // Outermost: the request by which a browser asks for permission carries no key.
        net::allow_origins(router, &self.cors_allow_origin)
    }
}

impl Claimed {
    /// Listens, and prints the addresses on standard output: at once, even into a pipe.
    pub(super) async fn listen(self) -> Result<Vec<Listener>> {
        // Connections have it from here: the next server need not wait until theirs are forgotten.
        let listener = self.socket.set_reuseaddr(cfg!(unix)).and_then(|()| self.socket.listen(BACKLOG));
        let listener = listener.with_context(|| cannot_listen(self.address))?;
        let address = listener.local_addr().context("cannot tell the port")?;
        let (scheme, listener) = match self.tls {
            Some(tls) => ("https", Listener::Tls(listener, tls)),
            None => ("http", Listener::Tcp(listener)),
        };
        let mut listeners = vec![listener];
        let mut told = format!("listening on {scheme}://{address}\n");
        if let Some(path) = self.uds_path {
            listeners.push(unix::listen(&path).await?);
            told += &format!("listening on unix:{}\n", path.display());
        }
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(told.as_bytes()).and_then(|()| stdout.flush());
        written.context("cannot write to standard output")?;
        Ok(listeners)
    }
}

#[cfg(unix)]
mod unix {
    use std::path::Path;

    use anyhow::{Context, Result};
    use turbo_serve::net::{Listener, UnixSocket};

    pub(super) async fn check(path: &Path) -> Result<()> {
        UnixSocket::check(path).await.with_context(|| cannot_listen(path))
    }

    pub(super) async fn listen(path: &Path) -> Result<Listener> {
        UnixSocket::listen(path).await.map(Listener::Unix).with_context(|| cannot_listen(path))
    }

    fn cannot_listen(path: &Path) -> String {
        format!("cannot listen on --uds-path {}", path.display())
    }
}

#[cfg(not(unix))]
mod unix {
    use std::path::Path;

    use anyhow::{Result, bail};
    use turbo_serve::net::Listener;

    pub(super) async fn check(path: &Path) -> Result<()> {
        listen(path).await.map(drop)
    }

    pub(super) async fn listen(path: &Path) -> Result<Listener> {
        bail!("--uds-path {}: this system has no unix sockets", path.display())
    }
}

fn cannot_listen(address: SocketAddr) -> String {
    format!("cannot listen on {address}")
}

/// Where to listen when no argument says so: the variable `HOSTNAME` where it is an address, else everywhere. A name is
/// ignored: a server that was given none would be reachable only by the machine's own name.
fn usual_address(variable: Option<String>) -> IpAddr {
    let address = match variable.as_deref() {
        Some("localhost") => Some(Ipv4Addr::LOCALHOST.into()),
        variable => variable.and_then(|variable| variable.parse().ok()),
    };
    address.unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

async fn resolve(hostname: &str, port: u16) -> Result<SocketAddr> {
    if let Ok(ip) = hostname.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found = tokio::net::lookup_host((hostname, port)).await;
    let mut found = found.with_context(|| format!("--hostname {hostname}"))?;
    found.next().with_context(|| format!("--hostname {hostname}: it has no address"))
}

/// Claims an address; no client is connected before the server listens.
fn bind(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let bound = |is_reused| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(is_reused)?;
        socket.bind(address)?;
        // Of two that may both be reused and do not listen yet, Linux gives one address to both.
        socket.set_reuseaddr(false)?;
        Ok(socket)
    };
    // As every server does on Unix: a restart need not wait for connections of the last run to be forgotten.
    bound(false).or_else(|error: std::io::Error| match error.kind() {
        ErrorKind::AddrInUse if cfg!(unix) => bound(true),
        _ => Err(error),
    })
}

#[cfg(all(test, unix))]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        net: NetArguments,
    }

    #[tokio::test]
    async fn a_claimed_port_is_taken() {
        let net = Line::parse_from(["turbo", "--hostname=127.0.0.1", "--port=0"]).net;
        let claimed = net.claim(None).await.unwrap();
        let address = claimed.socket.local_addr().unwrap();
        let other = TcpSocket::new_v4().unwrap();
        // As a second server does.
        other.set_reuseaddr(true).unwrap();
        assert_eq!(other.bind(address).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(claimed.listen().await.unwrap().len(), 1);
    }
}
