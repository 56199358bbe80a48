//! skeleton
use crate::virtio::SplitRing;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, mpsc};
use vmm_sys_util::eventfd::EventFd;

pub use crate::forward::PortId;

/// What the control plane asks of a worker.
pub enum Command {
    /// Take over a ring. `index` is the virtqueue's.
    StartRing {
        /// Of which port.
        port: PortId,
        /// Which virtqueue.
        index: u16,
        /// The ring.
        ring: Box<SplitRing>,
    },
    /// Give a ring back.
    StopRing {
        /// Of which port.
        port: PortId,
        /// Which virtqueue.
        index: u16,
        /// Where to; `None` if there is none.
        reply: mpsc::Sender<Option<Box<SplitRing>>>,
    },
    /// Enable or disable a ring.
    EnableRing {
        /// Of which port.
        port: PortId,
        /// Which virtqueue.
        index: u16,
        /// On or off.
        enabled: bool,
    },
    /// End.
    Quit,
}

/// A worker's inbox. It is looked into once a loop: one relaxed load.
pub struct Inbox {
    pub(crate) queue: Mutex<VecDeque<Command>>,
    pub(crate) pending: AtomicBool,
    pub(crate) wake: EventFd,
}

impl Inbox {
    /// Post a command; a sleeping worker wakes.
    pub fn post(&self, command: Command) {
        let _ = command;
        todo!()
    }
}
