//! Which features are offered, and what they are called.
//!
//! Promises: the offer depends on configuration only. Used by `handler`.

use super::Device;
use crate::config::Offer;
use crate::virtio::ring::VHOST_F_LOG_ALL;
use vhost::vhost_user::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_config::{VIRTIO_F_ANY_LAYOUT, VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MQ,
    VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// `VHOST_USER_F_PROTOCOL_FEATURES`: rings start disabled and are enabled by message.
pub(super) const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// Checksums that the device makes, or the driver.
const CSUM: u64 = 1 << VIRTIO_NET_F_CSUM | 1 << VIRTIO_NET_F_GUEST_CSUM;
/// TCP packets that the device cuts, or the driver.
const TSO: u64 = 1 << VIRTIO_NET_F_GUEST_TSO4
    | 1 << VIRTIO_NET_F_GUEST_TSO6
    | 1 << VIRTIO_NET_F_GUEST_ECN
    | 1 << VIRTIO_NET_F_HOST_TSO4
    | 1 << VIRTIO_NET_F_HOST_TSO6
    | 1 << VIRTIO_NET_F_HOST_ECN;

const NAMES: [(u64, &str); 20] = [
    (1 << VIRTIO_NET_F_CSUM, "CSUM"),
    (1 << VIRTIO_NET_F_GUEST_CSUM, "GUEST_CSUM"),
    // Served by the frontend, who has the configuration space; we do not exceed it.
    (1 << VIRTIO_NET_F_MTU, "MTU"),
    (1 << VIRTIO_NET_F_GUEST_TSO4, "GUEST_TSO4"),
    (1 << VIRTIO_NET_F_GUEST_TSO6, "GUEST_TSO6"),
    (1 << VIRTIO_NET_F_GUEST_ECN, "GUEST_ECN"),
    (1 << VIRTIO_NET_F_HOST_TSO4, "HOST_TSO4"),
    (1 << VIRTIO_NET_F_HOST_TSO6, "HOST_TSO6"),
    (1 << VIRTIO_NET_F_HOST_ECN, "HOST_ECN"),
    (1 << VIRTIO_NET_F_MRG_RXBUF, "MRG_RXBUF"),
    // The control queue is the frontend's to serve; its index is never ours.
    (1 << VIRTIO_NET_F_CTRL_VQ, "CTRL_VQ"),
    // A guest that says itself where it is after a migration; others are spoken for by
    // SEND_RARP.
    (1 << VIRTIO_NET_F_GUEST_ANNOUNCE, "GUEST_ANNOUNCE"),
    (1 << VIRTIO_NET_F_MQ, "MQ"),
    (1 << VHOST_F_LOG_ALL, "LOG_ALL"),
    (1 << VIRTIO_F_ANY_LAYOUT, "ANY_LAYOUT"),
    (1 << VIRTIO_RING_F_INDIRECT_DESC, "INDIRECT_DESC"),
    (1 << VIRTIO_RING_F_EVENT_IDX, "EVENT_IDX"),
    (PROTOCOL_FEATURES, "PROTOCOL_FEATURES"),
    (1 << VIRTIO_F_VERSION_1, "VERSION_1"),
    (1 << VIRTIO_F_IN_ORDER, "IN_ORDER"),
];

/// The virtio features of `device`, bit by bit.
pub(super) fn offered(device: &Device) -> u64 {
    let all = NAMES.iter().fold(0, |mask, (bit, _)| mask | bit);
    let Offer { mrg_rxbuf, csum, tso } = device.offer;
    let off = [(mrg_rxbuf, 1 << VIRTIO_NET_F_MRG_RXBUF), (csum, CSUM | TSO), (tso, TSO)];
    off.iter().filter(|(on, _)| !on).fold(all, |offered, (_, bits)| offered & !bits)
}

/// The vhost-user protocol features, the same for every device.
pub(super) fn protocol() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::RARP
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::MTU
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::STATUS
}

/// The names of offered features, for a log line.
pub(super) fn names(features: u64) -> String {
    let set = NAMES.iter().filter(|(bit, _)| features & bit != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_offer_is_pinned() {
        let device = |offer, queues| Device { journal: Arc::default(), queues, offer };
        assert_eq!(offered(&device(Offer::ALL, 1)), 0x9_7C62_BB8B);
        assert_eq!(offered(&device(Offer::ALL, 8)), 0x9_7C62_BB8B);
        let some = Offer { mrg_rxbuf: false, ..Offer::ALL };
        assert_eq!(offered(&device(some, 1)), 0x9_7C62_3B8B);
        assert_eq!(offered(&device(Offer { tso: false, ..some }, 1)), 0x9_7C62_000B);
        let none = Offer { csum: false, tso: false, ..some };
        assert_eq!(offered(&device(none, 1)), 0x9_7C62_0008);
        assert_eq!(
            protocol().bits(),
            1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 13 | 1 << 15 | 1 << 16
        );
    }

    #[test]
    fn names_are_given_in_the_order_of_the_bits() {
        assert!(NAMES.is_sorted());
        assert_eq!(names(1 << 32 | 1 << 15), "MRG_RXBUF VERSION_1");
        assert_eq!(names(0), "");
    }
}
