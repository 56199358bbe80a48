//! What the operator is told of a port.
//!
//! Promises: `why_down` says in words why a link is down, and nothing where it is up. Made by
//! the bridge, shown by `ctl`.

#![forbid(unsafe_code)]

use super::slots::Slot;
use crate::config::PortKind;
use crate::forward::PortId;
use crate::journal::{RingState, Status};
use serde::Serialize;

/// A port as it is at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PortInfo {
    /// Its number.
    pub slot: PortId,
    /// Its name.
    pub name: String,
    /// As it is written: `vhost`, `tap`, …
    pub kind: &'static str,
    /// Queue pairs that it offers.
    pub queues: u16,
    /// The port that it is paired with: itself, another one, or none that is there.
    pub partner: Option<PortId>,
    /// Why the link is down, if it is.
    pub why_down: Option<String>,
    /// What its frontend has done. The link of a port without one is up.
    #[serde(flatten)]
    pub status: Status,
}

impl PortInfo {
    /// Of the port in `slot`.
    pub(super) fn new(port: PortId, slot: &Slot, partner: Option<PortId>) -> Self {
        let mut status = slot.counters.journal.status();
        let kind = &slot.spec.kind;
        status.link |= matches!(kind, PortKind::Pcap(_) | PortKind::Null);
        let why_down = (!status.link).then(|| match kind {
            PortKind::Vhost(vhost) => why_down(&status, vhost.client),
            _ => "the interface is down, has no carrier, or is gone".into(),
        });
        PortInfo {
            slot: port,
            name: slot.spec.name.clone(),
            kind: kind.name(),
            queues: kind.queues(),
            partner,
            why_down,
            status,
        }
    }
}

/// Why no queue pair works.
fn why_down(status: &Status, client: bool) -> String {
    if !status.connected {
        let who = if client { "no frontend listens there yet" } else { "no frontend is connected" };
        return who.into();
    }
    let running = |ring: &&RingState| ring.running;
    if !status.rings.iter().any(|ring| ring.running) {
        return "the frontend is connected and has started no ring: does its driver run?".into();
    }
    // The pair that is nearest to working: the first of which a ring runs.
    let pairs = status.rings.chunks(2).enumerate();
    let mut pairs = pairs.filter(|(_, pair)| pair.iter().any(|ring| ring.running));
    let Some((first, pair)) = pairs.next() else { return String::new() };
    let reason = [0, 1].iter().find_map(|&half| {
        let ring = 2 * first + half;
        match pair.get(half).filter(running) {
            None => Some(format!("ring {ring} is not started")),
            Some(state) if state.broken => {
                Some(format!("ring {ring} contradicts itself and was stopped"))
            }
            Some(state) if !state.enabled => Some(format!("ring {ring} is not enabled")),
            Some(_) => None,
        }
    });
    reason.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKS: RingState = RingState { running: true, enabled: true, broken: false, entries: 64 };

    #[test]
    fn a_link_that_is_down_has_a_reason() {
        let stopped = RingState::default();
        let off = RingState { enabled: false, ..WORKS };
        let broken = RingState { broken: true, ..WORKS };
        let cases = [
            (vec![], "the frontend is connected and has started no ring: does its driver run?"),
            (vec![WORKS], "ring 1 is not started"),
            (vec![stopped, WORKS], "ring 0 is not started"),
            (vec![WORKS, off], "ring 1 is not enabled"),
            (vec![stopped, stopped, broken, off], "ring 2 contradicts itself and was stopped"),
        ];
        for (rings, expected) in cases {
            let status = Status { connected: true, rings, ..Status::default() };
            assert_eq!(why_down(&status, false), expected);
        }
        assert_eq!(why_down(&Status::default(), false), "no frontend is connected");
        assert_eq!(why_down(&Status::default(), true), "no frontend listens there yet");
    }
}
