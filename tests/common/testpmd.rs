//! `dpdk-testpmd` as a peer: its `net_vhost` is a backend, its `net_virtio_user` a guest.
//!
//! Promises: a [`Testpmd`] is past its start-up, answers commands, and is killed by its own
//! process id when it is dropped; each command has a limit; an error carries what the program
//! printed last.

use super::wait_until;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The program's name.
pub const TOOL: &str = "dpdk-testpmd";
/// Longest wait for the prompt, and for an answer.
const LIMIT: Duration = Duration::from_secs(20);
const PROMPT: &str = "testpmd> ";
/// Stands at the end of the output of a process that is gone.
const ENDED: &str = "\n(end)";

/// A command line of testpmd.
#[derive(Debug, Clone)]
pub struct Args {
    cpu: usize,
    huge_mib: Option<usize>,
    vdevs: Vec<String>,
    rest: Vec<String>,
}

impl Args {
    /// A backend: a `net_vhost` port on each socket. `options` are further devargs, such as
    /// `queues=1`.
    pub fn backend(sockets: &[impl AsRef<Path>], options: &str) -> Self {
        Self::new("net_vhost", "iface", sockets, options)
    }

    /// A guest: a `net_virtio_user` port on each socket. `options` are further devargs, such
    /// as `queues=1,queue_size=256,mrg_rxbuf=1`.
    pub fn guest(sockets: &[impl AsRef<Path>], options: &str) -> Self {
        Self::new("net_virtio_user", "path", sockets, options)
    }

    fn new(driver: &str, key: &str, sockets: &[impl AsRef<Path>], options: &str) -> Self {
        let vdev = |(i, socket): (usize, _)| {
            format!(
                "--vdev={driver}{i},{key}={},{options}",
                AsRef::<Path>::as_ref(socket).display()
            )
        };
        let vdevs = sockets.iter().enumerate().map(vdev).collect();
        Args { cpu: 0, huge_mib: None, vdevs, rest: Vec::new() }
    }

    /// Run both threads, the one that forwards and the one that reads commands, on `cpu`.
    pub fn cpu(mut self, cpu: usize) -> Self {
        self.cpu = cpu;
        self
    }

    /// Take memory from hugepages (without, ordinary pages are used).
    pub fn hugepages(mut self, mib: usize) -> Self {
        self.huge_mib = Some(mib);
        self
    }

    /// More arguments for testpmd itself, after the `--`.
    pub fn with<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.rest.extend(args.into_iter().map(Into::into));
        self
    }

    /// Forwarding mode; forwards from the start.
    pub fn forward(self, mode: &str) -> Self {
        self.with([format!("--forward-mode={mode}"), "--auto-start".into()])
    }

    /// The words of the command line, without the program's name.
    pub fn words(&self) -> Vec<String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let cpu = self.cpu;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut words = vec![
            format!("--lcores=0@{cpu},1@{cpu}"),
            "--no-pci".into(),
            format!("--file-prefix=ringbridge-{}-{number}", std::process::id()),
        ];
        match self.huge_mib {
            // In memory: needs no mounted hugetlbfs, leaves no file there.
            Some(mib) => {
                let mib = mib.to_string();
                let huge = ["--in-memory", "--single-file-segments", "-m", &mib];
                words.extend(huge.map(String::from));
            }
            None => words.extend(["--no-huge", "-m", "128"].map(String::from)),
        }
        words.extend(self.vdevs.iter().cloned());
        // The default number of packet buffers does not fit into this much memory.
        let fixed = ["--", "-i", "--nb-cores=1", "--total-num-mbufs=16384"];
        words.extend(fixed.map(String::from));
        words.extend(self.rest.iter().cloned());
        words
    }
}

/// `show port stats`: one port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortStats {
    pub rx_packets: u64,
    pub rx_missed: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_errors: u64,
    pub tx_bytes: u64,
    /// Packets a second since the last time they were shown.
    pub rx_pps: u64,
    pub tx_pps: u64,
}

/// What `stop` prints of one port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub rx_packets: u64,
    pub rx_dropped: u64,
    pub tx_packets: u64,
    pub tx_dropped: u64,
}

/// What it has printed, and word that there is more of it. Waiting for it costs nothing: the
/// CPUs belong to what is measured.
#[derive(Default)]
struct Output {
    text: Mutex<String>,
    more: Condvar,
}

/// A running testpmd.
pub struct Testpmd {
    child: Child,
    stdin: ChildStdin,
    output: Arc<Output>,
    command_line: String,
    /// Reads what it prints; ends with it.
    reader: Option<JoinHandle<()>>,
}

impl Testpmd {
    /// Start it and wait for its prompt. With `auto-start` it forwards by then.
    pub fn start(args: &Args) -> io::Result<Self> {
        let words = args.words();
        let (mut reader, writer) = io::pipe()?;
        // stdbuf replaces itself by testpmd, whose process id is the child's.
        let child = Command::new("stdbuf")
            .args(["-oL", TOOL])
            .args(&words)
            .stdin(Stdio::piped())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn();
        let mut child =
            child.map_err(|e| io::Error::new(e.kind(), format!("stdbuf {TOOL}: {e}")))?;
        let stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = Arc::new(Output::default());
        let sink = output.clone();
        // Ends with the child: nobody else holds the other end of the pipe.
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..n]);
                sink.text.lock().unwrap().push_str(&text);
                sink.more.notify_all();
            }
            sink.text.lock().unwrap().push_str(ENDED);
            sink.more.notify_all();
        });
        let command_line = format!("{TOOL} {}", words.join(" "));
        let mut this = Testpmd { child, stdin, output, command_line, reader: Some(reader) };
        // A port that cannot be made is no reason for testpmd to end.
        if this.await_prompt(0)?.contains("probe failed") {
            return Err(this.failed("a port could not be made"));
        }
        Ok(this)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The command line as one would type it.
    pub fn command_line(&self) -> &str {
        &self.command_line
    }

    /// Everything printed so far.
    pub fn output(&self) -> String {
        self.output.text.lock().unwrap().clone()
    }

    /// Type a command, wait for the next prompt. Returns what was printed until then.
    pub fn command(&mut self, command: &str) -> io::Result<String> {
        let from = self.output.text.lock().unwrap().len();
        writeln!(self.stdin, "{command}").map_err(|e| self.failed(&e.to_string()))?;
        self.await_prompt(from)
    }

    fn await_prompt(&mut self, from: usize) -> io::Result<String> {
        let waiting = |text: &mut String| !text[from..].contains(PROMPT) && !text.ends_with(ENDED);
        let text = self.output.text.lock().unwrap();
        let (text, timeout) = self.output.more.wait_timeout_while(text, LIMIT, waiting).unwrap();
        let (printed, ended) = (text[from..].to_string(), text.ends_with(ENDED));
        drop(text);
        match (ended, timeout.timed_out()) {
            (true, _) => Err(self.failed("it ended")),
            (_, true) => Err(self.failed("no prompt")),
            _ => Ok(printed),
        }
    }

    fn failed(&self, what: &str) -> io::Error {
        let output = self.output();
        let lines: Vec<_> = output.lines().collect();
        let tail = lines[lines.len().saturating_sub(20)..].join("\n");
        io::Error::other(format!("{}: {what}; its last words:\n{tail}", self.command_line))
    }

    /// `show port stats all`, by port.
    pub fn stats(&mut self) -> io::Result<Vec<PortStats>> {
        let text = self.command("show port stats all")?;
        let ports = sections(&text, "NIC statistics for port");
        Ok(ports.iter().map(stats_of).collect())
    }

    /// Stop forwarding. Returns the totals since `start`, by port.
    pub fn stop(&mut self) -> io::Result<Vec<Totals>> {
        let text = self.command("stop")?;
        let ports = sections(&text, "Forward statistics for port");
        Ok(ports.iter().map(totals_of).collect())
    }

    /// Wait until the link of port `port` is up: the other side has set up its rings.
    pub fn wait_link_up(&mut self, port: usize) -> io::Result<()> {
        let mut result = Ok(());
        let up = wait_until(LIMIT, || match self.command(&format!("show port info {port}")) {
            Ok(text) => text.contains("Link status: up"),
            Err(error) => {
                result = Err(error);
                true
            }
        });
        result.and(if up { Ok(()) } else { Err(self.failed("the link stays down")) })
    }

    /// Leave in order. Without it the process is killed.
    pub fn quit(mut self) -> io::Result<()> {
        writeln!(self.stdin, "quit")?;
        let child = &mut self.child;
        let ended = wait_until(LIMIT, || !matches!(child.try_wait(), Ok(None)));
        if ended { Ok(()) } else { Err(self.failed("does not quit")) }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Tests that count their fds may come next.
        let _ = self.reader.take().map(JoinHandle::join);
        let prefix = self.command_line.split(' ').find_map(|w| w.strip_prefix("--file-prefix="));
        if let Some(prefix) = prefix {
            // Its runtime folder, which testpmd leaves behind even if it ends in order.
            let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            for root in own.into_iter().chain(["/var/run".into()]) {
                let _ = std::fs::remove_dir_all(root.join("dpdk").join(prefix));
            }
        }
    }
}

type Section = BTreeMap<String, u64>;

/// The numbers under each heading that names a port, `name: number` each.
fn sections(text: &str, heading: &str) -> Vec<Section> {
    let mut ports = Vec::<Section>::new();
    let mut inside = false;
    for line in text.lines() {
        if line.contains(heading) {
            ports.push(Section::new());
            inside = true;
        } else if line.trim_start().starts_with(['#', '-', '+']) {
            inside = false;
        } else if inside && let Some(section) = ports.last_mut() {
            section.extend(numbers(line));
        }
    }
    ports
}

fn numbers(line: &str) -> Vec<(String, u64)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let pair = |pair: &[&str]| {
        let name = pair[0].strip_suffix(':')?;
        Some((name.to_string(), pair[1].parse().ok()?))
    };
    words.windows(2).filter_map(pair).collect()
}

fn number(section: &Section, name: &str) -> u64 {
    section.get(name).copied().unwrap_or(0)
}

fn stats_of(section: &Section) -> PortStats {
    PortStats {
        rx_packets: number(section, "RX-packets"),
        rx_missed: number(section, "RX-missed"),
        rx_bytes: number(section, "RX-bytes"),
        tx_packets: number(section, "TX-packets"),
        tx_errors: number(section, "TX-errors"),
        tx_bytes: number(section, "TX-bytes"),
        rx_pps: number(section, "Rx-pps"),
        tx_pps: number(section, "Tx-pps"),
    }
}

fn totals_of(section: &Section) -> Totals {
    Totals {
        rx_packets: number(section, "RX-packets"),
        rx_dropped: number(section, "RX-dropped"),
        tx_packets: number(section, "TX-packets"),
        tx_dropped: number(section, "TX-dropped"),
    }
}
