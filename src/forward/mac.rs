//! The modes that rewrite MAC addresses: `mac` and `macswap`.
//!
//! Promises: only the first 12 bytes of a head change. A frame without an Ethernet header is
//! dropped as a runt.

#![forbid(unsafe_code)]

use super::{Forwarder, Outputs, Pairs, PortId, own_mac};
use crate::counters::Reason;
use crate::packet::{MIN_PACKET, Packets};
use crate::wire::Mac;

/// To the paired port with new addresses: the destination is testpmd's default peer of the
/// output port, the source is the output port's own ([`own_mac`]).
pub struct SetMacs {
    /// Who is paired with whom.
    pub pairs: Pairs,
}

/// Where testpmd sends by default: `02:00:00:00:00:0X` at output port X.
fn peer_mac(port: PortId) -> Mac {
    let [.., a, b, c] = port.to_be_bytes();
    [0x02, 0, 0, a, b, c]
}

impl Forwarder for SetMacs {
    fn forward(&mut self, from: PortId, packets: &mut Packets, out: &mut Outputs) {
        let port = self.pairs.of(from);
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&peer_mac(port));
        macs[6..].copy_from_slice(&own_mac(port));
        rewrite(port, packets, out, |old| *old = macs);
    }

    fn pair(&mut self, pairs: Pairs) {
        self.pairs = pairs;
    }
}

/// To the paired port, source and destination swapped.
pub struct SwapMacs {
    /// Who is paired with whom.
    pub pairs: Pairs,
}

impl Forwarder for SwapMacs {
    fn forward(&mut self, from: PortId, packets: &mut Packets, out: &mut Outputs) {
        rewrite(self.pairs.of(from), packets, out, |macs| macs.rotate_left(6));
    }

    fn pair(&mut self, pairs: Pairs) {
        self.pairs = pairs;
    }
}

/// Change destination and source (12 bytes, as on the wire) of every packet, all to `port`.
#[inline(always)]
fn rewrite(port: PortId, packets: &mut Packets, out: &mut Outputs, edit: impl Fn(&mut [u8; 12])) {
    out.all(port);
    for i in 0..packets.len() {
        match packets.head_mut(i).first_chunk_mut::<MIN_PACKET>() {
            Some([macs @ .., _, _]) => edit(macs),
            None => out.drop(i, Reason::Runt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::Output;
    use crate::forward::tests::{burst, forward, whole};

    fn frames() -> Vec<Vec<u8>> {
        vec![(0..60).collect(), (0..13).collect(), (0..250).collect()]
    }

    const EXPECTED: [Output; 3] = [Output::Port(1), Output::Drop(Reason::Runt), Output::Port(1)];

    #[test]
    fn mac_sets_peer_and_own_address_of_the_output() {
        let mut packets = burst(&frames());
        assert_eq!(forward(&mut SetMacs { pairs: Pairs::NEIGHBOURS }, 0, &mut packets), EXPECTED);
        for i in [0, 2] {
            let macs = [2, 0, 0, 0, 0, 1, 2, 0x72, 0x62, 0, 0, 1];
            assert_eq!(whole(&packets, i), [&macs[..], &frames()[i][12..]].concat());
        }
        assert_eq!(whole(&packets, 1), frames()[1]);
    }

    #[test]
    fn macswap_swaps() {
        let mut packets = burst(&frames());
        assert_eq!(forward(&mut SwapMacs { pairs: Pairs::NEIGHBOURS }, 0, &mut packets), EXPECTED);
        for i in [0, 2] {
            let macs = [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5];
            assert_eq!(whole(&packets, i), [&macs[..], &frames()[i][12..]].concat());
        }
    }
}
