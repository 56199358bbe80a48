//! Fds of the wrong kind where an eventfd should be: whatever comes, nobody waits for it, and the
//! ring works as far as it can without.

use super::attack::{Attack, WAYS};
use super::common::bridge::{LIMIT, alone};
use super::common::wait_until;
use super::neighbour::Street;
use super::wire::{self, After, Message, connect, expect_fds, expect_refused, served};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use vmm_sys_util::epoll::Epoll;
use vmm_sys_util::eventfd::EventFd;

/// A blocking eventfd with this value.
fn event(value: u64) -> OwnedFd {
    let event = EventFd::new(0).unwrap();
    event.write(value).unwrap();
    // SAFETY: the clone's fd is nobody else's: it is taken out of its owner.
    unsafe { OwnedFd::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(event)) }
}

/// A pipe that takes no byte more; its read end must stay open.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    ringbridge::sys::unix::set_nonblocking(&writer).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    (reader.into(), writer.into())
}

/// The ring names a descriptor that it does not have; that is counted.
fn break_ring(attack: &mut Attack, what: &str) {
    let (broken, _) = wire::refused(attack.bed, "ring_broken");
    attack.ring().post_head(u16::MAX);
    attack.provoke();
    attack.bed.expect(what, |_| wire::refused(attack.bed, "ring_broken").0 == broken + 1);
}

/// What somebody may send, by name.
fn kinds() -> Vec<(&'static str, OwnedFd)> {
    let (read_end, write_end) = std::io::pipe().unwrap();
    let (no_writer, _) = std::io::pipe().unwrap();
    let (_, no_reader) = std::io::pipe().unwrap();
    let (full_reader, full) = full_pipe();
    let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
    vec![
        ("a pipe's read end", read_end.into()),
        ("a pipe's write end", write_end.into()),
        ("a pipe without a writer", no_writer.into()),
        ("a pipe without a reader", no_reader.into()),
        ("a full pipe's read end", full_reader),
        ("a full pipe", full),
        ("a blocking eventfd", event(0)),
        ("a pending eventfd", event(1)),
        ("a full eventfd", event(u64::MAX - 1)),
        ("a directory", open("/")),
        ("a file", open("/proc/self/exe")),
        ("a file that is made as it is read", open("/proc/self/status")),
        ("nothing", open("/dev/null")),
        ("zeros", File::options().read(true).write(true).open("/dev/zero").unwrap().into()),
        ("a device without room", File::create("/dev/full").unwrap().into()),
        ("memory", ringbridge::sys::memfd(c"no-event", 4096).unwrap().into()),
    ]
}

#[test]
fn kick_call_and_err_of_every_kind() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        for (what, fd) in kinds() {
            for request in [wire::SET_VRING_KICK, wire::SET_VRING_CALL, wire::SET_VRING_ERR] {
                let what = format!("{way:?}, message {request}, {what}");
                let (_, refused) = wire::refused(&street.bed, "");
                let message = Message::new(request, &[way.index() as u64]);
                message.with(&[fd.as_raw_fd()]).send(attack.raw.session.stream()).unwrap();
                assert!(served(attack.raw.session.stream()), "{what}");
                attack.settle();
                attack.expect_working(&what);
                // What can be waited for by nobody is polled, which is no refusal; what cannot
                // be signalled is one.
                let silent = request == wire::SET_VRING_CALL && !what.contains("eventfd");
                let expected = refused + u64::from(silent);
                assert_eq!(wire::refused(&street.bed, "").1, expected, "{what}");
                let used = attack.used;
                assert_eq!(attack.stop(), used, "{what}");
                attack.start(used);
                attack.raw.session.set_ring_error(way.index(), &attack.err).unwrap();
            }
        }
        drop(attack);
    }
    expect_fds(before, "after all kinds");
    street.finish();
}

/// The open file is shared: once a full counter was accepted, the frontend makes it blocking
/// again. Nobody waits for it all the same.
#[test]
fn a_full_counter_that_is_made_blocking_behind_our_back() {
    let _alone = alone();
    let street = Street::new();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        for request in [wire::SET_VRING_CALL, wire::SET_VRING_ERR] {
            let fd = event(u64::MAX - 1);
            let message = Message::new(request, &[way.index() as u64]).with(&[fd.as_raw_fd()]);
            message.send(attack.raw.session.stream()).unwrap();
            assert!(served(attack.raw.session.stream()));
            // SAFETY: takes an integer.
            assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR) }, 0);
            attack.settle();
            for _ in 0..10 {
                attack.expect_working("with a full counter");
            }
            break_ring(&mut attack, "with a full counter");
            street.expect_service();
            attack.stop();
            attack.start(9);
        }
    }
    street.finish();
}

/// A ring that breaks tells it to whatever is there.
#[test]
fn errors_are_told_to_whatever_is_there() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        for (what, fd) in kinds() {
            let message = Message::new(wire::SET_VRING_ERR, &[way.index() as u64]);
            message.with(&[fd.as_raw_fd()]).send(attack.raw.session.stream()).unwrap();
            assert!(served(attack.raw.session.stream()), "{what}");
            attack.settle();
            break_ring(&mut attack, what);
            attack.stop();
            attack.start(9);
            attack.expect_working(what);
        }
    }
    expect_fds(before, "after all kinds");
    street.finish();
}

/// What can keep other fds open is refused, and the ring goes on with the fd it has.
#[test]
fn fds_that_keep_other_fds() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    for way in WAYS {
        let mut attack = Attack::new(&street.bed, way);
        let socket = UnixStream::pair().unwrap().0;
        let epoll = Epoll::new().unwrap();
        for fd in [socket.as_raw_fd(), epoll.as_raw_fd()] {
            for request in [wire::SET_VRING_KICK, wire::SET_VRING_CALL, wire::SET_VRING_ERR] {
                let message = Message::new(request, &[way.index() as u64]).with(&[fd]);
                expect_refused(&mut attack, &message, "fd", After::Works);
            }
        }
    }
    expect_fds(before, "after fds that keep others");
    street.finish();
}

/// A frontend that sends its own end of the connection and leaves: we hold no end of it that
/// would keep the port taken for ever.
#[test]
fn the_sessions_own_socket() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    for request in [wire::SET_VRING_KICK, wire::SET_VRING_CALL, wire::SET_VRING_ERR] {
        let (refused, _) = wire::refused(&street.bed, "fd");
        let stream = connect(&street.bed.socket(0));
        let own = Message { flags: 1, ..Message::new(request, &[0]) };
        own.with(&[stream.as_raw_fd()]).send(&stream).unwrap();
        drop(stream);
        let counted = || wire::refused(&street.bed, "fd").0 == refused + 1;
        assert!(wait_until(LIMIT, counted), "message {request}");
        expect_fds(before, "after the socket itself");
    }
    for way in WAYS {
        Attack::new(&street.bed, way).expect_working("after it");
    }
    street.finish();
}
