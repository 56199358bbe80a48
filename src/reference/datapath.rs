//! The polling thread of the reference backend: packets in and out of rings with the
//! `virtio-queue` API and nothing else.
//!
//! Promises: every packet is read from or written to guest memory as a whole, through one
//! private buffer; each used element is published when its packet is done; the notification
//! rule is looked at once a burst. Never sleeps.

use super::{ReferenceMode, Shared};
use crate::arch;
use crate::counters::{QueueCounters, Reason};
use crate::packet::{BURST, MAX_PACKET, MIN_PACKET};
use crate::virtio::net;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, MutexGuard};
use vhost_user_backend::{VringMutex, VringState, VringT};
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
use virtio_queue::{Queue, QueueOwnedT, QueueT, Writer};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

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
    mergeable: bool,
    header_len: usize,
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
            mergeable: features & (1 << VIRTIO_NET_F_MRG_RXBUF) != 0,
            header_len: net::header_len(features),
            packets: 0,
            bytes: 0,
            used: 0,
            signal: false,
        })
    }

    /// Read the next packet into `buffer`. `None` if there is none; 0 if it was none.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let memory = &*self.memory;
        let queue = self.state.get_queue_mut();
        let chain = queue.pop_descriptor_chain(memory)?;
        let head = chain.head_index();
        let len = chain.reader(memory).ok().and_then(|mut reader| {
            reader.read_exact(&mut [0; net::HEADER][..self.header_len]).ok()?;
            let len = reader.available_bytes();
            reader.read_exact(buffer.get_mut(..len)?).ok()?;
            Some(len)
        });
        let _ = queue.add_used(memory, head, 0);
        self.used += 1;
        match len {
            Some(len) if len >= MIN_PACKET => {
                self.packets += 1;
                self.bytes += len as u64;
                Some(len)
            }
            refused => {
                let reason = refused.map_or(Reason::NoHeader, |_| Reason::Runt);
                self.counters.lost(reason, 1);
                Some(0)
            }
        }
    }

    /// Write `packet` into the next chain, or the next chains if they are mergeable. False if
    /// there are not enough of them.
    fn send(&mut self, packet: &[u8]) -> bool {
        let memory = &*self.memory;
        let queue = self.state.get_queue_mut();
        let need = self.header_len + packet.len();
        let Some(chain) = queue.pop_descriptor_chain(memory) else { return false };
        let head = chain.head_index();
        let Ok(mut writer) = chain.writer(memory) else { return self.give_back(&[head]) };
        let room = writer.available_bytes();
        if room < need {
            return if self.mergeable {
                queue.go_to_previous_position();
                self.send_merged(packet, need)
            } else {
                self.give_back(&[head])
            };
        }
        let header = header(1);
        let written = fill(&mut writer, &mut [&header[..self.header_len], packet]);
        let _ = queue.add_used(memory, head, written as u32);
        self.count_sent(packet, 1)
    }

    /// [`Ring::send`] into as many chains as it takes.
    fn send_merged(&mut self, packet: &[u8], need: usize) -> bool {
        let memory = &*self.memory;
        let queue = self.state.get_queue_mut();
        let first = queue.next_avail();
        let (mut heads, mut writers, mut room) = (Vec::new(), Vec::new(), 0);
        while room < need {
            let Some(chain) = queue.pop_descriptor_chain(memory) else {
                queue.set_next_avail(first);
                return false;
            };
            heads.push(chain.head_index());
            let Ok(writer) = chain.writer(memory) else { return self.give_back(&heads) };
            room += writer.available_bytes();
            writers.push(writer);
        }
        let header = header(heads.len());
        let mut bytes = [&header[..self.header_len], packet];
        let used: Vec<_> = heads
            .iter()
            .zip(&mut writers)
            .map(|(head, writer)| (*head, fill(writer, &mut bytes) as u32))
            .collect();
        add_used_at_once(queue, memory, &used);
        // `virtio-queue` knows of one used element only, and would answer for that one.
        self.signal = true;
        self.count_sent(packet, used.len())
    }

    fn count_sent(&mut self, packet: &[u8], chains: usize) -> bool {
        self.used += chains;
        self.packets += 1;
        self.bytes += packet.len() as u64;
        true
    }

    /// Chains that cannot hold the packet go back empty; the packet is dropped.
    fn give_back(&mut self, heads: &[u16]) -> bool {
        for &head in heads {
            let _ = self.state.get_queue_mut().add_used(&*self.memory, head, 0);
        }
        self.used += heads.len();
        self.counters.lost(Reason::TooLong, 1);
        true
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

/// Publish the used elements of one packet together: a driver that saw a part of them would
/// take the rest for lost. `add_used` publishes each, so all but the last are written past it.
fn add_used_at_once(queue: &mut Queue, memory: &GuestMemoryMmap, used: &[(u16, u32)]) {
    let Some((&(last, last_len), others)) = used.split_last() else { return };
    for &(head, len) in others {
        let slot = u64::from(queue.next_used() % queue.size());
        let element = (u64::from(len) << 32 | u64::from(head)).to_le();
        let _ = memory.write_obj(element, GuestAddress(queue.used_ring() + 4 + 8 * slot));
        queue.set_next_used(queue.next_used().wrapping_add(1));
    }
    let _ = queue.add_used(memory, last, last_len);
}

/// A virtio-net header without offloads for a packet over `chains` chains.
fn header(chains: usize) -> [u8; net::HEADER] {
    let mut header = [0; net::HEADER];
    header[10..].copy_from_slice(&(chains as u16).to_le_bytes());
    header
}

/// Write as much of `bytes` as fits, and leave the rest in it.
fn fill(writer: &mut Writer, bytes: &mut [&[u8]; 2]) -> usize {
    for part in bytes {
        let len = part.len().min(writer.available_bytes());
        let (now, later) = part.split_at(len);
        if writer.write_all(now).is_err() {
            break;
        }
        *part = later;
    }
    writer.bytes_written()
}

/// An Ethernet, IPv4 and UDP header with a payload of counting bytes, cut to `size`.
fn make_template(buffer: &mut [u8], size: usize) {
    const HEADERS: [u8; 42] = [
        0x02, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 1, 0x08, 0, // Ethernet
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, // IPv4
        0, 9, 0, 9, 0, 0, 0, 0, // UDP
    ];
    let size = size.clamp(MIN_PACKET, buffer.len());
    for (i, byte) in buffer[..size].iter_mut().enumerate() {
        *byte = HEADERS.get(i).copied().unwrap_or(i as u8);
    }
    if size < HEADERS.len() {
        return;
    }
    let mut put = |at: usize, value: usize| {
        buffer[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
    };
    put(16, size - 14);
    put(38, size - 34);
    let sum: u32 =
        buffer[14..34].chunks(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    buffer[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
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
