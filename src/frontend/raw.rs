//! A connected frontend without a driver: every ring is the test's own.

use super::GuestError;
use super::driver::{RawRing, RingPlace};
use super::guest::Link;
use super::ram::{Plan, Ram};
use super::session::Session;
use std::sync::Arc;

/// Bytes a test may use as it likes.
const SCRATCH: usize = 4 << 20;

/// A frontend whose rings are driven by hand.
pub struct RawGuest {
    /// The connection.
    pub session: Session,
    /// The memory; [`RawGuest::scratch`] of it is free.
    pub ram: Arc<Ram>,
    /// One ring per virtqueue: 0, 2, … receive, 1, 3, … transmit.
    pub rings: Vec<RawRing>,
    scratch: usize,
}

impl RawGuest {
    /// Connect to the one socket of `link` and share memory; no ring is started. Of the options
    /// the features, queue size, pairs and regions matter.
    ///
    /// # Errors
    /// As [`Guest::connect`](super::Guest::connect).
    pub fn connect(link: &Link) -> Result<Self, GuestError> {
        let options = &link.options;
        options.check()?;
        let mut plan = Plan::default();
        let places: Vec<_> = (0..2 * options.queue_pairs)
            .map(|_| RingPlace::new(&mut plan, options.queue_size))
            .collect();
        let scratch = plan.place(0, 4096);
        plan.place(SCRATCH, 4096);
        let ram = Arc::new(Ram::new(&plan, scratch, options.regions, 0)?);
        let rings: Vec<RawRing> = places
            .into_iter()
            .map(|place| RawRing::new(Arc::clone(&ram), place))
            .collect::<Result<_, _>>()?;
        let mut sessions = link.sessions()?;
        let (Some(mut session), true) = (sessions.pop(), sessions.is_empty()) else {
            return Err(GuestError::Config("a raw guest has one socket".to_owned()));
        };
        session.begin(rings.iter().map(|r| r.events().call), &ram)?;
        Ok(RawGuest { session, ram, rings, scratch })
    }

    /// Offset in the memory of 4 MiB that no ring uses.
    pub fn scratch(&self) -> usize {
        self.scratch
    }

    /// Start and enable ring `index` at `base`, and kick it.
    ///
    /// # Errors
    /// The backend's.
    pub fn start(&mut self, index: usize, base: u16) -> Result<(), GuestError> {
        let ring = &self.rings[index];
        self.session.start_ring(index, ring.area(), ring.events(), base)?;
        self.session.enable_ring(index, true)?;
        ring.kick();
        Ok(())
    }
}
