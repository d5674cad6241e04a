//! What a machine gives at most, measured: reading memory, and multiply-accumulates from registers.
//!
//! A benchmark measures them beside what it times, since a shared machine gives more in one minute than in the next. They are
//! limits, no predictions: no loads are among the operations, and nothing but loads in the reading.

use crate::simd::{Instructions, LANES, Routine, Simd};
use crate::team;
use crate::threads::each;
use std::{hint::black_box, time::Instant};

/// Multiply-accumulates of different sums in flight: as many as keep both units busy, in registers of AVX2 too.
const SUMS: usize = 6;

/// Parts for each thread that reads memory.
const PARTS: usize = 4;

/// The greatest rates of all threads of the caller's team together, one of many rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Bytes a second that are read from memory.
    pub memory_bytes: f64,
    /// Multiplications and additions of f32 a second.
    pub float_operations: f64,
    /// Multiplications and additions of bytes into sums of 32 bits, a second.
    pub byte_operations: f64,
}

impl Limits {
    /// Measures in so many rounds. Memory is read from `values`, which should be much larger than the caches.
    #[must_use]
    pub fn measure(instructions: Instructions, values: &[f32], rounds: usize) -> Limits {
        /// Of some milliseconds.
        const REPEATS: usize = 200_000;
        let mut limits = Limits { memory_bytes: 0.0, float_operations: 0.0, byte_operations: 0.0 };
        for _ in 0..rounds {
            let read = || {
                read(instructions, values);
                size_of_val(values)
            };
            limits.memory_bytes = limits.memory_bytes.max(rate(read));
            limits.float_operations =
                limits.float_operations.max(2.0 * rate(|| multiply_floats(instructions, REPEATS)));
            limits.byte_operations = limits.byte_operations.max(2.0 * rate(|| multiply_bytes(instructions, REPEATS)));
        }
        limits
    }
}

/// How many a second, of what `run` does and counts.
fn rate(run: impl FnOnce() -> usize) -> f64 {
    let begin = Instant::now();
    let count = run();
    count as f64 / begin.elapsed().as_secs_f64().max(1e-9)
}

/// Reads every value once, side by side on all threads.
pub fn read(instructions: Instructions, values: &[f32]) {
    let part = values.len().div_ceil(team::count() * PARTS).next_multiple_of(4 * LANES).max(4 * LANES);
    each(values.chunks(part).collect(), |part| {
        black_box(instructions.run(Read(part)));
    });
}

/// So many rounds of fused multiply-adds of f32 on each thread; gives how many those are.
#[must_use]
pub fn multiply_floats(instructions: Instructions, rounds: usize) -> usize {
    each(vec![rounds; team::count()], |rounds| {
        black_box(instructions.run(Floats(rounds)));
    });
    rounds * instructions.run(Floats(0)).1 * LANES * team::count()
}

/// The same of multiply-accumulates of bytes.
#[must_use]
pub fn multiply_bytes(instructions: Instructions, rounds: usize) -> usize {
    each(vec![rounds; team::count()], |rounds| {
        black_box(instructions.run(Bytes(rounds)));
    });
    rounds * instructions.run(Bytes(0)).1 * 4 * LANES * team::count()
}

/// Reads every value once.
struct Read<'a>(&'a [f32]);

impl Routine for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat(0.0); 4];
        for block in self.0.as_chunks::<{ 4 * LANES }>().0 {
            let (vectors, _) = block.as_chunks::<LANES>();
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                *sum = simd.add(*sum, simd.load(vector));
            }
        }
        let mut lanes = [0.0; LANES];
        simd.store(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])), &mut lanes);
        lanes.iter().sum()
    }
}

/// Rounds of independent fused multiply-adds from registers; gives their sum, and how many vectors a round has.
struct Floats(usize);

impl Routine for Floats {
    type Output = (f32, usize);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> (f32, usize) {
        // No two registers hold the same, or the compiler would make one of them.
        let lanes: [f32; LANES] = black_box(std::array::from_fn(|lane| lane as f32 / 16.0));
        let (factor, addend) = (simd.load(&lanes), simd.splat(black_box(1.0)));
        let mut sums: [S::Vector; SUMS] =
            std::array::from_fn(|index| simd.multiply(factor, simd.splat(black_box(index as f32 + 1.0))));
        let mut more = sums.map(|sum| simd.add(sum, factor));
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = simd.fused(*sum, factor, addend);
            }
            if S::TILE_VECTORS > 1 {
                for sum in &mut more {
                    *sum = simd.fused(*sum, factor, addend);
                }
            }
        }
        let mut total = 0.0;
        for sum in sums.into_iter().chain(more) {
            let mut lanes = [0.0; LANES];
            simd.store(sum, &mut lanes);
            total += lanes.iter().sum::<f32>();
        }
        (total, if S::TILE_VECTORS > 1 { 2 * SUMS } else { SUMS })
    }
}

/// The four bytes of the first lane, which products begin with, and those that all are multiplied by.
const FIRST_BYTES: i32 = 0x0102_0304;
const SIGNED_BYTES: i32 = 0x0101_ff02;

/// Adds four products to each lane, as kernels multiply codes of 8 bits.
#[inline(always)]
fn four_products<S: Simd>(simd: S, sum: S::Integers, signed: S::Integers) -> S::Integers {
    if const { S::SUMS_HALVES } {
        let sum = simd.dot_halves(sum, sum, signed);
        return simd.dot_halves(sum, sum, signed);
    }
    simd.dot(sum, sum, signed)
}

/// The same of bytes.
struct Bytes(usize);

impl Routine for Bytes {
    type Output = (i32, usize);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> (i32, usize) {
        let lanes: [i32; LANES] = black_box(std::array::from_fn(|lane| FIRST_BYTES + lane as i32));
        let (first, signed) = (simd.load_integers(&lanes), simd.splat_integer(black_box(SIGNED_BYTES)));
        let mut sums: [S::Integers; SUMS] =
            std::array::from_fn(|index| simd.add_integers(first, simd.splat_integer(black_box(index as i32))));
        let mut more = sums.map(|sum| simd.add_integers(sum, signed));
        for _ in 0..self.0 {
            // Products of the sums themselves: where nothing but an addition changed from round to round, the compiler would
            // multiply once.
            for sum in &mut sums {
                *sum = four_products(simd, *sum, signed);
            }
            if S::TILE_VECTORS > 1 {
                for sum in &mut more {
                    *sum = four_products(simd, *sum, signed);
                }
            }
        }
        let mut total = 0i32;
        for sum in sums.into_iter().chain(more) {
            let mut lanes = [0; LANES];
            simd.store_integers(sum, &mut lanes);
            total = lanes.iter().fold(total, |total, &lane| total.wrapping_add(lane));
        }
        (total, if S::TILE_VECTORS > 1 { 2 * SUMS } else { SUMS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn every_round_of_operations_is_computed_and_every_value_read() {
        for instructions in Instructions::available() {
            // A sum that gains factor * sum + 1 in each round differs from round to round.
            let totals: Vec<f32> = (0..4).map(|rounds| instructions.run(Floats(rounds)).0).collect();
            assert!(totals.windows(2).all(|pair| pair[0] != pair[1]), "{}: {totals:?}", instructions.name());
            for rounds in 0..4 {
                let (total, vectors) = instructions.run(Bytes(rounds));
                let expected = total_of_bytes(rounds, vectors, instructions.sum_halves());
                assert_eq!(total, expected, "{} after {rounds}", instructions.name());
            }
            let values = numbers(7, 4 * LANES * 5);
            let (read, sum) = (instructions.run(Read(&values)), values.iter().sum::<f32>());
            assert!((read - sum).abs() < 1e-3, "{}: {read} {sum}", instructions.name());
        }
    }

    /// What four products add to a sum.
    fn products(sum: i32, halves: bool) -> i32 {
        if halves {
            let of_halves = |a: i32| {
                let [low, high] =
                    [0, 16].map(|bits| i32::from((a >> bits) as i16) * i32::from((SIGNED_BYTES >> bits) as i16));
                low.wrapping_add(high)
            };
            let first = of_halves(sum);
            return first.wrapping_add(of_halves(sum.wrapping_add(first)));
        }
        let pairs = sum.to_le_bytes().into_iter().zip(SIGNED_BYTES.to_le_bytes());
        pairs.map(|(byte, signed)| i32::from(byte) * i32::from(signed as i8)).sum()
    }

    /// The sum of all lanes after so many rounds of products of the first vectors.
    fn total_of_bytes(rounds: usize, vectors: usize, halves: bool) -> i32 {
        let mut total = 0i32;
        for (vector, lane) in (0..2 * SUMS).flat_map(|vector| (0..LANES).map(move |lane| (vector, lane))) {
            let more = if vector < SUMS { 0 } else { SIGNED_BYTES };
            let mut sum = FIRST_BYTES + (lane + vector % SUMS) as i32 + more;
            for _ in 0..if vector < vectors { rounds } else { 0 } {
                sum = sum.wrapping_add(products(sum, halves));
            }
            total = total.wrapping_add(sum);
        }
        total
    }

    #[test]
    fn limits_are_rates() {
        let limits = Limits::measure(Instructions::best(), &[1.0; 4096], 1);
        assert!(
            limits.memory_bytes > 1e6 && limits.float_operations > 1e6 && limits.byte_operations > 1e6,
            "{limits:?}"
        );
    }
}
