//! x86-64 moves of guest bytes, and the copy above 128 bytes.
//!
//! Large copies use 32-byte moves where the processor has AVX2: on Zen 3 they take 0.5 to 0.8
//! of the time of 16-byte ones when the lines come from another core's cache, because more
//! lines are under way at once. `rep movsb` is not used: it is no faster at any size up to
//! 9000 bytes, and takes more than ten times as long when the destination lies a little above
//! the source modulo 4096.

use crate::arch::copy::copy_by_64;
use std::arch::asm;

/// # Safety
/// 4 bytes are readable at `src` and writable at `dst`.
#[inline(always)]
pub unsafe fn move4(dst: *mut u8, src: *const u8) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!(
            "mov {t:e}, dword ptr [{s}]",
            "mov dword ptr [{d}], {t:e}",
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
            "mov {t}, qword ptr [{s}]",
            "mov qword ptr [{d}], {t}",
            s = in(reg) src, d = in(reg) dst, t = out(reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// 16 bytes are readable at `src` and writable at `dst`.
#[inline(always)]
pub unsafe fn move16(dst: *mut u8, src: *const u8) {
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
pub unsafe fn move64(dst: *mut u8, src: *const u8) {
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
/// As `arch::copy`, with `len > 128`.
// Out of line: the vector registers that it clobbers are the caller's to save anyway.
#[inline(never)]
pub unsafe fn copy_large(dst: *mut u8, src: *const u8, len: usize) {
    // The answer is cached by the standard library: one load, two branches that never change.
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's contract, and AVX2 is there.
        unsafe { copy_avx2(dst, src, len) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { copy_by_64(dst, src, len) }
    }
}

/// # Safety
/// As `arch::copy`, with `len > 64`, on a processor with AVX2.
#[inline(always)]
pub(in crate::arch) unsafe fn copy_avx2(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: each turn of the loop moves 64 bytes while more than 64 are left; the last 1 to
    // 64 are the end of a move that reaches back over bytes already copied. vzeroupper destroys
    // the upper half of all sixteen registers, so all are declared.
    unsafe {
        asm!(
            "2:",
            "vmovups ymm0, [{s}]",
            "vmovups ymm1, [{s} + 32]",
            "vmovups [{d}], ymm0",
            "vmovups [{d} + 32], ymm1",
            "add {s}, 64",
            "add {d}, 64",
            "sub {n}, 64",
            "cmp {n}, 64",
            "ja 2b",
            "vmovups ymm0, [{s} + {n} - 64]",
            "vmovups ymm1, [{s} + {n} - 32]",
            "vmovups [{d} + {n} - 64], ymm0",
            "vmovups [{d} + {n} - 32], ymm1",
            "vzeroupper",
            s = inout(reg) src => _, d = inout(reg) dst => _, n = inout(reg) len => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack)
        );
    }
}
