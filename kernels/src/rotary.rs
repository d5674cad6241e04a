//! Rotation of pairs of elements by angles of their position.

use crate::simd::{Instructions, Routine, Simd};

/// Rotates the pairs `(x[i], x[i + half])` of a head of `2 * half` elements, where `cos` and `sin` have `half`. Products are
/// exact, in f64; a sum is rounded there and then to f32.
///
/// # Panics
/// If lengths disagree.
pub fn rotate_halves(instructions: Instructions, x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    let half = cos.len();
    assert!(sin.len() == half && x.len() == 2 * half && out.len() == 2 * half, "elements of a rotated head");
    instructions.run(Halves { x: x.split_at(half), cos, sin, out: out.split_at_mut(half) });
}

struct Halves<'a> {
    x: (&'a [f32], &'a [f32]),
    cos: &'a [f32],
    sin: &'a [f32],
    out: (&'a mut [f32], &'a mut [f32]),
}

impl Routine for Halves<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let (x, y) = self.x;
        let (first, second) = self.out;
        // Of one length, which the loop then need not look at.
        let half = first.len();
        let (x, y, cos, sin, second) =
            (&x[..half], &y[..half], &self.cos[..half], &self.sin[..half], &mut second[..half]);
        for index in 0..half {
            let [x, y, cos, sin] = [x[index], y[index], cos[index], sin[index]].map(f64::from);
            first[index] = (cos * x - sin * y) as f32;
            second[index] = (sin * x + cos * y) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn halves_are_rotated_with_the_same_bits_by_all_instructions() {
        for half in [0, 1, 7, 16, 37, 64] {
            let (x, cos, sin) = (numbers(1, 2 * half), numbers(2, half), numbers(3, half));
            let expected = |index: usize| {
                let pair = index % half;
                let [a, b, cos, sin] = [x[pair], x[pair + half], cos[pair], sin[pair]].map(f64::from);
                (if index < half { cos * a - sin * b } else { sin * a + cos * b }) as f32
            };
            let expected: Vec<u32> = (0..2 * half).map(|index| expected(index).to_bits()).collect();
            for instructions in Instructions::available() {
                let mut out = vec![f32::NAN; 2 * half];
                rotate_halves(instructions, &x, &cos, &sin, &mut out);
                let bits: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                assert_eq!(bits, expected, "{} {half}", instructions.name());
            }
        }
    }
}
