//! The modes that look at no packet: `io`, `rxonly`, `txonly`.
//!
//! Promises: never touches a head.

#![forbid(unsafe_code)]

use super::{Forwarder, MAX_PORTS, Output, Outputs, Pairs, PortId};
use crate::packet::Packets;

/// To the paired port, untouched.
pub struct Io {
    /// Who is paired with whom.
    pub pairs: Pairs,
}

impl Forwarder for Io {
    #[inline]
    fn forward(&mut self, from: PortId, _packets: &mut Packets, out: &mut Outputs) {
        out.all(self.pairs.of(from));
    }

    fn pair(&mut self, pairs: Pairs) {
        self.pairs = pairs;
    }
}

/// Received and counted is all that is wanted.
pub struct RxOnly;

impl Forwarder for RxOnly {
    #[inline]
    fn forward(&mut self, _from: PortId, _packets: &mut Packets, out: &mut Outputs) {
        out.common(Output::Consumed);
    }
}

/// What is sent comes from generators, which are numbered behind all ports there can be, one
/// for each; what a guest sends meanwhile has no output.
pub struct TxOnly;

impl Forwarder for TxOnly {
    #[inline]
    fn forward(&mut self, from: PortId, _packets: &mut Packets, out: &mut Outputs) {
        // No answer is "dropped, no output".
        if let Some(port) = from.checked_sub(MAX_PORTS) {
            out.all(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Reason;
    use crate::forward::tests::{burst, forward, whole};

    #[test]
    fn io_passes_packets_on_untouched() {
        let frames = vec![(0..60).collect(), vec![7; 1500]];
        let mut packets = burst(&frames);
        let outputs = forward(&mut Io { pairs: Pairs::NEIGHBOURS }, 2, &mut packets);
        assert_eq!(outputs, [Output::Port(3); 2]);
        assert_eq!([whole(&packets, 0), whole(&packets, 1)], *frames);
    }

    #[test]
    fn rxonly_consumes_and_txonly_drops_but_what_it_made() {
        let mut packets = burst(&[vec![1; 60]]);
        assert_eq!(forward(&mut RxOnly, 0, &mut packets), [Output::Consumed]);
        assert_eq!(forward(&mut TxOnly, 1, &mut packets), [Output::Drop(Reason::NoOutput)]);
        assert_eq!(forward(&mut TxOnly, MAX_PORTS + 1, &mut packets), [Output::Port(1)]);
    }
}
