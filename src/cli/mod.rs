//! The command line: flags in, checked configuration out.
//!
//! Promises: [`parse`] either yields a [`Command`] whose configuration is valid, or a text to
//! print (help, version), or one line that says what is wrong and what would be right. Looks at
//! the machine only to check (CPUs, files, accounts); opens, creates and prints nothing. Called
//! by `main` alone.

#![forbid(unsafe_code)]

mod ctl;
pub mod file;
mod guest;
mod plot;
mod run;
mod sweep;
mod values;

use crate::config::files::FileError;
use crate::config::{RunConfig, SweepArgs};
use crate::ctl::CtlArgs;
use crate::forward::MAX_PORTS;
use crate::frontend::OptionsError;
use crate::guest::GuestArgs;
use crate::plot::csv::PlotArgs;
use clap::error::ErrorKind;
use clap::{ArgAction, Parser, Subcommand};
use std::ffi::OsString;
use tracing::Level;

const EXAMPLES: &str = "\
Examples:
  ringbridge sweep --quick
      Measure this machine with the built-in guest: no root, no VM, 20 seconds
  ringbridge run -p vhost:/tmp/vm0.sock -p vhost:/tmp/vm1.sock
      Connect two virtual machines
  ringbridge run -p vhost:/tmp/vm0.sock --forward txonly --size 64
      Send to a virtual machine as fast as it takes
  ringbridge ctl port add vhost:/tmp/vm2.sock
      Give a bridge that runs another port
  ringbridge guest --socket /tmp/vm0.sock --mode rxonly --duration 5s
      Be the virtual machine

Exit status: 0 after a clean end, 1 after a failure, 2 if the command line is wrong.";

/// A vhost-user network backend: virtual machines plug in over unix sockets, and packets move
/// between them in bursts.
#[derive(Debug, Parser)]
#[command(name = "ringbridge", version, after_help = EXAMPLES)]
// Without anything it is as wrong as with half: one line, not the help.
#[command(arg_required_else_help = false)]
struct Cli {
    /// Log only warnings and errors
    #[arg(short, long, global = true, display_order = 900, conflicts_with = "verbose")]
    quiet: bool,
    /// Log more; twice: everything
    #[arg(short, long, global = true, display_order = 901, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Flags,
}

#[derive(Debug, Subcommand)]
enum Flags {
    Run(run::RunArgs),
    Check(run::CheckArgs),
    Ctl(ctl::CtlFlags),
    Guest(guest::GuestFlags),
    Sweep(sweep::SweepFlags),
    Plot(plot::PlotFlags),
}

/// What to do, checked.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Bridge ports.
    Run(RunConfig),
    /// Say this.
    Say(String),
    /// Ask a bridge that runs.
    Ctl(CtlArgs),
    /// Be a guest.
    Guest(GuestArgs),
    /// Measure.
    Sweep(SweepArgs),
    /// Draw.
    Plot(PlotArgs),
}

/// A command line that is right.
#[derive(Debug, PartialEq)]
pub struct Invocation {
    /// What to do.
    pub command: Command,
    /// What to log.
    pub log: Level,
}

/// What ends the program before it begins.
#[derive(Debug)]
pub enum Stop {
    /// Help or version was asked for: this is it, for stdout; exit status 0.
    Text(String),
    /// The command line is wrong; exit status 2.
    Usage(UsageError),
}

/// What is wrong with a command line and what would be right, in one line.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// A flag or its value, as `clap` and the parsers in this module's files say it.
    #[error("{0}")]
    Flag(String),
    /// A bridge of nothing.
    #[error("no port is given; give at least one, like -p vhost:/tmp/vm0.sock; see --help")]
    NoPort,
    /// Other modes make no frames.
    #[error(
        "--size is the size of the frames that --forward txonly makes; give both or leave it out"
    )]
    SizeOfNothing,
    /// Other modes learn nothing.
    #[error("--aging is for --forward bridge; give both or leave it out")]
    AgingOfNothing,
    /// Nor do they know of VLANs.
    #[error("{0} has vlan=, trunk=, isolated, macs= or mac=, which are for --forward bridge")]
    NoBridge(String),
    /// A transmit queue has one worker.
    #[error("--forward bridge has one worker; leave out --workers, and give one CPU at most")]
    BridgeWorkers,
    /// More than a bridge has numbers for.
    #[error("{0} ports; a bridge has at most {MAX_PORTS}")]
    TooManyPorts(usize),
    /// They cannot be paired.
    #[error("{0} ports cannot be paired; give an even number of ports, or one alone")]
    OddPorts(usize),
    /// Not a CPU of this process.
    #[error("CPU {cpu} does not exist; there are {there}")]
    NoCpu {
        /// As asked.
        cpu: usize,
        /// Those there are.
        there: String,
    },
    /// Two threads on one CPU.
    #[error("CPU {0} is given twice; every thread needs one of its own")]
    DuplicateCpu(usize),
    /// Nobody to pin there.
    #[error("{cpus} CPUs for {workers} workers; give at most one a worker, or more --workers")]
    MoreCpus {
        /// CPUs given.
        cpus: usize,
        /// Workers given.
        workers: usize,
    },
    /// The affinity mask could not be read.
    #[error("cannot tell which CPUs there are: {0}; leave out --cpus and --cpu")]
    Cpus(std::io::Error),
    /// A sweep has two threads.
    #[error("{0} CPUs for a sweep; it needs two: backend,guest")]
    SweepCpus(usize),
    /// A file or a socket.
    #[error(transparent)]
    File(#[from] FileError),
    /// A configuration file.
    #[error(transparent)]
    ConfigFile(#[from] file::ConfigFileError),
    /// A guest drives one port or two.
    #[error("{0} sockets; a guest drives one or two")]
    Sockets(usize),
    /// A guest that cannot be.
    #[error(transparent)]
    Guest(#[from] OptionsError),
    /// The same size would be measured twice.
    #[error("size {0} is given twice; every size is measured once")]
    DuplicateSize(usize),
}

/// Read and check a command line; the first of `args` is the program's name.
///
/// # Errors
/// What to print instead of doing something.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Stop> {
    let cli = Cli::try_parse_from(args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Stop::Text(error.render().to_string())
        }
        kind => Stop::Usage(UsageError::Flag(one_line(&error.render().to_string(), kind))),
    })?;
    let log = match (cli.quiet, cli.verbose) {
        (true, _) => Level::WARN,
        // A sweep's frontends are its own.
        (false, 0) if matches!(cli.command, Flags::Sweep(_)) => Level::WARN,
        (false, 0) => Level::INFO,
        (false, 1) => Level::DEBUG,
        (false, _) => Level::TRACE,
    };
    let command = match cli.command {
        Flags::Run(args) => args.check().map(Command::Run),
        Flags::Check(args) => args.check().map(Command::Say),
        Flags::Ctl(flags) => Ok(Command::Ctl(flags.check())),
        Flags::Guest(flags) => flags.check().map(Command::Guest),
        Flags::Sweep(flags) => flags.check().map(Command::Sweep),
        Flags::Plot(flags) => flags.check().map(Command::Plot),
    };
    Ok(Invocation { command: command.map_err(Stop::Usage)?, log })
}

/// The message of `clap` without its usage and its layout.
fn one_line(rendered: &str, kind: ErrorKind) -> String {
    let lines = rendered.lines().map(str::trim);
    let message = lines.take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more"));
    let mut out = String::new();
    for line in message.filter(|line| !line.is_empty()) {
        if let Some(tip) = line.strip_prefix("tip: ") {
            out.push_str("; ");
            out.push_str(tip);
        } else {
            out.push_str(if out.is_empty() { "" } else { " " });
            out.push_str(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    // A value that is refused is refused with what would be right.
    if !matches!(kind, ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        out.push_str("; see --help");
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The outcome of a command line given as one string.
    pub fn outcome(line: &str) -> Result<Invocation, Stop> {
        parse(std::iter::once("ringbridge").chain(line.split_whitespace()).map(OsString::from))
    }

    /// The one line that answers a wrong command line.
    pub fn complaint(line: &str) -> String {
        match outcome(line) {
            Err(Stop::Usage(error)) => {
                let text = error.to_string();
                assert!(!text.contains('\n'), "{text}");
                text
            }
            other => panic!("{line}: {other:?}"),
        }
    }

    fn text(line: &str) -> String {
        match outcome(line) {
            Err(Stop::Text(text)) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn flags_are_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn help_and_version_are_text() {
        assert_eq!(text("--version"), concat!("ringbridge ", env!("CARGO_PKG_VERSION"), "\n"));
        for word in ["run", "ctl", "guest", "sweep", "plot", "Examples:", "--quiet", "--verbose"] {
            assert!(text("--help").contains(word), "{word}");
        }
        for word in ["vhost:PATH", "pcap:IN", "null", "owner=", "macswap", "--stats-interval"] {
            assert!(text("run --help").contains(word), "{word}");
        }
        for word in ["--socket", "verify", "--event-idx", "--header"] {
            assert!(text("guest --help").contains(word), "{word}");
        }
        for word in ["--sizes", "reference", "--svg", "64,128,256,512,1024,1280,1518"] {
            assert!(text("sweep --help").contains(word), "{word}");
        }
    }

    #[test]
    fn wrong_flags_get_one_line() {
        let cases = [
            (
                "",
                "'ringbridge' requires a subcommand but one was not provided \
                 [subcommands: run, check, ctl, guest, sweep, plot, help]; see --help",
            ),
            (
                "swep",
                "unrecognized subcommand 'swep'; a similar subcommand exists: 'sweep'; see --help",
            ),
            ("run", "no port is given; give at least one, like -p vhost:/tmp/vm0.sock; see --help"),
            (
                "run -p null --brust 3",
                "unexpected argument '--brust' found; a similar argument exists: '--burst'; \
                 see --help",
            ),
            (
                "run -p null --poll sometimes",
                "invalid value 'sometimes' for '--poll <POLL>' [possible values: busy, adaptive]",
            ),
            (
                "run -p null -q -v",
                "the argument '--quiet' cannot be used with '--verbose...'; see --help",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(complaint(line), expected, "{line}");
        }
    }

    #[test]
    fn verbosity_is_a_log_level() {
        let levels = [
            ("-q run -p null", Level::WARN),
            ("run -p null", Level::INFO),
            ("run -p null -v", Level::DEBUG),
            ("-vv run -p null", Level::TRACE),
        ];
        for (line, level) in levels {
            assert_eq!(outcome(line).unwrap().log, level, "{line}");
        }
    }
}
