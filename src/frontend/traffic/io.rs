//! `io`: what arrives is sent on, out of the other socket or the same one.
//!
//! Packets change rings with their buffers; nothing is copied unless the two sockets see
//! different memories. A sent buffer returns to the pool of the ring that received it.

use super::{Progress, at, send_frame};
use crate::frontend::GuestError;
use crate::frontend::driver::clear_header;
use crate::frontend::driver::{Burst, Completed, Packet, Pool, RingError, RxRing, TxRing};
use crate::frontend::frame::{Frames, Number};
use crate::frontend::guest::{DRAIN, Guest, QueuePair, drain};
use crate::frontend::meter::{Meter, Tick};
use crate::frontend::report::{Mode, Report};
use crate::frontend::tally::Verdict;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A closed loop that is silent so long has lost its packets.
const SILENCE: Duration = Duration::from_secs(1);

/// What one direction of one queue pair did in one round.
#[derive(Debug, Default)]
struct Moved {
    received: Completed,
    dropped: u64,
    reclaimed: usize,
}

/// The rings and pools of one direction of one queue pair.
struct Direction<'a> {
    rx: &'a mut RxRing,
    rx_pool: &'a mut Pool,
    tx: &'a mut TxRing,
    /// Where copies go, if buffers cannot be handed over.
    tx_pool: Option<&'a mut Pool>,
}

impl Guest {
    /// Send on what arrives. First `tx_first` packets of `size` bytes are sent, shared by the
    /// two directions, to go round for ever; with 0 only what the backend sends does.
    ///
    /// # Errors
    /// `size` is none that this guest can send; the backend broke a ring or closed the
    /// connection.
    pub fn io(
        &mut self,
        size: usize,
        tx_first: usize,
        duration: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Report, GuestError> {
        self.check_size(size)?;
        self.prepare()?;
        let mut progress = Progress::begin(self);
        let mut verdict = Verdict::default();
        let mut burst = Burst::new();
        let mut scratch = Vec::with_capacity(crate::packet::MAX_PACKET + 16);
        let mut looping = self.inject(size, tx_first)?;
        let mut meter = Meter::start(duration, stop);
        let mut heard = Instant::now();
        loop {
            let mut moved = Moved::default();
            self.each_direction(|mut d| d.forward(&mut burst, &mut scratch, &mut moved))?;
            progress.add(moved.received);
            verdict.lost += moved.dropped;
            looping = looping.saturating_sub(moved.dropped);
            let tick = match moved.received.packets {
                0 if moved.reclaimed == 0 => self.rest(true, &mut meter)?,
                n => meter.round(n),
            };
            match tick {
                Tick::Same => {}
                Tick::Window => {
                    self.check_alive()?;
                    if meter.last_window_moved() {
                        heard = Instant::now();
                    } else if tx_first > 0 && heard.elapsed() > SILENCE {
                        verdict.lost += looping;
                        looping = self.inject(size, tx_first)?;
                        heard = Instant::now();
                    }
                }
                Tick::Over => break,
            }
        }
        let seconds = meter.elapsed().as_secs_f64();
        self.each_direction(|d| drain(d.tx, d.tx_pool.unwrap_or(d.rx_pool)))?;
        progress.add(self.swallow(looping, &mut burst)?);
        Ok(progress.report(self, (Mode::Io, size), (meter, seconds), verdict))
    }

    /// The end of a closed loop: receive the `looping` packets that are on their way.
    fn swallow(&mut self, looping: u64, burst: &mut Burst) -> Result<Completed, GuestError> {
        let mut received = Completed::default();
        let mut heard = Instant::now();
        while received.packets < looping && heard.elapsed() < DRAIN {
            self.each_direction(|d| {
                d.rx.poll(d.rx_pool, burst)?;
                for packet in burst.iter() {
                    received.packets += 1;
                    received.bytes += u64::from(packet.len);
                    d.rx_pool.recycle(*packet);
                    heard = Instant::now();
                }
                d.rx.refill(d.rx_pool);
                Ok(())
            })?;
        }
        Ok(received)
    }

    /// Do `what` for every direction of every queue pair.
    #[inline(always)]
    fn each_direction(
        &mut self,
        mut what: impl FnMut(Direction) -> Result<(), RingError>,
    ) -> Result<(), GuestError> {
        let shared = self.options.shared_memory;
        match &mut self.ports[..] {
            [port] => {
                for (q, pair) in port.pairs.iter_mut().enumerate() {
                    let QueuePair { rx, rx_pool, tx, .. } = pair;
                    what(Direction { rx, rx_pool, tx, tx_pool: None }).map_err(at(0, q))?;
                }
            }
            [a, b] => {
                for (q, (a, b)) in a.pairs.iter_mut().zip(&mut b.pairs).enumerate() {
                    what(direction(a, b, shared)).map_err(at(0, q))?;
                    what(direction(b, a, shared)).map_err(at(1, q))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Send `packets` packets, shared evenly by all directions of all queue pairs; how many
    /// there was room for.
    fn inject(&mut self, size: usize, packets: usize) -> Result<u64, GuestError> {
        let ports = self.ports.len();
        let parts = ports * usize::from(self.options.queue_pairs);
        let frames = Frames::new(self.epoch, false);
        let (mut part, mut sent) = (0, 0);
        self.each_direction(|d| {
            let n = packets * (part + 1) / parts - packets * part / parts;
            part += 1;
            let pool = d.tx_pool.unwrap_or(d.rx_pool);
            d.tx.reclaim(pool)?;
            let mut frame = Vec::new();
            for _ in 0..n {
                frames.build_unsummed(Number { stream: 0, seq: sent }, size, &mut frame);
                if !send_frame(d.tx, pool, &frame) {
                    break;
                }
                sent += 1;
            }
            d.tx.publish();
            Ok(())
        })?;
        Ok(sent)
    }
}

fn direction<'a>(from: &'a mut QueuePair, to: &'a mut QueuePair, shared: bool) -> Direction<'a> {
    let tx_pool = if shared { None } else { Some(&mut to.tx_pool) };
    Direction { rx: &mut from.rx, rx_pool: &mut from.rx_pool, tx: &mut to.tx, tx_pool }
}

impl Direction<'_> {
    /// One burst on its way.
    #[inline(always)]
    fn forward(
        &mut self,
        burst: &mut Burst,
        scratch: &mut Vec<u8>,
        moved: &mut Moved,
    ) -> Result<(), RingError> {
        if self.tx_pool.is_none() {
            self.rx.poll_to_write(self.rx_pool, burst)?;
        } else {
            self.rx.poll(self.rx_pool, burst)?;
        }
        let wanted = burst.len() * self.rx_pool.pieces();
        if burst.is_empty() || (self.tx.queue().room() as usize) < wanted {
            // Idle, or short of descriptors: see what has been sent. Buffers that are not taken
            // back could not be received into.
            // One look takes the rest of what the last one knew of: that may be little.
            loop {
                let reclaimed = self.reclaim()?;
                moved.reclaimed += reclaimed;
                if reclaimed == 0 || self.tx.queue().room() as usize >= wanted {
                    break;
                }
            }
        }
        moved.received.packets += burst.len() as u64;
        moved.received.bytes += burst.iter().map(|p| u64::from(p.len)).sum::<u64>();
        if self.tx_pool.is_some() || !self.tx.post_received(self.rx_pool, burst) {
            self.forward_singly(burst, scratch, moved)?;
        }
        // In this order: in a closed loop what is sent may come straight back, and needs buffers.
        self.rx.refill(self.rx_pool);
        self.tx.publish();
        Ok(())
    }

    /// Packet by packet: copies, several buffers, any layout, hardly any room.
    #[inline(never)]
    fn forward_singly(
        &mut self,
        burst: &Burst,
        scratch: &mut Vec<u8>,
        moved: &mut Moved,
    ) -> Result<(), RingError> {
        for packet in burst {
            let sent = self.send(*packet, scratch)
                // Packets over several buffers need more room than was thought.
                || self.reclaim()? > 0 && self.send(*packet, scratch);
            if !sent {
                moved.dropped += 1;
            }
            if !sent || self.tx_pool.is_some() {
                self.rx_pool.recycle(*packet);
            }
        }
        Ok(())
    }

    #[inline]
    fn reclaim(&mut self) -> Result<usize, RingError> {
        self.tx.reclaim(self.tx_pool.as_deref_mut().unwrap_or(self.rx_pool))
    }

    /// Send a packet in the buffers it arrived in, or a copy of it. False without room.
    #[inline(always)]
    fn send(&mut self, packet: Packet, scratch: &mut Vec<u8>) -> bool {
        if let Some(to) = self.tx_pool.as_deref_mut() {
            self.rx_pool.read(packet, scratch);
            return send_frame(self.tx, to, &scratch[to.header_len()..]);
        }
        if self.rx_pool.simple() {
            // An honest guest looks at its packets: the load cannot be left out.
            self.rx_pool.lines().load(packet.buffer);
        }
        clear_header(self.rx_pool, packet);
        self.tx.post(self.rx_pool, packet)
    }
}
