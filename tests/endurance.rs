//! A bridge that has been through a lot is as it was: frontends that come and go ten thousand
//! times, tables that are swapped a thousand times, while a neighbour's packets go on.

mod common;
#[path = "control/guest.rs"]
#[allow(dead_code)]
mod guest;

use common::backend::Backend;
use common::bridge::{LIMIT, Peer, alone};
use common::wait_until;
use guest::{negotiate, start_rings};
use ringbridge::frontend::{Guest, GuestOptions, Link, Report, Sizes, VerifyPlan};
use ringbridge::sys::memfd;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Kilobytes that a process may have more than before without having leaked: what the allocator
/// keeps of buffers that were in use at once. A hundred bytes a session would be more.
const KEPT: u64 = 1000;

/// Ports 0 and 1 are worn, 2 and 3 are the neighbour's.
struct Bed {
    backend: Backend,
    stop: Arc<AtomicBool>,
    neighbour: Option<JoinHandle<Report>>,
}

impl Bed {
    fn new() -> Self {
        let backend = Backend::start(4, "", &["--json", "-q"]);
        let options = GuestOptions { event_idx: true, interrupts: true, ..GuestOptions::default() };
        let sockets = backend.sockets()[2..].to_vec();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let neighbour = thread::spawn(move || {
            let mut guest = Guest::connect(&Link { options, ..Link::to(sockets) }).unwrap();
            let plan = VerifyPlan { sizes: Sizes { min: 14, max: 1518 }, in_flight: 32 };
            guest.verify(plan, Some(30 * LIMIT), &flag).unwrap()
        });
        Bed { backend, stop, neighbour: Some(neighbour) }
    }

    /// After `times` of `wear` all is as it was after a few.
    fn endures(mut self, times: usize, wear: impl Fn(&Backend, usize)) {
        // Whatever is made once is made by then.
        wear(&self.backend, times.div_ceil(20));
        let state = |backend: &Backend| (backend.fds(), backend.mapped());
        let quiet = |backend: &Backend| {
            let mut last = state(backend);
            let settled = wait_until(LIMIT, || {
                thread::sleep(Duration::from_millis(20));
                let before = std::mem::replace(&mut last, state(backend));
                before == last
            });
            assert!(settled);
            last
        };
        let (before, rss) = (quiet(&self.backend), self.backend.rss_anon());
        wear(&self.backend, times);
        let as_it_was = wait_until(LIMIT, || state(&self.backend) == before);
        assert!(as_it_was, "{:?} fds and mappings, {before:?} before", state(&self.backend));
        let now = self.backend.rss_anon();
        assert!(now <= rss + KEPT, "{now} kB, {rss} before");
        self.stop.store(true, Ordering::Relaxed);
        let report = self.neighbour.take().unwrap().join().unwrap();
        let losses = [report.lost, report.corrupt, report.duplicated, report.lost_interrupts];
        assert_eq!(losses, [0; 4], "lost, corrupt, duplicated, interrupts lost");
        assert!(report.rx_packets > 0);
        let totals = self.backend.finish();
        for port in [2, 3] {
            assert_eq!(totals["ports"][port]["drops"], serde_json::json!({}));
        }
    }
}

#[test]
fn ten_thousand_frontends_leave_nothing_behind() {
    let _alone = alone();
    Bed::new().endures(10_000, |backend, times| {
        let socket = &backend.sockets()[0];
        for i in 0..times {
            let stream = UnixStream::connect(socket).unwrap();
            // Most leave with their rings running, some at once, some after a word.
            match i % 10 {
                0 => {}
                1 => drop(negotiate(stream)),
                2 => (&stream).write_all(&[3, 0, 0, 0, 1]).unwrap(),
                _ => {
                    let mut frontend = negotiate(stream);
                    start_rings(&mut frontend);
                }
            }
        }
        // The last one is gone when the next one is served.
        negotiate(UnixStream::connect(socket).unwrap());
    });
}

#[test]
fn a_thousand_tables_under_load_leave_nothing_behind() {
    let _alone = alone();
    Bed::new().endures(1000, |backend, times| {
        let mut far = Peer::connect(&backend.sockets()[1]);
        let Peer { mut session, mut rings } = Peer::connect(&backend.sockets()[0]);
        rings.settle();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let ram = Arc::clone(rings.ram());
            scope.spawn(|| {
                let ram = ram;
                (0..times).for_each(|_| session.send_memory(&ram).unwrap());
                done.store(true, Ordering::Relaxed);
            });
            let mut sent = 0_u64;
            while !done.load(Ordering::Relaxed) {
                let frame = sent.to_ne_bytes().repeat(20);
                rings.send(&frame);
                assert_eq!(far.receive(), frame);
                sent += 1;
            }
        });
    });
}

/// A whole session, as bytes and the fds that go with them.
struct Recorded(Vec<(Vec<u8>, Vec<RawFd>)>);

impl Recorded {
    fn new(memory: RawFd, event: RawFd) -> Self {
        let user = 0x7f00_0000_0000_u64;
        let mut all = Recorded(Vec::new());
        all.push(3, &[], &[]);
        all.push(1, &[], &[]);
        all.push(16, &[1 << 0 | 1 << 3 | 1 << 13], &[]);
        all.push(2, &[1 << 32 | 1 << 30], &[]);
        all.push(5, &[1, 0, 1 << 20, user, 0], &[memory]);
        for index in 0..2 {
            let base = user + index * 0x8000;
            all.push(8, &[256 << 32 | index], &[]);
            all.push(10, &[index], &[]);
            all.push(9, &[index, base, base + 0x2000, base + 0x4000, 0], &[]);
            all.push(13, &[index], &[event]);
            all.push(12, &[index], &[event]);
            all.push(18, &[1 << 32 | index], &[]);
        }
        all.push(11, &[0], &[]);
        all
    }

    fn push(&mut self, request: u32, body: &[u64], fds: &[RawFd]) {
        let mut bytes = [request, 1, body.len() as u32 * 8].map(u32::to_ne_bytes).concat();
        bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        self.0.push((bytes, fds.to_vec()));
    }

    fn len(&self) -> usize {
        self.0.iter().map(|(bytes, _)| bytes.len()).sum()
    }

    /// Send the first `len` bytes.
    fn send(&self, stream: &UnixStream, mut len: usize) {
        for (bytes, fds) in &self.0 {
            let part = &bytes[..len.min(bytes.len())];
            if part.is_empty() {
                return;
            }
            stream.send_with_fds(&[part], fds).unwrap();
            len -= part.len();
        }
    }
}

#[test]
fn a_session_may_be_cut_off_after_any_byte() {
    let _alone = alone();
    let (memory, event) = (memfd(c"cut", 1 << 20).unwrap(), EventFd::new(EFD_NONBLOCK).unwrap());
    let session = Recorded::new(memory.as_raw_fd(), event.as_raw_fd());
    Bed::new().endures(1, |backend, _| {
        let socket = &backend.sockets()[0];
        for cut in 0..=session.len() {
            session.send(&UnixStream::connect(socket).unwrap(), cut);
        }
        // The whole of it is a session like any other: it is asked for a ring's index.
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        session.send(&stream, session.len());
        // Features, then the base of ring 0.
        let mut answers = [0; 40];
        stream.read_exact(&mut answers).unwrap();
        assert_eq!(answers[20..24], 11_u32.to_ne_bytes());
    });
}

/// Without an fd for one who connects the bridge waits, without haste, and serves them when
/// there is one.
#[test]
fn out_of_fds_it_waits_and_then_serves() {
    let _alone = alone();
    let backend = Backend::start(1, "", &[]);
    // Lower than any number that is free.
    backend.limit_fds(3);
    let stream = UnixStream::connect(&backend.sockets()[0]).unwrap();
    let said = || backend.log().matches("cannot accept").count();
    assert!(wait_until(LIMIT, || said() == 1), "{}", backend.log());
    let (start, before) = (Instant::now(), backend.cpu_time());
    thread::sleep(Duration::from_millis(600));
    let used = Duration::from_nanos(backend.cpu_time() - before);
    assert!(used * 10 < start.elapsed(), "{used:?} of {:?}", start.elapsed());
    assert_eq!(said(), 1, "{}", backend.log());
    backend.limit_fds(1024);
    negotiate(stream);
}
