//! skeleton
use crate::virtio::SplitRing;

/// Who runs the rings of a port: the control plane's view of the workers.
///
/// `index` is the virtqueue's: 0, 2, … receive (device to guest), 1, 3, … transmit.
pub trait Rings: Send {
    /// Hand a started ring over; from now on a worker owns it.
    fn start(&self, index: u16, ring: Box<SplitRing>);
    /// Ask for a ring back, between bursts. `None` if there is none.
    fn stop(&self, index: u16) -> Option<Box<SplitRing>>;
    /// Enable or disable a ring that a worker owns; nothing happens if there is none.
    fn enable(&self, index: u16, enabled: bool);
}
