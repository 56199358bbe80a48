//! What a ring may have done to the guest's memory: an independent, plain reading of virtio
//! 1.2, 2.7.
//!
//! Promises: allows no byte that the driver has not made available to the device. Where buffers
//! lie over rings or tables the device changes what it reads, and nothing is promised: such a
//! burst is `None`.

use crate::layout::Layout;
use crate::world::{BYTES, guest, place};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// A chain is followed so far. The device gives up earlier.
const STEPS: usize = 1100;

/// The bytes of the file that may change.
pub struct Allowed(Vec<bool>);

impl Allowed {
    pub fn nothing() -> Self {
        Allowed(vec![false; BYTES])
    }

    pub fn clear(&mut self) {
        self.0.fill(false);
    }

    fn allow(&mut self, offset: usize, len: usize) {
        self.0[offset..offset + len].fill(true);
    }

    /// The first byte that changed and was not allowed to.
    pub fn broken(&self, before: &[u8; BYTES], after: &[u8; BYTES]) -> Option<usize> {
        const CHUNK: usize = 256;
        (0..BYTES).step_by(CHUNK).find_map(|from| {
            let to = (from + CHUNK).min(BYTES);
            let differs = before[from..to] != after[from..to];
            let bad = |i: &usize| before[*i] != after[*i] && !self.0[*i];
            differs.then(|| (from..to).find(bad)).flatten()
        })
    }
}

/// The first byte that changed and whose page is not marked in `log`. Used rings are logged at the
/// addresses beside their layouts.
pub fn unlogged(
    before: &[u8; BYTES],
    after: &[u8; BYTES],
    rings: [(&Layout, u64); 2],
    log: &[u8],
) -> Option<usize> {
    (0..BYTES).filter(|at| before[*at] != after[*at]).find(|at| {
        let used = rings.iter().find_map(|(layout, logged_at)| {
            let [.., (from, len)] = layout.areas();
            let offset = at.checked_sub(from).filter(|offset| *offset < len)?;
            Some(logged_at.checked_add(offset as u64))
        });
        // An address that wraps is behind every log, as is what is no guest's.
        let Some(addr) = used.unwrap_or_else(|| guest(*at)) else { return false };
        let page = addr / 4096;
        // What lies behind the log is left out.
        log.get((page / 8) as usize).is_some_and(|byte| byte & 1 << (page % 8) == 0)
    })
}

/// The file and what is read of it.
pub struct Reader<'a> {
    pub file: &'a [u8; BYTES],
    allowed: &'a mut Allowed,
    /// What the device reads to find buffers: offset and bytes.
    read: Vec<(usize, usize)>,
    buffers: Vec<(usize, usize)>,
    writable: bool,
}

impl<'a> Reader<'a> {
    pub fn new(file: &'a [u8; BYTES], allowed: &'a mut Allowed) -> Self {
        Reader { file, allowed, read: Vec::new(), buffers: Vec::new(), writable: false }
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.file[at], self.file[at + 1]])
    }

    pub fn avail_idx(&self, layout: &Layout) -> u16 {
        self.u16(layout.avail + 2)
    }

    pub fn used_idx(&self, layout: &Layout) -> u16 {
        self.u16(layout.used + 2)
    }

    /// The head in the avail ring at index `at`.
    pub fn head(&self, layout: &Layout, at: u16) -> u16 {
        self.u16(layout.avail + 4 + 2 * usize::from(at % layout.size))
    }

    /// Id and length of the used entry at index `at`.
    pub fn used(&self, layout: &Layout, at: u16) -> (u32, u32) {
        let at = layout.used + 4 + 8 * usize::from(at % layout.size);
        let word = |at: usize| u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16;
        (word(at), word(at + 4))
    }

    /// The ring's own areas: read, and its used ring written.
    pub fn ring(&mut self, layout: &Layout) {
        let areas = layout.areas();
        self.read.extend(areas);
        self.allowed.allow(areas[2].0, areas[2].1);
    }

    /// The `count` chains from index `next` on: their buffers may be written, if `writable`.
    pub fn chains(&mut self, layout: &Layout, next: u16, count: u16, writable: bool) {
        self.writable = writable;
        for i in 0..count {
            let head = self.head(layout, next.wrapping_add(i));
            self.chain(layout, head);
        }
    }

    fn desc(&self, at: usize) -> (u64, u32, u16, u16) {
        let word = |at: usize| -> u64 {
            (0..4).map(|i| u64::from(self.u16(at + 2 * i)) << (16 * i)).sum()
        };
        let (addr, rest) = (word(at), word(at + 8));
        (addr, rest as u32, (rest >> 32) as u16, (rest >> 48) as u16)
    }

    fn chain(&mut self, layout: &Layout, head: u16) {
        let mut index = head;
        for _ in 0..STEPS {
            if index >= layout.size {
                return;
            }
            let (addr, len, flags, next) = self.desc(layout.desc + 16 * usize::from(index));
            if flags & INDIRECT != 0 {
                return self.table(addr, len);
            }
            if flags & WRITE != 0 && self.writable {
                self.buffer(addr, len);
            }
            if flags & NEXT == 0 {
                return;
            }
            index = next;
        }
    }

    fn table(&mut self, addr: u64, len: u32) {
        let mut index = 0_u64;
        for _ in 0..STEPS {
            if index >= u64::from(len) / 16 {
                return;
            }
            let entry = addr.checked_add(16 * index).and_then(place);
            let Some((at, _)) = entry.filter(|(_, room)| *room >= 16) else { return };
            self.read.push((at, 16));
            let (addr, len, flags, next) = self.desc(at);
            if flags & WRITE != 0 && self.writable {
                self.buffer(addr, len);
            }
            if flags & NEXT == 0 {
                return;
            }
            index = u64::from(next);
        }
    }

    /// As far as there is memory.
    fn buffer(&mut self, addr: u64, len: u32) {
        let (mut addr, mut left) = (addr, len as usize);
        while left > 0 {
            let Some((at, room)) = place(addr) else { return };
            let here = room.min(left);
            self.allowed.allow(at, here);
            self.buffers.push((at, here));
            left -= here;
            let Some(next) = addr.checked_add(here as u64) else { return };
            addr = next;
        }
    }

    /// Does no buffer lie over what leads to buffers?
    pub fn untangled(&self) -> bool {
        let apart = |a: &(usize, usize), b: &(usize, usize)| a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0;
        self.buffers.iter().all(|buffer| self.read.iter().all(|read| apart(buffer, read)))
    }
}
