//! The files that are asked for: that nobody's is anybody else's, and that they can be opened
//! or made.
//!
//! Promises: looks at the machine, and changes nothing. Called by `cli` before a bridge starts,
//! and by the bridge before it adds a port.

#![forbid(unsafe_code)]

use super::{PortKind, PortSpec};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a file, in one line.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// One file is wanted for two purposes.
    #[error("{} is used twice; each use needs a file of its own", .0.display())]
    Duplicate(PathBuf),
    /// An input file that cannot be used.
    #[error("cannot read {}: {error}; give a capture file that can be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// An output or a socket in a directory that is not there.
    #[error("cannot create {}: there is no directory {}", path.display(), directory.display())]
    NoDirectory {
        /// The file.
        path: PathBuf,
        /// What should be a directory.
        directory: PathBuf,
    },
    /// An output where a directory is.
    #[error("cannot create {}: it is a directory; name a file", .0.display())]
    IsDirectory(PathBuf),
}

/// The files in use: no socket and no output is anybody else's, an input may be read by several.
#[derive(Debug, Default)]
pub struct Files {
    written: Vec<PathBuf>,
    read: Vec<PathBuf>,
}

impl Files {
    /// `path` is a socket or an output from now on.
    ///
    /// # Errors
    /// It is somebody's already.
    pub fn write(&mut self, path: &Path) -> Result<(), FileError> {
        let path = same(path);
        if self.written.contains(&path) || self.read.contains(&path) {
            return Err(FileError::Duplicate(path));
        }
        self.written.push(path);
        Ok(())
    }

    /// `path` is an input from now on.
    ///
    /// # Errors
    /// It is a socket or an output.
    pub fn read(&mut self, path: &Path) -> Result<(), FileError> {
        let path = same(path);
        if self.written.contains(&path) {
            return Err(FileError::Duplicate(path));
        }
        self.read.push(path);
        Ok(())
    }

    /// The files of `port` are in use from now on.
    ///
    /// # Errors
    /// One of them is in use already.
    pub fn take(&mut self, port: &PortSpec) -> Result<(), FileError> {
        match &port.kind {
            PortKind::Vhost(spec) => self.write(&spec.path),
            PortKind::Pcap(spec) => {
                self.read(&spec.input)?;
                spec.output.as_deref().map_or(Ok(()), |path| self.write(path))
            }
            PortKind::Tap(_) | PortKind::AfPacket(_) | PortKind::Null => Ok(()),
        }
    }
}

/// One spelling for each file, as far as that can be told without looking.
fn same(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// The inputs of `port` are there, and so are the directories of what will be created.
///
/// # Errors
/// Which is not.
pub fn check_files(port: &PortSpec) -> Result<(), FileError> {
    match &port.kind {
        PortKind::Vhost(spec) if spec.client => Ok(()),
        PortKind::Vhost(spec) => check_creatable(&spec.path),
        PortKind::Pcap(spec) => {
            let unreadable = |error| FileError::Unreadable { path: spec.input.clone(), error };
            let metadata = std::fs::metadata(&spec.input).map_err(unreadable)?;
            if metadata.is_dir() {
                return Err(unreadable(io::ErrorKind::IsADirectory.into()));
            }
            // Opening a pipe would wait for its writer.
            if metadata.is_file() {
                File::open(&spec.input).map_err(unreadable)?;
            }
            spec.output.as_deref().map_or(Ok(()), check_creatable)
        }
        PortKind::Tap(_) | PortKind::AfPacket(_) | PortKind::Null => Ok(()),
    }
}

/// A file can be created at `path`: its directory exists, and it is none itself.
///
/// # Errors
/// What is in the way.
pub fn check_creatable(path: &Path) -> Result<(), FileError> {
    if path.is_dir() {
        return Err(FileError::IsDirectory(path.into()));
    }
    // The parent of a bare name is the empty path.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent.filter(|parent| !parent.is_dir()) {
        Some(none) => Err(FileError::NoDirectory { path: path.into(), directory: none.into() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_writer_or_any_number_of_readers() {
        let mut files = Files::default();
        files.write(Path::new("/a/b")).unwrap();
        files.read(Path::new("/a/c")).unwrap();
        files.read(Path::new("/a/c")).unwrap();
        let twice = files.write(Path::new("/a/./b")).unwrap_err().to_string();
        assert_eq!(twice, "/a/b is used twice; each use needs a file of its own");
        assert!(files.read(Path::new("/a/b")).is_err() && files.write(Path::new("/a/c")).is_err());
    }

    #[test]
    fn files_are_created_in_directories_that_exist() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_creatable(Path::new("bare")).is_ok());
        assert!(check_creatable(&dir.path().join("new")).is_ok());
        let missing = dir.path().join("no");
        let refused = check_creatable(&missing.join("new")).unwrap_err().to_string();
        let (path, directory) = (missing.join("new"), missing.display().to_string());
        let expected =
            format!("cannot create {}: there is no directory {directory}", path.display());
        assert_eq!(refused, expected);
        let refused = check_creatable(dir.path()).unwrap_err().to_string();
        let expected =
            format!("cannot create {}: it is a directory; name a file", dir.path().display());
        assert_eq!(refused, expected);
    }
}
