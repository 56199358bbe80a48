//! The guest without a VM: a vhost-user frontend and virtio-net driver in one process.
//!
//! Promises: drives any vhost-user network backend over its socket, with guest memory on
//! memfds, as an honest guest would: buffers are recycled first in first out, the first line of
//! every packet is read in the rate modes and every byte in `verify`. Whatever the backend does
//! is checked; a broken rule is an error, never undefined behaviour, and no wait is without a
//! limit. Used by `ringbridge guest`, the sweep, benches and tests, through [`run`] or, to hold
//! a connection over several measurements, [`Guest`]; [`RawGuest`] attacks backends.
//!
//! Layers: `traffic` (loops) → `guest` (ports and rings) → `session` (messages), `driver`
//! (rings, buffers) → `ram`. This is the one place besides `vhost_user` that knows the `vhost`
//! crate: its other end.

mod driver;
mod frame;
mod guest;
mod idle;
mod latency;
mod meter;
mod options;
mod ram;
mod raw;
mod report;
mod session;
mod tally;
mod traffic;

pub use driver::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, RawDesc, RawRing, RingArea, RingError};
pub use frame::{Frames, Number, number_of};
pub use guest::{Guest, Link};
pub use latency::Latency;
pub use options::{GuestOptions, HeaderPlace, Layout, OptionsError, Table};
pub use ram::{Ram, Region};
pub use raw::RawGuest;
pub use report::{Mode, Report};
pub use session::{Listener, RingEvents, Session, SessionError, Wanted, connect};
pub use traffic::{Sizes, VerifyPlan};

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A guest and what it is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestConfig {
    /// One socket, or two for `io` and `verify` between ports.
    pub sockets: Vec<PathBuf>,
    /// Listen on the sockets instead of connecting to them.
    pub server: bool,
    /// What to do.
    pub mode: Mode,
    /// Frame bytes without FCS: 14 to 65535. In `verify` the largest.
    pub size: usize,
    /// `verify`: the smallest frame, if lengths are to vary.
    pub min_size: Option<usize>,
    /// Stop after this long; else when told to.
    pub duration: Option<Duration>,
    /// `verify`: packets in flight at most; fewer if the rings hold fewer.
    pub in_flight: usize,
    /// `io`: packets sent first, to go round in a closed loop. 0: only what the backend sends
    /// is sent on.
    pub tx_first: usize,
    /// What kind of guest.
    pub options: GuestOptions,
    /// The CPU to pin the thread to.
    pub cpu: Option<usize>,
    /// How long to try to connect, or to wait for the backend to.
    pub connect_timeout: Duration,
}

impl Default for GuestConfig {
    fn default() -> Self {
        GuestConfig {
            sockets: Vec::new(),
            server: false,
            mode: Mode::RxOnly,
            size: 64,
            min_size: None,
            duration: None,
            in_flight: 256,
            tx_first: 0,
            options: GuestOptions::default(),
            cpu: None,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// Why a guest failed.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The options make no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The task makes no sense.
    #[error("{0}")]
    Config(String),
    /// Connecting or a message failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The backend broke a rule of the rings.
    #[error("socket {port}, queue {queue}: the backend broke the ring")]
    Ring {
        /// Number of the socket.
        port: usize,
        /// Number of the queue pair.
        queue: usize,
        /// How.
        #[source]
        source: RingError,
    },
    /// The backend has closed the connection.
    #[error("the backend has closed socket {0}")]
    Disconnected(usize),
    /// Memory, eventfds or epoll.
    #[error("cannot set up the guest")]
    System(#[from] io::Error),
    /// The CPU cannot be had.
    #[error("cannot run on cpu {cpu}")]
    Cpu {
        /// Its number.
        cpu: usize,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// Connect, do what `config` says until its duration is over or `stop` is set, and report.
///
/// # Errors
/// The configuration's, the backend's or the system's fault, as [`GuestError`] says.
pub fn run(config: &GuestConfig, stop: &AtomicBool) -> Result<Report, GuestError> {
    if let Some(cpu) = config.cpu {
        crate::sys::pin_to_cpu(cpu).map_err(|source| GuestError::Cpu { cpu, source })?;
    }
    let mut options = config.options.clone();
    options.max_size = config.size;
    let mut guest = Guest::connect(&Link {
        sockets: config.sockets.clone(),
        server: config.server,
        options,
        timeout: config.connect_timeout,
    })?;
    let (size, duration) = (config.size, config.duration);
    let report = match config.mode {
        Mode::RxOnly => guest.rxonly(size, duration, stop),
        Mode::TxOnly => guest.txonly(size, duration, stop),
        Mode::Io => guest.io(size, config.tx_first, duration, stop),
        Mode::Verify => {
            let sizes = Sizes { min: config.min_size.unwrap_or(size), max: size };
            guest.verify(VerifyPlan { sizes, in_flight: config.in_flight }, duration, stop)
        }
    }?;
    guest.stop()?;
    Ok(report)
}
