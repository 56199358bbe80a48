//! What a worker says of itself: packets, busy cycles, their distribution, its best moment.
//!
//! Promises: one writer, the worker, which pays a few plain loads and stores and one division a
//! busy loop; anyone may read meanwhile. Cycles are those of loops that moved something: a poll
//! that moved nothing is idle and is not recorded.

#![forbid(unsafe_code)]

use crate::counters::Counter;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Cycles per packet that have a bucket of their own; the last one takes all above.
const BUCKETS: usize = 1024;
/// A window is this part of a second.
const WINDOWS_PER_SECOND: f64 = 10.0;

/// Counters of one worker.
///
/// Aligned to a pair of cache lines, so that two workers never write to the same one.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerStats {
    cpu: Option<usize>,
    hz: f64,
    window_cycles: u64,
    packets: Counter,
    cycles: Counter,
    window_start: AtomicU64,
    window_packets: AtomicU64,
    best_pps: AtomicU64,
    /// Packets by the cycles that one took, on average over its loop.
    histogram: Box<[Counter; BUCKETS]>,
}

/// What a [`WorkerStats`] said when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerTotals {
    /// Where it is pinned to.
    pub cpu: Option<usize>,
    /// Packets moved.
    pub packets: u64,
    /// Cycles spent on them.
    pub cycles: u64,
    /// A tenth of the packets took at most this many cycles (1023: or more). `None` without a packet.
    pub cycles_per_packet_p10: Option<u64>,
    /// Packets a second in the best window of 100 ms; 0 before the first has passed.
    pub best_pps: u64,
}

impl WorkerTotals {
    /// Busy cycles a packet, over all packets. `None` without a packet.
    pub fn cycles_per_packet(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.cycles as f64 / self.packets as f64)
    }
}

impl WorkerStats {
    /// For a worker pinned to `cpu`, where the cycle counter makes `hz` ticks a second.
    pub fn new(cpu: Option<usize>, hz: f64) -> Self {
        WorkerStats {
            cpu,
            hz,
            window_cycles: (hz / WINDOWS_PER_SECOND) as u64,
            packets: Counter::default(),
            cycles: Counter::default(),
            window_start: AtomicU64::new(0),
            window_packets: AtomicU64::new(0),
            best_pps: AtomicU64::new(0),
            histogram: Box::new(std::array::from_fn(|_| Counter::default())),
        }
    }

    /// A loop moved `packets` in `cycles`. Only the worker calls this; without packets it does
    /// nothing.
    #[inline]
    pub fn record(&self, packets: u64, cycles: u64) {
        // 32-bit division is several times faster where it matters.
        let small = (u32::try_from(cycles).unwrap_or(u32::MAX), packets as u32);
        let Some(each) = small.0.checked_div(small.1) else { return };
        self.packets.add(packets);
        self.cycles.add(cycles);
        self.histogram[(each as usize).min(BUCKETS - 1)].add(packets);
    }

    /// The cycle counter reads `now`. Only the worker calls this, once a loop, idle or busy:
    /// a window ends at the first call after 100 ms.
    #[inline]
    pub fn window(&self, now: u64) {
        let elapsed = now.wrapping_sub(self.window_start.load(Relaxed));
        if elapsed >= self.window_cycles {
            self.end_window(now, elapsed);
        }
    }

    #[cold]
    fn end_window(&self, now: u64, elapsed: u64) {
        let packets = self.packets.get();
        let moved = packets.wrapping_sub(self.window_packets.load(Relaxed));
        // What came before the first call was not measured.
        if self.window_start.load(Relaxed) != 0 {
            let pps = (moved as f64 * self.hz / elapsed as f64) as u64;
            self.best_pps.store(self.best_pps.load(Relaxed).max(pps), Relaxed);
        }
        self.window_packets.store(packets, Relaxed);
        self.window_start.store(now, Relaxed);
    }

    /// Begin anew. Only the worker calls this.
    #[cold]
    pub fn clear(&self) {
        for counter in [&self.packets, &self.cycles].into_iter().chain(&*self.histogram) {
            counter.clear();
        }
        for word in [&self.window_start, &self.window_packets, &self.best_pps] {
            word.store(0, Relaxed);
        }
    }

    /// Read everything. Anyone may, at any time.
    pub fn read(&self) -> WorkerTotals {
        let histogram = self.histogram.each_ref().map(Counter::get);
        WorkerTotals {
            cpu: self.cpu,
            packets: self.packets.get(),
            cycles: self.cycles.get(),
            cycles_per_packet_p10: tenth(&histogram),
            best_pps: self.best_pps.load(Relaxed),
        }
    }
}

/// The bucket in which the cheapest tenth of the packets ends.
fn tenth(histogram: &[u64; BUCKETS]) -> Option<u64> {
    let wanted = histogram.iter().sum::<u64>().div_ceil(10);
    let mut seen = 0;
    let bucket = histogram.iter().position(|n| {
        seen += n;
        seen >= wanted
    });
    bucket.filter(|_| wanted > 0).map(|bucket| bucket as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_busy_cycles_add_up() {
        let stats = WorkerStats::new(Some(1), 1e9);
        stats.record(10, 1000);
        stats.record(0, 500);
        stats.record(30, 1000);
        let totals = stats.read();
        assert_eq!((totals.cpu, totals.packets, totals.cycles), (Some(1), 40, 2000));
        assert_eq!(totals.cycles_per_packet(), Some(50.0));
    }

    #[test]
    fn p10_is_the_cheapest_tenth_by_packets() {
        let stats = WorkerStats::new(None, 1e9);
        assert_eq!(stats.read().cycles_per_packet_p10, None);
        assert_eq!(stats.read().cycles_per_packet(), None);
        // 9 packets of 100 at 20 cycles are not yet a tenth, 1 more at 30 is.
        stats.record(9, 9 * 20);
        stats.record(90, 90 * 50);
        stats.record(1, 30);
        assert_eq!(stats.read().cycles_per_packet_p10, Some(30));
    }

    #[test]
    fn expensive_packets_share_the_last_bucket() {
        let stats = WorkerStats::new(None, 1e9);
        stats.record(1, 1023);
        stats.record(1, u64::MAX);
        assert_eq!(stats.read().cycles_per_packet_p10, Some(1023));
    }

    #[test]
    fn the_best_window_is_kept() {
        const MS: u64 = 1_000_000;
        let stats = WorkerStats::new(None, 1e9);
        stats.record(5000, 1);
        stats.window(7000 * MS);
        let moved = |packets, at| {
            stats.record(packets, 1);
            stats.window(7000 * MS + at * MS);
            stats.read().best_pps
        };
        assert_eq!(moved(100, 50), 0, "the first window has not passed");
        assert_eq!(moved(100, 100), 2000);
        assert_eq!(moved(400, 199), 2000);
        assert_eq!(moved(100, 225), 4000, "500 packets in 125 ms");
        assert_eq!(moved(100, 325), 4000, "a worse window changes nothing");
    }
}
