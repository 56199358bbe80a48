//! skeleton
mod chain;
pub mod dequeue;
pub mod enqueue;
pub mod net;
pub mod order;
pub mod ring;
pub use ring::{RingAddresses, RingSetup, SplitRing, StartError};
