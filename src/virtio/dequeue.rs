//! skeleton
use super::ring::SplitRing;
use crate::counters::QueueCounters;
use crate::packet::Packets;

impl SplitRing {
    /// Take up to `max` packets that the guest sends into `packets` (which is empty). The
    /// chains stay ours until [`SplitRing::complete_receive`].
    pub fn receive(&mut self, packets: &mut Packets, max: usize, counters: &QueueCounters) {
        let _ = (packets, max, counters);
        todo!()
    }

    /// Give back every chain taken by [`SplitRing::receive`] and publish once.
    pub fn complete_receive(&mut self) {
        todo!()
    }
}
