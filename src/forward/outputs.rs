//! The answers of a forwarder, one for each packet of a burst.
//!
//! Promises: "all to one port" costs a store and reads back as one run; mixed answers cost a
//! store a packet and read back as runs of equal neighbours. Never allocates.

#![forbid(unsafe_code)]

use super::PortId;
use crate::counters::Reason;
use crate::packet::BURST;
use std::ops::Range;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Sent to this port.
    Port(PortId),
    /// Not delivered: counted as lost for this reason.
    Drop(Reason),
    /// The forwarder has listed where it goes ([`super::Forwarder::lists`]).
    Listed,
    /// It has reached its end here (`rxonly`): received and not lost.
    Consumed,
}

/// An [`Output`] for each packet of a burst. A worker has one and uses it again.
#[derive(Debug)]
pub struct Outputs {
    /// What all packets have in common, unless `mixed`.
    common: Output,
    each: [Output; BURST],
    mixed: bool,
    len: usize,
}

impl Default for Outputs {
    fn default() -> Self {
        Self::new()
    }
}

impl Outputs {
    /// For no packets.
    pub fn new() -> Self {
        let nowhere = Output::Drop(Reason::NoOutput);
        Outputs { common: nowhere, each: [nowhere; BURST], mixed: false, len: 0 }
    }

    /// Begin a burst of `len` packets, none of which has an output yet: what the forwarder does
    /// not answer is dropped as [`Reason::NoOutput`].
    #[inline]
    pub fn begin(&mut self, len: usize) {
        self.len = len.min(BURST);
        self.common(Output::Drop(Reason::NoOutput));
    }

    /// The same answer for all packets.
    #[inline]
    pub fn common(&mut self, output: Output) {
        self.common = output;
        self.mixed = false;
    }

    /// All packets to `port`.
    #[inline]
    pub fn all(&mut self, port: PortId) {
        self.common(Output::Port(port));
    }

    /// Packet `i` to `port`.
    #[inline]
    pub fn set(&mut self, i: usize, port: PortId) {
        self.answer(i, Output::Port(port));
    }

    /// Drop packet `i`.
    #[inline]
    pub fn drop(&mut self, i: usize, reason: Reason) {
        self.answer(i, Output::Drop(reason));
    }

    #[inline]
    fn answer(&mut self, i: usize, output: Output) {
        if !self.mixed {
            if output == self.common {
                return;
            }
            self.each[..self.len].fill(self.common);
            self.mixed = true;
        }
        self.each[..self.len][i] = output;
    }

    /// The packets in order, in runs of neighbours with the same answer.
    #[inline]
    pub fn runs(&self) -> impl Iterator<Item = (Range<usize>, Output)> {
        let mut start = 0;
        std::iter::from_fn(move || {
            if start >= self.len {
                return None;
            }
            let (output, end) = self.run_at(start);
            let run = start..end;
            start = end;
            Some((run, output))
        })
    }

    /// The answer for packet `start`, and where the run of equal ones ends.
    #[inline]
    fn run_at(&self, start: usize) -> (Output, usize) {
        if !self.mixed {
            return (self.common, self.len);
        }
        let rest = &self.each[start..self.len];
        let output = rest[0];
        (output, start + rest.iter().position(|o| *o != output).unwrap_or(rest.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(out: &Outputs) -> Vec<(Range<usize>, Output)> {
        out.runs().collect()
    }

    #[test]
    fn without_an_answer_all_are_dropped() {
        let mut out = Outputs::new();
        assert_eq!(runs(&out), []);
        out.begin(3);
        assert_eq!(runs(&out), [(0..3, Output::Drop(Reason::NoOutput))]);
    }

    #[test]
    fn one_answer_is_one_run() {
        let mut out = Outputs::new();
        out.begin(BURST);
        out.all(5);
        assert_eq!(runs(&out), [(0..BURST, Output::Port(5))]);
        out.common(Output::Consumed);
        assert_eq!(runs(&out), [(0..BURST, Output::Consumed)]);
    }

    #[test]
    fn mixed_answers_are_runs_of_equal_neighbours() {
        let mut out = Outputs::new();
        out.begin(6);
        out.all(1);
        out.set(4, 2);
        out.set(0, 1);
        out.drop(5, Reason::Runt);
        out.set(3, 2);
        let expected =
            [(0..3, Output::Port(1)), (3..5, Output::Port(2)), (5..6, Output::Drop(Reason::Runt))];
        assert_eq!(runs(&out), expected);
    }

    #[test]
    fn a_new_burst_knows_nothing_of_the_last() {
        let mut out = Outputs::new();
        out.begin(2);
        out.set(1, 7);
        out.begin(4);
        assert_eq!(runs(&out), [(0..4, Output::Drop(Reason::NoOutput))]);
        out.set(3, 1);
        assert_eq!(runs(&out), [(0..3, Output::Drop(Reason::NoOutput)), (3..4, Output::Port(1))]);
    }
}
