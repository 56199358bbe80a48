//! `ringbridge run` as a process of its own.
//!
//! Promises: its sockets can be connected to once it is started; it is killed by its own
//! process id when it is dropped; every wait has a limit.

use super::bridge::LIMIT;
use super::{TempDir, wait_until};
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

/// A running `ringbridge run`.
pub struct Backend {
    pub dir: TempDir,
    sockets: Vec<PathBuf>,
    args: Vec<String>,
    child: Child,
}

impl Backend {
    /// With `ports` vhost ports, each of them with these `options` (`,queues=2`), and further
    /// arguments.
    pub fn start(ports: usize, options: &str, args: &[&str]) -> Self {
        let dir = TempDir::new();
        let sockets: Vec<_> = (0..ports).map(|i| dir.path(&format!("{i}"))).collect();
        let mut args: Vec<_> = args.iter().map(ToString::to_string).collect();
        for socket in &sockets {
            args.extend(["-p".into(), format!("vhost:{}{options}", socket.display())]);
        }
        let child = spawn(&dir, &args);
        let mut backend = Backend { dir, sockets, args, child };
        backend.wait_up();
        backend
    }

    /// Kill it as a crash would, and start it again.
    pub fn crash_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.dir, &self.args);
        self.wait_up();
    }

    fn wait_up(&mut self) {
        for socket in self.sockets.clone() {
            let up = wait_until(LIMIT, || {
                let ended = self.child.try_wait().unwrap();
                assert!(ended.is_none(), "{}", self.log());
                UnixStream::connect(&socket).is_ok()
            });
            assert!(up, "nobody listens on {}", socket.display());
        }
    }

    /// The sockets.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Send it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a process of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Is it gone?
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Wait for its end: the status and what it printed.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        assert!(wait_until(LIMIT, || self.child.try_wait().unwrap().is_some()), "it does not end");
        let mut said = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// End it with SIGTERM; what it printed, as JSON.
    pub fn finish(&mut self) -> serde_json::Value {
        self.signal(libc::SIGTERM);
        let (status, said) = self.wait();
        assert!(status.success(), "{status}: {}", self.log());
        serde_json::from_str(&said).unwrap()
    }

    /// Let it open no fd whose number is `limit` or higher. Those that it has stay open.
    pub fn limit_fds(&self, limit: u64) {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let (pid, what) = (self.child.id() as i32, libc::RLIMIT_NOFILE);
        // SAFETY: `now` outlives both calls; each asks for one of the two things.
        unsafe {
            assert_eq!(libc::prlimit(pid, what, std::ptr::null(), &raw mut now), 0);
            // The hard limit stays, or only root could undo this.
            now.rlim_cur = limit;
            assert_eq!(libc::prlimit(pid, what, &raw const now, std::ptr::null_mut()), 0);
        }
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path("log")).unwrap_or_default()
    }

    /// Kilobytes of its own memory.
    pub fn rss_anon(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Open files.
    pub fn fds(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Threads of this name.
    pub fn threads(&self, name: &str) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let comms = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        comms.filter(|comm| comm.trim() == name).count()
    }

    /// Mappings of guests' memory.
    pub fn mapped(&self) -> usize {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        maps.matches("memfd:").count()
    }

    /// Nanoseconds of CPU time of all its threads.
    pub fn cpu_time(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let nanoseconds = |task: fs::DirEntry| -> u64 {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
        };
        tasks.map(|task| nanoseconds(task.unwrap())).sum()
    }

    /// Wait until every worker sleeps. A worker sleeps only if its rings are empty: then all
    /// that was sent has been counted.
    pub fn wait_idle(&self) {
        assert!(wait_until(LIMIT, || self.workers().iter().all(|state| state == "S")));
    }

    /// The states of the workers, as in /proc.
    fn workers(&self) -> Vec<String> {
        let mut states = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap() {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            if let Some((_, rest)) = stat.split_once(" (worker) ") {
                states.push(rest.split(' ').next().unwrap().to_string());
            }
        }
        assert!(!states.is_empty());
        states
    }
}

fn spawn(dir: &TempDir, args: &[String]) -> Child {
    let log = fs::File::options().create(true).append(true).open(dir.path("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbridge"));
    command.arg("run").args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap()
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
