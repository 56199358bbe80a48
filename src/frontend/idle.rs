//! Waiting for interrupts.
//!
//! Promises: sleeps only when every ring was armed and found empty afterwards; notices a
//! wake-up that was asked for and did not come. Polling guests do not come here.

use super::driver::Queue;
use std::io;
use std::os::fd::AsRawFd;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Longest sleep: there is more to look at than rings.
const SLEEP_MS: i32 = 100;
/// How much longer to wait for a signal whose used entry is already there.
const GRACE_MS: i32 = 1000;

/// The call eventfds of all rings.
pub struct Idle {
    epoll: Epoll,
    lost: u64,
}

impl Idle {
    /// Watch the rings' call eventfds, edge-triggered: a signal of a ring that nobody waits for
    /// now wakes once, and does not keep the guest awake until somebody does.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new<'a>(queues: impl Iterator<Item = &'a mut Queue>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        for queue in queues {
            let fd = queue.events().call.as_raw_fd();
            let events = EventSet::IN | EventSet::EDGE_TRIGGERED;
            let event = EpollEvent::new(events, fd as u64);
            epoll.ctl(ControlOperation::Add, fd, event)?;
        }
        Ok(Idle { epoll, lost: 0 })
    }

    /// Interrupts that did not come.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Sleep until one of `queues` has something to take, at most 100 ms.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait(&mut self, queues: &mut [&mut Queue]) -> io::Result<()> {
        let mut empty = true;
        for queue in queues.iter_mut() {
            empty &= queue.arm();
        }
        if empty && self.sleep(SLEEP_MS)? == 0 && queues.iter().any(|q| q.has_used()) {
            // Used while we timed out? Then its signal is on the way.
            if self.sleep(GRACE_MS)? == 0 {
                self.lost += 1;
            }
        }
        for queue in queues {
            queue.take_call();
            queue.disarm();
        }
        Ok(())
    }

    fn sleep(&self, ms: i32) -> io::Result<usize> {
        match self.epoll.wait(ms, &mut [EpollEvent::default(); 8]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            other => other,
        }
    }
}
