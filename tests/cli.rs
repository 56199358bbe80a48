//! The program's exit status, and what goes to stdout and what to stderr.

use std::process::{Command, Output};

fn ringbridge(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringbridge")).args(args).output().unwrap()
}

#[test]
fn a_wrong_command_line_is_one_line_on_stderr_and_status_2() {
    for args in [&[][..], &["run"], &["run", "-p", "tap:x"], &["run", "-p", "null", "--size", "1"]]
    {
        let output = ringbridge(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("error: ") && said.ends_with('\n'), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    for args in [&["--help"][..], &["run", "--help"], &["help", "sweep"], &["--version"]] {
        let output = ringbridge(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}");
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
}
