//! Division of vectors by one value, of which the nearest integers are wanted.

use super::Simd;

/// Magnitudes of divisors whose reciprocals and small multiples are far from the ends of f32.
const LEAST: f32 = 1.0 / GREATEST;
const GREATEST: f32 = (1_u64 << 40) as f32;

/// Quotients beyond which no i32 holds the nearest integer.
const BEYOND: f32 = (1_u64 << 33) as f32;

/// Quotients whose nearest integers an i32 holds.
const NEAR: f32 = (1_u64 << 30) as f32;

/// AVX-512 alone: what the products gain elsewhere is not measured, and portable ones are rounded twice.
const fn multiplies<S: Simd>() -> bool {
    S::TILE_VECTORS == 3
}

/// A divisor.
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    value: f32,
    reciprocal: f32,
    /// Dividends are limited to this magnitude: quotients beyond are those of the least or greatest i32.
    most: f32,
    /// Whether products with the reciprocal give the quotients.
    multiplies: bool,
}

impl Divisor {
    /// Any value.
    #[must_use]
    pub fn new(value: f32) -> Self {
        let multiplies = (LEAST..=GREATEST).contains(&value.abs());
        Self { value, reciprocal: 1.0 / value, most: value.abs() * BEYOND, multiplies }
    }

    /// Quotients whose nearest integers are those of `x / value`, as far as an i32 holds them. From 2^-60 to 2^33 they are the
    /// quotients, correctly rounded; smaller ones may be some units off, as remainders underflow.
    ///
    /// A division of 16 lanes takes as long as 16 products. Two corrections of `x * (1 / value)` by its exact remainder give the same bits (P.
    /// Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990).
    #[inline(always)]
    pub fn quotients<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        if !self.multiplies || const { !multiplies::<S>() } {
            return simd.divide(x, simd.splat(self.value));
        }
        let limited = simd.at_most(simd.at_least(x, simd.splat(-self.most)), simd.splat(self.most));
        self.corrected(simd, limited)
    }

    /// Whether quotients of numbers up to this magnitude are [near](Self::near_quotients).
    #[must_use]
    pub fn is_near(self, largest: f32) -> bool {
        self.multiplies && largest <= self.value.abs() * NEAR
    }

    /// As [`Divisor::quotients`], of numbers that are [known](Self::is_near) to have nearest integers that an i32 holds.
    #[inline(always)]
    pub fn near_quotients<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        if const { !multiplies::<S>() } {
            return simd.divide(x, simd.splat(self.value));
        }
        self.corrected(simd, x)
    }

    #[inline(always)]
    fn corrected<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        let (reciprocal, negative) = (simd.splat(self.reciprocal), simd.splat(-self.value));
        let quotient = simd.multiply(x, reciprocal);
        let quotient = simd.fused(simd.fused(quotient, negative, x), reciprocal, quotient);
        simd.fused(simd.fused(quotient, negative, x), reciprocal, quotient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        simd::{Instructions, LANES, Routine},
        testing::numbers,
    };

    struct Nearest<'a> {
        x: &'a [f32; LANES],
        divisor: f32,
        /// By [`Divisor`] and by a division.
        nearest: &'a mut [[i32; LANES]; 2],
        quotients: &'a mut [[f32; LANES]; 2],
    }

    impl Routine for Nearest<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let x = simd.load(self.x);
            let divisor = Divisor::new(self.divisor);
            let both = [divisor.quotients(simd, x), simd.divide(x, simd.splat(self.divisor))];
            if divisor.is_near(self.x.iter().fold(0.0, |most, x| x.abs().max(most))) {
                let near = simd.nearest_of_near(divisor.near_quotients(simd, x));
                let mut found = [[0; LANES]; 2];
                simd.store_integers(near, &mut found[0]);
                simd.store_integers(simd.nearest_integers(both[0]), &mut found[1]);
                assert_eq!(found[0], found[1], "{:?} / {} as near ones", self.x, self.divisor);
            }
            for index in 0..2 {
                simd.store(both[index], &mut self.quotients[index]);
                simd.store_integers(simd.nearest_integers(both[index]), &mut self.nearest[index]);
            }
        }
    }

    fn check(instructions: Instructions, x: [f32; LANES], divisor: f32) {
        let (mut nearest, mut quotients) = ([[0; LANES]; 2], [[0.0; LANES]; 2]);
        instructions.run(Nearest { x: &x, divisor, nearest: &mut nearest, quotients: &mut quotients });
        assert_eq!(nearest[0], nearest[1], "{x:?} / {divisor} on {}", instructions.name());
        for lane in 0..LANES {
            let (found, expected) = (quotients[0][lane], quotients[1][lane]);
            let is_told = expected.is_nan() || expected.abs() >= BEYOND || expected.abs() < 1e-20;
            assert!(is_told || found == expected, "{} / {divisor} is {expected}, not {found}", x[lane]);
        }
    }

    #[test]
    fn quotients_have_the_bits_of_divisions() {
        for instructions in Instructions::available() {
            for seed in 0..4000 {
                let values = numbers(seed, LANES + 1);
                // Divisors with all mantissas, near powers of two too; dividends near the middle between two integers of quotients.
                let exponent = (seed % 70) as i32 - 35;
                let divisor = match seed % 4 {
                    0 => f32::from_bits(2.0f32.powi(exponent).to_bits() - 1 - seed / 100),
                    _ => (values[LANES] + 1.5) * 2.0f32.powi(exponent),
                };
                let middle: [f32; LANES] =
                    std::array::from_fn(|lane| (((values[lane] * 300.0) as i32) as f32 + 0.5) * divisor);
                check(instructions, middle, divisor);
                check(instructions, middle.map(f32::next_up), -divisor);
                check(instructions, middle.map(f32::next_down), divisor);
                check(
                    instructions,
                    std::array::from_fn(|lane| values[lane] * 2.0f32.powi(exponent + lane as i32)),
                    divisor,
                );
            }
        }
    }

    #[test]
    fn the_ends_of_f32_are_those_of_divisions() {
        let x = [
            0.0,
            -0.0,
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            1e-45,
            -1e-45,
            1.0,
            -1.0,
            3e9,
            -3e9,
            1e20,
            -1e20,
        ];
        for instructions in Instructions::available() {
            for divisor in
                [1.0, -0.5, 0.0, -0.0, f32::INFINITY, f32::NAN, 1e-45, 1e38, GREATEST, LEAST, -GREATEST * 2.0]
            {
                check(instructions, x, divisor);
            }
        }
    }
}
