//! Fast numeric cores: plain functions over slices, without operators, values or plans.
//!
//! The executor decides *what* runs and hands slices over; what happens here is only arithmetic. The rules:
//!
//! - **One algorithm, several instruction sets.** Kernels are generic over [`simd::Simd`], a token that exists only where
//!   the processor has the instructions. `simd/portable.rs` is plain Rust and right everywhere. `unsafe` is in `simd/avx2.rs`,
//!   `simd/avx512.rs` and `simd/neon.rs` with their folders, in `simd/amx.rs`, the matrix tiles that convolutions of integers use beside
//!   AVX-512, in `simd/adjacent.rs`, `simd/lines.rs` and `simd/panel_lines.rs`, which check bounds once for many places, and in
//!   `team.rs` and `team/tasks.rs`, which lend work to threads. [`simd::Instructions`] chooses at run time, once for a call.
//! - **A vector is 16 lanes of f32 on every instruction set**, as wide as a panel of weights. AVX2 holds it in two registers,
//!   NEON in four.
//! - **Defined order.** Each output element is reduced in an order that depends on the length of its reduction only: not on
//!   the number of threads, on how rows or columns are blocked, nor on where a weight was cut into pieces. Work is
//!   split over outputs, never over a reduction. So the same bits come out of 1 and 16 threads, of a streamed and a
//!   resident run, and of one row alone or among others. Between instruction sets only the stated bounds hold,
//!   since portable code has no fused multiply-add; integer sums (`product::dynamic_product`) have the same bits on all.
//! - **Threads are the caller's.** Kernels use the [`team::Team`] they are called in, and none for less than about
//!   [`threads::SERIAL_OPERATIONS`] operations.
//! - **Shapes are the caller's promise.** Mismatched lengths panic at the head of a kernel with the numbers in the message;
//!   nothing here reads untrusted bytes. Empty shapes are fine.
//!
//! Operators meet these kernels in the steps of `ipuc-runtime`.

#![deny(unsafe_code)]
#![allow(clippy::needless_range_loop, reason = "arrays that stand for registers are indexed side by side")]

mod ahead;
pub mod attention;
mod bands;
pub mod change;
pub mod convolution;
pub mod elements;
pub mod elementwise;
pub mod fourier;
pub mod layer_normalization;
pub mod limits;
pub mod matrix;
pub mod narrow;
pub mod normalize;
mod places;
pub mod pool;
pub mod product;
pub mod quantize;
pub mod recurrence;
pub mod reduce;
pub mod resample;
pub mod rotary;
pub mod sample;
pub mod scratch;
pub mod simd;
pub mod softmax;
pub mod strided;
#[allow(unsafe_code, reason = "threads of a team call what their caller only borrows")]
pub mod team;
pub mod threads;
pub mod window;

pub mod testing {
    //! What the tests of several kernels, and of the steps that call them, share.

    use std::ops::Range;

    /// Numbers from -1 to 1 that look random, the same for each call.
    pub fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            f32::from_bits(0x3f80_0000 | state >> 9).mul_add(2.0, -3.0)
        };
        (0..count).map(|_| next()).collect()
    }

    /// Rows 0 to `rows`, cut where `cuts` say.
    pub fn passes(rows: usize, cuts: &[usize]) -> Vec<Range<usize>> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % rows).chain([0, rows]).collect();
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).filter(|rows| !rows.is_empty()).collect()
    }

    /// Runs with a team of its own.
    pub fn with_threads<T>(threads: usize, run: impl FnOnce() -> T) -> T {
        crate::team::Team::new(threads).expect("a team").run(run)
    }

    /// What a float of 8 bits stands for, by its definition.
    pub fn float_of_8_bits(code: u8, mantissa_bits: i32, bias: i32) -> f32 {
        let (magnitude, implicit) = (i32::from(code & 0x7f), 1 << mantissa_bits);
        let (exponent, fraction) = (magnitude >> mantissa_bits, magnitude % implicit);
        let mantissa = if exponent == 0 { fraction } else { fraction + implicit };
        let value = match (magnitude, mantissa_bits) {
            (0x7f, 3) | (0x7d.., 2) => f32::NAN,
            (0x7c, 2) => f32::INFINITY,
            _ => mantissa as f32 * 2.0_f32.powi(exponent.max(1) - bias - mantissa_bits),
        };
        if code < 0x80 { value } else { -value }
    }
}
