//! The two rings, and what the fuzzer does to them step by step.

use crate::layout::Layout;
use crate::oracle::{Allowed, Reader, unlogged};
use crate::scribbler::{Scribbler, Script};
use crate::source::{LENGTHS, Source};
use crate::world::{BYTES, World, canaries_live};
use arbitrary::{Result, Unstructured};
use ringbridge::counters::QueueCounters;
use ringbridge::packet::{ALL, Packets};
use ringbridge::virtio::{RingSetup, SplitRing};
use std::sync::{Mutex, MutexGuard, OnceLock};

const MRG_RXBUF: u64 = 1 << 15;
const MTU: u64 = 1 << 3;
const EVENT_IDX: u64 = 1 << 29;
const VERSION_1: u64 = 1 << 32;
const LOG_ALL: u64 = 1 << 26;
/// Descriptor table, avail and used ring, unless the fuzzer says where.
const PLACES: [[u64; 3]; 2] = [[0x1_0000, 0x1_0800, 0x1_0a00], [0x1_1000, 0x1_1800, 0x1_1a00]];
/// Set in an index of a used ring: further away than any burst goes.
const LIE: u16 = 0x8000;
/// Steps of an input.
const STEPS: usize = 128;

/// What lives as long as the process, so that an input is cheap.
struct Stage {
    source: Source,
    packets: Packets,
    before: Box<[u8; BYTES]>,
    after: Box<[u8; BYTES]>,
    allowed: Allowed,
    out: Vec<u8>,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(World::new)
}

fn stage() -> MutexGuard<'static, Stage> {
    static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
    let new = || {
        Mutex::new(Stage {
            source: Source::new(),
            packets: Packets::new(),
            before: Box::new([0; BYTES]),
            after: Box::new([0; BYTES]),
            allowed: Allowed::nothing(),
            out: vec![0; 65535],
        })
    };
    STAGE.get_or_init(new).lock().expect("a panic ends the process")
}

/// A ring, and what we know of it without asking.
struct Side {
    layout: Layout,
    /// Guest address that its used ring is logged at.
    logged_at: u64,
    ring: Option<SplitRing>,
    counters: QueueCounters,
    /// Where it was first started.
    base: u16,
    /// Index of the next chain that it takes, while nothing is tangled.
    next: u16,
    /// The last index that it may have seen in `avail.idx`.
    seen: u16,
}

impl Side {
    fn ring(&mut self) -> &mut SplitRing {
        self.ring.as_mut().expect("started")
    }

    /// It stops where it has to: every chain had one outcome.
    fn stop(&mut self, exact: bool) -> RingSetup {
        let setup = self.ring.take().expect("started").stop();
        assert!(!exact || setup.base == self.next, "stopped at {}, {} ", setup.base, self.next);
        setup
    }

    /// How many entries of the used ring have been published since the lie in their index.
    fn progress(&self, reader: &Reader) -> u16 {
        let idx = reader.used_idx(&self.layout);
        if idx == self.next ^ LIE { 0 } else { idx.wrapping_sub(self.next) }
    }

    fn outcomes(&self) -> u64 {
        self.counters.packets.get() + self.counters.dropped_total()
    }

    /// How many chains the next access of the device may find available.
    fn look(&mut self, reader: &Reader) -> u16 {
        let ahead = reader.avail_idx(&self.layout).wrapping_sub(self.next);
        let seen = self.seen.wrapping_sub(self.next);
        let count = if ahead > self.layout.size { seen } else { seen.max(ahead) };
        self.seen = self.next.wrapping_add(count);
        count
    }
}

/// Where the packets of a burst come from.
#[derive(Clone, Copy)]
enum Origin {
    /// The transmit ring, so many at most.
    Ring(usize),
    /// The honest guest, so many.
    Source(usize),
}

pub struct Machine {
    stage: MutexGuard<'static, Stage>,
    tx: Side,
    rx: Side,
    features: u64,
    /// Nobody writes while the device works, and no area lies over another: it can be said what
    /// may change.
    exact: bool,
    scribbler: Option<Scribbler>,
}

impl Machine {
    /// Configuration: flags, sizes, bases; then places of the rings, if the flags say so, and
    /// what another thread writes meanwhile, if the machine is `raced`. `None`: the rings cannot be
    /// there.
    pub fn new(input: &mut Unstructured, raced: bool) -> Result<Option<Self>> {
        let [flags, sizes]: [u8; 2] = input.arbitrary()?;
        let bases: [u16; 2] = input.arbitrary()?;
        let flag = |bit: u8, feature: u64| if flags & bit != 0 { feature } else { 0 };
        let features = flag(1, MRG_RXBUF)
            | flag(2, EVENT_IDX)
            | flag(4, VERSION_1)
            | flag(8, MTU)
            | flag(64, LOG_ALL);
        let mut places = PLACES;
        if flags & 16 != 0 {
            for (place, mask) in places.iter_mut().flat_map(|p| p.iter_mut().zip([!15, !1, !3])) {
                *place = 0x1_0000 + (u64::from(input.arbitrary::<u16>()? & 0x7fff) & mask);
            }
        }
        let script = if raced { Some(script(input)?) } else { None };
        let logged_at: [u64; 2] = if flags & 128 == 0 {
            [places[0][2], places[1][2]]
        } else {
            [input.arbitrary::<u32>()?.into(), input.arbitrary()?]
        };
        world().clear();
        world().clear_log();
        let side = |i: usize, log: u8| {
            let layout = Layout::new(2 << (log % 7), places[i]);
            let (base, counters) = (bases[i], QueueCounters::default());
            let ring = SplitRing::start(
                setup(&layout, base, logged_at[i]),
                world().memory.clone(),
                features,
            );
            let ring = Some(ring.map_err(|(_, error)| error).ok()?);
            Some(Side {
                layout,
                logged_at: logged_at[i],
                ring,
                counters,
                base,
                next: base,
                seen: base,
            })
        };
        let (Some(tx), Some(rx)) = (side(0, sizes & 15), side(1, sizes >> 4)) else {
            return Ok(None);
        };
        let exact = script.is_none() && tx.layout.apart(&rx.layout);
        let scribbler = script.map(|script| Scribbler::start(world(), script));
        Ok(Some(Machine { stage: stage(), tx, rx, features, exact, scribbler }))
    }

    fn side(&mut self, i: u8) -> &mut Side {
        if i & 1 == 0 { &mut self.tx } else { &mut self.rx }
    }

    pub fn run(mut self, input: &mut Unstructured) -> Result<()> {
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            match input.arbitrary::<u8>()? % 16 {
                step @ 0..8 => self.write(step, input)?,
                step @ 8..12 => {
                    let n = usize::from(input.arbitrary::<u8>()? % 64) + 1;
                    let from = if step < 10 { Origin::Ring(n) } else { Origin::Source(n) };
                    self.burst(from, step % 2 == 1, input)?;
                }
                12 => self.arm(input.arbitrary()?),
                13 => {
                    for i in 0..2 {
                        self.side(i).ring().notify();
                        assert!(!self.side(i).ring().wants_notify_check());
                    }
                }
                14 => {
                    self.look();
                    let room = self.rx.ring().room();
                    assert!(room <= usize::from(self.rx.layout.size));
                    self.tx.ring().kicked();
                }
                _ => self.restart(input.arbitrary()?),
            }
        }
        self.end();
        Ok(())
    }

    /// The driver writes something.
    fn write(&mut self, step: u8, input: &mut Unstructured) -> Result<()> {
        let layout = self.side(step).layout;
        let world = world();
        match step {
            // Anything anywhere.
            0 => {
                let at = usize::from(input.arbitrary::<u16>()?);
                let n = usize::from(input.arbitrary::<u8>()? % 32) + 1;
                world.write(at, input.bytes(n.min(input.len()))?);
            }
            // A descriptor in the table of a ring.
            1 | 2 => {
                let at = layout.desc + 16 * usize::from(input.arbitrary::<u8>()?);
                world.write(at, &descriptor(input)?);
            }
            // One anywhere: an indirect table.
            3 => {
                let at = usize::from(input.arbitrary::<u16>()?);
                world.write(at, &descriptor(input)?);
            }
            // An avail entry, published.
            4 | 5 => {
                let head = u16::from(input.arbitrary::<u8>()?);
                let idx = world.read_u16(layout.avail + 2);
                let at = layout.avail + 4 + 2 * usize::from(idx % layout.size);
                world.write(at, &head.to_le_bytes());
                world.write(layout.avail + 2, &idx.wrapping_add(1).to_le_bytes());
            }
            // One of the six words.
            _ => {
                let n = usize::from(layout.size);
                let at = match input.arbitrary::<u8>()? % 6 {
                    0 => layout.avail,
                    1 => layout.avail + 2,
                    2 => layout.avail + 4 + 2 * n,
                    3 => layout.used,
                    4 => layout.used + 2,
                    _ => layout.used + 4 + 8 * n,
                };
                world.write(at, &input.arbitrary::<u16>()?.to_le_bytes());
            }
        }
        Ok(())
    }

    /// See what the device may do next. The indices in the used rings are lies from here on, by
    /// which is seen what it makes of them.
    fn look(&mut self) {
        if !self.exact {
            return;
        }
        for side in [&self.tx, &self.rx] {
            world().write(side.layout.used + 2, &(side.next ^ LIE).to_le_bytes());
        }
        if self.features & LOG_ALL != 0 {
            world().clear_log();
        }
        let Stage { before, allowed, .. } = &mut *self.stage;
        world().look(before);
        allowed.clear();
        let mut reader = Reader::new(before, allowed);
        reader.ring(&self.tx.layout);
        reader.ring(&self.rx.layout);
        let (tx, rx) = (self.tx.look(&reader), self.rx.look(&reader));
        reader.chains(&self.tx.layout, self.tx.next, tx, false);
        reader.chains(&self.rx.layout, self.rx.next, rx, true);
        self.exact = reader.untangled();
    }

    fn arm(&mut self, which: u8) {
        self.look();
        if which & 2 == 0 {
            self.side(which).ring().arm();
        } else {
            self.side(which).ring().disarm();
        }
        self.check(&Expected::default());
    }

    fn restart(&mut self, which: u8) {
        self.look();
        let (exact, features) = (self.exact, self.features);
        let side = self.side(which);
        // A ring that was started does not give its log back.
        let setup = RingSetup { log: Some(world().log.clone()), ..side.stop(exact) };
        let ring = SplitRing::start(setup, world().memory.clone(), features);
        side.ring = Some(ring.map_err(|(_, error)| error).expect("as before"));
        side.seen = side.next;
        self.check(&Expected::default());
    }

    /// One burst. The driver may write between the receipt and the rest of it.
    fn burst(&mut self, from: Origin, write: bool, input: &mut Unstructured) -> Result<()> {
        self.look();
        let mut expected = Expected { tx: self.tx.outcomes(), ..Expected::default() };
        if self.exact {
            let Stage { before, allowed, .. } = &mut *self.stage;
            let (reader, side) = (Reader::new(before, allowed), &self.tx);
            expected.heads =
                (0..64).map(|i| reader.head(&side.layout, side.next.wrapping_add(i))).collect();
        }
        self.receive(from, input)?;
        expected.tx = self.tx.outcomes() - expected.tx;
        if write {
            let step = input.arbitrary::<u8>()? % 8;
            self.write(step, input)?;
            self.look();
        }
        let Stage { source, packets, .. } = &mut *self.stage;
        let Side { ring, counters, .. } = &mut self.rx;
        let before = (counters.packets.get(), counters.bytes.get(), counters.dropped_total());
        let n = packets.len();
        ring.as_mut().expect("started").send(packets, &ALL[..n], counters);
        let delivered = counters.packets.get() - before.0;
        assert_eq!(delivered + counters.dropped_total() - before.2, n as u64);
        let header = if self.features & (VERSION_1 | MRG_RXBUF) == 0 { 10 } else { 12 };
        expected.written = counters.bytes.get() - before.1 + header * delivered;
        match from {
            Origin::Ring(_) => {
                packets.clear();
                self.tx.ring().complete_receive();
            }
            Origin::Source(_) => source.complete(packets),
        }
        self.check(&expected);
        Ok(())
    }

    fn receive(&mut self, from: Origin, input: &mut Unstructured) -> Result<()> {
        let Stage { source, packets, out, .. } = &mut *self.stage;
        match from {
            Origin::Ring(max) => {
                let Side { ring, counters, .. } = &mut self.tx;
                // SAFETY: the packets are cleared before the burst is completed.
                unsafe { ring.as_mut().expect("started").receive(packets, max, counters) };
                assert!(packets.len() <= max);
            }
            Origin::Source(n) => {
                let mut lengths = [0; 64];
                for len in &mut lengths[..n] {
                    *len = LENGTHS[usize::from(input.arbitrary::<u8>()? % 16)];
                }
                source.fill(packets, &lengths[..n]);
            }
        }
        let mut bytes = 0;
        for i in 0..packets.len() {
            let len = packets.packet_len(i);
            assert!((14..=65535).contains(&len));
            packets.copy_out(i, &mut out[..len]);
            bytes += len;
        }
        assert_eq!(bytes, packets.bytes());
        Ok(())
    }

    /// Compare what the device did with what it may do.
    fn check(&mut self, expected: &Expected) {
        let Stage { before, after, allowed, .. } = &mut *self.stage;
        if !self.exact {
            if self.scribbler.is_none() {
                world().look(after);
                assert!(canaries_live(after), "written outside the regions");
            }
            return;
        }
        world().look(after);
        if let Some(at) = allowed.broken(before, after) {
            panic!("the byte at {at:#x} of the file was not the device's to write");
        }
        if self.features & LOG_ALL != 0 {
            let rings = [&self.tx, &self.rx].map(|side| (&side.layout, side.logged_at));
            let log = world().look_at_log();
            if let Some(at) = unlogged(before, after, rings, &log) {
                panic!("the byte at {at:#x} of the file was written and not logged");
            }
        }
        let reader = Reader::new(after, allowed);
        let taken = self.tx.progress(&reader);
        assert_eq!(u64::from(taken), expected.tx, "chains taken, outcomes");
        for i in 0..taken {
            let at = self.tx.next.wrapping_add(i);
            let head = expected.heads[usize::from(i)];
            assert_eq!(reader.used(&self.tx.layout, at), (u32::from(head), 0));
        }
        self.tx.next = self.tx.next.wrapping_add(taken);
        let used = self.rx.progress(&reader);
        let mut written = 0;
        for i in 0..used {
            let at = self.rx.next.wrapping_add(i);
            let (id, len) = reader.used(&self.rx.layout, at);
            assert_eq!(id, u32::from(reader.head(&self.rx.layout, at)));
            written += u64::from(len);
        }
        assert_eq!(written, expected.written);
        self.rx.next = self.rx.next.wrapping_add(used);
    }

    fn end(mut self) {
        self.scribbler = None;
        self.look();
        let exact = self.exact;
        let taken = self.tx.outcomes() as u16;
        assert_eq!(self.tx.stop(exact).base, self.tx.base.wrapping_add(taken));
        self.rx.stop(exact);
        self.check(&Expected::default());
        world().look(&mut self.stage.after);
        assert!(canaries_live(&self.stage.after), "written outside the regions");
        world().look_at_log();
    }
}

/// What a burst is said to have done.
#[derive(Default)]
struct Expected {
    /// Chains of the transmit ring that had an outcome, and the heads from the first on.
    tx: u64,
    heads: Vec<u16>,
    /// Bytes in receive buffers, headers included.
    written: u64,
}

fn setup(layout: &Layout, base: u16, logged_at: u64) -> RingSetup {
    RingSetup {
        size: layout.size,
        addresses: Some(layout.addresses),
        base,
        mtu: Some(1500),
        log: Some(world().log.clone()),
        used_logged_at: Some(logged_at),
        ..RingSetup::default()
    }
}

/// A descriptor: addresses in and around the two adjacent regions, or anything; lengths of 16
/// bits, or anything.
fn descriptor(input: &mut Unstructured) -> Result<[u8; 16]> {
    let kind: u8 = input.arbitrary()?;
    let addr = match kind >> 5 {
        0..=4 => 0x1_0000 + u64::from(input.arbitrary::<u16>()? & 0x7fff),
        5 => 0xffff_ffff_ffff_0000 + u64::from(input.arbitrary::<u16>()?),
        _ => input.arbitrary()?,
    };
    let len: u32 =
        if kind & 16 == 0 { input.arbitrary::<u16>()?.into() } else { input.arbitrary()? };
    let (flags, next) =
        (u16::from(kind & 7), if kind & 1 != 0 { input.arbitrary::<u8>()? } else { 0 });
    let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..].copy_from_slice(&rest.to_le_bytes());
    Ok(bytes)
}

fn script(input: &mut Unstructured) -> Result<Script> {
    let n = input.arbitrary::<u8>()? % 16 + 1;
    (0..n).map(|_| Ok((usize::from(input.arbitrary::<u16>()?), input.arbitrary()?))).collect()
}
