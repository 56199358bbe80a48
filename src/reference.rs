//! The reference backend: a vhost-user network device made the plain way from the rust-vmm
//! crates.
//!
//! Promises: `vhost-user-backend` is its control plane and `virtio-queue` its only way into a
//! ring: one descriptor chain after the other, `Reader` and `Writer` for the bytes, a used
//! element published for each packet, one look at the notification rule a burst. It is what
//! benches, `sweep --against reference` and tests compare ringbridge with, so it is never made
//! clever; but it polls on a thread of its own, because a device that waits in epoll for every
//! kick would be no fair peer. Serves one connection a socket, after which that socket is gone.

mod control;
mod datapath;
pub mod queue;

use crate::counters::QueueCounters;
use datapath::{Datapath, PortEvent};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// What the reference backend does with packets; testpmd's meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceMode {
    /// Make packets of the configured size and send them to each socket.
    TxOnly,
    /// Read what each socket sends, and count it.
    RxOnly,
    /// Copy packets from each socket to its pair (0 and 1, 2 and 3, …; one alone to itself).
    Io,
}

/// How to start a [`Reference`].
#[derive(Debug, Clone)]
pub struct ReferenceConfig {
    /// Where to listen: a port each. Files in the way are removed.
    pub sockets: Vec<PathBuf>,
    /// What to do.
    pub mode: ReferenceMode,
    /// Frame bytes without FCS for [`ReferenceMode::TxOnly`]: 14 to 65535.
    pub size: usize,
    /// Offer `VIRTIO_NET_F_MRG_RXBUF`.
    pub mergeable: bool,
    /// The CPU to pin the polling thread to.
    pub cpu: Option<usize>,
}

/// Why a [`Reference`] did not start.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// The socket cannot be listened on.
    #[error("cannot listen on {path}: {reason}")]
    Listen {
        /// Its path.
        path: PathBuf,
        /// What `vhost` says.
        reason: String,
    },
    /// `vhost-user-backend` refuses to make a device.
    #[error("cannot make a vhost-user device: {0}")]
    Device(String),
    /// A thread or an eventfd could not be had, or the CPU not be pinned to.
    #[error("cannot start the reference backend's threads")]
    Thread(#[from] io::Error),
}

/// What one port has moved.
#[derive(Debug, Default)]
pub struct ReferenceCounters {
    /// From the guest.
    pub rx: QueueCounters,
    /// To the guest.
    pub tx: QueueCounters,
}

/// A port as its threads share it.
#[derive(Default)]
struct Shared {
    counters: ReferenceCounters,
    /// The feature bits that the frontend acknowledged.
    features: AtomicU64,
}

/// A running reference backend.
pub struct Reference {
    ports: Vec<Arc<Shared>>,
    size: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Reference {
    /// Listen on all sockets and begin to poll.
    ///
    /// # Errors
    /// A socket cannot be listened on, or the CPU does not exist.
    pub fn start(config: &ReferenceConfig) -> Result<Self, ReferenceError> {
        let ports: Vec<_> = config.sockets.iter().map(|_| Arc::<Shared>::default()).collect();
        let size = Arc::new(AtomicUsize::new(config.size));
        let stop = Arc::new(AtomicBool::new(false));
        let (events, inbox) = mpsc::channel::<PortEvent>();
        let mut this = Reference { ports, size, stop, threads: Vec::new() };
        for (port, path) in config.sockets.iter().enumerate() {
            let device =
                control::Device::new(port, config.mergeable, &this.ports[port], events.clone())?;
            this.threads.push(control::serve(path, device, this.stop.clone())?);
        }
        let datapath =
            Datapath::new(config.mode, this.ports.clone(), this.size.clone(), this.stop.clone());
        this.threads.push(spawn_pinned(config.cpu, move || datapath.run(&inbox))?);
        Ok(this)
    }

    /// What port `port` has moved so far.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn counters(&self, port: usize) -> &ReferenceCounters {
        &self.ports[port].counters
    }

    /// From now on [`ReferenceMode::TxOnly`] makes packets of this many bytes.
    pub fn set_size(&self, size: usize) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// End all connections and threads. Dropping does the same.
    pub fn stop(self) {}
}

impl Drop for Reference {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A thread on `cpu`. Returns once it is pinned.
fn spawn_pinned(
    cpu: Option<usize>,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ReferenceError> {
    let (pinned, answer) = mpsc::channel();
    let thread = thread::Builder::new().name("reference".into()).spawn(move || {
        let result = cpu.map_or(Ok(()), crate::sys::pin_to_cpu);
        let go = result.is_ok();
        let _ = pinned.send(result);
        if go {
            run();
        }
    })?;
    answer.recv().map_err(io::Error::other)??;
    Ok(thread)
}
