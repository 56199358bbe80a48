//! What the control socket says to people.

use crate::run::PortView;
use std::fmt::Write;

/// Is the link of a port up, and why.
pub(super) fn link(port: &PortView) -> (bool, String) {
    let status = &port.status;
    if port.kind != "vhost" {
        return (true, format!("a {} port is always up", port.kind));
    }
    let runs = status.rings.iter().filter(|ring| ring.running).count();
    let why = if status.link {
        "a queue pair has both its rings running and enabled".into()
    } else if !status.connected {
        "no frontend is connected".into()
    } else if status.memory == 0 {
        "the frontend has not shared its memory yet".into()
    } else if status.rings.iter().any(|ring| ring.broken) {
        "a ring contradicted itself and was stopped".into()
    } else if runs == 0 {
        "no ring runs: the guest's driver has not started".into()
    } else {
        "no queue pair has both its rings running and enabled".into()
    };
    (status.link, why)
}

/// A paragraph for each port.
pub(super) fn ports(ports: &[PortView]) -> String {
    let mut out = String::new();
    for port in ports {
        let (up, why) = link(port);
        let partner = port.partner.as_deref().unwrap_or("none");
        let _ = writeln!(out, "{}  {}  (partner: {partner})", port.slot, port.name);
        let _ = writeln!(out, "   link {}: {why}", if up { "up" } else { "down" });
        let status = &port.status;
        if status.connected {
            let runs = status.rings.iter().filter(|ring| ring.running);
            let rings: Vec<_> = runs.map(|ring| ring.entries.to_string()).collect();
            let mtu = status.mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
            let _ = writeln!(
                out,
                "   memory {} MiB in {} region(s), {} ring(s) run ({} entries){mtu}",
                status.memory >> 20,
                status.regions,
                rings.len(),
                if rings.is_empty() { "no".into() } else { rings.join(" ") },
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
