//! Backends that are processes of ours: the ringbridge binary, and this very program serving
//! the reference backend.
//!
//! Promises: a started server listens on its sockets, and is killed when it is dropped.

use crate::common::wait_until;
use crate::plan::Direction;
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// The hidden first argument that makes this program serve the reference backend.
pub const SERVE_REFERENCE: &str = "--serve-reference";
const LIMIT: Duration = Duration::from_secs(10);

/// A running backend process.
pub struct Server {
    child: Child,
    stdin: ChildStdin,
    pub command_line: String,
}

impl Server {
    /// `ringbridge run`.
    pub fn ringbridge(
        cpu: usize,
        direction: Direction,
        size: usize,
        sockets: &[PathBuf],
    ) -> Result<Self> {
        let mut args = vec!["run".to_string(), "-q".into()];
        for socket in sockets {
            args.extend(["-p".into(), format!("vhost:{}", socket.display())]);
        }
        args.extend(["--forward".into(), direction.backend_mode().into()]);
        if direction == Direction::ToGuest {
            args.extend(["--size".into(), size.to_string()]);
        }
        let cpu = cpu.to_string();
        args.extend(["--workers", "1", "--cpus", &cpu, "--poll", "busy"].map(String::from));
        Self::start(env!("CARGO_BIN_EXE_ringbridge"), &args, sockets)
    }

    /// The reference backend.
    pub fn reference(
        cpu: usize,
        direction: Direction,
        mergeable: bool,
        sockets: &[PathBuf],
    ) -> Result<Self> {
        let program = std::env::current_exe()?.display().to_string();
        let mut args = vec![SERVE_REFERENCE.to_string(), cpu.to_string()];
        args.extend([direction.backend_mode().into(), mergeable.to_string()]);
        args.extend(sockets.iter().map(|s| s.display().to_string()));
        Self::start(&program, &args, sockets)
    }

    fn start(program: &str, args: &[String], sockets: &[PathBuf]) -> Result<Self> {
        let command_line = format!("{program} {}", args.join(" "));
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {command_line}"))?;
        let stdin = child.stdin.take().context("no standard input")?;
        let mut this = Server { child, stdin, command_line };
        let child = &mut this.child;
        let listening = || sockets.iter().all(|s| s.exists());
        let mut ended = || !matches!(child.try_wait(), Ok(None));
        let up = wait_until(LIMIT, || ended() || listening()) && listening();
        ensure!(up, "does not listen: {}", this.command_line);
        // A socket file is there a moment before anybody listens on it.
        std::thread::sleep(Duration::from_millis(20));
        Ok(this)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Have the reference backend make packets of another size.
    pub fn set_size(&mut self, size: usize) -> Result<()> {
        writeln!(self.stdin, "{size}").context("the reference backend is gone")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serve the reference backend until standard input ends; each line of it is a size.
#[cfg(feature = "reference")]
pub fn serve_reference(args: &[String]) -> Result<()> {
    use ringbridge::reference::{Reference, ReferenceConfig, ReferenceMode};
    let [cpu, mode, mergeable, sockets @ ..] = args else {
        anyhow::bail!("usage: {SERVE_REFERENCE} CPU MODE MERGEABLE SOCKET…");
    };
    let mode = match mode.as_str() {
        "txonly" => ReferenceMode::TxOnly,
        "rxonly" => ReferenceMode::RxOnly,
        _ => ReferenceMode::Io,
    };
    let backend = Reference::start(&ReferenceConfig {
        sockets: sockets.iter().map(PathBuf::from).collect(),
        mode,
        size: 64,
        mergeable: mergeable.parse()?,
        cpu: Some(cpu.parse()?),
    })?;
    for line in std::io::stdin().lines() {
        backend.set_size(line?.trim().parse()?);
    }
    Ok(())
}

#[cfg(not(feature = "reference"))]
pub fn serve_reference(_args: &[String]) -> Result<()> {
    anyhow::bail!("built without the feature `reference`")
}
