//! The dirty log through a ring's whole life: bursts, stops, starts, requests for kicks, in any
//! order and at any index. What has changed has its bit, and beside the used ring exactly the pages
//! that the used lengths speak of have one; then logs and addresses that do not fit.

use crate::guest::{
    Driver, EVENT_IDX, Guest, INDIRECT, Layout, MRG_RXBUF, NEXT, REGION, VERSION_1, WRITE, frame,
};
use crate::receive;
use proptest::prelude::*;
use ringbridge::counters::QueueCounters;
use ringbridge::memory::DirtyLog;
use ringbridge::packet::{ALL, Packets};
use ringbridge::sys;
use ringbridge::virtio::{RingSetup, SplitRing};
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const PAGE: u64 = 4096;
const LOG_ALL: u64 = 1 << 26;
const SIZE: u16 = 128;
/// Descriptors of a chain at most, and so the distance of two heads.
const STRIDE: u16 = 8;
const SLOTS: u16 = SIZE / STRIDE;
/// Bytes that a chain's buffers may lie in; the middle slot lies over the border of the regions.
const ROOM: u64 = 64 << 10;
const BUFFERS: u64 = REGION - SLOTS as u64 / 2 * ROOM - 777;
const TABLES: u64 = 0x2_0000;
/// The used ring crosses a page.
const RING: Layout = Layout { size: SIZE, at: 0x400 };
/// Where anything may be written.
const AREAS: [Range<u64>; 2] =
    [0..0x3_0000, BUFFERS / PAGE * PAGE..BUFFERS / PAGE * PAGE + (SLOTS as u64 + 1) * ROOM];
/// Where the log begins in its file.
const OFFSET: u64 = 0x1238;

type Pages = BTreeSet<u64>;

fn pages(addr: u64, len: u64) -> Pages {
    if len == 0 { Pages::new() } else { (addr / PAGE..=(addr + len - 1) / PAGE).collect() }
}

/// Every page of the used ring.
fn used_ring() -> Pages {
    pages(RING.used(), 6 + 8 * u64::from(SIZE))
}

/// A log of its own file, for `len` bytes of memory.
struct Log {
    file: File,
    shared: Arc<DirtyLog>,
    bytes: u64,
}

impl Log {
    fn new(len: u64) -> Self {
        let bytes = len.div_ceil(8 * PAGE);
        let file = sys::memfd(c"log", OFFSET + bytes + PAGE).unwrap();
        let clone = file.try_clone().unwrap();
        let shared = DirtyLog::map(clone, (OFFSET, bytes), &Arc::default()).unwrap();
        Log { file, shared, bytes }
    }

    /// The marked pages; they are clean again afterwards.
    fn take(&self) -> Pages {
        let mut all = vec![0; self.file.metadata().unwrap().len() as usize];
        self.file.read_exact_at(&mut all, 0).unwrap();
        self.file.write_all_at(&vec![0; all.len()], 0).unwrap();
        let (before, rest) = all.split_at(OFFSET as usize);
        let (log, after) = rest.split_at(self.bytes as usize);
        assert!(before.iter().chain(after).all(|&b| b == 0), "written outside of the log");
        let set = |page: &u64| log[*page as usize / 8] & 1 << (page % 8) != 0;
        (0..8 * self.bytes).filter(set).collect()
    }
}

/// What lies in the areas.
fn snapshot(guest: &Guest) -> Vec<(u64, Vec<u8>)> {
    AREAS.map(|area| (area.start, guest.read(area.start, (area.end - area.start) as usize))).into()
}

fn changed(before: &[(u64, Vec<u8>)], after: &[(u64, Vec<u8>)]) -> Pages {
    let mut changed = Pages::new();
    for ((start, old), (_, new)) in before.iter().zip(after) {
        let pairs = old.chunks(PAGE as usize).zip(new.chunks(PAGE as usize));
        let differ = |(i, (a, b)): (u64, (&[u8], &[u8]))| (a != b).then_some(start / PAGE + i);
        changed.extend((0..).zip(pairs).filter_map(differ));
    }
    changed
}

/// One step of the driver or the device.
#[derive(Clone, Debug)]
enum Op {
    /// Post a chain of these buffers, with as much room between them as `gap` says.
    Post {
        lens: Vec<u32>,
        gap: u64,
        indirect: bool,
    },
    /// The device moves at most so many packets.
    Burst(usize),
    /// It asks for kicks, and for none.
    Arm,
    Disarm,
    /// It is stopped and started again.
    Restart,
}

fn ops(lens: Range<u32>) -> impl Strategy<Value = Vec<Op>> {
    let lens = prop::collection::vec(lens, 1..5);
    let post = (lens, 0..6000u64, any::<bool>()).prop_map(|(lens, gap, indirect)| Op::Post {
        lens,
        gap,
        indirect,
    });
    let op = prop_oneof![
        6 => post,
        3 => (1..=64usize).prop_map(Op::Burst),
        1 => Just(Op::Arm),
        1 => Just(Op::Disarm),
        1 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..60)
}

fn features() -> impl Strategy<Value = u64> {
    let bits = [EVENT_IDX, MRG_RXBUF, VERSION_1];
    prop::collection::vec(any::<bool>(), 3)
        .prop_map(move |on| bits.iter().zip(on).filter(|(_, on)| *on).map(|(bit, _)| bit).sum())
}

/// A guest, its driver, our ring, and where its chains' buffers are.
struct Bed<'g> {
    driver: Driver<'g>,
    ring: Option<SplitRing>,
    features: u64,
    log: Log,
    free: VecDeque<u16>,
    buffers: Vec<Vec<(u64, u32)>>,
    before: Vec<(u64, Vec<u8>)>,
}

impl<'g> Bed<'g> {
    fn new(guest: &'g Guest, features: u64, base: u16) -> Self {
        let mut bed = Bed {
            driver: Driver::new(guest, RING, base),
            ring: None,
            features,
            log: Log::new(2 * REGION),
            free: (0..SLOTS).collect(),
            buffers: vec![Vec::new(); SLOTS.into()],
            before: Vec::new(),
        };
        let setup = bed.driver.setup();
        bed.begin();
        bed.start(setup);
        bed
    }

    fn start(&mut self, setup: RingSetup) {
        let log = Some(Arc::clone(&self.log.shared));
        let setup = RingSetup { log, used_logged_at: Some(RING.used()), ..setup };
        let memory = Arc::clone(&self.driver.guest.shared);
        self.ring = SplitRing::start(setup, memory, self.features | LOG_ALL).ok();
        assert!(self.ring.is_some());
    }

    fn ring(&mut self) -> &mut SplitRing {
        self.ring.as_mut().unwrap()
    }

    fn restart(&mut self) {
        let setup = self.ring.take().unwrap().stop();
        assert!(setup.log.is_none(), "a stopped ring keeps no log mapped");
        self.start(setup);
    }

    fn post(&mut self, op: &Op, flags: u16, seed: u32) {
        let Op::Post { lens, gap, indirect } = op else { return };
        let Some(slot) = self.free.pop_front() else { return };
        let mut addr = BUFFERS + u64::from(slot) * ROOM;
        let head = slot * STRIDE;
        let table = TABLES + u64::from(slot) * 256;
        let (at, first) =
            if *indirect { (table, 0) } else { (RING.at + 16 * u64::from(head), head) };
        let mut buffers = Vec::new();
        for (k, &len) in (0..).zip(lens) {
            // Never what was there before: a write of the same would not be seen.
            self.driver.guest.write(addr, &frame(len as usize, seed | 1 << 20));
            let more = if usize::from(k) + 1 < lens.len() { NEXT } else { 0 };
            let desc = crate::guest::Desc { addr, len, flags: flags | more, next: first + k + 1 };
            self.driver.guest.write_desc(at + 16 * u64::from(k), desc);
            buffers.push((addr, len));
            addr += u64::from(len) + gap;
        }
        if *indirect {
            self.driver.desc(head, table, lens.len() as u32 * 16, INDIRECT, 0);
        }
        self.buffers[usize::from(slot)] = buffers;
        self.driver.publish(head);
    }

    /// What is there now is what the device finds.
    fn begin(&mut self) {
        self.before = snapshot(self.driver.guest);
        self.log.take();
    }

    /// The chains given back, with the pages that their lengths say were written.
    fn used(&mut self) -> (usize, Pages) {
        let used = self.driver.used();
        let mut written = Pages::new();
        for &(head, len) in &used {
            let slot = head as u16 / STRIDE;
            self.free.push_back(slot);
            let mut left = len;
            for &(addr, len) in &self.buffers[usize::from(slot)] {
                written.append(&mut pages(addr, left.min(len).into()));
                left -= left.min(len);
            }
        }
        (used.len(), written)
    }

    /// Compare what has changed since `begin`, and what is marked.
    fn check(&mut self, what: &Op) -> Result<(), TestCaseError> {
        let marked = self.log.take();
        let changed = changed(&self.before, &snapshot(self.driver.guest));
        prop_assert!(changed.is_subset(&marked), "{what:?}: {changed:?} is not all in {marked:?}");
        let (used, payload) = self.used();
        let used_pages = used_ring();
        let beside: Pages = marked.difference(&used_pages).copied().collect();
        prop_assert_eq!(beside, payload, "{:?}", what);
        if used > 0 {
            prop_assert!(marked.is_superset(&pages(RING.used() + 2, 2)), "{what:?}: used.idx");
        } else if matches!(what, Op::Burst(_)) {
            prop_assert!(marked.is_empty(), "{what:?}: nothing was written, {marked:?}");
        }
        Ok(())
    }

    /// What both directions have in common.
    fn other(&mut self, op: &Op) {
        match op {
            Op::Arm => drop(self.ring().arm()),
            Op::Disarm => self.ring().disarm(),
            _ => self.restart(),
        }
    }
}

fn base() -> impl Strategy<Value = u16> {
    prop_oneof![65400..=65535u16, any::<u16>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn whatever_is_written_for_a_guest_is_logged(
        ops in ops(12..9000),
        features in features(),
        base in base(),
        lens in prop::collection::vec(14..12_000usize, 64),
    ) {
        let guests = [Guest::new(), Guest::new()];
        let mut bed = Bed::new(&guests[0], features, base);
        let mut source = Source::new(&guests[1]);
        bed.check(&Op::Restart)?;
        for (seed, op) in (0..).zip(&ops) {
            if matches!(op, Op::Post { .. }) {
                bed.post(op, WRITE, seed);
                continue;
            }
            bed.begin();
            if let Op::Burst(n) = op {
                source.send(bed.ring(), &lens[..*n.min(&20)], 2 * seed);
            } else {
                bed.other(op);
            }
            bed.check(op)?;
        }
    }

    #[test]
    fn taking_from_a_guest_marks_the_used_ring_only(
        ops in ops(0..9000),
        features in features(),
        base in base(),
    ) {
        let guest = Guest::new();
        let mut bed = Bed::new(&guest, features, base);
        bed.check(&Op::Restart)?;
        let counters = QueueCounters::default();
        for (seed, op) in (0..).zip(&ops) {
            if matches!(op, Op::Post { .. }) {
                bed.post(op, 0, seed);
                continue;
            }
            bed.begin();
            if let Op::Burst(n) = op {
                receive(bed.ring(), *n, &counters);
            } else {
                bed.other(op);
            }
            bed.check(op)?;
        }
    }
}

/// Where packets come from: another guest.
struct Source<'g> {
    driver: Driver<'g>,
    ring: SplitRing,
}

impl<'g> Source<'g> {
    fn new(guest: &'g Guest) -> Self {
        let driver = Driver::new(guest, Layout { size: 64, at: 0 }, 0);
        let ring = driver.start(VERSION_1);
        Source { driver, ring }
    }

    /// Send packets of these lengths to `ring` in one burst.
    fn send(&mut self, ring: &mut SplitRing, lens: &[usize], seed: u32) {
        let mut addr = 0x1_0000;
        for (i, &len) in (0..).zip(lens) {
            self.driver.guest.write(addr + 12, &frame(len, seed + u32::from(i)));
            self.driver.desc(i, addr, 12 + len as u32, 0, 0);
            self.driver.publish(i);
            addr += 12 + len as u64;
        }
        let (mut packets, counters) = (Packets::new(), QueueCounters::default());
        // SAFETY: the packets are forgotten before the ring goes.
        unsafe { self.ring.receive(&mut packets, lens.len(), &counters) };
        assert_eq!(packets.len(), lens.len());
        ring.send(&packets, &ALL[..lens.len()], &counters);
        packets.clear();
        self.ring.complete_receive();
    }
}

/// Send one packet of `len` bytes to a guest that waits with one buffer at `buffer`; what is
/// marked in `log`.
fn sent(log: &Log, used_logged_at: Option<u64>, buffer: u64, len: usize) -> Pages {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, RING, 0);
    driver.desc(0, buffer, 20_000, WRITE, 0);
    driver.publish(0);
    let shared = Some(Arc::clone(&log.shared));
    let setup = RingSetup { log: shared, used_logged_at, base: 0, ..driver.setup() };
    let ring = SplitRing::start(setup, Arc::clone(&guest.shared), VERSION_1 | LOG_ALL);
    let mut ring = ring.map_err(|(_, error)| error).unwrap();
    Source::new(&Guest::new()).send(&mut ring, &[len], 1);
    assert_eq!(driver.used(), [(0, len as u32 + 12)]);
    ring.stop();
    log.take()
}

#[test]
fn the_used_ring_is_logged_where_the_frontend_says_or_not_at_all() {
    let log = Log::new(2 * REGION);
    let payload = pages(0x10_0ff0, 5012);
    assert_eq!(sent(&log, None, 0x10_0ff0, 5000), payload);
    // Flags and index there, the entry on the next page.
    let mut expected = payload.clone();
    expected.extend([0x30, 0x31]);
    assert_eq!(sent(&log, Some(0x3_0ffc), 0x10_0ff0, 5000), expected);
    // Addresses that cannot be are as good as none.
    for nowhere in [u64::MAX, u64::MAX - 3, 2 * REGION, 1 << 60] {
        assert_eq!(sent(&log, Some(nowhere), 0x10_0ff0, 5000), payload, "{nowhere:#x}");
    }
}

#[test]
fn a_log_shorter_than_memory_has_what_it_has() {
    // It ends after the 264th page: in the middle of the packet, and far before the second one.
    let log = Log::new(264 * PAGE);
    assert_eq!(sent(&log, None, 0x10_7800, 5000), Pages::from([0x107]));
    assert_eq!(sent(&log, None, 0x40_0000, 5000), Pages::new());
}

/// Without the feature, or without a log, or without an address of the used ring, nothing is
/// marked; all three come and go at any index.
#[test]
fn the_log_is_switched_on_and_off_between_bursts() {
    let (guest, log) = (Guest::new(), Log::new(2 * REGION));
    let mut driver = Driver::new(&guest, RING, 7);
    let mut setup = driver.setup();
    let cases = [(false, true, true), (true, true, true), (true, false, true), (true, true, false)];
    for (round, (feature, logs, address)) in cases.into_iter().cycle().take(40).enumerate() {
        setup.log = logs.then(|| Arc::clone(&log.shared));
        setup.used_logged_at = address.then_some(RING.used());
        let features = VERSION_1 | if feature { LOG_ALL } else { 0 };
        let ring = SplitRing::start(setup, Arc::clone(&guest.shared), features);
        let mut ring = ring.map_err(|(_, error)| error).unwrap();
        guest.write(BUFFERS, &[0; 112]);
        driver.desc(3, BUFFERS, 112, 0, 0);
        driver.publish(3);
        assert_eq!(receive(&mut ring, 64, &QueueCounters::default()).len(), 1);
        setup = ring.stop();
        assert_eq!(setup.base, 8 + round as u16);
        assert_eq!(driver.used(), [(3, 0)]);
        let marked = log.take();
        let all = feature && logs && address;
        assert_eq!(!marked.is_empty(), all, "round {round}: {marked:?}");
        assert!(marked.is_subset(&used_ring()), "round {round}: {marked:?}");
    }
}
