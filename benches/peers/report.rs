//! The results as a table and as JSON.

use crate::plan::Peer;
use crate::rounds::Cell;
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Report {
    cells: Vec<Row>,
}

/// Rates are best 100-ms windows in Mpps; what was not measured is null.
#[derive(Serialize)]
struct Row {
    size: usize,
    mergeable: bool,
    direction: &'static str,
    guest: &'static str,
    ringbridge_mpps: Option<f64>,
    dpdk_mpps: Option<f64>,
    reference_mpps: Option<f64>,
    ratio_dpdk: Option<f64>,
    ratio_reference: Option<f64>,
    spread: Option<f64>,
}

pub fn json(cells: &[Cell]) -> serde_json::Result<String> {
    let row = |cell: &Cell| Row {
        size: cell.size,
        mergeable: cell.group.mergeable,
        direction: cell.group.direction.name(),
        guest: cell.group.guest.name(),
        ringbridge_mpps: cell.best(Peer::Ringbridge),
        dpdk_mpps: cell.best(Peer::Dpdk),
        reference_mpps: cell.best(Peer::Reference),
        ratio_dpdk: cell.ratio(Peer::Dpdk),
        ratio_reference: cell.ratio(Peer::Reference),
        spread: cell.spread(),
    };
    let report = Report { cells: cells.iter().map(row).collect() };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

/// Best and median windows of each peer in Mpps, and what ringbridge is to the others.
pub fn table(cells: &[Cell]) -> String {
    let mut out = format!(
        "{:>5} {:9} {:14} {:11}  {:>13}  {:>13}  {:>13} {:>7} {:>7} {:>7}\n",
        "size",
        "buffers",
        "direction",
        "guest",
        "ringbridge",
        "dpdk",
        "reference",
        "/dpdk",
        "/ref",
        "A/A"
    );
    out.push_str("Mpps: best 100-ms window (median); A/A: the first peer against itself\n");
    for cell in cells {
        let rate = |peer| match (cell.best(peer), cell.median(peer)) {
            (Some(best), Some(median)) => format!("{best:.2} ({median:.2})"),
            _ => "-".into(),
        };
        let ratio = |ratio: Option<f64>| ratio.map_or("-".into(), |r| format!("{r:.2}"));
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:>5} {:9} {:14} {:11}  {:>13}  {:>13}  {:>13} {:>7} {:>7} {:>7}",
            cell.size,
            if cell.group.mergeable { "mergeable" } else { "plain" },
            cell.group.direction.name(),
            cell.group.guest.name(),
            rate(Peer::Ringbridge),
            rate(Peer::Dpdk),
            rate(Peer::Reference),
            ratio(cell.ratio(Peer::Dpdk)),
            ratio(cell.ratio(Peer::Reference)),
            cell.spread().map_or("-".into(), |s| format!("{:.0} %", 100.0 * s)),
        );
    }
    out
}
