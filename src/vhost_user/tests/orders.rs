//! Messages in orders that are legal and odd, and those that the crate does not know.

use super::*;
use crate::counters::{QueueCounters, Reason};
use crate::packet::Packets;

const NEED_REPLY: u32 = 8;

impl Guest {
    /// Send a message that is ours to handle, and return its answer.
    fn ask(&self, request: FrontendReq, body: &[u64]) -> u64 {
        self.send(request, NEED_REPLY, body, &[]);
        self.received_answer()
    }

    fn refused(&self) -> Vec<(&'static str, u64)> {
        self.journal.status().refused.into_iter().collect()
    }

    /// A running and enabled ring 1 at `base`.
    fn running_at(base: u16) -> Self {
        let mut guest = Self::negotiated(1);
        guest.share(&memfd("orders"));
        guest.place(1);
        guest.frontend.set_vring_base(1, base).unwrap();
        guest.kick(1);
        guest.frontend.set_vring_enable(1, true).unwrap();
        guest.rings.events();
        guest
    }
}

#[test]
fn the_status_is_kept_and_its_reset_stops_the_rings_at_their_indices() {
    let guest = Guest::running_at(77);
    for status in [1, 3, 11, 15] {
        assert_eq!(guest.ask(FrontendReq::SET_STATUS, &[status]), 0);
        assert_eq!(guest.ask(FrontendReq::GET_STATUS, &[]), status);
    }
    assert!(guest.rings.events().is_empty());
    // Reset first, base after it.
    assert_eq!(guest.ask(FrontendReq::SET_STATUS, &[0]), 0);
    assert_eq!(guest.ask(FrontendReq::GET_STATUS, &[]), 0);
    assert_eq!(guest.rings.events(), ["stop 1"]);
    assert_eq!(guest.base(1), 77);
    guest.kick(1);
    assert_eq!(guest.rings.events(), ["start 1"]);
    // Base first, reset after it.
    assert_eq!(guest.base(1), 77);
    assert_eq!(guest.ask(FrontendReq::SET_STATUS, &[0]), 0);
    guest.kick(1);
    assert_eq!(guest.base(1), 77);
    assert_eq!(guest.refused(), []);
    assert_eq!(guest.ask(FrontendReq::SET_STATUS, &[256]), 1);
    assert_eq!(guest.refused(), [("status", 1)]);
}

#[test]
fn features_that_were_not_offered_are_not_ok() {
    let guest = Guest::negotiated(1);
    assert!(guest.frontend.set_features(PROTOCOL | 1 << 5).is_err());
    assert_eq!(guest.ask(FrontendReq::SET_STATUS, &[11]), 0);
    assert_eq!(guest.ask(FrontendReq::GET_STATUS, &[]), 3);
    guest.frontend.set_features(PROTOCOL).unwrap();
    assert_eq!(guest.ask(FrontendReq::GET_STATUS, &[]), 11);
    assert_eq!(guest.refused(), [("features", 1)]);
}

#[test]
fn an_mtu_is_checked_and_kept_to() {
    let mut guest = Guest::running_at(5);
    for mtu in [0, 67, 65_536, u64::MAX] {
        assert_eq!(guest.ask(FrontendReq::NET_SET_MTU, &[mtu]), 1);
    }
    assert_eq!(guest.refused(), [("mtu", 4)]);
    assert!(guest.rings.events().is_empty());
    guest.frontend.set_features(VERSION_1 | PROTOCOL | MTU).unwrap();
    guest.place(0);
    guest.kick(0);
    guest.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(guest.ask(FrontendReq::NET_SET_MTU, &[1000]), 0);
    assert_eq!(guest.journal.status().mtu, Some(1000));
    assert_eq!(guest.base(1), 5);
    // With its header and a tag it fits, a byte more does not; there are no buffers.
    let sent = |len: usize| {
        let mut packets = Packets::new();
        packets.lend(&Arc::from(vec![0; len]));
        packets.push_lent(0..len);
        let counters = QueueCounters::default();
        let mut running = guest.rings.running.lock().unwrap();
        running.get_mut(&0).unwrap().send(&packets, &[0], &counters);
        (counters.dropped(Reason::NoBuffers), counters.dropped(Reason::Mtu))
    };
    assert_eq!((sent(1018), sent(1019)), ((1, 0), (0, 1)));
    // A guest that did not negotiate it is not held to it.
    guest.frontend.set_features(VERSION_1 | PROTOCOL).unwrap();
    let mut running = guest.rings.running.lock().unwrap();
    assert!(running.get_mut(&0).is_some());
    drop(running);
    assert_eq!(sent(1019), (1, 0));
}

#[test]
fn a_moved_guest_is_announced() {
    let guest = Guest::running_at(0);
    let mac = [0x52, 0x54, 0, 1, 2, 3];
    let body = u64::from_ne_bytes([0x52, 0x54, 0, 1, 2, 3, 0, 0]);
    assert_eq!(guest.ask(FrontendReq::SEND_RARP, &[body]), 0);
    let frame = crate::wire::rarp(mac);
    assert_eq!(guest.rings.events(), [format!("inject {frame:02x?}")]);
}

#[test]
fn messages_of_ours_need_no_answer_and_their_fds_are_closed() {
    let guest = Guest::running_at(0);
    let file = memfd("surplus");
    let fds_of = [file.as_raw_fd(); 3];
    guest.send(FrontendReq::SET_STATUS, 0, &[1], &fds_of);
    guest.send(FrontendReq::NET_SET_MTU, 0, &[1500], &fds_of);
    guest.send(FrontendReq::SEND_RARP, 0, &[0], &fds_of);
    guest.send(FrontendReq::SET_VRING_ENABLE, 0, &[1 << 32 | 1], &fds_of);
    guest.send(FrontendReq::SET_LOG_FD, 0, &[], &fds_of);
    guest.send(FrontendReq::SET_LOG_FD, 0, &[0], &fds_of);
    guest.send(FrontendReq::GET_STATUS, 0, &[], &fds_of);
    assert_eq!(guest.received_answer(), 1);
    guest.settle();
    assert_eq!(fds("surplus"), 1);
    assert_eq!(guest.refused(), []);
}

#[test]
fn messages_of_ours_of_another_size_end_the_connection() {
    use FrontendReq::{GET_STATUS, NET_SET_MTU, SEND_RARP, SET_LOG_FD, SET_STATUS};
    for request in [SEND_RARP, NET_SET_MTU, SET_STATUS, GET_STATUS, SET_LOG_FD] {
        let mut guest = Guest::running_at(0);
        guest.send(request, NEED_REPLY, &[0, 0], &[]);
        guest.closed();
        assert_eq!(guest.refused(), [("bad_message", 1)], "{request:?}");
        assert!(!guest.journal.status().connected);
        assert!(guest.rings.running().is_empty());
    }
}

#[test]
fn a_table_at_other_addresses_stops_rings_until_they_are_placed_anew() {
    let guest = Guest::running_at(300);
    let memory = memfd("moved");
    let moved = USER + (1 << 40);
    let table = [region(0, moved, MIB, memory.as_raw_fd())];
    // Rings that lie nowhere do not run; the frontend is told, and knows.
    assert!(guest.frontend.set_mem_table(&table).is_err());
    assert_eq!(guest.refused(), [("ring_address", 1)]);
    assert_eq!(guest.rings.events(), ["stop 1"]);
    let at = VringConfigData {
        queue_max_size: RING,
        queue_size: RING,
        flags: 0,
        desc_table_addr: moved,
        used_ring_addr: moved + 0x4000,
        avail_ring_addr: moved + 0x8000,
        log_addr: None,
    };
    guest.frontend.set_vring_addr(1, &at).unwrap();
    assert_eq!(guest.rings.events(), ["start 1"]);
    assert!(guest.rings.enabled(1));
    assert_eq!(guest.base(1), 300);
}

#[test]
fn tables_may_be_unsorted_and_regions_may_touch() {
    let guest = Guest::negotiated(1);
    let file = memfd("adjacent");
    let part = |i: u64| region(i * MIB, USER + (3 - i) * MIB, MIB, file.as_raw_fd());
    let mut parts = [2, 0, 3, 1].map(part);
    for (part, offset) in parts.iter_mut().zip([1, 3, 0, 2]) {
        part.mmap_offset = offset * MIB;
    }
    guest.frontend.set_mem_table(&parts).unwrap();
    let status = guest.journal.status();
    assert_eq!((status.memory, status.regions), (4 * MIB, 4));
    // In the region that comes last in the guest and first in the frontend.
    guest.place(1);
    guest.kick(1);
    assert_eq!(guest.rings.running(), [1]);
}

#[test]
fn rings_are_configured_in_part_and_changed_later() {
    let mut guest = Guest::negotiated(3);
    guest.share(&memfd("parts"));
    for index in [2, 5] {
        guest.frontend.set_vring_enable(index.into(), true).unwrap();
        guest.kick(index);
        guest.place(index);
    }
    assert_eq!(guest.rings.running(), [2, 5]);
    assert!(!guest.journal.status().link, "no pair is whole");
    // Never set up.
    assert_eq!([0, 1, 3, 4].map(|index| guest.base(index)), [0; 4]);
    guest.place(3);
    guest.kick(3);
    guest.frontend.set_vring_enable(3, true).unwrap();
    guest.settle();
    assert!(guest.journal.status().link);
    guest.frontend.set_vring_enable(2, false).unwrap();
    guest.settle();
    assert!(!guest.journal.status().link);
    // Another size, while it runs, and what the control queue would be.
    guest.frontend.set_vring_num(5, 64).unwrap();
    assert_eq!(guest.journal.status().rings[5].entries, 64);
    for index in [6, 7, 255] {
        assert!(guest.frontend.set_vring_num(index, 64).is_err());
    }
    assert_eq!(guest.refused(), [("no_ring", 3)]);
    assert_eq!(guest.rings.running(), [2, 3, 5]);
}

#[test]
fn features_may_change_while_rings_run() {
    let guest = Guest::running_at(9);
    for features in [1 << 29, 1 << 15, 0, 1 << 29 | 1 << 28] {
        guest.frontend.set_features(VERSION_1 | PROTOCOL | features).unwrap();
        assert_eq!(guest.rings.events(), ["stop 1", "start 1"]);
        assert!(guest.rings.enabled(1));
        assert_eq!(guest.journal.status().features, VERSION_1 | PROTOCOL | features);
    }
    assert_eq!(guest.base(1), 9);
}

#[test]
fn each_message_that_is_cut_off_ends_the_session_only() {
    for cut in 0..20 {
        let guest = Guest::running_at(1);
        let message = [9_u32, 1, 8, 1, 0].map(u32::to_ne_bytes).concat();
        (&guest.raw).write_all(&message[..cut]).unwrap();
        let journal = Arc::clone(&guest.journal);
        assert!(guest.leave().running().is_empty(), "cut at {cut}");
        assert!(!journal.status().connected);
    }
}

#[test]
fn a_frontend_that_wants_more_queues_is_explained() {
    for goes_on in [false, true] {
        let followers = Arc::default();
        let mut guest = Guest::connect_to(1, &Arc::new(Journal::new("test", &followers)));
        let follow = followers.follow();
        let offered = guest.frontend.get_features().unwrap();
        let protocol = guest.frontend.get_protocol_features().unwrap();
        guest.frontend.set_protocol_features(protocol).unwrap();
        assert_eq!(guest.frontend.get_queue_num().unwrap(), 1);
        if goes_on {
            guest.frontend.set_features(offered).unwrap();
        }
        guest.leave();
        let last = follow.try_iter().last().unwrap().event.to_string();
        assert_eq!(last.contains("queues="), !goes_on, "{last}");
    }
}
