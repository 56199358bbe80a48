//! aarch64 moves of guest bytes. None of them needs alignment: guest memory is Normal memory.

use std::arch::asm;

/// # Safety
/// 4 bytes are readable at `src` and writable at `dst`.
#[inline(always)]
pub unsafe fn move4(dst: *mut u8, src: *const u8) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!(
            "ldr {t:w}, [{s}]",
            "str {t:w}, [{d}]",
            s = in(reg) src, d = in(reg) dst, t = out(reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// 8 bytes are readable at `src` and writable at `dst`.
#[inline(always)]
pub unsafe fn move8(dst: *mut u8, src: *const u8) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!(
            "ldr {t}, [{s}]",
            "str {t}, [{d}]",
            s = in(reg) src, d = in(reg) dst, t = out(reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// 16 bytes are readable at `src` and writable at `dst`.
#[inline(always)]
pub unsafe fn move16(dst: *mut u8, src: *const u8) {
    // SAFETY: the caller's contract; Advanced SIMD is part of the baseline.
    unsafe {
        asm!(
            "ldr {t:q}, [{s}]",
            "str {t:q}, [{d}]",
            s = in(reg) src, d = in(reg) dst, t = out(vreg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// 64 bytes are readable at `src` and writable at `dst`.
#[inline(always)]
pub unsafe fn move64(dst: *mut u8, src: *const u8) {
    // SAFETY: the caller's contract; Advanced SIMD is part of the baseline.
    unsafe {
        asm!(
            "ldp {a:q}, {b:q}, [{s}]",
            "ldp {c:q}, {e:q}, [{s}, #32]",
            "stp {a:q}, {b:q}, [{d}]",
            "stp {c:q}, {e:q}, [{d}, #32]",
            s = in(reg) src, d = in(reg) dst,
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, e = out(vreg) _,
            options(nostack, preserves_flags)
        );
    }
}
