//! The socket file of whoever listens: a port of the bridge, or the built-in guest.
//!
//! Promises: [`SocketFile::bind`] replaces a socket that nobody listens on, and nothing else;
//! nobody can connect before the caller has set permissions and owner; the file is removed
//! when the value is dropped, if it is still the one that was made. Used by `control` and
//! `frontend`.

#![forbid(unsafe_code)]

use super::unix;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Why there is no socket of ours at a path.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    /// The path does not fit into a socket address.
    #[error(
        "{path} is {len} bytes long, and the path of a socket has at most {max}",
        path = .path.display(), max = unix::MAX_PATH
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        len: usize,
    },
    /// Another process serves this socket.
    #[error("{path} is in use: another process listens on it", path = .path.display())]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// There is something else.
    #[error("{path} exists and is not a socket; it is left alone", path = .path.display())]
    NotSocket {
        /// What there is.
        path: PathBuf,
    },
    /// Nowhere to put the socket.
    #[error("the directory {directory} does not exist", directory = .directory.display())]
    NoDirectory {
        /// Where the socket should be.
        directory: PathBuf,
    },
    /// Not allowed there.
    #[error("no permission to create the socket {path}, or to replace it", path = .path.display())]
    Denied {
        /// The socket.
        path: PathBuf,
    },
    /// Its permissions or its owner could not be set.
    #[error("cannot set the mode and owner of {path}", path = .path.display())]
    Permissions {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Anything else about the socket.
    #[error("cannot create the socket {path}", path = .path.display())]
    Create {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// A socket file that is ours.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode. Our bound socket keeps the inode from being used again, so this is to
    /// be dropped before the listener.
    identity: (u64, u64),
}

impl SocketFile {
    /// Create the socket `path` and listen on it; the listener does not block. `permit` sets
    /// permissions and owner of the file that it is given, while nobody can connect yet.
    ///
    /// # Errors
    /// What is in the way, or not allowed; nothing is left behind then.
    pub fn bind(
        path: &Path,
        permit: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(Self, UnixListener), SocketFileError> {
        let create = |source| SocketFileError::Create { path: path.into(), source };
        let socket = bind(path)?;
        let made = fs::symlink_metadata(path).map_err(create)?;
        let file = SocketFile { path: path.into(), identity: (made.dev(), made.ino()) };
        permit(path)
            .map_err(|source| SocketFileError::Permissions { path: path.into(), source })?;
        let listener = unix::listen(socket).map_err(create)?;
        Ok((file, listener))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = |file: fs::Metadata| (file.dev(), file.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            // It may be gone by now: as good.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn bind(path: &Path) -> Result<OwnedFd, SocketFileError> {
    check_path(path)?;
    let mut bound = unix::bind(path);
    if bound.as_ref().is_err_and(|e| e.kind() == ErrorKind::AddrInUse) {
        remove_stale(path)?;
        bound = unix::bind(path);
    }
    bound.map_err(|error| explain(path, error))
}

/// A path that no socket can have is the operator's mistake for those who connect, too.
///
/// # Errors
/// It is too long, empty or contains a zero byte.
pub fn check_path(path: &Path) -> Result<(), SocketFileError> {
    match path.as_os_str().as_bytes() {
        bytes if bytes.len() > unix::MAX_PATH => {
            Err(SocketFileError::TooLong { path: path.into(), len: bytes.len() })
        }
        bytes if bytes.is_empty() || bytes.contains(&0) => {
            Err(explain(path, ErrorKind::InvalidInput.into()))
        }
        _ => Ok(()),
    }
}

/// Remove the socket file `path` if nobody listens on it.
fn remove_stale(path: &Path) -> Result<(), SocketFileError> {
    let gone = |e: &io::Error| e.kind() == ErrorKind::NotFound;
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(SocketFileError::NotSocket { path: path.into() });
        }
        Err(error) if !gone(&error) => return Err(explain(path, error)),
        _ => {}
    }
    match unix::connect(path) {
        Err(error) if gone(&error) => Ok(()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).or_else(|e| if gone(&e) { Ok(()) } else { Err(explain(path, e)) })
        }
        // A listener whose backlog is full lives as well.
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(explain(path, error)),
        _ => Err(SocketFileError::Live { path: path.into() }),
    }
}

fn explain(path: &Path, source: io::Error) -> SocketFileError {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.into(),
        _ => PathBuf::from("."),
    };
    match source.kind() {
        ErrorKind::NotFound => SocketFileError::NoDirectory { directory },
        ErrorKind::PermissionDenied => SocketFileError::Denied { path: path.into() },
        ErrorKind::AddrInUse => SocketFileError::Live { path: path.into() },
        _ => SocketFileError::Create { path: path.into(), source },
    }
}
