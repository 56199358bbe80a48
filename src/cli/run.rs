//! `ringbridge run`: its flags and what is checked across them.
//!
//! Promises: see the module above; files are looked at, none is created.

#![forbid(unsafe_code)]

use super::{UsageError, file, values};
use crate::config::files::{FileError, Files};
use crate::config::{BridgeKeys, ForwardMode, PollMode, PortSpec, RunConfig, files, port};
use crate::forward::MAX_PORTS;
use crate::packet::BURST;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// As IEEE 802.1Q recommends.
const AGING: Duration = Duration::from_mins(5);

/// Bridge ports until stopped
///
/// Runs until SIGINT, SIGTERM or --duration, then prints the totals.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Take all options from this file instead; `ringbridge check --example` shows one
    #[arg(short, long, value_name = "FILE", conflicts_with = "RunFlags")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: RunFlags,
}

/// Check a configuration file, and run nothing
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// The file
    #[arg(value_name = "FILE", required_unless_present = "example")]
    file: Option<PathBuf>,
    /// Print a file with every key instead
    #[arg(long, conflicts_with = "file")]
    example: bool,
}

/// What both have in common: the options, as flags or as keys of a file.
#[derive(Debug, clap::Args)]
pub struct RunFlags {
    #[arg(short, long = "port", value_name = "PORT", value_parser = port::parse, help = port::HELP)]
    ports: Vec<PortSpec>,
    /// How packets go from port to port
    #[arg(long, value_name = "MODE", value_enum, default_value = "io")]
    forward: ForwardMode,
    /// How long bridge knows an address that is silent; by default 5m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    aging: Option<Duration>,
    /// Frame bytes, without FCS, that txonly sends; by default 64
    #[arg(long, value_name = "BYTES", value_parser = values::size)]
    size: Option<usize>,
    /// Worker threads; by default as many as --cpus, or one
    #[arg(long, value_name = "N", value_parser = workers)]
    workers: Option<usize>,
    /// CPUs to pin the workers to, one each, like 0,2
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = values::cpu)]
    cpus: Vec<usize>,
    /// Most packets that are moved at once: 1 to 64
    #[arg(long, value_name = "N", default_value = "32", value_parser = burst)]
    burst: usize,
    /// How workers wait for packets
    #[arg(long, value_enum, default_value = "adaptive")]
    poll: PollMode,
    /// Stop after this long, like 5s, 500ms or 1m
    #[arg(long, value_parser = values::duration)]
    duration: Option<Duration>,
    /// Print a table this often, like 1s
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    stats_interval: Option<Duration>,
    /// Print one JSON object at the end and no tables
    #[arg(long)]
    json: bool,
    /// The socket for `ringbridge ctl`; by default in the folder ringbridge of the
    /// user's runtime directory
    #[arg(long, value_name = "PATH", value_parser = values::socket_path)]
    control: Option<PathBuf>,
}

fn workers(text: &str) -> Result<usize, values::ValueError> {
    values::number(text, 1..=128).map(|n| n as usize)
}

fn burst(text: &str) -> Result<usize, values::ValueError> {
    values::number(text, 1..=BURST as u64).map(|n| n as usize)
}

impl ValueEnum for ForwardMode {
    fn value_variants<'a>() -> &'a [Self] {
        use ForwardMode::{Bridge, IcmpEcho, Io, Mac, MacSwap, RxOnly, TxOnly};
        &[Io, Mac, MacSwap, RxOnly, TxOnly, IcmpEcho, Bridge]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            ForwardMode::Io => ("io", "To the paired port, untouched"),
            ForwardMode::Mac => (
                "mac",
                "To the paired port, from its own MAC address to 02:00:00:00:00:0X, X the port",
            ),
            ForwardMode::MacSwap => ("macswap", "To the paired port, MAC addresses swapped"),
            ForwardMode::RxOnly => ("rxonly", "Receive and count"),
            ForwardMode::TxOnly => ("txonly", "Send frames of --size bytes to every port"),
            ForwardMode::IcmpEcho => ("icmpecho", "Answer ARP requests and pings"),
            ForwardMode::Bridge => ("bridge", "To where the address was seen last, else to all"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for PollMode {
    fn value_variants<'a>() -> &'a [Self] {
        &[PollMode::Busy, PollMode::Adaptive]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            PollMode::Busy => ("busy", "Never sleep"),
            PollMode::Adaptive => ("adaptive", "Sleep when there is nothing to do"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl RunArgs {
    /// Check what clap cannot.
    pub fn check(self) -> Result<RunConfig, UsageError> {
        match self.config {
            Some(path) => Ok(file::read(&path)?),
            None => self.flags.check(),
        }
    }
}

impl CheckArgs {
    /// What there is to say.
    pub fn check(self) -> Result<String, UsageError> {
        let Some(path) = self.file else { return Ok(file::EXAMPLE.into()) };
        let config = file::read(&path)?;
        let forward = config.forward.to_possible_value();
        let forward = forward.as_ref().map_or("", PossibleValue::get_name);
        let (ports, workers) = (config.ports.len(), config.workers.len());
        let path = path.display();
        Ok(format!("{path} is right: {ports} port(s), {forward}, {workers} worker(s)\n"))
    }
}

impl RunFlags {
    /// Check what clap cannot.
    pub fn check(self) -> Result<RunConfig, UsageError> {
        if self.ports.is_empty() {
            return Err(UsageError::NoPort);
        }
        if self.size.is_some() && self.forward != ForwardMode::TxOnly {
            return Err(UsageError::SizeOfNothing);
        }
        let bridge = self.forward == ForwardMode::Bridge;
        if self.aging.is_some() && !bridge {
            return Err(UsageError::AgingOfNothing);
        }
        if let Some(port) = self.ports.iter().find(|p| !bridge && p.bridge != BridgeKeys::default())
        {
            return Err(UsageError::NoBridge(port.name.clone()));
        }
        if bridge && self.workers.unwrap_or(self.cpus.len()) > 1 {
            return Err(UsageError::BridgeWorkers);
        }
        if self.ports.len() > MAX_PORTS {
            return Err(UsageError::TooManyPorts(self.ports.len()));
        }
        check_pairs(&self.ports, self.forward)?;
        check_files(&self.ports, self.control.as_deref())?;
        if !self.cpus.is_empty() {
            values::check_cpus(&self.cpus, &values::available_cpus()?)?;
        }
        Ok(RunConfig {
            workers: assign(self.workers, &self.cpus)?,
            ports: self.ports,
            forward: self.forward,
            aging: self.aging.unwrap_or(AGING),
            size: self.size.unwrap_or(64),
            burst: self.burst,
            poll: self.poll,
            duration: self.duration,
            stats_interval: self.stats_interval,
            json: self.json,
            control: self.control,
        })
    }
}

/// A CPU for each worker, as far as there are CPUs.
fn assign(workers: Option<usize>, cpus: &[usize]) -> Result<Vec<Option<usize>>, UsageError> {
    let workers = workers.unwrap_or(cpus.len().max(1));
    if cpus.len() > workers {
        return Err(UsageError::MoreCpus { cpus: cpus.len(), workers });
    }
    Ok((0..workers).map(|worker| cpus.get(worker).copied()).collect())
}

fn check_pairs(ports: &[PortSpec], forward: ForwardMode) -> Result<(), UsageError> {
    let paired = matches!(forward, ForwardMode::Io | ForwardMode::Mac | ForwardMode::MacSwap);
    if paired && ports.len() > 1 && ports.len() % 2 == 1 {
        return Err(UsageError::OddPorts(ports.len()));
    }
    Ok(())
}

fn check_files(ports: &[PortSpec], control: Option<&Path>) -> Result<(), FileError> {
    let mut files = Files::default();
    if let Some(control) = control {
        files.write(control)?;
        files::check_creatable(control)?;
    }
    ports.iter().try_for_each(|port| files.take(port))?;
    ports.iter().try_for_each(files::check_files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::cli::tests::{complaint, outcome};

    fn config(line: &str) -> RunConfig {
        match outcome(line).map(|invocation| invocation.command) {
            Ok(Command::Run(config)) => config,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let config = config("run -p vhost:/tmp/vm0.sock");
        assert_eq!(config.ports.len(), 1);
        assert_eq!(config.forward, ForwardMode::Io);
        assert_eq!(config.workers, [None]);
        assert_eq!((config.size, config.burst), (64, 32));
        assert_eq!(config.poll, PollMode::Adaptive);
        assert_eq!((config.duration, config.stats_interval), (None, None));
        assert!(!config.json);
    }

    #[test]
    fn every_flag() {
        let there = values::available_cpus().unwrap();
        let config = config(&format!(
            "run -p null --port null --forward txonly --size 1518 --workers 2 --cpus {} \
             --burst 64 --poll busy --duration 5s --stats-interval 500ms --json",
            there[0]
        ));
        assert_eq!(config.ports.len(), 2);
        assert_eq!(config.forward, ForwardMode::TxOnly);
        assert_eq!(config.workers, [Some(there[0]), None]);
        assert_eq!((config.size, config.burst), (1518, 64));
        assert_eq!(config.poll, PollMode::Busy);
        assert_eq!(config.duration, Some(Duration::from_secs(5)));
        assert_eq!(config.stats_interval, Some(Duration::from_millis(500)));
        assert!(config.json);
    }

    #[test]
    fn modes_have_testpmds_names_where_it_has_them() {
        let names: Vec<String> = ForwardMode::value_variants()
            .iter()
            .map(|mode| mode.to_possible_value().unwrap().get_name().to_owned())
            .collect();
        assert_eq!(names, ["io", "mac", "macswap", "rxonly", "txonly", "icmpecho", "bridge"]);
    }

    #[test]
    fn workers_get_the_cpus_in_order() {
        assert_eq!(assign(None, &[]).unwrap(), [None]);
        assert_eq!(assign(None, &[4, 2]).unwrap(), [Some(4), Some(2)]);
        assert_eq!(assign(Some(3), &[4]).unwrap(), [Some(4), None, None]);
        let more = assign(Some(1), &[4, 2]).unwrap_err().to_string();
        assert_eq!(more, "2 CPUs for 1 workers; give at most one a worker, or more --workers");
    }

    #[test]
    fn odd_ports_are_fine_where_nothing_is_paired() {
        assert_eq!(config("run -p null -p null -p null --forward rxonly").ports.len(), 3);
        assert_eq!(config("run -p null --forward mac").ports.len(), 1);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let size = "invalid value '13' for '--size <BYTES>': a frame has 14 to 65535 bytes";
        let cases = [
            ("-p null --size 13", size),
            ("-p null --size 65536", &size.replace("'13'", "'65536'")),
            ("-p null --burst 65", "invalid value '65' for '--burst <N>': a number from 1 to 64"),
            ("-p null --burst 0", "invalid value '0' for '--burst <N>': a number from 1 to 64"),
            (
                "-p null --workers 0",
                "invalid value '0' for '--workers <N>': a number from 1 to 128",
            ),
            ("-p null --cpus x", "invalid value 'x' for '--cpus <CPUS>': the number of a CPU"),
            (
                "-p null --duration 5h",
                "invalid value '5h' for '--duration <DURATION>': a duration is a number above 0 \
                 with a unit, like 500ms, 5s or 1m; without one, seconds",
            ),
            (
                "-p null --forward flowgen",
                "invalid value 'flowgen' for '--forward <MODE>' \
                 [possible values: io, mac, macswap, rxonly, txonly, icmpecho, bridge]",
            ),
            (
                "-p tun:x",
                "invalid value 'tun:x' for '--port <PORT>': there is no port kind 'tun'; \
                 kinds are vhost:PATH, tap:NAME, af_packet:IF, pcap:FILE and null",
            ),
            (
                "-p null --size 64 --forward io",
                "--size is the size of the frames that --forward txonly makes; \
                 give both or leave it out",
            ),
            (
                "-p null,vlan=10",
                "null has vlan=, trunk=, isolated, macs= or mac=, which are for --forward bridge",
            ),
            ("-p null --aging 5s", "--aging is for --forward bridge; give both or leave it out"),
            (
                "-p null --forward bridge --workers 2",
                "--forward bridge has one worker; leave out --workers, and give one CPU at most",
            ),
            (
                "-p null,vlan=10,trunk=10 --forward bridge",
                "invalid value 'null,vlan=10,trunk=10' for '--port <PORT>': trunk=10: vlan= is for \
                 frames without a tag and trunk= for those with one; give one of them",
            ),
            (
                "-p null -p null -p null",
                "3 ports cannot be paired; give an even number of ports, or one alone",
            ),
            (
                "-p vhost:/tmp/a.sock -p vhost:/tmp/./a.sock,client",
                "/tmp/a.sock is used twice; each use needs a file of its own",
            ),
            (
                "-p pcap:/dev/null,out=/dev/null",
                "/dev/null is used twice; each use needs a file of its own",
            ),
            (
                "-p pcap:/no/such.pcap",
                "cannot read /no/such.pcap: No such file or directory (os error 2); \
                 give a capture file that can be read",
            ),
            (
                "-p pcap:/tmp",
                "cannot read /tmp: is a directory; give a capture file that can be read",
            ),
            (
                "-p vhost:/tmp/a.sock --control /tmp/./a.sock",
                "/tmp/a.sock is used twice; each use needs a file of its own",
            ),
            (
                "-p null --control /no/such/c.sock",
                "cannot create /no/such/c.sock: there is no directory /no/such",
            ),
            (
                "-p vhost:/no/such/a.sock",
                "cannot create /no/such/a.sock: there is no directory /no/such",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(complaint(&format!("run {line}")), expected, "{line}");
        }
        let many = complaint(&format!("run{}", " -p null".repeat(1025)));
        assert_eq!(many, "1025 ports; a bridge has at most 1024");
        let absent = complaint("run -p null --cpus 4000000");
        assert!(absent.starts_with("CPU 4000000 does not exist; there are "), "{absent}");
    }
}
