//! Vectors of 16 lanes of f32 or of i32, the same interface on every instruction set.
//!
//! [`Simd`] is implemented by tokens (`Portable`, `Avx2`, `Avx512`, `Neon`) whose existence proves that the processor has the
//! instructions, so that its methods are safe. A [`Routine`] is an algorithm generic over the token; [`Instructions::run`]
//! compiles it once for each instruction set and runs the chosen one. Everything on the path from there to a
//! method of `Simd` is `#[inline(always)]`, or the instructions become calls: closures that iterators or `from_fn` call must
//! not use it, loops and methods may. What a routine runs by [`Simd::run`] is a function of its own: several large pieces of code,
//! of which it chooses one, are routines, or the one function of all takes minutes to compile. A routine must not cross into
//! another thread: start threads first, then run a routine in each.

#[allow(unsafe_code, reason = "bounds that are checked once for many places")]
mod adjacent;
mod arithmetic;
mod divisor;
mod expand;
mod lanes;
#[allow(unsafe_code, reason = "bounds that are checked once for many places")]
mod lines;
#[allow(unsafe_code, reason = "bounds that are checked once for many places")]
mod panel_lines;
mod portable;

#[cfg(target_arch = "x86_64")]
#[allow(
    unsafe_code,
    reason = "instructions that Rust has no stable intrinsics for; the token proves that the processor has them"
)]
pub mod amx;
#[cfg(not(target_arch = "x86_64"))]
#[path = "amx_absent.rs"]
pub mod amx;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "intrinsics; the token proves that the processor has them")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "intrinsics; the token proves that the processor has them")]
mod avx512;
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "intrinsics; the token proves that the processor has them")]
mod neon;

#[cfg(test)]
mod tests;

use std::{convert::Infallible, sync::OnceLock};

use half::{bf16, f16};

pub(crate) use adjacent::{Adjacent, Places};
pub use amx::Amx;
pub use arithmetic::{Arithmetic, Together};
pub use divisor::Divisor;
pub(crate) use lanes::joined;
pub(crate) use lines::{Layout, LinePlaces, Lines, Neighbours, OUTSIDE, Rows, Steps, Terms, WithVectors, Within};
pub(crate) use panel_lines::PanelLines;
pub use portable::Portable;

#[cfg(target_arch = "x86_64")]
pub use {avx2::Avx2, avx512::Avx512};

#[cfg(target_arch = "aarch64")]
pub use neon::Neon;

/// Lanes of a vector, on every instruction set.
pub const LANES: usize = 16;

/// Lanes of half a vector.
pub const HALF: usize = LANES / 2;

/// An algorithm that is compiled for each instruction set.
pub trait Routine {
    /// What it returns.
    type Output;

    /// Runs on the instructions of `simd`. Implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Spreads bytes in registers.
pub trait ExpandBytes<S: Simd>: Copy {
    /// As [`Simd::expand`], one line of bytes.
    fn expand_bytes(self, simd: S, mask: u64, values: &[u8]) -> S::Integers;
}

/// Of instructions that have none for it.
impl<S: Simd> ExpandBytes<S> for Infallible {
    #[inline(always)]
    fn expand_bytes(self, _simd: S, _mask: u64, _values: &[u8]) -> S::Integers {
        match self {}
    }
}

/// Operations on vectors of 16 lanes: f32 by IEEE 754, rounded to nearest even; i32 wraps around.
pub trait Simd: Arithmetic + Send + Sync + 'static {
    /// 16 lanes of i32, or of 4 bytes each, the first of them the lowest.
    type Integers: Copy;

    /// A value exists only on processors that spread bytes in registers.
    type Expander: ExpandBytes<Self>;

    // Conditions on these are `const { .. }` where they choose a kernel: one that these instructions never run is not compiled.
    /// Rows of a register tile of a product.
    const TILE_ROWS: usize;

    /// Vectors in a row of a register tile of a product.
    const TILE_VECTORS: usize;

    /// Whether common layouts of codes, and common distances of lines, have loops of their own, beside those that take any and give the
    /// same bits.
    const HAS_OWN_LOOPS: bool;

    /// Whether [`Simd::lookup`] takes no longer than to compute an integer of few bits.
    const LOOKS_UP: bool;

    /// Whether sums of products of bytes take fewer instructions as sums of products of 16 bits, by [`Simd::dot_halves`], and
    /// those of fewer bits by [`Simd::add_pairs`].
    const SUMS_HALVES: bool;

    /// Compiles `routine` with these instructions enabled and runs it.
    fn run<R: Routine>(self, routine: R) -> R::Output;

    /// Reads 16 lanes.
    fn load(self, values: &[f32; LANES]) -> Self::Vector;

    /// Writes 16 lanes.
    fn store(self, vector: Self::Vector, values: &mut [f32; LANES]);

    /// Reads 16 lanes of f16, exactly.
    fn load_f16(self, values: &[f16; LANES]) -> Self::Vector;

    /// Reads 16 lanes of bf16, exactly.
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::Vector;

    /// Reads the even elements of 16 pairs of bf16, exactly.
    fn load_bf16_even(self, pairs: &[bf16; 2 * LANES]) -> Self::Vector;

    /// Reads the odd elements of 16 pairs of bf16, exactly.
    fn load_bf16_odd(self, pairs: &[bf16; 2 * LANES]) -> Self::Vector;

    /// Writes 16 lanes, each rounded to f16.
    fn store_f16(self, vector: Self::Vector, values: &mut [f16; LANES]);

    /// Writes 16 lanes, each rounded to bf16.
    #[inline(always)]
    fn store_bf16(self, vector: Self::Vector, values: &mut [bf16; LANES]) {
        let mut wide = [0.0; LANES];
        self.store(self.round_to_bf16(vector), &mut wide);
        for (value, wide) in values.iter_mut().zip(wide) {
            *value = bf16::from_bits((wide.to_bits() >> 16) as u16);
        }
    }

    /// `a * b + c`, rounded once on every instruction set.
    fn fused_exactly(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// `a * b + c` of f64, rounded once where the instructions can, else twice. The compiler makes vectors of it.
    fn fused_wide(self, a: f64, b: f64, c: f64) -> f64;

    /// The values at even places.
    fn load_even(self, values: &[f32; 2 * LANES]) -> Self::Vector;

    /// Reads 8 lanes, then 8 others.
    #[inline(always)]
    fn load_halves(self, low: &[f32; HALF], high: &[f32; HALF]) -> Self::Vector {
        let mut lanes = [0.0; LANES];
        lanes[..HALF].copy_from_slice(low);
        lanes[HALF..].copy_from_slice(high);
        self.load(&lanes)
    }

    /// Writes what [`Simd::load_halves`] reads.
    #[inline(always)]
    fn store_halves(self, vector: Self::Vector, low: &mut [f32; HALF], high: &mut [f32; HALF]) {
        let mut lanes = [0.0; LANES];
        self.store(vector, &mut lanes);
        low.copy_from_slice(&lanes[..HALF]);
        high.copy_from_slice(&lanes[HALF..]);
    }

    /// Half of the lanes one value, the others another.
    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::Vector {
        self.load_halves(&[low; HALF], &[high; HALF])
    }

    /// Every fourth value, from each of the first four on: lane `l` of vector `v` is the value at `4 * l + v`.
    #[inline(always)]
    fn load_quarters(self, values: &[f32; 4 * LANES]) -> [Self::Vector; 4] {
        let mut quarters = [[0.0; LANES]; 4];
        for lane in 0..LANES {
            for quarter in 0..4 {
                quarters[quarter][lane] = values[4 * lane + quarter];
            }
        }
        [self.load(&quarters[0]), self.load(&quarters[1]), self.load(&quarters[2]), self.load(&quarters[3])]
    }

    /// Writes what [`Simd::load_quarters`] reads.
    #[inline(always)]
    fn store_quarters(self, quarters: [Self::Vector; 4], values: &mut [f32; 4 * LANES]) {
        let mut lanes = [[0.0; LANES]; 4];
        for quarter in 0..4 {
            self.store(quarters[quarter], &mut lanes[quarter]);
        }
        for lane in 0..LANES {
            for quarter in 0..4 {
                values[4 * lane + quarter] = lanes[quarter][lane];
            }
        }
    }

    /// The columns of 16 rows.
    fn transpose(self, rows: [Self::Vector; LANES]) -> [Self::Vector; LANES];

    /// Each lane rounded to f16.
    fn round_to_f16(self, a: Self::Vector) -> Self::Vector;

    /// Each lane rounded to bf16.
    fn round_to_bf16(self, a: Self::Vector) -> Self::Vector;

    /// The place of `table` that the lowest 4 bits of each lane name.
    fn lookup(self, table: Self::Vector, places: Self::Integers) -> Self::Vector;

    /// For each byte of `places`, from 0 to 15, the byte at that place of the same 16 bytes of `table`.
    fn lookup_bytes(self, table: Self::Integers, places: Self::Integers) -> Self::Integers;

    /// Each lane as f32, rounded.
    fn convert(self, a: Self::Integers) -> Self::Vector;

    /// Each lane as the nearest i32, halves to even: 0 for NaN, the least or the greatest i32 beyond its range.
    fn nearest_integers(self, a: Self::Vector) -> Self::Integers;

    /// As [`Simd::nearest_integers`], of lanes from -2^31 to below 2^31; anything for others.
    #[inline(always)]
    fn nearest_of_near(self, a: Self::Vector) -> Self::Integers {
        self.nearest_integers(a)
    }

    /// All lanes `value`.
    fn splat_integer(self, value: i32) -> Self::Integers;

    /// Reads 16 lanes.
    fn load_integers(self, values: &[i32; LANES]) -> Self::Integers;

    /// Reads 4 bytes for each lane, the first the lowest.
    fn load_bytes(self, bytes: &[u8; 4 * LANES]) -> Self::Integers;

    /// Bytes as f8e4m3fn, exactly: vector `i` has byte `i` of the 4 of each lane.
    fn load_e4m3(self, bytes: &[u8; 4 * LANES]) -> [Self::Vector; 4];

    /// Bytes as f8e5m2, exactly: vector `i` has byte `i` of the 4 of each lane.
    fn load_e5m2(self, bytes: &[u8; 4 * LANES]) -> [Self::Vector; 4];

    /// The bits of each lane.
    fn bits(self, a: Self::Vector) -> Self::Integers;

    /// Lanes of these bits.
    fn of_bits(self, bits: Self::Integers) -> Self::Vector;

    /// Writes 16 lanes.
    fn store_integers(self, integers: Self::Integers, values: &mut [i32; LANES]);

    /// `a + b`.
    fn add_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// `a - b`.
    fn subtract_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// `a * b`, the lower 32 bits.
    fn multiply_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// The bits that are in both.
    fn and(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// The bits that are in one only.
    fn exclusive_or(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// Each lane moved up by `bits` below 32, filled with 0.
    fn shift_left(self, a: Self::Integers, bits: u32) -> Self::Integers;

    /// Each lane moved down by `bits` below 32, filled with 0.
    fn shift_right(self, a: Self::Integers, bits: u32) -> Self::Integers;

    /// Each lane moved down by `bits` below 32, filled with its sign.
    fn shift_right_signed(self, a: Self::Integers, bits: u32) -> Self::Integers;

    /// Byte `place` of each lane, from -128 to 127.
    #[inline(always)]
    fn signed_byte(self, a: Self::Integers, place: u32) -> Self::Integers {
        self.shift_right_signed(self.shift_left(a, 24 - 8 * place), 24)
    }

    /// Adds to each lane of `sum` the products of its four bytes: of `unsigned` from 0 to 255, of `signed` from -128 to 127.
    fn dot(self, sum: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers;

    /// As [`Simd::dot`], with bytes of `unsigned` from 0 to 127.
    fn dot_narrow(self, sum: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers;

    /// Adds to each 16 bits of `sums` the products of their two bytes: of `unsigned` from 0 to 127, of `signed` from -128 to 127. What
    /// comes of sums that leave 16 bits is not defined.
    fn add_pairs(self, sums: Self::Integers, unsigned: Self::Integers, signed: Self::Integers) -> Self::Integers;

    /// Adds to each lane of `sum` the products of its two halves of 16 bits, which have signs.
    fn dot_halves(self, sum: Self::Integers, a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// The bytes at the same place of four times 64 bytes, side by side: lane 4 q + j of vector v has those at place
    /// 16 q + 4 v + j.
    fn interleave_bytes(self, rows: [Self::Integers; 4]) -> [Self::Integers; 4];

    /// Each lane of four vectors plus `added` (from -255 to 255), limited to bytes, which have a sign or none.
    #[inline(always)]
    fn narrow(self, vectors: [Self::Integers; 4], added: i32, signed: bool) -> [u8; 4 * LANES] {
        let (least, greatest) = if signed { (-128, 127) } else { (0, 255) };
        let mut bytes = [0; 4 * LANES];
        for (bytes, vector) in bytes.as_chunks_mut::<LANES>().0.iter_mut().zip(vectors) {
            let mut lanes = [0; LANES];
            self.store_integers(vector, &mut lanes);
            for lane in 0..LANES {
                bytes[lane] = (lanes[lane].max(least - added).min(greatest - added) + added) as u8;
            }
        }
        bytes
    }

    /// As [`Simd::narrow`], with lane j of vector v at place 4 j + v.
    #[inline(always)]
    fn narrow_quarters(self, vectors: [Self::Integers; 4], added: i32, signed: bool) -> [u8; 4 * LANES] {
        let (least, greatest) = if signed { (-128, 127) } else { (0, 255) };
        let mut words = [0; LANES];
        for (place, vector) in vectors.into_iter().enumerate() {
            let mut lanes = [0; LANES];
            self.store_integers(vector, &mut lanes);
            for lane in 0..LANES {
                let code = lanes[lane].max(least - added).min(greatest - added) + added;
                words[lane] |= (code & 0xff) << (8 * place);
            }
        }
        let mut bytes = [0; 4 * LANES];
        for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// Asks for the cache line of the element `ahead` places behind the first of `values`, which may lie outside.
    fn prefetch<T>(self, values: &[T], ahead: usize);

    /// As [`Simd::prefetch`], only as far as the second-level cache.
    fn prefetch_far<T>(self, values: &[T], ahead: usize);

    /// Writes the elements of `WIDTH` bytes (1, 2 or 4) of lines: the next value where a bit of the mask is set, the lowest bit
    /// first, else zero. Values that are missing are zero. `masks` has a bit for each element of the lines.
    #[inline(always)]
    fn expand<const WIDTH: usize>(self, masks: &[u8], values: &[u8], lines: &mut [[u8; 4 * LANES]]) {
        expand::portably::<WIDTH>(masks, values, lines);
    }

    /// What spreads bytes in registers, if this processor has an instruction for that.
    #[inline(always)]
    fn expander(self) -> Option<Self::Expander> {
        None
    }

    /// Reads up to 16 lanes; those that are missing are 0.
    #[inline(always)]
    fn load_partial(self, values: &[f32]) -> Self::Vector {
        if let Some(full) = values.first_chunk() {
            return self.load(full);
        }
        let mut lanes = [0.0; LANES];
        lanes[..values.len()].copy_from_slice(values);
        self.load(&lanes)
    }

    /// Reads every second value, up to 16; those that are missing are 0.
    #[inline(always)]
    fn load_every_second(self, values: &[f32]) -> Self::Vector {
        if let Some(full) = values.first_chunk() {
            return self.load_even(full);
        }
        // Whole vectors are stored, so that the loads need not wait until all are in the cache.
        let mut lanes = [0.0; 2 * LANES];
        let (first, last) = values.split_at(values.len().min(LANES));
        for (lanes, values) in lanes.as_chunks_mut().0.iter_mut().zip([first, last]) {
            self.store(self.load_partial(values), lanes);
        }
        self.load_even(&lanes)
    }

    /// Writes as many lanes as `values` has room for, at most 16.
    #[inline(always)]
    fn store_partial(self, vector: Self::Vector, values: &mut [f32]) {
        if let Some(full) = values.first_chunk_mut() {
            return self.store(vector, full);
        }
        let mut lanes = [0.0; LANES];
        self.store(vector, &mut lanes);
        let count = values.len();
        values.copy_from_slice(&lanes[..count]);
    }
}

/// [`Arithmetic::scale_by_power`] of instructions that have none for it: in two steps, as 2^exponent alone may be out of range; only
/// the second may round.
#[inline(always)]
fn scale_in_two_steps<S: Simd>(simd: S, a: S::Vector, exponent: S::Vector) -> S::Vector {
    // The low bits of the sum are those of the exponent and two biases: each half of them is a biased exponent.
    let sum = simd.bits(simd.add(exponent, simd.splat(12_582_912.0 + 254.0)));
    let half = simd.shift_right(sum, 1);
    let first = simd.of_bits(simd.shift_left(half, 23));
    let second = simd.of_bits(simd.shift_left(simd.subtract_integers(sum, half), 23));
    simd.multiply(simd.multiply(a, first), second)
}

/// A chosen instruction set. Holding one proves that this processor has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Plain Rust.
    Portable(Portable),
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 F, BW, DQ, VL and VNNI, and all of AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// AVX-512, and AMX with tiles of 8-bit integers.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    /// NEON with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

/// The environment variable that names the instruction set which kernels use in place of the fastest.
pub const INSTRUCTIONS_VARIABLE: &str = "IPUC_INSTRUCTIONS";

/// [`INSTRUCTIONS_VARIABLE`] names what this processor does not have.
#[derive(Debug, thiserror::Error)]
#[error("{INSTRUCTIONS_VARIABLE} is `{found}`; this processor has {available}")]
pub struct UnknownInstructions {
    /// The value of the variable.
    found: String,
    /// Names of all sets that this processor has.
    available: String,
}

impl Instructions {
    /// What kernels use: the set that [`INSTRUCTIONS_VARIABLE`] names, else the fastest that this processor has.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Instructions> = OnceLock::new();
        *BEST.get_or_init(|| Self::named().ok().flatten().unwrap_or_else(Self::fastest))
    }

    /// [`Simd::HAS_OWN_LOOPS`].
    pub(crate) fn have_own_loops(self) -> bool {
        struct OwnLoops;

        impl Routine for OwnLoops {
            type Output = bool;

            #[inline(always)]
            fn run<S: Simd>(self, _simd: S) -> bool {
                S::HAS_OWN_LOOPS
            }
        }

        self.run(OwnLoops)
    }

    fn fastest() -> Self {
        Self::available().pop().unwrap_or(Self::Portable(Portable))
    }

    /// The set that [`INSTRUCTIONS_VARIABLE`] names, `None` where it is not set.
    ///
    /// # Errors
    /// [`UnknownInstructions`] where this processor does not have it.
    pub fn named() -> Result<Option<Self>, UnknownInstructions> {
        let Some(found) = std::env::var_os(INSTRUCTIONS_VARIABLE) else { return Ok(None) };
        let all = Self::available();
        let named = all.iter().find(|instructions| found == *instructions.name());
        named.copied().map(Some).ok_or_else(|| UnknownInstructions {
            found: found.to_string_lossy().into_owned(),
            available: all.iter().map(|instructions| instructions.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// All that this processor has, slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            allow(unused_mut, reason = "only portable here")
        )]
        let mut all = vec![Self::Portable(Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Avx2::new().map(Self::Avx2));
            all.extend(Avx512::new().map(Self::Avx512));
            all.extend(Amx::new().map(Self::Amx));
        }
        #[cfg(target_arch = "aarch64")]
        all.extend(Neon::new().map(Self::Neon));
        all
    }

    /// A short lower-case name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) => "amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
        }
    }

    /// Matrix tiles, where it has them.
    #[must_use]
    pub fn tiles(self) -> Option<Amx> {
        match self {
            Self::Portable(_) => None,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) | Self::Avx512(_) => None,
            #[cfg(target_arch = "x86_64")]
            Self::Amx(amx) => Some(amx),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => None,
        }
    }

    /// Whether a vector is one register of 64 bytes, of which one instruction sums products of bytes.
    #[must_use]
    pub fn are_wide(self) -> bool {
        match self {
            Self::Portable(_) => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) | Self::Amx(_) => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => false,
        }
    }

    /// [`Simd::SUMS_HALVES`].
    #[must_use]
    pub fn sum_halves(self) -> bool {
        match self {
            Self::Portable(_) => Portable::SUMS_HALVES,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => Avx2::SUMS_HALVES,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) | Self::Amx(_) => Avx512::SUMS_HALVES,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => Neon::SUMS_HALVES,
        }
    }

    /// Runs `routine` compiled for this instruction set.
    pub fn run<R: Routine>(self, routine: R) -> R::Output {
        match self {
            Self::Portable(simd) => simd.run(routine),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.run(routine),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.run(routine),
            #[cfg(target_arch = "x86_64")]
            Self::Amx(tiles) => tiles.vectors().run(routine),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(simd) => simd.run(routine),
        }
    }
}
