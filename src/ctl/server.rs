//! The bridge's side of the control socket.
//!
//! Promises: nobody but its owner can connect; a client that sends too much, too little, or
//! does not read what it asked for is cut off; a thread each, and a limit to their number; all
//! of them end within seconds when the server is dropped. Started by `run`.

use super::{Answer, LONGEST, Request, folder, read_line, tables};
use crate::bridge::Bridge;
use crate::config::port;
use crate::sys::socket_file::{SocketFile, SocketFileError};
use crate::sys::{self, unix};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Clients at a time.
const MOST_CLIENTS: usize = 32;
/// A client that says nothing for so long is sent away.
const IDLE: Duration = Duration::from_mins(1);
/// A client that does not read for so long is.
const UNREAD: Duration = Duration::from_secs(2);
/// How often it is looked whether a follower is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Rates are measured over this.
const SAMPLE: Duration = Duration::from_millis(500);
/// After an `accept` that failed for want of fds.
const PAUSE: Duration = Duration::from_millis(200);

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
    clients: Arc<Clients>,
    thread: Option<JoinHandle<()>>,
}

/// Who is connected.
#[derive(Debug, Default)]
struct Clients(Mutex<Vec<(UnixStream, JoinHandle<()>)>>);

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Vec<(UnixStream, JoinHandle<()>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let clients = Arc::new(Clients::default());
        let (bridge, served, woken) = (Arc::clone(bridge), Arc::clone(&clients), Arc::clone(&wake));
        let thread = thread::Builder::new().name("control".into()).spawn(move || {
            // To be woken is to end.
            while woken.read().is_err() {
                match listener_accept(&listener) {
                    Ok(Some(stream)) => admit(stream, &served, &bridge),
                    Ok(None) => drop(epoll.wait(-1, &mut [EpollEvent::default()])),
                    // Out of fds: it will pass.
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        })?;
        Ok(Server { socket: Some(socket), wake, clients, thread: Some(thread) })
    }

    /// Where it is.
    pub fn path(&self) -> Option<&Path> {
        self.socket.as_ref().map(SocketFile::path)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.socket = None;
        let _ = self.wake.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // A client that asked for the end still gets its answer.
        for (stream, thread) in self.clients.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Read);
            let _ = thread.join();
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

/// A thread for a client, if there are not too many.
fn admit(stream: UnixStream, clients: &Arc<Clients>, bridge: &Arc<Bridge>) {
    let mut clients = clients.lock();
    clients.retain(|(_, thread)| !thread.is_finished());
    // A client that cannot be made ready is as good as gone.
    let ready = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(IDLE)))
        .and_then(|()| stream.set_write_timeout(Some(UNREAD)))
        .and_then(|()| stream.try_clone());
    let Ok(theirs) = ready else { return };
    if clients.len() >= MOST_CLIENTS {
        let text = format!("{MOST_CLIENTS} clients are connected already; try again");
        let _ = send(&stream, &Answer::Error(text));
        return;
    }
    let bridge = Arc::clone(bridge);
    let serve = move || {
        // However it ends, it ends with the client.
        let _ = serve(&theirs, &bridge);
        let _ = theirs.shutdown(Shutdown::Both);
    };
    if let Ok(thread) = thread::Builder::new().name("client".into()).spawn(serve) {
        clients.push((stream, thread));
    }
}

/// Answer a client's requests until it goes or is cut off.
fn serve(stream: &UnixStream, bridge: &Bridge) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
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
        match serde_json::from_str(&line) {
            Ok(Request::Events) => return follow(stream, bridge),
            Ok(request) => send(stream, &answer(request, bridge))?,
            Err(error) => send(stream, &Answer::Error(format!("not a request: {error}")))?,
        }
    }
}

fn send(mut stream: &UnixStream, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

/// Events, until the client goes.
fn follow(stream: &UnixStream, bridge: &Bridge) -> io::Result<()> {
    let events = bridge.follow();
    send(stream, &Answer::Ok(true.into()))?;
    loop {
        match events.recv_timeout(LOOK) {
            Ok(moment) => send(stream, &moment)?,
            Err(RecvTimeoutError::Timeout) if unix::is_open(stream) => {}
            Err(_) => return Ok(()),
        }
    }
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

/// An error and its causes in one line.
fn done<E: std::error::Error>(outcome: Result<String, E>) -> Answer {
    match outcome {
        Ok(name) => Answer::Ok(name.into()),
        Err(error) => {
            let causes = std::iter::successors(error.source(), |e| (*e).source());
            Answer::Error(causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}")))
        }
    }
}
