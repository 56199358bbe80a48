//! The interfaces behind `tap` and `af_packet` ports: one thread each that watches it.
//!
//! Promises: [`NicPort::open`] opens the interface at once or says what is wrong in one line;
//! after that it may go down, vanish and come back, be renamed or replaced, any number of times:
//! each is told once, its queues are taken from the workers when it is gone and given anew when
//! there is an interface of that name again. Waits for the kernel to tell of changes, so an idle
//! port costs nothing. Called by `bridge`.

#![forbid(unsafe_code)]

use crate::config::{AfPacketSpec, PortKind, TapSpec};
use crate::journal::{Event, Journal};
use crate::port::nic::{Receiver, Sender, af_packet, tap};
use crate::sys::netif::{self, Changes};
use crate::sys::packet_socket::{self, PacketSocketError};
use crate::sys::tap::{self as sys_tap, TapError};
use crate::sys::with_causes;
use crate::worker::{Command, Inbox, PortId};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// How long a worker may take to give queues back.
const OBEYED: Duration = Duration::from_secs(5);
/// How often an interface that is there and cannot be opened is tried again.
const RETRY_MS: i32 = 1000;

/// Why an interface could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// A TAP.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// A packet socket.
    #[error(transparent)]
    PacketSocket(#[from] PacketSocketError),
    /// No more threads or fds.
    #[error("cannot watch the interface")]
    System(#[from] io::Error),
}

/// Which interface, and how it is opened.
#[derive(Debug, Clone)]
enum Kind {
    Tap(TapSpec),
    AfPacket(AfPacketSpec),
}

/// Where its queues go.
pub struct PortQueues {
    port: PortId,
    receiver: Arc<Inbox>,
    sender: Arc<Inbox>,
}

impl PortQueues {
    /// Of port `port`: `receiver` is the inbox of the worker that receives from it, `sender`
    /// that of the one that sends to it.
    pub fn new(port: PortId, receiver: &Arc<Inbox>, sender: &Arc<Inbox>) -> Self {
        PortQueues { port, receiver: Arc::clone(receiver), sender: Arc::clone(sender) }
    }

    /// Give the workers these, in place of what they had, which is closed here.
    fn put(&self, receivers: Vec<Option<Receiver>>, sender: Option<Sender>) {
        let port = self.port;
        for (queue, receiver) in receivers.into_iter().enumerate() {
            let receiver = receiver.map(Box::new);
            let command = |reply| Command::PutReceiver { port, queue, receiver, reply };
            // A worker that has ended, or hangs, keeps what it has.
            let _ = self.receiver.ask(OBEYED, command);
        }
        let sender = sender.map(Box::new);
        let _ = self.sender.ask(OBEYED, |reply| Command::PutSender { port, sender, reply });
    }
}

/// An open interface. Dropping it ends the thread; the queues go with the port.
#[derive(Debug)]
pub struct NicPort {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl NicPort {
    /// Open the interface of a `tap` or `af_packet` port, nothing for another one.
    ///
    /// # Errors
    /// What is wrong, for the operator.
    pub fn open(
        journal: &Arc<Journal>,
        kind: &PortKind,
        queues: PortQueues,
    ) -> Result<Option<Self>, NicError> {
        let kind = match kind {
            PortKind::Tap(spec) => Kind::Tap(spec.clone()),
            PortKind::AfPacket(spec) => Kind::AfPacket(spec.clone()),
            PortKind::Vhost(_) | PortKind::Pcap(_) | PortKind::Null => return Ok(None),
        };
        // Before the interface is looked at, so that no change is missed.
        let changes = Changes::watch()?;
        let stop = Arc::new(EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?);
        let epoll = Epoll::new()?;
        for fd in [changes.as_raw_fd(), stop.as_raw_fd()] {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, fd as u64))?;
        }
        let journal = Arc::clone(journal);
        let mut keeper =
            Keeper { journal, kind, queues, opened: None, running: false, failing: false };
        keeper.open()?;
        keeper.look();
        let stopped = stop.as_raw_fd() as u64;
        let thread = std::thread::Builder::new().name("interface".into()).spawn(move || {
            keeper.keep(&changes, &epoll, stopped);
        })?;
        Ok(Some(NicPort { stop, thread: Some(thread) }))
    }
}

impl NicPort {
    /// End the thread; the queues stay with the workers. As good as dropping it.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for NicPort {
    fn drop(&mut self) {
        // An eventfd with room for 2^64 - 2 more.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread owns.
struct Keeper {
    journal: Arc<Journal>,
    kind: Kind,
    queues: PortQueues,
    /// The index of the interface whose queues the workers have.
    opened: Option<i32>,
    running: bool,
    /// It could not be opened, and that was told.
    failing: bool,
}

impl Keeper {
    fn keep(mut self, changes: &Changes, epoll: &Epoll, stopped: u64) {
        loop {
            // A change that is not told, such as a TAP that its last user lets go.
            let timeout = if self.failing { RETRY_MS } else { -1 };
            let mut events = [EpollEvent::default(); 2];
            let n = epoll.wait(timeout, &mut events).unwrap_or(0);
            if events[..n].iter().any(|event| event.data() == stopped) {
                return;
            }
            changes.clear();
            self.look();
        }
    }

    fn name(&self) -> &str {
        match &self.kind {
            Kind::Tap(spec) => &spec.interface,
            Kind::AfPacket(spec) => &spec.interface,
        }
    }

    /// Compare what is there with what we have.
    fn look(&mut self) {
        let Ok(found) = netif::find(self.name()) else { return };
        if self.opened.is_some() && self.opened != found.map(|found| found.index) {
            self.close();
        }
        if let Some(found) = found {
            if self.opened.is_none() {
                match self.open() {
                    Ok(()) => self.tell(Event::Note { text: "the interface is back".into() }),
                    Err(error) => self.fail(&error),
                }
            }
            self.set_running(found.running && self.opened.is_some());
        } else {
            self.failing = false;
        }
    }

    /// The interface is gone, or another one has its name.
    fn close(&mut self) {
        let queues = match &self.kind {
            Kind::Tap(spec) => spec.queues,
            Kind::AfPacket(spec) => spec.queues,
        };
        self.queues.put((0..queues).map(|_| None).collect(), None);
        self.opened = None;
        self.set_running(false);
        let text = format!("interface {} is gone; waiting for it to come back", self.name());
        self.tell(Event::Note { text });
    }

    fn set_running(&mut self, running: bool) {
        if self.running != running {
            self.running = running;
            self.tell(Event::Link { up: running });
        }
    }

    fn fail(&mut self, error: &NicError) {
        if !self.failing {
            self.tell(Event::Failure { text: with_causes(error) });
        }
        self.failing = true;
    }

    fn tell(&self, event: Event) {
        self.journal.tell(event);
    }

    /// Open the interface and give its queues to the workers.
    fn open(&mut self) -> Result<(), NicError> {
        let (receivers, sender) = match &self.kind {
            Kind::Tap(spec) => open_tap(spec)?,
            Kind::AfPacket(spec) => open_sockets(spec)?,
        };
        self.opened = netif::find(self.name())?.map(|found| found.index);
        self.queues.put(receivers.into_iter().map(Some).collect(), Some(sender));
        self.failing = false;
        Ok(())
    }
}

fn open_tap(spec: &TapSpec) -> Result<(Vec<Receiver>, Sender), NicError> {
    let name = &spec.interface;
    let fds = match spec.fd {
        None => sys_tap::open(name, spec.queues)?,
        Some(number) => {
            let (fd, found) = sys_tap::inherit(number)?;
            if found != *name {
                return Err(TapError::OtherName(number, found, name.clone()).into());
            }
            vec![fd]
        }
    };
    for fd in &fds {
        let error = |error| TapError::System(name.clone(), error);
        sys_tap::set_offloads(fd, true, true).map_err(error)?;
    }
    let fds: Vec<_> = fds.into_iter().map(Arc::new).collect();
    let receivers = fds.iter().map(|fd| Receiver::Tap(tap::Receiver::new(fd))).collect();
    Ok((receivers, Sender::Tap(tap::Sender::new(fds))))
}

fn open_sockets(spec: &AfPacketSpec) -> Result<(Vec<Receiver>, Sender), NicError> {
    let rings = packet_socket::receivers(&spec.interface, spec.queues, spec.ring)?;
    let sender = af_packet::Sender::new(packet_socket::sender(&spec.interface)?);
    let receiver = |ring| Receiver::AfPacket(af_packet::Receiver::new(ring));
    Ok((rings.into_iter().map(receiver).collect(), Sender::AfPacket(sender)))
}
