//! A guest's memory as the frontend shared it.
//!
//! Promises: the regions are sorted, do not overlap, are mapped once and stay mapped while the
//! `Arc<GuestMemory>` lives; every address handed out covers the whole range that was asked
//! for. Made by `vhost_user`, held by each running ring. A table never changes: adding or
//! removing a region makes a new one that shares the other mappings. Never touches a guest
//! byte itself and never prefaults.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::Arc;

mod dirty;
mod mapping;
mod registry;

pub use dirty::DirtyLog;
pub use mapping::Alarm;
use mapping::Mapping;

/// A region as the frontend described it (vhost-user, "Memory region description").
#[derive(Debug)]
pub struct RegionSpec {
    /// Guest physical address.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// The same region in the frontend's own address space; ring addresses are given in it.
    pub user: u64,
    /// Where the region begins in `file`.
    pub offset: u64,
    /// What to map.
    pub file: File,
}

/// Why a memory table was refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// No region at all.
    #[error("the memory table is empty")]
    Empty,
    /// A region of no bytes.
    #[error("region at {0:#x} has no bytes")]
    Zero(u64),
    /// Guest or user address plus size leaves the address space.
    #[error("region at {0:#x} wraps around the address space")]
    Wraps(u64),
    /// Two regions share a guest address or a user address.
    #[error("the region at {0:#x} overlaps another one")]
    Overlaps(u64),
    /// More than any guest has.
    #[error("with the region at {0:#x} the guest would have more than 4 TiB")]
    TooMuch(u64),
    /// A dirty log that no guest needs.
    #[error("a dirty log of {0} bytes is longer than any guest needs (128 GiB)")]
    LogTooLong(u64),
    /// The file ends before the region does.
    #[error("region at {guest:#x} is longer than its file: it ends at {end} of {len} bytes")]
    PastEnd {
        /// Guest address of the region.
        guest: u64,
        /// Its end in the file.
        end: u64,
        /// Length of the file.
        len: u64,
    },
    /// The file is not one that guest memory comes from.
    #[error(
        "region at {0:#x} is not on tmpfs, memfd or hugetlbfs (is the memory backend share=on?)"
    )]
    Kind(u64),
    /// mmap failed.
    #[error("cannot map the region at {guest:#x}")]
    Map {
        /// Guest address of the region.
        guest: u64,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// fstat or fstatfs failed.
    #[error("cannot examine the file of the region at {guest:#x}")]
    File {
        /// Guest address of the region.
        guest: u64,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl MemoryError {
    /// The name that refused tables are counted by.
    pub fn reason(&self) -> &'static str {
        match self {
            MemoryError::Empty => "memory_empty",
            MemoryError::Zero(_) => "memory_zero",
            MemoryError::Wraps(_) => "memory_wraps",
            MemoryError::Overlaps(_) => "memory_overlaps",
            MemoryError::TooMuch(_) | MemoryError::LogTooLong(_) => "memory_too_much",
            MemoryError::PastEnd { .. } => "memory_past_end",
            MemoryError::Kind(_) => "memory_kind",
            MemoryError::Map { .. } | MemoryError::File { .. } => "memory_map",
        }
    }
}

/// Most bytes of one guest: 4 TiB. A sparse file costs a frontend nothing, and mapping 128 TiB of
/// it would take all the address space, so that the next allocation of any thread ends the
/// process.
const MOST: u64 = 4 << 40;

#[derive(Debug, Clone)]
struct Region {
    guest: u64,
    size: u64,
    user: u64,
    /// Device, inode, and where the region begins: what it is a mapping of.
    origin: (u64, u64, u64),
    /// How often it was added, less how often it was removed.
    additions: u32,
    /// Bytes mapped before the region's first one, because mappings begin at a page.
    lead: usize,
    map: Arc<Mapping>,
}

/// A stretch of guest addresses and where it is mapped: what a ring remembers of its last hit.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    base: u64,
    size: u64,
    host: NonNull<u8>,
}

// SAFETY: a window is a plain address; whoever uses it holds the `GuestMemory` it came from.
unsafe impl Send for Window {}

impl Window {
    /// Contains nothing.
    pub const EMPTY: Window = Window { base: 0, size: 0, host: NonNull::dangling() };

    /// Where `len` bytes at guest address `addr` are mapped, if all of them lie inside.
    #[inline(always)]
    pub fn translate(&self, addr: u64, len: u64) -> Option<NonNull<u8>> {
        let offset = addr.wrapping_sub(self.base);
        if len <= self.size && offset <= self.size - len {
            // SAFETY: offset + len <= size, which is mapped.
            Some(unsafe { self.host.add(offset as usize) })
        } else {
            None
        }
    }

    /// How many bytes from `addr` to the end of the window; 0 if `addr` is not inside.
    #[inline]
    pub fn bytes_from(&self, addr: u64) -> u64 {
        self.size.saturating_sub(addr.wrapping_sub(self.base))
    }
}

/// Leads from mapped addresses back to guest addresses, while the memory it came from lives.
#[derive(Debug)]
pub struct WayBack(Vec<Window>);

impl WayBack {
    /// The guest address of a mapped byte.
    pub fn guest(&self, ptr: *const u8) -> Option<u64> {
        let after = self.0.partition_point(|w| w.host.as_ptr().cast_const() <= ptr);
        let window = &self.0[after.checked_sub(1)?];
        let offset = (ptr.addr() - window.host.addr().get()) as u64;
        (offset < window.size).then(|| window.base + offset)
    }
}

/// The regions of one guest.
#[derive(Debug)]
pub struct GuestMemory {
    regions: Vec<Region>,
    /// Rings when a file turns out to be shorter than it was.
    alarm: Arc<Alarm>,
}

impl GuestMemory {
    /// Check a table and map it. `alarm` rings when a file is truncated later.
    ///
    /// # Errors
    /// What is wrong with which region. Nothing stays mapped then.
    pub fn map(specs: Vec<RegionSpec>, alarm: &Arc<Alarm>) -> Result<Arc<Self>, MemoryError> {
        if specs.is_empty() {
            return Err(MemoryError::Empty);
        }
        extend(Vec::new(), specs, alarm)
    }

    /// This table with one region more.
    ///
    /// # Errors
    /// What is wrong with the new region.
    pub fn with(&self, spec: RegionSpec) -> Result<Arc<Self>, MemoryError> {
        extend(self.regions.clone(), vec![spec], &self.alarm)
    }

    /// This table with a region added once more that it has already, the same part of the same
    /// file; nothing if it has not. It stays until it was removed as often: QEMU before version 8
    /// adds and removes each region once for each queue pair.
    pub fn again(&self, spec: &RegionSpec) -> Option<Arc<Self>> {
        let file = check(spec).ok()?;
        let same = |r: &&mut Region| {
            (r.guest, r.size, r.user) == (spec.guest, spec.size, spec.user)
                && r.origin == origin(spec, &file)
                && r.additions < u32::MAX
        };
        let mut regions = self.regions.clone();
        regions.iter_mut().find(same)?.additions += 1;
        Some(Arc::new(GuestMemory { regions, alarm: Arc::clone(&self.alarm) }))
    }

    /// This table without the region that is described by exactly these numbers, if there is
    /// one (vhost-user, `VHOST_USER_REM_MEM_REG`); it stays if it was added more than once.
    pub fn without(&self, guest: u64, size: u64, user: u64) -> Option<Arc<Self>> {
        let at = |r: &Region| (r.guest, r.size, r.user) == (guest, size, user);
        let mut regions = self.regions.clone();
        let at = regions.iter().position(at)?;
        regions[at].additions -= 1;
        if regions[at].additions == 0 {
            regions.remove(at);
        }
        Some(Arc::new(GuestMemory { regions, alarm: Arc::clone(&self.alarm) }))
    }

    /// The region that holds guest address `addr`.
    pub fn window(&self, addr: u64) -> Option<Window> {
        let after = self.regions.partition_point(|r| r.guest <= addr);
        let region = &self.regions[after.checked_sub(1)?];
        (addr - region.guest < region.size).then(|| Window {
            base: region.guest,
            size: region.size,
            host: host(region),
        })
    }

    /// Where `len` bytes at the frontend's address `user` are mapped, if one region holds all
    /// of them. For ring addresses, which are given in this address space.
    pub fn translate_user(&self, user: u64, len: u64) -> Option<NonNull<u8>> {
        self.regions
            .iter()
            .find_map(|r| Window { base: r.user, size: r.size, host: host(r) }.translate(user, len))
    }

    /// The way back from where it is mapped to the guest's addresses.
    pub fn way_back(&self) -> WayBack {
        let window = |r: &Region| Window { base: r.guest, size: r.size, host: host(r) };
        let mut windows: Vec<_> = self.regions.iter().map(window).collect();
        windows.sort_by_key(|w| w.host);
        WayBack(windows)
    }

    /// Total bytes.
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.size).sum()
    }

    /// Number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }
}

fn host(region: &Region) -> NonNull<u8> {
    // SAFETY: the mapping has as many bytes before the region, and the region behind them.
    unsafe { region.map.ptr().add(region.lead) }
}

/// Check everything about `specs`, the neighbourhood of `regions` included, before the first
/// of them is mapped.
fn extend(
    mut regions: Vec<Region>,
    specs: Vec<RegionSpec>,
    alarm: &Arc<Alarm>,
) -> Result<Arc<GuestMemory>, MemoryError> {
    let mut files = Vec::with_capacity(specs.len());
    for spec in &specs {
        files.push(check(spec)?);
    }
    check_total(regions.iter().map(|r| r.size).sum(), &specs)?;
    let known = regions.iter().map(|r| (r.guest, r.user, r.size));
    let new = specs.iter().map(|s| (s.guest, s.user, s.size));
    check_overlap(known.chain(new).collect())?;
    for (spec, file) in specs.into_iter().zip(files) {
        regions.push(map_region(spec, &file, alarm)?);
    }
    regions.sort_by_key(|r| r.guest);
    Ok(Arc::new(GuestMemory { regions, alarm: Arc::clone(alarm) }))
}

/// Together with the `taken` bytes there are already, at most [`MOST`].
fn check_total(taken: u64, specs: &[RegionSpec]) -> Result<(), MemoryError> {
    let mut left = MOST.saturating_sub(taken);
    for spec in specs {
        left = left.checked_sub(spec.size).ok_or(MemoryError::TooMuch(spec.guest))?;
    }
    Ok(())
}

/// Everything about a region alone.
fn check(spec: &RegionSpec) -> Result<Metadata, MemoryError> {
    check_range(spec)?;
    check_file(spec)
}

fn check_range(spec: &RegionSpec) -> Result<(), MemoryError> {
    if spec.size == 0 {
        return Err(MemoryError::Zero(spec.guest));
    }
    let ends = [spec.guest, spec.user, spec.offset].map(|start| start.checked_add(spec.size));
    if ends.contains(&None) || usize::try_from(spec.size).is_err() {
        return Err(MemoryError::Wraps(spec.guest));
    }
    Ok(())
}

/// tmpfs (which is memfd too) or hugetlbfs, and as long as claimed: a mapping past the end of
/// its file faults, and one of a disk file may block the worker (law 6 of the crate).
fn check_file(spec: &RegionSpec) -> Result<Metadata, MemoryError> {
    let guest = spec.guest;
    let file_error = |source| MemoryError::File { guest, source };
    // SAFETY: an all-zero statfs is a valid value to be overwritten.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the fd is open and `fs` is writable.
    if unsafe { libc::fstatfs(spec.file.as_raw_fd(), &raw mut fs) } != 0 {
        return Err(file_error(std::io::Error::last_os_error()));
    }
    let file = spec.file.metadata().map_err(file_error)?;
    if ![libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&fs.f_type) || !file.is_file() {
        return Err(MemoryError::Kind(guest));
    }
    let (end, len) = (spec.offset + spec.size, file.len());
    if end > len { Err(MemoryError::PastEnd { guest, end, len }) } else { Ok(file) }
}

/// Neither in the guest's address space nor in the frontend's may two regions share a byte.
fn check_overlap(mut regions: Vec<(u64, u64, u64)>) -> Result<(), MemoryError> {
    for start in [|r: &(u64, u64, u64)| r.1, |r: &(u64, u64, u64)| r.0] {
        regions.sort_by_key(start);
        for pair in regions.windows(2) {
            if start(&pair[1]) - start(&pair[0]) < pair[0].2 {
                return Err(MemoryError::Overlaps(pair[1].0));
            }
        }
    }
    Ok(())
}

/// Map whole pages of the file, huge ones if it has them (they are its block size): a region
/// may begin and end inside one, but `mmap` and `munmap` of hugetlbfs refuse that.
fn map_region(
    spec: RegionSpec,
    file: &Metadata,
    alarm: &Arc<Alarm>,
) -> Result<Region, MemoryError> {
    let origin = origin(&spec, file);
    let RegionSpec { guest, size, user, offset, file: fd } = spec;
    let page = file.blksize().max(4096);
    let lead = offset % page;
    let pages = (offset - lead, (lead + size).next_multiple_of(page) as usize);
    let map = Mapping::new(&fd, pages, page as usize, alarm)
        .map_err(|source| MemoryError::Map { guest, source })?;
    Ok(Region { guest, size, user, origin, additions: 1, lead: lead as usize, map: Arc::new(map) })
}

fn origin(spec: &RegionSpec, file: &Metadata) -> (u64, u64, u64) {
    (file.dev(), file.ino(), spec.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn memfd(len: u64) -> File {
        crate::sys::memfd(c"test", len).unwrap()
    }

    fn spec(guest: u64, size: u64, user: u64, file: &File) -> RegionSpec {
        RegionSpec { guest, size, user, offset: 0, file: file.try_clone().unwrap() }
    }

    fn byte(memory: &GuestMemory, guest: u64) -> u8 {
        let window = memory.window(guest).unwrap();
        // SAFETY: one byte inside a live mapping.
        unsafe { window.translate(guest, 1).unwrap().as_ptr().read_volatile() }
    }

    #[test]
    fn regions_are_sorted_and_found_by_both_addresses() {
        let (a, b) = (memfd(0x2000), memfd(0x1000));
        a.write_at(&[1], 0x1fff).unwrap();
        b.write_at(&[2], 0).unwrap();
        let memory = GuestMemory::map(
            vec![spec(0x3000, 0x1000, 0x10_0000, &b), spec(0x1000, 0x2000, 0, &a)],
            &Arc::default(),
        )
        .unwrap();
        assert_eq!((memory.regions(), memory.size()), (2, 0x3000));
        assert_eq!((byte(&memory, 0x2fff), byte(&memory, 0x3000)), (1, 2));
        assert!(memory.window(0xfff).is_none());
        assert!(memory.window(0x4000).is_none());
        assert!(memory.window(0x1000).unwrap().translate(0x2fff, 2).is_none());
        assert!(memory.translate_user(0x10_0000, 0x1000).is_some());
        assert!(memory.translate_user(0x10_0000, 0x1001).is_none());
        assert!(memory.translate_user(0x2000, 1).is_none());
    }

    #[test]
    fn an_offset_inside_a_page_is_honoured() {
        let file = memfd(0x5000);
        file.write_at(&[7], 0x1800).unwrap();
        file.write_at(&[9], 0x4fff).unwrap();
        let region = RegionSpec { offset: 0x1800, ..spec(0x10_0000, 0x3800, 0, &file) };
        let memory = GuestMemory::map(vec![region], &Arc::default()).unwrap();
        assert_eq!((byte(&memory, 0x10_0000), byte(&memory, 0x10_37ff)), (7, 9));
    }

    #[test]
    fn regions_come_and_go_while_the_old_table_stays_mapped() {
        let (a, b) = (memfd(0x1000), memfd(0x1000));
        b.write_at(&[5], 0).unwrap();
        let one =
            GuestMemory::map(vec![spec(0, 0x1000, 0x7000_0000, &a)], &Arc::default()).unwrap();
        let two = one.with(spec(0x1000, 0x1000, 0x8000_0000, &b)).unwrap();
        assert!(matches!(two.with(spec(0x1800, 0x800, 0, &a)), Err(MemoryError::Overlaps(0x1800))));
        assert!(two.without(0x1000, 0x1000, 0x8000_0001).is_none());
        let without = two.without(0, 0x1000, 0x7000_0000).unwrap();
        assert_eq!((one.regions(), two.regions(), without.regions()), (1, 2, 1));
        drop((one, two));
        assert_eq!(byte(&without, 0x1000), 5);
        assert!(without.window(0).is_none());
        let none = without.without(0x1000, 0x1000, 0x8000_0000).unwrap();
        assert_eq!(none.regions(), 0);
    }

    #[test]
    fn a_region_that_was_added_twice_is_removed_twice() {
        let (a, b) = (memfd(0x2000), memfd(0x2000));
        let new = |offset, file: &File| RegionSpec { offset, ..spec(0, 0x1000, 0x7000, file) };
        let one = GuestMemory::map(vec![new(0, &a)], &Arc::default()).unwrap();
        for other in [new(0, &b), new(0x1000, &a), spec(0, 0x1000, 0x6000, &a)] {
            assert!(one.again(&other).is_none(), "{other:?}");
        }
        let two = one.again(&new(0, &a)).unwrap();
        assert_eq!((two.regions(), two.size()), (1, 0x1000));
        assert_eq!(two.window(0).unwrap().host, one.window(0).unwrap().host, "mapped once");
        let left = two.without(0, 0x1000, 0x7000).unwrap();
        assert_eq!(left.regions(), 1);
        assert_eq!(left.without(0, 0x1000, 0x7000).unwrap().regions(), 0);
    }

    #[test]
    fn no_frontend_takes_all_the_address_space() {
        let file = memfd(MOST);
        // What is refused is refused before it is mapped: not even emulators of user programs,
        // which keep a note of every page, take terabytes.
        let little = GuestMemory::map(vec![spec(0, 0x1000, 0, &file)], &Arc::default()).unwrap();
        let more = little.with(spec(MOST, MOST, MOST, &file));
        assert!(matches!(more, Err(MemoryError::TooMuch(_))));
        // The last byte is allowed, the one behind it is not.
        assert!(check_total(0x1000, &[spec(0, MOST - 0x1000, 0, &file)]).is_ok());
        assert!(check_total(0x1001, &[spec(0, MOST - 0x1000, 0, &file)]).is_err());
        let halves = [0, 1].map(|i| spec(i * MOST, MOST / 2 + 0x1000, i * MOST, &file));
        assert!(matches!(
            GuestMemory::map(halves.into(), &Arc::default()),
            Err(MemoryError::TooMuch(_))
        ));
    }

    #[test]
    fn impossible_tables_are_refused() {
        let file = memfd(0x2000);
        let at = |guest, size, user| {
            GuestMemory::map(vec![spec(guest, size, user, &file)], &Arc::default())
        };
        assert!(matches!(GuestMemory::map(vec![], &Arc::default()), Err(MemoryError::Empty)));
        assert!(matches!(at(1, 0, 0), Err(MemoryError::Zero(1))));
        assert!(matches!(at(u64::MAX, 2, 0), Err(MemoryError::Wraps(_))));
        assert!(matches!(at(0, 2, u64::MAX), Err(MemoryError::Wraps(_))));
        assert!(matches!(at(0, 0x2001, 0), Err(MemoryError::PastEnd { len: 0x2000, .. })));
        let user_overlap =
            vec![spec(0, 0x1000, 0x1000, &file), spec(0x8000, 0x1000, 0x1fff, &file)];
        assert!(matches!(
            GuestMemory::map(user_overlap, &Arc::default()),
            Err(MemoryError::Overlaps(0x8000))
        ));
        for wrong in ["/proc/self/status", "/dev/zero", "/", "/dev/shm"] {
            let file = File::open(wrong).unwrap();
            let refused = GuestMemory::map(vec![spec(0, 0x1000, 0, &file)], &Arc::default());
            assert!(matches!(refused, Err(MemoryError::Kind(0))), "{wrong}: {refused:?}");
        }
    }
}
