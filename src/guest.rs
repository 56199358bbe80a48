//! `ringbridge guest`: the built-in guest as a command.
//!
//! Promises: ends after its duration or at SIGINT or SIGTERM, and says what it has seen.

#![forbid(unsafe_code)]

use crate::config::GuestArgs;
use crate::frontend::{self, GuestError, Report};
use crate::sys::Termination;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Be a guest until it is over; print the report.
///
/// # Errors
/// The backend's fault or the system's.
pub fn run(args: &GuestArgs) -> Result<(), GuestError> {
    let stop = stop_on_signal()?;
    let report = frontend::run(&args.guest, &stop)?;
    if args.json {
        println!("{}", serde_json::to_string(&report).map_err(std::io::Error::from)?);
    } else {
        print!("{}", table(&report));
    }
    Ok(())
}

/// A flag that SIGINT or SIGTERM raises.
pub(crate) fn stop_on_signal() -> std::io::Result<Arc<AtomicBool>> {
    let signals = Termination::catch()?;
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    // Ends with the process.
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while !signals.wait(Duration::from_secs(3600)) {}
        raised.store(true, Ordering::Relaxed);
    })?;
    Ok(stop)
}

fn table(report: &Report) -> String {
    let Report { seconds, rx_packets, tx_packets, .. } = report;
    let mpps = |pps: f64| pps / 1e6;
    let mut out = format!(
        "RX-packets: {rx_packets:<16} Rx-Mpps: {:.3}\nTX-packets: {tx_packets:<16} Tx-Mpps: {:.3}\n\
         in {seconds:.1} s; best 100 ms: {:.3} Mpps; {} cycles/packet (p10) in the guest\n",
        mpps(report.rx_pps),
        mpps(report.tx_pps),
        mpps(report.best_pps),
        report.cycles_per_packet,
    );
    if report.mode == frontend::Mode::Verify {
        let Report { lost, corrupt, duplicated, .. } = report;
        out += &format!("lost: {lost}  corrupt: {corrupt}  duplicated: {duplicated}\n");
    } else if report.lost > 0 {
        out += &format!("not sent on: {}\n", report.lost);
    }
    out
}
