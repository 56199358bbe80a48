//! Guests that cost as much as they can: whatever fills their rings, the neighbour's small
//! packets come in time, because a burst has limits of packets, bytes and descriptors.

use super::attack::{Attack, HEADER, Way, chain};
use super::common::bridge::{LIMIT, alone};
use super::neighbour::Street;
use ringbridge::counters::Reason;
use ringbridge::frontend::{DESC_NEXT, GuestOptions, RawDesc};
use std::time::{Duration, Instant};

/// Entries of the attacker's rings: the most there can be.
const LARGE: u16 = 32768;
/// Chains kept available. More would only make the rounds longer.
const FILL: u16 = 256;

/// Keeps a ring full of the chains that begin at `heads`.
struct Flood<'a, 'b> {
    attack: &'a mut Attack<'b>,
    heads: Vec<u16>,
    posted: u16,
}

impl<'a, 'b> Flood<'a, 'b> {
    fn new(attack: &'a mut Attack<'b>, heads: &[u16]) -> Self {
        let posted = attack.used;
        Flood { attack, heads: heads.to_vec(), posted }
    }

    /// Fill it up; let the device work on it.
    fn round(&mut self) {
        let heads = self.heads.len();
        let used = self.attack.ring().used_idx();
        for _ in self.posted.wrapping_sub(used)..FILL {
            self.attack.ring().post_head(self.heads[usize::from(self.posted) % heads]);
            self.posted = self.posted.wrapping_add(1);
        }
        self.attack.ring().kick();
        if self.attack.way == Way::ToGuest {
            for _ in 0..32 {
                self.attack.peer.post(&[9; 1490]);
            }
            self.attack.peer.tx.kick();
        } else {
            self.attack.peer.discard();
        }
    }

    /// All that was posted comes back; the ring is empty.
    fn end(self) {
        let Flood { attack, posted, .. } = self;
        if attack.way == Way::FromGuest {
            assert!(attack.ring().wait_used(posted, LIMIT), "chains are left");
        }
    }
}

/// As much of a CPU as an attacker takes, without an attack.
fn spin() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(100) {
        std::hint::spin_loop();
    }
}

/// An attacker with the largest rings.
fn large(street: &Street, way: Way) -> Attack<'_> {
    let options = GuestOptions { queue_size: LARGE, ..GuestOptions::default() };
    Attack::with(&street.bed, way, &options)
}

/// Flood the ring with these heads; the neighbour must not notice, and the ring goes on.
fn flood(street: &Street, attack: &mut Attack, heads: &[u16], what: &str) {
    let mut flood = Flood::new(attack, heads);
    street.expect_in_time(what, spin, || flood.round());
    flood.end();
}

/// Every packet a chain of as many descriptors as the largest ring has: too long, after 1024.
#[test]
fn chains_of_32768_descriptors() {
    let _alone = alone();
    let street = Street::new();
    for way in [Way::FromGuest, Way::ToGuest] {
        for (what, len) in [("of no bytes", 0), ("of a byte each", 1)] {
            let mut attack = large(&street, way);
            let descs = chain(0, &vec![attack.good(len); usize::from(LARGE)]);
            for (i, desc) in descs.iter().enumerate() {
                attack.ring().set_desc(i as u16, *desc);
            }
            // From many places: each walk reads other lines.
            let heads: Vec<u16> = (0..64).map(|i| 500 * i).collect();
            flood(&street, &mut attack, &heads, what);
            let reason = Reason::ChainTooLong;
            if way == Way::FromGuest {
                assert_eq!(attack.lost(reason), attack.lost_total());
            }
            assert!(attack.lost(reason) > 0);
            assert!(attack.err.read().is_err());
        }
    }
    street.finish();
}

/// The same behind indirect descriptors, and circles.
#[test]
fn tables_and_circles_without_end() {
    let _alone = alone();
    let street = Street::new();
    for way in [Way::FromGuest, Way::ToGuest] {
        let mut attack = large(&street, way);
        let entries = chain(0, &vec![attack.good(0); usize::from(LARGE)]);
        let table = attack.table(&entries);
        let circle =
            [RawDesc { flags: attack.good(0).flags | DESC_NEXT, next: 0, ..attack.good(0) }];
        let circle = RawDesc { len: 0xffff_fff0, ..attack.table(&circle) };
        let itself =
            |i| RawDesc { flags: attack.good(0).flags | DESC_NEXT, next: i, ..attack.good(0) };
        let descs = [table, circle, itself(2), itself(4), itself(3)];
        for (i, desc) in descs.into_iter().enumerate() {
            attack.ring().set_desc(i as u16, desc);
        }
        flood(&street, &mut attack, &[0, 1, 2, 3], "tables and circles");
        assert!(attack.lost(Reason::ChainTooLong) > 0);
        assert!(attack.err.read().is_err());
    }
    street.finish();
}

/// The longest packets there are, in one buffer and in as many as a chain may have.
#[test]
fn packets_of_64_kilobytes() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = large(&street, Way::FromGuest);
    let whole = attack.good(HEADER + 65535);
    attack.ring().set_desc(0, whole);
    let mut pieces = vec![attack.good(64); 1023];
    pieces.push(attack.good(HEADER + 65535 - 1023 * 64));
    for (i, desc) in chain(1, &pieces).into_iter().enumerate() {
        attack.ring().set_desc(1 + i as u16, desc);
    }
    for (what, heads) in [("whole", &[0][..]), ("in pieces", &[1]), ("both", &[0, 1])] {
        flood(&street, &mut attack, heads, what);
        attack.used = attack.ring().used_idx();
    }
    assert_eq!(attack.lost_total(), 0);
    street.finish();
}

/// A packet over as many buffers as possible, again and again.
#[test]
fn buffers_of_a_byte() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = large(&street, Way::ToGuest);
    let (header, byte) = (attack.good(HEADER), attack.good(1));
    attack.ring().set_desc(0, header);
    attack.ring().set_desc(1, byte);
    let heads: Vec<u16> = (0..1500).map(|i| u16::from(i > 0)).collect();
    flood(&street, &mut attack, &heads, "a byte a buffer");
    assert!(attack.lost_total() > 0);
    street.finish();
}
