//! How large the elements of a value are: what decides its codes, and which of them are nearly nothing.

use serde::{Deserialize, Serialize};

/// The least magnitude of which more than that it is small is known: 2 to this.
const LEAST_EXPONENT: i32 = -40;
/// The first magnitude that is counted with all above it.
const MOST_EXPONENT: i32 = 40;
/// Magnitudes of an octave are counted in so many steps, as bits behind the leading one tell them.
const STEP_BITS: u32 = 3;
const BINS: usize = ((MOST_EXPONENT - LEAST_EXPONENT) as usize) << STEP_BITS;

/// Shares of the greatest magnitude that codes may stand for; what lies beyond is the nearest end.
const CLIPPED: [f64; 10] = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1];

/// How often elements had which magnitudes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Of positive elements and of negative ones, from the least magnitudes on.
    counts: [Vec<u64>; 2],
    zeros: u64,
    least: f32,
    greatest: f32,
}

/// Codes of 8 bits that stand for `(code - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodeRange {
    /// The step between two codes.
    pub scale: f32,
    /// The code of 0, from -128 to 127.
    pub zero: i8,
}

impl Default for Spread {
    fn default() -> Self {
        Spread { counts: [vec![0; BINS], vec![0; BINS]], zeros: 0, least: 0.0, greatest: 0.0 }
    }
}

/// The first bin of magnitudes, as the bits of f32 begin.
const fn first_bits() -> u32 {
    ((127 + LEAST_EXPONENT) as u32) << STEP_BITS
}

/// Where magnitudes of a bin begin.
fn edge(bin: usize) -> f64 {
    f64::from(f32::from_bits((first_bits() + bin as u32) << (23 - STEP_BITS)))
}

fn middle(bin: usize) -> f64 {
    0.5 * (edge(bin) + edge(bin + 1))
}

impl Spread {
    /// Count finite elements.
    pub fn add(&mut self, elements: &[f32]) {
        for &element in elements {
            if element == 0.0 {
                self.zeros += 1;
                continue;
            }
            let bits = element.abs().to_bits() >> (23 - STEP_BITS);
            let bin = (bits.saturating_sub(first_bits()) as usize).min(BINS - 1);
            self.counts[usize::from(element < 0.0)][bin] += 1;
            self.least = self.least.min(element);
            self.greatest = self.greatest.max(element);
        }
    }

    /// All that was counted.
    pub(super) fn hash(&self, hasher: &mut blake3::Hasher) {
        let Spread { counts, zeros, least, greatest } = self;
        counts.iter().flatten().chain([zeros]).for_each(|count| {
            hasher.update(&count.to_le_bytes());
        });
        [least, greatest].into_iter().for_each(|end| {
            hasher.update(&end.to_le_bytes());
        });
    }

    /// Elements that were counted.
    pub fn count(&self) -> u64 {
        self.zeros + self.counts.iter().flatten().sum::<u64>()
    }

    /// Magnitudes with how often there were such.
    fn magnitudes(&self) -> impl Iterator<Item = (usize, u64)> {
        (0..BINS.min(self.counts[0].len()).min(self.counts[1].len()))
            .map(|bin| (bin, self.counts[0][bin] + self.counts[1][bin]))
    }

    /// The sum of squares.
    fn squares(&self) -> f64 {
        self.magnitudes().map(|(bin, count)| middle(bin).powi(2) * count as f64).sum()
    }

    /// The greatest magnitude that is counted apart and no more than this share of the root mean square; 0 where there is none.
    pub fn threshold(&self, share: f64) -> f32 {
        let most = share * (self.squares() / self.count().max(1) as f64).sqrt();
        (0..BINS).map(edge).take_while(|&edge| edge <= most).last().unwrap_or(0.0) as f32
    }

    /// The share of elements whose magnitudes are below this, zeros among them, and that of the squares that these have.
    pub fn below(&self, threshold: f32) -> [f64; 2] {
        let under = || self.magnitudes().filter(|(bin, _)| edge(bin + 1) <= f64::from(threshold));
        let count = self.zeros + under().map(|(_, count)| count).sum::<u64>();
        let squares: f64 = under().map(|(bin, count)| middle(bin).powi(2) * count as f64).sum();
        [count as f64 / self.count().max(1) as f64, squares / self.squares().max(f64::MIN_POSITIVE)]
    }

    /// The codes of 8 bits that lose least of what was counted: narrower than its range where single elements are far out.
    pub fn codes(&self) -> CodeRange {
        let range = |share: f64| {
            let most = share * f64::from(self.greatest.max(-self.least));
            let (low, high) = (f64::from(self.least).max(-most), f64::from(self.greatest).min(most));
            let scale = ((high - low) / 255.0).max(f64::from(f32::MIN_POSITIVE)) as f32;
            CodeRange { scale, zero: (-128.0 - low / f64::from(scale)).round().clamp(-128.0, 127.0) as i8 }
        };
        let lost = |codes: &CodeRange| -> f64 {
            let scale = f64::from(codes.scale);
            let [low, high] = [-128, 127].map(|code| f64::from(code - i32::from(codes.zero)) * scale);
            let of = |value: f64| {
                let beyond = (value - value.clamp(low, high)).powi(2);
                if beyond > 0.0 { beyond } else { (scale * scale / 12.0).min(value * value) }
            };
            let signed = |(counts, sign): (&Vec<u64>, f64)| -> f64 {
                counts.iter().enumerate().map(|(bin, &count)| of(sign * middle(bin)) * count as f64).sum()
            };
            self.counts.iter().zip([1.0, -1.0]).map(signed).sum()
        };
        let ranges = CLIPPED.map(|share| {
            let codes = range(share);
            (lost(&codes), codes)
        });
        // Of equal ones the widest.
        ranges.into_iter().rev().min_by(|one, other| one.0.total_cmp(&other.0)).map_or(range(1.0), |(_, codes)| codes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(elements: &[f32]) -> Spread {
        let mut spread = Spread::default();
        spread.add(elements);
        spread
    }

    #[test]
    fn thresholds_are_shares_of_the_root_mean_square() {
        let elements: Vec<f32> = (0..1000)
            .map(|at| {
                if at % 4 == 0 {
                    0.0
                } else if at % 4 == 1 {
                    -0.01
                } else {
                    1.0
                }
            })
            .collect();
        let spread = spread(&elements);
        assert_eq!(spread.count(), 1000);
        let threshold = spread.threshold(0.1);
        assert!((0.06..0.0717).contains(&threshold), "{threshold}");
        let [share, squares] = spread.below(threshold);
        assert_eq!(share, 0.5);
        assert!((0.4e-4..0.6e-4).contains(&squares), "{squares}");
        assert_eq!(spread.below(0.0), [0.25, 0.0]);
        assert_eq!(Spread::default().threshold(0.5), 0.0);
        assert_eq!(super::Spread::default().below(1.0), [0.0, 0.0]);
    }

    #[test]
    fn codes_stand_for_what_was_counted() {
        let even: Vec<f32> = (0..=1000).map(|at| at as f32 / 1000.0 * 3.0 - 1.0).collect();
        let codes = spread(&even).codes();
        assert_eq!((codes.scale, codes.zero), (3.0 / 255.0, -43));
        // After ReLU all codes are above zero.
        let positive: Vec<f32> = even.iter().map(|value| value.max(0.0)).collect();
        assert_eq!(spread(&positive).codes(), CodeRange { scale: 2.0 / 255.0, zero: -128 });
        // One element far out does not take the precision of all others: beyond 8 the others lose more than it gains.
        let mut outlier: Vec<f32> = (0..1_000_000).map(|at| (at % 1000) as f32 / 500.0 - 1.0).collect();
        outlier.push(20.0);
        let codes = spread(&outlier).codes();
        assert_eq!((codes.scale, codes.zero), (9.0 / 255.0, -100));
        assert_eq!(spread(&[0.0; 4]).codes().zero, -128);
    }
}
