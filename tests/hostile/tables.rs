//! Memory that a frontend must not share, or not like that: refused and counted. A table that is
//! refused stops the rings, because the old one is no longer true; a region that is, nothing.

use super::attack::{Attack, Way};
use super::common::bridge::alone;
use super::neighbour::Street;
use super::wire::{self, After, Message, expect_fds, expect_refused};
use ringbridge::sys::memfd;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use vmm_sys_util::eventfd::EventFd;

const PAGE: u64 = 4096;
/// Where nobody's memory is.
const FREE: u64 = 1 << 45;

/// Mappings of the files that are sent here.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("hostile-table")).count()
}

fn memory(len: u64) -> File {
    memfd(c"hostile-table", len).unwrap()
}

/// A region of a page: guest address, bytes, user address, offset.
fn page(at: u64) -> [u64; 4] {
    [at, PAGE, at, 0]
}

/// Memory that cannot be written.
fn sealed() -> OwnedFd {
    let name = CString::new("hostile-table").unwrap();
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the fd is new.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), flags);
        assert!(fd >= 0);
        <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    file.set_len(PAGE).unwrap();
    // SAFETY: F_ADD_SEALS takes an integer.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) }, 0);
    file.into()
}

/// What no guest's memory is made of, and why it is refused.
fn no_memory() -> Vec<(&'static str, OwnedFd)> {
    let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
    let of_memory = memory(PAGE);
    let read_only = format!("/proc/self/fd/{}", of_memory.as_raw_fd());
    let (reader, writer) = io::pipe().unwrap();
    vec![
        ("memory_kind", open("/")),
        ("memory_kind", open("/proc/self/exe")),
        ("memory_kind", open("/proc/self/status")),
        ("memory_kind", open("/dev/null")),
        ("memory_kind", open("/dev/zero")),
        ("memory_kind", reader.into()),
        ("memory_kind", writer.into()),
        ("memory_kind", UnixStream::pair().unwrap().0.into()),
        ("memory_kind", eventfd()),
        ("memory_map", open(&read_only)),
        ("memory_map", sealed()),
    ]
}

fn eventfd() -> OwnedFd {
    let fd = std::os::fd::IntoRawFd::into_raw_fd(EventFd::new(0).unwrap());
    // SAFETY: just taken out of its owner.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

#[test]
fn tables_that_cannot_be() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    let (whole, sparse) = (memory(4 * PAGE), memory(5 << 40));
    let fd = whole.as_raw_fd();
    let end = u64::MAX;
    let cases: Vec<(&str, Vec<[u64; 4]>, RawFd)> = vec![
        ("memory_overlaps", vec![page(0), page(0)], fd),
        ("memory_overlaps", vec![page(PAGE), [0, PAGE + 1, FREE, 0]], fd),
        ("memory_overlaps", vec![page(0), [FREE, PAGE, PAGE - 1, 0]], fd),
        ("memory_overlaps", vec![[0, 4 * PAGE, 0, 0], page(PAGE), page(FREE)], fd),
        ("memory_past_end", vec![[0, 4 * PAGE + 1, 0, 0]], fd),
        ("memory_past_end", vec![[0, 4 * PAGE, 0, 1]], fd),
        ("memory_past_end", vec![[0, PAGE, 0, 1 << 62]], fd),
        ("memory_past_end", vec![[0, 1 << 62, 0, 0]], fd),
        ("memory_past_end", vec![page(0), page(FREE), [1, 1, 1 << 50, 4 * PAGE]], fd),
        ("memory_too_much", vec![[0, 5 << 40, 0, 0]], sparse.as_raw_fd()),
        ("memory_too_much", vec![[0, 3 << 40, 0, 0], [FREE, 3 << 40, FREE, 0]], sparse.as_raw_fd()),
        // The crate that decodes messages finds these.
        ("memory_table", vec![[0, 0, 0, 0]], fd),
        ("memory_table", vec![page(0), [FREE, 0, FREE, 0]], fd),
        ("memory_table", vec![[end - PAGE + 2, PAGE, 0, 0]], fd),
        ("memory_table", vec![[0, PAGE, end - PAGE + 2, 0]], fd),
        ("memory_table", vec![[0, PAGE, 0, end - PAGE + 2]], fd),
        ("memory_table", vec![[0, end, 1, 0]], fd),
        // Nothing is wrong but that the rings are elsewhere.
        ("ring_address", vec![page(0)], fd),
        ("ring_address", vec![[1, PAGE - 1, 1, 1]], fd),
    ];
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    for (reason, regions, fd) in cases {
        let message = Message::table(&regions, &vec![fd; regions.len()]);
        expect_refused(&mut attack, &message, reason, After::Stopped);
        assert_eq!(mappings(), 0, "{regions:x?}");
    }
    drop((attack, whole, sparse));
    expect_fds(before, "after all tables");
    street.finish();
}

/// The guest's own addresses, but the bytes lie at odd places: the rings cannot be there.
#[test]
fn rings_at_odd_offsets() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    let ram = &attack.raw.ram;
    let (guest, user, size) = (ram.guest(0), ram.user(0), ram.size() as u64);
    let file = memory(size + PAGE);
    for offset in [1, 2, 8, 0x801, PAGE - 1] {
        let message = Message::table(&[[guest, size, user, offset]], &[file.as_raw_fd()]);
        expect_refused(&mut attack, &message, "ring_address", After::Stopped);
    }
    street.finish();
}

#[test]
fn memory_of_the_wrong_kind() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    for (reason, fd) in no_memory() {
        let table = Message::table(&[page(0)], &[fd.as_raw_fd()]);
        expect_refused(&mut attack, &table, reason, After::Stopped);
        let [guest, size, user, offset] = page(FREE);
        let region = Message::new(wire::ADD_MEM_REG, &[0, guest, size, user, offset]);
        expect_refused(&mut attack, &region.with(&[fd.as_raw_fd()]), reason, After::Works);
    }
    drop(attack);
    expect_fds(before, "after all kinds");
    street.finish();
}

/// A region more, under a running ring.
#[test]
fn regions_that_cannot_be_added() {
    let _alone = alone();
    let street = Street::new();
    let before = wire::fds();
    let (whole, sparse) = (memory(4 * PAGE), memory(5 << 40));
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    let (guest, user) = (attack.raw.ram.guest(0), attack.raw.ram.user(0));
    let cases = [
        ("memory_overlaps", [guest, PAGE, FREE, 0], &whole),
        ("memory_overlaps", [FREE, PAGE, user, 0], &whole),
        ("memory_overlaps", [guest - 1, PAGE, FREE, 0], &whole),
        ("memory_past_end", [FREE, 5 * PAGE, FREE, 0], &whole),
        ("memory_past_end", [FREE, PAGE, FREE, 1 << 60], &whole),
        ("memory_too_much", [FREE, 4 << 40, FREE, 0], &sparse),
    ];
    for (reason, [guest, size, user, offset], file) in cases {
        let region = Message::new(wire::ADD_MEM_REG, &[0, guest, size, user, offset]);
        let region = region.with(&[file.as_raw_fd()]);
        expect_refused(&mut attack, &region, reason, After::Works);
        assert_eq!(mappings(), 0, "{reason}");
    }
    drop((attack, whole, sparse));
    expect_fds(before, "after all regions");
    street.finish();
}
