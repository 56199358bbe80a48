//! Copies to and from guest memory.
//!
//! Size classes: up to 16 bytes two overlapping scalar moves, up to 128 overlapping 16-byte
//! vector moves, above that a loop of vector moves with one overlapped end. Every byte of the
//! destination is written, none beyond it; a source byte may be read twice where moves
//! overlap, and the copy then holds one of the values that were there.

use std::arch::asm;

macro_rules! move_scalar {
    ($dst:expr, $src:expr, $reg:literal) => {
        asm!(
            concat!("mov {t", $reg, "}, [{s}]"),
            concat!("mov [{d}], {t", $reg, "}"),
            s = in(reg) $src, d = in(reg) $dst, t = out(reg) _,
            options(nostack, preserves_flags)
        )
    };
}

/// # Safety
/// 16 bytes are readable at `src` and writable at `dst`.
#[inline(always)]
unsafe fn move16(dst: *mut u8, src: *const u8) {
    // SAFETY: the caller's contract; SSE2 is part of the baseline.
    unsafe {
        asm!(
            "movups {t}, [{s}]",
            "movups [{d}], {t}",
            s = in(reg) src, d = in(reg) dst, t = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// 64 bytes are readable at `src` and writable at `dst`.
#[inline(always)]
unsafe fn move64(dst: *mut u8, src: *const u8) {
    // SAFETY: the caller's contract; SSE2 is part of the baseline.
    unsafe {
        asm!(
            "movups {a}, [{s}]",
            "movups {b}, [{s} + 16]",
            "movups {c}, [{s} + 32]",
            "movups {e}, [{s} + 48]",
            "movups [{d}], {a}",
            "movups [{d} + 16], {b}",
            "movups [{d} + 32], {c}",
            "movups [{d} + 48], {e}",
            s = in(reg) src, d = in(reg) dst,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// As [`copy`], with `len <= 16`.
#[inline(always)]
unsafe fn copy_to_16(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every move lies within `len` bytes, which the caller vouches for.
    unsafe {
        if len >= 8 {
            move_scalar!(dst, src, "");
            move_scalar!(dst.add(len - 8), src.add(len - 8), "");
        } else if len >= 4 {
            move_scalar!(dst, src, ":e");
            move_scalar!(dst.add(len - 4), src.add(len - 4), ":e");
        } else {
            for i in 0..len {
                dst.add(i).write_volatile(src.add(i).read_volatile());
            }
        }
    }
}

/// Copy `len` bytes.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
/// Either may be guest memory that somebody else writes meanwhile.
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
        let mut done = 0;
        while done + 64 <= len {
            move64(dst.add(done), src.add(done));
            done += 64;
        }
        if done < len {
            move64(dst.add(len - 64), src.add(len - 64));
        }
    }
}
