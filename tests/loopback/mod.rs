//! A loopback network device made of `vhost-user-backend` and `virtio-queue`: what comes out of
//! a port goes into the other one, or back into the same if it is alone.
//!
//! Promises: delivers everything in order, unless a [`Fault`] is asked for, and counts. It
//! sleeps in epoll until it is kicked, so a driver that forgets a kick comes to a halt.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{
    ShutdownHandle, VhostUserBackendMut, VhostUserDaemon, VringMutex, VringT,
};
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Vring = VringMutex<Memory>;

pub const MRG_RXBUF: u64 = 1 << 15;
pub const MQ: u64 = 1 << 22;
pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
pub const VERSION_1: u64 = 1 << 32;
pub const IN_ORDER: u64 = 1 << 35;
pub const ALL: u64 =
    MRG_RXBUF | MQ | INDIRECT | EVENT_IDX | PROTOCOL_FEATURES | VERSION_1 | IN_ORDER;

/// What to do wrong, with every hundredth packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    Lose,
    Corrupt,
    Truncate,
    Duplicate,
    Swap,
}

pub struct Config {
    pub sockets: Vec<PathBuf>,
    /// Connect to the sockets instead of listening.
    pub client: bool,
    pub features: u64,
    pub queue_pairs: usize,
    pub fault: Fault,
}

impl Config {
    pub fn new(sockets: &[PathBuf]) -> Self {
        let sockets = sockets.to_vec();
        Config { sockets, client: false, features: ALL, queue_pairs: 1, fault: Fault::None }
    }
}

/// A running device; ends when its frontends hang up.
pub struct Loopback {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Loopback {
    pub fn start(config: Config) -> Self {
        let ports = config.sockets.len();
        let shared = Arc::new(Shared {
            ports: Mutex::new((0..ports).map(|_| Port::default()).collect()),
            held: Mutex::new(None),
            connections: Mutex::new(Vec::new()),
            taken: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            features: config.features,
            queue_pairs: config.queue_pairs,
            fault: config.fault,
        });
        let threads = config
            .sockets
            .into_iter()
            .enumerate()
            .map(|(me, socket)| {
                let device = Device { me, out: (me + 1) % ports, shared: Arc::clone(&shared) };
                let client = config.client;
                thread::spawn(move || serve(device, &socket, client))
            })
            .collect();
        Loopback { threads, shared }
    }

    /// Packets taken from the frontends.
    pub fn taken(&self) -> u64 {
        self.shared.taken.load(Relaxed)
    }

    /// Packets that found no buffers.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Relaxed)
    }

    /// Wait until every port's rings were kicked: before that nothing can be delivered to it.
    pub fn wait_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.shared.ports.lock().unwrap().iter().any(|p| p.vrings.is_empty()) {
            assert!(Instant::now() < deadline, "a port was never kicked");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Hang up on the frontends.
    pub fn hang_up(&self) {
        self.shared.connections.lock().unwrap().iter().for_each(ShutdownHandle::shutdown);
    }

    /// Wait for its end: all frontends are gone.
    pub fn join(self) {
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn serve(device: Device, socket: &Path, client: bool) {
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let shared = Arc::clone(&device.shared);
    let device = Arc::new(Mutex::new(device));
    let mut daemon = VhostUserDaemon::new("loopback".to_owned(), device, memory).unwrap();
    if client {
        daemon.start_client(socket.to_str().unwrap()).unwrap();
    } else {
        daemon.start(&mut Listener::new(socket, true).unwrap()).unwrap();
    }
    shared.connections.lock().unwrap().extend(daemon.shutdown_handle());
    let _ = daemon.wait();
}

#[derive(Default)]
struct Port {
    vrings: Vec<Vring>,
    memory: Option<Memory>,
    features: u64,
}

struct Shared {
    ports: Mutex<Vec<Port>>,
    /// A packet kept back to be overtaken.
    held: Mutex<Option<Vec<u8>>>,
    connections: Mutex<Vec<ShutdownHandle>>,
    taken: AtomicU64,
    dropped: AtomicU64,
    features: u64,
    queue_pairs: usize,
    fault: Fault,
}

struct Device {
    me: usize,
    out: usize,
    shared: Arc<Shared>,
}

impl VhostUserBackendMut for Device {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        2 * self.shared.queue_pairs
    }

    fn max_queue_size(&self) -> usize {
        32768
    }

    fn features(&self) -> u64 {
        self.shared.features
    }

    fn acked_features(&mut self, features: u64) {
        self.shared.ports.lock().unwrap()[self.me].features = features;
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    fn update_memory(&mut self, memory: Memory) -> io::Result<()> {
        self.shared.ports.lock().unwrap()[self.me].memory = Some(memory);
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK).ok()
    }

    fn handle_event(
        &mut self,
        _event: u16,
        _set: EventSet,
        vrings: &[Vring],
        _thread: usize,
    ) -> io::Result<()> {
        let mut ports = self.shared.ports.lock().unwrap();
        if ports[self.me].vrings.is_empty() {
            ports[self.me].vrings = vrings.to_vec();
        }
        for tx in vrings.iter().skip(1).step_by(2) {
            loop {
                let _ = tx.disable_notification();
                while let Some(packet) = self.take(&ports[self.me], tx) {
                    self.pass(&ports[self.out], packet);
                }
                if !tx.enable_notification().unwrap_or(false) {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Device {
    /// The next packet of a tx queue, header included.
    fn take(&self, port: &Port, tx: &Vring) -> Option<Vec<u8>> {
        let memory = port.memory.as_ref()?.memory();
        let mut state = tx.get_mut();
        if !state.get_queue().ready() {
            return None;
        }
        let chain = state.get_queue_mut().pop_descriptor_chain(memory.clone())?;
        let head = chain.head_index();
        let mut packet = Vec::new();
        for desc in chain {
            assert!(!desc.is_write_only());
            let start = packet.len();
            packet.resize(start + desc.len() as usize, 0);
            memory.read_slice(&mut packet[start..], desc.addr()).unwrap();
        }
        state.add_used(head, 0).unwrap();
        if state.needs_notification().unwrap() {
            let _ = state.signal_used_queue();
        }
        self.shared.taken.fetch_add(1, Relaxed);
        assert!(packet[..header_len(port.features)].iter().all(|&b| b == 0), "header not zero");
        Some(packet.split_off(header_len(port.features)))
    }

    /// Deliver, or do what the fault says.
    fn pass(&self, port: &Port, mut packet: Vec<u8>) {
        let hundredth = self.shared.taken.load(Relaxed).is_multiple_of(100);
        let held = self.shared.held.lock().unwrap().take();
        if hundredth {
            match self.shared.fault {
                Fault::None => {}
                Fault::Lose => return,
                Fault::Corrupt => *packet.last_mut().unwrap() ^= 1,
                Fault::Truncate => drop(packet.pop()),
                Fault::Duplicate => self.deliver(port, &packet),
                Fault::Swap => {
                    *self.shared.held.lock().unwrap() = Some(packet);
                    return;
                }
            }
        }
        self.deliver(port, &packet);
        if let Some(held) = held {
            self.deliver(port, &held);
        }
    }

    fn deliver(&self, port: &Port, packet: &[u8]) {
        // Flows are told apart by the UDP source port.
        let flow = packet.get(35).copied().unwrap_or(0);
        let rx = port.vrings.get(2 * (usize::from(flow) % self.shared.queue_pairs));
        if !rx.is_some_and(|rx| put(port, rx, packet).unwrap()) {
            self.shared.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// Put a packet into as many buffers as it needs. False if there are not enough.
fn put(port: &Port, rx: &Vring, packet: &[u8]) -> Option<bool> {
    let memory = port.memory.as_ref()?.memory();
    let header_len = header_len(port.features);
    let mergeable = port.features & MRG_RXBUF != 0;
    let mut bytes = vec![0; header_len];
    bytes.extend(packet);
    let mut state = rx.get_mut();
    let mut chains = Vec::new();
    let mut room = 0;
    while room < bytes.len() && (mergeable || chains.is_empty()) {
        let Some(chain) = state.get_queue_mut().pop_descriptor_chain(memory.clone()) else { break };
        let head = chain.head_index();
        let pieces: Vec<_> = chain.map(|d| (d.addr(), d.len(), d.is_write_only())).collect();
        assert!(pieces.iter().all(|p| p.2));
        room += pieces.iter().map(|p| p.1 as usize).sum::<usize>();
        chains.push((head, pieces));
    }
    if room < bytes.len() {
        // As if they had not been taken.
        let next = state.get_queue().next_avail().wrapping_sub(chains.len() as u16);
        state.get_queue_mut().set_next_avail(next);
        return Some(false);
    }
    if header_len == 12 {
        bytes[10..12].copy_from_slice(&(chains.len() as u16).to_le_bytes());
    }
    let mut rest = &bytes[..];
    for (head, pieces) in chains {
        let before = rest.len();
        for (addr, len, _) in pieces {
            let now = rest.split_off(..rest.len().min(len as usize)).unwrap();
            memory.write_slice(now, addr).unwrap();
        }
        state.add_used(head, (before - rest.len()) as u32).unwrap();
    }
    if state.needs_notification().unwrap() {
        let _ = state.signal_used_queue();
    }
    Some(true)
}

fn header_len(features: u64) -> usize {
    if features & (VERSION_1 | MRG_RXBUF) == 0 { 10 } else { 12 }
}
