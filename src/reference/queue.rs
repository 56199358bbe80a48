//! Packets in and out of a ring with the `virtio-queue` API and nothing else.
//!
//! Promises: a packet is read from or written to guest memory as a whole, and its used elements
//! are published when it is done. Used by the reference backend's polling thread and by
//! `benches/ring`.

use crate::counters::Reason;
use crate::packet::MIN_PACKET;
use crate::virtio::net;
use std::io::{Read, Write};
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
use virtio_queue::{Queue, QueueOwnedT, QueueT, Writer};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// How packets lie in buffers under the negotiated features.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    header_len: usize,
    mergeable: bool,
}

impl Format {
    /// Under the feature bits `features`.
    pub fn of(features: u64) -> Self {
        Format {
            header_len: net::header_len(features),
            mergeable: features & (1 << VIRTIO_NET_F_MRG_RXBUF) != 0,
        }
    }
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Written to this many chains.
    Into(usize),
    /// These chains could not hold it, and went back empty.
    Refused(usize),
    /// There are not enough chains; none was taken.
    NoBuffers,
}

/// Read the next packet into `buffer` and give its chain back. `None` if there is none, an
/// error if the chain holds no packet or one that is longer than the buffer.
pub fn receive(
    queue: &mut Queue,
    memory: &GuestMemoryMmap,
    format: Format,
    buffer: &mut [u8],
) -> Option<Result<usize, Reason>> {
    let chain = queue.pop_descriptor_chain(memory)?;
    let head = chain.head_index();
    let read = || {
        let mut reader = chain.reader(memory).map_err(|_| Reason::BadAddress)?;
        let header = &mut [0; net::HEADER][..format.header_len];
        reader.read_exact(header).map_err(|_| Reason::NoHeader)?;
        let len = reader.available_bytes();
        let packet = buffer.get_mut(..len).ok_or(Reason::TooLong)?;
        reader.read_exact(packet).map_err(|_| Reason::BadAddress)?;
        if len < MIN_PACKET { Err(Reason::Runt) } else { Ok(len) }
    };
    let result = read();
    // It fails only where the driver moved the ring out of its memory: there is nobody to tell.
    let _ = queue.add_used(memory, head, 0);
    Some(result)
}

/// Write `packet` into the next chain, or the next chains if they are mergeable.
pub fn send(queue: &mut Queue, memory: &GuestMemoryMmap, format: Format, packet: &[u8]) -> Sent {
    let need = format.header_len + packet.len();
    let Some(chain) = queue.pop_descriptor_chain(memory) else { return Sent::NoBuffers };
    let head = chain.head_index();
    let Ok(mut writer) = chain.writer(memory) else { return refuse(queue, memory, &[head]) };
    if writer.available_bytes() < need {
        if format.mergeable {
            queue.go_to_previous_position();
            return send_merged(queue, memory, format, packet);
        }
        return refuse(queue, memory, &[head]);
    }
    let header = header(1);
    let written = fill(&mut writer, &mut [&header[..format.header_len], packet]);
    let _ = queue.add_used(memory, head, written);
    Sent::Into(1)
}

/// [`send`] into as many chains as it takes.
fn send_merged(queue: &mut Queue, memory: &GuestMemoryMmap, format: Format, packet: &[u8]) -> Sent {
    let need = format.header_len + packet.len();
    let first = queue.next_avail();
    let (mut heads, mut writers, mut room) = (Vec::new(), Vec::new(), 0);
    while room < need {
        let Some(chain) = queue.pop_descriptor_chain(memory) else {
            queue.set_next_avail(first);
            return Sent::NoBuffers;
        };
        heads.push(chain.head_index());
        let Ok(writer) = chain.writer(memory) else { return refuse(queue, memory, &heads) };
        room += writer.available_bytes();
        writers.push(writer);
    }
    let header = header(heads.len());
    let mut bytes = [&header[..format.header_len], packet];
    let lengths = writers.iter_mut().map(|writer| fill(writer, &mut bytes));
    let used: Vec<_> = heads.iter().copied().zip(lengths).collect();
    add_used_at_once(queue, memory, &used);
    Sent::Into(used.len())
}

fn refuse(queue: &mut Queue, memory: &GuestMemoryMmap, heads: &[u16]) -> Sent {
    for &head in heads {
        let _ = queue.add_used(memory, head, 0);
    }
    Sent::Refused(heads.len())
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

/// Write as much of `bytes` as fits, and leave the rest in it. Returns how much.
fn fill(writer: &mut Writer, bytes: &mut [&[u8]; 2]) -> u32 {
    for part in bytes {
        let len = part.len().min(writer.available_bytes());
        let (now, later) = part.split_at(len);
        if writer.write_all(now).is_err() {
            break;
        }
        *part = later;
    }
    writer.bytes_written() as u32
}
