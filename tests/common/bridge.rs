//! A bridge in the test's own process, on sockets in a temporary folder, and a guest whose
//! every frame the test sees.
//!
//! Promises: no wait without a limit; a failed expectation says what the counters were.

use super::{TempDir, wait_until};
use ringbridge::bridge::Bridge;
use ringbridge::config::{
    BridgeKeys, ForwardMode, Offer, PollMode, PortKind, PortSpec, RunConfig, VhostSpec,
};
use ringbridge::frontend::{
    DESC_WRITE, GuestOptions, Link, Ram, RawDesc, RawGuest, RawRing, Session,
};
use ringbridge::stats::Snapshot;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
        offer: Offer::ALL,
        mode: None,
        owner: None,
    };
    let (name, bridge) = (format!("vhost:{}", path.display()), BridgeKeys::default());
    PortSpec { name, kind: PortKind::Vhost(spec), bridge }
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
            aging: Duration::from_mins(5),
            size: 64,
            workers: vec![None],
            burst: 32,
            poll: PollMode::Adaptive,
            duration: None,
            stats_interval: None,
            json: false,
            control: None,
        };
        change(&mut config, &dir);
        Bed { bridge: Bridge::start(&config).unwrap(), dir }
    }

    /// The bridge.
    pub fn bridge(&self) -> &Bridge {
        &self.bridge
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
    pub fn expect(&self, what: &str, mut holds: impl FnMut(&Snapshot) -> bool) {
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
/// No `avail_event` of a ring that begins at 0.
const NOT_ARMED: u16 = 0x7777;

/// A guest that sends the frames it is given and keeps those it gets, one descriptor and one
/// buffer each.
pub struct Peer {
    pub session: Session,
    pub rings: PeerRings,
}

/// Its rings and buffers.
pub struct PeerRings {
    ram: Arc<Ram>,
    pub rx: RawRing,
    pub tx: RawRing,
    scratch: usize,
    header: usize,
    event_idx: bool,
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
        let event_idx = options.event_idx;
        let mut raw = RawGuest::connect(&Link { options, ..Link::to([socket]) }).unwrap();
        let scratch = raw.scratch();
        for i in 0..raw.rings[0].area().size() {
            let addr = raw.ram.guest(scratch + RX_BUFFERS + usize::from(i) * BUFFER);
            let desc = RawDesc { addr, len: BUFFER as u32, flags: DESC_WRITE, next: 0 };
            raw.rings[0].post(i, &[desc]);
        }
        // An index that the device does not ask for by itself, see `settle`.
        raw.rings[1].words().avail_event.store(NOT_ARMED);
        raw.start(0, 0).unwrap();
        raw.start(1, 0).unwrap();
        let RawGuest { session, ram, rings, .. } = raw;
        let Ok([rx, tx]) = <[RawRing; 2]>::try_from(rings) else { panic!("two rings") };
        let rings = PeerRings { ram, rx, tx, scratch, header, event_idx, sent: 0, received: 0 };
        Peer { session, rings }
    }
}

impl Deref for Peer {
    type Target = PeerRings;

    fn deref(&self) -> &PeerRings {
        &self.rings
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut PeerRings {
        &mut self.rings
    }
}

impl PeerRings {
    /// Wait until an adaptive worker that has nothing else to do sleeps on the new rings. It is
    /// told of them a moment after the frontend has its answer, and until then it drops what
    /// others send there.
    pub fn settle(&self) {
        let words = self.tx.words();
        let armed = || {
            if self.event_idx {
                words.avail_event.load() != NOT_ARMED
            } else {
                words.used_flags.load() == 0
            }
        };
        let asleep = wait_until(LIMIT, armed);
        assert!(asleep, "the worker does not sleep");
    }

    /// The memory.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    fn size(&self) -> u16 {
        self.rx.area().size()
    }

    fn buffer(&self, first: usize, i: u16) -> usize {
        self.scratch + first + usize::from(i) * BUFFER
    }

    /// Make a frame available, without a kick; waits for room.
    pub fn post(&mut self, frame: &[u8]) {
        let (size, sent) = (self.size(), self.sent);
        let ring = &self.tx;
        assert!(wait_until(LIMIT, || sent.wrapping_sub(ring.used_idx()) < size), "ring stuck");
        let i = sent % size;
        let at = self.buffer(0, i);
        self.ram.write(at, &[0; 12][..self.header]);
        self.ram.write(at + self.header, frame);
        let len = (self.header + frame.len()) as u32;
        let desc = RawDesc { addr: self.ram.guest(at), len, flags: 0, next: 0 };
        self.tx.post(i, &[desc]);
        self.sent = sent.wrapping_add(1);
    }

    /// Send a frame.
    pub fn send(&mut self, frame: &[u8]) {
        self.post(frame);
        self.tx.kick();
    }

    /// Has a frame come that was not taken yet?
    pub fn has_frame(&self) -> bool {
        self.rx.used_idx() != self.received
    }

    /// The next frame, which is there, and in one buffer.
    pub fn take(&mut self) -> Vec<u8> {
        assert!(self.has_frame());
        let (id, len) = self.rx.used(self.received);
        let mut bytes = vec![0; len as usize];
        self.ram.read(self.buffer(RX_BUFFERS, id as u16), &mut bytes);
        self.recycle();
        let frame = bytes.split_off(self.header);
        // Nothing is offloaded; the number of buffers is the last field of the longer header.
        assert!(bytes[..10] == [0; 10] && matches!(bytes[10..], [] | [1, 0]), "{bytes:?}");
        frame
    }

    fn recycle(&mut self) {
        self.repost();
        self.rx.kick();
    }

    /// Make the next used buffer available again, whatever is in it, without a kick.
    pub fn repost(&mut self) {
        let (id, _) = self.rx.used(self.received);
        self.received = self.received.wrapping_add(1);
        self.rx.post_head(id as u16);
    }

    /// Wait for the next frame.
    pub fn receive(&mut self) -> Vec<u8> {
        assert!(wait_until(LIMIT, || self.has_frame()), "no frame came");
        self.take()
    }

    /// Throw away what is there now; how many buffers it took.
    pub fn discard(&mut self) -> usize {
        let mut n = 0;
        while self.has_frame() {
            self.recycle();
            n += 1;
        }
        n
    }
}
