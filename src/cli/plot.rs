//! `ringbridge plot`: its flags.
//!
//! Promises: see the module above.

#![forbid(unsafe_code)]

use super::UsageError;
use crate::config::files::{self, FileError};
use crate::plot::csv::PlotArgs;
use std::path::PathBuf;

/// Plot rates by frame size from a CSV file
///
/// The first line names the columns. `size` is in bytes and `mpps` in millions of packets a
/// second; columns of text name the lines of the plot, by the values in which they differ. Other
/// columns of numbers are left out.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = false)]
pub struct PlotFlags {
    /// The CSV file, like that of qemu/sweep
    #[arg(value_name = "CSV")]
    input: PathBuf,
    /// The drawing
    #[arg(short, long, value_name = "SVG")]
    output: PathBuf,
}

impl PlotFlags {
    /// Check what clap cannot.
    pub fn check(self) -> Result<PlotArgs, UsageError> {
        let PlotFlags { input, output } = self;
        if input == output {
            return Err(FileError::Duplicate(input).into());
        }
        files::check_creatable(&output)?;
        Ok(PlotArgs { input, output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::cli::tests::{complaint, outcome};

    #[test]
    fn a_file_becomes_another() {
        let command = outcome("plot a.csv -o a.svg").unwrap().command;
        let args = PlotArgs { input: "a.csv".into(), output: "a.svg".into() };
        assert_eq!(command, Command::Plot(args));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let cases = [
            (
                "a.csv",
                "the following required arguments were not provided: --output <SVG>; see --help",
            ),
            ("a.csv -o a.csv", "a.csv is used twice; each use needs a file of its own"),
            (
                "a.csv -o /no/such/a.svg",
                "cannot create /no/such/a.svg: there is no directory /no/such",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(complaint(&format!("plot {line}")), expected, "{line}");
        }
    }
}
