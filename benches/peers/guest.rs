//! The guests that packets are counted at: testpmd's `net_virtio_user` and ringbridge's own.
//!
//! Promises: a guest counts what the backend moved, by the same means for every backend.

use crate::common::testpmd::{Args, PortStats, Testpmd};
use crate::plan::{Direction, Group, GuestKind};
use anyhow::{Context, Result, ensure};
use ringbridge::frontend::{Guest as OwnGuest, Link};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// A measurement.
const WINDOW: Duration = Duration::from_millis(100);
/// Caches fill and queues reach their usual depth meanwhile.
const SETTLE: Duration = Duration::from_millis(30);
/// So many packets go round between two ports.
const LOOP_PACKETS: usize = 256;
/// testpmd's way to begin with as many: bursts of 32 out of each of the two.
const LOOP_BURSTS: usize = LOOP_PACKETS / 2 / 32;

/// A guest connected to one backend.
pub enum Guest {
    VirtioUser(VirtioUser),
    Own(Own),
}

impl Guest {
    /// Connect to a backend that listens on `sockets`.
    pub fn start(
        group: &Group,
        cpu: usize,
        huge_mib: Option<usize>,
        sockets: &[PathBuf],
    ) -> Result<Self> {
        match group.guest {
            GuestKind::VirtioUser => {
                VirtioUser::start(group, cpu, huge_mib, sockets).map(Guest::VirtioUser)
            }
            GuestKind::Own => Own::start(group, cpu, sockets).map(Guest::Own),
        }
    }

    /// From now on packets of `size` go round or are sent.
    pub fn set_size(&mut self, size: usize) -> Result<()> {
        match self {
            Guest::VirtioUser(guest) => guest.set_size(size),
            Guest::Own(guest) => {
                guest.size = size;
                Ok(())
            }
        }
    }

    /// Let things settle, then `count` windows: millions of packets a second in each.
    pub fn windows(&mut self, count: usize) -> Result<Vec<f64>> {
        match self {
            Guest::VirtioUser(guest) => {
                std::thread::sleep(SETTLE);
                (0..count).map(|_| guest.window()).collect()
            }
            Guest::Own(guest) => guest.windows(count),
        }
    }

    /// The process to stop while it is not measured; none if it rests by itself.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Guest::VirtioUser(guest) => Some(guest.testpmd.pid()),
            Guest::Own(_) => None,
        }
    }

    /// How it was started.
    pub fn command_line(&self) -> &str {
        match self {
            Guest::VirtioUser(guest) => guest.testpmd.command_line(),
            Guest::Own(_) => "the guest of src/frontend, in this process",
        }
    }
}

/// testpmd on `net_virtio_user` ports.
pub struct VirtioUser {
    testpmd: Testpmd,
    direction: Direction,
    forwards: bool,
}

impl VirtioUser {
    fn start(
        group: &Group,
        cpu: usize,
        huge_mib: Option<usize>,
        sockets: &[PathBuf],
    ) -> Result<Self> {
        let mergeable = u8::from(group.mergeable);
        let options = format!("queues=1,queue_size=256,mrg_rxbuf={mergeable}");
        let mut args = Args::guest(sockets, &options).cpu(cpu);
        if let Some(mib) = huge_mib {
            args = args.hugepages(mib);
        }
        let direction = group.direction;
        let mode = format!("--forward-mode={}", direction.guest_mode());
        let testpmd = Testpmd::start(&args.with([mode]))?;
        Ok(VirtioUser { testpmd, direction, forwards: false })
    }

    fn set_size(&mut self, size: usize) -> Result<()> {
        if self.forwards && self.direction == Direction::ToGuest {
            return Ok(());
        }
        if self.forwards {
            self.testpmd.command("stop")?;
            // What is still on its way arrives, and is thrown away at the start.
            std::thread::sleep(Duration::from_millis(10));
        }
        self.testpmd.command(&format!("set txpkts {size}"))?;
        let start = match self.direction {
            Direction::Between => format!("start tx_first {LOOP_BURSTS}"),
            _ => "start".into(),
        };
        self.testpmd.command(&start)?;
        self.forwards = true;
        Ok(())
    }

    /// testpmd's own rate between two looks at its counters: it takes the time, too.
    fn window(&mut self) -> Result<f64> {
        self.testpmd.stats()?;
        std::thread::sleep(WINDOW);
        let stats = self.testpmd.stats()?;
        let pps = |port: &PortStats| match self.direction {
            Direction::FromGuest => port.tx_pps,
            _ => port.rx_pps,
        };
        let sum: u64 = stats.iter().map(pps).sum();
        ensure!(sum > 0, "no packets move");
        Ok(sum as f64 / 1e6)
    }
}

type Answer = Result<Vec<f64>>;

/// ringbridge's own guest, on a thread of its own that waits between measurements.
pub struct Own {
    size: usize,
    orders: Sender<(usize, usize)>,
    answers: Receiver<Answer>,
}

impl Own {
    fn start(group: &Group, cpu: usize, sockets: &[PathBuf]) -> Result<Self> {
        let mut link = Link::to(sockets);
        link.options.mergeable = group.mergeable;
        let direction = group.direction;
        let (orders, inbox) = mpsc::channel::<(usize, usize)>();
        let (answer, answers) = mpsc::channel();
        std::thread::spawn(move || {
            let connected = ringbridge::sys::pin_to_cpu(cpu)
                .map_err(anyhow::Error::from)
                .and_then(|()| Ok(OwnGuest::connect(&link)?));
            let mut guest = match connected {
                Ok(guest) => guest,
                Err(error) => {
                    let _ = answer.send(Err(error));
                    return;
                }
            };
            let _ = answer.send(Ok(Vec::new()));
            // Ends with the other half of the channel.
            for (size, count) in inbox {
                let _ = answer.send(run(&mut guest, direction, size, count));
            }
        });
        answers.recv().context("the guest's thread is gone")??;
        Ok(Own { size: group.sizes[0], orders, answers })
    }

    fn windows(&mut self, count: usize) -> Result<Vec<f64>> {
        self.orders.send((self.size, count))?;
        self.answers.recv().context("the guest's thread is gone")?
    }
}

/// A short run to settle, and one to measure.
fn run(guest: &mut OwnGuest, direction: Direction, size: usize, count: usize) -> Answer {
    let stop = AtomicBool::new(false);
    let mut run = |duration| match direction {
        Direction::ToGuest => guest.rxonly(size, Some(duration), &stop),
        Direction::FromGuest => guest.txonly(size, Some(duration), &stop),
        Direction::Between => guest.io(size, LOOP_PACKETS, Some(duration), &stop),
    };
    run(SETTLE)?;
    // A window ends at the first look at the clock after its time: leave some for that.
    let report = run(WINDOW * count as u32 + WINDOW / 5)?;
    let windows: Vec<_> = report.windows.iter().take(count).map(|pps| pps / 1e6).collect();
    ensure!(windows.len() == count && windows.iter().all(|&mpps| mpps > 0.0), "no packets move");
    Ok(windows)
}
