//! The guest against a backend of the rust-vmm crates, which knows nothing of ours: every
//! layout, waiting for interrupts, wraps, faults, stopping and starting.

mod loopback;

use loopback::{Config, Fault, Loopback};
use ringbridge::frontend::{
    DESC_NEXT, Guest, GuestError, GuestOptions, HeaderPlace, Layout, Link, RawDesc, RawGuest,
    Report, SessionError, Sizes, Table, VerifyPlan,
};
use ringbridge::sys::socket_file::SocketFileError;
use ringbridge::sys::unix;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tempfile::TempDir;

/// A run ends when the device has taken so many packets: some turns of the usual ring. How long
/// that takes is the machine's affair,
const PACKETS: u64 = 600;
/// but it ends in any case.
const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

fn sockets(n: usize) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let paths = (0..n).map(|i| dir.path().join(format!("port{i}"))).collect();
    (dir, paths)
}

/// A guest with `options` between `ports` ports of a loopback device.
fn connect(options: GuestOptions, ports: usize, change: impl FnOnce(&mut Config)) -> Connected {
    let (dir, paths) = sockets(ports);
    let mut config = Config::new(&paths);
    config.queue_pairs = options.queue_pairs.into();
    change(&mut config);
    let backend = Loopback::start(config);
    let guest = Guest::connect(&Link { options, ..Link::to(paths) }).unwrap();
    backend.wait_ready();
    Connected { guest, backend, _dir: dir }
}

struct Connected {
    guest: Guest,
    backend: Loopback,
    _dir: TempDir,
}

/// `run`, told to stop when `backend` has taken enough packets.
fn until_taken<R>(backend: &Loopback, run: impl FnOnce(&AtomicBool) -> R) -> R {
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let goal = backend.taken() + PACKETS;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while backend.taken() < goal && !over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Relaxed);
        });
        let result = run(&stop);
        over.store(true, Relaxed);
        result
    })
}

impl Connected {
    fn verify(&mut self, min: usize, max: usize, in_flight: usize) -> Report {
        let plan = VerifyPlan { sizes: Sizes { min, max }, in_flight };
        let guest = &mut self.guest;
        until_taken(&self.backend, |stop| guest.verify(plan, LIMIT, stop)).unwrap()
    }

    /// Everything comes back.
    fn verify_clean(&mut self, min: usize, max: usize) -> Report {
        let report = self.verify(min, max, 256);
        assert_clean(&report);
        assert_eq!(self.backend.dropped(), 0);
        report
    }

    fn end(self) {
        drop(self.guest);
        self.backend.join();
    }
}

fn assert_clean(report: &Report) {
    assert!(report.rx_packets > 0, "{report:?}");
    assert_eq!(report.rx_packets, report.tx_packets, "{report:?}");
    assert_eq!(report.rx_bytes, report.tx_bytes, "{report:?}");
    assert_eq!((report.lost, report.corrupt, report.duplicated), (0, 0, 0), "{report:?}");
    assert_eq!(report.lost_interrupts, 0, "{report:?}");
}

fn check(options: GuestOptions, min: usize, max: usize) {
    println!("{options:?} {min}..{max}");
    let mut connected = connect(options, 1, |_| ());
    connected.verify_clean(min, max);
    connected.end();
}

/// Every layout in every table.
fn layouts() -> Vec<(Layout, Table)> {
    let places = [HeaderPlace::WithData, HeaderPlace::Alone, HeaderPlace::Split(3)];
    let tables = [Table::Direct, Table::Indirect, Table::DirectThenIndirect];
    let layout = |header, data| Layout { header, data };
    let layouts = places.iter().flat_map(|&h| [layout(h, 1), layout(h, 5)]);
    layouts.flat_map(|l| tables.map(|t| (l, t))).collect()
}

#[test]
fn every_layout_with_and_without_mergeable_buffers() {
    for (layout, table) in layouts() {
        for (mergeable, version_1) in [(true, true), (false, true), (true, false), (false, false)] {
            let options =
                GuestOptions { layout, table, mergeable, version_1, ..GuestOptions::default() };
            check(options, 14, 1518);
        }
    }
}

#[test]
fn every_layout_waiting_for_interrupts() {
    for (layout, table) in layouts() {
        for event_idx in [false, true] {
            let interrupts = true;
            let options =
                GuestOptions { layout, table, event_idx, interrupts, ..GuestOptions::default() };
            check(options, 60, 1518);
        }
    }
}

#[test]
fn kicks_are_only_written_when_wanted() {
    for event_idx in [false, true] {
        let options = GuestOptions { event_idx, ..GuestOptions::default() };
        let mut connected = connect(options, 1, |_| ());
        let report = connected.verify_clean(64, 64);
        // The device asks for no kicks while it works: with hundreds of packets in flight most
        // of them need none, but without any it would sleep for ever.
        let kicks = connected.guest.kicks();
        assert!(kicks > 0 && kicks < report.tx_packets + report.rx_packets, "{kicks}");
        connected.end();
    }
}

#[test]
fn packets_over_many_buffers() {
    for (layout, table) in layouts() {
        for (buffer_size, queue_size) in [(None, 512), (Some(300), 4096), (Some(13), 2048)] {
            let max_size = if buffer_size == Some(13) { 2000 } else { 65535 };
            let options = GuestOptions {
                layout,
                table,
                buffer_size,
                queue_size,
                max_size,
                ..GuestOptions::default()
            };
            check(options, 14, max_size);
        }
    }
}

#[test]
fn large_packets_in_one_buffer() {
    let options = GuestOptions { mergeable: false, max_size: 65535, ..GuestOptions::default() };
    check(options, 65000, 65535);
}

#[test]
fn rings_of_every_size_across_the_wrap_of_their_indices() {
    for queue_size in [2, 4, 8, 64, 1024, 32768] {
        for event_idx in [false, true] {
            let options = GuestOptions {
                queue_size,
                event_idx,
                interrupts: event_idx,
                first_index: 65500,
                ..GuestOptions::default()
            };
            check(options, 60, 1518);
        }
    }
}

#[test]
fn in_order() {
    for table in [Table::Direct, Table::Indirect] {
        let options = GuestOptions { in_order: true, table, ..GuestOptions::default() };
        check(options, 14, 1518);
    }
}

#[test]
fn buffers_across_regions() {
    for regions in [2, 5, 8] {
        for layout in [Layout::ONE, Layout { header: HeaderPlace::Alone, data: 3 }] {
            let options = GuestOptions { regions, layout, ..GuestOptions::default() };
            check(options, 1000, 1518);
        }
    }
}

#[test]
fn several_queue_pairs_keep_every_flow_in_order() {
    let options = GuestOptions { queue_pairs: 3, ..GuestOptions::default() };
    check(options, 42, 1518);
}

#[test]
fn between_two_sockets() {
    for shared_memory in [true, false] {
        let options = GuestOptions { shared_memory, ..GuestOptions::default() };
        let mut connected = connect(options, 2, |_| ());
        connected.verify_clean(14, 1518);
        connected.end();
    }
}

#[test]
fn io_sends_on_what_it_receives() {
    for shared_memory in [true, false] {
        for (layout, table) in layouts() {
            for (ports, max_size, loops) in [(1, 1518, 20), (2, 1518, 20), (2, 9000, 6)] {
                let options = GuestOptions {
                    layout,
                    table,
                    shared_memory,
                    max_size,
                    ..GuestOptions::default()
                };
                println!("{options:?} {ports}");
                let mut connected = connect(options, ports, |_| ());
                let (guest, backend) = (&mut connected.guest, &connected.backend);
                let report =
                    until_taken(backend, |stop| guest.io(max_size, loops, LIMIT, stop)).unwrap();
                assert!(report.rx_packets >= PACKETS, "{report:?}");
                // In a closed loop everything sent arrives.
                assert_eq!(report.tx_packets, report.rx_packets, "{report:?}");
                assert_eq!(report.tx_bytes, report.tx_packets * max_size as u64);
                assert_eq!(report.rx_bytes, report.tx_bytes);
                assert_eq!(report.lost, 0);
                // The next mode starts from a clean slate.
                connected.verify_clean(64, 1000);
                connected.end();
            }
        }
    }
}

#[test]
fn txonly_counts_what_the_backend_took() {
    for size in [14, 49, 64, 1518] {
        for layout in [Layout::ONE, Layout { header: HeaderPlace::Alone, data: 2 }] {
            let options = GuestOptions { layout, ..GuestOptions::default() };
            let mut connected = connect(options, 1, |_| ());
            let (guest, backend) = (&mut connected.guest, &connected.backend);
            let report = until_taken(backend, |stop| guest.txonly(size, LIMIT, stop)).unwrap();
            assert!(report.tx_packets >= PACKETS);
            assert_eq!(report.tx_packets, connected.backend.taken());
            assert_eq!(report.tx_bytes, report.tx_packets * size as u64);
            // What came back meanwhile fills the ring, and is counted by the next mode.
            let stop = AtomicBool::new(true);
            let report = connected.guest.rxonly(size, LIMIT, &stop).unwrap();
            assert_eq!(report.rx_bytes, report.rx_packets * size as u64);
            assert!(report.rx_packets > 0);
            connected.end();
        }
    }
}

/// What `verify` says of a backend with a fault in every hundredth packet, and how many those
/// were.
fn verify_faulty(fault: Fault) -> (Report, u64) {
    let mut connected = connect(GuestOptions::default(), 1, |c| c.fault = fault);
    // Far from the ring's end: a duplicate takes a buffer of its own.
    let report = connected.verify(100, 1000, 64);
    let faults = connected.backend.taken() / 100;
    assert!(faults > 0, "{report:?}");
    connected.end();
    (report, faults)
}

#[test]
fn faults_are_counted() {
    let (report, faults) = verify_faulty(Fault::Lose);
    assert_eq!((report.lost, report.corrupt, report.duplicated), (faults, 0, 0));
    let (report, faults) = verify_faulty(Fault::Corrupt);
    assert_eq!((report.lost, report.corrupt, report.duplicated), (0, faults, 0));
    let (report, faults) = verify_faulty(Fault::Truncate);
    assert_eq!((report.lost, report.corrupt, report.duplicated), (0, faults, 0));
    let (report, faults) = verify_faulty(Fault::Duplicate);
    assert_eq!((report.lost, report.corrupt, report.duplicated), (0, 0, faults));
    let (report, faults) = verify_faulty(Fault::Swap);
    assert_eq!((report.lost, report.corrupt, report.duplicated), (faults, 0, 0));
}

#[test]
fn rings_stop_at_a_base_and_go_on_from_it() {
    let options = GuestOptions { first_index: 65530, queue_size: 64, ..GuestOptions::default() };
    let mut connected = connect(options, 1, |_| ());
    let mut sent = 65530;
    let mut received = 65530;
    for _ in 0..3 {
        let report = connected.verify_clean(64, 512);
        sent += report.tx_packets;
        received += report.rx_packets;
        let bases = connected.guest.stop().unwrap();
        assert_eq!(bases, [vec![received as u16, sent as u16]]);
        connected.guest.start(&bases).unwrap();
    }
    connected.guest.restart().unwrap();
    connected.verify_clean(64, 512);
    connected.guest.resend_memory().unwrap();
    connected.verify_clean(64, 512);
    connected.end();
}

#[test]
fn a_backend_may_connect_to_us() {
    let (_dir, paths) = sockets(1);
    // A stale socket is in the way.
    drop(std::os::unix::net::UnixListener::bind(&paths[0]).unwrap());
    let link = Link { server: true, ..Link::to(paths.clone()) };
    let guest = std::thread::spawn(move || Guest::connect(&link));
    while std::os::unix::net::UnixStream::connect(&paths[0]).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // That was nobody: the guest gives up on it.
    assert!(matches!(guest.join().unwrap(), Err(GuestError::Session(_))));
    let link = Link { server: true, ..Link::to(paths.clone()) };
    let guest = std::thread::spawn(move || Guest::connect(&link).map_err(|e| e.to_string()));
    while !paths[0].exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(20));
    let backend = Loopback::start(Config { client: true, ..Config::new(&paths) });
    let mut guest = guest.join().unwrap().unwrap();
    let plan = VerifyPlan { sizes: Sizes { min: 64, max: 64 }, in_flight: 10 };
    assert_clean(&until_taken(&backend, |stop| guest.verify(plan, LIMIT, stop)).unwrap());
    drop(guest);
    backend.join();
    assert!(!paths[0].exists(), "our socket is gone");
}

#[test]
fn a_missing_feature_is_named() {
    let refused = |features, options: GuestOptions| {
        let (_dir, paths) = sockets(1);
        let backend = Loopback::start(Config { features, ..Config::new(&paths) });
        let Err(error) = Guest::connect(&Link { options, ..Link::to(paths) }) else {
            panic!("connected without the feature")
        };
        backend.join();
        error.to_string()
    };
    let all = loopback::ALL;
    let options = GuestOptions::default();
    let error = refused(all & !loopback::MRG_RXBUF, options.clone());
    assert!(error.contains("VIRTIO_NET_F_MRG_RXBUF"), "{error}");
    let event_idx = GuestOptions { event_idx: true, ..options.clone() };
    let error = refused(all & !loopback::EVENT_IDX, event_idx);
    assert!(error.contains("VIRTIO_RING_F_EVENT_IDX"), "{error}");
    let error = refused(all, GuestOptions { queue_pairs: 3, ..options });
    assert!(error.contains("2 queue pairs, 3 were asked for"), "{error}");
}

#[test]
fn works_without_protocol_features() {
    let features = loopback::ALL & !loopback::PROTOCOL_FEATURES;
    let mut connected = connect(GuestOptions::default(), 1, |c| c.features = features);
    connected.verify_clean(64, 64);
    connected.end();
}

#[test]
fn nobody_there_is_an_error() {
    let (_dir, paths) = sockets(1);
    let link = Link { timeout: Duration::from_millis(50), ..Link::to(paths.clone()) };
    let connect = |link: &Link| Guest::connect(link).map(|_| ());
    assert!(matches!(connect(&link), Err(GuestError::Session(SessionError::Connect { .. }))));
    let listen = Link { server: true, ..link.clone() };
    assert!(matches!(connect(&listen), Err(GuestError::Session(SessionError::NoBackend(_)))));
    assert!(!paths[0].exists());
    assert!(matches!(connect(&Link { sockets: vec![], ..link }), Err(GuestError::Config(_))));
}

#[test]
fn a_backend_that_lets_nobody_in_is_not_waited_for_without_limit() {
    let (_dir, paths) = sockets(1);
    // Not std's listener: its backlog is as long as the system allows.
    let _listener = unix::listen(unix::bind(&paths[0]).unwrap()).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = unix::connect(&paths[0]) {
        waiting.push(stream);
        assert!(waiting.len() < 1000);
    }
    let link = Link { timeout: Duration::from_millis(50), ..Link::to(paths) };
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(Guest::connect(&link).map(|_| ())));
    let result = ended.recv_timeout(Duration::from_secs(20)).expect("an end");
    assert!(matches!(result, Err(GuestError::Session(SessionError::Connect { .. }))));
}

#[test]
fn a_guest_that_listens_takes_nobodys_place() {
    let (_dir, paths) = sockets(2);
    let refused = |path: &PathBuf| {
        let link = Link { server: true, ..Link::to([path]) };
        match Guest::connect(&link).map(|_| ()) {
            Err(GuestError::Session(SessionError::Socket(error))) => error,
            other => panic!("{other:?}"),
        }
    };
    let _busy = std::os::unix::net::UnixListener::bind(&paths[0]).unwrap();
    assert!(matches!(refused(&paths[0]), SocketFileError::Live { .. }));
    assert!(paths[0].exists());
    std::fs::write(&paths[1], "precious").unwrap();
    assert!(matches!(refused(&paths[1]), SocketFileError::NotSocket { .. }));
    assert_eq!(std::fs::read_to_string(&paths[1]).unwrap(), "precious");
}

#[test]
fn a_backend_that_goes_away_is_noticed() {
    let (_dir, paths) = sockets(1);
    let backend = Loopback::start(Config::new(&paths));
    let mut guest = Guest::connect(&Link::to(paths)).unwrap();
    backend.hang_up();
    backend.join();
    let result = guest.rxonly(64, Some(Duration::from_secs(10)), &AtomicBool::new(false));
    assert!(matches!(result, Err(GuestError::Disconnected(0))));
}

#[test]
fn raw_rings_are_the_tests_own() {
    let (_dir, paths) = sockets(1);
    let backend = Loopback::start(Config::new(&paths));
    let mut guest = RawGuest::connect(&Link::to(paths)).unwrap();
    guest.start(0, 0).unwrap();
    guest.start(1, 0).unwrap();
    let at = guest.scratch();
    let (to, from) = (guest.ram.guest(at), guest.ram.guest(at + 4096));
    let writable = RawDesc { addr: to, len: 100, flags: ringbridge::frontend::DESC_WRITE, next: 0 };
    guest.rings[0].post(7, &[writable]);
    guest.ram.write(at + 4096 + 12, b"fourteen bytes and more");
    let header = RawDesc { addr: from, len: 12, flags: DESC_NEXT, next: 4 };
    let data = RawDesc { addr: from + 12, len: 23, flags: 0, next: 0 };
    guest.rings[1].post(3, &[header, data]);
    guest.rings[1].kick();
    assert!(guest.rings[1].wait_used(1, Duration::from_secs(5)));
    assert!(guest.rings[0].wait_used(1, Duration::from_secs(5)));
    assert_eq!(guest.rings[1].used(0).0, 3);
    assert_eq!(guest.rings[0].used(0), (7, 12 + 23));
    assert!(guest.rings[0].take_call());
    let mut seen = [0; 23];
    guest.ram.read(at + 12, &mut seen);
    assert_eq!(&seen, b"fourteen bytes and more");
    assert_eq!(guest.session.stop_ring(0).unwrap(), 1);
    drop(guest);
    backend.join();
}
