//! Copies to and from guest memory: the size classes, over the moves of the leaf.
//!
//! Promises: exactly `len` bytes of the destination are written, each of them, and nothing
//! outside the two ranges is touched. Up to 16 bytes two overlapping scalar moves, up to 128
//! overlapping vector moves, above that the leaf's loop. A source byte may be read twice where
//! moves overlap; the copy then holds one of the values that were there. Everything is inline
//! assembly or volatile, because a guest may change either range meanwhile.

use super::leaf::{copy_large, move4, move8, move16, move64};

/// Copy `len` bytes.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes. Either may be guest memory that
/// somebody else reads and writes meanwhile. They may overlap, as a guest's buffers may whatever
/// we think of it: then it is anybody's guess which of their bytes end up in `dst`.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every move lies within `len` bytes, which the caller vouches for.
    unsafe {
        if len <= 16 {
            return copy_to_16(dst, src, len);
        }
        if len < 64 {
            move16(dst, src);
            if len > 32 {
                move16(dst.add(16), src.add(16));
                move16(dst.add(len - 32), src.add(len - 32));
            }
            return move16(dst.add(len - 16), src.add(len - 16));
        }
        if len > 128 {
            return copy_large(dst, src, len);
        }
        move64(dst, src);
        if len > 64 {
            move64(dst.add(len - 64), src.add(len - 64));
        }
    }
}

/// # Safety
/// As [`copy`], with `len <= 16`.
#[inline(always)]
unsafe fn copy_to_16(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every move lies within `len` bytes, which the caller vouches for.
    unsafe {
        if len >= 8 {
            move8(dst, src);
            move8(dst.add(len - 8), src.add(len - 8));
        } else if len >= 4 {
            move4(dst, src);
            move4(dst.add(len - 4), src.add(len - 4));
        } else {
            for i in 0..len {
                dst.add(i).write_volatile(src.add(i).read_volatile());
            }
        }
    }
}

/// A loop of 64-byte moves to an aligned destination, so that no store straddles two lines.
///
/// # Safety
/// As [`copy`], with `len > 128`.
pub unsafe fn copy_by_64(dst: *mut u8, src: *const u8, len: usize) {
    // The first 16 bytes as they lie; up to 15 of them are written again with the same move.
    let mut done = 16 - dst.addr() % 16;
    // SAFETY: `done + 64 < len` before each move of the loop, and the last one ends at `len`.
    unsafe {
        move16(dst, src);
        while len - done > 64 {
            move64(dst.add(done), src.add(done));
            done += 64;
        }
        move64(dst.add(len - 64), src.add(len - 64));
    }
}
