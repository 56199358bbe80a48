//! A guest in QEMU, started by `qemu/guest`: its shell, its QMP monitor, its memory.
//!
//! Promises: every wait has a limit; QEMU is killed by its own process id when the value is
//! dropped, and its end reported with what the guest last said.

use crate::common::{TempDir, required, wait_until};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Longest wait for a guest without KVM on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Is there all that guests need? If not: say so, and fail if `RINGBRIDGE_REQUIRE=all`.
pub fn require_guests() -> bool {
    static MISSING: LazyLock<Option<String>> = LazyLock::new(|| {
        let built = Command::new(script("build-image")).output().expect("bash");
        (!built.status.success()).then(|| String::from_utf8_lossy(&built.stderr).into_owned())
    });
    required(MISSING.is_none(), MISSING.as_deref().unwrap_or_default())
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("qemu").join(name)
}

/// A running guest with a shell.
pub struct Vm {
    qemu: Child,
    console: Console,
    monitor: Monitor,
    /// What QEMU itself has said.
    stderr: PathBuf,
}

impl Vm {
    /// Boot a guest; `args` as of `qemu/guest`. Its files are called `name` in `dir`.
    pub fn boot(dir: &TempDir, name: &str, args: &[&str]) -> Self {
        let mut vm = Vm::start(dir, name, args);
        vm.wait_up();
        vm
    }

    /// Start QEMU; its guest may be booting, or wait for its migration.
    pub fn start(dir: &TempDir, name: &str, args: &[&str]) -> Self {
        let place = |what: &str| dir.path(&format!("{name}.{what}"));
        let (serial, monitor, log) = (place("serial"), place("monitor"), place("log"));
        let stderr = place("stderr");
        let mut command = Command::new(script("guest"));
        command.arg("--serial").arg(&serial).arg("--monitor").arg(&monitor).arg("--log").arg(&log);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        let mut qemu = command.stderr(File::create(&stderr).unwrap()).spawn().unwrap();
        let mut connect = |path: &Path| {
            let mut stream = None;
            let up = wait_until(LIMIT, || {
                let ended = qemu.try_wait().unwrap();
                let said = fs::read_to_string(&stderr).unwrap();
                assert!(ended.is_none(), "QEMU has ended: {said}");
                stream = UnixStream::connect(path).ok();
                stream.is_some()
            });
            assert!(up, "nobody listens on {}", path.display());
            stream.unwrap()
        };
        let console = Console::new(connect(&serial), log);
        let monitor = Monitor::new(connect(&monitor));
        Vm { qemu, console, monitor, stderr }
    }

    /// Wait until the guest has booted, or booted again.
    pub fn wait_up(&mut self) {
        self.console.wait_for("guest: up");
        // A shell that neither prompts nor edits its lines.
        self.console.send("stty -echo; sh 2>&1 | cat");
        self.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    }

    /// Run commands in the guest, which succeed; what they print.
    pub fn sh(&mut self, commands: &str) -> String {
        let (status, said) = self.console.run(commands);
        assert_eq!(status, 0, "{commands}: {said}");
        said
    }

    /// Start something that goes on by itself; the shell has nothing to say until it ends.
    pub fn begin(&mut self, commands: &str) {
        self.console.send(commands);
    }

    /// Wait for the guest to print this; everything up to there.
    pub fn wait_for(&mut self, text: &str) -> String {
        self.console.wait_for(text)
    }

    /// A number in a file of the guest.
    pub fn number(&mut self, path: &str) -> u64 {
        self.sh(&format!("cat {path}")).trim().parse().unwrap()
    }

    /// Run a QMP command; its `return`.
    pub fn qmp(&mut self, command: &str, arguments: &Value) -> Value {
        self.monitor.run(command, arguments)
    }

    /// Wait for an event of QEMU's.
    pub fn wait_event(&mut self, name: &str) {
        self.monitor.wait_event(name);
    }

    /// The kernel found nothing wrong with virtio.
    pub fn assert_no_virtio_error(&mut self) {
        let wrong = "virtio.*(error|fail|warn|not a head|broken|timeout)|NETDEV WATCHDOG|BUG:|Oops";
        let said = self.sh(&format!("dmesg | grep -E -i '{wrong}' || true"));
        assert_eq!(said, "", "the guest's kernel");
    }

    /// The guest's memory, the file behind it.
    pub fn memory(&self) -> File {
        let fds = format!("/proc/{}/fd", self.qemu.id());
        let is_memory = |fd: &fs::DirEntry| {
            fs::read_link(fd.path())
                .is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:memory-backend-memfd"))
        };
        let fd = fs::read_dir(fds).unwrap().flatten().find(is_memory).expect("a memfd");
        File::open(fd.path()).unwrap()
    }

    /// End QEMU as a crash would.
    pub fn kill(mut self) {
        self.qemu.kill().unwrap();
        self.qemu.wait().unwrap();
    }

    /// Wait until QEMU has ended by itself.
    pub fn wait_end(mut self) {
        assert!(wait_until(LIMIT, || self.qemu.try_wait().unwrap().is_some()), "QEMU goes on");
    }

    /// What QEMU itself said.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("QEMU: {}", self.stderr());
            let said = fs::read(&self.console.log).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let lines: Vec<_> = said.lines().collect();
            eprintln!("guest: {}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// The serial line.
struct Console {
    stream: UnixStream,
    /// What has come and was not looked at.
    heard: Vec<u8>,
    commands: usize,
    log: PathBuf,
}

impl Console {
    fn new(stream: UnixStream, log: PathBuf) -> Self {
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Console { stream, heard: Vec::new(), commands: 0, log }
    }

    fn send(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Everything up to and with the line in which `text` occurs.
    fn wait_for(&mut self, text: &str) -> String {
        let end = Instant::now() + LIMIT;
        let mut bytes = [0; 4096];
        loop {
            let heard = String::from_utf8_lossy(&self.heard);
            if let Some(line) = heard.find(text)
                && let Some(len) = heard[line..].find('\n')
            {
                let said = heard[..=line + len].to_string();
                let rest = heard[line + len + 1..].as_bytes().to_vec();
                self.heard = rest;
                return said;
            }
            assert!(Instant::now() < end, "the guest does not say {text:?}, but: {heard}");
            match self.stream.read(&mut bytes) {
                Ok(0) => panic!("QEMU has ended; the guest said {heard}"),
                Ok(n) => self.heard.extend_from_slice(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                Err(error) => panic!("the serial line: {error}"),
            }
        }
    }

    fn run(&mut self, commands: &str) -> (i32, String) {
        self.commands += 1;
        let mark = format!("@@{}:", self.commands);
        self.send(&format!("{{ {commands}\n}} </dev/null 2>&1; echo \"{mark}$?\""));
        let said = self.wait_for(&mark);
        let (said, status) = said.rsplit_once(&mark).unwrap();
        (status.trim().parse().unwrap(), said.replace('\r', ""))
    }
}

/// QEMU's QMP.
struct Monitor {
    stream: BufReader<UnixStream>,
    events: VecDeque<String>,
}

impl Monitor {
    fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut monitor = Monitor { stream: BufReader::new(stream), events: VecDeque::new() };
        assert!(monitor.read()["QMP"].is_object());
        monitor.run("qmp_capabilities", &json!({}));
        monitor
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("QMP");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("QMP {line:?}: {error}"))
    }

    fn run(&mut self, command: &str, arguments: &Value) -> Value {
        let line = json!({ "execute": command, "arguments": arguments }).to_string();
        self.stream.get_mut().write_all(line.as_bytes()).unwrap();
        loop {
            let mut answer = self.read();
            if let Some(event) = answer["event"].as_str() {
                self.events.push_back(event.into());
            } else {
                assert!(answer["error"].is_null(), "{command}: {answer}");
                return answer["return"].take();
            }
        }
    }

    fn wait_event(&mut self, name: &str) {
        while let Some(event) = self.events.pop_front() {
            if event == name {
                return;
            }
        }
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            if self.read()["event"] == name {
                return;
            }
        }
        panic!("QEMU does not report {name}");
    }
}
