//! A guest that migrates, by real messages: its frontend sets dirty logs and takes them away while
//! packets go out and come back.

use super::common::bridge::{Bed, LIMIT, Peer, alone};
use super::common::wait_until;
use ringbridge::counters::Reason;
use ringbridge::frontend::{GuestOptions, Ram};
use ringbridge::sys::memfd;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: u64 = 4096;
/// Where the log begins in its file.
const OFFSET: u64 = 0x1040;

/// A log for all of a guest's addresses.
struct Log {
    file: File,
    first_page: u64,
    bytes: u64,
}

impl Log {
    fn of(ram: &Ram) -> Self {
        let bytes = ram.guest(ram.size()).div_ceil(8 * PAGE);
        let file = memfd(c"dirty-log", OFFSET + bytes).unwrap();
        Log { file, first_page: ram.guest(0) / PAGE, bytes }
    }

    fn place(&self) -> (u64, u64) {
        (OFFSET, self.bytes)
    }

    /// The pages that are marked, counted from the first one of the memory.
    fn pages(&self) -> Vec<u64> {
        let mut bits = vec![0; self.bytes as usize];
        self.file.read_exact_at(&mut bits, OFFSET).unwrap();
        let set = |page: &u64| bits[*page as usize / 8] & 1 << (page % 8) != 0;
        let pages = (0..8 * self.bytes).filter(set);
        pages.map(|page| page.checked_sub(self.first_page).unwrap()).collect()
    }
}

/// How often logs are mapped in this process: the bridge is in it.
fn mapped() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("dirty-log").count()
}

fn contents(ram: &Ram) -> Vec<u8> {
    let mut bytes = vec![0; ram.size()];
    ram.read(0, &mut bytes);
    bytes
}

/// Rings go on at their indices, and no packet is doubled or lost without a count, while the log is
/// set, replaced, switched on and off, and addresses are sent again with the log flag and without.
/// While the receive ring alone is placed anew there is nobody to send to, which is counted.
#[test]
fn a_log_that_comes_and_goes_under_running_rings_loses_nothing() {
    let _alone = alone();
    let bed = Bed::new(1);
    let Peer { mut session, mut rings } = Peer::connect(&bed.socket(0));
    let stop = AtomicBool::new(false);
    let (mut sent, mut dropped) = (0_u32, 0);
    let drops = || bed.counters().ports[0].tx.drops.of(Reason::NotConnected);
    std::thread::scope(|scope| {
        let log = Log::of(rings.ram());
        let places =
            [&rings.rx, &rings.tx].map(|r| (r.area().user_addresses(), r.area().used_guest()));
        let (session, stop) = (&mut session, &stop);
        scope.spawn(move || {
            for i in 0..60 {
                // On before there is a log, too.
                session.set_logging(i % 2 == 0).unwrap();
                session.set_log_base(&log.file, log.place()).unwrap();
                for (index, (at, used)) in places.into_iter().enumerate() {
                    session.place_ring(index, at, (i % 3 != 0).then_some(used)).unwrap();
                }
                session.set_logging(i % 4 < 2).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            rings.send(&sent.to_le_bytes().repeat(20));
            let done = wait_until(LIMIT, || rings.has_frame() || drops() > dropped);
            assert!(done, "packet {sent} is neither there nor counted");
            if rings.has_frame() {
                assert_eq!(rings.take(), sent.to_le_bytes().repeat(20));
            } else {
                dropped += 1;
            }
            sent += 1;
        }
    });
    assert!(u64::from(sent) > dropped, "{dropped} of {sent} dropped");
    let port = bed.stop().0.ports.swap_remove(0);
    assert_eq!((port.rx.packets, port.tx.packets + dropped), (sent.into(), sent.into()));
    assert_eq!((port.rx.drops.total(), port.tx.drops.total()), (0, dropped));
    assert!(port.refused.is_empty(), "{:?}", port.refused);
}

/// Once `GET_VRING_BASE` is answered, every page that has changed is marked; without the feature
/// none is. Only one log is mapped at a time.
#[test]
fn all_is_marked_when_the_rings_have_stopped() {
    let _alone = alone();
    let bed = Bed::new(1);
    for event_idx in [false, true] {
        let options = GuestOptions { event_idx, ..GuestOptions::default() };
        let Peer { mut session, mut rings } = Peer::with(&bed.socket(0), options);
        let ram = Arc::clone(rings.ram());
        for round in 0..8_u16 {
            let on = round % 2 == 0;
            let log = Log::of(&ram);
            session.set_log_base(&log.file, log.place()).unwrap();
            session.set_logging(on).unwrap();
            for (index, ring) in [&rings.rx, &rings.tx].into_iter().enumerate() {
                let area = ring.area();
                let used = on.then(|| area.used_guest());
                session.place_ring(index, area.user_addresses(), used).unwrap();
            }
            assert_eq!(mapped(), 1);
            let frame = vec![round as u8 + 1; 3000];
            rings.post(&frame);
            let before = contents(&ram);
            rings.tx.kick();
            assert!(wait_until(LIMIT, || rings.has_frame()));
            let bases = [0, 1].map(|index| session.stop_ring(index).unwrap());
            assert_eq!(bases, [round + 1; 2]);
            let marked = log.pages();
            let after = contents(&ram);
            let pages = before.chunks(PAGE as usize).zip(after.chunks(PAGE as usize));
            let changed = (0_u64..).zip(pages).filter(|(_, (a, b))| a != b).map(|(page, _)| page);
            let unmarked: Vec<_> = changed.filter(|page| !marked.contains(page)).collect();
            if on {
                assert!(unmarked.is_empty(), "round {round}: {unmarked:?} not in {marked:?}");
                assert!(marked.len() >= 2, "a payload and a ring: {marked:?}");
            } else {
                assert!(marked.is_empty(), "round {round}: {marked:?}");
            }
            for (index, ring) in [&rings.rx, &rings.tx].into_iter().enumerate() {
                session.start_ring(index, ring.area(), ring.events(), bases[index]).unwrap();
                session.enable_ring(index, true).unwrap();
            }
            assert_eq!(rings.receive(), frame);
        }
        drop(session);
        assert!(wait_until(LIMIT, || mapped() == 0), "a log outlives its session");
    }
}

/// A log that cannot be used has no answer that says so: the connection ends, with its reason,
/// and the next one is served.
#[test]
fn a_log_that_cannot_be_used_ends_the_connection() {
    let _alone = alone();
    let bed = Bed::new(1);
    let disk = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    disk.as_file().set_len(PAGE).unwrap();
    let short = memfd(c"short", PAGE).unwrap();
    let vast = memfd(c"vast", 1 << 46).unwrap();
    let wrong = [(disk.as_file(), (0, PAGE)), (&short, (8, PAGE)), (&vast, (0, 1 << 46))];
    for (n, (file, place)) in (1..).zip(wrong) {
        let mut peer = Peer::connect(&bed.socket(0));
        assert!(peer.session.set_log_base(file, place).is_err());
        assert!(wait_until(LIMIT, || !peer.session.alive()));
        bed.expect("it is counted", |s| s.ports[0].refused.get("log") == Some(&n));
    }
    let mut peer = Peer::connect(&bed.socket(0));
    peer.send(&[7; 100]);
    assert_eq!(peer.receive(), [7; 100]);
}
