#![forbid(unsafe_code)]
//! Time and rates of one run: when it is over, and how fast its windows of 100 ms were.
//!
//! Promises: the clock is asked once in [`EVERY`] rounds of a busy loop and in every round that
//! slept; windows without a packet count as well. Used by the loops of `traffic`.

use crate::arch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A window of the rate.
pub const WINDOW: Duration = Duration::from_millis(100);
/// Rounds from one look at the clock to the next.
const EVERY: u32 = 64;
/// Windows kept; of a longer run the first ones.
const MOST_WINDOWS: usize = 36_000;

/// Cycles a packet that are told apart.
const MOST_CYCLES: usize = 1024;

/// What a look at the clock found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// Go on.
    Same,
    /// Go on; a window has ended: time for what is done ten times a second.
    Window,
    /// The duration is over, or somebody wants us to stop.
    Over,
}

/// One run's clock.
pub struct Meter<'a> {
    stop: &'a AtomicBool,
    start: Instant,
    deadline: Option<Instant>,
    rounds: u32,
    window_start: Instant,
    window_packets: u64,
    windows: Vec<f64>,
    best: f64,
    last: f64,
    last_cycles: u64,
    /// Packets by the cycles a packet of the round that moved them; the last for all above.
    cycles: [u64; MOST_CYCLES],
}

impl<'a> Meter<'a> {
    /// Starts now; over after `duration` or when `stop` is set.
    pub fn start(duration: Option<Duration>, stop: &'a AtomicBool) -> Self {
        let start = Instant::now();
        Meter {
            stop,
            start,
            deadline: duration.map(|d| start + d),
            rounds: 0,
            window_start: start,
            window_packets: 0,
            windows: Vec::with_capacity(MOST_WINDOWS),
            best: 0.0,
            last: 0.0,
            last_cycles: arch::cycles(),
            cycles: [0; MOST_CYCLES],
        }
    }

    /// A round ends that moved `moved` packets. Rounds that moved none are idle and do not
    /// count as work.
    #[inline(always)]
    pub fn round(&mut self, moved: u64) -> Tick {
        let now = arch::cycles();
        if let Some(each) = now.wrapping_sub(self.last_cycles).checked_div(moved) {
            self.cycles[(each as usize).min(MOST_CYCLES - 1)] += moved;
        }
        self.last_cycles = now;
        self.window_packets += moved;
        self.rounds += 1;
        if self.rounds < EVERY { Tick::Same } else { self.look() }
    }

    /// Look at the clock: at the latest after having slept.
    #[cold]
    pub fn look(&mut self) -> Tick {
        self.rounds = 0;
        let now = Instant::now();
        self.last_cycles = arch::cycles();
        let elapsed = now - self.window_start;
        let ended = elapsed >= WINDOW;
        if ended {
            self.end_window(now, elapsed);
        }
        if self.stop.load(Ordering::Relaxed) || self.deadline.is_some_and(|d| now >= d) {
            Tick::Over
        } else if ended {
            Tick::Window
        } else {
            Tick::Same
        }
    }

    fn end_window(&mut self, now: Instant, elapsed: Duration) {
        let rate = self.window_packets as f64 / elapsed.as_secs_f64();
        self.best = self.best.max(rate);
        self.last = rate;
        if self.windows.len() < MOST_WINDOWS {
            self.windows.push(rate);
        }
        self.window_start = now;
        self.window_packets = 0;
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Did any packet move in the window that ended last?
    pub fn last_window_moved(&self) -> bool {
        self.last > 0.0
    }

    /// Packets a second of the best window; of the whole run if that was shorter than one.
    pub fn best(&self) -> f64 {
        if self.windows.is_empty() {
            self.window_packets as f64 / self.elapsed().as_secs_f64().max(1e-9)
        } else {
            self.best
        }
    }

    /// Packets a second of each window.
    pub fn into_windows(self) -> Vec<f64> {
        self.windows
    }

    /// Cycles a packet of rounds that moved packets: a tenth of all packets took no more. What
    /// else ran on this CPU is not in it. 0 without packets.
    pub fn cycles_per_packet(&self) -> u64 {
        let tenth = self.cycles.iter().sum::<u64>().div_ceil(10);
        let mut seen = 0;
        let reached = |packets: &u64| {
            seen += packets;
            seen >= tenth
        };
        self.cycles.iter().position(reached).unwrap_or(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_when_told_and_when_the_time_is_over() {
        let stop = AtomicBool::new(false);
        let mut meter = Meter::start(None, &stop);
        assert_eq!(meter.look(), Tick::Same);
        stop.store(true, Ordering::Relaxed);
        assert!((0..EVERY).any(|_| meter.round(0) == Tick::Over));
        stop.store(false, Ordering::Relaxed);
        assert_eq!(Meter::start(Some(Duration::ZERO), &stop).look(), Tick::Over);
    }

    #[test]
    fn a_tenth_of_the_packets_decides() {
        let stop = AtomicBool::new(false);
        let mut meter = Meter::start(None, &stop);
        assert_eq!(meter.cycles_per_packet(), 0);
        meter.cycles[70] = 89;
        meter.cycles[30] = 11;
        assert_eq!(meter.cycles_per_packet(), 30);
        meter.cycles[30] = 9;
        assert_eq!(meter.cycles_per_packet(), 70);
        meter.last_cycles = 0;
        meter.round(1);
        assert_eq!(meter.cycles[MOST_CYCLES - 1], 1);
    }

    #[test]
    fn windows_hold_rates() {
        let stop = AtomicBool::new(false);
        let mut meter = Meter::start(None, &stop);
        meter.round(1000);
        assert!(meter.best() > 0.0);
        meter.window_start -= WINDOW;
        assert_eq!(meter.look(), Tick::Window);
        meter.window_start -= WINDOW;
        assert_eq!(meter.look(), Tick::Window);
        assert!(meter.best() > 1.0 && meter.best() <= 10_000.0);
        let windows = meter.into_windows();
        assert_eq!(windows.len(), 2);
        assert!(windows[0] > 1.0 && windows[1] == 0.0);
    }
}
