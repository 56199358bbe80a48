//! Device to guest: one buffer, several buffers, not enough buffers, wrong buffers.

use crate::guest::{
    Driver, Guest, INDIRECT, Layout, MRG_RXBUF, NEXT, REGION, VERSION_1, WRITE, frame, row, table,
};
use ringbridge::counters::{QueueCounters, Reason};
use ringbridge::packet::{ALL, Packets};
use ringbridge::virtio::SplitRing;

const SEND: Layout = Layout { size: 64, at: 0 };
const RECEIVE: Layout = Layout { size: 1024, at: 0x1_0000 };
/// Where receive buffers begin.
const BUFFERS: u64 = 0x10_0000;

/// Two rings of one guest: what is put into one comes out of the other, through the real path.
struct Loop<'g> {
    sender: Driver<'g>,
    receiver: Driver<'g>,
    from: SplitRing,
    to: SplitRing,
    counters: QueueCounters,
}

impl<'g> Loop<'g> {
    fn new(guest: &'g Guest, features: u64, base: u16) -> Self {
        let sender = Driver::new(guest, SEND, 0);
        let receiver = Driver::new(guest, RECEIVE, base);
        let (from, to) = (sender.start(VERSION_1), receiver.start(features));
        Loop { sender, receiver, from, to, counters: QueueCounters::default() }
    }

    /// A receive buffer of these pieces at `addr`, as descriptors from `head` on.
    fn post(&mut self, head: u16, addr: u64, lens: &[u32]) {
        let mut at = addr;
        for (k, &len) in lens.iter().enumerate() {
            let more = if k + 1 < lens.len() { NEXT } else { 0 };
            self.receiver.desc(head + k as u16, at, len, WRITE | more, head + k as u16 + 1);
            at += u64::from(len);
        }
        self.receiver.publish(head);
    }

    /// Send these frames through.
    fn send(&mut self, frames: &[Vec<u8>]) {
        let mut addr = 0x60_0000;
        for (i, frame) in (0..).zip(frames) {
            self.sender.guest.write(addr, &[&[0; 12], &frame[..]].concat());
            self.sender.desc(i, addr, 12 + frame.len() as u32, 0, 0);
            self.sender.publish(i);
            addr += 12 + frame.len() as u64;
        }
        let mut packets = Packets::new();
        // SAFETY: the packets are forgotten before the ring goes.
        unsafe { self.from.receive(&mut packets, 64, &QueueCounters::default()) };
        assert_eq!(packets.len(), frames.len());
        self.to.send(&packets, &ALL[..frames.len()], &self.counters);
        packets.clear();
        self.from.complete_receive();
    }
}

fn header(num_buffers: u16) -> Vec<u8> {
    [&[0; 10][..], &num_buffers.to_le_bytes()].concat()
}

#[test]
fn one_buffer_of_every_length_class() {
    let guest = Guest::new();
    for features in [VERSION_1, VERSION_1 | MRG_RXBUF] {
        let mut l = Loop::new(&guest, features, 65530);
        for (i, len) in (0..).zip([14, 16, 60, 64, 65, 180, 192, 193, 1000, 1518, 9000, 65535]) {
            // What lay there before must not shine through.
            guest.write(BUFFERS, &vec![0xee; 70_000]);
            l.post(i, BUFFERS + 3, &[12 + len]);
            let frame = frame(len as usize, 3);
            l.send(std::slice::from_ref(&frame));
            assert_eq!(l.receiver.used(), [(u32::from(i), 12 + len)]);
            assert_eq!(guest.read(BUFFERS, 3), [0xee; 3]);
            assert_eq!(guest.read(BUFFERS + 3, 12), header(1));
            assert!(guest.read(BUFFERS + 15, len as usize) == frame, "{len} bytes");
            assert_eq!(guest.read(BUFFERS + 15 + u64::from(len), 3), [0xee; 3]);
        }
        assert_eq!(l.counters.dropped_total(), 0);
        assert_eq!(l.counters.packets.get(), 12);
    }
}

#[test]
fn the_legacy_header_has_ten_bytes_and_no_count() {
    let guest = Guest::new();
    let mut l = Loop::new(&guest, 0, 0);
    guest.write(BUFFERS, &[0xee; 100]);
    l.post(0, BUFFERS, &[80]);
    l.send(&[frame(64, 1)]);
    assert_eq!(l.receiver.used(), [(0, 74)]);
    assert_eq!(guest.read(BUFFERS, 75), [&[0; 10][..], &frame(64, 1), &[0xee]].concat());
}

#[test]
fn chains_with_the_header_split_over_any_number_of_descriptors() {
    let guest = Guest::new();
    for lens in [&[12, 2000][..], &[1, 11, 2000], &[5, 0, 10, 100, 1900], &[1; 1000]] {
        let mut l = Loop::new(&guest, VERSION_1, 0);
        guest.write(BUFFERS, &[0xee; 3000]);
        l.post(8, BUFFERS, lens);
        l.send(&[frame(700, 4)]);
        assert_eq!(l.receiver.used(), [(8, 712)], "{lens:?}");
        let expected = [&header(1)[..], &frame(700, 4), &[0xee]].concat();
        assert_eq!(guest.read(BUFFERS, 713), expected, "{lens:?}");
    }
}

#[test]
fn the_longest_chains_with_and_without_a_table() {
    let guest = Guest::new();
    let at = 0x20_0000;
    for entries in [1024, 1025] {
        for (features, base) in [(VERSION_1, 0), (VERSION_1 | MRG_RXBUF, 65535)] {
            let mut l = Loop::new(&guest, features, base);
            guest.write(BUFFERS, &[0xee; 1025]);
            l.receiver.desc(5, at, 16 * u32::from(entries), INDIRECT, 0);
            table(&guest, at, &row(BUFFERS, entries, WRITE));
            l.receiver.publish(5);
            l.send(&[frame(1012, 4)]);
            if entries == 1024 {
                assert_eq!(l.counters.dropped_total(), 0);
                assert_eq!(l.receiver.used(), [(5, 1024)]);
                let expected = [&header(1)[..], &frame(1012, 4), &[0xee]].concat();
                assert_eq!(guest.read(BUFFERS, 1025), expected);
            } else {
                assert_eq!(l.counters.dropped(Reason::ChainTooLong), 1);
                assert_eq!(l.receiver.used(), [(5, 0)]);
                assert_eq!(guest.read(BUFFERS, 1025), [0xee; 1025]);
            }
        }
    }
    let mut l = Loop::new(&guest, VERSION_1, 0);
    l.post(0, BUFFERS, &[1; 1024]);
    l.send(&[frame(1012, 6)]);
    assert_eq!(l.receiver.used(), [(0, 1024)]);
}

#[test]
fn a_buffer_over_two_regions() {
    let guest = Guest::new();
    for before in [1, 11, 12, 13, 100] {
        let mut l = Loop::new(&guest, VERSION_1, 0);
        l.post(0, REGION - before, &[1000]);
        l.send(&[frame(500, before as u32)]);
        assert_eq!(l.receiver.used(), [(0, 512)]);
        let expected = [&header(1)[..], &frame(500, before as u32)].concat();
        assert_eq!(guest.read(REGION - before, 512), expected);
    }
}

#[test]
fn a_mergeable_packet_takes_as_many_buffers_as_it_needs() {
    let guest = Guest::new();
    for (len, buffer) in
        [(9000usize, 2048usize), (65535, 2048), (65535, 1526), (1518, 64), (20_000, 64)]
    {
        let mut l = Loop::new(&guest, VERSION_1 | MRG_RXBUF, 65000);
        let total = 12 + len;
        let n = total.div_ceil(buffer);
        for i in 0..n {
            l.post(i as u16, BUFFERS + (i * buffer) as u64, &[buffer as u32]);
        }
        l.send(&[frame(len, 7)]);
        let mut expected: Vec<_> = (0..n as u32).map(|i| (i, buffer as u32)).collect();
        expected[n - 1].1 = (total - (n - 1) * buffer) as u32;
        assert_eq!(l.receiver.used(), expected, "{len} in {buffer}");
        let bytes = guest.read(BUFFERS, total);
        assert!(bytes[..12] == header(n as u16) && bytes[12..] == frame(len, 7));
    }
}

#[test]
fn too_few_buffers_commit_nothing() {
    let guest = Guest::new();
    let mut l = Loop::new(&guest, VERSION_1 | MRG_RXBUF, 0);
    for i in 0..3 {
        l.post(i, BUFFERS + u64::from(i) * 1000, &[1000]);
    }
    // The large one is dropped as a whole; the small ones around it use the buffers in order.
    l.send(&[frame(64, 1), frame(2500, 2), frame(64, 3), frame(64, 4), frame(64, 5)]);
    assert_eq!(l.counters.dropped(Reason::NoBuffers), 2);
    assert_eq!(l.counters.packets.get(), 3);
    assert_eq!(l.receiver.used(), [(0, 76), (1, 76), (2, 76)]);
    assert_eq!(guest.read(BUFFERS + 1012, 64), frame(64, 3));
    // The buffers are posted again, and the next packet begins with the first of them.
    for i in 0..3 {
        l.post(i, BUFFERS + u64::from(i) * 1000, &[1000]);
    }
    l.send(&[frame(2500, 6)]);
    assert_eq!(l.receiver.used(), [(0, 1000), (1, 1000), (2, 512)]);
}

#[test]
fn without_mergeable_buffers_a_large_packet_leaves_small_buffers_alone() {
    let guest = Guest::new();
    let mut l = Loop::new(&guest, VERSION_1, 0);
    l.post(0, BUFFERS, &[1000]);
    l.send(&[frame(989, 1), frame(988, 2)]);
    assert_eq!(l.counters.dropped(Reason::TooLong), 1);
    assert_eq!(l.receiver.used(), [(0, 1000)]);
    assert_eq!(guest.read(BUFFERS + 12, 988), frame(988, 2));
}

/// The first chain of a gather is good, the second is wrong: both come back with length 0.
fn wrong_second_chain(reason: Reason, make: impl Fn(&mut Loop)) {
    let guest = Guest::new();
    let mut l = Loop::new(&guest, VERSION_1 | MRG_RXBUF, 65535);
    l.post(0, BUFFERS, &[1000]);
    make(&mut l);
    l.post(50, BUFFERS + 2000, &[1000]);
    l.send(&[frame(1500, 1), frame(64, 2)]);
    assert_eq!(l.counters.dropped(reason), 1, "{reason:?}");
    assert_eq!(l.counters.dropped_total(), 1);
    assert_eq!(l.receiver.used(), [(0, 0), (1, 0), (50, 76)], "{reason:?}");
    assert!(!l.to.broken());
}

#[test]
fn a_wrong_chain_inside_a_gather() {
    let post = |l: &mut Loop, addr, len, flags, next| {
        l.receiver.desc(1, addr, len, flags, next);
        l.receiver.publish(1);
    };
    wrong_second_chain(Reason::BadAddress, |l| post(l, 2 * REGION, 1000, WRITE, 0));
    wrong_second_chain(Reason::BadAddress, |l| post(l, u64::MAX - 10, 1000, WRITE, 0));
    wrong_second_chain(Reason::BadDirection, |l| post(l, BUFFERS, 1000, 0, 0));
    wrong_second_chain(Reason::BadNext, |l| post(l, BUFFERS, 10, WRITE | NEXT, 1024));
    wrong_second_chain(Reason::ChainTooLong, |l| post(l, BUFFERS, 0, WRITE | NEXT, 1));
}

#[test]
fn a_first_buffer_shorter_than_the_header() {
    for features in [VERSION_1, VERSION_1 | MRG_RXBUF] {
        let guest = Guest::new();
        let mut l = Loop::new(&guest, features, 0);
        l.post(0, BUFFERS, &[11]);
        l.post(1, BUFFERS, &[1000]);
        l.send(&[frame(64, 1), frame(64, 2)]);
        assert_eq!(l.counters.dropped(Reason::NoHeader), 1);
        assert_eq!(l.receiver.used(), [(0, 0), (1, 76)]);
    }
}

#[test]
fn absurdly_long_chains_cost_a_bounded_walk() {
    let guest = Guest::new();
    let mut l = Loop::new(&guest, VERSION_1, 0);
    // 64 chains that share 1000 empty descriptors and then hold a packet.
    for i in 0..1000 {
        l.receiver.desc(i, BUFFERS, 0, WRITE | NEXT, i + 1);
    }
    l.receiver.desc(1000, BUFFERS, 1000, WRITE, 0);
    for _ in 0..64 {
        l.receiver.publish(0);
    }
    l.send(&(0..64).map(|i| frame(64, i)).collect::<Vec<_>>());
    assert_eq!(l.counters.packets.get() + l.counters.dropped(Reason::ChainTooLong), 64);
    assert!(l.counters.packets.get() < 6, "{} walks of 1000", l.counters.packets.get());
}
