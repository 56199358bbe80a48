//! The configuration file of `run`: its options, as TOML.
//!
//! Promises: what is an option of the command line is a key here, of the same name and with the
//! same values, and nothing else is; an error is one line with file, line and column. Reads one
//! file, and looks at the machine as the command line does.

#![forbid(unsafe_code)]

use super::run::RunFlags;
use super::{UsageError, one_line};
use crate::config::RunConfig;
use clap::{Arg, ArgAction, Args, FromArgMatches};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Every key, with what it is for.
pub const EXAMPLE: &str = include_str!("example.toml");

/// What is wrong with a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It is not there, or not text.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: std::io::Error,
    },
    /// Something in it.
    #[error("{}:{line}:{column}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Of the first wrong character, from 1.
        line: usize,
        /// As above, in characters.
        column: usize,
        /// What is wrong and what would be right.
        what: String,
    },
}

/// What is wrong, and where in the text.
type Wrong = (Range<usize>, String);

/// The configuration in the file `path`, checked.
pub fn read(path: &Path) -> Result<RunConfig, ConfigFileError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigFileError::Read { path: path.into(), error })?;
    parse(&text).map_err(|(span, what)| {
        let before = text.get(..span.start).unwrap_or(&text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        ConfigFileError::Wrong { path: path.into(), line, column, what }
    })
}

fn parse(text: &str) -> Result<RunConfig, Wrong> {
    let table = DeTable::parse(text).map_err(|error| {
        let what = error.message().lines().collect::<Vec<_>>().join(", ");
        (error.span().unwrap_or_default(), what)
    })?;
    let command = RunFlags::augment_args(clap::Command::new("ringbridge").no_binary_name(true));
    let mut flags = Vec::new();
    for (key, value) in table.get_ref() {
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(key.get_ref()));
        let arg = arg.ok_or_else(|| (key.span(), unknown(&command, key.get_ref())))?;
        for (span, flag) in written(arg, value.span(), value.get_ref())? {
            // Alone, so that the place of what is wrong is known.
            let mut alone = vec![flag.clone()];
            if arg.get_id() != "ports" {
                alone.push("--port=null".into());
            }
            let parsed = command.clone().try_get_matches_from(alone);
            parsed.map_err(|e| (span.clone(), one_line(&e.render().to_string(), e.kind())))?;
            flags.push(flag);
        }
    }
    let all = command.try_get_matches_from(flags);
    let all = all.and_then(|matches| RunFlags::from_arg_matches(&matches));
    let all = all.map_err(|e| (0..0, one_line(&e.render().to_string(), e.kind())))?;
    all.check().map_err(|error| {
        let key = culprit(&error);
        let entry = table.get_ref().iter().find(|(name, _)| name.get_ref() == key);
        (entry.map_or(0..0, |(_, value)| value.span()), error.to_string())
    })
}

fn unknown(command: &clap::Command, key: &str) -> String {
    let keys: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
    format!("there is no key {key}; keys are {}", keys.join(", "))
}

/// A key and its value as on the command line, each with its place.
fn written(arg: &Arg, span: Range<usize>, value: &DeValue) -> Result<Vec<Wrong>, Wrong> {
    let key = arg.get_long().unwrap_or_default();
    let flag = |value: &str| format!("--{key}={value}");
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    match value {
        DeValue::Boolean(on) if is_switch => {
            Ok(on.then(|| (span, format!("--{key}"))).into_iter().collect())
        }
        _ if is_switch => Err((span, format!("{key} is true or false"))),
        DeValue::Array(values) if is_list => {
            let each = values.iter().map(|value| {
                let what = plain(value.get_ref());
                let what = what
                    .ok_or_else(|| (value.span(), format!("{key} is a list of texts or numbers")));
                Ok((value.span(), flag(&what?)))
            });
            each.collect()
        }
        _ if is_list => Err((span, format!("{key} is a list, like {key} = [\"…\"]"))),
        value => match plain(value) {
            Some(value) => Ok(vec![(span, flag(&value))]),
            None => Err((span, format!("{key} is a text or a number"))),
        },
    }
}

/// A text or a number.
fn plain(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The key that an error of the whole is about.
fn culprit(error: &UsageError) -> &'static str {
    match error {
        UsageError::SizeOfNothing => "size",
        UsageError::AgingOfNothing => "aging",
        UsageError::BridgeWorkers => "workers",
        UsageError::NoCpu { .. }
        | UsageError::DuplicateCpu(_)
        | UsageError::MoreCpus { .. }
        | UsageError::Cpus(_) => "cpus",
        _ => "port",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ForwardMode, PollMode};
    use std::time::Duration;

    fn complaint(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        std::fs::write(&path, text).unwrap();
        let error = read(&path).unwrap_err().to_string();
        error.strip_prefix(&format!("{}/", dir.path().display())).unwrap().to_string()
    }

    #[test]
    fn the_example_has_every_key_and_is_right() {
        let config = parse(EXAMPLE).unwrap();
        assert_eq!(config.ports.len(), 2);
        // With what it leaves as comments, too: every key there is.
        let all: String = EXAMPLE
            .lines()
            .map(|l| l.strip_prefix("#:").unwrap_or(l))
            .fold(String::new(), |text, line| text + line + "\n");
        let config = parse(&all).unwrap();
        assert_eq!((config.size, config.forward), (64, ForwardMode::TxOnly));
        let command = RunFlags::augment_args(clap::Command::new("ringbridge"));
        for key in command.get_arguments().filter_map(Arg::get_long) {
            let is_it =
                |line: &str| line.trim_start_matches(['#', ':']).starts_with(&format!("{key} = "));
            assert!(EXAMPLE.lines().any(is_it), "the example has no {key}");
        }
    }

    #[test]
    fn values_are_those_of_the_command_line() {
        let config = parse(
            "port = ['null', 'vhost:/tmp/vm0.sock,queues=2']\nforward = 'mac'\nworkers = 2\n\
             burst = 16\npoll = 'busy'\nduration = '5s'\nstats-interval = 0.5\njson = true\n",
        )
        .unwrap();
        assert_eq!((config.ports.len(), config.forward), (2, ForwardMode::Mac));
        assert_eq!((config.workers.len(), config.burst), (2, 16));
        assert_eq!((config.poll, config.json), (PollMode::Busy, true));
        assert_eq!(config.duration, Some(Duration::from_secs(5)));
        assert_eq!(config.stats_interval, Some(Duration::from_millis(500)));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let cases = [
            (
                "port = ['null']\nburst = 65",
                "f.toml:2:9: invalid value '65' for '--burst <N>': a number from 1 to 64",
            ),
            (
                "port = ['null',\n  'vhost:']",
                "f.toml:2:3: invalid value 'vhost:' for '--port <PORT>': a vhost port needs a target: vhost:PATH",
            ),
            ("port = 'null'", "f.toml:1:8: port is a list, like port = [\"…\"]"),
            ("port = ['null']\njson = 1", "f.toml:2:8: json is true or false"),
            ("port = [[]]", "f.toml:1:9: port is a list of texts or numbers"),
            ("port = ['null']\nburst = []", "f.toml:2:9: burst is a text or a number"),
            (
                "port = ['null', 'null', 'null']",
                "f.toml:1:8: 3 ports cannot be paired; give an even number of ports, or one alone",
            ),
            (
                "size = 64\nport = ['null']",
                "f.toml:1:8: --size is the size of the frames that --forward txonly makes; give both or leave it out",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(complaint(text), expected, "{text}");
        }
        let unknown = complaint("port = ['null']\n  brust = 3");
        assert!(
            unknown.starts_with("f.toml:2:3: there is no key brust; keys are port, "),
            "{unknown}"
        );
        let twice = complaint("port = ['null']\nport = ['null']");
        assert!(twice.starts_with("f.toml:2:1: duplicate key"), "{twice}");
        let nothing = complaint("");
        assert!(nothing.starts_with("f.toml:1:1: no port is given"), "{nothing}");
        let missing = read(Path::new("/no/such.toml")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read /no/such.toml: No such file"), "{missing}");
    }
}
