//! The dirty log against a plain oracle: the guest's memory before and after, page by page.

use crate::guest::{
    Desc, Driver, EVENT_IDX, Guest, INDIRECT, Layout, MRG_RXBUF, NEXT, REGION, VERSION_1, WRITE,
    frame,
};
use proptest::prelude::*;
use ringbridge::counters::QueueCounters;
use ringbridge::memory::DirtyLog;
use ringbridge::packet::{ALL, Packets};
use ringbridge::sys;
use ringbridge::virtio::{RingSetup, SplitRing};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const PAGE: u64 = 4096;
const PAGES: u64 = 2 * REGION / PAGE;
const LOG_ALL: u64 = 1 << 26;
const SEND: Layout = Layout { size: 64, at: 0 };
/// Its used ring crosses pages.
const RECEIVE: Layout = Layout { size: 1024, at: 0x1_0000 };
const BUFFERS: u64 = 0x10_0000;

/// A guest's memory and its dirty log.
struct Logged {
    guest: Guest,
    file: File,
    log: Arc<DirtyLog>,
    seen: Vec<u8>,
}

impl Logged {
    fn new() -> Self {
        let guest = Guest::new();
        let file = sys::memfd(c"log", PAGE).unwrap();
        // Not at the beginning of a page.
        let place = (24, PAGES / 8);
        let log = DirtyLog::map(file.try_clone().unwrap(), place, &Arc::default()).unwrap();
        let mut logged = Logged { guest, file, log, seen: Vec::new() };
        logged.look();
        logged
    }

    fn setup(&self, driver: &Driver) -> RingSetup {
        RingSetup {
            log: Some(Arc::clone(&self.log)),
            used_logged_at: Some(driver.layout.used()),
            ..driver.setup()
        }
    }

    fn start(&self, setup: RingSetup, features: u64) -> SplitRing {
        let memory = Arc::clone(&self.guest.shared);
        SplitRing::start(setup, memory, features).map_err(|(_, error)| error).unwrap()
    }

    /// The whole memory as it is now.
    fn look(&mut self) {
        self.seen = self.guest.read(0, 2 * REGION as usize);
    }

    /// Take the log's bits: the pages that they name.
    fn take(&self) -> Vec<u64> {
        let mut bits = vec![0; (PAGES / 8) as usize];
        self.file.read_exact_at(&mut bits, 24).unwrap();
        self.file.write_all_at(&vec![0; bits.len()], 24).unwrap();
        (0..PAGES).filter(|page| bits[(page / 8) as usize] >> (page % 8) & 1 == 1).collect()
    }

    /// The pages that have changed since the last look.
    fn changed(&mut self) -> Vec<u64> {
        let before = std::mem::take(&mut self.seen);
        self.look();
        let pages = before.chunks(PAGE as usize).zip(self.seen.chunks(PAGE as usize));
        (0..).zip(pages).filter(|(_, (old, new))| old != new).map(|(page, _)| page).collect()
    }

    /// Every page that has changed is in the log, and none that we may not have written.
    fn check(&mut self, may: impl Fn(u64) -> bool) {
        let (changed, logged) = (self.changed(), self.take());
        for page in &changed {
            assert!(logged.contains(page), "page {page} changed and is not in {logged:?}");
        }
        for &page in &logged {
            assert!(changed.contains(&page) || may(page), "page {page} is logged for nothing");
        }
    }
}

/// A receive buffer: its pieces, and whether they are in an indirect table.
#[derive(Debug, Clone)]
struct Buffer {
    gap: u64,
    pieces: Vec<u32>,
    indirect: bool,
}

fn buffer() -> impl Strategy<Value = Buffer> {
    let pieces = proptest::collection::vec(1..6000_u32, 1..4);
    (0..5000_u64, pieces, any::<bool>()).prop_map(|(gap, mut pieces, indirect)| {
        // Room for the header.
        pieces[0] += 12;
        Buffer { gap, pieces, indirect }
    })
}

/// Post buffers from descriptor 0 on; where each byte of theirs lies.
fn post(driver: &mut Driver, buffers: &[Buffer]) -> Vec<(u64, u64)> {
    let (mut head, mut at, mut table) = (0, BUFFERS, 0x8_0000);
    let mut ranges = Vec::new();
    for buffer in buffers {
        let first = head;
        let count = buffer.pieces.len() as u16;
        for (k, &len) in (0..).zip(&buffer.pieces) {
            at += buffer.gap;
            let more = if k + 1 < count { NEXT } else { 0 };
            if buffer.indirect {
                let desc = Desc { addr: at, len, flags: WRITE | more, next: k + 1 };
                driver.guest.write_desc(table + 16 * u64::from(k), desc);
            } else {
                driver.desc(first + k, at, len, WRITE | more, first + k + 1);
            }
            ranges.push((at, u64::from(len)));
            at += u64::from(len);
        }
        if buffer.indirect {
            driver.desc(first, table, 16 * u32::from(count), INDIRECT, 0);
            table += 16 * u64::from(count);
            head += 1;
        } else {
            head += count;
        }
        driver.publish(first);
    }
    ranges
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Both directions at once: frames go in by one ring and out by the other.
    #[test]
    fn every_page_that_we_write_is_logged(
        buffers in proptest::collection::vec(buffer(), 1..60),
        lens in proptest::collection::vec(14..9000_usize, 1..30),
        (mergeable, event_idx) in any::<(bool, bool)>(),
        base in any::<u16>(),
    ) {
        let mut logged = Logged::new();
        let guest = Guest { mem: logged.guest.mem.clone(), shared: logged.guest.shared.clone() };
        let mut sender = Driver::new(&guest, SEND, base);
        let mut receiver = Driver::new(&guest, RECEIVE, base);
        let features = VERSION_1 | LOG_ALL | if event_idx { EVENT_IDX } else { 0 };
        logged.look();
        let mut from = logged.start(logged.setup(&sender), features);
        let merge = if mergeable { MRG_RXBUF } else { 0 };
        let mut to = logged.start(logged.setup(&receiver), features | merge);
        let used = |layout: Layout| {
            let end = layout.used() + 6 + 8 * u64::from(layout.size);
            layout.used() / PAGE..=end / PAGE
        };
        let rings = |page: u64| used(SEND).contains(&page) || used(RECEIVE).contains(&page);
        logged.check(rings);
        let ranges = post(&mut receiver, &buffers);
        for (i, &len) in (0..).zip(&lens) {
            let addr = 0x60_0000 + 0x2400 * u64::from(i);
            guest.write(addr, &[&[0; 12], &frame(len, u32::from(i) + 1)[..]].concat());
            sender.desc(i, addr, 12 + len as u32, 0, 0);
            sender.publish(i);
        }
        logged.look();
        let (counters, mut packets) = (QueueCounters::default(), Packets::new());
        // SAFETY: the packets are forgotten before the ring goes.
        unsafe { from.receive(&mut packets, 64, &counters) };
        to.send(&packets, &ALL[..packets.len()], &counters);
        packets.clear();
        from.complete_receive();
        let buffer_page = |page: u64| {
            ranges.iter().any(|(at, len)| (at / PAGE..=(at + len - 1) / PAGE).contains(&page))
        };
        logged.check(|page| rings(page) || buffer_page(page));
        for ring in [&mut from, &mut to] {
            ring.arm();
            logged.check(rings);
            ring.disarm();
            logged.check(rings);
        }
        from.stop();
        to.stop();
        logged.check(rings);
    }
}

/// Without the feature, or without a log, nothing is marked; both come and go at any index.
#[test]
fn the_log_is_switched_on_and_off_between_bursts() {
    let logged = Logged::new();
    let guest = Guest { mem: logged.guest.mem.clone(), shared: logged.guest.shared.clone() };
    let mut driver = Driver::new(&guest, SEND, 7);
    let mut setup = logged.setup(&driver);
    for (round, (feature, log, address)) in
        [(false, true, true), (true, true, true), (true, false, true), (true, true, false)]
            .into_iter()
            .cycle()
            .take(40)
            .enumerate()
    {
        setup.log = log.then(|| Arc::clone(&logged.log));
        setup.used_logged_at = address.then_some(SEND.used());
        let features = VERSION_1 | if feature { LOG_ALL } else { 0 };
        let mut ring = logged.start(setup, features);
        guest.write(BUFFERS, &[0; 112]);
        driver.desc(3, BUFFERS, 112, 0, 0);
        driver.publish(3);
        assert_eq!(crate::receive(&mut ring, 64, &QueueCounters::default()).len(), 1);
        setup = ring.stop();
        assert_eq!(setup.base, 8 + round as u16);
        assert_eq!(driver.used(), [(3, 0)]);
        let expected: &[u64] = if feature && log && address { &[SEND.used() / PAGE] } else { &[] };
        assert_eq!(logged.take(), expected, "round {round}");
    }
}
