//! A frontend in the test process, and a worker that holds rings without running them.

use ringbridge::config::{Offer, VhostSpec};
use ringbridge::journal::Journal;
use ringbridge::sys;
use ringbridge::vhost_user::{RingLost, Rings};
use ringbridge::virtio::SplitRing;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Longest wait of any kind.
pub const LIMIT: Duration = Duration::from_secs(20);
const USER: u64 = 0x7f00_0000_0000;
const SIZE: u64 = 1 << 20;

/// Holds the rings it is given.
#[derive(Clone, Default)]
pub struct Held(Arc<Mutex<BTreeMap<u16, Box<SplitRing>>>>);

/// As [`Held`], and looks what the frontend, which does not wait, reads when rings are taken back.
#[derive(Clone, Default)]
pub struct Watched {
    held: Held,
    pub frontend: Arc<OnceLock<UnixStream>>,
    pub read: Arc<Mutex<Vec<Result<usize, ErrorKind>>>>,
}

impl Rings for Watched {
    fn start(&self, index: u16, ring: Box<SplitRing>) {
        self.held.start(index, ring);
    }

    fn stop(&self, index: u16) -> Result<Box<SplitRing>, RingLost> {
        if let Some(mut frontend) = self.frontend.get() {
            let read = frontend.read(&mut [0]).map_err(|error| error.kind());
            self.read.lock().unwrap().push(read);
        }
        self.held.stop(index)
    }

    fn inject(&self, frame: Arc<[u8]>) -> Result<(), RingLost> {
        self.held.inject(frame)
    }
}

impl Held {
    /// Which rings are here, and enabled or not.
    pub fn rings(&self) -> Vec<(u16, bool)> {
        self.0.lock().unwrap().iter().map(|(&index, ring)| (index, ring.enabled())).collect()
    }

    pub fn size(&self, index: u16) -> u16 {
        self.0.lock().unwrap()[&index].size()
    }
}

impl Rings for Held {
    fn start(&self, index: u16, ring: Box<SplitRing>) {
        assert!(self.0.lock().unwrap().insert(index, ring).is_none());
    }

    fn stop(&self, index: u16) -> Result<Box<SplitRing>, RingLost> {
        self.0.lock().unwrap().remove(&index).ok_or(RingLost(index))
    }

    fn inject(&self, _: Arc<[u8]>) -> Result<(), RingLost> {
        Err(RingLost(1))
    }
}

/// The journal of a port that nobody asks about.
pub fn journal() -> Arc<Journal> {
    Arc::default()
}

/// Wait until `done`, or fail.
pub fn wait(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn spec(path: &Path) -> VhostSpec {
    VhostSpec {
        path: path.into(),
        client: false,
        queues: 1,
        offer: Offer::ALL,
        mode: None,
        owner: None,
    }
}

/// Connect and negotiate; every message is answered from then on.
pub fn negotiate(stream: UnixStream) -> Frontend {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut frontend = Frontend::from_stream(stream, 256);
    frontend.set_owner().unwrap();
    let offered = frontend.get_features().unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    frontend.set_protocol_features(protocol).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    frontend.set_features(offered).unwrap();
    frontend
}

/// Share memory and start one queue pair in it.
pub fn start_rings(frontend: &mut Frontend) {
    share_memory(frontend);
    for index in 0..2u16 {
        let queue = usize::from(index);
        let base = USER + u64::from(index) * 0x8000;
        let at = VringConfigData {
            queue_max_size: 256,
            queue_size: 256,
            flags: 0,
            desc_table_addr: base,
            used_ring_addr: base + 0x2000,
            avail_ring_addr: base + 0x4000,
            log_addr: None,
        };
        frontend.set_vring_num(queue, 256).unwrap();
        frontend.set_vring_addr(queue, &at).unwrap();
        frontend.set_vring_call(queue, &EventFd::new(EFD_NONBLOCK).unwrap()).unwrap();
        frontend.set_vring_kick(queue, &EventFd::new(EFD_NONBLOCK).unwrap()).unwrap();
        frontend.set_vring_enable(queue, true).unwrap();
    }
}

/// A new memory table.
pub fn share_memory(frontend: &Frontend) {
    let memory = sys::memfd(c"guest", SIZE).unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: SIZE,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: memory.as_raw_fd(),
    };
    frontend.set_mem_table(&[region]).unwrap();
}
