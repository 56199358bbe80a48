//! `io`: what arrives is sent on, out of the other socket or the same one.
//!
//! Packets change rings with their buffers; nothing is copied unless the two sockets see
//! different memories. A sent buffer returns to the pool of the ring that received it.

use super::{Progress, at};
use crate::frontend::GuestError;
use crate::frontend::driver::clear_header;
use crate::frontend::driver::{Burst, Completed, Packet, Pool, RingError, RxRing, TxRing};
use crate::frontend::frame::{Frames, Number};
use crate::frontend::guest::{Guest, QueuePair, drain};
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
    /// Send on what arrives. First `in_flight` packets of `size` bytes are sent, shared by the
    /// two directions, to go round for ever; with 0 only what the backend sends does.
    ///
    /// # Errors
    /// `size` is none that this guest can send; the backend broke a ring or closed the
    /// connection.
    pub fn io(
        &mut self,
        size: usize,
        in_flight: usize,
        duration: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Report, GuestError> {
        self.check_size(size)?;
        self.prepare()?;
        let mut progress = Progress::begin(self);
        let mut verdict = Verdict::default();
        let mut burst = Burst::new();
        let mut scratch = Vec::with_capacity(crate::packet::MAX_PACKET + 16);
        self.inject(size, in_flight)?;
        let mut meter = Meter::start(duration, stop);
        let mut heard = Instant::now();
        loop {
            let mut moved = Moved::default();
            self.each_direction(|mut d| d.forward(&mut burst, &mut scratch, &mut moved))?;
            progress.add(moved.received);
            verdict.lost += moved.dropped;
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
                    } else if in_flight > 0 && heard.elapsed() > SILENCE {
                        verdict.lost += in_flight as u64;
                        self.inject(size, in_flight)?;
                        heard = Instant::now();
                    }
                }
                Tick::Over => break,
            }
        }
        let seconds = meter.elapsed().as_secs_f64();
        self.each_direction(|direction| direction.finish())?;
        Ok(progress.report(self, (Mode::Io, size), (meter, seconds), verdict))
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

    /// Send `packets` packets, shared evenly by all directions of all queue pairs.
    fn inject(&mut self, size: usize, packets: usize) -> Result<(), GuestError> {
        let ports = self.ports.len();
        let parts = ports * usize::from(self.options.queue_pairs);
        let frames = Frames::new(self.epoch, false);
        let (mut part, mut seq) = (0, 0);
        self.each_direction(|d| {
            let n = packets * (part + 1) / parts - packets * part / parts;
            part += 1;
            let pool = d.tx_pool.unwrap_or(d.rx_pool);
            d.tx.reclaim(pool)?;
            let mut frame = Vec::new();
            for _ in 0..n {
                let Some(buffer) = pool.pop() else { break };
                frames.build_unsummed(Number { stream: 0, seq }, size, &mut frame);
                seq += 1;
                if !send_frame(d.tx, pool, buffer, &frame) {
                    break;
                }
            }
            d.tx.publish();
            Ok(())
        })
    }
}

fn direction<'a>(from: &'a mut QueuePair, to: &'a mut QueuePair, shared: bool) -> Direction<'a> {
    let tx_pool = if shared { None } else { Some(&mut to.tx_pool) };
    Direction { rx: &mut from.rx, rx_pool: &mut from.rx_pool, tx: &mut to.tx, tx_pool }
}

/// Put a frame into `buffer` and post it. Without room the buffer goes back.
fn send_frame(tx: &mut TxRing, pool: &mut Pool, buffer: u32, frame: &[u8]) -> bool {
    clear_header(pool, buffer);
    pool.write_at(buffer, pool.header_len(), frame);
    let posted = tx.post(pool, Packet { buffer, len: frame.len() as u32, buffers: 1 });
    if !posted {
        pool.push(buffer);
    }
    posted
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
        self.rx.poll(self.rx_pool, burst)?;
        if burst.is_empty() || (self.tx.queue().room() as usize) < burst.len() {
            // Idle, or short of descriptors: see what has been sent. Buffers that are not taken
            // back could not be received into.
            // One look takes the rest of what the last one knew of: that may be little.
            let pool = self.tx_pool.as_deref_mut().unwrap_or(self.rx_pool);
            loop {
                let reclaimed = self.tx.reclaim(pool)?;
                moved.reclaimed += reclaimed;
                if reclaimed == 0 || self.tx.queue().room() as usize >= burst.len() {
                    break;
                }
            }
        }
        moved.received.packets += burst.len() as u64;
        for packet in burst.iter() {
            moved.received.bytes += u64::from(packet.len);
            let sent = match &mut self.tx_pool {
                None => hand_over(self.tx, self.rx_pool, *packet),
                Some(to) => copy_over((self.tx, to), self.rx_pool, *packet, scratch),
            };
            moved.dropped += u64::from(!sent);
        }
        self.tx.publish();
        self.rx.refill(self.rx_pool);
        Ok(())
    }

    fn finish(self) -> Result<(), RingError> {
        drain(self.tx, self.tx_pool.unwrap_or(self.rx_pool))
    }
}

/// Send a packet in the buffers it arrived in.
#[inline(always)]
fn hand_over(tx: &mut TxRing, pool: &mut Pool, packet: Packet) -> bool {
    if pool.simple() {
        pool.load_first_line(packet.buffer);
    }
    clear_header(pool, packet.buffer);
    let sent = tx.post(pool, packet);
    if !sent {
        pool.recycle(packet);
    }
    sent
}

/// Send a copy of a packet.
fn copy_over(
    (tx, to): (&mut TxRing, &mut Pool),
    from: &mut Pool,
    packet: Packet,
    scratch: &mut Vec<u8>,
) -> bool {
    from.read(packet, scratch);
    from.recycle(packet);
    let frame = &scratch[from.header_len()..];
    // A frame that the other port's buffers cannot hold is dropped.
    if to.header_len() + frame.len() > to.capacity() {
        return false;
    }
    let Some(buffer) = to.pop() else { return false };
    send_frame(tx, to, buffer, frame)
}
