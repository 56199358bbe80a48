//! `qemu/sweep` as a user runs it, on a part of its cells.

use crate::common::bridge::alone;
use crate::common::{TempDir, wait_until};
use crate::vm::{LIMIT, require_guests};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// One size, one setting: three cells. All its temporary files are in `dir`; it ends in time.
fn sweep(dir: &TempDir) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "-k", "5", "120"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("qemu/sweep"));
    command.args(["--quick", "--sizes", "64", "--mrg", "on"]);
    command.args(["--ringbridge", env!("CARGO_BIN_EXE_ringbridge")]);
    command.env("TMPDIR", dir.path("tmp"));
    fs::create_dir(dir.path("tmp")).unwrap();
    command
}

/// The processes that were told of a file in `dir`.
fn processes(dir: &TempDir) -> usize {
    let place = dir.path("tmp").display().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let command_lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    command_lines.filter(|line| String::from_utf8_lossy(line).contains(&place)).count()
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn every_direction_is_measured_and_plotted() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let dir = TempDir::new();
    let (csv, svg) = (dir.path("a.csv"), dir.path("a.svg"));
    let output = sweep(&dir).arg("--csv").arg(&csv).arg("--svg").arg(&svg).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let table = String::from_utf8(output.stdout).unwrap();
    let csv = fs::read_to_string(csv).unwrap();
    let rows: Vec<Vec<_>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let (names, rows) = rows.split_first().unwrap();
    let value =
        |row: &Vec<&str>, name| row[names.iter().position(|n| *n == name).unwrap()].to_string();
    let number = |row, name| value(row, name).parse::<f64>().unwrap();
    let directions: Vec<_> = rows.iter().map(|row| value(row, "direction")).collect();
    assert_eq!(directions, ["backend→guest", "guest→backend", "guest→guest"]);
    for row in rows {
        assert!(table.contains(&format!("{}, mrg_rxbuf=on", value(row, "direction"))), "{table}");
        for name in ["mpps", "best_mpps", "host_mpps", "host_best_mpps", "sent", "received"] {
            assert!(number(row, name) > 0.0, "{name}: {csv}");
        }
        // Where the guest generates and receives, it may be too slow for itself.
        assert!(number(row, "lost") == 0.0 || value(row, "direction") == "guest→guest", "{csv}");
    }
    assert!(fs::read_to_string(svg).unwrap().contains("backend→guest: 64 bytes, "));
    assert!(is_empty(&dir.path("tmp")) && processes(&dir) == 0);
}

#[test]
fn an_interrupted_sweep_leaves_nothing() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let dir = TempDir::new();
    let mut running = sweep(&dir).stdout(Stdio::null()).spawn().unwrap();
    assert!(wait_until(LIMIT, || processes(&dir) == 2), "QEMU and ringbridge start");
    // SAFETY: its own process id; `timeout` hands the signal on.
    assert_eq!(unsafe { libc::kill(running.id() as i32, libc::SIGINT) }, 0);
    let mut status = None;
    assert!(wait_until(LIMIT, || {
        status = running.try_wait().unwrap();
        status.is_some()
    }));
    assert_eq!(status.unwrap().code(), Some(130));
    assert!(is_empty(&dir.path("tmp")) && processes(&dir) == 0);
}
