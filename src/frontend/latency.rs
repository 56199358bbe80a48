#![forbid(unsafe_code)]
//! How long packets were on their way: from the moment they were made available to the backend
//! to the moment they were seen to be back.
//!
//! Promises: recording is a few instructions and never allocates; three significant digits; what
//! takes longer than a minute counts as a minute. Used by `verify`. With many packets in flight
//! most of the time is that of the queues between: a stream of few is the measure of a backend.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Longest time told apart, in nanoseconds.
const MOST: u64 = 60_000_000_000;
const DIGITS: u8 = 3;

/// Round-trip times of a run's packets, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Half of the packets took no longer.
    pub p50: f64,
    /// All but one in a hundred took no longer.
    pub p99: f64,
    /// All but one in a thousand took no longer.
    #[serde(rename = "p99.9")]
    pub p999: f64,
}

/// The times of a run so far.
#[derive(Debug)]
pub struct RoundTrips(Option<Histogram<u64>>);

impl RoundTrips {
    /// None yet.
    pub fn new() -> Self {
        // The bounds are good; if they were not, a run without this figure beats none.
        RoundTrips(Histogram::new_with_bounds(1, MOST, DIGITS).ok())
    }

    /// A packet took this long.
    #[inline]
    pub fn record(&mut self, time: Duration) {
        if let Some(times) = &mut self.0 {
            times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(MOST));
        }
    }

    /// What it comes to; `None` without a packet.
    pub fn latency(&self) -> Option<Latency> {
        let times = self.0.as_ref().filter(|times| !times.is_empty())?;
        let micros = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        Some(Latency { p50: micros(0.5), p99: micros(0.99), p999: micros(0.999) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_in_microseconds() {
        let mut times = RoundTrips::new();
        assert_eq!(times.latency(), None);
        for i in 1..=1000 {
            times.record(Duration::from_micros(i));
        }
        let Latency { p50, p99, p999 } = times.latency().unwrap();
        for (seen, expected) in [(p50, 500.0), (p99, 990.0), (p999, 999.0)] {
            assert!((seen / expected - 1.0_f64).abs() < 0.002, "{seen} for {expected}");
        }
    }

    #[test]
    fn a_packet_that_takes_hours_is_counted() {
        let mut times = RoundTrips::new();
        times.record(Duration::from_hours(5));
        assert!(times.latency().unwrap().p50 > 5e7);
    }
}
