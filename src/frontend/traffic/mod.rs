//! What a guest does with its rings: the loops of `rxonly`, `txonly`, `io` and `verify`.
//!
//! Promises: each loop runs on the calling thread until its duration is over or it is told to
//! stop, then takes back what it can and reports. A loop asks each ring once a round, allocates
//! nothing once it runs, and sleeps only if the guest waits for interrupts.

mod io;
mod rate;
mod verify;

pub use verify::{Sizes, VerifyPlan};

use super::GuestError;
use super::driver::{Completed, Pool, RingError, TxRing, clear_header};
use super::guest::Guest;
use super::meter::Meter;
use super::report::{Mode, Report};
use super::tally::Verdict;

/// What a run has received so far, and what was sent before it.
struct Progress {
    received: Completed,
    sent_before: Completed,
    lost_interrupts_before: u64,
}

impl Progress {
    fn begin(guest: &Guest) -> Self {
        Progress {
            received: Completed::default(),
            sent_before: sent(guest),
            lost_interrupts_before: guest.lost_interrupts(),
        }
    }

    fn add(&mut self, moved: Completed) {
        self.received.packets += moved.packets;
        self.received.bytes += moved.bytes;
    }

    fn report(
        &self,
        guest: &Guest,
        (mode, size): (Mode, usize),
        (meter, seconds): (Meter, f64),
        verdict: Verdict,
    ) -> Report {
        let (rx, tx) = (self.received, sent(guest));
        let tx_packets = tx.packets - self.sent_before.packets;
        Report {
            mode,
            size,
            seconds,
            rx_packets: rx.packets,
            tx_packets,
            rx_bytes: rx.bytes,
            tx_bytes: tx.bytes - self.sent_before.bytes,
            rx_pps: rx.packets as f64 / seconds.max(1e-9),
            tx_pps: tx_packets as f64 / seconds.max(1e-9),
            best_pps: meter.best(),
            lost: verdict.lost,
            corrupt: verdict.corrupt,
            duplicated: verdict.duplicated,
            latency: None,
            cycles_per_packet: meter.cycles_per_packet(),
            windows: meter.into_windows(),
            lost_interrupts: guest.lost_interrupts() - self.lost_interrupts_before,
        }
    }
}

fn sent(guest: &Guest) -> Completed {
    let mut sum = Completed::default();
    for pair in guest.ports.iter().flat_map(|p| p.pairs.iter()) {
        sum.packets += pair.tx.completed().packets;
        sum.bytes += pair.tx.completed().bytes;
    }
    sum
}

/// Send a frame in buffers of `pool`. False, and nothing taken, without buffers or room.
fn send_frame(tx: &mut TxRing, pool: &mut Pool, frame: &[u8]) -> bool {
    let Some(packet) = pool.take(frame.len()) else { return false };
    clear_header(pool, packet);
    pool.write(packet, pool.header_len(), frame);
    let posted = tx.post(pool, packet);
    if !posted {
        pool.recycle(packet);
    }
    posted
}

/// Say which ring it was.
fn at(port: usize, queue: usize) -> impl Fn(RingError) -> GuestError {
    move |source| GuestError::Ring { port, queue, source }
}
