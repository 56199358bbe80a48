//! `rxonly` and `txonly`: one direction at full speed.

use super::{Progress, at};
use crate::frontend::GuestError;
use crate::frontend::driver::{BURST, Burst, Completed, Packet, Pool, RingError, TxRing};
use crate::frontend::frame::{Frames, Number};
use crate::frontend::guest::{Guest, QueuePair, drain};
use crate::frontend::meter::{Meter, Tick};
use crate::frontend::report::{Mode, Report};
use crate::frontend::tally::Verdict;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Packets posted at once.
const TX_BURST: u32 = 32;
/// Frames from here on carry the number in their UDP payload.
const NUMBERED: usize = 50;
/// Offset of the source MAC's last four bytes.
const MAC_TAIL: usize = 8;

impl Guest {
    /// Receive and count. `size` is only reported.
    ///
    /// # Errors
    /// The backend broke a ring or closed the connection.
    pub fn rxonly(
        &mut self,
        size: usize,
        duration: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Report, GuestError> {
        self.prepare()?;
        let mut progress = Progress::begin(self);
        let mut burst = Burst::new();
        let mut meter = Meter::start(duration, stop);
        loop {
            let moved = self.receive_round(&mut burst)?;
            progress.add(moved);
            let tick = match moved.packets {
                0 => self.rest(false, &mut meter)?,
                n => meter.round(n),
            };
            match tick {
                Tick::Same => {}
                Tick::Window => self.check_alive()?,
                Tick::Over => break,
            }
        }
        let seconds = meter.elapsed().as_secs_f64();
        // What had arrived by then: at most a ring full.
        for _ in 0..usize::from(self.options.queue_size).div_ceil(BURST) {
            progress.add(self.receive_round(&mut burst)?);
        }
        let verdict = Verdict::default();
        Ok(progress.report(self, (Mode::RxOnly, size), (meter, seconds), verdict))
    }

    #[inline(always)]
    fn receive_round(&mut self, burst: &mut Burst) -> Result<Completed, GuestError> {
        let mut moved = Completed::default();
        for (p, port) in self.ports.iter_mut().enumerate() {
            for (q, pair) in port.pairs.iter_mut().enumerate() {
                let got = receive(pair, burst).map_err(at(p, q))?;
                moved.packets += got.packets;
                moved.bytes += got.bytes;
            }
        }
        Ok(moved)
    }

    /// Send frames of `size` bytes as fast as the backend takes them.
    ///
    /// # Errors
    /// `size` is none that this guest can send; the backend broke a ring or closed the
    /// connection.
    pub fn txonly(
        &mut self,
        size: usize,
        duration: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Report, GuestError> {
        self.check_size(size)?;
        self.prepare()?;
        for pair in self.ports.iter_mut().flat_map(|p| p.pairs.iter_mut()) {
            prefill(&mut pair.tx_pool, size);
        }
        let progress = Progress::begin(self);
        let mut seq = 0;
        let mut meter = Meter::start(duration, stop);
        loop {
            let before = seq;
            for (p, port) in self.ports.iter_mut().enumerate() {
                for (q, pair) in port.pairs.iter_mut().enumerate() {
                    seq += send(&mut pair.tx, &mut pair.tx_pool, size, seq).map_err(at(p, q))?;
                }
            }
            let tick = match seq - before {
                0 => self.rest(true, &mut meter)?,
                n => meter.round(n),
            };
            match tick {
                Tick::Same => {}
                Tick::Window => self.check_alive()?,
                Tick::Over => break,
            }
        }
        let seconds = meter.elapsed().as_secs_f64();
        for (p, port) in self.ports.iter_mut().enumerate() {
            for (q, pair) in port.pairs.iter_mut().enumerate() {
                drain(&mut pair.tx, &mut pair.tx_pool).map_err(at(p, q))?;
            }
        }
        let verdict = Verdict::default();
        Ok(progress.report(self, (Mode::TxOnly, size), (meter, seconds), verdict))
    }

    /// Can frames of `size` bytes be sent?
    pub(super) fn check_size(&self, size: usize) -> Result<(), GuestError> {
        let most = self.options.max_size;
        let least = crate::packet::MIN_PACKET;
        if (least..=most).contains(&size) {
            return Ok(());
        }
        Err(GuestError::Config(format!("frame size {size} is not from {least} to {most}")))
    }
}

/// One burst in, its buffers out again.
#[inline(always)]
fn receive(pair: &mut QueuePair, burst: &mut Burst) -> Result<Completed, RingError> {
    let pool = &mut pair.rx_pool;
    pair.rx.poll(pool, burst)?;
    let mut moved = Completed { packets: burst.len() as u64, bytes: 0 };
    if pool.simple() {
        let lines = pool.lines();
        let mut recycler = pool.recycler();
        for packet in burst.iter() {
            // An honest guest looks at its packets: the load cannot be left out.
            lines.load(packet.buffer);
            moved.bytes += u64::from(packet.len);
            recycler.recycle(*packet);
        }
    } else {
        let mut line = [0; 64];
        for packet in burst.iter() {
            pool.read_head(packet.buffer, &mut line);
            moved.bytes += u64::from(packet.len);
            pool.recycle(*packet);
        }
    }
    pair.rx.refill(pool);
    Ok(moved)
}

/// Every buffer holds a frame that lacks nothing but its own number.
fn prefill(pool: &mut Pool, size: usize) {
    let frames = Frames::new(0, false);
    let mut frame = Vec::new();
    let mut bytes = vec![0; pool.header_len() + size];
    for buffer in 0..pool.count() {
        frames.build_unsummed(Number { stream: 0, seq: u64::from(buffer) }, size, &mut frame);
        bytes[pool.header_len()..].copy_from_slice(&frame);
        pool.write(Packet { buffer, len: size as u16, buffers: 1 }, 0, &bytes);
    }
}

/// One burst of frames of `size` bytes, numbered from `seq`; how many.
#[inline(always)]
fn send(tx: &mut TxRing, pool: &mut Pool, size: usize, seq: u64) -> Result<u64, RingError> {
    let pieces = pool.pieces() as u32;
    let size_of_ring = u32::from(tx.queue().area().size());
    // Half a ring at most, so that a small one is not waited for until it is empty.
    let wanted = (TX_BURST * pieces).min(size_of_ring / 2).max(pieces);
    if tx.queue().room() < wanted {
        tx.reclaim(pool)?;
        if tx.queue().room() < wanted {
            return Ok(0);
        }
    }
    let sent = if size >= NUMBERED && pool.simple() && tx.queue().direct() {
        let n = wanted.min(pool.free());
        tx.post_stamped(pool, n, size as u16, seq);
        u64::from(n)
    } else {
        send_any(tx, pool, size, seq)
    };
    tx.publish();
    Ok(sent)
}

/// As [`send`], for every layout and size.
#[inline(never)]
fn send_any(tx: &mut TxRing, pool: &mut Pool, size: usize, seq: u64) -> u64 {
    let header = pool.header_len();
    for sent in 0..u64::from(TX_BURST) {
        let Some(buffer) = pool.pop() else { return sent };
        let packet = Packet { buffer, len: size as u16, buffers: 1 };
        let number = seq + sent;
        if size >= NUMBERED {
            pool.write(packet, header + NUMBERED - 8, &number.to_be_bytes());
        } else {
            pool.write(packet, header + MAC_TAIL, &(number as u32).to_be_bytes());
        }
        if !tx.post(pool, packet) {
            // The youngest of the free buffers now, and unsent: its turn comes again.
            pool.recycle(packet);
            return sent;
        }
    }
    u64::from(TX_BURST)
}
