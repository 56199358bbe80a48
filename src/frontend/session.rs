//! One vhost-user connection, the frontend's side.
//!
//! Promises: connects or accepts before a deadline; negotiates exactly what was asked for, or
//! says which feature the backend lacks; no message waits longer than [`ANSWER`] for its
//! answer. The order of messages is that of DPDK's virtio-user. Knows addresses and eventfds,
//! never what is in a ring. Used by [`Guest`](super::Guest) and by tests that attack backends.

use super::driver::RingArea;
use super::ram::{Ram, Region};
use crate::sys::socket_file::{SocketFile, SocketFileError, check_path};
use crate::sys::unix;
use crate::virtio::RingAddresses;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_config::{VIRTIO_F_IN_ORDER, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::{VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vmm_sys_util::eventfd::EventFd;

/// Longest wait for the answer to a message.
pub const ANSWER: Duration = Duration::from_secs(10);
/// From one attempt to connect or accept to the next.
const RETRY: Duration = Duration::from_millis(5);
/// `VHOST_USER_F_PROTOCOL_FEATURES`: the backend speaks of protocol features, and its rings
/// start disabled.
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// `VHOST_F_LOG_ALL`: what the backend writes is logged.
const LOG_ALL: u64 = 1 << 26;
/// `VHOST_VRING_F_LOG`: its writes to the used ring as well.
const RING_LOG: u32 = 1;
/// Protocol features that we use where they are offered.
const OURS: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::LOG_SHMFD)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);

/// The features a guest may ask for, by name.
const NAMES: [(u32, &str); 5] = [
    (VIRTIO_NET_F_MRG_RXBUF, "VIRTIO_NET_F_MRG_RXBUF (mergeable buffers)"),
    (VIRTIO_RING_F_INDIRECT_DESC, "VIRTIO_RING_F_INDIRECT_DESC (indirect tables)"),
    (VIRTIO_RING_F_EVENT_IDX, "VIRTIO_RING_F_EVENT_IDX"),
    (VIRTIO_F_VERSION_1, "VIRTIO_F_VERSION_1"),
    (VIRTIO_F_IN_ORDER, "VIRTIO_F_IN_ORDER"),
];

/// What went wrong between us and a backend.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Nobody listens there, until the deadline.
    #[error("cannot connect to {path} (is the backend running?)")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The last attempt's answer.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketFileError),
    /// Somebody came and could not be let in: out of fds or memory.
    #[error("cannot accept a backend on {path}")]
    Accept {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// We listened and nobody came.
    #[error("no backend has connected to {0}")]
    NoBackend(PathBuf),
    /// No answer.
    #[error("the backend did not answer {0} within {limit} seconds", limit = ANSWER.as_secs())]
    Silent(&'static str),
    /// A message was refused, or the connection broke.
    #[error("the backend refused {message}, or the connection broke")]
    Message {
        /// Its name in the protocol.
        message: &'static str,
        /// What `vhost` says.
        #[source]
        source: vhost::Error,
    },
    /// Something asked for is not offered.
    #[error("the backend does not offer {0}")]
    Missing(&'static str),
    /// Fewer queues than asked for.
    #[error("the backend has {offered} queue pairs, {wanted} were asked for")]
    Queues {
        /// Theirs.
        offered: u64,
        /// Ours.
        wanted: u16,
    },
}

/// Where backends come to: a socket file of ours.
#[derive(Debug)]
pub struct Listener {
    // Before the socket, which must outlive it.
    file: SocketFile,
    socket: UnixListener,
}

impl Listener {
    /// Listen on `path`. A stale socket is replaced; a live one, or another kind of file, is
    /// an error.
    ///
    /// # Errors
    /// What is in the way.
    pub fn new(path: &Path) -> Result<Self, SessionError> {
        let (file, socket) = SocketFile::bind(path, |_| Ok(()))?;
        Ok(Listener { file, socket })
    }

    /// Wait for a backend.
    ///
    /// # Errors
    /// None came before the deadline, or it could not be let in.
    pub fn accept(&self, deadline: Instant) -> Result<UnixStream, SessionError> {
        let path = || self.file.path().into();
        loop {
            let error = match self.socket.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::WouldBlock if Instant::now() < deadline => thread::sleep(RETRY),
                ErrorKind::WouldBlock => return Err(SessionError::NoBackend(path())),
                // A signal, or a backend that gave up: the next one may be in the queue.
                ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                _ => return Err(SessionError::Accept { path: path(), source: error }),
            }
        }
    }
}

/// Connect to a backend that listens on `path`, trying again until the deadline, also while
/// its backlog is full.
///
/// # Errors
/// The last attempt's; a path that no socket can have.
pub fn connect(path: &Path, deadline: Instant) -> Result<UnixStream, SessionError> {
    check_path(path)?;
    loop {
        match unix::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(_) if Instant::now() < deadline => thread::sleep(RETRY),
            Err(source) => return Err(SessionError::Connect { path: path.to_owned(), source }),
        }
    }
}

/// What is negotiated.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Feature bits, without the transport's.
    pub features: u64,
    /// Queue pairs.
    pub queue_pairs: u16,
}

/// A ring's two eventfds.
#[derive(Debug, Clone, Copy)]
pub struct RingEvents<'a> {
    /// We signal available buffers here.
    pub kick: &'a EventFd,
    /// The backend signals used buffers here.
    pub call: &'a EventFd,
}

/// A connection, negotiated.
pub struct Session {
    frontend: Frontend,
    stream: UnixStream,
    features: u64,
    offered: u64,
    enables: bool,
    /// It takes a dirty log.
    logs: bool,
    /// Keeps our socket file as long as the connection.
    listener: Option<Listener>,
}

impl Session {
    /// Negotiate on a connected socket: `SET_OWNER`, `GET_FEATURES`, GET and `SET_PROTOCOL_FEATURES`
    /// (MQ, `LOG_SHMFD`, `REPLY_ACK` and
    /// `CONFIGURE_MEM_SLOTS` where offered), `GET_QUEUE_NUM` for several queue pairs. `SET_FEATURES`
    /// follows with [`Session::begin`].
    ///
    /// # Errors
    /// What the backend lacks or refused.
    pub fn negotiate(stream: UnixStream, wanted: Wanted) -> Result<Self, SessionError> {
        let clone =
            || stream.try_clone().map_err(|e| message("the socket")(vhost::Error::IOError(e)));
        let vrings = 2 * u64::from(wanted.queue_pairs);
        let frontend = Frontend::from_stream(clone()?, vrings);
        let mut session = Session {
            frontend,
            stream,
            features: 0,
            offered: 0,
            enables: false,
            logs: false,
            listener: None,
        };
        session.ask("SET_OWNER", |f| f.set_owner())?;
        let offered = session.ask("GET_FEATURES", |f| f.get_features())?;
        for (bit, name) in NAMES {
            if wanted.features & !offered & (1 << bit) != 0 {
                return Err(SessionError::Missing(name));
            }
        }
        let mq = if wanted.queue_pairs > 1 { 1 << VIRTIO_NET_F_MQ } else { 0 };
        session.features = wanted.features | offered & (PROTOCOL_FEATURES | mq);
        session.offered = offered;
        session.enables = offered & PROTOCOL_FEATURES != 0;
        let protocol = session.negotiate_protocol()?;
        if wanted.queue_pairs > 1 {
            if !protocol.contains(VhostUserProtocolFeatures::MQ) {
                return Err(SessionError::Missing("VHOST_USER_PROTOCOL_F_MQ (several queues)"));
            }
            session.check_queues(wanted.queue_pairs)?;
        }
        Ok(session)
    }

    fn negotiate_protocol(&mut self) -> Result<VhostUserProtocolFeatures, SessionError> {
        if !self.enables {
            return Ok(VhostUserProtocolFeatures::empty());
        }
        let both =
            OURS & self.ask("GET_PROTOCOL_FEATURES", VhostUserFrontend::get_protocol_features)?;
        self.logs = both.contains(VhostUserProtocolFeatures::LOG_SHMFD);
        self.ask("SET_PROTOCOL_FEATURES", |f| f.set_protocol_features(both))?;
        if both.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            self.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        Ok(both)
    }

    /// `vhost` takes the answer to `GET_QUEUE_NUM`, which counts pairs for a network device, as
    /// the number of vrings, and from then on refuses higher ones itself. So another object
    /// asks, over the same socket.
    fn check_queues(&mut self, wanted: u16) -> Result<(), SessionError> {
        let stream = self.stream.try_clone();
        let stream = stream.map_err(|e| message("the socket")(vhost::Error::IOError(e)))?;
        let probe = Frontend::from_stream(stream, 0);
        let own = std::mem::replace(&mut self.frontend, probe);
        let answer = self
            .ask("GET_FEATURES", |f| f.get_features())
            .and_then(|_| {
                // The same ones again: the last word counts.
                let both = OURS
                    & self
                        .ask("GET_PROTOCOL_FEATURES", VhostUserFrontend::get_protocol_features)?;
                self.ask("SET_PROTOCOL_FEATURES", |f| f.set_protocol_features(both))
            })
            .and_then(|()| self.ask("GET_QUEUE_NUM", VhostUserFrontend::get_queue_num));
        self.frontend = own;
        match answer? {
            offered if offered < u64::from(wanted) => Err(SessionError::Queues { offered, wanted }),
            _ => Ok(()),
        }
    }

    /// Keep the socket file that the connection came through until the session ends.
    pub fn keep(&mut self, listener: Listener) {
        self.listener = Some(listener);
    }

    /// The negotiated features, the transport's included.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// `SET_VRING_CALL` for every ring (DPDK allocates its rings on it), `SET_FEATURES`,
    /// `SET_MEM_TABLE`. `calls` are in the order of ring numbers.
    ///
    /// # Errors
    /// What the backend refused.
    pub fn begin<'a>(
        &mut self,
        calls: impl Iterator<Item = &'a EventFd>,
        ram: &Ram,
    ) -> Result<(), SessionError> {
        for (index, call) in calls.enumerate() {
            self.ask("SET_VRING_CALL", |f| f.set_vring_call(index, call))?;
        }
        let features = self.features;
        self.ask("SET_FEATURES", |f| f.set_features(features))?;
        self.send_memory(ram)
    }

    /// `SET_MEM_TABLE`, at any time: running rings must survive it.
    ///
    /// # Errors
    /// The backend refused it.
    pub fn send_memory(&mut self, ram: &Ram) -> Result<(), SessionError> {
        let regions: Vec<_> = ram.regions().iter().map(described).collect();
        self.ask("SET_MEM_TABLE", |f| f.set_mem_table(&regions)).map(|_| ())
    }

    /// `ADD_MEM_REG`: memory is plugged in, at any time.
    ///
    /// # Errors
    /// The backend refused it, or does not know it.
    pub fn add_region(&mut self, region: &Region) -> Result<(), SessionError> {
        self.ask("ADD_MEM_REG", |f| f.add_mem_region(&described(region))).map(|_| ())
    }

    /// `REM_MEM_REG`: it is pulled out again.
    ///
    /// # Errors
    /// The backend refused it, or does not know it.
    pub fn remove_region(&mut self, region: &Region) -> Result<(), SessionError> {
        self.ask("REM_MEM_REG", |f| f.remove_mem_region(&described(region)))
    }

    /// Start ring `index` at `base`: `SET_VRING_CALL`, NUM, BASE, ADDR, KICK.
    ///
    /// # Errors
    /// What the backend refused.
    pub fn start_ring(
        &mut self,
        index: usize,
        area: &RingArea,
        events: RingEvents,
        base: u16,
    ) -> Result<(), SessionError> {
        self.ask("SET_VRING_CALL", |f| f.set_vring_call(index, events.call))?;
        self.ask("SET_VRING_NUM", |f| f.set_vring_num(index, area.size()))?;
        self.ask("SET_VRING_BASE", |f| f.set_vring_base(index, base))?;
        self.place_ring(index, area.user_addresses(), None)?;
        self.ask("SET_VRING_KICK", |f| f.set_vring_kick(index, events.kick))
    }

    /// `SET_VRING_ADDR`, at any time: a running ring goes on at its index. With `log`, the backend
    /// logs what it writes to the used ring at this guest address.
    ///
    /// # Errors
    /// The backend refused it.
    pub fn place_ring(
        &mut self,
        index: usize,
        at: RingAddresses,
        log: Option<u64>,
    ) -> Result<(), SessionError> {
        let config = VringConfigData {
            // Not in the message.
            queue_max_size: 0,
            queue_size: 0,
            flags: if log.is_some() { RING_LOG } else { 0 },
            desc_table_addr: at.desc,
            used_ring_addr: at.used,
            avail_ring_addr: at.avail,
            log_addr: log,
        };
        self.ask("SET_VRING_ADDR", |f| f.set_vring_addr(index, &config))
    }

    /// `SET_LOG_BASE`, at any time: `size` bytes of `file` from `offset` are the dirty log, with a
    /// bit for each 4096 bytes of guest addresses. Nothing is logged before
    /// [`Session::set_logging`].
    ///
    /// # Errors
    /// The backend takes no log, or ended the connection over this one.
    pub fn set_log_base(
        &mut self,
        file: &File,
        (offset, size): (u64, u64),
    ) -> Result<(), SessionError> {
        if !self.logs {
            return Err(SessionError::Missing("VHOST_USER_PROTOCOL_F_LOG_SHMFD (a dirty log)"));
        }
        let mmap_handle = file.as_raw_fd();
        let log = VhostUserDirtyLogRegion { mmap_size: size, mmap_offset: offset, mmap_handle };
        self.ask("SET_LOG_BASE", |f| f.set_log_base(0, Some(log)))
    }

    /// `SET_FEATURES` with `VHOST_F_LOG_ALL` or without, at any time: a migration begins or ends.
    ///
    /// # Errors
    /// The backend does not offer it, or refused it.
    pub fn set_logging(&mut self, on: bool) -> Result<(), SessionError> {
        if self.offered & LOG_ALL == 0 {
            return Err(SessionError::Missing("VHOST_F_LOG_ALL (logging of what is written)"));
        }
        self.features = self.features & !LOG_ALL | if on { LOG_ALL } else { 0 };
        let features = self.features;
        self.ask("SET_FEATURES", |f| f.set_features(features))
    }

    /// `SET_FEATURES` once more, with these bits besides: what the driver does with them is the
    /// caller's.
    ///
    /// # Errors
    /// The backend does not offer them, or refused.
    pub fn add_features(&mut self, bits: u64) -> Result<(), SessionError> {
        if bits & !self.offered != 0 {
            return Err(SessionError::Missing("all of the features that are added"));
        }
        self.features |= bits;
        let features = self.features;
        self.ask("SET_FEATURES", |f| f.set_features(features))
    }

    /// `SET_VRING_ERR`: where the backend tells that ring `index` lies and was stopped.
    ///
    /// # Errors
    /// The backend refused it.
    pub fn set_ring_error(&mut self, index: usize, err: &EventFd) -> Result<(), SessionError> {
        self.ask("SET_VRING_ERR", |f| f.set_vring_err(index, err))
    }

    /// `SET_VRING_ENABLE`, if the backend knows it (else started rings are enabled).
    ///
    /// # Errors
    /// The backend refused it.
    pub fn enable_ring(&mut self, index: usize, enable: bool) -> Result<(), SessionError> {
        if !self.enables {
            return Ok(());
        }
        self.ask("SET_VRING_ENABLE", |f| f.set_vring_enable(index, enable))
    }

    /// `GET_VRING_BASE`: stops ring `index` and returns its next avail index.
    ///
    /// # Errors
    /// The backend refused it.
    pub fn stop_ring(&mut self, index: usize) -> Result<u16, SessionError> {
        self.ask("GET_VRING_BASE", |f| f.get_vring_base(index)).map(|base| base as u16)
    }

    /// The socket, for messages that no frontend would send. An answer that is asked for there must
    /// be read before the session goes on.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Is the connection open?
    pub fn alive(&self) -> bool {
        unix::is_open(&self.stream)
    }

    /// Send a message and wait for its answer, but not for ever: `vhost` tries again as often
    /// as a read times out, so a watchdog cuts the connection instead.
    fn ask<T>(
        &mut self,
        name: &'static str,
        send: impl FnOnce(&mut Frontend) -> vhost::Result<T>,
    ) -> Result<T, SessionError> {
        let late = AtomicBool::new(false);
        let (stream, frontend) = (&self.stream, &mut self.frontend);
        let answer = thread::scope(|scope| {
            let (done, waiting) = mpsc::channel::<()>();
            let late = &late;
            scope.spawn(move || {
                if waiting.recv_timeout(ANSWER) == Err(mpsc::RecvTimeoutError::Timeout) {
                    late.store(true, Ordering::Relaxed);
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                }
            });
            let answer = send(frontend);
            drop(done);
            answer
        });
        match answer {
            Err(_) if late.load(Ordering::Relaxed) => Err(SessionError::Silent(name)),
            other => other.map_err(message(name)),
        }
    }
}

fn described(region: &Region) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: region.guest,
        memory_size: region.size as u64,
        userspace_addr: region.user,
        mmap_offset: 0,
        mmap_handle: region.file.as_raw_fd(),
    }
}

fn message(message: &'static str) -> impl Fn(vhost::Error) -> SessionError {
    move |source| SessionError::Message { message, source }
}
