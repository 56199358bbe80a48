//! The bridge's side of the control socket.
//!
//! Promises: nobody but its owner can connect; a client that sends too much, or does not read
//! what it asked for, is cut off; a thread each, and a limit to their number; an idle one costs
//! nothing and makes room where there is none; all of them end within seconds when the server is
//! dropped, whatever they or the frontends whose events they follow do. Started by `run`.

use super::clients::Clients;
use super::{Answer, LONGEST, Request, folder, read_line, tables};
use crate::bridge::Bridge;
use crate::config::port;
use crate::sys::socket_file::{SocketFile, SocketFileError};
use crate::sys::{self, unix};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io::{self, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// A client that does not read for so long is sent away.
const UNREAD: Duration = Duration::from_secs(2);
/// How often it is looked whether a follower is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Rates are measured over this.
const SAMPLE: Duration = Duration::from_millis(500);
/// After an `accept` that failed for want of fds.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the clients' threads may take to end.
const END: Duration = Duration::from_secs(5);

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its file.
    #[error("cannot open the control socket")]
    Socket(#[from] SocketFileError),
    /// No more threads or fds.
    #[error("cannot serve the control socket")]
    System(#[from] io::Error),
}

/// A control socket that is served.
#[derive(Debug)]
pub struct Server {
    socket: Option<SocketFile>,
    wake: Arc<EventFd>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Hangs up when all threads have ended.
    ended: Receiver<()>,
}

/// What all threads share.
#[derive(Debug)]
struct Shared {
    bridge: Arc<Bridge>,
    clients: Clients,
    ending: AtomicBool,
}

impl Server {
    /// Serve `bridge` on a socket at `path`; without one in a folder of the user's, if there is
    /// such a folder.
    ///
    /// # Errors
    /// What is wrong with a path that was given. That there is no folder is logged, and `None`.
    pub fn start(path: Option<&Path>, bridge: &Arc<Bridge>) -> Result<Option<Self>, ServerError> {
        match path {
            Some(path) => Self::listen(path, bridge).map(Some),
            None => {
                Ok(default_path().and_then(|path| Ok(Self::listen(&path, bridge)?)).map_or_else(
                    |error| {
                        tracing::info!(
                            "no control socket: {error}; --control PATH gives it a place"
                        );
                        None
                    },
                    Some,
                ))
            }
        }
    }

    fn listen(path: &Path, bridge: &Arc<Bridge>) -> Result<Self, ServerError> {
        let mine = |path: &Path| set_permissions(path, Permissions::from_mode(0o600));
        let (socket, listener) = SocketFile::bind(path, mine)?;
        let wake = Arc::new(EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?);
        let epoll = Epoll::new()?;
        for fd in [listener.as_raw_fd(), wake.as_raw_fd()] {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, 0))?;
        }
        let shared = Arc::new(Shared {
            bridge: Arc::clone(bridge),
            clients: Clients::default(),
            ending: AtomicBool::new(false),
        });
        let (running, ended) = channel();
        let (served, woken) = (Arc::clone(&shared), Arc::clone(&wake));
        let thread = thread::Builder::new().name("control".into()).spawn(move || {
            // To be woken is to end.
            while woken.read().is_err() {
                match listener_accept(&listener) {
                    Ok(Some(stream)) => admit(stream, &served, &running),
                    Ok(None) => drop(epoll.wait(-1, &mut [EpollEvent::default()])),
                    // Out of fds: it will pass.
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        })?;
        Ok(Server { socket: Some(socket), wake, shared, thread: Some(thread), ended })
    }

    /// Where it is.
    pub fn path(&self) -> Option<&Path> {
        self.socket.as_ref().map(SocketFile::path)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.socket = None;
        self.shared.ending.store(true, Ordering::Relaxed);
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.clients.close();
        if self.ended.recv_timeout(END) != Err(RecvTimeoutError::Disconnected) {
            tracing::error!("a client of the control socket did not end as it should");
        }
    }
}

fn listener_accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            _ => Err(error),
        },
    }
}

/// A folder of the user's, made if it is not there, and this process's place in it.
fn default_path() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let folder = folder().ok_or("XDG_RUNTIME_DIR is not set")?;
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(format!("cannot create {}: {error}", folder.display()).into())
        }
        _ => Ok(folder.join(format!("{}.sock", std::process::id()))),
    }
}

/// A thread for a client, if there is room for it.
fn admit(stream: UnixStream, shared: &Arc<Shared>, running: &Sender<()>) {
    // A client that cannot be made ready is as good as gone.
    let ready = stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(UNREAD)));
    let stream = Arc::new(stream);
    if ready.is_err() || !shared.clients.admit(&stream) {
        return;
    }
    let (served, theirs, running) = (Arc::clone(shared), Arc::clone(&stream), running.clone());
    let serve = move || {
        // However it ends, it ends with the client.
        let _ = serve(&theirs, &served);
        served.clients.leave(&theirs);
        drop(running);
    };
    if thread::Builder::new().name("client".into()).spawn(serve).is_err() {
        shared.clients.leave(&stream);
    }
}

/// Answer a client's requests until it goes or is cut off.
fn serve(stream: &Arc<UnixStream>, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(&**stream);
    loop {
        let line = match read_line(&mut reader, LONGEST) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let text = format!("a request is a line of text of at most {LONGEST} bytes");
                return send(stream, &Answer::Error(text));
            }
            Err(error) => return Err(error),
        };
        if !shared.clients.busy(stream) {
            return Ok(());
        }
        match serde_json::from_str(&line) {
            Ok(Request::Events) => match shared.clients.follow(stream) {
                Ok(()) => return follow(stream, shared),
                Err(error) => send(stream, &Answer::Error(error.to_string()))?,
            },
            Ok(request) => send(stream, &answer(request, &shared.bridge))?,
            Err(error) => send(stream, &Answer::Error(format!("not a request: {error}")))?,
        }
        shared.clients.idle(stream);
    }
}

fn send(mut stream: &UnixStream, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

/// Events, until the client goes or the server ends: there may always be one more.
fn follow(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    let events = shared.bridge.follow();
    send(stream, &Answer::Ok(true.into()))?;
    while !shared.ending.load(Ordering::Relaxed) {
        match events.recv_timeout(LOOK) {
            Ok(moment) => send(stream, &moment)?,
            Err(RecvTimeoutError::Timeout) if unix::is_open(stream) => {}
            Err(_) => break,
        }
    }
    Ok(())
}

fn answer(request: Request, bridge: &Bridge) -> Answer {
    match request {
        Request::Ports { text: false } => ok(&bridge.ports()),
        Request::Ports { text: true } => ok(&tables::ports(&bridge.ports())),
        Request::Stats { text: false } => ok(&bridge.snapshot()),
        Request::Stats { text: true } => {
            let earlier = bridge.snapshot();
            thread::sleep(SAMPLE);
            ok(&bridge.snapshot().table(&earlier))
        }
        Request::Macs { text: false } => ok(&tables::addresses(&bridge.macs())),
        Request::Macs { text: true } => ok(&tables::macs(&bridge.macs())),
        Request::PortAdd { spec } => match port::parse(&spec) {
            Ok(spec) => done(bridge.add_port(&spec).map(|_| spec.name)),
            Err(error) => Answer::Error(error.to_string()),
        },
        Request::PortDel { name } => done(bridge.remove_port(&name).map(|port| port.name)),
        Request::Link { name, text } => match bridge.port(&name) {
            Ok(port) if text => ok(&format!("{}\n", tables::link(&port))),
            Ok(port) => ok(&json!({ "up": port.status.link, "why": port.why_down })),
            Err(error) => Answer::Error(error.to_string()),
        },
        Request::Clear => {
            bridge.clear();
            Answer::Ok(true.into())
        }
        Request::Stop => match sys::terminate() {
            Ok(()) => Answer::Ok(true.into()),
            Err(error) => Answer::Error(format!("cannot stop: {error}")),
        },
        // It has no one answer, and does not come here.
        Request::Events => Answer::Ok(Value::Null),
    }
}

fn ok(value: &impl Serialize) -> Answer {
    match serde_json::to_value(value) {
        Ok(value) => Answer::Ok(value),
        Err(error) => Answer::Error(error.to_string()),
    }
}

fn done<E: std::error::Error>(outcome: Result<String, E>) -> Answer {
    outcome.map_or_else(|error| Answer::Error(sys::with_causes(&error)), |name| ok(&name))
}
