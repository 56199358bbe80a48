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

#[test]
fn a_file_in_the_way_of_a_socket_survives_and_is_named_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let (socket, port) = (file.to_str().unwrap(), format!("vhost:{}", file.display()));
    let guest = ["guest", "--server", "--socket", socket, "--mode", "rxonly"];
    for args in [&guest[..], &["run", "-p", &port]] {
        let output = ringbridge(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        let why = format!("{socket} exists and is not a socket; it is left alone\n");
        assert!(said.starts_with("error: ") && said.ends_with(&why), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    }
}
