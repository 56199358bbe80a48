//! The virtio-net header (virtio 1.2, 5.1.6) as far as the rings need it.

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;

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
