//! The virtio-net header (virtio 1.2, 5.1.6) as far as the rings need it.

use crate::offload::Able;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_MRG_RXBUF,
};

/// Bytes of the header with `num_buffers`.
pub const HEADER: usize = 12;
/// Bytes of the legacy header without it.
pub const LEGACY_HEADER: usize = 10;

/// Bytes of the header under `features`: 10 only if neither `VERSION_1` nor `MRG_RXBUF` was
/// negotiated (virtio 1.2, 5.1.6.1).
pub fn header_len(features: u64) -> usize {
    let with_num_buffers = 1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_NET_F_MRG_RXBUF;
    if features & with_num_buffers == 0 { LEGACY_HEADER } else { HEADER }
}

/// May the guest leave something to be done to what it sends?
pub fn leaves_work(features: u64) -> bool {
    features & 1 << VIRTIO_NET_F_CSUM != 0
}

/// What the guest does itself to what it receives.
pub fn able(features: u64) -> Able {
    let has = |bit: u32| features & 1 << bit != 0;
    Able {
        checksum: has(VIRTIO_NET_F_GUEST_CSUM),
        tcp4: has(VIRTIO_NET_F_GUEST_TSO4),
        tcp6: has(VIRTIO_NET_F_GUEST_TSO6),
        ecn: has(VIRTIO_NET_F_GUEST_ECN),
        udp: false,
    }
}
