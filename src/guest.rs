//! `ringbridge guest`: the built-in guest as a command.
//!
//! Promises: ends after its duration or at SIGINT or SIGTERM, and says what it has seen.

#![forbid(unsafe_code)]

use crate::frontend::{self, GuestConfig, GuestError, Latency, Report};
use crate::sys::{self, stop_on_signal};
use std::fmt::Write;

/// Everything `guest` needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestArgs {
    /// The guest and what it does.
    pub guest: GuestConfig,
    /// Print a JSON object at the end.
    pub json: bool,
}

/// Be a guest until it is over; print the report.
///
/// # Errors
/// The backend's fault or the system's.
pub fn run(args: &GuestArgs) -> Result<(), GuestError> {
    let stop = stop_on_signal()?;
    let report = frontend::run(&args.guest, &stop)?;
    if args.json {
        sys::print(&(serde_json::to_string(&report).map_err(std::io::Error::from)? + "\n"));
    } else {
        sys::print(&table(&report));
    }
    Ok(())
}

fn table(report: &Report) -> String {
    let Report { seconds, rx_packets, tx_packets, .. } = report;
    let mpps = |pps: f64| pps / 1e6;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "RX-packets: {rx_packets:<16} Rx-Mpps: {:.3}\nTX-packets: {tx_packets:<16} Tx-Mpps: {:.3}\n\
         in {seconds:.1} s; best 100 ms: {:.3} Mpps; {} cycles/packet (p10) in the guest",
        mpps(report.rx_pps),
        mpps(report.tx_pps),
        mpps(report.best_pps),
        report.cycles_per_packet,
    );
    if report.mode == frontend::Mode::Verify {
        let Report { lost, corrupt, duplicated, latency, .. } = report;
        let _ = writeln!(out, "lost: {lost}  corrupt: {corrupt}  duplicated: {duplicated}");
        if let Some(Latency { p50, p99, p999 }) = latency {
            let _ = writeln!(out, "round trip: p50 {p50:.1}  p99 {p99:.1}  p99.9 {p999:.1} us");
        }
    } else if report.lost > 0 {
        let _ = writeln!(out, "not sent on: {}", report.lost);
    }
    out
}
