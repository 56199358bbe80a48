//! A network of the test's own.
//!
//! Promises: what is made in it is seen nowhere else, and is gone when the last thread and
//! process in it are.

use super::{require, require_root};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

/// Run `test` in a thread in a network namespace of its own, with all threads and processes that
/// it starts; or say why not.
pub fn in_new_network(test: impl FnOnce() + Send + 'static) {
    if !require_root() || !require("ip") {
        return;
    }
    let run = move || {
        // SAFETY: a plain call; it concerns this thread alone.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "no network namespace");
        be_silent();
        ip("link set lo up");
        test();
    };
    if let Err(panic) = thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does jobs in a network namespace, which lives as long as the value.
pub struct Elsewhere {
    jobs: mpsc::Sender<Job>,
}

impl Elsewhere {
    /// A new namespace, with the interface `inner` of a pair whose `outer` stays here.
    pub fn new(outer: &str, inner: &str) -> Self {
        let (ready, started) = mpsc::channel();
        let elsewhere = Self::start(move || {
            // SAFETY: plain calls that concern this thread alone.
            let id = unsafe {
                assert_eq!(libc::unshare(libc::CLONE_NEWNET), 0);
                libc::gettid()
            };
            be_silent();
            ready.send(id).unwrap();
        });
        let id = started.recv_timeout(LIMIT).unwrap();
        ip(&format!("link add {outer} type veth peer name {inner} netns {id}"));
        ip(&format!("link set {outer} up"));
        elsewhere
    }

    /// The namespace of this thread.
    pub fn here() -> Self {
        Self::start(|| ())
    }

    fn start(first: impl FnOnce() + Send + 'static) -> Self {
        let (jobs, todo) = mpsc::channel::<Job>();
        thread::spawn(move || {
            first();
            for job in todo {
                job();
            }
        });
        Elsewhere { jobs }
    }

    /// Do something there; what comes of it.
    pub fn inside<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.begin(job).recv_timeout(LIMIT).expect("the other thread has failed")
    }

    /// Begin to do something there.
    pub fn begin<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> mpsc::Receiver<T> {
        let (done, result) = mpsc::channel();
        self.jobs.send(Box::new(move || drop(done.send(job())))).unwrap();
        result
    }
}

/// Neighbour discovery is traffic that nobody expects.
fn be_silent() {
    for which in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
        let _ = std::fs::write(path, "1");
    }
}

/// `ip` with these arguments, which must succeed.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {said}");
}

/// A pair of interfaces, each what the other's cable leads to.
pub fn veth(one: &str, other: &str, mtu: usize) {
    ip(&format!("link add {one} mtu {mtu} type veth peer name {other} mtu {mtu}"));
    for name in [one, other] {
        ip(&format!("link set {name} up"));
    }
}
