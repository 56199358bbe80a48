//! Frontends that shrink the file behind their guest's memory while rings use it: their session
//! ends, with a reason, and nothing else does.

use super::attack::{Attack, HEADER, WAYS, Way};
use super::common::bridge::{LIMIT, alone};
use super::common::{hugepages, required, wait_until};
use super::neighbour::Street;
use ringbridge::frontend::{RawDesc, Region};
use ringbridge::sys::memfd;
use std::fs::File;
use std::os::fd::FromRawFd;

/// Fds of this process, and mappings of guests' memory.
fn held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (fds, maps.lines().filter(|line| line.contains("ringbridge-guest")).count())
}

/// As much as before or less: the end of what was before the test may have been under way. A leak
/// would be one for each session.
fn returned(before: (usize, usize)) -> bool {
    let (fds, maps) = held();
    fds <= before.0 && maps <= before.1
}

/// The rings are in the first half, `at` in the second.
fn in_the_second_half(attack: &Attack, len: u32) -> RawDesc {
    attack.desc(attack.end() - 0x8000, len)
}

#[test]
fn memory_that_is_truncated_under_busy_rings_ends_that_session_alone() {
    let _alone = alone();
    let street = Street::new();
    let before = held();
    let mut truncated = 0;
    for round in 0..4 {
        for way in WAYS {
            for half in [false, true] {
                let what = format!("{way:?}, half {half}, round {round}");
                let mut attack = Attack::new(&street.bed, way);
                attack.expect_working(&what);
                let desc = in_the_second_half(&attack, HEADER + 3000);
                for head in 0..100 {
                    attack.ring().post(head, &[desc]);
                }
                let file = &attack.raw.ram.regions()[0].file;
                let len = attack.raw.ram.size() as u64;
                file.set_len(if half { len / 2 } else { 0 }).unwrap();
                // From here on we may not look at the memory either.
                attack.provoke();
                let gone = wait_until(LIMIT, || !attack.raw.session.alive());
                assert!(gone, "{what}: the session lives on");
                truncated += 1;
                street.bed.expect(&what, |snapshot| {
                    snapshot.ports[0].refused.get("memory_truncated") == Some(&truncated)
                });
                drop(attack);
            }
        }
        street.expect_service();
    }
    assert!(wait_until(LIMIT, || returned(before)), "{:?} are held, {before:?} were", held());
    // And an honest guest is served where they were.
    for way in WAYS {
        Attack::new(&street.bed, way).expect_working("after it");
    }
    street.finish();
}

/// In the middle of many packets, again and again, with the guest's own threads still at work.
#[test]
fn memory_that_is_truncated_in_the_middle_of_a_burst() {
    let _alone = alone();
    let street = Street::new();
    for round in 0..20_u64 {
        let mut attack = Attack::new(&street.bed, Way::FromGuest);
        let desc = in_the_second_half(&attack, HEADER + 20_000);
        for head in 0..250 {
            attack.ring().post(head, &[desc]);
        }
        attack.ring().kick();
        let file = attack.raw.ram.regions()[0].file.try_clone().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(round * 7));
        file.set_len(0).unwrap();
        attack.ring().kick();
        assert!(wait_until(LIMIT, || !attack.raw.session.alive()), "round {round}");
    }
    street.finish();
}

/// The dirty log is a file of the frontend's as well.
#[test]
fn a_dirty_log_that_is_truncated_in_use_ends_that_session_alone() {
    let _alone = alone();
    let street = Street::new();
    let before = held();
    let mut truncated = 0;
    for half in [false, true] {
        for way in WAYS {
            let what = format!("{way:?}, half {half}");
            let mut attack = Attack::new(&street.bed, way);
            let len = attack.end().div_ceil(8 * 4096);
            let log = memfd(c"truncated-log", len).unwrap();
            let area = attack.ring().area();
            let (at, used) = (area.user_addresses(), area.used_guest());
            let session = &mut attack.raw.session;
            session.set_log_base(&log, (0, len)).unwrap();
            session.set_logging(true).unwrap();
            session.place_ring(way.index(), at, Some(used)).unwrap();
            attack.settle();
            attack.expect_working(&what);
            assert!(attack.raw.session.alive(), "{what}");
            // The guest's addresses are in the second half.
            log.set_len(if half { len / 2 } else { 0 }).unwrap();
            let desc = attack.good(HEADER + 100);
            for head in 0..100 {
                attack.ring().post(head, &[desc]);
            }
            attack.provoke();
            let gone = wait_until(LIMIT, || !attack.raw.session.alive());
            assert!(gone, "{what}: the session lives on");
            truncated += 1;
            street.bed.expect(&what, |snapshot| {
                snapshot.ports[0].refused.get("memory_truncated") == Some(&truncated)
            });
        }
        street.expect_service();
    }
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
    let gone = || returned(before) && !maps().contains("truncated-log");
    assert!(wait_until(LIMIT, gone), "{:?} are held, {before:?} were", held());
    Attack::new(&street.bed, Way::FromGuest).expect_working("after it");
    street.finish();
}

/// As for memfd, with pages that can only be put over as a whole.
#[test]
fn huge_pages_that_are_truncated_end_that_session_alone() {
    const HUGE: usize = 2 << 20;
    let _alone = alone();
    if !required(hugepages(16), "no huge pages are free") {
        return;
    }
    let street = Street::new();
    for (n, way) in (1..).zip(WAYS) {
        let what = format!("{way:?}");
        let mut attack = Attack::new(&street.bed, way);
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        // SAFETY: a C string; the descriptor is nobody else's.
        let file = unsafe {
            let fd = libc::memfd_create(c"huge-truncated".as_ptr(), flags);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        };
        file.set_len(4 * HUGE as u64).unwrap();
        let (guest, user) = (1 << 45, 1 << 46);
        let region = Region { guest, user, size: 4 * HUGE, file };
        attack.raw.session.add_region(&region).unwrap();
        attack.settle();
        attack.expect_working(&what);
        // From page to page, the last of them gone.
        region.file.set_len(HUGE as u64).unwrap();
        for head in 0..100_u16 {
            let addr = guest + u64::from(head) % 4 * HUGE as u64 + HUGE as u64 - 1500;
            let desc = attack.desc(addr, HEADER + 3000);
            attack.ring().post(head, &[desc]);
            attack.provoke();
        }
        let gone = wait_until(LIMIT, || !attack.raw.session.alive());
        assert!(gone, "{what}: the session lives on");
        street.bed.expect(&what, |snapshot| {
            snapshot.ports[0].refused.get("memory_truncated") == Some(&n)
        });
        street.expect_service();
    }
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(wait_until(LIMIT, || !maps().contains("huge-truncated")), "{}", maps());
    street.finish();
}
