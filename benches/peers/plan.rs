//! What is to be measured: peers, cells, options, and how long it may take.

use crate::common;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Ringbridge,
    Dpdk,
    Reference,
}

impl Peer {
    /// All of them, ringbridge first: it is the one measured twice.
    pub const ALL: [Peer; 3] = [Peer::Ringbridge, Peer::Dpdk, Peer::Reference];

    pub fn name(self) -> &'static str {
        match self {
            Peer::Ringbridge => "ringbridge",
            Peer::Dpdk => "dpdk",
            Peer::Reference => "reference",
        }
    }

    /// What keeps it from running on this machine.
    pub fn missing(self) -> Option<String> {
        match self {
            Peer::Dpdk if !has_testpmd() => Some("dpdk-testpmd is not installed".into()),
            Peer::Dpdk if !common::hugepages(crate::pair::HUGE_MIB) => {
                Some("no free hugepages, and not root to reserve them".into())
            }
            Peer::Reference if !cfg!(feature = "reference") => {
                Some("built without the feature `reference`".into())
            }
            _ => None,
        }
    }
}

fn has_testpmd() -> bool {
    common::require(common::testpmd::TOOL)
}

/// Which way packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The backend makes them.
    ToGuest,
    /// The guest makes them.
    FromGuest,
    /// A closed loop of 256 packets through a guest with two ports.
    Between,
}

impl Direction {
    pub const ALL: [Direction; 3] = [Direction::ToGuest, Direction::FromGuest, Direction::Between];

    pub fn name(self) -> &'static str {
        match self {
            Direction::ToGuest => "backend->guest",
            Direction::FromGuest => "guest->backend",
            Direction::Between => "guest->guest",
        }
    }

    /// The backend's forwarding mode.
    pub fn backend_mode(self) -> &'static str {
        match self {
            Direction::ToGuest => "txonly",
            Direction::FromGuest => "rxonly",
            Direction::Between => "io",
        }
    }

    /// The guest's.
    pub fn guest_mode(self) -> &'static str {
        match self {
            Direction::ToGuest => "rxonly",
            Direction::FromGuest => "txonly",
            Direction::Between => "io",
        }
    }

    /// Sockets between backend and guest.
    pub fn ports(self) -> usize {
        if self == Direction::Between { 2 } else { 1 }
    }
}

/// Who is on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestKind {
    /// A `net_virtio_user` port of testpmd.
    VirtioUser,
    /// ringbridge's own.
    Own,
}

impl GuestKind {
    pub const ALL: [GuestKind; 2] = [GuestKind::Own, GuestKind::VirtioUser];

    pub fn name(self) -> &'static str {
        match self {
            GuestKind::VirtioUser => "virtio-user",
            GuestKind::Own => "ringbridge",
        }
    }

    fn missing(self) -> bool {
        self == GuestKind::VirtioUser && !has_testpmd()
    }
}

/// Cells that the same processes can serve: they differ in size alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub guest: GuestKind,
    pub mergeable: bool,
    pub direction: Direction,
    pub sizes: Vec<usize>,
}

impl Group {
    /// As it is shown, and as a WORD of the command line must match.
    pub fn name(&self) -> String {
        let mergeable = if self.mergeable { "mergeable" } else { "plain" };
        format!("{} {mergeable} {}", self.direction.name(), self.guest.name())
    }
}

const SIZES: [usize; 3] = [64, 512, 1518];

/// The command line.
#[derive(Debug, Default)]
pub struct Options {
    pub quick: bool,
    pub json: Option<PathBuf>,
    pub skip: Vec<Peer>,
    words: Vec<String>,
}

impl Options {
    pub fn parse(args: &[String]) -> Result<Self> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                // What cargo adds.
                "--bench" => {}
                "--quick" => options.quick = true,
                "--json" => options.json = Some(args.next().context("--json FILE")?.into()),
                "--skip" => {
                    let name = args.next().context("--skip PEER")?;
                    let peer = Peer::ALL.into_iter().find(|p| p.name() == name);
                    options.skip.push(peer.context("PEER is ringbridge, dpdk or reference")?);
                }
                word if word.starts_with('-') => bail!("{word} is none of --quick, --json, --skip"),
                word => options.words.push(word.into()),
            }
        }
        Ok(options)
    }

    /// All groups with the cells that were chosen.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups = Vec::new();
        for guest in GuestKind::ALL {
            if guest.missing() {
                println!("# skipped: the guest {}", guest.name());
                continue;
            }
            for direction in Direction::ALL {
                for mergeable in [false, true] {
                    let mut group = Group { guest, mergeable, direction, sizes: Vec::new() };
                    group.sizes = self.chosen(&group.name());
                    if !group.sizes.is_empty() {
                        groups.push(group);
                    }
                }
            }
        }
        groups
    }

    fn chosen(&self, group: &str) -> Vec<usize> {
        let matches = |size: &usize| {
            let name = format!("{size} {group}");
            self.words.iter().all(|word| name.split(' ').any(|part| part == word))
        };
        SIZES.into_iter().filter(matches).collect()
    }
}

/// How long it may take, and what is done in that time.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// When to be done at the latest, if at all.
    end: Option<Instant>,
    /// Rounds a cell.
    pub rounds: usize,
    /// Windows a peer in each round.
    pub windows: usize,
}

impl Budget {
    pub fn new(started: Instant, quick: bool) -> Self {
        if quick {
            // The rest of the minute is for the processes' ends.
            Budget { end: Some(started + Duration::from_secs(55)), rounds: 3, windows: 1 }
        } else {
            Budget { end: None, rounds: 5, windows: 3 }
        }
    }

    /// When a part that is followed by `more` parts of the same length must be done.
    pub fn share(&self, more: usize) -> Option<Instant> {
        let now = Instant::now();
        self.end.map(|end| now + end.saturating_duration_since(now) / (more as u32 + 1))
    }
}
