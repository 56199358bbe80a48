//! The program `ringbridge`: command line in, exit status out.

use ringbridge::cli::{self, Command, Stop};
use ringbridge::plot::csv as plot;
use ringbridge::{ctl, guest, run, sweep, sys};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use tracing::Level;

/// The command line is wrong.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let invocation = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(Stop::Text(text)) => {
            sys::print(&text);
            return ExitCode::SUCCESS;
        }
        Err(Stop::Usage(error)) => {
            eprintln!("error: {error}");
            return USAGE.into();
        }
    };
    log_to_stderr(invocation.log);
    match dispatch(invocation.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Stdout is for tables and JSON.
fn log_to_stderr(level: Level) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}

/// Do it.
fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(config) => Ok(run::run(&config)?),
        Command::Say(text) => {
            sys::print(&text);
            Ok(())
        }
        Command::Ctl(args) => Ok(ctl::run(&args)?),
        Command::Guest(args) => Ok(guest::run(&args)?),
        Command::Sweep(args) => Ok(sweep::run(&args)?),
        Command::Plot(args) => Ok(plot::run(&args)?),
    }
}
