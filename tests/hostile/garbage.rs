//! Memory that changes while the device reads it, and rings full of nonsense: whatever is
//! served of it, the worker lives, the neighbour is served, and a restarted ring works.

use super::attack::{Attack, HEADER, SIZE, WAYS, Way};
use super::common::bridge::{LIMIT, alone};
use super::neighbour::Street;
use ringbridge::frontend::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Ram, RawDesc};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_millis(700);

/// Reproducible noise.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Writes into the guest's memory until it is told to stop.
struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Scribbler {
    fn start(attack: &Attack, mut scribble: impl FnMut(&Ram) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, ram) = (Arc::clone(&stop), Arc::clone(&attack.raw.ram));
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                scribble(&ram);
            }
        });
        Scribbler { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Offset in the memory of the ring's descriptor table, and of the first byte behind the ring.
fn extent(attack: &mut Attack) -> (usize, usize) {
    let user = attack.raw.ram.user(0);
    let at = attack.ring().area().user_addresses();
    let size = usize::from(attack.ring().area().size());
    ((at.desc - user) as usize, (at.used - user) as usize + 6 + 8 * size)
}

/// Descriptors change between good and bad ones at any moment: a chain is a packet or an error,
/// and nothing else.
#[test]
fn descriptors_that_change_while_they_are_read() {
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        let (good, end) = (attack.good(HEADER + 200), attack.end());
        let table = attack.table(&[good; 4]);
        let table_at = attack.raw.ram.size() - (end - table.addr) as usize;
        let variants = [
            good,
            RawDesc { len: u32::MAX, ..good },
            RawDesc { len: 0, ..good },
            RawDesc { len: HEADER + 40_000, ..good },
            RawDesc { addr: end - 100, ..good },
            RawDesc { addr: u64::MAX - 100, ..good },
            RawDesc { flags: good.flags ^ DESC_WRITE, ..good },
            RawDesc { flags: good.flags | DESC_NEXT, next: 1, ..good },
            RawDesc { flags: good.flags | DESC_NEXT, next: 3, len: 7, ..good },
            RawDesc { flags: good.flags | DESC_NEXT, next: 999, ..good },
            table,
            RawDesc { len: 16, ..table },
            RawDesc { len: 0xffff_fff0, ..table },
        ];
        let (descs, _) = extent(&mut attack);
        let mut noise = Noise(0x1234_5678_9abc_def1);
        let scribbler = Scribbler::start(&attack, move |ram| {
            let desc = variants[noise.below(variants.len())];
            ram.write(descs + 16 * noise.below(8), &desc.bytes());
            let entry = variants[noise.below(variants.len())];
            let entry = RawDesc { flags: entry.flags & !DESC_INDIRECT, next: 2, ..entry };
            ram.write(table_at + 16 * noise.below(4), &entry.bytes());
        });
        let before = way.totals(attack.bed);
        let (start, mut posted) = (Instant::now(), 0_u16);
        let mut provoked = 0_u64;
        while start.elapsed() < TIME {
            while posted.wrapping_sub(attack.ring().used_idx()) < SIZE {
                attack.ring().post_head(posted % 8);
                posted = posted.wrapping_add(1);
            }
            attack.provoke();
            provoked += 1;
            attack.peer.discard();
        }
        scribbler.stop();
        let outcomes = || {
            let now = way.totals(&street.bed);
            let (packets, drops) =
                (now.packets - before.packets, now.drops.total() - before.drops.total());
            (packets, drops)
        };
        match way {
            // Every chain was one packet or one error.
            Way::FromGuest => {
                attack.provoke();
                assert!(attack.ring().wait_used(posted, LIMIT), "chains are left");
                let ends = || outcomes().0 + outcomes().1;
                street.bed.expect("chains counted", |_| ends() as u16 == posted);
            }
            // Every packet was delivered or lost.
            Way::ToGuest => {
                street.bed.expect("packets counted", |_| outcomes().0 + outcomes().1 == provoked);
            }
        }
        let (packets, drops) = outcomes();
        assert!(packets > 0 && drops > 0, "{way:?}: {packets} good, {drops} bad");
        assert!(attack.err.read().is_err(), "{way:?}: the ring itself told no lie");
        street.bed.expect("all sent on", |_| attack.peer.discard() == 0);
        attack.stop();
        attack.start(0);
        attack.expect_working("after it all");
    }
    street.finish();
}

/// Every byte of the rings and of the tables behind them is noise, all the time.
#[test]
fn rings_of_noise() {
    let _alone = alone();
    let street = Street::new();
    for (way, seed) in WAYS.into_iter().zip([0xfeed_face_cafe_beef, 0x0123_4567_89ab_cdef]) {
        let mut attack = Attack::new(&street.bed, way);
        let (from, to) = extent(&mut attack);
        let (guest, size) = (attack.raw.ram.guest(0), attack.raw.ram.size() as u64);
        let mut noise = Noise(seed);
        let scribbler = Scribbler::start(&attack, move |ram| {
            let at = from + noise.below((to - from) / 8) * 8;
            let word = match noise.below(4) {
                // Pure; an address that may be right; small numbers; nothing.
                0 => noise.next(),
                1 => guest + noise.next() % size,
                2 => noise.next() & 0x0007_0007_0000_0fff,
                _ => noise.next() & 0x00ff_00ff_00ff_00ff,
            };
            ram.write(at, &word.to_le_bytes());
        });
        let (start, mut noise) = (Instant::now(), Noise(seed ^ 0xffff));
        while start.elapsed() < TIME {
            let base = noise.next() as u16;
            attack.raw.start(way.index(), base).unwrap();
            for i in 0..200 {
                // An index that can be, so that the noise behind it is looked at.
                attack.ring().set_avail_idx(base.wrapping_add(i));
                attack.provoke();
                attack.peer.discard();
            }
            attack.stop();
        }
        scribbler.stop();
        street.expect_service();
        attack.start(7);
        while attack.peer.discard() > 0 {}
        attack.expect_working("after the noise");
    }
    street.finish();
}
