//! Counters that a queue's owner writes and anyone may read.
//!
//! Promises: each counter has one writer (the worker that owns the queue), so counting is a
//! plain load, add and store, never a locked operation; readers see a value that was true a
//! moment ago. Updated once a burst, never once a packet that is delivered. Used by `virtio`,
//! `port` and `worker` (writers), by `stats` (reader) and by the reference backend.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a packet or a chain was not delivered. Each lost packet has exactly one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The output had not enough buffers.
    NoBuffers,
    /// The output has no running ring: no frontend, or rings not set up.
    NotConnected,
    /// The ring is started but not enabled.
    Disabled,
    /// The forwarder has no output for it (a single-purpose mode such as `rxonly` or `txonly`).
    NoOutput,
    /// The forwarder answers only some packets (`icmpecho`) and this is none of them.
    NotForUs,
    /// The frame is shorter than an Ethernet header.
    Runt,
    /// The packet is longer than 65535 bytes, or longer than the chain's buffer can ever hold.
    TooLong,
    /// Guest: the chain has more than 1024 descriptors (one that leads to an indirect table is
    /// not counted), or it runs in a circle.
    ChainTooLong,
    /// Guest: a descriptor points outside its memory, or its range wraps.
    BadAddress,
    /// Guest: `next` is not an index of the table.
    BadNext,
    /// Guest: an indirect table is nested, chained on, misaligned, empty or no multiple of 16.
    BadIndirect,
    /// Guest: a readable descriptor where the device writes, or the reverse.
    BadDirection,
    /// Guest: the chain is shorter than the virtio-net header.
    NoHeader,
    /// Writing to the output failed (a file, a NIC).
    OutputError,
    /// The frame is longer than the output's MTU allows.
    Mtu,
    /// The interface had no room for it before it could be received.
    Missed,
    /// The virtio-net header contradicts the packet: what it asks to be done cannot be.
    BadOffload,
    /// Bridge: the frame's VLAN is none of its port's.
    Vlan,
    /// Bridge: the source address is a group's, or is written down for another port.
    BadSource,
    /// Bridge: an address that no bridge forwards (01:80:C2:00:00:00 to 0F).
    Reserved,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Reason; 20] = [
        Reason::NoBuffers,
        Reason::NotConnected,
        Reason::Disabled,
        Reason::NoOutput,
        Reason::NotForUs,
        Reason::Runt,
        Reason::TooLong,
        Reason::ChainTooLong,
        Reason::BadAddress,
        Reason::BadNext,
        Reason::BadIndirect,
        Reason::BadDirection,
        Reason::NoHeader,
        Reason::OutputError,
        Reason::Mtu,
        Reason::Missed,
        Reason::BadOffload,
        Reason::Vlan,
        Reason::BadSource,
        Reason::Reserved,
    ];

    /// The name in tables, JSON and logs.
    pub fn name(self) -> &'static str {
        match self {
            Reason::NoBuffers => "no_buffers",
            Reason::NotConnected => "not_connected",
            Reason::Disabled => "disabled",
            Reason::NoOutput => "no_output",
            Reason::NotForUs => "not_for_us",
            Reason::Runt => "runt",
            Reason::TooLong => "too_long",
            Reason::ChainTooLong => "chain_too_long",
            Reason::BadAddress => "bad_address",
            Reason::BadNext => "bad_next",
            Reason::BadIndirect => "bad_indirect",
            Reason::BadDirection => "bad_direction",
            Reason::NoHeader => "no_header",
            Reason::OutputError => "output_error",
            Reason::Mtu => "mtu",
            Reason::Missed => "missed",
            Reason::BadOffload => "bad_offload",
            Reason::Vlan => "vlan",
            Reason::BadSource => "bad_source",
            Reason::Reserved => "reserved",
        }
    }
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Add `n`. Only the one writer may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Begin anew. Only the one writer may call this.
    pub fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    /// The value a moment ago.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What one half of one queue has moved and lost.
///
/// Aligned to a pair of cache lines, so that two queues owned by different workers never
/// share one.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct QueueCounters {
    /// Packets received from, or delivered to, the queue.
    pub packets: Counter,
    /// Their bytes, without the virtio-net header and without an FCS.
    pub bytes: Counter,
    drops: [Counter; Reason::ALL.len()],
}

impl QueueCounters {
    /// Count `n` packets or chains lost for `reason`.
    #[inline]
    pub fn lost(&self, reason: Reason, n: u64) {
        self.drops[reason as usize].add(n);
    }

    /// How many were lost for `reason`.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// How many were lost for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.drops.iter().map(Counter::get).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_listed() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
        }
    }

    #[test]
    fn drops_are_kept_by_reason() {
        let c = QueueCounters::default();
        c.lost(Reason::NoBuffers, 3);
        c.lost(Reason::Runt, 1);
        assert_eq!(c.dropped(Reason::NoBuffers), 3);
        assert_eq!(c.dropped(Reason::Runt), 1);
        assert_eq!(c.dropped_total(), 4);
    }
}
