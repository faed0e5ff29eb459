//! Listening on a unix socket, which only processes on this machine can reach.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::SocketAddr,
    },
    path::{Path, PathBuf},
};

use axum::serve::Listener as Accept;
use tokio::net::{UnixListener, UnixStream, unix};

use super::listener::take_in_the_last;

/// A unix socket. Its file is removed when it is dropped, unless another file has replaced it.
pub struct UnixSocket {
    // Dropped before the listener is closed: until then, no other server can have taken the path.
    file: SocketFile,
    listener: UnixListener,
}

/// The file of a socket, removed when this is dropped.
struct SocketFile {
    path: PathBuf,
    /// Identifies the file that was created: another process may have replaced it since.
    is: Option<Identity>,
}

/// Device and inode of a file.
type Identity = (u64, u64);

/// Why there can be no socket at a path.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens there.
    #[error("another process listens there")]
    InUse,
    /// There is a file that is not a socket; it is left alone.
    #[error("there is a file that is not a socket")]
    NotASocket,
    /// The socket's folder does not exist.
    #[error("there is no folder {}", _0.display())]
    NoFolder(PathBuf),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl UnixSocket {
    /// Checks whether [`UnixSocket::listen`] would succeed now, for callers that do slow work before they listen.
    ///
    /// # Errors
    /// Those of [`UnixSocket::listen`].
    pub async fn check(path: &Path) -> Result<(), SocketError> {
        look(path).await.map(drop)
    }

    /// Listens at `path`, and replaces a stale socket file on which no process listens.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn listen(path: &Path) -> Result<Self, SocketError> {
        if look(path).await? == Place::Stale {
            fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        Ok(Self { listener, file: SocketFile { path: path.to_owned(), is: identity(path).ok() } })
    }

    /// Stops accepting: removes the file, passes the connections that are queued by then to `begin`, and closes.
    pub(super) fn close(self, begin: impl Fn(UnixStream)) -> io::Result<()> {
        let Self { file, listener } = self;
        drop(file);
        let listener = listener.into_std()?;
        take_in_the_last(|| {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            begin(UnixStream::from_std(stream)?);
            Ok(())
        });
        Ok(())
    }
}

impl Accept for UnixSocket {
    type Io = UnixStream;
    type Addr = unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        Accept::accept(&mut self.listener).await
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let Self { path, is } = &*self;
        let removed = match identity(path) {
            Ok(there) if Some(there) != *is => return,
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::warn!(path = %path.display(), %error, "the socket could not be removed");
        }
    }
}

/// The identity of the file at this path.
fn identity(path: &Path) -> io::Result<Identity> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

#[derive(PartialEq, Eq)]
enum Place {
    Free,
    /// A socket that its server has not removed when it ended.
    Stale,
}

async fn look(path: &Path) -> Result<Place, SocketError> {
    SocketAddr::from_pathname(path)?; // it may be too long
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return Err(SocketError::NoFolder(folder.to_owned()));
    }
    let kind = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Place::Free),
        metadata => metadata?.file_type(),
    };
    if !kind.is_socket() {
        return Err(SocketError::NotASocket);
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Place::Stale),
        // A process listens, but its accept queue is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SocketError::InUse),
        Err(error) => Err(error.into()),
        Ok(_) => Err(SocketError::InUse),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_removed_with_its_server() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("turbo");
        UnixSocket::check(&path).await.unwrap();
        assert!(!path.exists(), "looking leaves nothing behind");
        let socket = UnixSocket::listen(&path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_in_use_is_left_alone_and_a_stale_one_replaced() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("turbo");
        let others = UnixListener::bind(&path).unwrap();
        assert!(matches!(UnixSocket::check(&path).await, Err(SocketError::InUse)));
        assert!(matches!(UnixSocket::listen(&path).await, Err(SocketError::InUse)));
        drop(others); // as after a crash: the file stays
        assert!(path.exists());
        UnixSocket::check(&path).await.unwrap();
        let mut socket = UnixSocket::listen(&path).await.unwrap();
        let (client, _) = tokio::join!(UnixStream::connect(&path), socket.accept());
        client.unwrap();
    }

    /// The file may have been removed, and another server have begun to listen at the same path.
    #[tokio::test]
    async fn the_socket_of_another_server_is_not_removed() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("turbo");
        let first = UnixSocket::listen(&path).await.unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap(); // it keeps its inode from being given again
        let _second = UnixSocket::listen(&path).await.unwrap();
        drop(first);
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_no_place_for_a_socket_is_told() {
        let folder = tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "text").unwrap();
        for (path, said) in [
            (file.clone(), "a file that is not a socket"),
            (folder.path().to_owned(), "a file that is not a socket"),
            (folder.path().join("missing/turbo"), "there is no folder "),
            (folder.path().join("a".repeat(200)), "path must be shorter"),
        ] {
            let error = UnixSocket::check(&path).await.unwrap_err().to_string();
            assert!(error.contains(said), "{path:?}: {error}");
        }
        assert_eq!(fs::read(&file).unwrap(), b"text");
    }
}
