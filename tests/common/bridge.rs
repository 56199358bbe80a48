//! A bridge in the test's own process, on sockets in a temporary folder, and a guest whose
//! every frame the test sees.
//!
//! Promises: no wait without a limit; a failed expectation says what the counters were.

use super::{TempDir, wait_until};
use ringbridge::config::{ForwardMode, PollMode, PortKind, PortSpec, RunConfig, VhostSpec};
use ringbridge::frontend::{DESC_WRITE, GuestOptions, Link, RawDesc, RawGuest};
use ringbridge::run::Bridge;
use ringbridge::stats::Snapshot;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest wait of any kind.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Bridges poll: on a machine with few CPUs one at a time is fast, several are not.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A vhost-user port that listens on `path`.
pub fn vhost(path: &Path, queues: u16) -> PortSpec {
    let spec = VhostSpec {
        path: path.into(),
        client: false,
        queues,
        mrg_rxbuf: true,
        mode: None,
        owner: None,
    };
    PortSpec { name: format!("vhost:{}", path.display()), kind: PortKind::Vhost(spec) }
}

/// A running bridge.
pub struct Bed {
    pub dir: TempDir,
    bridge: Bridge,
}

impl Bed {
    /// `ports` vhost ports of one queue pair, `io`, one adaptive worker.
    pub fn new(ports: usize) -> Self {
        Self::with(ports, |_, _| ())
    }

    /// As [`Bed::new`], but for what `change` changes.
    pub fn with(ports: usize, change: impl FnOnce(&mut RunConfig, &TempDir)) -> Self {
        let dir = TempDir::new();
        let mut config = RunConfig {
            ports: (0..ports).map(|i| vhost(&dir.path(&format!("{i}")), 1)).collect(),
            forward: ForwardMode::Io,
            size: 64,
            workers: vec![None],
            burst: 32,
            poll: PollMode::Adaptive,
            duration: None,
            stats_interval: None,
            json: false,
        };
        change(&mut config, &dir);
        Bed { bridge: Bridge::start(&config).unwrap(), dir }
    }

    /// The socket of port `i`.
    pub fn socket(&self, i: usize) -> PathBuf {
        self.dir.path(&format!("{i}"))
    }

    /// All counters now.
    pub fn counters(&self) -> Snapshot {
        self.bridge.snapshot()
    }

    /// Wait until the counters are as they should be.
    pub fn expect(&self, what: &str, holds: impl Fn(&Snapshot) -> bool) {
        let held = wait_until(LIMIT, || holds(&self.counters()));
        assert!(held, "{what}: {:#?}", self.counters().ports);
    }

    /// End it; the final counters. The folder and what was written there stay with the value.
    pub fn stop(self) -> (Snapshot, TempDir) {
        (self.bridge.stop(), self.dir)
    }
}

/// Bytes of each of a peer's buffers.
const BUFFER: usize = 4096;
/// Where a peer's receive buffers begin in its scratch memory; transmit buffers come first.
const RX_BUFFERS: usize = 1 << 20;
/// Scratch memory from here on is the test's.
pub const FREE: usize = 2 << 20;

/// A guest that sends the frames it is given and keeps those it gets, one descriptor and one
/// buffer each.
pub struct Peer {
    pub raw: RawGuest,
    header: usize,
    sent: u16,
    received: u16,
}

impl Peer {
    /// Connect with a full receive ring.
    pub fn connect(socket: &Path) -> Self {
        Self::with(socket, GuestOptions::default())
    }

    /// As [`Peer::connect`], with these features; rings of at most 256 entries.
    pub fn with(socket: &Path, options: GuestOptions) -> Self {
        let header = options.header_len();
        let raw = RawGuest::connect(&Link { options, ..Link::to([socket]) }).unwrap();
        let mut peer = Peer { raw, header, sent: 0, received: 0 };
        for i in 0..peer.size() {
            let addr = peer.raw.ram.guest(peer.buffer(RX_BUFFERS, i));
            let desc = RawDesc { addr, len: BUFFER as u32, flags: DESC_WRITE, next: 0 };
            peer.raw.rings[0].post(i, &[desc]);
        }
        peer.raw.start(0, 0).unwrap();
        peer.raw.start(1, 0).unwrap();
        peer
    }

    fn size(&self) -> u16 {
        self.raw.rings[0].area().size()
    }

    fn buffer(&self, first: usize, i: u16) -> usize {
        self.raw.scratch() + first + usize::from(i) * BUFFER
    }

    /// Make a frame available, without a kick; waits for room.
    pub fn post(&mut self, frame: &[u8]) {
        let (size, sent) = (self.size(), self.sent);
        let ring = &self.raw.rings[1];
        assert!(wait_until(LIMIT, || sent.wrapping_sub(ring.used_idx()) < size), "ring stuck");
        let i = sent % size;
        let at = self.buffer(0, i);
        self.raw.ram.write(at, &[0; 12][..self.header]);
        self.raw.ram.write(at + self.header, frame);
        let len = (self.header + frame.len()) as u32;
        let desc = RawDesc { addr: self.raw.ram.guest(at), len, flags: 0, next: 0 };
        self.raw.rings[1].post(i, &[desc]);
        self.sent = sent.wrapping_add(1);
    }

    /// Send a frame.
    pub fn send(&mut self, frame: &[u8]) {
        self.post(frame);
        self.raw.rings[1].kick();
    }

    /// Has a frame come that was not taken yet?
    pub fn has_frame(&self) -> bool {
        self.raw.rings[0].used_idx() != self.received
    }

    /// Index of the next used entry of the receive ring.
    pub fn received(&self) -> u16 {
        self.received
    }

    /// The next frame, which is there.
    pub fn take(&mut self) -> Vec<u8> {
        assert!(self.has_frame());
        let (id, len) = self.raw.rings[0].used(self.received);
        self.received = self.received.wrapping_add(1);
        let mut bytes = vec![0; len as usize];
        self.raw.ram.read(self.buffer(RX_BUFFERS, id as u16), &mut bytes);
        self.raw.rings[0].post_head(id as u16);
        self.raw.rings[0].kick();
        bytes.split_off(self.header)
    }

    /// Wait for the next frame.
    pub fn receive(&mut self) -> Vec<u8> {
        assert!(wait_until(LIMIT, || self.has_frame()), "no frame came");
        self.take()
    }

    /// Frames that are there now, taken and counted.
    pub fn discard(&mut self) -> usize {
        let mut n = 0;
        while self.has_frame() {
            self.take();
            n += 1;
        }
        n
    }
}
