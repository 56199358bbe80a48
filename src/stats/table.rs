//! The tables that `run` prints, in testpmd's terms.
//!
//! Promises: at most 100 columns as long as port names and counts leave it room; a line more
//! only where something was dropped.

#![forbid(unsafe_code)]

use super::{Drops, PortTotals, Snapshot, WorkerTotals};
use std::fmt::Write;

const WIDTH: usize = 92;

/// Totals of `now`, rates since `earlier`.
pub fn render(now: &Snapshot, earlier: &Snapshot) -> String {
    let mut out = String::new();
    for port in &now.ports {
        title(&mut out, &format!("Port {}: {}", port.slot, port.name));
        // Neither one that was here before this port, nor this one before it was cleared.
        let same = |then: &&PortTotals| (then.slot, then.since) == (port.slot, port.since);
        let then = earlier.ports.iter().find(same);
        let since = if then.is_some() { earlier.at } else { port.since };
        let seconds = now.at.saturating_duration_since(since).as_secs_f64();
        port_lines(&mut out, port, then, seconds);
    }
    title(&mut out, "Workers");
    for worker in &now.workers {
        out.push_str(&worker_line(worker));
    }
    out.push_str(&"-".repeat(WIDTH));
    out.push('\n');
    out
}

fn title(out: &mut String, text: &str) {
    let text = format!("---- {text} ");
    let _ = writeln!(out, "{text:-<WIDTH$}");
}

fn port_lines(out: &mut String, port: &PortTotals, earlier: Option<&PortTotals>, seconds: f64) {
    for (name, now, then) in
        [("RX", &port.rx, earlier.map(|e| &e.rx)), ("TX", &port.tx, earlier.map(|e| &e.tx))]
    {
        let (packets, bytes) = then.map_or((0, 0), |then| (then.packets, then.bytes));
        let rate = |now: u64, then| per_second(now.saturating_sub(then), seconds);
        let lower = if name == "RX" { "Rx" } else { "Tx" };
        let _ = writeln!(
            out,
            "{name}-packets: {:<14} {name}-dropped: {:<12} {lower}-pps: {:<10} {lower}-bps: {}",
            now.packets,
            now.drops.total(),
            rate(now.packets, packets),
            rate(now.bytes * 8, bytes * 8),
        );
        drop_lines(out, name, &now.drops);
    }
}

/// `RX dropped as runt: 4, bad_next: 2`, broken where the width ends.
fn drop_lines(out: &mut String, name: &str, drops: &Drops) {
    let mut line = String::new();
    for (reason, n) in drops.by_reason() {
        let item = format!(" {}: {n}", reason.name());
        if !line.is_empty() && line.len() + item.len() + 1 > WIDTH {
            let _ = writeln!(out, "{line}");
            line.clear();
        }
        if line.is_empty() {
            let _ = write!(line, "  {name} dropped as");
        } else {
            line.push(',');
        }
        line.push_str(&item);
    }
    if !line.is_empty() {
        let _ = writeln!(out, "{line}");
    }
}

fn worker_line(worker: &WorkerTotals) -> String {
    let cpu = worker.cpu.map_or("any".into(), |cpu| cpu.to_string());
    let mut line = format!("CPU {cpu:<4} packets: {:<14}", worker.packets);
    if let (Some(mean), Some(p10)) = (worker.cycles_per_packet(), worker.cycles_per_packet_p10) {
        let _ =
            write!(line, " cycles/packet: {mean:.1} (p10 {p10})   best-pps: {}", worker.best_pps);
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

fn per_second(n: u64, seconds: f64) -> u64 {
    if seconds > 0.0 { (n as f64 / seconds).round() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Reason;
    use crate::stats::tests::sources;
    use crate::stats::{PortCounters, Totals};
    use std::time::Duration;

    #[test]
    fn the_table_has_totals_rates_and_reasons() {
        let (ports, workers) = sources();
        let earlier = Snapshot::take(&ports, &workers);
        ports[0].rx[1].packets.add(3000);
        ports[0].rx[1].bytes.add(192_000);
        let mut now = Snapshot::take(&ports, &workers);
        now.at = earlier.at + Duration::from_secs(2);
        let expected = "\
---- Port 0: vhost:/tmp/vm0.sock -----------------------------------------------------------
RX-packets: 3120           RX-dropped: 6            Rx-pps: 1500       Rx-bps: 768000
  RX dropped as runt: 4, bad_next: 2
TX-packets: 7              TX-dropped: 14           Tx-pps: 0          Tx-bps: 0
  TX dropped as no_buffers: 9, runt: 5
---- Port 1: null --------------------------------------------------------------------------
RX-packets: 0              RX-dropped: 0            Rx-pps: 0          Rx-bps: 0
TX-packets: 1              TX-dropped: 0            Tx-pps: 0          Tx-bps: 0
---- Workers -------------------------------------------------------------------------------
CPU 2    packets: 64             cycles/packet: 45.5 (p10 40)   best-pps: 0
CPU any  packets: 0
--------------------------------------------------------------------------------------------
";
        assert_eq!(now.table(&earlier), expected);
    }

    #[test]
    fn rates_are_of_the_same_port_and_the_same_count() {
        let (mut ports, workers) = sources();
        let earlier = Snapshot::take(&ports, &workers);
        // Port 0 goes, the same slot is another port's, and port 1 is cleared.
        let gone = ports.remove(0);
        ports[0].clear();
        ports[0].tx[0].packets.add(300);
        ports.insert(0, PortCounters::new(0, &gone.journal, 1));
        ports[0].rx[0].packets.add(60);
        let mut now = Snapshot::take(&ports, &workers);
        now.at = now.ports[0].since + Duration::from_secs(3);
        now.ports[1].since = now.ports[0].since;
        let table = now.table(&earlier);
        assert!(table.contains("RX-packets: 60 ") && table.contains("Rx-pps: 20 "), "{table}");
        assert!(table.contains("TX-packets: 300 ") && table.contains("Tx-pps: 100 "), "{table}");
        // And one that is no more.
        ports.remove(0);
        let table = Snapshot::take(&ports, &workers).table(&earlier);
        assert!(table.starts_with("---- Port 1: null ---"), "{table}");
    }

    #[test]
    fn no_time_is_no_rate() {
        let (ports, workers) = sources();
        let now = Snapshot::take(&ports, &workers);
        assert!(now.table(&now).contains("Rx-pps: 0 "));
    }

    #[test]
    fn many_reasons_are_broken_into_lines() {
        let mut totals = Totals::default();
        for reason in Reason::ALL {
            totals.drops.0[reason as usize] = u64::from(u32::MAX);
        }
        let mut out = String::new();
        drop_lines(&mut out, "TX", &totals.drops);
        assert!(out.lines().all(|line| line.len() <= WIDTH), "{out}");
        assert!(Reason::ALL.iter().all(|r| out.contains(&format!(" {}: 4294967295", r.name()))));
    }
}
