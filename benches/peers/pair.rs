//! A backend and the guest that is connected to it, to be measured in turn with others.
//!
//! Promises: between [`Pair::resume`] and [`Pair::pause`] the two have their CPUs to
//! themselves, otherwise they use none.

use crate::common::TempDir;
use crate::common::testpmd::{Args, Testpmd};
use crate::guest::Guest;
use crate::plan::{Direction, Group, Peer};
use crate::process::Server;
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Hugepage memory of one testpmd.
pub const HUGE_MIB: usize = 128;

/// The backend of a pair: a process of ours, or DPDK's.
enum Backend {
    Server(Server),
    Testpmd { testpmd: Testpmd, forwards: bool },
}

/// What a pair is started from.
#[derive(Clone)]
pub struct Setup {
    pub peer: Peer,
    pub group: Group,
    /// The backend's and the guest's.
    pub cpus: (usize, usize),
    /// Is there enough hugepage memory for the guests?
    pub huge: bool,
}

/// See above. Both parts are started anew where a size cannot be changed otherwise.
pub struct Pair {
    setup: Setup,
    parts: Option<(Backend, Guest)>,
    dir: TempDir,
    starts: usize,
}

impl Pair {
    /// Start both; nothing is sent before [`Pair::set_size`].
    pub fn start(setup: Setup) -> Result<Self> {
        let mut pair = Pair { setup, parts: None, dir: TempDir::new(), starts: 0 };
        let size = pair.setup.group.sizes[0];
        pair.restart(size)?;
        Ok(pair)
    }

    pub fn peer(&self) -> Peer {
        self.setup.peer
    }

    /// How both were started.
    pub fn command_lines(&self) -> Vec<String> {
        let Some((backend, guest)) = &self.parts else { return Vec::new() };
        let backend = match backend {
            Backend::Server(server) => &server.command_line,
            Backend::Testpmd { testpmd, .. } => testpmd.command_line(),
        };
        vec![backend.to_string(), guest.command_line().to_string()]
    }

    fn restart(&mut self, size: usize) -> Result<()> {
        self.parts = None;
        self.starts += 1;
        let Setup { peer, group, cpus, huge } = &self.setup;
        let socket = |port| self.dir.path(&format!("{}-{port}", self.starts));
        let sockets: Vec<PathBuf> = (0..group.direction.ports()).map(socket).collect();
        let direction = group.direction;
        let backend = match peer {
            Peer::Ringbridge => {
                Backend::Server(Server::ringbridge(cpus.0, direction, size, &sockets)?)
            }
            Peer::Reference => {
                Backend::Server(Server::reference(cpus.0, direction, group.mergeable, &sockets)?)
            }
            Peer::Dpdk => {
                let mode = format!("--forward-mode={}", direction.backend_mode());
                let args = Args::backend(&sockets, "queues=1").cpu(cpus.0).hugepages(HUGE_MIB);
                let testpmd = Testpmd::start(&args.with([mode]))?;
                Backend::Testpmd { testpmd, forwards: false }
            }
        };
        let guest = Guest::start(group, cpus.1, huge.then_some(HUGE_MIB), &sockets)?;
        self.parts = Some((backend, guest));
        Ok(())
    }

    /// Move packets of `size`. The pair must not be paused.
    pub fn set_size(&mut self, size: usize) -> Result<()> {
        let made_by_backend = self.setup.group.direction == Direction::ToGuest;
        let first = self.setup.group.sizes[0] == size;
        // ringbridge's size is an argument: another size is another process.
        if self.setup.peer == Peer::Ringbridge && made_by_backend && !first {
            self.restart(size)?;
        }
        let (backend, guest) = self.parts.as_mut().context("the pair is gone")?;
        match backend {
            Backend::Server(server) if self.setup.peer == Peer::Reference => {
                server.set_size(size)?;
            }
            Backend::Server(_) => {}
            Backend::Testpmd { testpmd, forwards } => {
                if *forwards && made_by_backend {
                    testpmd.command("stop")?;
                    *forwards = false;
                }
                if !*forwards {
                    testpmd.command(&format!("set txpkts {size}"))?;
                    testpmd.command("start")?;
                    *forwards = true;
                }
            }
        }
        guest.set_size(size)
    }

    /// Millions of packets a second, in each of `windows` windows of 100 ms. Paused before and
    /// after.
    pub fn measure(&mut self, windows: usize) -> Result<Vec<f64>> {
        self.resume();
        let (_, guest) = self.parts.as_mut().context("the pair is gone")?;
        let rates = guest.windows(windows);
        self.pause();
        rates
    }

    /// Take the CPUs from it.
    pub fn pause(&mut self) {
        self.signal(libc::SIGSTOP);
    }

    /// Give it the CPUs.
    pub fn resume(&mut self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        let Some((backend, guest)) = &self.parts else { return };
        let backend = match backend {
            Backend::Server(server) => server.pid(),
            Backend::Testpmd { testpmd, .. } => testpmd.pid(),
        };
        for pid in [Some(backend), guest.pid()].into_iter().flatten() {
            // SAFETY: takes two numbers; the process is our child and not yet waited for, so
            // its number is not another's.
            unsafe { libc::kill(pid as i32, signal) };
        }
    }
}
