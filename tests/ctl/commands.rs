//! `ringbridge ctl` against a bridge that runs: every command, and whatever else may come in by
//! the control socket.

use super::bed::Bed;
use super::common::bridge::{LIMIT, Peer, alone};
use super::common::wait_until;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn names(ports: &Value) -> Vec<&str> {
    ports.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap()).collect()
}

#[test]
fn every_command_does_what_it_says() {
    let _alone = alone();
    let mut bed = Bed::new(2);
    let (a, b) = (bed.name(0), bed.name(1));
    assert_eq!(names(&bed.json("ports")), [&*a, &*b]);
    assert_eq!(bed.json("ports")[0]["partner"], 1);
    assert!(bed.says("ports").contains("link down: no frontend is connected"));
    assert!(bed.says(&format!("link {a}")).starts_with("down: "));
    let mut peers = [0, 1].map(|i| Peer::connect(&bed.backend.sockets()[i]));
    let up = wait_until(LIMIT, || bed.json(&format!("link {a}"))["up"] == true);
    assert!(up, "{}", bed.says("ports"));
    assert!(bed.says("ports").contains("VERSION_1"));
    peers[0].settle();
    peers[1].settle();
    for _ in 0..10 {
        peers[0].send(&[5; 100]);
        assert_eq!(peers[1].receive(), [5; 100]);
    }
    let counted = wait_until(LIMIT, || bed.json("stats")["ports"][1]["tx_packets"] == 10);
    assert!(counted, "{}", bed.says("stats"));
    assert!(bed.says("stats").contains("RX-packets: 10"), "{}", bed.says("stats"));
    bed.says("clear");
    assert_eq!(bed.json("stats")["ports"][1]["tx_packets"], 0);
    peers[0].send(&[6; 100]);
    assert_eq!(peers[1].receive(), [6; 100]);

    let added = format!("vhost:{}", bed.control.with_file_name("new").display());
    assert_eq!(bed.says(&format!("port add {added},queues=4")), format!("added {added}\n"));
    bed.says("port add null");
    assert_eq!(names(&bed.json("ports")), [&*a, &*b, &*added, "null"]);
    assert!(bed.refuses(&format!("port add {added}")).contains("new"));
    assert!(bed.refuses("port add null").contains("null"));
    assert!(bed.refuses("port add vhost:/no/such/folder/s").contains("/no/such/folder"));
    assert!(bed.refuses("port del vhost:/nobody").contains("vhost:/nobody"));
    assert!(bed.refuses("link vhost:/nobody").contains("vhost:/nobody"));
    assert!(bed.says("link null").starts_with("up"));
    assert_eq!(bed.says(&format!("port del {added}")), format!("deleted {added}\n"));
    assert!(!bed.control.with_file_name("new").exists());
    bed.says("port del null");
    peers[1].send(&[7; 100]);
    assert_eq!(peers[0].receive(), [7; 100]);

    bed.says("stop");
    let (status, said) = bed.backend.wait();
    assert!(status.success(), "{}", bed.backend.log());
    let totals: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(totals["ports"][1]["tx_packets"], 1, "since they were cleared");
    assert!(!bed.control.exists());
    assert!(bed.refuses("ports").contains("is it running?"));
}

#[test]
fn events_are_followed_while_a_guest_comes_and_goes() {
    let _alone = alone();
    let bed = Bed::new(1);
    let mut follower = Follower::start(&bed.control);
    // It follows once the first event after a while is one of these.
    drop(Peer::connect(&bed.backend.sockets()[0]));
    let mut told = Vec::new();
    loop {
        let event = follower.next();
        assert_eq!(event["port"], *bed.name(0));
        assert!(event["time"].as_f64().unwrap() > 1.7e9);
        let name = event["event"].as_str().unwrap().to_string();
        told.push(name.clone());
        if name == "disconnected" && told.contains(&"link".into()) {
            break;
        }
        assert!(told.len() < 1000, "{told:?}");
    }
    for name in ["connected", "features", "memory", "ring"] {
        assert!(told.contains(&name.into()), "{name}: {told:?}");
    }
    let added = format!("vhost:{}", bed.control.with_file_name("new").display());
    bed.says(&format!("port add {added}"));
    bed.says(&format!("port del {added}"));
    for name in ["added", "deleted"] {
        let event = follower.next();
        assert_eq!((&event["event"], &event["port"]), (&name.into(), &(&*added).into()));
    }
    bed.says("stop");
    assert!(follower.ended());
}

/// `ctl events`.
struct Follower {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Follower {
    fn start(control: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringbridge"));
        command.args(["ctl", "--control", control.to_str().unwrap(), "events"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        // It must be connected before anything happens.
        std::thread::sleep(std::time::Duration::from_millis(500));
        Follower { child, lines }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ended(&mut self) -> bool {
        wait_until(LIMIT, || self.child.try_wait().unwrap().is_some_and(|s| s.success()))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn without_a_path_the_only_bridge_is_found() {
    let _alone = alone();
    let runtime = tempfile::Builder::new().prefix("ringbridge-").tempdir().unwrap();
    let mut bridges = Vec::new();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringbridge"));
        command.args(["run", "-p", "null"]).env("XDG_RUNTIME_DIR", runtime.path());
        Ended(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let ask = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringbridge"));
        command.args(["ctl", "--json", "ports"]).env("XDG_RUNTIME_DIR", runtime.path());
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(said).unwrap())
    };
    let (status, said) = ask();
    assert!(status == 1 && said.contains("--control PATH"), "{said}");
    bridges.push(run());
    assert!(wait_until(LIMIT, || ask().0 == 0), "{}", ask().1);
    assert!(ask().1.contains("\"null\""));
    bridges.push(run());
    assert!(wait_until(LIMIT, || ask().1.contains("several run here")), "{}", ask().1);
    // One that is killed leaves its file, which nobody is fooled by.
    bridges.pop();
    assert!(wait_until(LIMIT, || ask().0 == 0), "{}", ask().1);
}

/// A process that is ended with the value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_socket_is_the_owners_alone_and_a_bad_path_is_an_error() {
    let _alone = alone();
    let bed = Bed::new(1);
    let mode = std::fs::metadata(&bed.control).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let other = Command::new(env!("CARGO_BIN_EXE_ringbridge"))
        .args(["run", "-p", "null", "--control", bed.control.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("is in use"));
}

/// Send bytes, end the sending; everything that is answered.
fn sends(bed: &Bed, bytes: &[u8]) -> String {
    let mut stream = bed.connect();
    // A bridge that has heard enough hangs up.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn garbage_is_answered_and_survived() {
    let _alone = alone();
    let mut bed = Bed::new(1);
    let deep = [b"{\"do\":".to_vec(), vec![b'['; 30_000], b"\n".to_vec()].concat();
    let cases: [(&[u8], &str); 9] = [
        (b"\n", "not a request"),
        (b"hello\n", "not a request"),
        (b"{}\n", "not a request"),
        (b"{\"do\":\"dance\"}\n", "not a request"),
        (b"{\"do\":\"port-add\"}\n", "spec"),
        (b"{\"do\":\"port-add\",\"spec\":\"\\u0000\"}\n", "there is no port kind"),
        (b"{\"do\":\"port-add\",\"spec\":7}\n", "not a request"),
        (&[0xff, 0xfe, b'\n'], "a line of text"),
        (&deep, "not a request"),
    ];
    for (bytes, expected) in cases {
        let answer = sends(&bed, bytes);
        let line: Value = serde_json::from_str(answer.lines().next().unwrap()).unwrap();
        assert!(line["error"].as_str().unwrap().contains(expected), "{answer}");
    }
    assert!(sends(&bed, &vec![b'x'; 10 << 20]).contains("a line of text"));
    assert_eq!(sends(&bed, b"{\"do\":\"stop\""), "", "half a line is no request");
    assert_eq!(sends(&bed, b""), "");
    // Several requests at once, a wrong one among them.
    let answers = sends(&bed, b"{\"do\":\"ports\"}\n?\n{\"do\":\"clear\"}\n");
    let kinds: Vec<_> = answers.lines().map(|line| line.starts_with("{\"ok\"")).collect();
    assert_eq!(kinds, [true, false, true], "{answers}");
    // Silent clients, too many of them, and those that never read.
    let silent: Vec<_> = (0..100).map(|_| bed.connect()).collect();
    let mut last = String::new();
    BufReader::new(&silent[0]).read_line(&mut last).unwrap();
    assert!(last.contains("was idle"), "{last}");
    bed.says("ports");
    drop(silent);
    let mut deaf = bed.connect();
    for _ in 0..10_000 {
        if deaf.write_all(b"{\"do\":\"ports\"}\n").is_err() {
            break;
        }
    }
    bed.says("ports");
    bed.says("stop");
    let (status, _) = bed.backend.wait();
    assert!(status.success(), "{}", bed.backend.log());
}
