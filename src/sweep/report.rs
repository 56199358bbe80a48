//! What a sweep has found: table, JSON, lines of a plot.

#![forbid(unsafe_code)]

use super::{Direction, Task};
use crate::config::Against;
use crate::frontend::Report;
use crate::plot::Series;
use serde::Serialize;
use std::fmt::Write;

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    size: usize,
    mergeable: bool,
    direction: Direction,
    backend: &'static str,
    /// Median and best of the windows of 100 ms.
    mpps: f64,
    best_mpps: f64,
    /// Of frames, at the median.
    gbps: f64,
    /// The tenth percentile of the backend's busy cycles a packet.
    cycles_per_packet: Option<u64>,
}

impl Cell {
    pub fn new(task: &Task, report: &Report, cycles_per_packet: Option<u64>) -> Self {
        let pps = report.median_pps();
        Cell {
            size: task.size,
            mergeable: task.mergeable,
            direction: task.direction,
            backend: backend_name(task.against),
            mpps: pps / 1e6,
            best_mpps: report.best_pps / 1e6,
            gbps: pps * task.size as f64 * 8.0 / 1e9,
            cycles_per_packet,
        }
    }

    fn is_beside(&self, other: &Cell) -> bool {
        (self.size, self.mergeable, self.direction)
            == (other.size, other.mergeable, other.direction)
    }
}

fn backend_name(against: Option<Against>) -> &'static str {
    against.map_or("ringbridge", |Against::Reference| "reference")
}

/// A block for each direction and mergeable setting, a line for each size.
pub(super) fn table(cells: &[Cell]) -> String {
    let mut out = String::new();
    let mut block = None;
    let compared = cells.iter().any(|cell| cell.backend == "reference");
    for cell in cells.iter().filter(|cell| cell.backend == "ringbridge") {
        if block.replace((cell.direction, cell.mergeable)) != Some((cell.direction, cell.mergeable))
        {
            let mergeable = if cell.mergeable { "mergeable" } else { "not mergeable" };
            let _ = writeln!(out, "\n{}, {mergeable}", cell.direction.name());
            let _ = write!(out, "{:>7}{:>9}{:>9}{:>9}", "size", "Mpps", "best", "Gbit/s");
            let _ = write!(out, "{:>16}", "cycles/packet");
            out += if compared { "   reference   ratio\n" } else { "\n" };
        }
        let _ = write!(out, "{:>7}{:>9.2}{:>9.2}", cell.size, cell.mpps, cell.best_mpps);
        let cycles = cell.cycles_per_packet.map_or("-".into(), |cycles| cycles.to_string());
        let _ = write!(out, "{:>9.2}{cycles:>16}", cell.gbps);
        let other = cells.iter().find(|c| c.backend == "reference" && c.is_beside(cell));
        if let Some(other) = other {
            let _ = write!(out, "{:>12.2}{:>8.2}", other.mpps, cell.mpps / other.mpps);
        }
        out.push('\n');
    }
    out
}

/// `{"cells":[{"size","mergeable","direction","backend","mpps","best_mpps","gbps",
/// "cycles_per_packet"}]}`
pub(super) fn json(cells: &[Cell]) -> String {
    serde_json::json!({ "cells": cells }).to_string()
}

/// A line for each backend, direction and mergeable setting.
pub(super) fn series(cells: &[Cell]) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for cell in cells {
        let mergeable = if cell.mergeable { ", mergeable" } else { "" };
        let of = if cell.backend == "reference" { "reference " } else { "" };
        let name = format!("{of}{}{mergeable}", cell.direction.name());
        let point = (cell.size, cell.mpps);
        match series.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => series.push(Series { name, points: vec![point] }),
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(size: usize, backend: &'static str, mpps: f64) -> Cell {
        Cell {
            size,
            mergeable: true,
            direction: Direction::ToGuest,
            backend,
            mpps,
            best_mpps: mpps + 1.0,
            gbps: 5.0,
            cycles_per_packet: (backend == "ringbridge").then_some(40),
        }
    }

    #[test]
    fn backends_of_a_cell_share_a_line() {
        let cells = [cell(64, "ringbridge", 30.0), cell(64, "reference", 6.0)];
        let table = table(&cells);
        let line = table.lines().last().unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words, ["64", "30.00", "31.00", "5.00", "40", "6.00", "5.00"]);
        assert_eq!(table.matches("backend→guest").count(), 1);
    }

    #[test]
    fn lines_of_the_plot_run_over_sizes() {
        let cells = [
            cell(64, "ringbridge", 30.0),
            cell(64, "reference", 6.0),
            cell(128, "ringbridge", 29.0),
            cell(128, "reference", 5.0),
        ];
        let series = series(&cells);
        assert_eq!(series.len(), 2);
        assert_eq!(series[0].points, [(64, 30.0), (128, 29.0)]);
        assert_eq!(series[1].points, [(64, 6.0), (128, 5.0)]);
    }

    #[test]
    fn json_has_the_names_it_promises() {
        let json: serde_json::Value =
            serde_json::from_str(&json(&[cell(64, "ringbridge", 30.0)])).unwrap();
        assert_eq!(json["cells"][0]["direction"], "backend→guest");
        assert_eq!(json["cells"][0]["cycles_per_packet"], 40);
    }
}
