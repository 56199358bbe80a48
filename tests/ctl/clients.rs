//! Clients that hang, are many, or do not read: they hold up nobody, and leave nothing behind.

use super::bed::Bed;
use super::common::bridge::{LIMIT, alone};
use super::common::wait_until;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// What comes next from a client's stream.
fn line(stream: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

/// The fds of a bridge whose clients have all left.
fn fds_at_rest(bed: &Bed) -> usize {
    assert!(wait_until(LIMIT, || bed.backend.threads("client") == 0), "clients are left");
    bed.backend.fds()
}

/// No client's thread is left, and no more fds than there were; fewer, if a frontend was there.
fn expect_rest(bed: &Bed, fds: usize) {
    let held = wait_until(LIMIT, || fds_at_rest(bed) <= fds);
    assert!(held, "{} fds, were {fds}", bed.backend.fds());
}

#[test]
fn a_hundred_clients_keep_no_operator_out_and_leave_nothing_behind() {
    let _alone = alone();
    let bed = Bed::new(1);
    let fds = fds_at_rest(&bed);
    let idle: Vec<_> = (0..100).map(|_| bed.connect()).collect();
    // Half a line each, as far as they are still served.
    for mut stream in &idle {
        let _ = stream.write_all(b"{\"do\":");
    }
    bed.says("ports");
    // Who had to go was told why.
    assert!(line(&idle[0]).contains("was idle"));
    // And bytes now and then do not make it busy.
    for mut stream in &idle {
        let _ = stream.write_all(b" ");
    }
    bed.says("ports");
    drop(idle);
    expect_rest(&bed, fds);
}

#[test]
fn followers_leave_room_for_others_and_are_few() {
    let _alone = alone();
    let bed = Bed::new(1);
    let fds = fds_at_rest(&bed);
    let follow = |_| {
        let mut stream = bed.connect();
        stream.write_all(b"{\"do\":\"events\"}\n").unwrap();
        let answer = line(&stream);
        (stream, answer)
    };
    let (followers, answers): (Vec<_>, Vec<_>) = (0..40).map(follow).unzip();
    assert!(answers[..16].iter().all(|answer| answer == "{\"ok\":true}\n"), "{answers:?}");
    assert!(answers[16..].iter().all(|answer| answer.contains("16 clients follow")));
    bed.says("ports");
    drop(followers);
    expect_rest(&bed, fds);
}

/// A follower that reads nothing is dropped once there is more than its socket holds.
#[test]
fn a_deaf_follower_is_dropped() {
    let _alone = alone();
    let bed = Bed::new(1);
    let fds = fds_at_rest(&bed);
    let mut deaf = bed.connect();
    deaf.write_all(b"{\"do\":\"events\"}\n").unwrap();
    assert_eq!(line(&deaf), "{\"ok\":true}\n");
    assert_eq!(bed.backend.threads("client"), 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| come_and_go(&bed.backend.sockets()[0], &stop));
        let dropped = wait_until(LIMIT, || bed.backend.threads("client") == 0);
        stop.store(true, Ordering::Relaxed);
        assert!(dropped);
    });
    expect_rest(&bed, fds);
}

/// Events without end, from a frontend, are no reason not to end.
#[test]
fn the_bridge_ends_while_events_flood_a_follower() {
    let _alone = alone();
    let mut bed = Bed::new(1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbridge"));
    command.args(["ctl", "--control", bed.control.to_str().unwrap(), "events"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let events = BufReader::new(child.stdout.take().unwrap());
    let (socket, stop) = (bed.backend.sockets()[0].clone(), AtomicBool::new(false));
    thread::scope(|scope| {
        let counted = scope.spawn(|| events.lines().count());
        let flood = scope.spawn(|| come_and_go(&socket, &stop));
        thread::sleep(std::time::Duration::from_millis(300));
        bed.says("stop");
        let ended = wait_until(LIMIT, || bed.backend.has_ended());
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        assert!(ended, "the bridge does not end");
        assert!(counted.join().unwrap() > 10);
    });
    assert!(wait_until(LIMIT, || child.try_wait().unwrap().is_some()));
    assert!(bed.backend.wait().0.success());
}

/// A frontend that does nothing else.
fn come_and_go(socket: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        drop(UnixStream::connect(socket));
    }
}

/// `ctl events | head -1`.
#[test]
fn events_end_when_nobody_reads_them() {
    let _alone = alone();
    let bed = Bed::new(1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbridge"));
    command.args(["ctl", "--control", bed.control.to_str().unwrap(), "events"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = wait_until(LIMIT, || {
        drop(UnixStream::connect(&bed.backend.sockets()[0]));
        child.try_wait().unwrap().is_some()
    });
    let _ = child.kill();
    assert!(child.wait().unwrap().success() && ended);
}

#[test]
fn an_error_is_one_line_whatever_was_asked_for() {
    let _alone = alone();
    let bed = Bed::new(1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbridge"));
    command.args(["ctl", "--control", bed.control.to_str().unwrap(), "link", "a\nb\u{1b}c"]);
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert_eq!(said, "error: there is no port a b c; see ctl ports\n");
}
