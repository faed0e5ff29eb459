//! Tile registers (Intel AMX): eight matrices of up to 16 rows of 64 bytes, and instructions that multiply two of them.
//!
//! ```text
//!                    W  16 words of k × 32 columns        tmm6 │ tmm7
//!                                                         ─────┼─────
//! X  rows × 16 words of k    16 rows  tmm4                tmm0 │ tmm1     sums, 16 columns each
//!                          + 16 rows  tmm5                tmm2 │ tmm3
//! ```
//!
//! A word is a pair of bf16 or four bytes, as in vectors, so weights and rows are packed the same way for both.
//!
//! A thread's tiles keep their values between calls of these functions. Rust does not promise that of registers; it
//! holds because compiled code uses no tiles, and because the operating system saves them like all other registers. A
//! thread that has finished gives them back ([`release`]); otherwise each switch between threads would save eight
//! kilobytes more.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2.

use std::{arch::asm, sync::LazyLock};

/// Rows of a tile, and words of one of its rows.
pub(super) const REGISTER_SIDE: usize = 16;

/// Whether this processor has tiles that multiply bf16 and bytes, as well as [`super::avx512::Avx512`] and its dot
/// products, and the operating system lets this process use them.
pub(super) fn is_there() -> bool {
    static THERE: LazyLock<bool> = LazyLock::new(|| {
        let has_vectors = super::avx512::Avx512::detect().is_some()
            && is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512vnni");
        #[cfg(all(test, target_os = "linux"))]
        if has_vectors && !is_native() {
            super::amx_emulator::install();
            return true;
        }
        has_vectors && is_native()
    });
    *THERE
}

/// Whether the processor itself has tiles, and the system permits them.
pub(super) fn is_native() -> bool {
    static NATIVE: LazyLock<bool> = LazyLock::new(|| {
        const BF16: u32 = 1 << 22;
        const TILES: u32 = 1 << 24;
        const BYTES: u32 = 1 << 25;
        let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
        features & BF16 != 0 && features & TILES != 0 && features & BYTES != 0 && is_permitted()
    });
    *NATIVE
}

/// Requests the tiles from the operating system, for all threads of this process. The system makes room for them only
/// in threads that use them.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The type of the values in two tiles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operands {
    /// Pairs of bf16.
    Bf16,
    /// Four bytes: unsigned in rows, signed in weights.
    Bytes,
}

/// The configuration of the tiles: which exist, and their shapes.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// The configuration for `rows` rows.
    const fn new(rows: usize) -> Config {
        let upper = if rows < REGISTER_SIDE { rows } else { REGISTER_SIDE } as u8;
        let lower = rows as u8 - upper;
        let of_tiles = [upper, upper, lower, lower, upper, lower, REGISTER_SIDE as u8, REGISTER_SIDE as u8];
        let (mut row_bytes, mut rows, mut tile) = ([0; 16], [0; 16], 0);
        while tile < of_tiles.len() {
            if of_tiles[tile] > 0 {
                (rows[tile], row_bytes[tile]) = (of_tiles[tile], 64);
            }
            tile += 1;
        }
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }
}

/// Configurations by the number of rows. They are constants, because a value just written in parts cannot be loaded at
/// once without a stall.
static CONFIGS: [Config; 2 * REGISTER_SIDE + 1] = {
    let (mut configs, mut rows) = ([const { Config::new(0) }; 2 * REGISTER_SIDE + 1], 0);
    while rows < configs.len() {
        configs[rows] = Config::new(rows);
        rows += 1;
    }
    configs
};

/// Sets up the tiles for `rows` rows, 1 to 32; all tiles then hold zeros.
///
/// # Panics
/// With more rows.
///
/// # Safety
/// [`is_there`].
#[inline(always)]
pub(super) unsafe fn configure(rows: usize) {
    let config = &CONFIGS[rows];
    // SAFETY: these 64 bytes describe tiles that the processor has; no other code uses the tiles.
    unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(readonly, nostack, preserves_flags)) };
}

/// Gives the tiles back.
///
/// # Safety
/// [`is_there`].
#[inline(always)]
pub(super) unsafe fn release() {
    // SAFETY: nothing else uses the tiles.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
}

/// Sets the sums to zero.
///
/// # Safety
/// [`configure`] was called before, with more than 16 rows if `many`.
#[inline(always)]
pub(super) unsafe fn zero(many: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if many {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nomem, nostack, preserves_flags),
            );
        } else {
            asm!("tilezero tmm0", "tilezero tmm1", options(nomem, nostack, preserves_flags));
        }
    }
}

/// Loads stored sums, `stride` bytes from row to row.
///
/// # Safety
/// As for [`zero`], and `from` is valid for reading 32 values of each row.
#[inline(always)]
pub(super) unsafe fn load(from: *const f32, stride: usize, many: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm0, [{from} + {stride}*1]",
            "tileloadd tmm1, [{from} + {stride}*1 + 64]",
            from = in(reg) from, stride = in(reg) stride, options(readonly, nostack, preserves_flags),
        );
        if many {
            asm!(
                "tileloadd tmm2, [{from} + {stride}*1]",
                "tileloadd tmm3, [{from} + {stride}*1 + 64]",
                from = in(reg) from.wrapping_byte_add(REGISTER_SIDE * stride), stride = in(reg) stride,
                options(readonly, nostack, preserves_flags),
            );
        }
    }
}

/// Stores the sums, `stride` bytes from row to row.
///
/// # Safety
/// As for [`zero`], and `to` is valid for writing 32 values of each row.
#[inline(always)]
pub(super) unsafe fn store(to: *mut f32, stride: usize, many: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if many {
            asm!(
                "tilestored [{to} + {stride}*1], tmm0",
                "tilestored [{to} + {stride}*1 + 64], tmm1",
                "tilestored [{below} + {stride}*1], tmm2",
                "tilestored [{below} + {stride}*1 + 64], tmm3",
                to = in(reg) to, below = in(reg) to.wrapping_byte_add(REGISTER_SIDE * stride), stride = in(reg) stride,
                options(nostack, preserves_flags),
            );
        } else {
            asm!(
                "tilestored [{to} + {stride}*1], tmm0",
                "tilestored [{to} + {stride}*1 + 64], tmm1",
                to = in(reg) to, stride = in(reg) stride, options(nostack, preserves_flags),
            );
        }
    }
}

/// Stores an operand, sixteen consecutive rows of 64 bytes, where nobody reads it.
///
/// On an Intel server (family 6, model 167, with AVX512-FP16), storing a tile takes some 300 ns more when none was
/// stored in the last half microsecond, whatever else happens meanwhile; a store in between takes almost no time. With
/// it, products of 768 × 3072 take 12 % less time with 1000 rows, and 20 % less with 40 rows.
///
/// # Safety
/// [`configure`] was called before, and `to` is valid for writing those bytes.
#[inline(always)]
pub(super) unsafe fn keep_stores_awake(to: *mut f32) {
    const ROW: usize = REGISTER_SIDE * size_of::<i32>();
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilestored [{to} + {row}*1], tmm7", to = in(reg) to, row = in(reg) ROW,
            options(nostack, preserves_flags),
        );
    }
}

/// Adds the products of 16 words of each row, with the rows contiguous, and 16 lines of 32 columns, with the lines
/// contiguous.
///
/// # Safety
/// As for [`zero`]; `rows` is valid for reading 16 words of each row, and `lines` 16 times 32 words.
#[inline(always)]
pub(super) unsafe fn add_products(operands: Operands, rows: *const i32, lines: *const i32, many: bool) {
    /// Bytes from row to row; a line is as long as two rows.
    const ROW: usize = REGISTER_SIDE * size_of::<i32>();
    const TWO_ROWS: usize = 2 * ROW;
    macro_rules! add_products {
        ($multiply:literal) => {
            // SAFETY: the caller's promise.
            unsafe {
                if many {
                    // the operands of a product are loaded before the preceding product
                    asm!(
                        "tileloadd tmm6, [{lines} + {line}*1]",
                        "tileloadd tmm4, [{rows} + {row}*1]",
                        "tileloadd tmm7, [{lines} + {line}*1 + 64]",
                        concat!($multiply, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm5, [{rows} + {row}*1 + 1024]",
                        concat!($multiply, " tmm1, tmm4, tmm7"),
                        concat!($multiply, " tmm2, tmm5, tmm6"),
                        concat!($multiply, " tmm3, tmm5, tmm7"),
                        lines = in(reg) lines, line = in(reg) TWO_ROWS, rows = in(reg) rows, row = in(reg) ROW,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(readonly, nostack, preserves_flags),
                    );
                } else {
                    asm!(
                        "tileloadd tmm6, [{lines} + {line}*1]",
                        "tileloadd tmm4, [{rows} + {row}*1]",
                        "tileloadd tmm7, [{lines} + {line}*1 + 64]",
                        concat!($multiply, " tmm0, tmm4, tmm6"),
                        concat!($multiply, " tmm1, tmm4, tmm7"),
                        lines = in(reg) lines, line = in(reg) TWO_ROWS, rows = in(reg) rows, row = in(reg) ROW,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(readonly, nostack, preserves_flags),
                    );
                }
            }
        };
    }
    const { assert!(REGISTER_SIDE * ROW == 1024, "rows 16 to 31 begin there") };
    match operands {
        Operands::Bf16 => add_products!("tdpbf16ps"),
        Operands::Bytes => add_products!("tdpbusd"),
    }
}
