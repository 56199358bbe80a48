//! The polling thread of the reference backend.
//!
//! Promises: every packet goes through one private buffer; the notification rule is looked at
//! once a burst and ring. Never sleeps.

use super::queue::{self, Format, Sent};
use super::{ReferenceMode, Shared};
use crate::arch;
use crate::counters::{QueueCounters, Reason};
use crate::packet::{BURST, MAX_PACKET, MIN_PACKET};
use crate::wire::{self, ETHERNET, IPV4};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, MutexGuard};
use vhost_user_backend::{VringMutex, VringState, VringT};
use virtio_queue::QueueT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

/// A guest's memory table, as `vhost-user-backend` keeps it.
pub(super) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// A device's rings and the memory they lie in.
pub(super) struct Rings {
    pub(super) rings: Vec<VringMutex>,
    pub(super) memory: Memory,
}

/// A port got its rings, or lost them.
pub(super) struct PortEvent {
    pub(super) port: usize,
    pub(super) rings: Option<Rings>,
}

/// Virtqueue numbers of a network device (virtio 1.2, 5.1.2).
const TO_GUEST: usize = 0;
const FROM_GUEST: usize = 1;
/// So many turns go by between two looks at the stop flag and the inbox.
const TURNS: usize = 256;

struct Port {
    shared: Arc<Shared>,
    rings: Option<Rings>,
}

/// What the polling thread owns.
pub(super) struct Datapath {
    mode: ReferenceMode,
    ports: Vec<Port>,
    size: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    /// The private copy of one packet.
    buffer: Vec<u8>,
    /// Number of the next packet made.
    sequence: u32,
}

impl Datapath {
    pub(super) fn new(
        mode: ReferenceMode,
        ports: Vec<Arc<Shared>>,
        size: Arc<AtomicUsize>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let ports = ports.into_iter().map(|shared| Port { shared, rings: None }).collect();
        Datapath { mode, ports, size, stop, buffer: vec![0; MAX_PACKET], sequence: 0 }
    }

    pub(super) fn run(mut self, inbox: &Receiver<PortEvent>) {
        while !self.stop.load(Ordering::Relaxed) {
            while let Ok(event) = inbox.try_recv() {
                self.ports[event.port].rings = event.rings;
            }
            if self.mode == ReferenceMode::TxOnly {
                make_template(&mut self.buffer, self.size.load(Ordering::Relaxed));
            }
            for _ in 0..TURNS {
                if self.turn() == 0 {
                    arch::relax();
                }
            }
        }
    }

    /// A burst for each port. Returns how many packets moved.
    fn turn(&mut self) -> usize {
        let mut moved = 0;
        for from in 0..self.ports.len() {
            moved += match self.mode {
                ReferenceMode::TxOnly => self.generate(from),
                ReferenceMode::RxOnly => self.receive(from),
                ReferenceMode::Io => {
                    let pair = if (from ^ 1) < self.ports.len() { from ^ 1 } else { from };
                    self.forward(from, pair)
                }
            };
        }
        moved
    }

    fn generate(&mut self, to: usize) -> usize {
        let Some(mut output) = Ring::open(&self.ports[to], TO_GUEST) else { return 0 };
        let size = self.size.load(Ordering::Relaxed).clamp(MIN_PACKET, MAX_PACKET);
        for _ in 0..BURST {
            number_packet(&mut self.buffer[..size], self.sequence);
            if !output.send(&self.buffer[..size]) {
                break;
            }
            self.sequence = self.sequence.wrapping_add(1);
        }
        output.finish()
    }

    fn receive(&mut self, from: usize) -> usize {
        let Some(mut input) = Ring::open(&self.ports[from], FROM_GUEST) else { return 0 };
        for _ in 0..BURST {
            if input.receive(&mut self.buffer).is_none() {
                break;
            }
        }
        input.finish()
    }

    fn forward(&mut self, from: usize, to: usize) -> usize {
        let Some(mut input) = Ring::open(&self.ports[from], FROM_GUEST) else { return 0 };
        let mut output = Ring::open(&self.ports[to], TO_GUEST);
        for _ in 0..BURST {
            let Some(len) = input.receive(&mut self.buffer) else { break };
            if len < MIN_PACKET {
                continue;
            }
            let sent = output.as_mut().is_some_and(|o| o.send(&self.buffer[..len]));
            if !sent {
                let reason =
                    if output.is_some() { Reason::NoBuffers } else { Reason::NotConnected };
                self.ports[to].shared.counters.tx.lost(reason, 1);
            }
        }
        if let Some(output) = output {
            output.finish();
        }
        input.finish()
    }
}

/// One ring of a port, locked for one burst.
struct Ring<'p> {
    state: MutexGuard<'p, VringState>,
    memory: <Memory as GuestAddressSpace>::T,
    counters: &'p QueueCounters,
    format: Format,
    packets: u64,
    bytes: u64,
    /// Chains given back, with or without a packet in them.
    used: usize,
    /// Signal whatever the notification rule says.
    signal: bool,
}

impl<'p> Ring<'p> {
    /// `None` unless the ring is there, started and enabled.
    fn open(port: &'p Port, index: usize) -> Option<Self> {
        let rings = port.rings.as_ref()?;
        let state = rings.rings[index].get_mut();
        if !state.is_enabled() || !state.get_queue().ready() {
            return None;
        }
        let features = port.shared.features.load(Ordering::Relaxed);
        let counters = &port.shared.counters;
        Some(Ring {
            state,
            memory: rings.memory.memory(),
            counters: if index == TO_GUEST { &counters.tx } else { &counters.rx },
            format: Format::of(features),
            packets: 0,
            bytes: 0,
            used: 0,
            signal: false,
        })
    }

    /// Read the next packet into `buffer`. `None` if there is none; 0 if it was none.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let queue = self.state.get_queue_mut();
        let received = queue::receive(queue, &self.memory, self.format, buffer)?;
        self.used += 1;
        match received {
            Ok(len) => {
                self.packets += 1;
                self.bytes += len as u64;
                Some(len)
            }
            Err(reason) => {
                self.counters.lost(reason, 1);
                Some(0)
            }
        }
    }

    /// Write `packet` to the guest, if it has the buffers for it.
    fn send(&mut self, packet: &[u8]) -> bool {
        match queue::send(self.state.get_queue_mut(), &self.memory, self.format, packet) {
            Sent::Into(chains) => {
                self.used += chains;
                self.packets += 1;
                self.bytes += packet.len() as u64;
                // `virtio-queue` knows of the last of them only, and would answer for that one.
                self.signal |= chains > 1;
                true
            }
            Sent::Refused(chains) => {
                self.used += chains;
                self.counters.lost(Reason::TooLong, 1);
                true
            }
            Sent::NoBuffers => false,
        }
    }

    /// Signal the guest if the rule says so, count. Returns how many chains were used.
    fn finish(mut self) -> usize {
        let asked = self.used > 0 && self.state.needs_notification().unwrap_or(true);
        if asked || self.signal {
            let _ = self.state.signal_used_queue();
        }
        self.counters.packets.add(self.packets);
        self.counters.bytes.add(self.bytes);
        self.used
    }
}

/// An Ethernet, IPv4 and UDP header with a payload of counting bytes, cut to `size`.
fn make_template(buffer: &mut [u8], size: usize) {
    let size = size.clamp(MIN_PACKET, buffer.len());
    let ip_len = (size - ETHERNET) as u16;
    let mut headers = [0x02, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 1, 0x08, 0].to_vec();
    let mut ip = [0; IPV4];
    wire::put_ipv4(&mut ip, ip_len, wire::UDP_PROTOCOL, [198, 18, 0, 1], [198, 18, 0, 2]);
    headers.extend(ip);
    let udp_len = ip_len.saturating_sub(IPV4 as u16);
    headers.extend([9, 9, udp_len, 0].map(u16::to_be_bytes).as_flattened());
    for (i, byte) in buffer[..size].iter_mut().enumerate() {
        *byte = headers.get(i).copied().unwrap_or(i as u8);
    }
}

/// Make the packet differ from the one before: source port and payload.
fn number_packet(packet: &mut [u8], sequence: u32) {
    if let Some(port) = packet.get_mut(34..36) {
        port.copy_from_slice(&(sequence as u16).to_be_bytes());
    }
    if let Some(payload) = packet.get_mut(42..46) {
        payload.copy_from_slice(&sequence.to_be_bytes());
    }
}
