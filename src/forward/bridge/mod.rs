//! `bridge`: to where the destination was seen last, else to everybody (IEEE 802.1Q, as far as a
//! bridge without a spanning tree goes).
//!
//! Promises: a frame never leaves by the port that it came from; who an address belongs to is
//! known from the last frame that it sent, so that a guest that has moved is found at its new
//! port with its first announcement. Frames of one flow stay in order. Heads are not edited: what
//! a VLAN does to a tag is said with the output. Looks at no clock but the cycle counter.

#![forbid(unsafe_code)]

mod ports;
mod table;

pub use ports::{Ports, TagEdit};
pub use table::{Learned, Table};

use super::{Forwarder, Lists, MAX_PORTS, Output, Outputs, PortId};
use crate::arch;
use crate::config::BridgeKeys;
use crate::counters::Reason;
use crate::packet::{MIN_PACKET, Packets};
use crate::wire::{self, Mac};
use ports::Tagging;
use std::sync::Arc;
use std::time::Instant;
use table::{Key, NotLearned};

/// 01:80:C2:00:00:00 to 0F: for the next bridge, and for nobody behind it.
const RESERVED: [u8; 5] = [0x01, 0x80, 0xC2, 0x00, 0x00];

/// The seconds of a bridge, without a system call a packet.
#[derive(Debug, Clone)]
struct Clock {
    start: Instant,
    now: u32,
    /// When to look at the time again, in cycles.
    next: u64,
    /// Cycles between two looks: about a tenth of a second.
    pause: u64,
}

impl Clock {
    fn new(start: Instant) -> Self {
        let pause = (crate::sys::cycles_per_second() / 10.0) as u64;
        Clock { start, now: 0, next: 0, pause }
    }

    #[inline]
    fn now(&mut self) -> u32 {
        let cycles = arch::cycles();
        if cycles >= self.next {
            self.next = cycles + self.pause;
            self.now = self.start.elapsed().as_secs() as u32;
        }
        self.now
    }
}

/// What the workers of a bridge and its control plane share.
#[derive(Debug)]
pub struct Shared {
    /// The addresses.
    pub table: Table,
    start: Instant,
}

impl Shared {
    /// With addresses that are forgotten after `age` seconds.
    pub fn new(age: u32) -> Self {
        Shared { table: Table::new(age), start: Instant::now() }
    }

    /// All addresses known now, and for how many seconds each was not seen.
    pub fn list(&self) -> Vec<(Learned, u32)> {
        let now = self.start.elapsed().as_secs() as u32;
        let learned = self.table.list(now).into_iter();
        learned.map(|known| (known.clone(), now.saturating_sub(known.known.seen))).collect()
    }

    /// Write down the addresses of a port that has come.
    pub fn add(&self, port: PortId, keys: &BridgeKeys) {
        let vid = keys.vlan.access().unwrap_or(0);
        for mac in &keys.macs {
            // Hardly possible: eight others with the same keyed hash are written down.
            if self.table.fix(Key::new(*mac, vid), port).is_err() {
                tracing::warn!("no room to write down an address of port {port}");
            }
        }
    }
}

/// The forwarder.
pub struct Bridge {
    shared: Arc<Shared>,
    ports: Arc<Ports>,
    lists: Lists,
    clock: Clock,
}

impl Bridge {
    /// Without ports yet.
    pub fn new(shared: &Arc<Shared>) -> Self {
        Bridge {
            shared: Arc::clone(shared),
            ports: Arc::default(),
            lists: Lists::new(),
            clock: Clock::new(shared.start),
        }
    }

    /// Packet `i` goes nowhere.
    fn lose(&mut self, reason: Reason) -> Option<usize> {
        self.lists.lose(reason);
        None
    }

    /// Where packet `i` goes, which port `from` has received; the list, if it is for one.
    #[inline]
    fn decide(
        &mut self,
        (number, from): (PortId, &BridgeKeys),
        i: u8,
        head: &[u8],
        now: u32,
    ) -> Option<usize> {
        let Some([d0, d1, d2, d3, d4, d5, source @ .., e0, e1]) = head.first_chunk::<MIN_PACKET>()
        else {
            return self.lose(Reason::Runt);
        };
        let (to, source): (Mac, Mac) = ([*d0, *d1, *d2, *d3, *d4, *d5], *source);
        let tag = if [*e0, *e1] == [0x81, 0] { wire::be16(head, 14) } else { None };
        let Some(frame) = Ports::enter(from, tag) else {
            return self.lose(Reason::Vlan);
        };
        if source[0] & 1 != 0 {
            return self.lose(Reason::BadSource);
        }
        let learned = self.shared.table.learn(Key::new(source, frame.vid), number, from.quota, now);
        match learned {
            Ok(()) | Err(NotLearned::Quota | NotLearned::Full) => {}
            Err(NotLearned::Fixed) => return self.lose(Reason::BadSource),
        }
        if to[0] & 1 == 0
            && let Some(known) = self.shared.table.find(Key::new(to, frame.vid), now)
        {
            return self.unicast((number, from), i, known.port, frame);
        }
        if to[..5] == RESERVED && to[5] < 16 {
            return self.lose(Reason::Reserved);
        }
        self.flood((number, from), i, frame);
        None
    }

    #[inline]
    fn unicast(
        &mut self,
        from: (PortId, &BridgeKeys),
        i: u8,
        to: PortId,
        frame: Tagging,
    ) -> Option<usize> {
        if to == from.0 {
            // Whom it is for has heard it already.
            return self.lose(Reason::NotForUs);
        }
        match self.ports.leave(from.1, to, frame) {
            Some(edit) => Some(self.lists.add(to, edit, i)),
            None => self.lose(Reason::NoOutput),
        }
    }

    fn flood(&mut self, from: (PortId, &BridgeKeys), i: u8, frame: Tagging) {
        let ports = Arc::clone(&self.ports);
        let mut nobody = true;
        for (to, edit) in ports.flood(from.0, from.1, frame) {
            self.lists.add(to, edit, i);
            nobody = false;
        }
        if nobody {
            self.lists.lose(Reason::NoOutput);
        }
    }
}

impl Forwarder for Bridge {
    fn forward(&mut self, from: PortId, packets: &mut Packets, out: &mut Outputs) {
        out.common(Output::Listed);
        self.lists.clear();
        let now = self.clock.now();
        let ports = Arc::clone(&self.ports);
        let Some(keys) = ports.get(from % MAX_PORTS) else {
            return out.common(Output::Drop(Reason::NoOutput));
        };
        // Neighbours with the same addresses and tag go the same way.
        let (mut last, mut list) = (None, None);
        for i in 0..packets.len() {
            let head = packets.head(i);
            let first = head.first_chunk::<16>().map(|bytes| u128::from_ne_bytes(*bytes));
            match list {
                Some(list) if first.is_some() && first == last => self.lists.add_to(list, i as u8),
                _ => list = self.decide((from, keys), i as u8, head, now),
            }
            last = first;
        }
    }

    fn lists(&mut self) -> Option<&mut Lists> {
        Some(&mut self.lists)
    }

    fn set_ports(&mut self, ports: &Arc<Ports>) {
        self.ports = Arc::clone(ports);
    }
}

#[cfg(test)]
mod tests;
