//! The vhost-user port's queues, as a worker sees them: one [`RxQueue`] per queue pair (what
//! the guest sends) and one [`TxQueue`] for all pairs (what the guest receives).
//!
//! Promises: rings come and go by `put` and `take` between bursts; without a ring nothing is
//! received and what is sent is counted `not_connected`; a disabled ring is drained, and what
//! is sent to it is counted `disabled`. Owned by one worker; never sees a socket.

use crate::counters::{QueueCounters, Reason};
use crate::offload::{Able, Finisher, deliver};
use crate::packet::{BURST, Packets, Source};
use crate::virtio::SplitRing;
use crate::wire;
use arrayvec::ArrayVec;
use std::sync::Arc;

/// Most queue pairs of a port: vhost-user has 8 bits for the number of a ring.
const MOST_PAIRS: usize = 128;

/// The transmit virtqueue of one queue pair: the guest's packets.
pub struct RxQueue {
    ring: Option<Box<SplitRing>>,
    counters: Arc<QueueCounters>,
    /// A frame that comes next, as if the guest had sent it.
    injected: Option<Arc<[u8]>>,
}

impl RxQueue {
    /// A queue without a ring.
    pub fn new(counters: Arc<QueueCounters>) -> Self {
        RxQueue { ring: None, counters, injected: None }
    }

    /// Take a ring over, give the old one back.
    pub fn put(&mut self, ring: Box<SplitRing>) -> Option<Box<SplitRing>> {
        self.ring.replace(ring)
    }

    /// Give the ring back.
    pub fn take(&mut self) -> Option<Box<SplitRing>> {
        self.ring.take()
    }

    /// The ring, if there is one.
    pub fn ring(&mut self) -> Option<&mut SplitRing> {
        self.ring.as_deref_mut()
    }

    /// Let `frame` (14 to 65535 bytes) be the next packet, whatever the guest does.
    pub fn inject(&mut self, frame: Arc<[u8]>) {
        self.injected = Some(frame);
    }

    #[cold]
    fn receive_injected(&mut self, packets: &mut Packets) {
        if let Some(frame) = self.injected.take() {
            packets.lend(&frame);
            packets.push_lent(0..frame.len());
            self.counters.packets.add(1);
            self.counters.bytes.add(frame.len() as u64);
        }
    }

    /// Take up to `max` packets into `packets`, which is empty. For [`super::RxQueue`], whose
    /// `Burst` borrows this queue until the packets are forgotten.
    #[inline]
    pub(super) fn receive(&mut self, packets: &mut Packets, max: usize) {
        // Looked at and not taken: a poll that finds nothing stores nothing.
        if self.injected.is_some() {
            self.receive_injected(packets);
        } else if let Some(ring) = self.ring.as_deref_mut() {
            // SAFETY: a `Burst` borrows this queue, and so keeps the ring here, until the packets
            // are cleared.
            unsafe { ring.receive(packets, max, &self.counters) };
            if !ring.enabled() && !packets.is_empty() {
                self.counters.lost(Reason::Disabled, packets.len() as u64);
                packets.clear();
            }
        }
    }
}

impl Source for RxQueue {
    #[inline]
    fn complete(&mut self) {
        if let Some(ring) = self.ring.as_deref_mut() {
            ring.complete_receive();
        }
    }
}

/// The receive virtqueues of all queue pairs of one port.
pub struct TxQueue {
    pairs: Vec<Pair>,
    /// The pairs with an enabled ring, ascending.
    enabled: Vec<usize>,
    finisher: Option<Box<Finisher>>,
}

struct Pair {
    ring: Option<Box<SplitRing>>,
    counters: Arc<QueueCounters>,
}

impl TxQueue {
    /// Queues without rings, a set of counters each: at most 128.
    pub fn new(counters: &[Arc<QueueCounters>]) -> Self {
        debug_assert!(counters.len() <= MOST_PAIRS);
        let pair = |counters: &Arc<_>| Pair { ring: None, counters: Arc::clone(counters) };
        TxQueue { pairs: counters.iter().map(pair).collect(), enabled: Vec::new(), finisher: None }
    }

    /// Take the ring of `pair` over, give the old one back.
    pub fn put(&mut self, pair: usize, ring: Box<SplitRing>) -> Option<Box<SplitRing>> {
        let old = self.pairs.get_mut(pair)?.ring.replace(ring);
        self.find_enabled();
        old
    }

    /// Give the ring of `pair` back.
    pub fn take(&mut self, pair: usize) -> Option<Box<SplitRing>> {
        let ring = self.pairs.get_mut(pair)?.ring.take();
        self.find_enabled();
        ring
    }

    fn find_enabled(&mut self) {
        let on = |pair: &Pair| pair.ring.as_ref().is_some_and(|ring| ring.enabled());
        self.enabled.clear();
        self.enabled.extend((0..self.pairs.len()).filter(|&i| on(&self.pairs[i])));
    }

    /// All rings there are.
    pub fn rings(&mut self) -> impl Iterator<Item = &mut SplitRing> {
        self.pairs.iter_mut().filter_map(|pair| pair.ring.as_deref_mut())
    }

    /// How many packets there are buffers for, as far as a burst needs to know. With several
    /// queues the least, because the flow decides which one a packet goes to.
    #[inline]
    pub fn room(&mut self) -> usize {
        let pairs = &mut self.pairs;
        let room = |&i: &usize| pairs[i].ring.as_mut().map_or(0, |ring| ring.room());
        self.enabled.iter().map(room).min().unwrap_or(0)
    }

    /// Send the packets that `which` numbers.
    #[inline]
    pub fn send(&mut self, packets: &Packets, which: &[u8]) {
        if packets.has_offloads() {
            let able = self.able();
            let mut finisher = self.finisher.take();
            deliver(packets, which, able, &mut finisher, |packets, which| {
                self.send_able(packets, which);
            });
            self.finisher = finisher;
        } else {
            self.send_able(packets, which);
        }
    }

    /// What the guest does itself: all its rings were started with the same features.
    fn able(&self) -> Able {
        let pair = self.enabled.first().and_then(|&pair| self.pairs[pair].ring.as_ref());
        // Nothing is finished for nobody.
        pair.map_or(Able::ALL, |ring| ring.able())
    }

    #[inline]
    fn send_able(&mut self, packets: &Packets, which: &[u8]) {
        match self.enabled[..] {
            [] => self.refuse(which.len() as u64),
            [pair] => self.pairs[pair].send(packets, which),
            _ => self.spread(packets, which),
        }
    }

    /// Several queues: the flow decides, so that the packets of one stay in order.
    fn spread(&mut self, packets: &Packets, which: &[u8]) {
        let TxQueue { pairs, enabled, .. } = self;
        let queues = enabled.len() as u64;
        // The high bits of hash times count: even, and without a division.
        let queue_of = |i: u8| {
            ((u64::from(wire::flow_hash(packets.head(i as usize))) * queues) >> 32) as usize
        };
        group(which, queue_of, |queue, mine| pairs[enabled[queue]].send(packets, mine));
    }

    /// Nobody to send to: say whether there is a guest at all.
    #[cold]
    fn refuse(&mut self, n: u64) {
        let started = self.pairs.iter().position(|pair| pair.ring.is_some());
        let reason = if started.is_some() { Reason::Disabled } else { Reason::NotConnected };
        self.pairs[started.unwrap_or(0)].counters.lost(reason, n);
    }
}

/// Call `each` once for every queue that `queue_of` names, with the packets of `which` that go
/// there, in the order in which they stand. Costs a step a packet, however many queues there
/// are (a port has at most [`MOST_PAIRS`]).
#[inline]
fn group(which: &[u8], queue_of: impl Fn(u8) -> usize, mut each: impl FnMut(usize, &[u8])) {
    let mut chosen: ArrayVec<u8, BURST> = ArrayVec::new_const();
    // The queues that were named, in order of appearance.
    let mut named: ArrayVec<u8, BURST> = ArrayVec::new_const();
    // Of each queue: first how many packets it gets, then where its next one goes.
    let mut at = [0u8; MOST_PAIRS];
    for &i in which {
        let queue = queue_of(i);
        if at[queue] == 0 {
            named.push(queue as u8);
        }
        at[queue] += 1;
        chosen.push(queue as u8);
    }
    let mut start = 0;
    for &queue in &named {
        let count = std::mem::replace(&mut at[queue as usize], start);
        start += count;
    }
    let mut grouped = [0; BURST];
    for (&i, &queue) in which.iter().zip(&chosen) {
        let at = &mut at[queue as usize];
        grouped[*at as usize] = i;
        *at += 1;
    }
    let mut start = 0;
    for &queue in &named {
        let end = at[queue as usize] as usize;
        each(queue as usize, &grouped[start..end]);
        start = end;
    }
}

impl Pair {
    #[inline]
    fn send(&mut self, packets: &Packets, which: &[u8]) {
        if let Some(ring) = self.ring.as_deref_mut() {
            ring.send(packets, which, &self.counters);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ALL;

    /// The groups of `which`, by queue.
    fn groups(which: &[u8], queue_of: impl Fn(u8) -> usize) -> Vec<(usize, Vec<u8>)> {
        let mut groups = Vec::new();
        group(which, queue_of, |queue, mine| groups.push((queue, mine.to_vec())));
        groups.sort();
        groups
    }

    #[test]
    fn groups_keep_the_order_within_a_queue() {
        assert_eq!(groups(&[], |_| unreachable!()), []);
        assert_eq!(groups(&ALL, |_| 127), [(127, ALL.to_vec())]);
        let which = [9, 3, 60, 4, 63, 0, 7];
        let by_parity = groups(&which, |i| usize::from(i % 2) * 5);
        assert_eq!(by_parity, [(0, vec![60, 4, 0]), (5, vec![9, 3, 63, 7])]);
    }

    #[test]
    fn a_queue_may_get_everything_or_one_packet() {
        for queues in [2, 3, 64, 128] {
            let queue_of = |i: u8| (usize::from(i) * 37 + 11) % queues;
            let groups = groups(&ALL, queue_of);
            assert_eq!(groups.len(), queues.min(BURST));
            for (queue, mine) in groups {
                let expected: Vec<_> = ALL.into_iter().filter(|&i| queue_of(i) == queue).collect();
                assert_eq!(mine, expected, "queue {queue} of {queues}");
            }
        }
    }
}
