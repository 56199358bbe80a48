//! How an idle worker sleeps and is woken (adaptive polling).
//!
//! Promises: before it sleeps, every ring it waits for is armed and then looked at once more,
//! so that a packet that came meanwhile is seen or its kick will come; a command posted at any
//! time wakes it. An fd of a frontend's is waited for but never read or written here. A ring
//! that cannot kick (no kick fd) is polled every millisecond. Used by the worker's loop only.

use super::Inbox;
use super::turn::{Receiver, ring_of};
use crate::forward::PortId;
use crate::journal::Event;
use crate::port::{TxQueue, vhost};
use crate::sys;
use crate::virtio::SplitRing;
use arrayvec::ArrayVec;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a worker spins after the last packet: longer than the gaps of a busy flow, short
/// enough that an idle guest costs nothing.
const SPIN: Duration = Duration::from_micros(100);
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 64;
/// How often a ring without a kick is polled.
const POLL_MS: i32 = 1;
const FOREVER: i32 = -1;
/// The inbox's token; a ring's is made from port and index.
const INBOX: u64 = u64::MAX;
/// Events taken at once.
const EVENTS: usize = 16;

/// The epoll set of a worker, and its patience.
pub(super) struct Sleeper {
    epoll: OwnedFd,
    inbox: Arc<Inbox>,
    polls: u32,
    idle_since: Option<Instant>,
}

impl Sleeper {
    /// Wait for `inbox`, and later for rings.
    pub fn new(inbox: &Arc<Inbox>) -> io::Result<Self> {
        let epoll = sys::new_epoll()?;
        add(&epoll, inbox.wake_fd(), INBOX, epoll::Events::EPOLLIN)?;
        Ok(Sleeper { epoll, inbox: Arc::clone(inbox), polls: 0, idle_since: None })
    }

    /// Packets were moved: patience begins anew.
    #[inline]
    pub fn busy(&mut self) {
        self.polls = 0;
        self.idle_since = None;
    }

    /// Has nothing moved for long? Looks at the clock only now and then.
    #[inline]
    pub fn is_long_idle(&mut self) -> bool {
        self.polls += 1;
        if self.polls < POLLS_PER_LOOK {
            return false;
        }
        self.polls = 0;
        self.idle_since.get_or_insert_with(Instant::now).elapsed() >= SPIN
    }

    /// Let a ring's kicks wake the worker, each of them once (edge-triggered): the fd is never
    /// read. A read would have to be made for every ring that may be kicked, awaited or not,
    /// broken or not, lest the worker never sleep again; and it would wait for ever if the
    /// frontend, which has the same open file, makes it blocking. What cannot be waited for (a
    /// frontend may send a file) is dropped, and the ring polled.
    pub fn watch(&self, port: PortId, index: u16, ring: &mut SplitRing) {
        let token = token(port, index);
        let events = epoll::Events::EPOLLIN | epoll::Events::EPOLLET;
        let added = ring.kick().map(|kick| add(&self.epoll, kick.as_raw_fd(), token, events));
        if let Some(Err(error)) = added {
            let text = format!("cannot wait for kicks of ring {index}, polling: {error}");
            ring.journal().tell(Event::Note { text });
            ring.drop_kick();
        }
    }

    /// Forget a ring's kicks. The fd may live on in the frontend, so that closing ours does
    /// not take it out of the set.
    pub fn forget(&self, ring: &SplitRing) {
        if let Some(kick) = ring.kick() {
            let event = epoll::Event::new(epoll::Events::empty(), 0);
            // It is absent only if adding it failed, which was reported.
            let _ = epoll::ctl(
                self.epoll.as_raw_fd(),
                epoll::ControlOptions::EPOLL_CTL_DEL,
                kick.as_raw_fd(),
                event,
            );
        }
    }

    /// Wait no longer for an interface's fd.
    pub fn ignore(&self, fd: Option<RawFd>, watched: &mut bool) {
        if std::mem::take(watched)
            && let Some(fd) = fd
        {
            let event = epoll::Event::new(epoll::Events::empty(), 0);
            // It is there: `watched` says so.
            let _ =
                epoll::ctl(self.epoll.as_raw_fd(), epoll::ControlOptions::EPOLL_CTL_DEL, fd, event);
        }
    }

    /// Wait for the interfaces that are received from, and only for them: one whose output has
    /// no room stays readable all the time.
    fn watch_interfaces(&self, receivers: &mut [Receiver]) {
        for receiver in receivers {
            let Some(fd) = receiver.queue.nic().and_then(|queue| queue.fd()) else { continue };
            if receiver.paused {
                self.ignore(Some(fd), &mut receiver.watched);
            } else if !receiver.watched {
                let token = receiver_token(receiver);
                let added = add(&self.epoll, fd, token, epoll::Events::EPOLLIN);
                receiver.watched = added.is_ok();
            }
        }
    }

    /// Arm every ring that packets may come from or that a paced source waits for; if none has
    /// anything, sleep until something happens.
    pub fn sleep(&mut self, receivers: &mut [Receiver], outputs: &mut [Option<TxQueue>]) {
        let mut timeout = FOREVER;
        let mut nothing = true;
        each_ring(receivers, outputs, |ring, awaited| {
            if awaited {
                nothing &= ring.arm();
                if ring.kick().is_none() {
                    timeout = POLL_MS;
                }
            }
        });
        self.watch_interfaces(receivers);
        if receivers.iter().any(|receiver| !receiver.paused && receiver.queue.is_waiting()) {
            timeout = POLL_MS;
        }
        if nothing {
            let happened = self.wait(timeout);
            for receiver in receivers.iter_mut() {
                let token = receiver_token(receiver);
                let Some(&(_, failed)) = happened.iter().find(|(what, _)| *what == token) else {
                    continue;
                };
                if let Some(ring) = ring_of(receiver) {
                    ring.kicked();
                } else if failed && let Some(queue) = receiver.queue.nic() {
                    let fd = queue.fd();
                    if !queue.take_error() {
                        self.ignore(fd, &mut receiver.watched);
                    }
                }
            }
        }
        each_ring(receivers, outputs, |ring, _| {
            ring.disarm();
        });
        self.busy();
    }

    /// Wait; the tokens of what happened, or of some of it, and whether that is an error.
    fn wait(&self, timeout: i32) -> ArrayVec<(u64, bool), EVENTS> {
        let mut events = [epoll::Event::new(epoll::Events::empty(), 0); EVENTS];
        let n = match epoll::wait(self.epoll.as_raw_fd(), timeout, &mut events) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => {
                tracing::error!("epoll: {error}");
                0
            }
        };
        let failed = epoll::Events::EPOLLERR.bits() | epoll::Events::EPOLLHUP.bits();
        let happened: ArrayVec<_, EVENTS> =
            events[..n].iter().map(|event| (event.data, event.events & failed != 0)).collect();
        if happened.iter().any(|(token, _)| *token == INBOX) {
            self.inbox.clear_wake();
        }
        happened
    }
}

/// Visit the rings whose kicks may matter, and say whether they do: those that guests send on
/// always, those that a paced source fills only if the last turn found no room in them. That a
/// guest may have made room since is for the look after arming to find out, and not to be asked
/// before: such a ring would then be neither armed nor looked at.
fn each_ring(
    receivers: &mut [Receiver],
    outputs: &mut [Option<TxQueue>],
    mut visit: impl FnMut(&mut SplitRing, bool),
) {
    for receiver in receivers {
        if let Some(ring) = ring_of(receiver) {
            visit(ring, true);
        }
        let paced_by = receiver.paced_by.and_then(|port| outputs.get_mut(port)?.as_mut());
        for ring in paced_by.and_then(TxQueue::vhost).into_iter().flat_map(vhost::TxQueue::rings) {
            let awaited = ring.enabled() && ring.had_no_room();
            visit(ring, awaited);
        }
    }
}

/// Of a receiver's ring or interface.
fn receiver_token(receiver: &Receiver) -> u64 {
    token(receiver.port, 2 * receiver.pair as u16 + 1)
}

fn token(port: PortId, index: u16) -> u64 {
    (port as u64) << 16 | u64::from(index)
}

fn add(epoll: &OwnedFd, fd: i32, token: u64, events: epoll::Events) -> io::Result<()> {
    let event = epoll::Event::new(events, token);
    epoll::ctl(epoll.as_raw_fd(), epoll::ControlOptions::EPOLL_CTL_ADD, fd, event)
}

#[cfg(test)]
mod tests;
