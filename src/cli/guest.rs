//! `ringbridge guest`: its flags and what is checked across them.
//!
//! Promises: see the module above.

#![forbid(unsafe_code)]

use super::{UsageError, values};
use crate::config::files::{self, FileError};
use crate::frontend::{GuestConfig, GuestOptions, HeaderPlace, Layout, Mode, Table};
use crate::guest::GuestArgs;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use std::path::PathBuf;
use std::time::Duration;

/// Be a guest: a frontend and its virtio-net driver, without a virtual machine
///
/// Connects to a vhost-user backend (ringbridge's or another), moves packets until SIGINT,
/// SIGTERM or --duration, then prints what it has seen.
#[derive(Debug, clap::Args)]
// Each is a flag of its own.
#[allow(clippy::struct_excessive_bools)]
pub struct GuestFlags {
    /// The backend's socket; twice: one guest with two ports
    #[arg(long = "socket", value_name = "PATH", required = true,
          value_parser = values::socket_path)]
    sockets: Vec<PathBuf>,
    /// Listen on the socket, for a backend that connects
    #[arg(long)]
    server: bool,
    /// What to do with packets
    #[arg(long, value_enum)]
    mode: Mode,
    /// Frame bytes to send, without FCS
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = values::size)]
    size: usize,
    /// Stop after this long, like 5s, 500ms or 1m
    #[arg(long, value_parser = values::duration)]
    duration: Option<Duration>,
    /// Entries of each ring: a power of two, 2 to 32768
    #[arg(long, value_name = "N", default_value = "256", value_parser = values::ring_size)]
    queue_size: u16,
    /// Queue pairs, 1 to 128
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::queues)]
    queues: u16,
    /// Mergeable receive buffers
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = values::switch,
          action = clap::ArgAction::Set)]
    mergeable: bool,
    /// Where descriptors are
    #[arg(long, value_enum, value_name = "WHERE", default_value = "off")]
    indirect: Table,
    /// Notify by event index instead of by flag
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = values::switch,
          action = clap::ArgAction::Set)]
    event_idx: bool,
    /// Ask the backend to use buffers in order
    #[arg(long, value_name = "on|off", default_value = "off", value_parser = values::switch,
          action = clap::ArgAction::Set)]
    in_order: bool,
    /// Be a modern device's driver; off: a legacy one
    #[arg(long = "version-1", value_name = "on|off", default_value = "on",
          value_parser = values::switch, action = clap::ArgAction::Set)]
    version_1: bool,
    /// The header's place: with-data, alone, or the number of descriptors it is split over, 2 to 10
    #[arg(long, value_name = "PLACE", default_value = "with-data", value_parser = header)]
    header: HeaderPlace,
    /// Descriptors that the data of a packet is spread over
    #[arg(long, value_name = "N", default_value = "1", value_parser = pieces)]
    pieces: u16,
    /// Bytes of a receive buffer, header included; by default 2048, or what a frame needs
    #[arg(long, value_name = "BYTES", value_parser = buffer)]
    buffer: Option<u32>,
    /// Sleep until the backend interrupts, instead of polling
    #[arg(long)]
    interrupts: bool,
    /// The CPU to pin the thread to
    #[arg(long, value_parser = values::cpu)]
    cpu: Option<usize>,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// The header's place was refused.
#[derive(Debug, thiserror::Error)]
#[error("with-data, alone, or a number from 2 to 10")]
struct HeaderError;

fn header(text: &str) -> Result<HeaderPlace, HeaderError> {
    match text {
        "with-data" => Ok(HeaderPlace::WithData),
        "alone" => Ok(HeaderPlace::Alone),
        _ => {
            let pieces = values::number(text, 2..=10).map_err(|_| HeaderError)?;
            Ok(HeaderPlace::Split(pieces as u16))
        }
    }
}

fn pieces(text: &str) -> Result<u16, values::ValueError> {
    values::number(text, 1..=256).map(|n| n as u16)
}

fn buffer(text: &str) -> Result<u32, values::ValueError> {
    values::number(text, 64..=65550).map(|n| n as u32)
}

impl ValueEnum for Mode {
    fn value_variants<'a>() -> &'a [Self] {
        &[Mode::RxOnly, Mode::TxOnly, Mode::Io, Mode::Verify]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Mode::RxOnly => ("rxonly", "Receive and count"),
            Mode::TxOnly => ("txonly", "Send as fast as the backend takes"),
            Mode::Io => ("io", "Send back what is received"),
            Mode::Verify => {
                ("verify", "Send numbered packets, expect all of them back whole and in order")
            }
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for Table {
    fn value_variants<'a>() -> &'a [Self] {
        &[Table::Direct, Table::Indirect, Table::DirectThenIndirect]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Table::Direct => ("off", "In the ring's table"),
            Table::Indirect => ("on", "In indirect tables"),
            Table::DirectThenIndirect => {
                ("mixed", "The first in the ring's table, the others indirect")
            }
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl GuestFlags {
    /// Check what clap cannot.
    pub fn check(self) -> Result<GuestArgs, UsageError> {
        self.check_sockets()?;
        if let Some(cpu) = self.cpu {
            values::check_cpus(&[cpu], &values::available_cpus()?)?;
        }
        let options = GuestOptions {
            queue_size: self.queue_size,
            queue_pairs: self.queues,
            mergeable: self.mergeable,
            version_1: self.version_1,
            event_idx: self.event_idx,
            in_order: self.in_order,
            table: self.indirect,
            layout: Layout { header: self.header, data: self.pieces },
            buffer_size: self.buffer,
            max_size: self.size,
            interrupts: self.interrupts,
            ..GuestOptions::default()
        };
        options.check()?;
        let guest = GuestConfig {
            sockets: self.sockets,
            server: self.server,
            mode: self.mode,
            size: self.size,
            duration: self.duration,
            options,
            cpu: self.cpu,
            ..GuestConfig::default()
        };
        Ok(GuestArgs { guest, json: self.json })
    }

    fn check_sockets(&self) -> Result<(), UsageError> {
        match self.sockets.as_slice() {
            [a, b] if a == b => return Err(FileError::Duplicate(a.clone()).into()),
            [_] | [_, _] => {}
            more => return Err(UsageError::Sockets(more.len())),
        }
        if self.server {
            self.sockets.iter().try_for_each(|path| files::check_creatable(path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::cli::tests::{complaint, outcome};

    fn args(line: &str) -> GuestArgs {
        match outcome(&format!("guest {line}")).map(|invocation| invocation.command) {
            Ok(Command::Guest(args)) => args,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn defaults_are_a_modern_linux_guest() {
        let options = GuestOptions { event_idx: true, max_size: 64, ..GuestOptions::default() };
        let guest = GuestConfig {
            sockets: vec!["/tmp/a.sock".into()],
            mode: Mode::RxOnly,
            size: 64,
            options,
            ..GuestConfig::default()
        };
        let expected = GuestArgs { guest, json: false };
        assert_eq!(args("--socket /tmp/a.sock --mode rxonly"), expected);
    }

    #[test]
    fn every_flag() {
        let there = values::available_cpus().unwrap();
        let line = format!(
            "--socket /tmp/a.sock --socket /tmp/b.sock --server --mode verify --size 1518 \
             --duration 5s --queue-size 1024 --queues 2 --mergeable off --indirect mixed \
             --event-idx off --in-order on --version-1 off --header 3 --pieces 2 --buffer 4096 \
             --interrupts --cpu {} --json",
            there[0]
        );
        let options = GuestOptions {
            queue_size: 1024,
            queue_pairs: 2,
            mergeable: false,
            table: Table::DirectThenIndirect,
            event_idx: false,
            in_order: true,
            version_1: false,
            layout: Layout { header: HeaderPlace::Split(3), data: 2 },
            buffer_size: Some(4096),
            max_size: 1518,
            interrupts: true,
            ..GuestOptions::default()
        };
        let guest = GuestConfig {
            sockets: vec!["/tmp/a.sock".into(), "/tmp/b.sock".into()],
            server: true,
            mode: Mode::Verify,
            size: 1518,
            duration: Some(Duration::from_secs(5)),
            options,
            cpu: Some(there[0]),
            ..GuestConfig::default()
        };
        let expected = GuestArgs { guest, json: true };
        assert_eq!(args(&line), expected);
        assert_eq!(
            args("--socket a --mode io --header alone").guest.options.layout.header,
            HeaderPlace::Alone
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let cases = [
            (
                "--socket a --mode macswap",
                "invalid value 'macswap' for '--mode <MODE>' \
                 [possible values: rxonly, txonly, io, verify]",
            ),
            (
                "--mode io",
                "the following required arguments were not provided: --socket <PATH>; see --help",
            ),
            ("--mode io --socket a --socket b --socket c", "3 sockets; a guest drives one or two"),
            (
                "--mode io --socket a --socket a",
                "a is used twice; each use needs a file of its own",
            ),
            (
                "--mode io --socket a --queue-size 100",
                "invalid value '100' for '--queue-size <N>': a power of two from 2 to 32768",
            ),
            (
                "--mode io --socket a --mergeable maybe",
                "invalid value 'maybe' for '--mergeable <on|off>': on or off",
            ),
            (
                "--mode io --socket a --header 11",
                "invalid value '11' for '--header <PLACE>': \
                 with-data, alone, or a number from 2 to 10",
            ),
            (
                "--mode io --socket a --mergeable off --buffer 1500 --size 1518",
                "buffers of 1500 bytes: 1530 to 65550 are possible here",
            ),
            (
                "--mode io --server --socket /no/such/a.sock",
                "cannot create /no/such/a.sock: there is no directory /no/such",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(complaint(&format!("guest {line}")), expected, "{line}");
        }
    }
}
