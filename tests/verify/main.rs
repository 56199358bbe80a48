//! The bridge from guest to guest, byte for byte: what was sent comes back unchanged, in order
//! and once, and both sides have counted the same.

#[path = "../common/mod.rs"]
mod common;

mod ends;
mod forward;
mod lifecycle;
mod logging;
mod matrix;
mod sleepers;
mod topology;

use common::bridge::Bed;
use ringbridge::frontend::{Guest, GuestOptions, Link, Report, Sizes, VerifyPlan};
use ringbridge::stats::{PortTotals, Snapshot};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Nobody stops early.
static GO_ON: AtomicBool = AtomicBool::new(false);

/// A guest on these ports of the bridge.
fn guest(bed: &Bed, ports: &[usize], options: GuestOptions) -> Guest {
    let link = Link::to(ports.iter().map(|&i| bed.socket(i)));
    Guest::connect(&Link { options, ..link }).unwrap()
}

/// Frames of every length from `min` to the guest's largest, for `ms` milliseconds.
fn verify(guest: &mut Guest, min: usize, in_flight: usize, ms: u64) -> Report {
    let sizes = Sizes { min, max: guest.options().max_size };
    let plan = VerifyPlan { sizes, in_flight };
    guest.verify(plan, Some(Duration::from_millis(ms)), &GO_ON).unwrap()
}

/// Everything came back.
fn assert_clean(report: &Report, what: &str) {
    let losses = [report.lost, report.corrupt, report.duplicated, report.lost_interrupts];
    assert_eq!(losses, [0; 4], "lost, corrupt, duplicated, interrupts lost: {what}");
    assert!(report.rx_packets > 0, "{what}");
    assert_eq!((report.rx_packets, report.rx_bytes), (report.tx_packets, report.tx_bytes));
}

/// The port has received this, and lost nothing.
fn assert_received(port: &PortTotals, packets: u64, bytes: u64, what: &str) {
    assert_eq!((port.rx.packets, port.rx.bytes), (packets, bytes), "{what}: {port:?}");
    assert_eq!(port.rx.drops.total(), 0, "{what}: {port:?}");
}

/// The port was sent this, and lost nothing.
fn assert_sent(port: &PortTotals, packets: u64, bytes: u64, what: &str) {
    assert_eq!((port.tx.packets, port.tx.bytes), (packets, bytes), "{what}: {port:?}");
    assert_eq!(port.tx.drops.total(), 0, "{what}: {port:?}");
}

/// The bridge counted what the guest did that sent into port `from` and received from `to`.
fn assert_counted(bridge: &Snapshot, report: &Report, from: usize, to: usize, what: &str) {
    assert_received(&bridge.ports[from], report.tx_packets, report.tx_bytes, what);
    assert_sent(&bridge.ports[to], report.rx_packets, report.rx_bytes, what);
}
