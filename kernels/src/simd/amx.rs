//! Matrix tiles of Intel's Advanced Matrix Extensions (AMX): products of 16 rows of 64 bytes with 16 columns of 64 bytes.
//!
//! A left tile is 16 rows of 64 bytes, a right tile 16 lines of 4 bytes for each of 16 columns, as lines of panels are. Sums of a
//! tile are 16 rows of 16 columns of 4 bytes. Each function multiplies two left tiles by two right tiles at a time, step by
//! step, with sums in registers: four tiles of sums, and four for what is loaded.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18 ("Programming with Intel AMX").

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::Avx512;

/// Bytes of a row of a tile.
pub const ROW_BYTES: usize = 64;

/// Rows of a tile.
pub const ROWS: usize = 16;

/// A left tile, or a right one whose lines lie side by side.
pub type Tile = [u8; ROWS * ROW_BYTES];

/// Bytes of a tile.
pub const TILE_BYTES: usize = size_of::<Tile>();

/// Elements of a row of sums: those of two right tiles side by side.
pub const SUM_COLUMNS: usize = 32;

/// Rows of sums of two left tiles by two right ones.
const SUM_ROWS: usize = 2 * ROWS;

/// The token of AMX with tiles of 8-bit integers, and of AVX-512: a value exists only on processors with them, in a
/// process that may use tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amx {
    vectors: Avx512,
}

impl Amx {
    /// The token, if this processor has the instructions and the system lets this process use them.
    #[must_use]
    pub fn new() -> Option<Self> {
        static ALLOWED: OnceLock<bool> = OnceLock::new();
        let vectors = Avx512::new()?;
        ALLOWED.get_or_init(|| has_tiles() && may_use_tiles()).then_some(Self { vectors })
    }

    /// The token of vectors.
    #[must_use]
    pub fn vectors(self) -> Avx512 {
        self.vectors
    }

    /// Configures tiles of 16 rows of 64 bytes on this thread, until what is returned is dropped.
    #[must_use]
    pub fn tiles(self) -> Tiles {
        let configuration = Configuration::WHOLE;
        // SAFETY: a token exists, so the processor has the instruction; it reads the 64 bytes of the configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) }
        Tiles(PhantomData)
    }
}

/// Leaf 7 of CPUID names AMX_TILE and AMX_INT8 in bits 24 and 25 of EDX.
fn has_tiles() -> bool {
    const BITS: u32 = 1 << 24 | 1 << 25;
    // The leaf exists where AVX-512 does.
    __cpuid_count(7, 0).edx & BITS == BITS
}

/// Linux gives the state of tiles to processes that ask for it (Documentation/arch/x86/xstate.rst).
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let answer: i64;
    // SAFETY: the call takes two numbers and touches no memory; the kernel may change rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

/// Other systems are not asked.
#[cfg(not(target_os = "linux"))]
fn may_use_tiles() -> bool {
    false
}

/// What `ldtilecfg` reads: palette 1.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    const WHOLE: Self = {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        let mut tile = 0;
        while tile < 8 {
            (row_bytes[tile], rows[tile]) = (ROW_BYTES as u16, ROWS as u8);
            tile += 1;
        }
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    };
}

/// Tiles are configured on this thread, as long as it lives; nobody else on the thread configures any meanwhile.
#[derive(Debug)]
pub struct Tiles(PhantomData<*const ()>);

impl Drop for Tiles {
    fn drop(&mut self) {
        // So that registers are no longer saved with the thread.
        // SAFETY: a token exists, so the processor has the instruction.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}

/// Two columns of right tiles whose lines lie anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Right<'a> {
    /// What all lines lie in.
    pub bytes: &'a [u8],
    /// Where the first line of each step lies; the second tile begins 64 bytes behind it.
    pub steps: &'a [usize],
    /// Bytes from a line to the next.
    pub pitch: usize,
}

impl Right<'_> {
    /// Panics if any step reaches beyond the bytes. `base` is added to each.
    fn check(&self, base: usize) {
        let last = self.steps.iter().copied().max().unwrap_or(0);
        let reach = (ROWS - 1) * self.pitch + 2 * ROW_BYTES;
        assert!(last + base + reach <= self.bytes.len(), "lines from {last} + {base} of {} bytes", self.bytes.len());
    }
}

/// The signs of left and right bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signs {
    /// Left bytes are from -128 to 127, else from 0 to 255.
    pub left: bool,
    /// As `left`.
    pub right: bool,
}

/// The first row of sums, and bytes from a row to the next.
///
/// # Panics
/// If there are not 32 rows of 32.
fn checked<T>((sums, pitch): (&mut [T], usize)) -> (*mut T, usize) {
    assert!(pitch >= SUM_COLUMNS && sums.len() >= (SUM_ROWS - 1) * pitch + SUM_COLUMNS, "{} sums", sums.len());
    (sums.as_mut_ptr(), pitch * size_of::<T>())
}

/// A function of the tiles of bytes of these signs, by the name of its instruction.
macro_rules! multiply_bytes {
    ($name:ident, $instruction:literal) => {
        /// # Safety
        /// Tiles are configured on this thread. `count` steps of left tiles, rows `left.1` bytes and steps `left.2` bytes apart,
        /// and of lines are readable, and sums writable.
        #[inline(always)]
        unsafe fn $name(
            left: ([*const u8; 2], usize, usize),
            (bytes, steps, pitch): (*const u8, *const usize, usize),
            count: usize,
            (sums, sum_pitch): (*mut i32, usize),
        ) {
            let ([first, second], left_pitch, left_step) = left;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "test {count}, {count}",
                    "jz 3f",
                    "2:",
                    "mov {b}, [{steps}]",
                    "add {b}, {base}",
                    "tileloadd tmm4, [{a0} + {row}*1]",
                    "tileloadd tmm6, [{b} + {pitch}*1]",
                    "tileloadd tmm7, [{b} + {pitch}*1 + 64]",
                    "tileloadd tmm5, [{a1} + {row}*1]",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "add {a0}, {step}",
                    "add {a1}, {step}",
                    "add {steps}, 8",
                    "dec {count}",
                    "jnz 2b",
                    "3:",
                    "tilestored [{sums} + {sum_row}*1], tmm0",
                    "tilestored [{sums} + {sum_row}*1 + 64], tmm1",
                    "shl {sum_row}, 4",
                    "add {sums}, {sum_row}",
                    "shr {sum_row}, 4",
                    "tilestored [{sums} + {sum_row}*1], tmm2",
                    "tilestored [{sums} + {sum_row}*1 + 64], tmm3",
                    a0 = inout(reg) first => _,
                    a1 = inout(reg) second => _,
                    row = in(reg) left_pitch,
                    step = in(reg) left_step,
                    steps = inout(reg) steps => _,
                    count = inout(reg) count => _,
                    base = in(reg) bytes,
                    b = out(reg) _,
                    pitch = in(reg) pitch,
                    sums = inout(reg) sums => _,
                    sum_row = inout(reg) sum_pitch => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

multiply_bytes!(signed_by_signed, "tdpbssd");
multiply_bytes!(signed_by_unsigned, "tdpbsud");
multiply_bytes!(unsigned_by_signed, "tdpbusd");
multiply_bytes!(unsigned_by_unsigned, "tdpbuud");

impl Tiles {
    /// `sums[i][j]` = the exact products, modulo 2^32, of two columns of left tiles of bytes (`[steps]` each) by right
    /// tiles. Lines hold four inputs.
    ///
    /// `base` is added to each step of `right`. `sums` has 32 rows, as many elements apart as the number with it.
    ///
    /// # Panics
    /// If left tiles are too few, or right ones reach beyond their bytes.
    pub fn multiply_bytes(
        &self,
        signs: Signs,
        left: [&[Tile]; 2],
        right: Right<'_>,
        base: usize,
        sums: (&mut [i32], usize),
    ) {
        let steps = right.steps.len();
        assert!(left.iter().all(|tiles| tiles.len() >= steps), "tiles of {steps} steps");
        right.check(base);
        let sums = checked(sums);
        let left = (left.map(|tiles| tiles.as_ptr().cast()), ROW_BYTES, TILE_BYTES);
        let right = (right.bytes.as_ptr().wrapping_add(base), right.steps.as_ptr(), right.pitch);
        // SAFETY: `self` exists, so tiles are configured on this thread. Left tiles, the lines of right tiles and the rows of sums
        // are within their slices, as checked above.
        unsafe {
            match (signs.left, signs.right) {
                (true, true) => signed_by_signed(left, right, steps, sums),
                (true, false) => signed_by_unsigned(left, right, steps, sums),
                (false, true) => unsigned_by_signed(left, right, steps, sums),
                (false, false) => unsigned_by_unsigned(left, right, steps, sums),
            }
        }
    }
}
