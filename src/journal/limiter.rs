//! How many lines a port may log.
//!
//! Promises: [`STOCK`] lines at once, then one a [`PERIOD`]; those left out are counted. Used
//! by the journal under its lock.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// Lines at once: a guest with 128 queue pairs tells of 256 rings when it starts and when it
/// stops.
const STOCK: u64 = 600;
/// One more line in stock.
const PERIOD: Duration = Duration::from_secs(1);

/// The stock of lines.
#[derive(Debug)]
pub struct Limiter {
    left: u64,
    /// When the stock was last counted, to whole periods.
    since: Instant,
    left_out: u64,
}

impl Default for Limiter {
    fn default() -> Self {
        Limiter { left: STOCK, since: Instant::now(), left_out: 0 }
    }
}

impl Limiter {
    /// May a line be logged now? With how many were left out since the last one.
    pub fn admit(&mut self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&mut self, now: Instant) -> Option<u64> {
        let periods = now.saturating_duration_since(self.since).as_secs() / PERIOD.as_secs();
        self.since += PERIOD * u32::try_from(periods).unwrap_or(u32::MAX);
        self.left = (self.left + periods).min(STOCK);
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stock_is_used_up_and_refilled() {
        let mut limiter = Limiter::default();
        let start = limiter.since;
        let mut admit = |millis| limiter.admit_at(start + Duration::from_millis(millis));
        for _ in 0..STOCK {
            assert_eq!(admit(0), Some(0));
        }
        assert_eq!((admit(0), admit(999)), (None, None));
        assert_eq!((admit(1001), admit(1002)), (Some(2), None));
        assert_eq!((admit(1999), admit(2000)), (None, Some(2)));
        // A long silence refills it, and no more than that.
        for _ in 0..STOCK {
            assert_eq!(admit(100_000_000), Some(0));
        }
        assert_eq!(admit(100_000_000), None);
    }
}
