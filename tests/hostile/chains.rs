//! Chains that are wrong: counted by reason, given back with length 0 in their order, and the
//! ring goes on.

use super::attack::{Attack, HEADER, SIZE, WAYS, Way, chain};
use super::common::bridge::{LIMIT, alone};
use super::neighbour::Street;
use ringbridge::counters::Reason;
use ringbridge::frontend::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, GuestOptions, RawDesc};

/// What is wrong, how it is counted, and the descriptors to post from a given one on.
type Case = (&'static str, Reason, fn(&mut Attack, u16) -> Vec<RawDesc>);

/// Wrong in both directions, wherever in a packet.
const ANYWHERE: &[Case] = &[
    ("an address in no region", Reason::BadAddress, |a, _| vec![a.desc(0x1000, 100)]),
    ("a buffer across the end", Reason::BadAddress, |a, _| vec![a.desc(a.end() - 50, 100)]),
    ("a buffer behind the end", Reason::BadAddress, |a, _| vec![a.desc(a.end(), 4000)]),
    ("a buffer that wraps", Reason::BadAddress, |a, _| vec![a.desc(u64::MAX - 50, 100)]),
    ("the last byte of all", Reason::BadAddress, |a, _| vec![a.desc(u64::MAX, u32::MAX)]),
    ("a second buffer that wraps", Reason::BadAddress, |a, first| {
        chain(first, &[a.good(20), a.desc(u64::MAX - 1, u32::MAX)])
    }),
    ("a next behind the table", Reason::BadNext, |a, _| vec![next(a.good(20), SIZE)]),
    ("the greatest next", Reason::BadNext, |a, _| vec![next(a.good(20), u16::MAX)]),
    ("a next behind the indirect table", Reason::BadNext, |a, _| {
        let entry = next(a.good(20), 1);
        vec![a.table(&[entry])]
    }),
    ("a descriptor that follows itself", Reason::ChainTooLong, |a, first| {
        vec![next(a.good(20), first)]
    }),
    ("the same without a byte", Reason::ChainTooLong, |a, first| vec![next(a.good(0), first)]),
    ("two that follow each other", Reason::ChainTooLong, |a, first| {
        vec![next(a.good(1), first + 1), next(a.good(0), first)]
    }),
    ("an indirect circle", Reason::ChainTooLong, |a, _| {
        let entries = [next(a.good(1), 1), next(a.good(1), 0)];
        vec![a.table(&entries)]
    }),
    ("an indirect circle in an endless table", Reason::ChainTooLong, |a, _| {
        let entries = [next(a.good(0), 0)];
        vec![RawDesc { len: 0xffff_fff0, ..a.table(&entries) }]
    }),
    ("more descriptors than a burst", Reason::ChainTooLong, |a, _| {
        let entries = chain(0, &[a.good(0); 1025]);
        vec![a.table(&entries)]
    }),
    ("an empty indirect table", Reason::BadIndirect, |a, _| vec![table_of(a, 0)]),
    ("15 bytes of a table", Reason::BadIndirect, |a, _| vec![table_of(a, 15)]),
    ("17 bytes of a table", Reason::BadIndirect, |a, _| vec![table_of(a, 17)]),
    ("the greatest odd table", Reason::BadIndirect, |a, _| vec![table_of(a, u32::MAX)]),
    ("a table in a table", Reason::BadIndirect, |a, _| {
        let inner = table_of(a, 16);
        vec![a.table(&[inner])]
    }),
    ("a table that goes on", Reason::BadIndirect, |a, first| {
        vec![next(table_of(a, 16), first + 1), a.good(100)]
    }),
    ("a buffer, then an empty table", Reason::BadIndirect, |a, first| {
        let table = table_of(a, 0);
        chain(first, &[a.good(20), table])
    }),
    ("a table in no region", Reason::BadAddress, |_, _| vec![indirect(0x1000, 16)]),
    ("a table that wraps", Reason::BadAddress, |_, _| vec![indirect(u64::MAX - 7, 16)]),
    ("a table across the end", Reason::BadAddress, |a, _| {
        let entry = next(a.good(20), 1);
        a.raw.ram.write(a.raw.ram.size() - 16, &entry.bytes());
        vec![indirect(a.end() - 16, 32)]
    }),
    ("a table of a buffer in no region", Reason::BadAddress, |a, _| {
        let entry = a.desc(0x1000, 100);
        vec![a.table(&[entry])]
    }),
    ("the other direction", Reason::BadDirection, |a, _| vec![turned(a.good(200))]),
    ("a second one of the other direction", Reason::BadDirection, |a, first| {
        chain(first, &[a.good(20), turned(a.good(200))])
    }),
    ("the other direction in a table", Reason::BadDirection, |a, _| {
        let entries = chain(0, &[a.good(20), turned(a.good(200))]);
        vec![a.table(&entries)]
    }),
];

/// Wrong in both directions, at the beginning of a packet.
const FIRST: &[Case] = &[
    ("a byte less than the header", Reason::NoHeader, |a, _| vec![a.good(HEADER - 1)]),
    ("no byte", Reason::NoHeader, |a, _| vec![a.good(0)]),
    ("the header over three, a byte short", Reason::NoHeader, |a, first| {
        chain(first, &[a.good(4), a.good(4), a.good(3)])
    }),
    ("no byte in a table", Reason::NoHeader, |a, _| {
        let entry = a.good(0);
        vec![a.table(&[entry])]
    }),
];

/// Wrong for a packet that the guest sends.
const SENT: &[Case] = &[
    ("the header alone", Reason::Runt, |a, _| vec![a.good(HEADER)]),
    ("13 bytes of a packet", Reason::Runt, |a, _| vec![a.good(HEADER + 13)]),
    ("the header over three, and nothing", Reason::Runt, |a, first| {
        chain(first, &[a.good(4), a.good(4), a.good(4)])
    }),
    ("a byte too many", Reason::TooLong, |a, _| vec![a.good(HEADER + 65536)]),
    ("too many in two", Reason::TooLong, |a, first| {
        chain(first, &[a.good(40_000), a.good(40_000)])
    }),
    ("a buffer of 4 GiB", Reason::BadAddress, |a, _| vec![a.good(u32::MAX)]),
];

fn next(desc: RawDesc, next: u16) -> RawDesc {
    RawDesc { flags: desc.flags | DESC_NEXT, next, ..desc }
}

fn turned(desc: RawDesc) -> RawDesc {
    RawDesc { flags: desc.flags ^ DESC_WRITE, ..desc }
}

fn indirect(addr: u64, len: u32) -> RawDesc {
    RawDesc { addr, len, flags: DESC_INDIRECT, next: 0 }
}

/// A table of one good buffer that claims to have `len` bytes.
fn table_of(a: &mut Attack, len: u32) -> RawDesc {
    let entry = a.good(200);
    RawDesc { len, ..a.table(&[entry]) }
}

/// One case on a ring of its own that works before and after.
fn one(attack: &mut Attack, case: &Case) {
    let (what, reason, descs) = *case;
    let lost = attack.lost(reason);
    let total = attack.lost_total();
    let descs = descs(attack, 0);
    attack.ring().post(0, &descs);
    attack.provoke();
    attack.expect_given_back(&[0], what);
    attack.bed.expect(what, |_| attack.lost(reason) == lost + 1);
    assert_eq!(attack.lost_total(), total + 1, "{what}");
    attack.expect_nothing_delivered(what);
    attack.expect_working(what);
}

#[test]
fn every_error_in_both_directions() {
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        attack.expect_working("before");
        let of_one_way = if way == Way::FromGuest { SENT } else { &[] };
        for case in ANYWHERE.iter().chain(FIRST).chain(of_one_way) {
            one(&mut attack, case);
        }
        assert!(attack.err.read().is_err(), "no ring lied");
    }
    street.finish();
}

/// In one burst, good chains around every bad one.
#[test]
fn bad_chains_among_good_ones() {
    let _alone = alone();
    let street = Street::new();
    let options = GuestOptions { queue_size: 1024, ..GuestOptions::default() };
    let mut attack = Attack::with(&street.bed, Way::FromGuest, &options);
    let cases: Vec<&Case> = ANYWHERE
        .iter()
        .chain(FIRST)
        .chain(SENT)
        // Too small a number for a table of this size.
        .filter(|case| case.0 != "a next behind the table")
        .collect();
    let good = attack.good(HEADER + 60);
    let mut heads = Vec::new();
    for (i, (_, _, descs)) in cases.iter().enumerate() {
        let first = 8 * i as u16;
        let descs = descs(&mut attack, first + 1);
        for (i, desc) in descs.iter().enumerate() {
            attack.ring().set_desc(first + 1 + i as u16, *desc);
        }
        attack.ring().set_desc(first, good);
        heads.extend([first, first + 1]);
    }
    for _ in 0..3 {
        for &head in &heads {
            attack.ring().post_head(head);
        }
        attack.provoke();
        attack.expect_given_back_all(&heads);
    }
    let n = 3 * cases.len();
    let mut received = 0;
    street.bed.expect("the good ones", |_| {
        received += attack.peer.discard();
        received == n
    });
    for reason in Reason::ALL {
        let expected = 3 * cases.iter().filter(|case| case.1 == reason).count() as u64;
        assert_eq!(attack.lost(reason), expected, "{reason:?}");
    }
    street.finish();
}

/// A packet that takes two buffers finds the second one bad: both come back empty.
#[test]
fn the_second_buffer_of_a_packet_is_bad() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = Attack::new(&street.bed, Way::ToGuest);
    for (what, reason, descs) in ANYWHERE {
        let (lost, total) = (attack.lost(*reason), attack.lost_total());
        let first = attack.good(60);
        let second = descs(&mut attack, 8);
        attack.ring().set_desc(0, first);
        for (i, desc) in second.iter().enumerate() {
            attack.ring().set_desc(8 + i as u16, *desc);
        }
        // Both at once: one buffer alone would be too few.
        let ring = attack.ring();
        ring.post_head(0);
        ring.post_head(8);
        attack.provoke();
        attack.expect_given_back(&[0, 8], what);
        attack.bed.expect(what, |_| attack.lost(*reason) == lost + 1);
        assert_eq!(attack.lost_total(), total + 1, "{what}");
        attack.expect_working(what);
    }
    street.finish();
}

/// Without mergeable buffers a packet must fit its chain; if it does not, the chain waits for a
/// shorter one.
#[test]
fn buffers_too_small_for_their_packets() {
    let _alone = alone();
    let street = Street::new();
    let options = GuestOptions { mergeable: false, queue_size: SIZE, ..GuestOptions::default() };
    let mut attack = Attack::with(&street.bed, Way::ToGuest, &options);
    for (lost, split) in [(1, false), (2, true)] {
        let (whole, header, data) =
            (attack.good(HEADER + 99), attack.good(HEADER), attack.good(99));
        let descs = if split { chain(0, &[header, data]) } else { vec![whole] };
        attack.ring().post(0, &descs);
        attack.provoke();
        attack.expect_lost(Reason::TooLong, lost, "a byte too short");
        attack.expect_given_back(&[], "a byte too short");
        attack.peer.send(&[7; 99]);
        attack.used += 1;
        let used = attack.used;
        assert!(attack.ring().wait_used(used, LIMIT));
        assert_eq!(attack.ring().used(used - 1), (0, HEADER + 99));
    }
    for case in ANYWHERE.iter().chain(FIRST) {
        one(&mut attack, case);
    }
    street.finish();
}

/// A packet over more buffers than anybody has room to note: dropped, and the buffers go back.
#[test]
fn many_tiny_buffers() {
    let _alone = alone();
    let street = Street::new();
    let options = GuestOptions { queue_size: 2048, ..GuestOptions::default() };
    let mut attack = Attack::with(&street.bed, Way::ToGuest, &options);
    let (header, byte) = (attack.good(HEADER), attack.good(1));
    attack.ring().set_desc(0, header);
    for i in 1..1024 {
        attack.ring().set_desc(i, RawDesc { addr: byte.addr + u64::from(i), ..byte });
    }
    for i in (0..1024).chain(0..201) {
        attack.ring().post_head(i);
    }
    attack.peer.send(&[1; 1490]);
    attack.expect_lost(Reason::ChainTooLong, 1, "a byte each");
    assert!(attack.ring().wait_used(1024, LIMIT));
    for i in 0..1024 {
        assert_eq!(attack.ring().used(i), (u32::from(i), 0));
    }
    let frame: Vec<u8> = (0..200).collect();
    attack.peer.send(&frame);
    assert!(attack.ring().wait_used(1225, LIMIT));
    for i in 0..201 {
        let len = if i == 0 { HEADER } else { 1 };
        assert_eq!(attack.ring().used(1024 + i), (u32::from(i), len));
    }
    let mut seen = vec![0; 200];
    // Byte 1 went one byte behind the place of byte 0.
    attack.raw.ram.read(attack.raw.scratch() + 1, &mut seen);
    assert_eq!(seen, frame);
    street.finish();
}
