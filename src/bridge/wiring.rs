//! Which worker has which queue, and which ports are paired.
//!
//! Promises: pure, and the same for a port whenever it comes, so that no queue ever moves to
//! another worker. Every transmit queue has one worker, the one whose receive queue feeds it.

#![forbid(unsafe_code)]

use crate::config::{ForwardMode, RunConfig};
use crate::forward::{Pairs, PortId};

/// What does not change while a bridge runs.
#[derive(Debug, Clone, Copy)]
pub struct Wiring {
    /// How packets go from port to port.
    pub forward: ForwardMode,
    workers: usize,
    /// It began with one port, which is paired with itself until there is a second: both
    /// directions of both then belong to one worker.
    alone: bool,
}

impl Wiring {
    /// For a bridge that begins like this.
    pub fn new(config: &RunConfig) -> Self {
        let (forward, workers) = (config.forward, config.workers.len());
        let wiring = Wiring { forward, workers, alone: false };
        Wiring { alone: wiring.pairs_ports() && config.ports.len() == 1, ..wiring }
    }

    /// Does the mode send from a port to its neighbour?
    pub fn pairs_ports(&self) -> bool {
        matches!(self.forward, ForwardMode::Io | ForwardMode::Mac | ForwardMode::MacSwap)
    }

    /// The pairs in the beginning.
    pub fn pairs(&self) -> Pairs {
        if self.alone { Pairs::ALONE } else { Pairs::NEIGHBOURS }
    }

    /// The port that packets from `port` are sent to, if the mode sends them anywhere.
    pub fn output(&self, port: PortId, pairs: Pairs) -> Option<PortId> {
        match self.forward {
            ForwardMode::Io | ForwardMode::Mac | ForwardMode::MacSwap => Some(pairs.of(port)),
            ForwardMode::IcmpEcho => Some(port),
            ForwardMode::RxOnly | ForwardMode::TxOnly | ForwardMode::Bridge => None,
        }
    }

    /// The worker that receives from `port`.
    pub fn receiver(&self, port: PortId) -> usize {
        let second = self.alone && port == 1;
        if second { 0 } else { port % self.workers }
    }

    /// The worker that sends to `port`: the one that receives what is sent there. Pairing is
    /// mutual, so that is the port's own output.
    pub fn sender(&self, port: PortId) -> usize {
        self.receiver(self.output(port, Pairs::NEIGHBOURS).unwrap_or(port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wiring(forward: ForwardMode, workers: usize, alone: bool) -> Wiring {
        Wiring { forward, workers, alone }
    }

    #[test]
    fn who_receives_from_a_port_sends_to_its_output() {
        for alone in [false, true] {
            for workers in 1..5 {
                let wiring = wiring(ForwardMode::Mac, workers, alone);
                let mut pairs = vec![Pairs::NEIGHBOURS];
                // Before and after the second port has come.
                pairs.extend(alone.then_some(Pairs::ALONE));
                for (port, pairs) in (0..16).flat_map(|p| pairs.iter().map(move |q| (p, *q))) {
                    let output = wiring.output(port, pairs).unwrap();
                    assert_eq!(wiring.sender(output), wiring.receiver(port), "{port} {pairs:?}");
                }
            }
        }
        let echo = wiring(ForwardMode::IcmpEcho, 3, false);
        assert!((0..9).all(|port| echo.sender(port) == echo.receiver(port)));
    }

    #[test]
    fn ports_are_spread_over_the_workers() {
        let wiring = wiring(ForwardMode::Io, 2, false);
        assert_eq!([0, 1, 2, 3].map(|port| wiring.receiver(port)), [0, 1, 0, 1]);
        assert_eq!([0, 1, 2, 3].map(|port| wiring.sender(port)), [1, 0, 1, 0]);
    }
}
