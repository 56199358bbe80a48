//! What the control socket says to people.

#![forbid(unsafe_code)]

use crate::bridge::PortInfo;
use crate::forward::PortId;
use crate::forward::bridge::Learned;
use serde::Serialize;
use std::fmt::Write;

/// Is the link of a port up, and if not, why.
pub(super) fn link(port: &PortInfo) -> String {
    port.why_down.as_ref().map_or_else(|| "up".into(), |why| format!("down: {why}"))
}

/// An address as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Address {
    mac: String,
    vlan: u16,
    port: PortId,
    /// Seconds of silence; none for one that is written down.
    age: Option<u32>,
}

/// The addresses that are known, in order.
pub(super) fn addresses(known: &[(Learned, u32)]) -> Vec<Address> {
    let address = |(learned, age): &(Learned, u32)| Address {
        mac: learned.mac.map(|byte| format!("{byte:02x}")).join(":"),
        vlan: learned.vid,
        port: learned.known.port,
        age: (!learned.known.fixed).then_some(*age),
    };
    let mut all: Vec<_> = known.iter().map(address).collect();
    all.sort_by(|a, b| (a.port, a.vlan, &a.mac).cmp(&(b.port, b.vlan, &b.mac)));
    all
}

/// A line for each address.
pub(super) fn macs(known: &[(Learned, u32)]) -> String {
    let mut out = String::from("mac                vlan  port  silent\n");
    for Address { mac, vlan, port, age } in addresses(known) {
        let age = age.map_or_else(|| "static".into(), |age| format!("{age} s"));
        let _ = writeln!(out, "{mac}  {vlan:>4}  {port:>4}  {age}");
    }
    out
}

/// A paragraph for each port.
pub(super) fn ports(ports: &[PortInfo]) -> String {
    let mut out = String::new();
    for port in ports {
        let partner = match port.partner {
            Some(partner) if partner == port.slot => "sends to itself".into(),
            Some(partner) => format!("sends to {partner}"),
            None => "sends to none".into(),
        };
        let _ = writeln!(out, "{}  {}  {partner}, link {}", port.slot, port.name, link(port));
        let status = &port.status;
        if status.connected {
            let runs = status.rings.iter().filter(|ring| ring.running).count();
            let mtu = status.mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
            let _ = writeln!(
                out,
                "   memory {} MiB in {} region(s), {runs} of {} rings run{mtu}",
                status.memory >> 20,
                status.regions,
                2 * port.queues,
            );
            let _ = writeln!(out, "   features {:#x} {}", status.features, status.feature_names);
        }
        if !status.refused.is_empty() {
            let refused = status.refused.iter().map(|(reason, n)| format!("{reason} {n}"));
            let _ = writeln!(out, "   refused: {}", refused.collect::<Vec<_>>().join(", "));
        }
        if status.log_suppressed > 0 {
            let _ = writeln!(out, "   {} log lines left out", status.log_suppressed);
        }
    }
    if out.is_empty() { "no ports\n".into() } else { out }
}
