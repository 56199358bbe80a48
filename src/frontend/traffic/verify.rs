//! `verify`: every packet is numbered, sent, and expected back unchanged and in order.

use super::{Progress, at, send_frame};
use crate::frontend::GuestError;
use crate::frontend::driver::{Burst, Completed};
use crate::frontend::frame::{Frames, Number, number_of};
use crate::frontend::guest::{Guest, drain};
use crate::frontend::latency::RoundTrips;
use crate::frontend::meter::{Meter, Tick};
use crate::frontend::report::{Mode, Report};
use crate::frontend::tally::Tally;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Packets that have not come back after so long a silence are lost.
const SILENCE: Duration = Duration::from_secs(2);
/// Before the first packet: so long a silence means that nothing old is on its way.
const QUIET: Duration = Duration::from_millis(30);
/// But no longer than this, if a backend talks on its own.
const NEVER_QUIET: Duration = Duration::from_millis(300);
/// Packets sent in one round at most: what arrives is looked at between rounds.
const ROUND: u64 = 32;
/// Streams a queue pair, if there are several.
const STREAMS: u16 = 8;
/// Shortest frame with a flow.
const LEAST_FLOW: usize = 42;

/// Frame bytes: each frame has a length from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// At least 14.
    pub min: usize,
    /// At most what the guest was made for.
    pub max: usize,
}

/// What `verify` sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyPlan {
    /// How long frames are.
    pub sizes: Sizes,
    /// Packets in flight at most; fewer if the rings hold fewer.
    pub in_flight: usize,
}

/// One run.
struct Run {
    frames: Frames,
    tally: Tally,
    round_trips: RoundTrips,
    sizes: Sizes,
    limit: u64,
    /// A packet received, header included; and what it should be.
    seen: Vec<u8>,
    due: Vec<u8>,
}

impl Guest {
    /// Send packets out of the first socket and expect all of them back on the last one. With
    /// several queue pairs each flow keeps its order.
    ///
    /// # Errors
    /// The plan cannot work; the backend broke a ring or closed the connection. Lost, corrupt
    /// and duplicated packets are no error but counted.
    pub fn verify(
        &mut self,
        plan: VerifyPlan,
        duration: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Report, GuestError> {
        let limit = self.check_plan(plan)?;
        self.prepare()?;
        self.flush()?;
        let pairs = self.options.queue_pairs;
        let streams = if pairs == 1 { 1 } else { pairs * STREAMS };
        let mut run = Run {
            frames: Frames::new(self.epoch, streams > 1),
            tally: Tally::new(streams),
            round_trips: RoundTrips::new(),
            sizes: plan.sizes,
            limit,
            seen: Vec::new(),
            due: Vec::new(),
        };
        let mut progress = Progress::begin(self);
        let mut meter = Meter::start(duration, stop);
        let mut heard = Instant::now();
        let mut sending = true;
        loop {
            let received = run.receive(self)?;
            progress.add(received);
            let sent = if sending { run.send(self)? } else { 0 };
            if received.packets + sent > 0 {
                heard = Instant::now();
            }
            let tick = match received.packets + sent {
                0 => self.rest(sending && run.tally.in_flight() < limit, &mut meter)?,
                _ => meter.round(received.packets),
            };
            if tick == Tick::Window {
                self.check_alive()?;
            }
            sending &= tick != Tick::Over;
            if run.tally.in_flight() > 0 && heard.elapsed() > SILENCE {
                run.tally.give_up();
                heard = Instant::now();
            }
            if !sending && run.tally.in_flight() == 0 {
                break;
            }
        }
        let seconds = meter.elapsed().as_secs_f64();
        for (q, pair) in self.ports[0].pairs.iter_mut().enumerate() {
            drain(&mut pair.tx, &mut pair.tx_pool).map_err(at(0, q))?;
        }
        let verdict = run.tally.verdict();
        let mode = (Mode::Verify, plan.sizes.max);
        let report = progress.report(self, mode, (meter, seconds), verdict);
        Ok(Report { latency: run.round_trips.latency(), ..report })
    }

    /// How many packets may be in flight under `plan`, so that every one has its buffers.
    fn check_plan(&self, plan: VerifyPlan) -> Result<u64, GuestError> {
        let Sizes { min, max } = plan.sizes;
        self.check_size(min)?;
        self.check_size(max)?;
        if min > max || plan.in_flight == 0 {
            let what = format!("verify needs a packet in flight, and sizes {min} to {max} ascend");
            return Err(GuestError::Config(what));
        }
        if self.options.queue_pairs > 1 && min < LEAST_FLOW {
            let what = format!(
                "verify over several queue pairs needs frames of at least {LEAST_FLOW} bytes: \
                 shorter ones belong to no flow"
            );
            return Err(GuestError::Config(what));
        }
        let buffers = self.options.buffers_for(max);
        let chains = self.options.chains();
        if buffers > chains {
            let what = format!(
                "a frame of {max} bytes takes {buffers} receive buffers, the ring holds {chains}: \
                 use a larger queue or larger buffers"
            );
            return Err(GuestError::Config(what));
        }
        Ok(plan.in_flight.min(chains / buffers) as u64)
    }

    /// Throw away what earlier runs left on its way.
    fn flush(&mut self) -> Result<(), GuestError> {
        let mut burst = Burst::new();
        let start = Instant::now();
        let mut heard = start;
        while heard.elapsed() < QUIET && start.elapsed() < NEVER_QUIET {
            for (p, port) in self.ports.iter_mut().enumerate() {
                for (q, pair) in port.pairs.iter_mut().enumerate() {
                    pair.rx.poll(&mut pair.rx_pool, &mut burst).map_err(at(p, q))?;
                    burst.iter().for_each(|packet| pair.rx_pool.recycle(*packet));
                    pair.rx.refill(&mut pair.rx_pool);
                    if !burst.is_empty() {
                        heard = Instant::now();
                    }
                }
            }
        }
        Ok(())
    }
}

impl Run {
    /// One burst from every queue.
    fn receive(&mut self, guest: &mut Guest) -> Result<Completed, GuestError> {
        let mut received = Completed::default();
        let mut burst = Burst::new();
        let last = guest.ports.len() - 1;
        for (q, pair) in guest.ports[last].pairs.iter_mut().enumerate() {
            let pool = &mut pair.rx_pool;
            pair.rx.poll(pool, &mut burst).map_err(at(last, q))?;
            if burst.is_empty() {
                continue;
            }
            let now = Instant::now();
            for packet in &burst {
                pool.read(*packet, &mut self.seen);
                received.packets += 1;
                received.bytes += u64::from(packet.len);
                let header = pool.header_len();
                if let Some(sent) = self.judge(header) {
                    self.round_trips.record(now - sent);
                }
                pool.recycle(*packet);
            }
            // Before more is sent: a packet in flight has its buffer waiting.
            pair.rx.refill(pool);
        }
        Ok(received)
    }

    /// Is the packet what was sent? If so, and if it is due, when that was.
    fn judge(&mut self, header: usize) -> Option<Instant> {
        let frame = &self.seen[header..];
        let number = number_of(frame, |stream| self.tally.expected(stream));
        let intact = match number {
            Some(number) if self.tally.was_sent(number) => {
                self.frames.build(number, length(&self.frames, self.sizes, number), &mut self.due);
                self.due == frame
            }
            _ => false,
        };
        self.tally.received(number, intact)
    }

    /// As many packets as may be in flight and have room, but no more than 32; how many.
    fn send(&mut self, guest: &mut Guest) -> Result<u64, GuestError> {
        let pairs = &mut guest.ports[0].pairs;
        let mut sent = 0;
        for (q, pair) in pairs.iter_mut().enumerate() {
            while pair.tx.reclaim(&mut pair.tx_pool).map_err(at(0, q))? > 0 {}
        }
        let now = Instant::now();
        while self.tally.in_flight() < self.limit && sent < ROUND {
            let number = self.tally.next();
            let q = usize::from(number.stream) % pairs.len();
            let pair = &mut pairs[q];
            let len = length(&self.frames, self.sizes, number);
            self.frames.build(number, len, &mut self.due);
            if !send_frame(&mut pair.tx, &mut pair.tx_pool, &self.due) {
                break;
            }
            self.tally.sent(now);
            sent += 1;
        }
        for pair in pairs.iter_mut() {
            pair.tx.publish();
        }
        Ok(sent)
    }
}

/// The length of frame `number`: known to both ends.
fn length(frames: &Frames, sizes: Sizes, number: Number) -> usize {
    sizes.min + frames.choose(number, (sizes.max - sizes.min + 1) as u64) as usize
}
