//! Rings that are said to lie where none can, or over something else.

use super::attack::{Attack, HEADER, SIZE, WAYS};
use super::common::bridge::alone;
use super::neighbour::Street;
use super::wire::{self, After, Message, expect_fds, expect_refused, served};

/// `SET_VRING_ADDR` of ring `index`.
fn addresses(index: usize, [desc, avail, used]: [u64; 3]) -> Message {
    Message::new(wire::SET_VRING_ADDR, &[index as u64, desc, used, avail, 0])
}

#[test]
fn rings_outside_memory_or_misaligned() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        let at = attack.ring().area().user_addresses();
        let right = [at.desc, at.avail, at.used];
        let ram = &attack.raw.ram;
        let (start, end) = (ram.user(0), ram.user(ram.size()));
        let bytes = [16, 2, 8].map(|entry| entry * u64::from(SIZE));
        for part in 0..3 {
            // The entries would end inside, the last words of a ring do not.
            let last = end - bytes[part] - if part == 0 { 0 } else { 4 };
            let wrong = [
                0,
                start - 16,
                if part == 0 { last + 16 } else { last },
                end - 16,
                end,
                end + 4096,
                0xffff_ffff_ffff_fff0,
            ];
            for wrong in wrong {
                let mut places = right;
                places[part] = wrong;
                let message = addresses(way.index(), places);
                expect_refused(&mut attack, &message, "ring_address", After::Stopped);
            }
            // The crate that decodes messages ends the connection for these.
            for by in [1, 2, 3, 4, 8].into_iter().filter(|by| by % [16, 2, 4][part] != 0) {
                let mut places = right;
                places[part] += by;
                let message = addresses(way.index(), places);
                expect_refused(&mut attack, &message, "bad_message", After::Closed);
                drop(attack);
                attack = Attack::new(&street.bed, way);
            }
        }
    }
    expect_fds(before, "after all addresses");
    street.finish();
}

/// What overlaps is the guest's affair: the device reads and writes what it is told to, in the
/// guest's own memory, and a ring that contradicts itself by that is stopped as any other.
#[test]
fn rings_over_each_other_and_over_buffers() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        let at = attack.ring().area().user_addresses();
        let buffer = attack.raw.ram.user(attack.raw.scratch());
        let places = [
            [at.desc, at.desc, at.desc],
            [at.desc, at.avail, at.desc],
            [at.desc, at.avail, at.avail & !3],
            [at.avail & !15, at.avail, at.used],
            [at.used & !15, at.avail, at.used],
            [at.desc, at.avail, buffer],
            [at.desc, buffer, at.used],
            [buffer, at.avail, at.used],
            [buffer, buffer, buffer],
        ];
        for places in places {
            let what = format!("{way:?}, {places:x?}");
            let (wrong, _) = wire::refused(&street.bed, "ring_address");
            addresses(way.index(), places).send(attack.raw.session.stream()).unwrap();
            let desc = attack.good(HEADER + 100);
            for head in 0..8 {
                attack.ring().post(head, &[desc]);
                attack.provoke();
            }
            assert!(served(attack.raw.session.stream()), "{what}");
            street.expect_service();
            assert_eq!(wire::refused(&street.bed, "ring_address").0, wrong, "{what}");
            attack.stop();
            attack.peer.discard();
            attack.start(11);
            // Packets that were made of what lay there may still be on their way.
            street.expect_service();
            while attack.peer.discard() > 0 {}
            // Whether it broke is its own affair, too.
            let _ = attack.err.read();
            attack.expect_working(&what);
        }
    }
    expect_fds(before, "after all places");
    street.finish();
}
