//! A guest's memory as the frontend shared it.
//!
//! Promises: the regions are sorted, do not overlap, are mapped once and stay mapped while the
//! `Arc<GuestMemory>` lives; every address handed out covers the whole range that was asked
//! for. Made by `vhost_user`, held by each running ring. Never touches a guest byte itself and
//! never prefaults.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use vm_memory::mmap::{MmapRegion, MmapRegionError};
use vm_memory::FileOffset;

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
    #[error("region at {0:#x} is not on tmpfs, memfd or hugetlbfs (is the memory backend share=on?)")]
    Kind(u64),
    /// fstat, fstatfs or mmap failed.
    #[error("cannot map the region at {guest:#x}")]
    Map {
        /// Guest address of the region.
        guest: u64,
        /// The system's answer.
        #[source]
        source: MmapRegionError,
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

#[derive(Debug)]
struct Region {
    guest: u64,
    size: u64,
    user: u64,
    map: MmapRegion<()>,
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

/// The regions of one guest.
#[derive(Debug)]
pub struct GuestMemory {
    regions: Vec<Region>,
}

impl GuestMemory {
    /// Check a table and map it.
    ///
    /// # Errors
    /// What is wrong with which region. Nothing stays mapped then.
    pub fn map(mut specs: Vec<RegionSpec>) -> Result<Arc<Self>, MemoryError> {
        if specs.is_empty() {
            return Err(MemoryError::Empty);
        }
        for spec in &specs {
            check_range(spec)?;
            check_file(spec)?;
        }
        specs.sort_by_key(|s| s.user);
        check_overlap(&specs, |s| s.user)?;
        specs.sort_by_key(|s| s.guest);
        check_overlap(&specs, |s| s.guest)?;
        let regions = specs.into_iter().map(map_region).collect::<Result<_, _>>()?;
        Ok(Arc::new(GuestMemory { regions }))
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
        self.regions.iter().find_map(|r| {
            Window { base: r.user, size: r.size, host: host(r) }.translate(user, len)
        })
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
    NonNull::new(region.map.as_ptr()).unwrap_or(NonNull::dangling())
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
/// its file faults, and one of a disk file may block the worker (DESIGN, law 6).
fn check_file(spec: &RegionSpec) -> Result<(), MemoryError> {
    let guest = spec.guest;
    let file_error = |source| MemoryError::File { guest, source };
    let len = spec.file.metadata().map_err(file_error)?.len();
    // SAFETY: an all-zero statfs is a valid value to be overwritten.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the fd is open and `fs` is writable.
    if unsafe { libc::fstatfs(spec.file.as_raw_fd(), &raw mut fs) } != 0 {
        return Err(file_error(std::io::Error::last_os_error()));
    }
    if ![libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&fs.f_type) {
        return Err(MemoryError::Kind(guest));
    }
    let end = spec.offset + spec.size;
    if end > len { Err(MemoryError::PastEnd { guest, end, len }) } else { Ok(()) }
}

fn check_overlap(sorted: &[RegionSpec], start: fn(&RegionSpec) -> u64) -> Result<(), MemoryError> {
    for pair in sorted.windows(2) {
        if start(&pair[1]) - start(&pair[0]) < pair[0].size {
            return Err(MemoryError::Overlaps(pair[1].guest));
        }
    }
    Ok(())
}

fn map_region(spec: RegionSpec) -> Result<Region, MemoryError> {
    let RegionSpec { guest, size, user, offset, file } = spec;
    let map = MmapRegion::build(
        Some(FileOffset::new(file, offset)),
        size as usize,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_NORESERVE,
    )
    .map_err(|source| MemoryError::Map { guest, source })?;
    Ok(Region { guest, size, user, map })
}
