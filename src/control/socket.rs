//! The socket file of a port that listens.
//!
//! Promises: [`SocketFile::bind`] replaces a file that nobody listens on, and no other; nobody
//! can connect before permissions and owner are set; the file is removed when the value is
//! dropped, if it is still the one that was made. Used by `control`.

#![forbid(unsafe_code)]

use super::OpenError;
use crate::config::VhostSpec;
use crate::sys::unix;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// A socket file that is ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode. Our bound socket keeps the inode from being used again.
    identity: (u64, u64),
}

impl SocketFile {
    /// Create the socket and listen on it.
    pub fn bind(spec: &VhostSpec) -> Result<(Self, UnixListener), OpenError> {
        let path = spec.path.as_path();
        let create = |source| OpenError::Create { path: path.into(), source };
        let socket = bind(path)?;
        let made = fs::symlink_metadata(path).map_err(create)?;
        let file = SocketFile { path: path.into(), identity: (made.dev(), made.ino()) };
        let permit = |source| OpenError::Permissions { path: path.into(), source };
        if let Some((user, group)) = spec.owner {
            chown(path, Some(user), group).map_err(permit)?;
        }
        if let Some(mode) = spec.mode {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(permit)?;
        }
        let listener = unix::listen(socket).map_err(create)?;
        Ok((file, listener))
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

fn bind(path: &Path) -> Result<OwnedFd, OpenError> {
    check_path(path)?;
    let mut bound = unix::bind(path);
    if bound.as_ref().is_err_and(|e| e.kind() == ErrorKind::AddrInUse) {
        remove_stale(path)?;
        bound = unix::bind(path);
    }
    bound.map_err(|error| explain(path, error))
}

/// A path that no socket can have is the operator's mistake in client mode too.
pub(super) fn check_path(path: &Path) -> Result<(), OpenError> {
    match path.as_os_str().as_bytes() {
        bytes if bytes.len() > unix::MAX_PATH => {
            Err(OpenError::TooLong { path: path.into(), len: bytes.len() })
        }
        bytes if bytes.is_empty() || bytes.contains(&0) => {
            Err(explain(path, ErrorKind::InvalidInput.into()))
        }
        _ => Ok(()),
    }
}

/// Remove the socket file `path` if nobody listens on it.
fn remove_stale(path: &Path) -> Result<(), OpenError> {
    let gone = |e: &io::Error| e.kind() == ErrorKind::NotFound;
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(OpenError::NotSocket { path: path.into() });
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
        _ => Err(OpenError::Live { path: path.into() }),
    }
}

fn explain(path: &Path, source: io::Error) -> OpenError {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.into(),
        _ => PathBuf::from("."),
    };
    match source.kind() {
        ErrorKind::NotFound => OpenError::NoDirectory { directory },
        ErrorKind::PermissionDenied => OpenError::Denied { path: path.into() },
        ErrorKind::AddrInUse => OpenError::Live { path: path.into() },
        _ => OpenError::Create { path: path.into(), source },
    }
}
