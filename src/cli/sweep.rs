//! `ringbridge sweep`: its flags and what is checked across them.
//!
//! Promises: see the module above.

#![forbid(unsafe_code)]

use super::{UsageError, values};
use crate::config::files::{self, FileError};
use crate::config::{Against, SweepArgs};
use std::path::PathBuf;

/// Measure this machine with the built-in guest
///
/// For each size, with mergeable buffers and without: backend to guest, guest to backend and
/// guest to guest, on two threads. Prints Mpps (median and best window), Gbit/s and cycles a
/// packet.
#[derive(Debug, clap::Args)]
pub struct SweepFlags {
    /// Frame sizes in bytes, without FCS
    #[arg(long, value_delimiter = ',', value_parser = values::size,
          default_value = "64,128,256,512,1024,1280,1518")]
    sizes: Vec<usize>,
    /// Take 20 seconds instead of 3 minutes
    #[arg(long)]
    quick: bool,
    /// Measure another backend, too: reference is the plain rust-vmm one
    #[arg(long, value_name = "BACKEND", value_parser = against)]
    against: Option<Against>,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Plot Mpps by size into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// CPUs of backend and guest, like 0,2; by default the first two there are
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = values::cpu)]
    cpus: Vec<usize>,
}

/// The other backend was refused.
#[derive(Debug, thiserror::Error)]
enum AgainstError {
    #[error("the only other backend is reference")]
    Unknown,
    #[error("this program is built without it; build with the feature `reference`")]
    NotBuilt,
}

fn against(text: &str) -> Result<Against, AgainstError> {
    match text {
        "reference" if cfg!(feature = "reference") => Ok(Against::Reference),
        "reference" => Err(AgainstError::NotBuilt),
        _ => Err(AgainstError::Unknown),
    }
}

impl SweepFlags {
    /// Check what clap cannot.
    pub fn check(self) -> Result<SweepArgs, UsageError> {
        for (i, size) in self.sizes.iter().enumerate() {
            if self.sizes[..i].contains(size) {
                return Err(UsageError::DuplicateSize(*size));
            }
        }
        match (&self.json, &self.svg) {
            (Some(json), Some(svg)) if json == svg => {
                return Err(FileError::Duplicate(json.clone()).into());
            }
            (json, svg) => {
                json.iter().chain(svg).try_for_each(|path| files::check_creatable(path))?;
            }
        }
        Ok(SweepArgs {
            sizes: self.sizes,
            quick: self.quick,
            against: self.against,
            json: self.json,
            svg: self.svg,
            cpus: choose(&self.cpus, &values::available_cpus()?)?,
        })
    }
}

/// The two that were given, or the first two there are.
fn choose(given: &[usize], there: &[usize]) -> Result<Option<(usize, usize)>, UsageError> {
    values::check_cpus(given, there)?;
    match (given, there) {
        ([], [backend, guest, ..]) | ([backend, guest], _) => Ok(Some((*backend, *guest))),
        ([], _) => Ok(None),
        _ => Err(UsageError::SweepCpus(given.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::cli::tests::{complaint, outcome};

    fn args(line: &str) -> SweepArgs {
        match outcome(&format!("sweep {line}")).map(|invocation| invocation.command) {
            Ok(Command::Sweep(args)) => args,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn defaults_and_flags() {
        let plain = args("");
        assert_eq!(plain.sizes, [64, 128, 256, 512, 1024, 1280, 1518]);
        assert!(!plain.quick && plain.json.is_none() && plain.svg.is_none());
        let full = args("--sizes 9000,64 --quick --json a.json --svg a.svg");
        assert_eq!(full.sizes, [9000, 64]);
        assert!(full.quick);
        assert_eq!((full.json, full.svg), (Some("a.json".into()), Some("a.svg".into())));
    }

    #[test]
    fn another_backend_needs_its_feature() {
        let built = against("reference").is_ok();
        assert_eq!(built, cfg!(feature = "reference"));
    }

    #[test]
    fn backend_and_guest_get_two_cpus() {
        for (given, expected) in [(&[][..], (1, 2)), (&[3, 1], (3, 1)), (&[2, 3], (2, 3))] {
            assert_eq!(choose(given, &[1, 2, 3]).unwrap(), Some(expected), "{given:?}");
        }
        assert_eq!(choose(&[], &[1]).unwrap(), None);
        for given in [&[1][..], &[1, 2, 3]] {
            let refused = choose(given, &[1, 2, 3]).unwrap_err().to_string();
            let n = given.len();
            assert_eq!(refused, format!("{n} CPUs for a sweep; it needs two: backend,guest"));
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let cases = [
            (
                "--sizes 64,13",
                "invalid value '13' for '--sizes <SIZES>': a frame has 14 to 65535 bytes",
            ),
            ("--sizes 64,128,64", "size 64 is given twice; every size is measured once"),
            (
                "--against dpdk",
                "invalid value 'dpdk' for '--against <BACKEND>': \
                 the only other backend is reference",
            ),
            ("--json a --svg a", "a is used twice; each use needs a file of its own"),
            (
                "--svg /no/such/a.svg",
                "cannot create /no/such/a.svg: there is no directory /no/such",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(complaint(&format!("sweep {line}")), expected, "{line}");
        }
    }
}
