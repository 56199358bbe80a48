#![forbid(unsafe_code)]
//! What became of numbered packets: each is received once and in order, or lost, corrupt or
//! duplicated.
//!
//! Promises: a gap is counted as lost when a later number of its stream arrives; a packet that
//! arrives after it was counted lost (reordered) stays lost; afterwards the stream goes on from
//! the newest number seen. Memory is bounded.

use super::frame::Number;
use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

/// Numbers counted lost that are remembered, in case they arrive after all.
const REMEMBERED: usize = 65536;

/// The count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Never arrived, or not in order.
    pub lost: u64,
    /// Arrived with other bytes or another length than it was sent with.
    pub corrupt: u64,
    /// Arrived again.
    pub duplicated: u64,
}

#[derive(Debug, Default)]
struct Stream {
    /// Number of the next packet to send.
    next: u64,
    /// Number of the next packet to receive.
    expected: u64,
    /// When those from `expected` up to `next` were sent.
    sent: VecDeque<Instant>,
    lost: BTreeSet<u64>,
}

/// The streams of one run.
#[derive(Debug)]
pub struct Tally {
    streams: Vec<Stream>,
    turn: usize,
    in_flight: u64,
    verdict: Verdict,
}

impl Tally {
    /// `streams` streams, of which nothing was sent yet.
    pub fn new(streams: u16) -> Self {
        let streams = (0..streams).map(|_| Stream::default()).collect();
        Tally { streams, turn: 0, in_flight: 0, verdict: Verdict::default() }
    }

    /// Packets sent that are neither received nor lost.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The count so far.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The number that [`Tally::sent`] will count: streams take turns.
    pub fn next(&self) -> Number {
        Number { stream: self.turn as u16, seq: self.streams[self.turn].next }
    }

    /// The packet [`Tally::next`] was sent at `when`.
    pub fn sent(&mut self, when: Instant) {
        let stream = &mut self.streams[self.turn];
        stream.next += 1;
        stream.sent.push_back(when);
        self.turn = (self.turn + 1) % self.streams.len();
        self.in_flight += 1;
    }

    /// The number due next in `stream`, if there is such a stream.
    pub fn expected(&self, stream: u16) -> Option<u64> {
        self.streams.get(usize::from(stream)).map(|s| s.expected)
    }

    /// Was this packet sent?
    pub fn was_sent(&self, number: Number) -> bool {
        self.streams.get(usize::from(number.stream)).is_some_and(|s| number.seq < s.next)
    }

    /// A packet arrived that says it is `number`; `intact`: it is so, byte for byte. Returns
    /// when it was sent, if it is intact and in order.
    pub fn received(&mut self, number: Option<Number>, intact: bool) -> Option<Instant> {
        if !intact {
            self.verdict.corrupt += 1;
        }
        let Number { stream, seq } = number?;
        let stream = self.streams.get_mut(usize::from(stream))?;
        if (stream.expected..stream.next).contains(&seq) {
            let gap = stream.expected..seq;
            self.in_flight -= seq - stream.expected + 1;
            self.verdict.lost += seq - stream.expected;
            let sent = stream.sent.drain(..=(seq - stream.expected) as usize).next_back();
            stream.expected = seq + 1;
            stream.remember(gap);
            return sent.filter(|_| intact);
        }
        if intact && seq < stream.expected && !stream.lost.remove(&seq) {
            self.verdict.duplicated += 1;
        }
        None
    }

    /// Nothing arrives any more: all that is in flight is lost.
    pub fn give_up(&mut self) {
        for stream in &mut self.streams {
            let gap = stream.expected..stream.next;
            self.verdict.lost += stream.next - stream.expected;
            stream.expected = stream.next;
            stream.sent.clear();
            stream.remember(gap);
        }
        self.in_flight = 0;
    }
}

impl Stream {
    fn remember(&mut self, gap: std::ops::Range<u64>) {
        let start = gap.start.max(gap.end.saturating_sub(REMEMBERED as u64));
        self.lost.extend(start..gap.end);
        while self.lost.len() > REMEMBERED {
            self.lost.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends ten packets in one stream, receives `seqs`.
    fn verdict(seqs: &[u64]) -> (Verdict, u64) {
        let mut tally = Tally::new(1);
        (0..10).for_each(|_| tally.sent(Instant::now()));
        for &seq in seqs {
            tally.received(Some(Number { stream: 0, seq }), true);
        }
        (tally.verdict(), tally.in_flight())
    }

    #[test]
    fn send_times_are_those_of_their_packets() {
        let mut tally = Tally::new(2);
        let start = Instant::now();
        let at = |i| start + std::time::Duration::from_millis(i);
        (0..10).for_each(|i| tally.sent(at(i)));
        let mut received =
            |stream, seq, intact| tally.received(Some(Number { stream, seq }), intact);
        assert_eq!(received(1, 0, true), Some(at(1)));
        assert_eq!(received(0, 2, true), Some(at(4)));
        assert_eq!(received(0, 1, true), None);
        assert_eq!(received(0, 3, false), None);
        assert_eq!(received(0, 4, true), Some(at(8)));
    }

    #[test]
    fn in_order_is_fine() {
        assert_eq!(verdict(&[0, 1, 2, 3]), (Verdict::default(), 6));
    }

    #[test]
    fn gaps_are_lost_and_late_packets_stay_lost() {
        let lost = Verdict { lost: 2, ..Verdict::default() };
        assert_eq!(verdict(&[0, 3]), (lost, 6));
        assert_eq!(verdict(&[0, 3, 2, 1, 4]), (lost, 5));
    }

    #[test]
    fn a_second_time_is_a_duplicate() {
        let twice = Verdict { duplicated: 1, ..Verdict::default() };
        assert_eq!(verdict(&[0, 1, 1, 2]), (twice, 7));
        let late_twice = Verdict { lost: 1, duplicated: 1, ..Verdict::default() };
        assert_eq!(verdict(&[0, 2, 1, 1]), (late_twice, 7));
    }

    #[test]
    fn corrupt_packets_take_their_place() {
        let mut tally = Tally::new(1);
        (0..3).for_each(|_| tally.sent(Instant::now()));
        tally.received(Some(Number { stream: 0, seq: 0 }), false);
        tally.received(Some(Number { stream: 0, seq: 1 }), true);
        // Numbers never sent, or of no stream, are corrupt and nothing else.
        tally.received(Some(Number { stream: 0, seq: 1 << 40 }), false);
        tally.received(Some(Number { stream: 9, seq: 0 }), false);
        tally.received(None, false);
        assert_eq!(tally.verdict(), Verdict { corrupt: 4, ..Verdict::default() });
        assert_eq!(tally.in_flight(), 1);
    }

    #[test]
    fn giving_up_loses_what_is_in_flight_and_goes_on() {
        let mut tally = Tally::new(2);
        (0..6).for_each(|_| tally.sent(Instant::now()));
        tally.received(Some(Number { stream: 1, seq: 0 }), true);
        tally.give_up();
        assert_eq!((tally.verdict().lost, tally.in_flight()), (5, 0));
        tally.received(Some(Number { stream: 1, seq: 1 }), true);
        assert_eq!(tally.next(), Number { stream: 0, seq: 3 });
        tally.sent(Instant::now());
        tally.received(Some(Number { stream: 0, seq: 3 }), true);
        assert_eq!(tally.verdict(), Verdict { lost: 5, ..Verdict::default() });
    }
}
