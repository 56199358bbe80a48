//! The driver's side of virtio-net split virtqueues.
//!
//! Promises: rings are driven by the rules of virtio 1.2 (2.7 and 5.1.6), every ordered access
//! through [`order::Driver`](crate::virtio::order::Driver); whatever a backend writes into a
//! used ring or a header is checked before it is used, and a lie is a [`RingError`], never
//! undefined behaviour. No locks, no allocation once a ring is made. Used by
//! [`Guest`](super::Guest); [`RawRing`] is for tests that break the rules.

mod area;
mod chain;
mod fifo;
mod geometry;
mod lines;
mod pool;
mod queue;
mod raw;
mod rx;
mod tx;

pub use area::RingArea;
pub(super) use area::RingPlace;
pub(super) use chain::QueuePlan;
pub(super) use fifo::Fifo;
pub(super) use geometry::Geometry;
pub(super) use pool::{Packet, Pool};
pub(super) use queue::{Queue, QueueFeatures};
pub use raw::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, RawDesc, RawRing};
pub(super) use rx::RxRing;
pub(super) use tx::{Completed, TxRing, clear_header};

/// Most used entries that are taken at once.
pub(super) const BURST: usize = 64;

/// Packets received at once.
pub(super) type Burst = arrayvec::ArrayVec<Packet, BURST>;

/// What a backend did to a ring that it must not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// More buffers used than were available.
    #[error("used.idx {idx} is past the {outstanding} outstanding chains that follow {next}")]
    UsedIndex {
        /// As written by the backend.
        idx: u16,
        /// The next entry to take.
        next: u16,
        /// Chains the backend has.
        outstanding: u16,
    },
    /// A used entry names no outstanding chain.
    #[error("used entry {at} names chain {id}, which is not outstanding")]
    UsedId {
        /// Index of the entry.
        at: u16,
        /// Its id.
        id: u32,
    },
    /// `IN_ORDER` was negotiated and not kept.
    #[error("used entry {at} names chain {id}, but {expected} was due and IN_ORDER is negotiated")]
    Order {
        /// Index of the entry.
        at: u16,
        /// Its id.
        id: u32,
        /// The oldest outstanding chain.
        expected: u16,
    },
    /// A used length that cannot be.
    #[error("a received buffer has used length {len}: {least} to {most} are possible")]
    UsedLength {
        /// As written by the backend.
        len: u32,
        /// Least possible.
        least: u32,
        /// The chain's length.
        most: u32,
    },
    /// A packet over several buffers is longer than any may be.
    #[error("a received packet has {0} bytes")]
    PacketLength(u32),
    /// `num_buffers` of 0, or more than the packet has bytes for.
    #[error("a received packet claims {0} buffers")]
    NumBuffers(u16),
}

#[cfg(test)]
mod tests;
