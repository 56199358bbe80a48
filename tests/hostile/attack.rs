//! The attacker: a guest without rules on port 0, and what its peer on port 1 sees of it; or
//! the other way round.

use super::common::bridge::{Bed, LIMIT, Peer};
use super::common::wait_until;
use ringbridge::counters::Reason;
use ringbridge::frontend::{
    DESC_INDIRECT, DESC_NEXT, DESC_WRITE, GuestOptions, Link, RawDesc, RawGuest, Table,
};
use ringbridge::stats::Totals;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Which ring is attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What the guest sends.
    FromGuest,
    /// What the guest receives.
    ToGuest,
}

pub const WAYS: [Way; 2] = [Way::FromGuest, Way::ToGuest];
/// Entries of the attacker's rings.
pub const SIZE: u16 = 256;
/// Bytes of the virtio-net header.
pub const HEADER: u32 = 12;
/// An honest buffer's place and length in the attacker's memory, from the start of its scratch.
pub const GOOD: usize = 0;
const GOOD_LEN: u32 = 2048;
/// Where indirect tables begin.
const TABLES: usize = 1 << 20;

/// The attacker, its peer, and a ring under attack.
pub struct Attack<'a> {
    pub bed: &'a Bed,
    pub way: Way,
    pub raw: RawGuest,
    pub peer: Peer,
    pub err: EventFd,
    /// Used entries so far.
    pub used: u16,
    before: Totals,
    packets: u8,
    tables: usize,
}

impl<'a> Attack<'a> {
    pub fn new(bed: &'a Bed, way: Way) -> Self {
        Self::with(bed, way, &GuestOptions { queue_size: SIZE, ..GuestOptions::default() })
    }

    /// With rings and features as in `options`.
    pub fn with(bed: &'a Bed, way: Way, options: &GuestOptions) -> Self {
        let options = GuestOptions { table: Table::Indirect, ..options.clone() };
        let link = Link::to([bed.socket(0)]);
        let mut raw = RawGuest::connect(&Link { options, ..link }).unwrap();
        let err = EventFd::new(EFD_NONBLOCK).unwrap();
        raw.session.set_ring_error(way.index(), &err).unwrap();
        let peer = Peer::connect(&bed.socket(1));
        let before = way.totals(bed);
        let mut attack =
            Attack { bed, way, raw, peer, err, used: 0, before, packets: 0, tables: TABLES };
        attack.start(0);
        attack
    }

    /// Start the ring, empty, at `first`.
    pub fn start(&mut self, first: u16) {
        let index = self.way.index();
        self.raw.rings[index].reset(first);
        self.raw.start(index, first).unwrap();
        self.used = first;
        self.tables = TABLES;
        self.settle();
        self.before = self.way.totals(self.bed);
    }

    /// The worker is told of a new ring a moment after the frontend has its answer. It has it
    /// once a packet is lost only for want of buffers; until then it is dropped.
    pub fn settle(&mut self) {
        while self.way == Way::ToGuest {
            let before = self.way.totals(self.bed).drops;
            self.peer.send(&[0; 60]);
            self.bed.expect("a probe is lost", |s| s.ports[0].tx.drops != before);
            let now = self.way.totals(self.bed).drops;
            if now.of(Reason::NoBuffers) > before.of(Reason::NoBuffers) {
                return;
            }
        }
    }

    /// Stop the ring.
    pub fn stop(&mut self) -> u16 {
        self.raw.session.stop_ring(self.way.index()).unwrap()
    }

    pub fn ring(&mut self) -> &mut ringbridge::frontend::RawRing {
        &mut self.raw.rings[self.way.index()]
    }

    /// Guest address of a place in the scratch memory.
    pub fn at(&self, offset: usize) -> u64 {
        self.raw.ram.guest(self.raw.scratch() + offset)
    }

    /// The first address behind the memory.
    pub fn end(&self) -> u64 {
        self.raw.ram.guest(self.raw.ram.size())
    }

    /// A descriptor of the direction that is right here.
    pub fn desc(&self, addr: u64, len: u32) -> RawDesc {
        let flags = if self.way == Way::ToGuest { DESC_WRITE } else { 0 };
        RawDesc { addr, len, flags, next: 0 }
    }

    /// A good descriptor of `len` bytes.
    pub fn good(&self, len: u32) -> RawDesc {
        self.desc(self.at(GOOD), len)
    }

    /// Write an indirect table behind all others; the descriptor that leads to it.
    pub fn table(&mut self, entries: &[RawDesc]) -> RawDesc {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.bytes()).collect();
        self.raw.ram.write(self.raw.scratch() + self.tables, &bytes);
        let addr = self.at(self.tables);
        self.tables += bytes.len();
        RawDesc { addr, len: bytes.len() as u32, flags: DESC_INDIRECT, next: 0 }
    }

    /// Make the device look at the ring: it is kicked, or a packet is sent to it.
    pub fn provoke(&mut self) {
        match self.way {
            Way::FromGuest => self.ring().kick(),
            Way::ToGuest => {
                self.packets = self.packets.wrapping_add(1);
                let frame = [self.packets; 100];
                self.peer.send(&frame);
            }
        }
    }

    /// Lost for `reason` in this ring since the attack began.
    pub fn lost(&self, reason: Reason) -> u64 {
        self.way.totals(self.bed).drops.of(reason) - self.before.drops.of(reason)
    }

    /// Lost for any reason since the attack began.
    pub fn lost_total(&self) -> u64 {
        self.way.totals(self.bed).drops.total() - self.before.drops.total()
    }

    /// Wait until so many were lost for `reason`, and none for another.
    pub fn expect_lost(&self, reason: Reason, n: u64, what: &str) {
        let counted = wait_until(LIMIT, || self.lost(reason) >= n);
        let drops = self.way.totals(self.bed).drops;
        assert!(counted, "{:?}, {what}: {reason:?} not counted: {drops:?}", self.way);
        assert_eq!((self.lost(reason), self.lost_total()), (n, n), "{:?}, {what}", self.way);
    }

    /// The next used entries are these heads in this order, all with length 0.
    pub fn expect_given_back(&mut self, heads: &[u16], what: &str) {
        for &head in heads {
            let next = self.used;
            let there = wait_until(LIMIT, || self.ring().used_idx() != next);
            assert!(there, "{:?}, {what}: chain {head} not given back", self.way);
            let entry = self.ring().used(next);
            assert_eq!(entry, (u32::from(head), 0), "{:?}, {what}", self.way);
            self.used = next.wrapping_add(1);
        }
        assert_eq!(self.ring().used_idx(), self.used, "{:?}, {what}: more was used", self.way);
    }

    /// As [`Attack::expect_given_back`], for heads that come in several bursts.
    pub fn expect_given_back_all(&mut self, heads: &[u16]) {
        let end = self.used.wrapping_add(heads.len() as u16);
        assert!(self.ring().wait_used(end, LIMIT), "chains are left");
        self.expect_given_back(heads, "all");
    }

    /// Neither side has heard of a packet since.
    pub fn expect_nothing_delivered(&mut self, what: &str) {
        assert!(!self.peer.has_frame(), "{:?}, {what}: a bad chain was a packet", self.way);
    }

    /// A good chain is served as if nothing had been.
    pub fn expect_working(&mut self, what: &str) {
        let head = SIZE - 1;
        let mark = vec![self.used as u8 ^ 0x5a; 200];
        let at = self.raw.scratch() + GOOD;
        let buffer = self.good(GOOD_LEN);
        if self.way == Way::FromGuest {
            self.raw.ram.write(at, &[0; HEADER as usize]);
            self.raw.ram.write(at + HEADER as usize, &mark);
            let desc = RawDesc { len: HEADER + 200, ..buffer };
            self.ring().post(head, &[desc]);
            self.ring().kick();
            let there = wait_until(LIMIT, || self.peer.has_frame());
            assert!(there, "{what}: not served: {:#?}", self.bed.counters().ports);
            assert_eq!(self.peer.take(), mark, "{what}");
            self.expect_given_back(&[head], what);
        } else {
            self.ring().post(head, &[buffer]);
            self.peer.send(&mark);
            let next = self.used;
            let there = wait_until(LIMIT, || self.ring().used_idx() != next);
            assert!(there, "{what}: not served: {:#?}", self.bed.counters().ports);
            assert_eq!(self.ring().used(next), (u32::from(head), HEADER + 200), "{what}");
            self.used = next.wrapping_add(1);
            assert_eq!(self.ring().used_idx(), self.used, "{what}");
            let mut seen = vec![0; 200];
            self.raw.ram.read(at + HEADER as usize, &mut seen);
            assert_eq!(seen, mark, "{what}");
        }
    }

    /// The ring is not served, and no error is told: it was asked back.
    pub fn expect_standing(&mut self, what: &str) {
        let used = self.ring().used_idx();
        let desc = self.good(HEADER + 100);
        self.ring().post(0, &[desc]);
        self.provoke();
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(self.ring().used_idx(), used, "{:?}, {what}: it goes on", self.way);
        assert!(self.err.read().is_err(), "{:?}, {what}: an error", self.way);
    }

    /// The ring was stopped: its error was signalled, and it takes nothing more.
    pub fn expect_broken(&mut self, what: &str) {
        assert!(wait_until(LIMIT, || self.err.read().is_ok()), "{:?}, {what}: no error", self.way);
        let used = self.ring().used_idx();
        let desc = self.good(HEADER + 100);
        for head in 0..3 {
            self.ring().post(head, &[desc]);
            self.provoke();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(self.ring().used_idx(), used, "{:?}, {what}: it goes on", self.way);
        self.expect_nothing_delivered(what);
        assert!(self.err.read().is_err(), "{:?}, {what}: more errors than one", self.way);
    }
}

impl Way {
    /// The virtqueue.
    pub fn index(self) -> usize {
        usize::from(self == Way::FromGuest)
    }

    /// What was counted for it.
    pub fn totals(self, bed: &Bed) -> Totals {
        let port = bed.counters().ports.swap_remove(0);
        if self == Way::FromGuest { port.rx } else { port.tx }
    }
}

/// Link descriptors that will be posted from `first` on into one chain.
pub fn chain(first: u16, descs: &[RawDesc]) -> Vec<RawDesc> {
    let last = descs.len() - 1;
    let link = |(i, desc): (usize, &RawDesc)| {
        let (flags, next) = if i < last { (DESC_NEXT, first + i as u16 + 1) } else { (0, 0) };
        RawDesc { flags: desc.flags | flags, next, ..*desc }
    };
    descs.iter().enumerate().map(link).collect()
}
