//! What a guest is asked to be: rings, features, layouts; and whether that can work.
//!
//! Promises: [`GuestOptions::check`] refuses every combination that no backend could serve, with
//! one line that says what would be right. Everything below [`Guest`](super::Guest) relies on
//! checked options. Touches no memory and no socket.

use crate::packet::{MAX_PACKET, MIN_PACKET};
use crate::virtio::net;
use crate::virtio::ring::MAX_RING;
use virtio_bindings::virtio_config::{VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Most regions a guest's memory may be split into: what every backend takes.
pub const MAX_REGIONS: usize = 8;
/// Most queue pairs: a vring number in `SET_VRING_KICK` has 8 bits.
pub const MAX_QUEUE_PAIRS: u16 = 128;
/// Bytes of the largest buffer: no packet fills more.
const MOST_BUFFER: usize = 65550;
/// Bytes of a receive buffer with mergeable buffers, unless asked otherwise.
const MERGEABLE_BUFFER: u32 = 2048;

/// Where the virtio-net header of a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderPlace {
    /// In one descriptor with the first bytes of the packet.
    WithData,
    /// In a descriptor of its own.
    Alone,
    /// Over this many descriptors: 2 up to the header's length.
    Split(u16),
}

/// How a buffer is cut into descriptors. Pieces are never adjacent in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The header's place.
    pub header: HeaderPlace,
    /// Descriptors that the data is spread over: all but the last have 37 bytes.
    pub data: u16,
}

impl Layout {
    /// One descriptor a buffer: the fast one.
    pub const ONE: Layout = Layout { header: HeaderPlace::WithData, data: 1 };

    /// Descriptors a buffer.
    pub fn pieces(self) -> usize {
        let header = match self.header {
            HeaderPlace::WithData => 0,
            HeaderPlace::Alone => 1,
            HeaderPlace::Split(n) => n,
        };
        usize::from(header) + usize::from(self.data)
    }
}

/// Where the descriptors of a chain are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// All in the ring's table.
    Direct,
    /// All in an indirect table.
    Indirect,
    /// The first in the ring's table, the others in an indirect table that it leads to.
    DirectThenIndirect,
}

/// What kind of guest.
#[derive(Debug, Clone, PartialEq, Eq)]
// Each is a feature of its own, as in the device's feature bits.
#[allow(clippy::struct_excessive_bools)]
pub struct GuestOptions {
    /// Entries of each ring: a power of two, 2 to 32768.
    pub queue_size: u16,
    /// Queue pairs.
    pub queue_pairs: u16,
    /// Negotiate `VIRTIO_NET_F_MRG_RXBUF`.
    pub mergeable: bool,
    /// Negotiate `VIRTIO_F_VERSION_1`.
    pub version_1: bool,
    /// Negotiate `VIRTIO_RING_F_EVENT_IDX`.
    pub event_idx: bool,
    /// Negotiate `VIRTIO_F_IN_ORDER`: the backend must then keep the order.
    pub in_order: bool,
    /// Where descriptors are; anything but direct negotiates `VIRTIO_RING_F_INDIRECT_DESC`.
    pub table: Table,
    /// How buffers are cut.
    pub layout: Layout,
    /// Bytes of a receive buffer, header included. `None`: 2048 with mergeable buffers, else
    /// what the largest frame needs.
    pub buffer_size: Option<u32>,
    /// Largest frame this guest sends, and without mergeable buffers receives.
    pub max_size: usize,
    /// Sleep on the call eventfd when idle, instead of polling.
    pub interrupts: bool,
    /// Regions the memory is cut into, adjacent in guest-physical addresses, each a file of its
    /// own: 1 to 8. Some buffers lie across the borders.
    pub regions: usize,
    /// Two sockets see one and the same memory, so that packets change ports without a copy.
    pub shared_memory: bool,
    /// Index all rings begin at.
    pub first_index: u16,
}

impl Default for GuestOptions {
    fn default() -> Self {
        GuestOptions {
            queue_size: 256,
            queue_pairs: 1,
            mergeable: true,
            version_1: true,
            event_idx: false,
            in_order: false,
            table: Table::Direct,
            layout: Layout::ONE,
            buffer_size: None,
            max_size: 1518,
            interrupts: false,
            regions: 1,
            shared_memory: true,
            first_index: 0,
        }
    }
}

/// Why options were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Not a ring size.
    #[error("queue size {0} is not a power of two from 2 to 32768")]
    QueueSize(u16),
    /// No or too many queue pairs.
    #[error("{0} queue pairs: 1 to {MAX_QUEUE_PAIRS} are possible")]
    QueuePairs(u16),
    /// No or too many regions.
    #[error("{0} memory regions: 1 to {MAX_REGIONS} are possible")]
    Regions(usize),
    /// A frame size nobody can send.
    #[error("frame size {0} is not from {MIN_PACKET} to {MAX_PACKET}")]
    Size(usize),
    /// The header cannot be cut like that, or data not be spread over no descriptors.
    #[error(
        "the header of {0} bytes can be split over 2 to {0} descriptors, the data over 1 or more"
    )]
    Layout(usize),
    /// A buffer's descriptors exceed the ring.
    #[error("a buffer of {pieces} descriptors does not fit a queue of {size}: use a larger queue")]
    Chain {
        /// Descriptors of one buffer.
        pieces: usize,
        /// Entries of the ring.
        size: u16,
    },
    /// A packet does not fit into the buffers, or no packet fills them.
    #[error("buffers of {size} bytes: {least} to {most} are possible here", most = MOST_BUFFER)]
    BufferSize {
        /// As asked.
        size: u32,
        /// Least that works.
        least: usize,
    },
}

impl GuestOptions {
    /// Can this work?
    ///
    /// # Errors
    /// What cannot, and what would.
    pub fn check(&self) -> Result<(), OptionsError> {
        let size = self.queue_size;
        if !size.is_power_of_two() || !(2..=MAX_RING).contains(&size) {
            return Err(OptionsError::QueueSize(size));
        }
        if !(1..=MAX_QUEUE_PAIRS).contains(&self.queue_pairs) {
            return Err(OptionsError::QueuePairs(self.queue_pairs));
        }
        if !(1..=MAX_REGIONS).contains(&self.regions) {
            return Err(OptionsError::Regions(self.regions));
        }
        if !(MIN_PACKET..=MAX_PACKET).contains(&self.max_size) {
            return Err(OptionsError::Size(self.max_size));
        }
        let header = self.header_len();
        let split_fits = match self.layout.header {
            HeaderPlace::Split(n) => (2..=header).contains(&usize::from(n)),
            HeaderPlace::WithData | HeaderPlace::Alone => true,
        };
        if !split_fits || self.layout.data == 0 {
            return Err(OptionsError::Layout(header));
        }
        // A chain, its indirect table included, is never longer than the ring (virtio 1.2,
        // 2.7.5.3.1).
        let pieces = self.layout.pieces();
        if pieces > usize::from(size) {
            return Err(OptionsError::Chain { pieces, size });
        }
        let least = header + if self.mergeable { 1 } else { self.max_size };
        match self.buffer_size {
            Some(size) if !(least..=MOST_BUFFER).contains(&(size as usize)) => {
                Err(OptionsError::BufferSize { size, least })
            }
            _ => Ok(()),
        }
    }

    /// Feature bits these options need from a backend, without the transport's.
    pub fn features(&self) -> u64 {
        let bits = [
            (self.mergeable, VIRTIO_NET_F_MRG_RXBUF),
            (self.version_1, VIRTIO_F_VERSION_1),
            (self.event_idx, VIRTIO_RING_F_EVENT_IDX),
            (self.in_order, VIRTIO_F_IN_ORDER),
            (self.table != Table::Direct, VIRTIO_RING_F_INDIRECT_DESC),
        ];
        bits.iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | 1 << bit)
    }

    /// Bytes of the virtio-net header.
    pub fn header_len(&self) -> usize {
        net::header_len(self.features())
    }

    /// Bytes of a receive buffer, header included.
    pub fn rx_capacity(&self) -> usize {
        match self.buffer_size {
            Some(size) => size as usize,
            None if self.mergeable => MERGEABLE_BUFFER as usize,
            None => self.tx_capacity(),
        }
    }

    /// Bytes of a transmit buffer, header included: the largest frame fits one.
    pub fn tx_capacity(&self) -> usize {
        self.header_len() + self.max_size
    }

    /// Receive buffers that a frame of `size` bytes takes.
    pub fn buffers_for(&self, size: usize) -> usize {
        (self.header_len() + size).div_ceil(self.rx_capacity())
    }

    /// Chains of one buffer each that a ring holds.
    pub fn chains(&self) -> usize {
        let descriptors = match self.table {
            Table::Direct => self.layout.pieces(),
            Table::Indirect => 1,
            Table::DirectThenIndirect => self.layout.pieces().min(2),
        };
        usize::from(self.queue_size) / descriptors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut GuestOptions)) -> Result<(), OptionsError> {
        let mut options = GuestOptions::default();
        change(&mut options);
        options.check()
    }

    #[test]
    fn refuses_what_cannot_work() {
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|o| o.queue_size = 3), Err(OptionsError::QueueSize(3)));
        assert_eq!(with(|o| o.queue_size = 1), Err(OptionsError::QueueSize(1)));
        assert_eq!(with(|o| o.queue_pairs = 129), Err(OptionsError::QueuePairs(129)));
        assert_eq!(with(|o| o.regions = 9), Err(OptionsError::Regions(9)));
        assert_eq!(with(|o| o.max_size = 13), Err(OptionsError::Size(13)));
        assert_eq!(with(|o| o.max_size = 65536), Err(OptionsError::Size(65536)));
        assert_eq!(with(|o| o.layout.data = 0), Err(OptionsError::Layout(12)));
        let split = |n| move |o: &mut GuestOptions| o.layout.header = HeaderPlace::Split(n);
        assert_eq!(with(split(12)), Ok(()));
        assert_eq!(with(split(13)), Err(OptionsError::Layout(12)));
        assert_eq!(with(split(1)), Err(OptionsError::Layout(12)));
    }

    #[test]
    fn chains_fit_the_ring_and_packets_their_buffers() {
        let long = |o: &mut GuestOptions| {
            o.queue_size = 2;
            o.layout = Layout { header: HeaderPlace::Alone, data: 2 };
        };
        assert_eq!(with(long), Err(OptionsError::Chain { pieces: 3, size: 2 }));
        let small = |o: &mut GuestOptions| {
            o.mergeable = false;
            o.buffer_size = Some(1529);
        };
        assert_eq!(with(small), Err(OptionsError::BufferSize { size: 1529, least: 1530 }));
        assert_eq!(with(|o| o.buffer_size = Some(13)), Ok(()));
    }

    #[test]
    fn counts_buffers_and_chains() {
        let options = GuestOptions {
            buffer_size: Some(1024),
            layout: Layout { header: HeaderPlace::Alone, data: 2 },
            ..GuestOptions::default()
        };
        assert_eq!(options.buffers_for(1012), 1);
        assert_eq!(options.buffers_for(1013), 2);
        assert_eq!(options.chains(), 85);
        assert_eq!(GuestOptions { table: Table::Indirect, ..options.clone() }.chains(), 256);
        assert_eq!(GuestOptions { table: Table::DirectThenIndirect, ..options }.chains(), 128);
    }
}
