//! Forwarding: what happens to the packets of a burst, by testpmd's modes.
//!
//! Promises: a [`Forwarder`] sees packets, edits their heads and names an output for each in
//! [`Outputs`]; it never sees a port or a queue and never blocks or allocates. The worker that
//! called it sends each run of packets to its output, and drops those to a port that is not
//! there. Ports are paired 0-1, 2-3, … ([`Pairs`]); one port alone is paired with itself.

#![forbid(unsafe_code)]

pub mod bridge;
mod icmpecho;
mod io;
mod lists;
mod mac;
mod outputs;

use crate::config::ForwardMode;
use crate::packet::Packets;
use crate::wire::Mac;
use std::sync::Arc;

pub use lists::{List, Lists};
pub use outputs::{Output, Outputs};

/// Number of a port: its slot, in the order of the command line at first.
pub type PortId = usize;

/// Most ports. Generators are numbered behind them: that of port 3 is `MAX_PORTS + 3`.
pub const MAX_PORTS: usize = 1024;

/// Decides where packets go.
pub trait Forwarder: Send {
    /// Look at all `packets` received from port `from`, edit what is to be edited and answer
    /// each in `out`, which has as many entries (see [`Outputs::begin`]).
    fn forward(&mut self, from: PortId, packets: &mut Packets, out: &mut Outputs);

    /// Ports are paired like this from now on. Not every mode pairs them.
    fn pair(&mut self, _pairs: Pairs) {}

    /// The outputs of the last burst, if they were answered by [`Output::Listed`].
    fn lists(&mut self) -> Option<&mut Lists> {
        None
    }

    /// These are the ports from now on. Not every mode asks.
    fn set_ports(&mut self, _ports: &Arc<bridge::Ports>) {}
}

/// The forwarder of a mode; what a learning bridge knows is shared.
pub fn new(mode: ForwardMode, pairs: Pairs, shared: &Arc<bridge::Shared>) -> Box<dyn Forwarder> {
    match mode {
        ForwardMode::Io => Box::new(io::Io { pairs }),
        ForwardMode::Mac => Box::new(mac::SetMacs { pairs }),
        ForwardMode::MacSwap => Box::new(mac::SwapMacs { pairs }),
        ForwardMode::RxOnly => Box::new(io::RxOnly),
        ForwardMode::TxOnly => Box::new(io::TxOnly),
        ForwardMode::IcmpEcho => Box::new(icmpecho::IcmpEcho),
        ForwardMode::Bridge => Box::new(bridge::Bridge::new(shared)),
    }
}

/// Who is paired with whom: 0-1, 2-3, … by number, whether the ports are there or not, but for
/// one port alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs {
    /// The port that is paired with itself; no port has the number `usize::MAX`.
    alone: PortId,
}

impl Pairs {
    /// Each port with its neighbour.
    pub const NEIGHBOURS: Pairs = Pairs { alone: usize::MAX };
    /// Port 0 with itself, as long as it is alone.
    pub const ALONE: Pairs = Pairs { alone: 0 };

    /// The port that `port` is paired with.
    #[inline]
    pub fn of(self, port: PortId) -> PortId {
        if port == self.alone { port } else { port ^ 1 }
    }
}

/// The MAC address that port `port` of the bridge has as its own: locally administered,
/// `02:72:62` ("rb") and the number of the port.
pub fn own_mac(port: PortId) -> Mac {
    let [.., a, b, c] = port.to_be_bytes();
    [0x02, 0x72, 0x62, a, b, c]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A burst of these frames.
    pub fn burst(frames: &[Vec<u8>]) -> Packets {
        let buffer: Arc<[u8]> = frames.concat().into();
        let mut packets = Packets::new();
        packets.lend(&buffer);
        let mut at = 0;
        for frame in frames {
            packets.push_lent(at..at + frame.len());
            at += frame.len();
        }
        packets
    }

    /// Packet `i`, head and tail.
    pub fn whole(packets: &Packets, i: usize) -> Vec<u8> {
        let mut out = vec![0; packets.packet_len(i)];
        packets.copy_out(i, &mut out);
        out
    }

    /// Forward `packets`, and what became of each.
    pub fn forward(
        forwarder: &mut dyn Forwarder,
        from: PortId,
        packets: &mut Packets,
    ) -> Vec<Output> {
        let mut out = Outputs::new();
        out.begin(packets.len());
        forwarder.forward(from, packets, &mut out);
        out.runs().flat_map(|(range, output)| range.map(move |_| output)).collect()
    }

    #[test]
    fn ports_are_paired() {
        assert_eq!([0, 1, 2, 3].map(|port| Pairs::NEIGHBOURS.of(port)), [1, 0, 3, 2]);
        // Who comes second is paired with the first before that one knows.
        assert_eq!([0, 1, 2, 3].map(|port| Pairs::ALONE.of(port)), [0, 0, 3, 2]);
    }

    #[test]
    fn own_macs_are_local_unicast_and_distinct() {
        assert_eq!(own_mac(0), [0x02, 0x72, 0x62, 0, 0, 0]);
        assert_eq!(own_mac(0x0102), [0x02, 0x72, 0x62, 0, 1, 2]);
    }
}
