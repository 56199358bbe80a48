//! The queues of ports that are interfaces of the host: TAP and packet sockets.
//!
//! Promises: an interface comes and goes by `put` between bursts; without one nothing is
//! received and what is sent is counted `not_connected`. No call waits: what an interface has no
//! room for is counted `no_buffers`, what it refuses `output_error`. Owned by one worker; opened
//! and watched by `control`.

pub mod af_packet;
mod gather;
pub mod tap;

use crate::counters::{QueueCounters, Reason};
use crate::packet::{Packets, Source};
use std::os::fd::RawFd;
use std::sync::Arc;

/// What a queue receives from.
#[derive(Debug)]
pub enum Receiver {
    /// A queue of a TAP.
    Tap(tap::Receiver),
    /// A ring of a packet socket.
    AfPacket(af_packet::Receiver),
}

/// What a port sends to.
#[derive(Debug)]
pub enum Sender {
    /// All queues of a TAP.
    Tap(tap::Sender),
    /// A packet socket.
    AfPacket(af_packet::Sender),
}

/// One receive queue.
#[derive(Debug)]
pub struct RxQueue {
    receiver: Option<Box<Receiver>>,
    counters: Arc<QueueCounters>,
}

impl RxQueue {
    /// A queue without an interface.
    pub fn new(counters: Arc<QueueCounters>) -> Self {
        RxQueue { receiver: None, counters }
    }

    /// From now on this is received from; what was before is given back.
    pub fn put(&mut self, receiver: Option<Box<Receiver>>) -> Option<Box<Receiver>> {
        std::mem::replace(&mut self.receiver, receiver)
    }

    /// Becomes readable when there are packets.
    pub fn fd(&self) -> Option<RawFd> {
        match self.receiver.as_deref()? {
            Receiver::Tap(tap) => tap.fd(),
            Receiver::AfPacket(socket) => Some(socket.fd()),
        }
    }

    /// The fd has an error, such as that the interface is gone. True if it can be waited for
    /// further.
    pub fn take_error(&mut self) -> bool {
        match self.receiver.as_deref_mut() {
            Some(Receiver::AfPacket(socket)) => {
                socket.take_error();
                true
            }
            Some(Receiver::Tap(_)) | None => false,
        }
    }

    /// Take up to `max` packets into `packets`, which is empty. For [`super::RxQueue`], whose
    /// `Burst` borrows this queue until the packets are forgotten.
    pub(super) fn receive(&mut self, packets: &mut Packets, max: usize) {
        let counters = &self.counters;
        match self.receiver.as_deref_mut() {
            // SAFETY: a `Burst` borrows this queue, and so keeps the interface here, until the
            // packets are cleared.
            Some(Receiver::Tap(tap)) => unsafe { tap.receive(packets, max, counters) },
            // SAFETY: as above.
            Some(Receiver::AfPacket(socket)) => unsafe { socket.receive(packets, max, counters) },
            None => {}
        }
        if !packets.is_empty() {
            counters.packets.add(packets.len() as u64);
            counters.bytes.add(packets.bytes() as u64);
        }
    }
}

impl Source for RxQueue {
    fn complete(&mut self) {
        if let Some(Receiver::AfPacket(socket)) = self.receiver.as_deref_mut() {
            socket.complete();
        }
    }
}

/// All transmit queues of a port.
#[derive(Debug)]
pub struct TxQueue {
    sender: Option<Box<Sender>>,
    counters: Arc<QueueCounters>,
}

impl TxQueue {
    /// Queues without an interface.
    pub fn new(counters: Arc<QueueCounters>) -> Self {
        TxQueue { sender: None, counters }
    }

    /// From now on packets are sent to this; what was before is given back.
    pub fn put(&mut self, sender: Option<Box<Sender>>) -> Option<Box<Sender>> {
        std::mem::replace(&mut self.sender, sender)
    }

    /// Send the packets that `which` numbers.
    pub fn send(&mut self, packets: &Packets, which: &[u8]) {
        match self.sender.as_deref_mut() {
            Some(Sender::Tap(tap)) => tap.send(packets, which, &self.counters),
            Some(Sender::AfPacket(socket)) => socket.send(packets, which, &self.counters),
            None => self.counters.lost(Reason::NotConnected, which.len() as u64),
        }
    }
}
