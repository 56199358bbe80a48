//! The command `run`: a bridge from its start to its end.
//!
//! Promises: prints tables while the bridge runs and totals at its end, which a signal, the
//! duration or the operator brings.

#![forbid(unsafe_code)]

use crate::bridge::{Bridge, StartError};
use crate::config::RunConfig;
use crate::ctl;
use crate::sys::{self, Termination};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a bridge did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The control socket.
    #[error(transparent)]
    Control(#[from] ctl::ServerError),
    /// Out of threads, fds or the like.
    #[error("cannot {0}")]
    System(&'static str, #[source] io::Error),
}

/// Run until the duration is over or a signal comes; print tables meanwhile, totals at the end.
///
/// # Errors
/// Why the bridge could not be started.
pub fn run(config: &RunConfig) -> Result<(), RunError> {
    // Before any thread is made, so that all of them leave the signals to this one.
    let signals = Termination::catch().map_err(|e| RunError::System("block signals", e))?;
    if let Err(error) = sys::raise_file_limit() {
        tracing::warn!("cannot raise the limit of open files, so many guests may not fit: {error}");
    }
    let bridge = Arc::new(Bridge::start(config)?);
    let control = ctl::Server::start(config.control.as_deref(), &bridge)?;
    if let Some(path) = control.as_ref().and_then(ctl::Server::path) {
        tracing::info!("control socket: {}", path.display());
    }
    let first = bridge.snapshot();
    let end = config.duration.map(|duration| first.at + duration);
    let mut last = first.clone();
    loop {
        let tick = config.stats_interval.filter(|_| !config.json).map(|every| last.at + every);
        let next = [end, tick].into_iter().flatten().min();
        let timeout =
            next.map_or(Duration::from_hours(1), |at| at.saturating_duration_since(Instant::now()));
        if signals.wait(timeout) || end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        if tick.is_some_and(|tick| Instant::now() >= tick) {
            let now = bridge.snapshot();
            sys::print(&now.table(&last));
            last = now;
        }
    }
    // First, so that nobody changes what is ending.
    drop(control);
    let totals = bridge.stop();
    if config.json {
        let json = totals.json().map_err(|e| RunError::System("print JSON", e.into()))?;
        sys::print(&format!("{json}\n"));
    } else {
        sys::print(&format!("Totals:\n{}", totals.table(&first)));
    }
    Ok(())
}
