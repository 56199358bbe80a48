//! The control plane of one vhost-user connection (QEMU, docs/interop/vhost-user.rst).
//!
//! Promises: [`run_session`] serves one connected frontend until it goes away; after that no
//! worker has a ring of it, its memory is unmapped and its fds are closed. A ring that a worker
//! runs is never touched here: for every change it is asked back through [`Rings`], changed,
//! and started again at the index where it stopped. Called by `control`, which owns sockets and
//! knows the workers. The one place of the backend that knows the `vhost` crate.

mod features;
mod handler;
mod refusal;
mod session;
#[cfg(test)]
mod tests;
mod vring;

use crate::config::Offer;
use crate::journal::Journal;
use crate::virtio::SplitRing;
pub use session::run_session;
use std::sync::Arc;

/// Most queue pairs of a port: messages that carry a ring's fd have 8 bits for its index.
pub const MAX_QUEUES: u16 = 128;
/// Most memory regions of a guest (`VHOST_USER_GET_MAX_MEM_SLOTS`).
pub const MAX_REGIONS: usize = 509;

/// What a port offers its frontends. It depends on configuration only: a frontend that
/// reconnects must find what it negotiated before.
#[derive(Debug, Clone)]
pub struct Device {
    /// Where it is told what happens.
    pub journal: Arc<Journal>,
    /// Queue pairs: 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Features that are offered unless they are switched off.
    pub offer: Offer,
}

/// What a ring's worker was asked for did not come: it hangs or has ended. A bug, or the end of
/// the process; in either case the end of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the worker of ring {0} does not answer")]
pub struct RingLost(pub u16);

/// Who runs the rings of a port: the control plane's view of the workers.
///
/// `index` is the virtqueue's: 0, 2, … receive (device to guest), 1, 3, … transmit.
pub trait Rings {
    /// Hand a started ring over; from now on a worker owns it.
    fn start(&self, index: u16, ring: Box<SplitRing>);
    /// Ask for a ring back, between bursts. Only asked for rings that were started.
    ///
    /// # Errors
    /// It did not come.
    fn stop(&self, index: u16) -> Result<Box<SplitRing>, RingLost>;
    /// Let `frame` be the next packet that is received from the port.
    ///
    /// # Errors
    /// The worker did not answer.
    fn inject(&self, frame: Arc<[u8]>) -> Result<(), RingLost>;
}
