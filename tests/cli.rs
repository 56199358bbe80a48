//! The program's exit status, and what goes to stdout and what to stderr.

use std::process::{Command, Output};

fn ringbridge(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringbridge")).args(args).output().unwrap()
}

#[test]
fn a_wrong_command_line_is_one_line_on_stderr_and_status_2() {
    for args in [&[][..], &["run"], &["run", "-p", "tun:x"], &["run", "-p", "null", "--size", "1"]]
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

#[test]
fn a_csv_file_becomes_a_drawing_or_one_line_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let (csv, svg) = (dir.path().join("a.csv"), dir.path().join("a.svg"));
    let plot = || {
        let output = ringbridge(&["plot", csv.to_str().unwrap(), "-o", svg.to_str().unwrap()]);
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let name = csv.display();
    let refused = |why: &str| (Some(1), format!("error: cannot {why}\n"));
    assert_eq!(plot(), refused(&format!("read {name}: No such file or directory (os error 2)")));
    std::fs::write(&csv, "size,mpps\n64,x\n").unwrap();
    let why = format!("plot {name}: line 2: mpps is \"x\"; it must be a number from 0 up");
    assert_eq!(plot(), refused(&why));
    assert!(!svg.exists());
    std::fs::write(&csv, "direction,size,mpps\nin,64,2.5\nout,64,1.5\n").unwrap();
    assert_eq!(plot(), (Some(0), String::new()));
    let drawing = std::fs::read_to_string(&svg).unwrap();
    assert!(drawing.contains("in: 64 bytes, 2.50 Mpps"), "{drawing}");
}
