//! Ports: what has queues. Opening one yields halves, an [`RxQueue`] and a [`TxQueue`], so a
//! burst may borrow the one while it is sent to the other, of the same port or another.
//!
//! Promises: `receive` fills a burst, `send` takes a list of its packets and counts each one
//! as sent or as lost for a reason. One `match` a burst, nothing per packet. Called by
//! `worker`; `control` brings and takes the rings of vhost ports through it.

pub mod generator;
pub mod nic;
pub mod pcap;
pub mod vhost;

use crate::counters::QueueCounters;
use crate::packet::{BURST, Burst, Packets};
use std::sync::Arc;

/// The receiving half of a port, or of one of its queues.
pub enum RxQueue {
    /// One queue pair of a vhost-user port.
    Vhost(vhost::RxQueue),
    /// The packets of a file, and where they are counted.
    Pcap(pcap::Reader, Arc<QueueCounters>),
    /// Made-up packets.
    Generator(generator::Generator),
    /// One queue of an interface of the host.
    Nic(nic::RxQueue),
}

impl RxQueue {
    /// Receive up to `max` packets into `packets`, which is empty.
    #[inline]
    pub(crate) fn receive<'q>(&'q mut self, packets: &'q mut Packets, max: usize) -> Burst<'q> {
        match self {
            RxQueue::Vhost(queue) => {
                queue.receive(packets, max);
                Burst::new(packets, queue)
            }
            RxQueue::Pcap(reader, counters) => {
                reader.receive(packets, max);
                counters.packets.add(packets.len() as u64);
                counters.bytes.add(packets.bytes() as u64);
                Burst::new(packets, reader)
            }
            RxQueue::Generator(generator) => {
                generator.receive(packets, max);
                Burst::new(packets, generator)
            }
            RxQueue::Nic(queue) => {
                queue.receive(packets, max);
                Burst::new(packets, queue)
            }
        }
    }

    /// The rings behind it: at most one.
    pub fn vhost(&mut self) -> Option<&mut vhost::RxQueue> {
        match self {
            RxQueue::Vhost(queue) => Some(queue),
            RxQueue::Pcap(..) | RxQueue::Generator(_) | RxQueue::Nic(_) => None,
        }
    }

    /// Does it have packets later, without telling when?
    pub fn is_waiting(&self) -> bool {
        matches!(self, RxQueue::Pcap(reader, _) if reader.is_waiting())
    }

    /// The queue of an interface, if it is one.
    pub fn nic(&mut self) -> Option<&mut nic::RxQueue> {
        match self {
            RxQueue::Nic(queue) => Some(queue),
            RxQueue::Vhost(_) | RxQueue::Pcap(..) | RxQueue::Generator(_) => None,
        }
    }
}

/// The sending half of a port, all its queues.
pub enum TxQueue {
    /// All queue pairs of a vhost-user port.
    Vhost(vhost::TxQueue),
    /// To a file, and where that is counted.
    Pcap(pcap::Writer, Arc<QueueCounters>),
    /// Discards, and counts as sent.
    Null(Arc<QueueCounters>),
    /// All queues of an interface of the host.
    Nic(nic::TxQueue),
}

impl TxQueue {
    /// Send the packets that `which` numbers.
    #[inline]
    pub fn send(&mut self, packets: &Packets, which: &[u8]) {
        match self {
            TxQueue::Vhost(queue) => queue.send(packets, which),
            TxQueue::Pcap(writer, counters) => writer.send(packets, which, counters),
            TxQueue::Nic(queue) => queue.send(packets, which),
            TxQueue::Null(counters) => {
                counters.packets.add(which.len() as u64);
                let bytes = which.iter().map(|&i| packets.packet_len(i as usize) as u64).sum();
                counters.bytes.add(bytes);
            }
        }
    }

    /// How many packets there is room for, as far as a burst needs to know.
    #[inline]
    pub fn room(&mut self) -> usize {
        match self {
            TxQueue::Vhost(queue) => queue.room(),
            TxQueue::Pcap(..) | TxQueue::Null(_) | TxQueue::Nic(_) => BURST,
        }
    }

    /// Bring on its way what is still buffered here.
    pub fn flush(&mut self) {
        if let TxQueue::Pcap(writer, _) = self {
            writer.flush();
        }
    }

    /// The rings behind it, if it is a vhost-user port.
    pub fn vhost(&mut self) -> Option<&mut vhost::TxQueue> {
        match self {
            TxQueue::Vhost(queue) => Some(queue),
            TxQueue::Pcap(..) | TxQueue::Null(_) | TxQueue::Nic(_) => None,
        }
    }

    /// The queues of an interface, if it is one.
    pub fn nic(&mut self) -> Option<&mut nic::TxQueue> {
        match self {
            TxQueue::Nic(queue) => Some(queue),
            TxQueue::Vhost(_) | TxQueue::Pcap(..) | TxQueue::Null(_) => None,
        }
    }
}
