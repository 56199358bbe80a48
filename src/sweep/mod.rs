//! `ringbridge sweep`: this machine measured with the built-in guest.
//!
//! Promises: for each direction, mergeable setting and size a fresh bridge on one pinned thread
//! and a fresh guest on another, over a real socket; figures are medians and best windows of
//! 100 ms, never means; nothing is left behind, whatever happens. No root, no hugepages.

#![forbid(unsafe_code)]

mod backend;
mod report;

use crate::bridge::StartError;
use crate::config::{Against, SweepArgs};
use crate::frontend::{Guest, GuestError, GuestOptions, Link};
use crate::plot;
use crate::sys::{self, stop_on_signal};
use backend::Backend;
use indicatif::{ProgressBar, ProgressStyle};
use report::Cell;
use serde::Serialize;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the whole sweep may take, connecting and all.
const FULL: Duration = Duration::from_secs(170);
const QUICK: Duration = Duration::from_secs(18);
/// Of that, what a cell takes beside its measurement.
const SET_UP: Duration = Duration::from_millis(60);
/// Shortest measurement: a window and a half.
const SHORTEST: Duration = Duration::from_millis(150);
/// Packets that go round between two ports of one guest.
const IN_FLIGHT: usize = 256;

/// Which way packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Direction {
    /// The backend makes them, the guest receives.
    #[serde(rename = "backend→guest")]
    ToGuest,
    /// The guest makes them, the backend receives.
    #[serde(rename = "guest→backend")]
    FromGuest,
    /// One guest, two ports; the backend forwards, the guest sends back what arrives.
    #[serde(rename = "guest→guest")]
    Between,
}

impl Direction {
    /// All of them.
    pub const ALL: [Direction; 3] = [Direction::ToGuest, Direction::FromGuest, Direction::Between];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Direction::ToGuest => "backend→guest",
            Direction::FromGuest => "guest→backend",
            Direction::Between => "guest→guest",
        }
    }
}

/// Why a sweep ended early.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Our backend did not start.
    #[error(transparent)]
    Run(#[from] StartError),
    /// The other one did not.
    #[cfg(feature = "reference")]
    #[error("cannot start the reference backend")]
    Reference(#[from] crate::reference::ReferenceError),
    /// The guest failed.
    #[error("the guest failed at {0}")]
    Guest(String, #[source] GuestError),
    /// A file, a directory, a thread.
    #[error("cannot {0}")]
    System(String, #[source] io::Error),
}

/// What one cell measures.
#[derive(Debug, Clone, Copy)]
struct Task {
    direction: Direction,
    mergeable: bool,
    size: usize,
    against: Option<Against>,
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let mergeable = if self.mergeable { "mergeable" } else { "not mergeable" };
        let of = self.against.map_or("", |Against::Reference| " of the reference");
        write!(f, "{} bytes {}, {mergeable}{of}", self.size, self.direction.name())
    }
}

/// Measure, print, write what was asked for. A signal ends it; the cell at hand, which it cuts
/// short, is thrown away, and what was measured before is still printed.
///
/// # Errors
/// What went wrong.
pub fn run(args: &SweepArgs) -> Result<(), SweepError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |error| SweepError::System(what, error)
    };
    let stop = stop_on_signal().map_err(system("wait for signals"))?;
    if let Some((_, guest)) = args.cpus {
        sys::pin_to_cpu(guest).map_err(system("run the guest on its CPU"))?;
    }
    let place = Place::make().map_err(system("make a directory for sockets"))?;
    let tasks = tasks(args);
    let budget = if args.quick { QUICK } else { FULL };
    let each = (budget / tasks.len() as u32).saturating_sub(SET_UP).max(SHORTEST);
    let bar = ProgressBar::new(tasks.len() as u64).with_style(bar_style());
    let mut cells = Vec::new();
    for task in &tasks {
        bar.set_message(task.to_string());
        let cell = measure(task, args, &place.0, each, &stop)?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        cells.push(cell);
        bar.inc(1);
    }
    bar.finish_and_clear();
    sys::print(&report::table(&cells));
    if let Some(path) = &args.json {
        write(path, &report::json(&cells))?;
    }
    if let Some(path) = &args.svg {
        write(path, &plot::mpps_by_size("Mpps by frame size", &report::series(&cells)))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), SweepError> {
    let failed = |error| SweepError::System(format!("write {}", path.display()), error);
    std::fs::write(path, text).map_err(failed)
}

fn bar_style() -> ProgressStyle {
    // The template is a constant; were it wrong, the default would do.
    ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// All cells; the two backends of a cell one after the other, so that they are compared in one
/// phase of the machine.
fn tasks(args: &SweepArgs) -> Vec<Task> {
    let mut tasks = Vec::new();
    for direction in Direction::ALL {
        for mergeable in [true, false] {
            for &size in &args.sizes {
                let task = Task { direction, mergeable, size, against: None };
                tasks.push(task);
                tasks.extend(args.against.map(|other| Task { against: Some(other), ..task }));
            }
        }
    }
    tasks
}

fn measure(
    task: &Task,
    args: &SweepArgs,
    place: &Path,
    duration: Duration,
    stop: &AtomicBool,
) -> Result<Cell, SweepError> {
    let ports = if task.direction == Direction::Between { 2 } else { 1 };
    let sockets: Vec<PathBuf> = (0..ports).map(|i| place.join(format!("{i}.sock"))).collect();
    let backend = Backend::start(task, &sockets, args.cpus.map(|(backend, _)| backend))?;
    let failed = |error| SweepError::Guest(task.to_string(), error);
    let options =
        GuestOptions { mergeable: task.mergeable, max_size: task.size, ..GuestOptions::default() };
    let mut guest = Guest::connect(&Link { options, ..Link::to(&sockets) }).map_err(failed)?;
    let (size, duration) = (task.size, Some(duration));
    let report = match task.direction {
        Direction::ToGuest => guest.rxonly(size, duration, stop),
        Direction::FromGuest => guest.txonly(size, duration, stop),
        Direction::Between => guest.io(size, IN_FLIGHT, duration, stop),
    };
    let report = report.map_err(failed)?;
    drop(guest);
    Ok(Cell::new(task, &report, backend.stop()))
}

/// A directory of our own, gone when the sweep ends.
struct Place(PathBuf);

impl Place {
    fn make() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("ringbridge-sweep-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed is the temporary directory's business.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
