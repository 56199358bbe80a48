//! The two ways to do the work.

use crate::Work;
use crate::driver::{ADDRESSES, Driver, RING};
use ringbridge::arch::cycles;
use ringbridge::counters::QueueCounters;
use ringbridge::packet::{BURST_BYTES, Packets};
use ringbridge::port::generator::Generator;
use ringbridge::virtio::{RingSetup, SplitRing};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;

/// Packets in a burst: 32, or what makes no burst of ringbridge's too long (256 KiB). It
/// divides the ring's size, because ringbridge looks for more only when all that it knows of
/// is taken: no burst is cut short.
fn burst(work: Work) -> usize {
    if 32 * work.size <= BURST_BYTES { 32 } else { 16 }
}

/// A device on a ring of its own.
pub trait Variant {
    fn name(&self) -> &'static str;
    /// Move a burst. Returns the cycles it took, by packet.
    fn burst(&mut self) -> f64;
}

/// Every variant of `work`.
pub fn all(work: Work) -> Vec<Box<dyn Variant>> {
    vec![
        Box::new(Ours::new(work)),
        #[cfg(feature = "reference")]
        Box::new(theirs::Theirs::new(work)),
    ]
}

fn features(work: Work) -> u64 {
    1 << VIRTIO_F_VERSION_1 | u64::from(work.mergeable) << VIRTIO_NET_F_MRG_RXBUF
}

/// Buffers that a burst uses.
fn buffers(work: Work) -> usize {
    let merged = if work.enqueue && work.mergeable { (work.size + 12).div_ceil(2048) } else { 1 };
    burst(work) * merged
}

/// ringbridge's.
struct Ours {
    work: Work,
    driver: Driver,
    ring: SplitRing,
    packets: Packets,
    counters: QueueCounters,
    source: Generator,
    which: Vec<u8>,
    buffer: Vec<u8>,
}

impl Ours {
    fn new(work: Work) -> Self {
        let driver = Driver::new(work);
        let setup = RingSetup {
            size: RING,
            addresses: Some(ADDRESSES),
            enabled: true,
            ..RingSetup::default()
        };
        let Ok(ring) = SplitRing::start(setup, driver.memory.shared.clone(), features(work)) else {
            panic!("the ring does not start");
        };
        Ours {
            work,
            driver,
            ring,
            packets: Packets::new(),
            counters: QueueCounters::default(),
            source: Generator::new(work.size),
            which: (0..burst(work) as u8).collect(),
            buffer: vec![0; work.size],
        }
    }

    fn enqueue(&mut self) -> u64 {
        self.source.receive(&mut self.packets, self.which.len());
        let start = cycles();
        self.ring.send(&self.packets, &self.which, &self.counters);
        self.ring.notify();
        let end = cycles();
        self.packets.clear();
        end - start
    }

    /// What is beyond a head is copied out as well: the other one copies it.
    fn dequeue(&mut self) -> u64 {
        let start = cycles();
        // SAFETY: the packets are forgotten before the ring goes.
        unsafe { self.ring.receive(&mut self.packets, self.which.len(), &self.counters) };
        for i in 0..self.packets.len() {
            if self.packets.packet_len(i) > self.packets.head(i).len() {
                self.packets.copy_out(i, &mut self.buffer);
            }
        }
        self.packets.clear();
        self.ring.complete_receive();
        self.ring.notify();
        cycles() - start
    }
}

impl Variant for Ours {
    fn name(&self) -> &'static str {
        "ringbridge"
    }

    fn burst(&mut self) -> f64 {
        let cycles = if self.work.enqueue { self.enqueue() } else { self.dequeue() };
        assert_eq!(self.driver.refill(), buffers(self.work), "{:?}", self.work);
        cycles as f64 / burst(self.work) as f64
    }
}

#[cfg(feature = "reference")]
mod theirs {
    use super::{ADDRESSES, Driver, RING, Variant, Work, buffers, burst, cycles, features};
    use ringbridge::packet::Packets;
    use ringbridge::port::generator::Generator;
    use ringbridge::reference::queue::{Format, Sent, receive, send};
    use std::hint::black_box;
    use virtio_queue::{Queue, QueueT};
    use vm_memory::GuestAddress;

    /// `virtio-queue`'s, as the reference backend uses it.
    pub struct Theirs {
        work: Work,
        driver: Driver,
        queue: Queue,
        format: Format,
        packets: Packets,
        source: Generator,
        frames: Vec<Vec<u8>>,
    }

    impl Theirs {
        pub fn new(work: Work) -> Self {
            let mut queue = Queue::new(RING).expect("a ring's size");
            queue.try_set_desc_table_address(GuestAddress(ADDRESSES.desc)).expect("aligned");
            queue.try_set_avail_ring_address(GuestAddress(ADDRESSES.avail)).expect("aligned");
            queue.try_set_used_ring_address(GuestAddress(ADDRESSES.used)).expect("aligned");
            queue.set_ready(true);
            Theirs {
                work,
                driver: Driver::new(work),
                queue,
                format: Format::of(features(work)),
                packets: Packets::new(),
                source: Generator::new(work.size),
                frames: vec![vec![0; work.size]; burst(work)],
            }
        }

        fn enqueue(&mut self) -> u64 {
            self.source.receive(&mut self.packets, self.frames.len());
            for (i, frame) in self.frames.iter_mut().enumerate() {
                self.packets.copy_out(i, frame);
            }
            self.packets.clear();
            let memory = &self.driver.memory.mmap;
            let start = cycles();
            for frame in &self.frames {
                let sent = send(&mut self.queue, memory, self.format, frame);
                assert!(matches!(sent, Sent::Into(_)));
            }
            let _ = black_box(self.queue.needs_notification(memory));
            cycles() - start
        }

        fn dequeue(&mut self) -> u64 {
            let memory = &self.driver.memory.mmap;
            let start = cycles();
            for _ in 0..self.frames.len() {
                let got = receive(&mut self.queue, memory, self.format, &mut self.frames[0]);
                assert!(matches!(got, Some(Ok(_))));
            }
            let _ = black_box(self.queue.needs_notification(memory));
            cycles() - start
        }
    }

    impl Variant for Theirs {
        fn name(&self) -> &'static str {
            "virtio-queue"
        }

        fn burst(&mut self) -> f64 {
            let cycles = if self.work.enqueue { self.enqueue() } else { self.dequeue() };
            assert_eq!(self.driver.refill(), buffers(self.work), "{:?}", self.work);
            cycles as f64 / burst(self.work) as f64
        }
    }
}
