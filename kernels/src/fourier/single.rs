//! Transforms in f32 of lengths without prime factors above 5: by factors, as the reference of ONNX (NumPy) transforms complex
//! signals of f32, in its order of operations. What is 0 exactly may be a rounding error here, as there.

use rustfft::num_complex::Complex;
use std::f64::consts::TAU;

type Point = Complex<f32>;

/// Sine of a third of a turn.
const THIRD: f64 = 0.866_025_403_784_438_6;
/// Cosine and sine of a fifth of a turn, and of two.
const FIFTHS: [(f64, f64); 2] =
    [(0.309_016_994_374_947_4, 0.951_056_516_295_153_5), (-0.809_016_994_374_947_4, 0.587_785_252_292_473_1)];

/// A prepared transform.
pub(super) struct Single {
    factors: Vec<usize>,
    /// `e^(±2πik/n)` for each k below n.
    roots: Vec<Point>,
    /// 1 for an inverse transform, -1 for a forward one.
    sign: f32,
}

impl Single {
    /// `None` where the length has other factors.
    pub(super) fn new(length: usize, inverse: bool) -> Option<Single> {
        let (mut factors, mut rest) = (Vec::new(), length);
        let take = |rest: &mut usize, factor: usize, factors: &mut Vec<usize>| {
            while *rest > 1 && rest.is_multiple_of(factor) {
                *rest /= factor;
                factors.push(factor);
            }
        };
        take(&mut rest, 4, &mut factors);
        if rest.is_multiple_of(2) {
            rest /= 2;
            factors.push(2);
            let last = factors.len() - 1;
            factors.swap(0, last);
        }
        take(&mut rest, 3, &mut factors);
        take(&mut rest, 5, &mut factors);
        if rest != 1 {
            return None;
        }
        let sign = if inverse { 1.0 } else { -1.0 };
        let angle = |index: usize| TAU * index as f64 / length as f64;
        let root =
            |index: usize| Complex::new(angle(index).cos() as f32, (f64::from(sign) * angle(index).sin()) as f32);
        Some(Single { factors, roots: (0..length).map(root).collect(), sign })
    }

    pub(super) fn length(&self) -> usize {
        self.roots.len()
    }

    /// The spectrum of `points`, which is not scaled; `scratch` is as long.
    pub(super) fn process(&self, points: &mut [Point], scratch: &mut [Point]) {
        let (mut from, mut to) = (points, scratch);
        let mut done = 1;
        for &factor in &self.factors {
            match factor {
                2 => self.pass::<2>(done, from, to, |[a, b]| [a + b, a - b]),
                3 => self.pass::<3>(done, from, to, |points| self.three(points)),
                4 => self.pass::<4>(done, from, to, |points| self.four(points)),
                _ => self.pass::<5>(done, from, to, |points| self.five(points)),
            }
            (from, to) = (to, from);
            done *= factor;
        }
        // After an odd number of passes the spectrum is in the scratch memory.
        if !self.factors.len().is_multiple_of(2) {
            to.copy_from_slice(from);
        }
    }

    /// One pass over all points: sums of N points at a time, then rotated by the roots between them.
    fn pass<const N: usize>(
        &self,
        done: usize,
        from: &[Point],
        to: &mut [Point],
        sums: impl Fn([Point; N]) -> [Point; N],
    ) {
        let run = from.len() / (N * done);
        for group in 0..done {
            for at in 0..run {
                let points = std::array::from_fn(|part| from[at + run * (part + N * group)]);
                for (part, sum) in sums(points).into_iter().enumerate() {
                    let turned = if part == 0 || at == 0 { sum } else { sum * self.roots[part * done * at] };
                    to[at + run * (group + done * part)] = turned;
                }
            }
        }
    }

    fn three(&self, [a, b, c]: [Point; 3]) -> [Point; 3] {
        let (sum, difference) = (b + c, b - c);
        let real = a + sum * -0.5;
        let turned = turn(difference * (self.sign * THIRD as f32));
        [a + sum, real + turned, real - turned]
    }

    fn four(&self, [a, b, c, d]: [Point; 4]) -> [Point; 4] {
        let (even, odd) = (a + c, b + d);
        let (difference, turned) = (a - c, turn((b - d) * self.sign));
        [even + odd, difference + turned, even - odd, difference - turned]
    }

    fn five(&self, [a, b, c, d, e]: [Point; 5]) -> [Point; 5] {
        let [near, far] = FIFTHS.map(|(cosine, sine)| Complex::new(cosine as f32, self.sign * sine as f32));
        let (outer, inner) = (b + e, c + d);
        let (across, between) = (b - e, c - d);
        let one = (a + outer * near.re + inner * far.re, turn(across * near.im + between * far.im));
        let two = (a + outer * far.re + inner * near.re, turn(across * far.im - between * near.im));
        [a + outer + inner, one.0 + one.1, two.0 + two.1, two.0 - two.1, one.0 - one.1]
    }
}

/// A quarter of a turn.
fn turn(point: Point) -> Point {
    Complex::new(-point.im, point.re)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn spectra_are_those_of_the_sum() {
        for (length, inverse) in [
            (1, false),
            (2, true),
            (3, false),
            (4, true),
            (5, false),
            (10, true),
            (60, false),
            (64, true),
            (450, false),
        ] {
            let signal: Vec<Point> =
                numbers(3, 2 * length).as_chunks().0.iter().map(|&[x, y]| Complex::new(x, y)).collect();
            let single = Single::new(length, inverse).unwrap();
            let (mut points, mut scratch) = (signal.clone(), signal.clone());
            single.process(&mut points, &mut scratch);
            for (bin, point) in points.iter().enumerate() {
                let term = |(at, point): (usize, &Point)| {
                    let angle = TAU * ((bin * at) % length) as f64 / length as f64;
                    let root = Complex::new(angle.cos(), if inverse { angle.sin() } else { -angle.sin() });
                    Complex::new(f64::from(point.re), f64::from(point.im)) * root
                };
                let sum: Complex<f64> = signal.iter().enumerate().map(term).sum();
                let error = (sum - Complex::new(f64::from(point.re), f64::from(point.im))).norm();
                assert!(error < 1e-6 * (length as f64).sqrt(), "{length} points, bin {bin}: off by {error}");
            }
        }
        assert!(Single::new(7, false).is_none() && Single::new(22, true).is_none());
    }

    /// NumPy 2 gives 1.9e-6 where the exact spectrum is 0.
    #[test]
    fn roundings_are_those_of_the_reference() {
        let mut points: Vec<Point> = (0..10).map(|at| Complex::new(at as f32 * 10.0, 0.0)).collect();
        let mut scratch = points.clone();
        Single::new(10, true).unwrap().process(&mut points, &mut scratch);
        assert_eq!((points[5].re, points[5].im), (-50.0, 1.907_348_6e-6));
    }
}
