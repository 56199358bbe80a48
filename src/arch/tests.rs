//! The leaf against `portable`: copies byte by byte, at every alignment, between guard bytes and
//! beside pages that must not be touched; the fence by the one thing it must forbid.

use super::{Step, Word16, portable};
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Copy = unsafe fn(*mut u8, *const u8, usize);

/// Every copy there is on this machine, with the shortest length it is for.
fn copies() -> Vec<(&'static str, Copy, usize)> {
    let mut all: Vec<(&str, Copy, usize)> =
        vec![("copy", super::copy, 0), ("portable", portable::copy, 0)];
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    all.push(("copy_by_64", super::copy::copy_by_64, 129));
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        all.push(("copy_avx2", super::leaf::copy::copy_avx2, 129));
    } else {
        println!("no AVX2 here: copy_avx2 is not tested");
    }
    all
}

/// xorshift: enough to spread alignments and contents, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

const LARGE: [usize; 9] = [1024, 1025, 1500, 1518, 4095, 4096, 9000, 9018, 65535];

/// Any page size that Linux has on these architectures.
const PAGE: usize = 65536;

#[test]
fn copies_what_portable_copies_and_nothing_more() {
    const GUARD: usize = 128;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let room = PAGE + 64 + 2 * GUARD;
    let source: Vec<u8> = (0..room).map(|_| random.next() as u8).collect();
    let (mut got, mut want) = (vec![0u8; room], vec![0u8; room]);
    for (name, copy, least) in copies() {
        for len in (least..=600).chain(LARGE) {
            for _ in 0..if len > 600 { 4 } else { 8 } {
                let (from, to) = (random.below(64), GUARD + random.below(64));
                let fill = random.next() as u8;
                got[..to + len + GUARD].fill(fill);
                want[..to + len + GUARD].fill(fill);
                // SAFETY: both ranges lie inside their vectors, which are different ones.
                unsafe {
                    copy(got[to..].as_mut_ptr(), source[from..].as_ptr(), len);
                    portable::copy(want[to..].as_mut_ptr(), source[from..].as_ptr(), len);
                }
                let end = to + len + GUARD;
                assert!(got[..end] == want[..end], "{name}: {len} bytes, {from} to {to}");
                assert_eq!(got[to..to + len], source[from..from + len], "portable itself");
            }
        }
    }
}

/// A readable stretch with an inaccessible page on either side.
struct Fenced {
    map: *mut u8,
}

impl Fenced {
    const INSIDE: usize = 2 * PAGE;

    fn new() -> Self {
        let len = Self::INSIDE + 2 * PAGE;
        // SAFETY: a new anonymous mapping, of which the inside is then made accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(map.byte_add(PAGE), Self::INSIDE, access), 0);
            Fenced { map: map.cast() }
        }
    }

    /// Where `len` bytes begin that end at the upper fence, or that begin at the lower one.
    fn place(&self, len: usize, at_end: bool) -> *mut u8 {
        let offset = if at_end { Self::INSIDE - len } else { 0 };
        // SAFETY: inside the mapping.
        unsafe { self.map.add(PAGE + offset) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, used by nobody any more.
        unsafe { libc::munmap(self.map.cast(), Self::INSIDE + 2 * PAGE) };
    }
}

#[test]
fn touches_no_byte_beside_either_range() {
    let (source, target) = (Fenced::new(), Fenced::new());
    for (name, copy, least) in copies() {
        for len in (least..=600).chain(LARGE) {
            for ends in [(true, true), (true, false), (false, true), (false, false)] {
                let (src, dst) = (source.place(len, ends.0), target.place(len, ends.1));
                let mark = len as u8 | 1;
                // SAFETY: `len` bytes are accessible at both places; a copy that reaches
                // further than that faults.
                let last = unsafe {
                    src.write_bytes(mark, len);
                    dst.write_bytes(0, len);
                    copy(dst, src, len);
                    if len == 0 { mark } else { dst.add(len - 1).read() }
                };
                assert_eq!(last, mark, "{name}: {len} bytes, at the end: {ends:?}");
            }
        }
    }
}

#[test]
fn words_hold_what_was_stored() {
    let mut cell = 0u16;
    // SAFETY: `cell` is aligned and outlives the word; nothing else uses it meanwhile.
    let word = unsafe { Word16::new(&raw mut cell) };
    word.store(7);
    assert_eq!(word.load_acquire(Step::LoadAvailIdx), 7);
    word.store_release(0xfffe, Step::PublishUsedIdx);
    assert_eq!(word.load(), 0xfffe);

    let mut wide = [0x1122_3344_5566_7788u64, 0x99aa_bbcc_ddee_ff00];
    let at = wide.as_mut_ptr();
    // SAFETY: all of `wide`, which is aligned to 8.
    unsafe {
        assert_eq!(super::load_u128(at.cast()), (wide[0], wide[1]));
        assert_eq!(super::load_u64(at), wide[0]);
        assert_eq!(super::load_u16(at.cast()), 0x7788);
        super::store_u64(at.add(1), 5);
        assert_eq!(super::load_u64(at.add(1)), 5);
    }
}

/// Two threads store to a word each, fence, and load the other's: not both may see nothing
/// (this is what the notify check and the recheck after arming rest on). Gives the number of
/// rounds in which both did. Ends after some seconds even where the threads share one CPU.
fn both_saw_nothing(fence: fn()) -> usize {
    const ROUNDS: u16 = 20_000;
    let limit = Instant::now() + Duration::from_secs(3);
    let words: [AtomicU16; 2] = Default::default();
    let reached: [AtomicU16; 2] = Default::default();
    let start = Barrier::new(2);
    let run = |me: usize| {
        let mut seen = Vec::with_capacity(ROUNDS as usize);
        start.wait();
        for round in 1..=ROUNDS {
            reached[me].store(round, Relaxed);
            while reached[1 - me].load(Relaxed) < round {
                if Instant::now() > limit {
                    return seen;
                }
                super::relax();
            }
            words[me].store(round, Relaxed);
            fence();
            seen.push(words[1 - me].load(Relaxed) >= round);
        }
        seen
    };
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        (run(0), other.join().unwrap())
    });
    one.iter().zip(&other).filter(|(a, b)| !**a && !**b).count()
}

#[test]
fn a_fence_lies_between_a_store_and_a_later_load() {
    assert_eq!(both_saw_nothing(|| super::full_fence(Step::BeforeNotifyCheck)), 0);
    assert_eq!(both_saw_nothing(portable::full_fence), 0);
}

#[test]
fn counters_run_forward_and_prefetches_touch_nothing() {
    for cycles in [super::cycles, portable::cycles] {
        let before = cycles();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1) {
            super::relax();
        }
        assert!(cycles() > before);
    }
    let (read, write) = (super::prefetch_read, super::prefetch_write);
    for nowhere in [ptr::null_mut(), ptr::without_provenance_mut(usize::MAX)] {
        read(nowhere);
        write(nowhere);
        portable::prefetch_read(nowhere);
        portable::prefetch_write(nowhere);
    }
}
