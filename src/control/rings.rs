//! A port's rings, as far away as the inboxes of the workers that run them.
//!
//! Promises: a worker that does not answer is waited for once, not once a ring. Used by
//! `vhost_user` through its trait; made by `run`, which knows which worker has which queue.

#![forbid(unsafe_code)]

use crate::vhost_user::{RingLost, Rings};
use crate::virtio::SplitRing;
use crate::worker::{Command, Inbox, PortId};
use std::cell::Cell;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long a worker may take to give a ring back. It looks into its inbox once a loop, which
/// is microseconds.
const ANSWER: Duration = Duration::from_secs(5);
/// How long one may that has failed to do so before.
const HUNG_ANSWER: Duration = Duration::from_millis(10);

/// The rings of one vhost port.
pub struct PortRings {
    port: PortId,
    to_guest: Owner,
    from_guest: Owner,
}

struct Owner {
    inbox: Arc<Inbox>,
    hung: Cell<bool>,
}

impl Owner {
    /// Post a command and wait for what the worker sends back.
    fn ask<T>(&self, command: impl FnOnce(mpsc::Sender<T>) -> Command) -> Option<T> {
        let limit = if self.hung.get() { HUNG_ANSWER } else { ANSWER };
        let answer = self.inbox.ask(limit, command);
        self.hung.set(matches!(answer, Err(mpsc::RecvTimeoutError::Timeout)));
        answer.ok()
    }
}

impl PortRings {
    /// `to_guest` is the inbox of the worker that sends to `port`: it gets the guest's receive
    /// rings (even indices); `from_guest` that of the worker that receives from it.
    pub fn new(port: PortId, to_guest: Arc<Inbox>, from_guest: Arc<Inbox>) -> Self {
        let owner = |inbox| Owner { inbox, hung: Cell::new(false) };
        PortRings { port, to_guest: owner(to_guest), from_guest: owner(from_guest) }
    }

    fn owner(&self, index: u16) -> &Owner {
        if index.is_multiple_of(2) { &self.to_guest } else { &self.from_guest }
    }
}

impl Rings for PortRings {
    fn start(&self, index: u16, ring: Box<SplitRing>) {
        self.owner(index).inbox.post(Command::StartRing { port: self.port, index, ring });
    }

    fn stop(&self, index: u16) -> Result<Box<SplitRing>, RingLost> {
        let stop = |reply| Command::StopRing { port: self.port, index, reply };
        self.owner(index).ask(stop).flatten().ok_or(RingLost(index))
    }

    fn inject(&self, frame: Arc<[u8]>) -> Result<(), RingLost> {
        const SENDS: u16 = 1;
        let inject = |done| Command::Inject { port: self.port, frame, done };
        self.owner(SENDS).ask(inject).ok_or(RingLost(SENDS))
    }
}
