//! Split virtqueues, the device's side (virtio 1.2, 2.7 and 5.1.6).
//!
//! `ring` is a virtqueue's life from setup to stop, `chain` reads descriptors, `dequeue` takes
//! what a guest sends, `enqueue` fills what it receives into, `log` marks what was written for a
//! guest that migrates, `order` holds the ordering protocol of both sides, `net` the virtio-net
//! header. Owned by the vhost port of a worker; never sees a socket.

mod chain;
mod dequeue;
mod enqueue;
mod log;
pub mod net;
pub mod order;
pub(crate) mod ring;

pub use ring::{MAX_RING, RingAddresses, RingSetup, SplitRing, StartError};
