//! How many packets may go at this moment, when so many a second are wanted.
//!
//! Promises: over any longer time exactly the rate; after a pause not more than a few
//! milliseconds' worth at once. Used by the reader.

use std::time::{Duration, Instant};

/// What may gather while nobody asks.
const GATHERED: Duration = Duration::from_millis(5);
const SECOND: u128 = 1_000_000_000;

/// A steady rate.
#[derive(Debug)]
pub struct Pace {
    /// Packets a second.
    rate: u64,
    /// When the next packet is due.
    due: Instant,
}

impl Pace {
    /// So many packets a second, at least one, from now on.
    pub fn new(rate: u64) -> Self {
        Pace { rate, due: Instant::now() }
    }

    /// How many packets are due, at most `max`.
    pub fn due(&mut self, max: usize) -> usize {
        self.due_at(Instant::now(), max)
    }

    fn due_at(&mut self, now: Instant, max: usize) -> usize {
        let Some(late) = now.checked_duration_since(self.due) else { return 0 };
        // What is older is not made up for.
        let forgotten = late.saturating_sub(GATHERED);
        self.due += forgotten;
        let late = late.saturating_sub(forgotten);
        let due = late.as_nanos() * u128::from(self.rate) / SECOND + 1;
        due.min(max as u128) as usize
    }

    /// So many have gone.
    pub fn sent(&mut self, packets: usize) {
        let nanos = packets as u128 * SECOND / u128::from(self.rate);
        self.due += Duration::from_nanos(nanos as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_and_a_pause_is_not_made_up_for() {
        for rate in [1, 7, 1000, 999_983, 20_000_000] {
            let start = Instant::now();
            let mut pace = Pace { rate, due: start };
            let (mut now, mut sent) = (start, 0_u64);
            while now < start + Duration::from_secs(2) {
                let n = pace.due_at(now, 64);
                pace.sent(n);
                sent += n as u64;
                now += Duration::from_micros(if rate > 1_000_000 { 2 } else { 50 });
            }
            let wanted = 2 * rate;
            assert!(sent.abs_diff(wanted) <= wanted / 1000 + 2, "{sent} of {wanted}");
            now += Duration::from_mins(1);
            let mut burst = 0;
            while let n @ 1.. = pace.due_at(now, 64) {
                pace.sent(n);
                burst += n as u64;
            }
            assert!(burst <= rate / 200 + 2, "{burst} at once at {rate}");
        }
    }
}
