//! A bridge as a process, and `ringbridge ctl` for it.

use super::common::backend::Backend;
use super::common::bridge::LIMIT;
use super::common::wait_until;
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A bridge and its control socket.
pub struct Bed {
    pub backend: Backend,
    pub control: PathBuf,
}

impl Bed {
    /// Vhost ports, named after their sockets.
    pub fn new(ports: usize) -> Self {
        // In a folder of its own: the backend's is only made when it starts.
        let folder = tempfile::Builder::new().prefix("ringbridge-").tempdir().unwrap();
        let control = folder.keep().join("c");
        let path = control.to_str().unwrap();
        let backend = Backend::start(ports, "", &["--json", "--control", path]);
        // It comes after the ports.
        assert!(wait_until(LIMIT, || UnixStream::connect(&control).is_ok()));
        Bed { backend, control }
    }

    /// What a command comes to.
    pub fn ctl(&self, words: &str) -> Output {
        ctl(&["--control", self.control.to_str().unwrap()], words)
    }

    /// What a command that succeeds prints.
    pub fn says(&self, words: &str) -> String {
        let output = self.ctl(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*error), (Some(0), ""), "{words}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command answers with `--json`.
    pub fn json(&self, words: &str) -> Value {
        let mut answer: Value =
            serde_json::from_str(&self.says(&format!("--json {words}"))).unwrap();
        answer["ok"].take()
    }

    /// The one line of a command that fails.
    pub fn refuses(&self, words: &str) -> String {
        let output = self.ctl(words);
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    /// The name of a port.
    pub fn name(&self, port: usize) -> String {
        format!("vhost:{}", self.backend.sockets()[port].display())
    }

    /// A client of its own.
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.control).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.control.parent().unwrap());
    }
}

fn ctl(args: &[&str], words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbridge"));
    command.arg("ctl").args(args).args(words.split_whitespace()).output().unwrap()
}
