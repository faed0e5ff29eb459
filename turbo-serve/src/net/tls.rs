//! TLS: the server's certificate and key, and handshakes.

use std::{
    fs,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, InconsistentKeys, ServerConfig,
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject},
        },
    },
    server::TlsStream,
};

/// The protocols offered in a handshake, in order of preference.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A server's certificate and key, ready for handshakes. Cheap to clone.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

/// Why the certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {why}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A file is not PEM, or has none of the expected items.
    #[error("{}: expected {expected}, {found}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What should be in it.
        expected: &'static str,
        /// What is wrong with its content.
        found: String,
    },
    /// The key belongs to another certificate.
    #[error("{} is not the key of the first certificate in {}", key.display(), cert.display())]
    OtherKey {
        /// The file with the certificate.
        cert: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// TLS cannot use the certificate or the key.
    #[error("{} and {}: {why}", cert.display(), key.display())]
    Unusable {
        /// The file with the certificate.
        cert: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// Why.
        why: rustls::Error,
    },
}

impl Tls {
    /// Reads PEM files: `cert` has the certificate, followed by its intermediate certificates, and `key` has its key.
    ///
    /// # Errors
    /// [`TlsError`], which names the file.
    pub fn open(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = certificates(cert)?;
        let secret = private_key(key)?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for the usual versions of TLS")
            .with_no_client_auth()
            .with_single_cert(chain, secret);
        let mut config = config.map_err(|why| {
            let (cert, key) = (cert.to_owned(), key.to_owned());
            match why {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    TlsError::OtherKey { cert, key }
                }
                why => TlsError::Unusable { cert, key, why },
            }
        })?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Performs the server's side of a TLS handshake.
    pub(super) fn handshake(
        &self,
        stream: TcpStream,
    ) -> impl Future<Output = io::Result<TlsStream<TcpStream>>> + Send + use<> {
        self.0.accept(stream)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let expected = "certificates in PEM (`-----BEGIN CERTIFICATE-----`)";
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(content(path, expected, &pem::Error::NoItemsFound)),
        found => found.map_err(|error| content(path, expected, &error)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let expected = "a private key in PEM that is not encrypted (`-----BEGIN PRIVATE KEY-----`)";
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| content(path, expected, &error))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|why| TlsError::Read { path: path.to_owned(), why })
}

fn content(path: &Path, expected: &'static str, error: &pem::Error) -> TlsError {
    let found = match error {
        pem::Error::NoItemsFound => "found none".to_owned(),
        error => error.to_string(),
    };
    TlsError::Content { path: path.to_owned(), expected, found }
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, routing::get};
    use hyper::{
        Request,
        client::conn::{http1, http2},
    };
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
    use tempfile::TempDir;
    use tokio::{io::AsyncReadExt, net::TcpListener};
    use tokio_rustls::{TlsConnector, client};

    use super::*;
    use crate::net::{GRACE, Listener, serve};

    /// A folder with `cert` and `key` for `localhost`.
    fn files() -> (TempDir, CertifiedKey<KeyPair>) {
        let folder = tempfile::tempdir().unwrap();
        let signed = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(folder.path().join("cert"), signed.cert.pem()).unwrap();
        fs::write(folder.path().join("key"), signed.signing_key.serialize_pem()).unwrap();
        (folder, signed)
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told() {
        let (folder, _) = files();
        let (_others, other) = files();
        for (name, content) in [
            ("empty", ""),
            ("damaged", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"),
            ("half", "-----BEGIN CERTIFICATE-----\nAAAA\n"),
            ("not-x509", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            ("other-key", &other.signing_key.serialize_pem()),
        ] {
            fs::write(folder.path().join(name), content).unwrap();
        }
        for (cert, key, said) in [
            ("missing", "key", ["missing: ", ""]),
            ("cert", "missing", ["missing: ", ""]),
            ("empty", "key", ["empty: expected certificates in PEM", "found none"]),
            ("key", "key", ["key: expected certificates in PEM", "found none"]),
            ("damaged", "key", ["damaged: expected certificates in PEM", "base64"]),
            ("half", "key", ["half: expected certificates in PEM", "section"]),
            ("not-x509", "key", ["not-x509", "invalid peer certificate: BadEncoding"]),
            ("cert", "cert", ["cert: expected a private key in PEM that is not encrypted", "found none"]),
            ("cert", "other-key", ["other-key is not the key of the first certificate in", "cert"]),
        ] {
            let opened = Tls::open(&folder.path().join(cert), &folder.path().join(key));
            let Err(error) = opened else { panic!("{cert}, {key}: there is TLS") };
            let error = error.to_string();
            assert!(said.iter().all(|said| error.contains(said)), "{cert}, {key}: {error}");
        }
    }

    #[tokio::test]
    async fn both_versions_are_spoken_behind_tls_and_nothing_before_it() {
        let (folder, signed) = files();
        let tls = Tls::open(&folder.path().join("cert"), &folder.path().join("key")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| async { "hello" }));
        tokio::spawn(serve([Listener::Tls(listener, tls)], router, std::future::pending(), GRACE));

        let mut roots = rustls::RootCertStore::empty();
        roots.add(signed.cert.der().clone()).unwrap();
        let connect = async |protocols: &[&[u8]]| -> client::TlsStream<TcpStream> {
            let config = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let config = config.with_safe_default_protocol_versions().unwrap();
            let mut config = config.with_root_certificates(roots.clone()).with_no_client_auth();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            let stream = TcpStream::connect(address).await.unwrap();
            let name = "localhost".try_into().unwrap();
            TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
        };
        let request =
            || Request::get("https://localhost/").header("host", "localhost").body(Body::empty()).unwrap();

        let stream = connect(&[b"h2", b"http/1.1"]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
        let (mut client, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(client.send_request(request()).await.unwrap().status(), 200);

        let stream = connect(&[]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), None);
        let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(client.send_request(request()).await.unwrap().status(), 200);

        let mut plain = TcpStream::connect(address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut plain, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
}
