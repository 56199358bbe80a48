//! A connection driven message by message, its rings run by nobody.

mod orders;

use super::{Device, RingLost, Rings, run_session};
use crate::config::Offer;
use crate::journal::{Event, Followers, Journal, Moment};
use crate::virtio::SplitRing;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vhost::vhost_user::message::{FrontendReq, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

const PROTOCOL: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
const MTU: u64 = 1 << 3;
const RING: u16 = 256;
const USER: u64 = 0x7f00_0000_0000;
const MIB: u64 = 1 << 20;

/// Keeps the rings it is given and notes what happens to them.
#[derive(Default)]
struct Held {
    running: Mutex<BTreeMap<u16, Box<SplitRing>>>,
    events: Mutex<Vec<String>>,
}

impl Held {
    fn note(&self, event: String) {
        self.events.lock().unwrap().push(event);
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    fn running(&self) -> Vec<u16> {
        self.running.lock().unwrap().keys().copied().collect()
    }

    fn enabled(&self, index: u16) -> bool {
        self.running.lock().unwrap()[&index].enabled()
    }
}

impl Rings for Held {
    fn start(&self, index: u16, ring: Box<SplitRing>) {
        self.note(format!("start {index}"));
        assert!(self.running.lock().unwrap().insert(index, ring).is_none());
    }

    fn stop(&self, index: u16) -> Result<Box<SplitRing>, RingLost> {
        self.note(format!("stop {index}"));
        self.running.lock().unwrap().remove(&index).ok_or(RingLost(index))
    }

    fn inject(&self, frame: Arc<[u8]>) -> Result<(), RingLost> {
        self.note(format!("inject {frame:02x?}"));
        Ok(())
    }
}

/// A frontend and the session that serves it.
struct Guest {
    frontend: Frontend,
    raw: UnixStream,
    rings: Arc<Held>,
    journal: Arc<Journal>,
    session: Option<std::thread::JoinHandle<()>>,
}

impl Guest {
    fn connect(queues: u16) -> Self {
        Self::connect_to(queues, &Arc::new(Journal::new("test", &Arc::default())))
    }

    fn connect_to(queues: u16, journal: &Arc<Journal>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let raw = ours.try_clone().unwrap();
        raw.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let rings = Arc::new(Held::default());
        let held = Arc::clone(&rings);
        let (told, journal) = (Arc::clone(journal), Arc::clone(journal));
        let session = std::thread::spawn(move || {
            let device = Device { journal: told, queues, offer: Offer::ALL };
            run_session(&theirs, &device, &*held);
        });
        let frontend = Frontend::from_stream(ours, 256);
        frontend.set_owner().unwrap();
        Guest { frontend, raw, rings, journal, session: Some(session) }
    }

    /// Negotiated, every message answered.
    fn negotiated(queues: u16) -> Self {
        let mut guest = Self::connect(queues);
        let offered = guest.frontend.get_features().unwrap();
        let protocol = guest.frontend.get_protocol_features().unwrap();
        guest.frontend.set_protocol_features(protocol).unwrap();
        guest.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        guest.frontend.set_features(offered & (VERSION_1 | PROTOCOL)).unwrap();
        guest
    }

    /// Every message sent before this was handled.
    fn settle(&self) {
        self.frontend.get_features().unwrap();
    }

    fn place(&self, index: u16) {
        let base = USER + u64::from(index) * 0x1_0000;
        let at = VringConfigData {
            queue_max_size: RING,
            queue_size: RING,
            flags: 0,
            desc_table_addr: base,
            used_ring_addr: base + 0x4000,
            avail_ring_addr: base + 0x8000,
            log_addr: None,
        };
        self.frontend.set_vring_addr(index.into(), &at).unwrap();
        self.frontend.set_vring_num(index.into(), RING).unwrap();
    }

    fn kick(&self, index: u16) {
        self.frontend.set_vring_kick(index.into(), &eventfd()).unwrap();
    }

    fn share(&self, memory: &File) {
        self.frontend.set_mem_table(&[region(0, USER, MIB, memory.as_raw_fd())]).unwrap();
    }

    fn base(&self, index: u16) -> u32 {
        self.frontend.get_vring_base(index.into()).unwrap()
    }

    /// A message as it is written, without waiting for an answer.
    fn send(&self, request: FrontendReq, flags: u32, body: &[u64], fds: &[RawFd]) {
        let body: Vec<u8> = body.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let header = [request as u32, 1 | flags, body.len() as u32];
        let header: Vec<u8> = header.iter().flat_map(|w| w.to_ne_bytes()).collect();
        self.raw.send_with_fds(&[&header[..], &body[..]], fds).unwrap();
    }

    fn received_answer(&self) -> u64 {
        let mut message = [0; 20];
        (&self.raw).read_exact(&mut message).unwrap();
        assert_eq!(message[4] & 7, 5);
        u64::from_ne_bytes(message[12..].try_into().unwrap())
    }

    /// The connection was closed by the backend, and the session ended.
    fn closed(&mut self) {
        assert_eq!((&self.raw).read(&mut [0]).unwrap(), 0);
        self.session.take().unwrap().join().unwrap();
    }

    /// Leave; the session ends.
    fn leave(mut self) -> Arc<Held> {
        self.raw.shutdown(std::net::Shutdown::Both).unwrap();
        self.session.take().unwrap().join().unwrap();
        Arc::clone(&self.rings)
    }
}

fn eventfd() -> EventFd {
    EventFd::new(EFD_NONBLOCK).unwrap()
}

fn memfd(name: &str) -> File {
    crate::sys::memfd(&CString::new(name).unwrap(), 4 * MIB).unwrap()
}

fn region(guest: u64, user: u64, size: u64, fd: RawFd) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: size,
        userspace_addr: user,
        mmap_offset: 0,
        mmap_handle: fd,
    }
}

/// How often the file is mapped in this process.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// How many fds of this process lead to the file.
fn fds(name: &str) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|e| std::fs::read_link(e.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains(name)).count()
}

#[test]
fn a_kicked_ring_starts_disabled_and_is_enabled_by_message() {
    let mut guest = Guest::negotiated(1);
    guest.share(&memfd("a"));
    guest.place(0);
    assert!(guest.rings.events().is_empty());
    guest.kick(0);
    assert_eq!(guest.rings.events(), ["start 0"]);
    assert!(!guest.rings.enabled(0));
    guest.frontend.set_vring_enable(0, true).unwrap();
    guest.frontend.set_vring_enable(1, true).unwrap();
    assert_eq!(guest.rings.events(), ["stop 0", "start 0"]);
    guest.place(1);
    guest.kick(1);
    assert!(guest.rings.enabled(0) && guest.rings.enabled(1));
    // Neither new features nor a new table disable it.
    guest.frontend.set_features(PROTOCOL).unwrap();
    guest.share(&memfd("b"));
    assert!(guest.rings.enabled(0) && guest.rings.enabled(1));
    guest.frontend.set_vring_enable(0, false).unwrap();
    assert!(!guest.rings.enabled(0) && guest.rings.enabled(1));
}

/// What is logged while `run` runs on this thread.
fn logged(run: impl FnOnce()) -> String {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let writer = Mutex::new(writer);
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    tracing::subscriber::with_default(log, run);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_ring_that_lies_is_named_in_the_log_whatever_it_went_through() {
    let mut guest = Guest::negotiated(1);
    let memory = memfd("lying");
    guest.share(&memory);
    for _ in 0..2 {
        guest.place(1);
        guest.kick(1);
        // `avail.idx`.
        memory.write_all_at(&0x8000u16.to_le_bytes(), 0x1_8002).unwrap();
        let line = logged(|| {
            let mut running = guest.rings.running.lock().unwrap();
            assert_eq!(running.get_mut(&1).unwrap().room(), 0);
        });
        assert!(
            line.contains("WARN") && line.contains("test: ring 1 stopped: avail.idx"),
            "{line}"
        );
        guest.frontend.reset_device().unwrap();
    }
}

#[test]
fn without_protocol_features_rings_are_enabled_from_the_start() {
    let guest = Guest::connect(1);
    let offered = guest.frontend.get_features().unwrap();
    guest.frontend.set_features(offered & !PROTOCOL).unwrap();
    guest.share(&memfd("a"));
    for index in 0..2 {
        guest.place(index);
        guest.kick(index);
    }
    guest.settle();
    assert!(guest.rings.enabled(0) && guest.rings.enabled(1));
}

#[test]
fn a_ring_starts_when_the_last_piece_arrives() {
    let guest = Guest::negotiated(2);
    guest.kick(0);
    guest.place(0);
    guest.kick(3);
    guest.place(3);
    assert!(guest.rings.running().is_empty());
    guest.share(&memfd("a"));
    assert_eq!(guest.rings.running(), [0, 3]);
    guest.kick(1);
    assert_eq!(guest.rings.running(), [0, 3]);
    guest.place(1);
    assert_eq!(guest.rings.running(), [0, 1, 3]);
    // Polled: a kick without an fd.
    guest.place(2);
    guest.send(FrontendReq::SET_VRING_KICK, 0, &[0x102], &[]);
    guest.settle();
    assert_eq!(guest.rings.running(), [0, 1, 2, 3]);
    let running = guest.rings.running.lock().unwrap();
    assert!(running[&2].kick().is_none() && running[&3].kick().is_some());
}

#[test]
fn a_running_ring_survives_changes_at_its_index() {
    let guest = Guest::negotiated(1);
    guest.share(&memfd("first-table"));
    guest.place(1);
    guest.frontend.set_vring_base(1, 65_530).unwrap();
    guest.kick(1);
    assert_eq!(mappings("first-table"), 1);
    assert_eq!(guest.rings.events(), ["start 1"]);
    guest.share(&memfd("second-table"));
    assert_eq!((mappings("first-table"), mappings("second-table")), (0, 1));
    assert_eq!(fds("first-table"), 0);
    assert_eq!(guest.rings.events(), ["stop 1", "start 1"]);
    guest.place(1);
    guest.frontend.set_vring_call(1, &eventfd()).unwrap();
    guest.frontend.set_vring_err(1, &eventfd()).unwrap();
    guest.kick(1);
    guest.frontend.set_features(VERSION_1 | PROTOCOL).unwrap();
    // Addresses, size, call, err, kick, features.
    assert_eq!(guest.rings.events(), ["stop 1", "start 1"].repeat(6));
    assert_eq!(guest.base(1), 65_530);
    assert_eq!(guest.rings.events(), ["stop 1"]);
    // The kick is forgotten: the ring stays stopped whatever comes, until a new one.
    guest.share(&memfd("third-table"));
    guest.place(1);
    assert!(guest.rings.events().is_empty());
    guest.kick(1);
    assert_eq!(guest.rings.events(), ["start 1"]);
    assert_eq!(guest.base(1), 65_530);
}

#[test]
fn base_is_returned_whatever_the_ring_is() {
    let guest = Guest::negotiated(1);
    assert_eq!(guest.base(0), 0);
    guest.frontend.set_vring_base(1, 77).unwrap();
    assert_eq!(guest.base(1), 77);
    assert_eq!(guest.base(1), 77);
}

#[test]
fn a_new_call_fd_is_signalled_once() {
    let guest = Guest::negotiated(1);
    guest.share(&memfd("a"));
    guest.place(0);
    let (before, running) = (eventfd(), eventfd());
    guest.frontend.set_vring_call(0, &before).unwrap();
    guest.kick(0);
    assert_eq!(before.read().unwrap(), 1);
    guest.frontend.set_vring_call(0, &running).unwrap();
    guest.share(&memfd("b"));
    assert_eq!(running.read().unwrap(), 1);
    assert!(before.read().is_err());
    // No fd: nothing to signal.
    guest.send(FrontendReq::SET_VRING_CALL, 0, &[0x100], &[]);
    guest.settle();
    assert_eq!(guest.rings.running(), [0]);
}

#[test]
fn fds_become_non_blocking() {
    let guest = Guest::negotiated(1);
    let fds = [0; 3].map(|_| EventFd::new(0).unwrap());
    guest.frontend.set_vring_kick(0, &fds[0]).unwrap();
    guest.frontend.set_vring_call(0, &fds[1]).unwrap();
    guest.frontend.set_vring_err(0, &fds[2]).unwrap();
    for fd in fds {
        // SAFETY: a plain query on an open fd.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
        assert!(flags & libc::O_NONBLOCK != 0);
    }
}

#[test]
fn a_refused_table_stops_the_rings_and_the_connection_lives() {
    let guest = Guest::negotiated(1);
    guest.share(&memfd("a"));
    guest.place(0);
    guest.kick(0);
    let disk = File::open("/proc/self/status").unwrap();
    assert!(guest.frontend.set_mem_table(&[region(0, USER, MIB, disk.as_raw_fd())]).is_err());
    assert!(guest.rings.running().is_empty());
    guest.share(&memfd("b"));
    assert_eq!(guest.rings.running(), [0]);
    // Too short for the rings that run in it.
    let short = memfd("c");
    let elsewhere = region(0, USER + 0x10_0000, MIB, short.as_raw_fd());
    assert!(guest.frontend.set_mem_table(&[elsewhere]).is_err());
    assert!(guest.rings.running().is_empty());
    guest.share(&memfd("d"));
    assert_eq!(guest.rings.running(), [0]);
    // Without fds, with an answer asked for and without.
    let table = [1, 0, MIB, USER, 0];
    guest.send(FrontendReq::SET_MEM_TABLE, 8, &table, &[]);
    assert_eq!(guest.received_answer(), 1);
    guest.settle();
    assert!(guest.rings.running().is_empty());
    guest.share(&memfd("e"));
    assert_eq!(guest.rings.running(), [0]);
    guest.send(FrontendReq::SET_MEM_TABLE, 0, &table, &[]);
    guest.settle();
    assert!(guest.rings.running().is_empty());
}

#[test]
fn refused_settings_stop_a_ring_until_they_are_replaced() {
    let guest = Guest::negotiated(1);
    guest.share(&memfd("a"));
    guest.place(0);
    guest.kick(0);
    assert!(guest.frontend.set_vring_num(0, 255).is_err());
    assert!(guest.rings.running().is_empty());
    guest.frontend.set_vring_num(0, 128).unwrap();
    assert_eq!(guest.rings.running(), [0]);
    assert_eq!(guest.rings.running.lock().unwrap()[&0].size(), 128);
    let outside = [0, USER - 16, USER + 0x4000, USER + 0x8000, 0];
    guest.send(FrontendReq::SET_VRING_ADDR, 0, &outside, &[]);
    guest.settle();
    assert!(guest.rings.running().is_empty());
    guest.place(0);
    assert_eq!(guest.rings.running(), [0]);
    guest.send(FrontendReq::SET_VRING_BASE, 8, &[1 << 48], &[]);
    assert_eq!(guest.received_answer(), 1);
    assert_eq!(guest.rings.running(), [0]);
    guest.send(FrontendReq::SET_VRING_NUM, 8, &[0x1_0100 << 32], &[]);
    assert_eq!(guest.received_answer(), 1);
    assert!(guest.rings.running().is_empty());
}

#[test]
fn what_was_not_offered_is_refused() {
    let mut guest = Guest::negotiated(2);
    let before = guest.rings.events();
    assert!(guest.frontend.set_features(1 << 34 | PROTOCOL).is_err());
    for index in [4, 255] {
        assert!(guest.frontend.set_vring_num(index, 256).is_err());
        assert!(guest.frontend.set_vring_base(index, 0).is_err());
        assert!(guest.frontend.set_vring_kick(index, &eventfd()).is_err());
        assert!(guest.frontend.set_vring_call(index, &eventfd()).is_err());
        assert!(guest.frontend.set_vring_err(index, &eventfd()).is_err());
        assert!(guest.frontend.set_vring_enable(index, true).is_err());
    }
    assert_eq!(guest.frontend.get_max_mem_slots().unwrap(), 509);
    assert_eq!(guest.frontend.get_queue_num().unwrap(), 2);
    guest.send(FrontendReq::SET_PROTOCOL_FEATURES, 8, &[1 << 5], &[]);
    assert_eq!(guest.rings.events(), before);
    guest.settle();
}

#[test]
fn a_question_that_has_no_answer_closes_the_connection() {
    let mut guest = Guest::negotiated(1);
    guest.share(&memfd("a"));
    guest.place(0);
    guest.kick(0);
    guest.send(FrontendReq::GET_VRING_BASE, 0, &[2], &[]);
    guest.closed();
    assert!(guest.rings.running().is_empty());
}

#[test]
fn rings_may_be_enabled_before_features_are_set() {
    let mut guest = Guest::connect(1);
    guest.frontend.get_features().unwrap();
    let protocol = guest.frontend.get_protocol_features().unwrap();
    guest.frontend.set_protocol_features(protocol).unwrap();
    guest.send(FrontendReq::SET_VRING_ENABLE, 0, &[1 << 32], &[]);
    guest.send(FrontendReq::SET_VRING_ENABLE, 8, &[1 << 32 | 1], &[]);
    assert_eq!(guest.received_answer(), 0);
    guest.send(FrontendReq::SET_VRING_ENABLE, 8, &[1 << 32 | 2], &[]);
    assert_eq!(guest.received_answer(), 1);
    guest.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    guest.frontend.set_features(VERSION_1 | PROTOCOL).unwrap();
    guest.share(&memfd("a"));
    guest.place(0);
    guest.kick(0);
    assert!(guest.rings.enabled(0));
    guest.send(FrontendReq::SET_VRING_ENABLE, 0, &[2 << 32], &[]);
    guest.closed();
}

#[test]
fn header_and_body_may_come_apart() {
    let guest = Guest::negotiated(1);
    guest.share(&memfd("a"));
    guest.place(0);
    guest.kick(0);
    let enable = [FrontendReq::SET_VRING_ENABLE as u32, 1, 8, 0, 1];
    let bytes: Vec<u8> = enable.iter().flat_map(|w| w.to_ne_bytes()).collect();
    (&guest.raw).write_all(&bytes[..12]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    (&guest.raw).write_all(&bytes[12..]).unwrap();
    guest.settle();
    assert!(guest.rings.enabled(0));
}

#[test]
fn resets_stop_and_forget_all_rings() {
    for device in [false, true] {
        let mut guest = Guest::negotiated(1);
        guest.share(&memfd("a"));
        for index in 0..2 {
            guest.place(index);
            guest.frontend.set_vring_base(index.into(), 9).unwrap();
            guest.frontend.set_vring_enable(index.into(), true).unwrap();
            guest.kick(index);
        }
        if device {
            guest.frontend.reset_device().unwrap();
        } else {
            guest.frontend.reset_owner().unwrap();
        }
        assert!(guest.rings.running().is_empty());
        assert_eq!(guest.base(1), 0);
        guest.kick(0);
        assert!(guest.rings.running().is_empty());
        guest.place(0);
        assert_eq!(guest.rings.running(), [0]);
        assert!(!guest.rings.enabled(0));
    }
}

#[test]
fn regions_come_and_go_under_running_rings() {
    let mut guest = Guest::negotiated(1);
    let (low_file, high_file) = (memfd("low-region"), memfd("high-region"));
    let low = region(0, USER, MIB, low_file.as_raw_fd());
    let high = region(MIB, USER + MIB, MIB, high_file.as_raw_fd());
    guest.place(0);
    guest.kick(0);
    guest.frontend.add_mem_region(&low).unwrap();
    assert_eq!(guest.rings.running(), [0]);
    guest.rings.events();
    guest.frontend.add_mem_region(&high).unwrap();
    assert_eq!(guest.rings.events(), ["stop 0", "start 0"]);
    // QEMU 7.2 adds and removes each region once for each queue pair.
    guest.frontend.add_mem_region(&high).unwrap();
    guest.frontend.remove_mem_region(&high).unwrap();
    let other = region(MIB, USER + MIB, MIB, low_file.as_raw_fd());
    assert!(guest.frontend.add_mem_region(&other).is_err(), "another file");
    assert!(guest.rings.events().is_empty());
    assert_eq!((mappings("low-region"), mappings("high-region")), (1, 1));
    guest.frontend.remove_mem_region(&high).unwrap();
    assert_eq!((mappings("low-region"), mappings("high-region")), (1, 0));
    assert_eq!(guest.rings.running(), [0]);
    assert!(guest.frontend.remove_mem_region(&high).is_err());
    // The ring lies in it.
    assert!(guest.frontend.remove_mem_region(&low).is_err());
    assert!(guest.rings.running().is_empty());
    assert_eq!(mappings("low-region"), 0);
    guest.frontend.add_mem_region(&low).unwrap();
    assert_eq!(guest.rings.running(), [0]);
}

/// What was told of, without the connection and the rings.
fn told(follow: &Receiver<Moment>) -> Vec<String> {
    let events = follow.try_iter().map(|moment| moment.event);
    let rest = events.filter(|event| matches!(event, Event::Features { .. } | Event::Note { .. }));
    rest.map(|event| event.to_string()).collect()
}

#[test]
fn features_are_told_once_and_so_is_that_there_is_no_memory() {
    let followers = Arc::<Followers>::default();
    let follow = followers.follow();
    let guest = Guest::connect_to(2, &Arc::new(Journal::new("test", &followers)));
    for _ in 0..2 {
        for _ in 0..2 {
            guest.frontend.set_features(VERSION_1 | PROTOCOL).unwrap();
        }
        guest.frontend.set_features(PROTOCOL).unwrap();
    }
    guest.settle();
    let features = [
        "features 0x140000000: PROTOCOL_FEATURES VERSION_1",
        "features 0x40000000: PROTOCOL_FEATURES",
    ];
    assert_eq!(told(&follow), [features, features].concat());
    for ring in 0..4 {
        guest.kick(ring);
    }
    guest.settle();
    let [note] = &told(&follow)[..] else { panic!() };
    assert!(note.contains("no memory was shared") && note.ends_with("share=on?"), "{note}");
}

#[test]
fn there_are_509_slots() {
    let mut guest = Guest::negotiated(1);
    let memory = memfd("slots");
    let slot = |i: u64| region(i * 0x2000, USER + i * 0x2000, 0x1000, memory.as_raw_fd());
    for i in 0..509 {
        guest.frontend.add_mem_region(&slot(i)).unwrap();
    }
    assert!(guest.frontend.add_mem_region(&slot(509)).is_err());
    guest.frontend.remove_mem_region(&slot(100)).unwrap();
    guest.frontend.add_mem_region(&slot(509)).unwrap();
    guest.leave();
}

#[test]
fn the_end_of_a_connection_gives_everything_back() {
    let guest = Guest::negotiated(4);
    let name = "left-behind";
    guest.share(&memfd(name));
    let (kick, call) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    for index in 0..8 {
        guest.place(index);
        guest.send(FrontendReq::SET_VRING_KICK, 0, &[index.into()], &[kick.1.as_raw_fd()]);
        guest.send(FrontendReq::SET_VRING_CALL, 0, &[index.into()], &[call.1.as_raw_fd()]);
    }
    // These have no place in the message they come with.
    guest.send(FrontendReq::SET_VRING_NUM, 0, &[RING.into()], &[]);
    guest.settle();
    assert_eq!(guest.rings.running().len(), 8);
    assert_eq!((mappings(name), fds(name)), (1, 0));
    let rings = guest.leave();
    assert!(rings.running().is_empty());
    assert_eq!((mappings(name), fds(name)), (0, 0));
    for (mut mine, theirs) in [kick, call] {
        drop(theirs);
        // It ends, or would have to be waited for.
        crate::sys::unix::set_nonblocking(&mine).unwrap();
        let mut signals = Vec::new();
        mine.read_to_end(&mut signals).unwrap();
    }
}

#[test]
fn a_ring_that_does_not_come_back_ends_the_connection() {
    let mut guest = Guest::negotiated(1);
    guest.share(&memfd("lost"));
    for index in 0..2 {
        guest.place(index);
        guest.kick(index);
    }
    // A worker that hangs has it, and what is mapped for it.
    let lost = guest.rings.running.lock().unwrap().remove(&0);
    guest.rings.events();
    guest.send(FrontendReq::SET_VRING_CALL, 0, &[0x100], &[]);
    guest.closed();
    assert_eq!(guest.rings.events(), ["stop 0", "stop 1"]);
    assert_eq!(mappings("lost"), 1);
    drop(lost);
    assert_eq!(mappings("lost"), 0);
}
