//! The guests that packets are counted at.

use crate::common::testpmd::{Args, PortStats, Testpmd};
use crate::plan::{Direction, Group, GuestKind};
use anyhow::{Result, ensure};
use std::path::PathBuf;
use std::time::Duration;

/// Bursts of 32 that each of two ports sends to begin with: 256 packets go round.
const LOOP_BURSTS: usize = 4;

/// A guest connected to one backend.
pub enum Guest {
    VirtioUser(VirtioUser),
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
        }
    }

    /// From now on packets of `size` go round or are sent.
    pub fn set_size(&mut self, size: usize) -> Result<()> {
        match self {
            Guest::VirtioUser(guest) => guest.set_size(size),
        }
    }

    /// Packets a second in the next `duration`, in millions.
    pub fn window(&mut self, duration: Duration) -> Result<f64> {
        match self {
            Guest::VirtioUser(guest) => guest.window(duration),
        }
    }

    /// The process to stop while it is not measured.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Guest::VirtioUser(guest) => Some(guest.testpmd.pid()),
        }
    }

    /// How it was started.
    pub fn command_line(&self) -> &str {
        match self {
            Guest::VirtioUser(guest) => guest.testpmd.command_line(),
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
    fn window(&mut self, duration: Duration) -> Result<f64> {
        self.testpmd.stats()?;
        std::thread::sleep(duration);
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
