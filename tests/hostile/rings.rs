//! Rings that lie: that ring alone stops, its error is signalled, and a new start mends it.

use super::attack::{Attack, HEADER, SIZE, WAYS, Way};
use super::common::bridge::{LIMIT, alone};
use super::common::wait_until;
use super::neighbour::Street;
use ringbridge::counters::Reason;
use ringbridge::frontend::GuestOptions;

/// The lie is told after some good chains, the ring stops, and works again once restarted.
fn lie(street: &Street, way: Way, size: u16, what: &str, tell: impl Fn(&mut Attack)) {
    let options = GuestOptions { queue_size: size.max(2), ..GuestOptions::default() };
    let mut attack = Attack::with(&street.bed, way, &options);
    for first in [0, 65530] {
        if first > 0 {
            attack.stop();
            attack.start(first);
        }
        if size == SIZE {
            attack.expect_working(what);
        }
        tell(&mut attack);
        attack.provoke();
        attack.expect_broken(what);
        // Stopped at the lie: nothing was skipped.
        assert_eq!(attack.stop(), attack.used, "{what}");
    }
    attack.start(5);
    if size == SIZE {
        attack.expect_working(what);
    }
    assert!(attack.err.read().is_err(), "{what}");
}

#[test]
fn heads_that_do_not_exist() {
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        for size in [2, SIZE] {
            for head in [size, size + 1, u16::MAX] {
                let what = format!("head {head} of {size}");
                lie(&street, way, size, &what, |attack| attack.ring().post_head(head));
            }
        }
    }
    street.finish();
}

#[test]
fn indices_that_cannot_be() {
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        for size in [2, SIZE] {
            for ahead in [size + 1, 0x8000, u16::MAX] {
                let what = format!("avail.idx {ahead} ahead in a ring of {size}");
                lie(&street, way, size, &what, |attack| {
                    let idx = attack.used.wrapping_add(ahead);
                    attack.ring().set_avail_idx(idx);
                });
            }
        }
    }
    street.finish();
}

/// The chains before the lie are served; the one that lies is not, nor any after it.
#[test]
fn good_chains_before_a_lie_are_served() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    let good = attack.good(HEADER + 60);
    for head in 0..10 {
        attack.ring().set_desc(head, good);
        attack.ring().post_head(head);
    }
    attack.ring().post_head(SIZE);
    attack.ring().post_head(0);
    attack.provoke();
    assert!(wait_until(LIMIT, || attack.err.read().is_ok()));
    let heads: Vec<u16> = (0..10).collect();
    attack.expect_given_back_all(&heads);
    let mut received = 0;
    street.bed.expect("the good ones", |_| {
        received += attack.peer.discard();
        received == 10
    });
    assert_eq!(attack.lost_total(), 0);
    assert_eq!(attack.stop(), 10);
    street.finish();
}

/// A packet that gathers its buffers comes to a head that does not exist.
#[test]
fn a_lie_amid_a_packets_buffers() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = Attack::new(&street.bed, Way::ToGuest);
    let small = attack.good(60);
    attack.ring().set_desc(0, small);
    attack.ring().post_head(0);
    attack.ring().post_head(SIZE);
    attack.provoke();
    attack.expect_lost(Reason::NoBuffers, 1, "amid a packet");
    attack.expect_broken("amid a packet");
    // The good buffer was not used: the packet was dropped as a whole.
    assert_eq!(attack.stop(), 0);
    attack.start(0);
    attack.expect_working("after it");
    street.finish();
}

/// What belongs to the device is written by the guest; the device does not read it.
#[test]
fn the_devices_own_words_are_not_believed() {
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        for round in 0..50 {
            let words = attack.ring().words();
            let garbage = 0x1234_u16.wrapping_mul(round);
            words.used_flags.store(garbage);
            words.avail_event.store(garbage);
            words.used_event.store(garbage);
            words.used_idx.store(attack.used.wrapping_sub(garbage | 2));
            let desc = attack.good(HEADER + 100);
            attack.ring().post(3, &[desc]);
            attack.provoke();
            attack.used = attack.used.wrapping_add(1);
            let used = attack.used;
            assert!(attack.ring().wait_used(used, LIMIT), "{way:?}, round {round}");
            if way == Way::FromGuest {
                assert_eq!(attack.peer.receive().len(), 100);
            }
            assert_eq!(attack.ring().used(used.wrapping_sub(1)).0, 3);
        }
        assert_eq!(attack.lost_total(), 0);
    }
    street.finish();
}

/// Offloads that were not negotiated, of the most absurd kind, are not passed on.
#[test]
fn header_fields_are_not_passed_on() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    let scratch = attack.raw.scratch();
    attack.raw.ram.write(scratch, &[0xff; HEADER as usize]);
    attack.raw.ram.write(scratch + HEADER as usize, &[7; 60]);
    let desc = attack.good(HEADER + 60);
    attack.ring().post(0, &[desc]);
    attack.provoke();
    // The peer looks at the header it gets.
    assert_eq!(attack.peer.receive(), [7; 60]);
    street.finish();
}
