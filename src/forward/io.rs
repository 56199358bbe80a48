//! The modes that look at no packet: `io`, `rxonly`, `txonly`.
//!
//! Promises: never touches a head.

#![forbid(unsafe_code)]

use super::{Forwarder, Output, Outputs, PortId, paired};
use crate::packet::Packets;

/// To the paired port, untouched.
pub struct Io {
    /// How many there are.
    pub ports: usize,
}

impl Forwarder for Io {
    #[inline]
    fn forward(&mut self, from: PortId, _packets: &mut Packets, out: &mut Outputs) {
        out.all(paired(from, self.ports));
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

/// What is sent comes from generators, which are numbered after the ports, one for each; what
/// a guest sends meanwhile has no output.
pub struct TxOnly {
    /// How many ports there are.
    pub ports: usize,
}

impl Forwarder for TxOnly {
    #[inline]
    fn forward(&mut self, from: PortId, _packets: &mut Packets, out: &mut Outputs) {
        // No answer is "dropped, no output".
        if let Some(port) = from.checked_sub(self.ports) {
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
        let outputs = forward(&mut Io { ports: 4 }, 2, &mut packets);
        assert_eq!(outputs, [Output::Port(3); 2]);
        assert_eq!([whole(&packets, 0), whole(&packets, 1)], *frames);
    }

    #[test]
    fn rxonly_consumes_and_txonly_drops_but_what_it_made() {
        let mut packets = burst(&[vec![1; 60]]);
        assert_eq!(forward(&mut RxOnly, 0, &mut packets), [Output::Consumed]);
        let mut txonly = TxOnly { ports: 2 };
        assert_eq!(forward(&mut txonly, 1, &mut packets), [Output::Drop(Reason::NoOutput)]);
        assert_eq!(forward(&mut txonly, 3, &mut packets), [Output::Port(1)]);
    }
}
