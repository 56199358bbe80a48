//! Messages that are malformed, truncated, oversized, or not to be: refused and counted, and
//! nothing else is touched.

use super::attack::{Attack, WAYS, Way};
use super::common::bridge::{LIMIT, alone};
use super::common::wait_until;
use super::neighbour::Street;
use super::wire::{self, After, FLAGS, Message, connect, expect_fds, expect_refused, served};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use vmm_sys_util::eventfd::EventFd;

/// Fds of one message at most.
const MOST_FDS: usize = 32;

/// All numbers of requests that exist, and some that do not.
fn requests() -> impl Iterator<Item = u32> {
    (0..=50).chain([99, 1000, 0x8000_0000, u32::MAX])
}

/// The session that a message was sent to is over, or it answers; at most one refusal is counted,
/// and one if it is over.
fn expect_refused_or_served(street: &Street, message: &Message) {
    let (_, before) = wire::refused(&street.bed, "");
    let stream = connect(&street.bed.socket(0));
    // It fails if the bridge has seen enough before all of it was sent.
    let _ = message.send(&stream);
    let lives = served(&stream);
    let counted = || wire::refused(&street.bed, "").1 - before;
    let over = lives || wait_until(LIMIT, || counted() > 0);
    assert!(over, "{message:x?}: not counted");
    // A message with more fds than can be taken is lost, and its body is another one.
    let most = if message.fds.len() > MOST_FDS { 2 } else { 1 };
    assert!(counted() <= most, "{message:x?}: counted more than once");
}

/// Ends the test: what was taken is given back, and an honest guest is served on that port.
fn expect_unharmed(street: Street, fds: usize) {
    expect_fds(fds, "after it all");
    for way in WAYS {
        Attack::new(&street.bed, way).expect_working("after it all");
    }
    street.finish();
}

#[test]
fn every_request_in_every_size() {
    let _alone = alone();
    let street = Street::new();
    let fds = wire::fds();
    for request in requests() {
        for size in [0, 1, 4, 7, 8, 9, 12, 16, 32, 39, 40, 41, 0xfff, 0x1000, 0x1001, u32::MAX] {
            let body = vec![0; (size as usize).min(0x1001)];
            let message = Message { request, flags: FLAGS, size, body, fds: Vec::new() };
            expect_refused_or_served(&street, &message);
        }
    }
    expect_unharmed(street, fds);
}

#[test]
fn every_request_with_bodies_of_ones() {
    let _alone = alone();
    let street = Street::new();
    let fds = wire::fds();
    for request in requests() {
        for size in [4, 8, 40, 0x1000] {
            let body = vec![0xff; size as usize];
            let message = Message { request, flags: FLAGS, size, body, fds: Vec::new() };
            expect_refused_or_served(&street, &message);
        }
    }
    expect_unharmed(street, fds);
}

/// One too many where one is due, where none is, and more than anybody takes.
#[test]
fn every_request_with_surplus_fds() {
    let _alone = alone();
    let street = Street::new();
    let fds = wire::fds();
    let event = EventFd::new(0).unwrap();
    for request in requests() {
        for (size, count) in [(0, 1), (8, 1), (8, 2), (8, 32), (40, 2), (40, 33), (20, 253)] {
            let message =
                Message { size, body: vec![0; size as usize], ..Message::new(request, &[]) };
            let message = message.with(&vec![event.as_raw_fd(); count]);
            expect_refused_or_served(&street, &message);
        }
    }
    drop(event);
    expect_unharmed(street, fds);
}

/// Versions that do not exist, answers that nobody asked for, and flags without a meaning.
#[test]
fn every_kind_of_flags() {
    let _alone = alone();
    let street = Street::new();
    let fds = wire::fds();
    for flags in (0..16).chain((4..32).map(|bit| 1 << bit | 1)).filter(|flags| flags & !8 != 1) {
        for request in [wire::GET_FEATURES, wire::SET_OWNER, wire::SET_STATUS, wire::ADD_MEM_REG] {
            let (_, before) = wire::refused(&street.bed, "");
            let stream = connect(&street.bed.socket(0));
            let message = Message { flags, ..Message::new(request, &[]) };
            message.send(&stream).unwrap();
            assert!(!served(&stream), "{message:x?}");
            let (bad, all) = (wire::refused(&street.bed, "bad_message"), before + 1);
            assert!(wait_until(LIMIT, || wire::refused(&street.bed, "").1 == all), "{message:x?}");
            assert!(bad.0 > 0);
        }
    }
    expect_unharmed(street, fds);
}

/// The peer goes away, or stops, in the middle of a message.
#[test]
fn messages_that_end_before_their_end() {
    let _alone = alone();
    let street = Street::new();
    let fds = wire::fds();
    let event = EventFd::new(0).unwrap();
    let message = Message::new(wire::SET_VRING_KICK, &[0]).with(&[event.as_raw_fd()]);
    let bytes = message.bytes();
    for cut in 1..bytes.len() {
        for half_closed in [false, true] {
            let stream = connect(&street.bed.socket(0));
            let part = Message { body: bytes[..cut].to_vec(), ..message.clone() };
            let part: &[&[u8]] = &[&part.body];
            vmm_sys_util::sock_ctrl_msg::ScmSocket::send_with_fds(&stream, part, &message.fds)
                .unwrap();
            if half_closed {
                stream.shutdown(Shutdown::Write).unwrap();
                assert_eq!(wire::answer(&stream), None, "{cut} bytes");
            }
        }
    }
    drop(event);
    expect_unharmed(street, fds);
}

/// Refused while a ring runs: what becomes of it.
#[test]
fn refused_messages_and_the_running_ring() {
    use After::{Closed, Stopped, Works};
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        let ring = way.index() as u32;
        let state = |request, index, num| Message::state(request, index, num);
        let mut cases = vec![
            (Message::new(wire::SET_FEATURES, &[1 << 40]), "features", Works),
            (Message::new(wire::SET_FEATURES, &[1 << 34]), "features", Works),
            (Message::new(wire::SET_STATUS, &[256]), "status", Works),
            (Message::new(wire::NET_SET_MTU, &[67]), "mtu", Works),
            (Message::new(wire::NET_SET_MTU, &[65536]), "mtu", Works),
            (state(wire::SET_VRING_BASE, ring, 0x1_0000), "ring_base", Works),
            (Message::table(&[], &[]), "memory_table", Stopped),
            (Message::table(&[[0, 4096, 0, 0]], &[]), "memory_table", Stopped),
            (Message::new(wire::SET_MEM_TABLE, &[u64::MAX]), "memory_table", Stopped),
            (Message::new(wire::SET_MEM_TABLE, &[1 << 32]), "memory_table", Stopped),
            (Message::new(wire::REM_MEM_REG, &[0, 1, 2, 3, 4]), "memory_region", Works),
            (state(wire::GET_VRING_BASE, 2, 0), "no_ring", Closed),
            (state(wire::GET_VRING_BASE, 256, 0), "no_ring", Closed),
            (state(wire::SET_VRING_ENABLE, ring, 2), "bad_message", Closed),
            (Message::new(wire::SET_VRING_KICK, &[u64::from(ring)]), "bad_message", Closed),
            (Message::new(wire::SET_VRING_CALL, &[u64::from(ring)]), "bad_message", Closed),
            (Message::new(wire::SET_VRING_ERR, &[u64::from(ring)]), "bad_message", Closed),
            (Message::new(wire::ADD_MEM_REG, &[0, 0, 4096, 0, 0]), "bad_message", Closed),
            (Message::new(wire::GET_INFLIGHT_FD, &[0, 0, u64::MAX]), "bad_message", Closed),
            (Message::new(wire::SET_INFLIGHT_FD, &[4096, 0, u64::MAX]), "bad_message", Closed),
        ];
        // Indices that are the ring's if their upper bits are lost.
        for index in [2, 3, 256 + ring, 0x1_0000 + ring, 0x8000_0000 + ring, u32::MAX] {
            cases.push((state(wire::SET_VRING_NUM, index, 64), "no_ring", Works));
            cases.push((state(wire::SET_VRING_BASE, index, 0), "no_ring", Works));
            cases.push((state(wire::SET_VRING_ENABLE, index, 0), "no_ring", Works));
            let at = [u64::from(index), 0, 0, 0, 0];
            cases.push((Message::new(wire::SET_VRING_ADDR, &at), "no_ring", Works));
        }
        for size in [0, 1, 3, 255, 257, 32767, 32769, 0x1_0000, 0x1_0000 + 256, u32::MAX] {
            cases.push((state(wire::SET_VRING_NUM, ring, size), "ring_size", Stopped));
        }
        let mut attack = Attack::new(&street.bed, way);
        for (message, reason, after) in cases {
            expect_refused(&mut attack, &message, reason, after);
            if after == Closed {
                drop(attack);
                attack = Attack::new(&street.bed, way);
            }
        }
    }
    street.finish();
}

/// Messages with more or fewer fds than are due, or with a flag that says otherwise.
#[test]
fn fds_that_are_not_due_and_the_running_ring() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    let event = EventFd::new(0).unwrap();
    let fd = event.as_raw_fd();
    let mut cases = Vec::new();
    for request in [wire::SET_VRING_KICK, wire::SET_VRING_CALL, wire::SET_VRING_ERR] {
        cases.push((Message::new(request, &[1]).with(&[fd; 2]), "bad_message"));
        cases.push((Message::new(request, &[0x101]).with(&[fd]), "bad_message"));
    }
    for request in [wire::SET_OWNER, wire::GET_FEATURES, wire::GET_PROTOCOL_FEATURES] {
        cases.push((Message::new(request, &[]).with(&[fd]), "bad_message"));
    }
    for request in [wire::SET_FEATURES, wire::SET_VRING_NUM, wire::GET_VRING_BASE] {
        cases.push((Message::new(request, &[0]).with(&[fd]), "bad_message"));
    }
    cases
        .push((Message::new(wire::ADD_MEM_REG, &[0, 0, 4096, 0, 0]).with(&[fd; 2]), "bad_message"));
    for (message, reason) in cases {
        let mut attack = Attack::new(&street.bed, Way::FromGuest);
        expect_refused(&mut attack, &message, reason, After::Closed);
    }
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    let region = [0, 4096, 0, 0];
    for fds in [&[][..], &[fd], &[fd; 3]] {
        let message = Message::table(&[region, region], fds);
        expect_refused(&mut attack, &message, "memory_table", After::Stopped);
    }
    drop((attack, event));
    expect_fds(before, "fds that were not due");
    street.finish();
}

/// The size of a ring is set again and again while it runs: it goes on, with its index.
#[test]
fn a_ring_whose_size_is_set_again_and_again() {
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        let before = wire::fds();
        let ring = way.index() as u32;
        for _ in 0..200 {
            // Smaller rings lie inside the memory, too.
            for size in [2, 128, 64, u32::from(super::attack::SIZE)] {
                let message = Message::state(wire::SET_VRING_NUM, ring, size);
                // Without answers, which nobody would read.
                let message = Message { flags: 1, ..message };
                message.send(attack.raw.session.stream()).unwrap();
            }
        }
        assert!(served(attack.raw.session.stream()));
        attack.settle();
        attack.expect_working("after so many sizes");
        let used = attack.used;
        assert_eq!(attack.stop(), used);
        expect_fds(before - 1, "after so many sizes");
    }
    street.finish();
}

/// A guest that changes `used.idx` gets no other base for it: the index is ours.
#[test]
fn indices_are_not_taken_back_from_the_guest() {
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        for lie in [1, 0x100, 0x8000, u16::MAX] {
            attack.expect_working("before");
            let used = attack.used;
            attack.ring().words().used_idx.store(used.wrapping_add(lie));
            assert_eq!(attack.stop(), used, "{way:?}");
            attack.start(used);
        }
    }
    street.finish();
}

/// Half a message, and then silence: the neighbour is served, and the port ends in time.
#[test]
fn a_stalled_half_message() {
    let _alone = alone();
    for cut in [1, 11, 12, 13, 19] {
        let street = Street::new();
        let stream = connect(&street.bed.socket(0));
        let bytes = Message::new(wire::SET_FEATURES, &[0]).bytes();
        std::io::Write::write_all(&mut &stream, &bytes[..cut]).unwrap();
        street.expect_service();
        // It ends the bridge, with the connection still there.
        street.finish();
        drop(stream);
    }
}

/// Questions whose answers nobody reads: only that session waits.
#[test]
fn a_frontend_that_never_listens() {
    let _alone = alone();
    let street = Street::new();
    let stream = connect(&street.bed.socket(0));
    stream.set_nonblocking(true).unwrap();
    let question = Message::new(wire::GET_FEATURES, &[]);
    let full = wait_until(LIMIT, || {
        let mut sent = 0;
        while question.send(&stream).is_ok() {
            sent += 1;
        }
        // Full, and it stays full: the bridge waits for us.
        sent == 0
    });
    assert!(full, "the bridge keeps all answers");
    street.finish();
    drop(stream);
}
