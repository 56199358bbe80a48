//! The sockets of the vhost ports: one thread each, one frontend at a time.
//!
//! Promises: [`VhostPort::open`] binds at once and says what is wrong in one line; after that
//! any number of frontends come and go, on a port that listens and on one that connects, until
//! [`VhostPort::stop`], which returns within seconds whatever a frontend does. A frontend that
//! connects while another one is served waits in the socket's backlog until that one is gone.
//! Called by `run`; hands each connection to `vhost_user`.

#![forbid(unsafe_code)]

mod nic;
mod rings;

use crate::config::VhostSpec;
use crate::journal::{Event, Journal};
use crate::sys::socket_file::{SocketFile, SocketFileError, check_path};
use crate::sys::{self, bell, unix};
use crate::vhost_user::{Device, MAX_QUEUES, Rings, run_session};
pub use nic::{NicError, NicPort, PortQueues};
pub use rings::PortRings;
use std::fs::{Permissions, set_permissions};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// A port that connects waits this long before it tries again, …
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// … then longer and longer, up to this.
const LAST_RETRY: Duration = Duration::from_secs(1);
/// Pause after an `accept` that failed for want of fds or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long a session may take to answer what it has read, and to take its rings back.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long a port's thread may take to end.
const END: Duration = Duration::from_secs(10);

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] SocketFileError),
    /// Messages have 8 bits for the index of a ring.
    #[error("{0} queue pairs, and a vhost port has 1 to {MAX_QUEUES}")]
    Queues(u16),
    /// No more threads or fds.
    #[error("cannot start the thread of a vhost port")]
    System(#[from] io::Error),
}

/// An open vhost port. Dropping it is as good as [`VhostPort::stop`].
#[derive(Debug)]
pub struct VhostPort {
    journal: Arc<Journal>,
    stop: Arc<Stop>,
    socket: Option<SocketFile>,
    thread: Option<JoinHandle<()>>,
    /// Hangs up when the thread ends.
    ended: mpsc::Receiver<()>,
}

impl VhostPort {
    /// Bind the socket (unless the port connects) and serve frontends on a thread of its own.
    /// `journal` is the port's; `rings` leads to the workers, which should run by now or
    /// soon: a session waits for their answers.
    ///
    /// # Errors
    /// What is wrong with the socket, for the operator.
    pub fn open<R>(journal: &Arc<Journal>, spec: &VhostSpec, rings: R) -> Result<Self, OpenError>
    where
        R: Rings + Send + 'static,
    {
        if !(1..=MAX_QUEUES).contains(&spec.queues) {
            return Err(OpenError::Queues(spec.queues));
        }
        bell::prepare();
        let stop = Arc::new(Stop::new()?);
        let (socket, source) = if spec.client {
            check_path(&spec.path)?;
            (None, Source::Connect(spec.path.clone()))
        } else {
            let (socket, listener) = SocketFile::bind(&spec.path, |path| permit(path, spec))?;
            (Some(socket), Source::listen(listener, &stop)?)
        };
        let journal = Arc::clone(journal);
        let device =
            Device { journal: Arc::clone(&journal), queues: spec.queues, offer: spec.offer };
        let server = Server { device, rings, stop: Arc::clone(&stop) };
        let (running, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("vhost".into()).spawn(move || {
            let _running = running;
            match source {
                Source::Listen(listener, epoll) => server.accept(&listener, &epoll),
                Source::Connect(path) => server.connect(&path),
            }
        })?;
        Ok(VhostPort { journal, stop, socket, thread: Some(thread), ended })
    }

    /// Disconnect the frontend, take its rings back, remove the socket. False if the port's
    /// thread hangs: it may still start rings of this port one day.
    pub fn stop(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        // While the listener lives, so that the file can be told from one in its place.
        self.socket = None;
        self.stop.stop();
        let ends_within =
            |time| self.ended.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Disconnected);
        let ended = ends_within(LAST_WORDS) || {
            self.stop.hang_up();
            ends_within(END)
        };
        if !ended || thread.join().is_err() {
            let text = "the port's thread did not end as it should".into();
            self.journal.tell(Event::Failure { text });
        }
        ended
    }
}

impl Drop for VhostPort {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whose socket it is that we may not open, and who we are.
fn whose(path: &Path, error: &io::Error) -> String {
    if error.kind() != ErrorKind::PermissionDenied {
        return String::new();
    }
    let us = sys::user();
    match path.metadata() {
        Ok(socket) => {
            let (owner, mode) = (socket.uid(), socket.mode() & 0o777);
            format!("; it is user {owner}'s, mode {mode:04o}, and we are user {us}")
        }
        Err(_) => format!("; we are user {us}, who may not enter a directory on the way"),
    }
}

/// Who may connect: as the port's options say.
fn permit(path: &Path, spec: &VhostSpec) -> io::Result<()> {
    if let Some((user, group)) = spec.owner {
        chown(path, Some(user), group)?;
    }
    spec.mode.map_or(Ok(()), |mode| set_permissions(path, Permissions::from_mode(mode)))
}

/// Where frontends come from.
enum Source {
    Listen(UnixListener, Epoll),
    Connect(PathBuf),
}

impl Source {
    fn listen(listener: UnixListener, stop: &Stop) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        for fd in [listener.as_raw_fd(), stop.wake.as_raw_fd()] {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, 0))?;
        }
        Ok(Source::Listen(listener, epoll))
    }
}

/// What the port's thread owns.
struct Server<R> {
    device: Device,
    rings: R,
    stop: Arc<Stop>,
}

impl<R: Rings> Server<R> {
    /// Serve whoever connects, one after the other, until the port is stopped.
    fn accept(&self, listener: &UnixListener, epoll: &Epoll) {
        let mut failing = false;
        while !self.stop.stopping() {
            let error = match listener.accept() {
                Ok((stream, _)) => {
                    failing = false;
                    self.serve(stream);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    match epoll.wait(-1, &mut [EpollEvent::default()]) {
                        Ok(_) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            match error.kind() {
                // The frontend has given up, or a signal came.
                ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                // Out of fds or memory: it will pass, and the frontend waits in the backlog.
                _ => {
                    if !failing {
                        let text = format!("cannot accept, will try again: {error}");
                        self.device.journal.tell(Event::Failure { text });
                    }
                    failing = true;
                    self.stop.pause(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Connect, serve, connect again, until the port is stopped.
    fn connect(&self, path: &Path) {
        let mut pause = FIRST_RETRY;
        let mut waiting = false;
        while !self.stop.stopping() {
            match unix::connect(path) {
                Ok(stream) => {
                    self.serve(stream);
                    waiting = false;
                    pause = FIRST_RETRY;
                }
                Err(error) => {
                    if !waiting {
                        let whose = whose(path, &error);
                        let text = format!("waiting for {}: {error}{whose}", path.display());
                        self.device.journal.tell(Event::Note { text });
                    }
                    waiting = true;
                }
            }
            self.stop.pause(pause);
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    fn serve(&self, stream: UnixStream) {
        let stream = Arc::new(stream);
        if self.stop.begin(&stream) {
            run_session(&stream, &self.device, &self.rings);
            self.stop.end();
        }
    }
}

/// How a port's thread is told to end, whatever it waits for.
#[derive(Debug)]
struct Stop {
    state: Mutex<StopState>,
    stopped: Condvar,
    /// Readable once the port is to stop.
    wake: EventFd,
}

#[derive(Debug, Default)]
struct StopState {
    stopping: bool,
    /// The connection that is served.
    session: Option<Arc<UnixStream>>,
}

impl Stop {
    fn new() -> io::Result<Self> {
        let wake = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
        Ok(Stop { state: Mutex::default(), stopped: Condvar::new(), wake })
    }

    fn lock(&self) -> MutexGuard<'_, StopState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        if let Some(session) = &state.session {
            // Only our side comes to an end. A frontend that saw one would look for the used
            // index at once, to go on from there with the next backend, while a worker may still
            // be moving packets; it sees it when the session has taken the rings back. This
            // fails if the frontend was faster.
            let _ = session.shutdown(Shutdown::Read);
        }
        self.stopped.notify_all();
        // An eventfd with room for 2^64 - 2 more.
        let _ = self.wake.write(1);
    }

    /// End a session whose frontend does not read its answers.
    fn hang_up(&self) {
        if let Some(session) = &self.lock().session {
            let _ = session.shutdown(Shutdown::Both);
        }
    }

    fn stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Wait, but not beyond the stop.
    fn pause(&self, time: Duration) {
        let waited = self.stopped.wait_timeout_while(self.lock(), time, |s| !s.stopping);
        drop(waited);
    }

    /// A connection is served from now on; false if it is too late for that.
    fn begin(&self, stream: &Arc<UnixStream>) -> bool {
        let mut state = self.lock();
        state.session = Some(Arc::clone(stream)).filter(|_| !state.stopping);
        state.session.is_some()
    }

    fn end(&self) {
        self.lock().session = None;
    }
}
