//! What the control plane asks of a worker, and the box it is put into.
//!
//! Promises: control never touches a running ring, it asks for it back; looking into an empty
//! inbox costs the worker one relaxed load. Posted to by `control`, emptied by the worker
//! between bursts.

#![forbid(unsafe_code)]

use super::Receiver;
use crate::forward::bridge::Ports;
use crate::forward::{Pairs, PortId};
use crate::port::{TxQueue, nic};
use crate::virtio::SplitRing;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

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
    /// Let a frame be the next packet that is received from a port.
    Inject {
        /// From which port.
        port: PortId,
        /// The frame.
        frame: Arc<[u8]>,
        /// Told when it is done, so that a flood of these waits for the worker, and not the
        /// worker for the flood.
        done: mpsc::Sender<()>,
    },
    /// Receive from this from now on: an interface, or nothing while it is gone.
    PutReceiver {
        /// Of which port.
        port: PortId,
        /// Which queue.
        queue: usize,
        /// The interface's.
        receiver: Option<Box<nic::Receiver>>,
        /// Where what was before goes: to be closed elsewhere.
        reply: mpsc::Sender<Option<Box<nic::Receiver>>>,
    },
    /// Send to this from now on: an interface, or nothing while it is gone.
    PutSender {
        /// Of which port.
        port: PortId,
        /// The interface's.
        sender: Option<Box<nic::Sender>>,
        /// Where what was before goes: to be closed elsewhere.
        reply: mpsc::Sender<Option<Box<nic::Sender>>>,
    },
    /// A port comes: receive from it, too. What a queue sends to may come later.
    AddReceivers(Vec<Receiver>),
    /// A port comes: packets to it go here.
    AddOutput {
        /// Which port.
        port: PortId,
        /// All its queues.
        output: Box<TxQueue>,
    },
    /// Ports are paired like this from now on.
    Pair(Pairs),
    /// These are the ports of a learning bridge from now on.
    SetPorts(Arc<Ports>),
    /// A port goes: give back what is received from it, its generator included.
    RemoveReceivers {
        /// Which port.
        port: PortId,
        /// Where to: what is large is not freed here.
        reply: mpsc::Sender<Vec<Receiver>>,
    },
    /// A port goes: give back what is sent to. Packets to it are dropped from now on.
    RemoveOutput {
        /// Which port.
        port: PortId,
        /// Where to; `None` if there is none.
        reply: mpsc::Sender<Option<Box<TxQueue>>>,
    },
    /// Begin to count anew what the worker says of itself.
    ClearStats {
        /// Told when it is done.
        done: mpsc::Sender<()>,
    },
    /// End.
    Quit,
}

/// A worker's inbox: any thread posts, the worker takes.
///
/// Looking into an empty one costs the worker a relaxed load. Once its worker has ended the
/// inbox is closed: whoever waits for a ring is told that there is none.
pub struct Inbox {
    /// `None` once closed.
    queue: Mutex<Option<VecDeque<Command>>>,
    /// There may be commands. Written under the lock, so that it is never false for long while
    /// there are.
    pending: AtomicBool,
    wake: EventFd,
}

impl Inbox {
    /// An empty inbox.
    ///
    /// # Errors
    /// The operating system's: no more fds.
    pub fn new() -> io::Result<Self> {
        Ok(Inbox {
            queue: Mutex::new(Some(VecDeque::new())),
            pending: AtomicBool::new(false),
            wake: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?,
        })
    }

    /// Post a command; a sleeping worker wakes. Commands are taken in the order they were
    /// posted in. If the worker has ended, a ring in the command is dropped and one that is
    /// asked for is answered with `None`.
    pub fn post(&self, command: Command) {
        let mut queue = self.lock();
        let Some(commands) = queue.as_mut() else {
            drop(queue);
            return refuse(command);
        };
        commands.push_back(command);
        self.pending.store(true, Ordering::Relaxed);
        drop(queue);
        // It only fails if the counter is full, and then a wake-up is pending.
        let _ = self.wake.write(1);
    }

    /// Post the command that `command` makes, and wait for what the worker sends back.
    ///
    /// # Errors
    /// The worker has ended, or does not answer within `limit`.
    pub fn ask<T>(
        &self,
        limit: Duration,
        command: impl FnOnce(mpsc::Sender<T>) -> Command,
    ) -> Result<T, mpsc::RecvTimeoutError> {
        let (reply, answer) = mpsc::channel();
        self.post(command(reply));
        answer.recv_timeout(limit)
    }

    /// The next command, if there is one. For the worker, once a loop and until it is `None`.
    #[inline]
    pub fn take(&self) -> Option<Command> {
        if self.pending.load(Ordering::Relaxed) { self.take_pending() } else { None }
    }

    #[cold]
    fn take_pending(&self) -> Option<Command> {
        let mut queue = self.lock();
        let command = queue.as_mut().and_then(VecDeque::pop_front);
        if command.is_none() {
            self.pending.store(false, Ordering::Relaxed);
        }
        command
    }

    /// Becomes readable when a command is posted; for the worker's `epoll`. A worker that woke
    /// calls [`Inbox::clear_wake`] before it takes, and sleeps only after a look into the inbox
    /// that found nothing: then none is missed.
    pub fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Make the fd unreadable again.
    pub fn clear_wake(&self) {
        // It only fails if there is nothing to clear.
        let _ = self.wake.read();
    }

    /// The worker ends, or has ended: answer what is still waiting and all that is to come.
    pub fn close(&self) {
        let commands = self.lock().take();
        commands.into_iter().flatten().for_each(refuse);
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Command>>> {
        // Nothing that panics runs under the lock; a queue is valid between any two calls.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a closed inbox does with a command.
fn refuse(command: Command) {
    if let Command::StopRing { reply, .. } = command {
        // Whoever asked may have given up waiting.
        let _ = reply.send(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(index: u16) -> Command {
        Command::StopRing { port: 0, index, reply: mpsc::channel().0 }
    }

    #[test]
    fn commands_arrive_in_order_and_wake_the_worker() {
        let inbox = Arc::new(Inbox::new().unwrap());
        assert!(inbox.take().is_none());
        assert!(inbox.wake.read().is_err());
        let poster = Arc::clone(&inbox);
        std::thread::spawn(move || (0..100).for_each(|i| poster.post(stop(i)))).join().unwrap();
        assert_eq!(inbox.wake.read().unwrap(), 100);
        for i in 0..100 {
            let Some(Command::StopRing { index, .. }) = inbox.take() else { panic!() };
            assert_eq!(index, i);
        }
        assert!(inbox.take().is_none());
        inbox.post(Command::Quit);
        assert!(matches!(inbox.take(), Some(Command::Quit)));
    }

    #[test]
    fn a_closed_inbox_answers_at_once() {
        let inbox = Inbox::new().unwrap();
        let stop = || {
            let (reply, answer) = mpsc::channel();
            inbox.post(Command::StopRing { port: 0, index: 1, reply });
            answer
        };
        let before = stop();
        assert!(before.recv_timeout(Duration::from_millis(1)).is_err());
        inbox.close();
        assert!(before.recv_timeout(Duration::ZERO).unwrap().is_none());
        assert!(stop().recv_timeout(Duration::ZERO).unwrap().is_none());
        assert!(inbox.take().is_none());
    }
}
