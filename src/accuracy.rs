//! How far numbers lie from those of a reference.

/// Differences of numbers from those of a reference, over any number of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Deviation {
    /// Numbers compared.
    pub elements: u64,
    /// How many were NaN or infinite on one side at least; they count nowhere else.
    pub not_finite: u64,
    /// The largest difference.
    pub maximum: f64,
    absolute: f64,
    error_energy: f64,
    reference_energy: f64,
    found_energy: f64,
    product: f64,
}

impl Deviation {
    /// Count what was found beside a reference of the same length.
    pub fn add(&mut self, found: &[f64], reference: &[f64]) {
        for (&found, &reference) in found.iter().zip(reference) {
            self.elements += 1;
            if !found.is_finite() || !reference.is_finite() {
                self.not_finite += 1;
                continue;
            }
            let difference = (found - reference).abs();
            self.maximum = self.maximum.max(difference);
            self.absolute += difference;
            self.error_energy += difference * difference;
            self.reference_energy += reference * reference;
            self.found_energy += found * found;
            self.product += found * reference;
        }
    }

    /// The mean difference; 0 where nothing was compared.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self.elements - self.not_finite {
            0 => 0.0,
            counted => self.absolute / counted as f64,
        }
    }

    /// The root of the mean square of the differences over that of the reference; none where the reference is zero and
    /// something differs.
    #[must_use]
    pub fn relative(&self) -> Option<f64> {
        match (self.error_energy, self.reference_energy) {
            (0.0, _) => Some(0.0),
            (_, 0.0) => None,
            (error, reference) => Some((error / reference).sqrt()),
        }
    }

    /// The cosine of the angle between both as vectors; none where one is zero and the other is not.
    #[must_use]
    pub fn cosine(&self) -> Option<f64> {
        match (self.found_energy, self.reference_energy) {
            (0.0, 0.0) => Some(1.0),
            (0.0, _) | (_, 0.0) => None,
            (found, reference) => Some(self.product / (found.sqrt() * reference.sqrt())),
        }
    }

    /// The energy of the reference over that of the differences, in decibels: infinite where nothing differs.
    #[must_use]
    pub fn signal_to_noise(&self) -> f64 {
        if self.error_energy == 0.0 {
            f64::INFINITY
        } else {
            10.0 * (self.reference_energy / self.error_energy).log10()
        }
    }
}

/// How often rows of numbers have their greatest at the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ranking {
    /// Rows compared: those with NaN on one side are not.
    pub rows: u64,
    /// Rows whose greatest number is at the same place.
    pub first: u64,
    /// Rows in which the place of the reference's greatest number is among those of the five greatest.
    pub among_five: u64,
}

impl Ranking {
    /// Count rows of `length` numbers beside those of a reference. Of equal numbers the first is the greater.
    ///
    /// # Panics
    /// If `length` is 0.
    pub fn add(&mut self, found: &[f64], reference: &[f64], length: usize) {
        for (found, reference) in found.chunks_exact(length).zip(reference.chunks_exact(length)) {
            if found.iter().chain(reference).any(|number| number.is_nan()) {
                continue;
            }
            let place = first_greatest(reference);
            let own = found[place];
            let before =
                found.iter().enumerate().filter(|&(at, &number)| number > own || (number == own && at < place));
            let before = before.count();
            self.rows += 1;
            self.first += u64::from(before == 0);
            self.among_five += u64::from(before < 5);
        }
    }
}

/// How well a language model and a reference tell the tokens of a text from those before them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prediction {
    /// Tokens that were told.
    pub tokens: u64,
    /// How often both gave the same token the greatest probability.
    pub same_first: u64,
    /// The largest divergence of one token.
    pub greatest_divergence: f64,
    loss: f64,
    reference_loss: f64,
    divergence: f64,
    difference_squares: f64,
}

impl Prediction {
    /// Count a token by the scores `[vocabulary]` of both models behind those before it; whether these are numbers and have
    /// the token. Where they are not, nothing is counted.
    #[must_use]
    pub fn add(&mut self, found: &[f32], reference: &[f32], token: usize) -> bool {
        let (Some(found), Some(reference)) = (log_probabilities(found), log_probabilities(reference)) else {
            return false;
        };
        let (Some(own), Some(right)) = (found.get(token), reference.get(token)) else { return false };
        if found.len() != reference.len() {
            return false;
        }
        // What the reference holds impossible adds nothing, however impossible the other holds it.
        let part = |(reference, found): (&f64, &f64)| match reference.exp() {
            0.0 => 0.0,
            probability => probability * (reference - found),
        };
        // A sum of roundings may be just below the least divergence.
        let divergence = reference.iter().zip(&found).map(part).sum::<f64>().max(0.0);
        self.tokens += 1;
        self.same_first += u64::from(first_greatest(&found) == first_greatest(&reference));
        self.greatest_divergence = self.greatest_divergence.max(divergence);
        self.divergence += divergence;
        self.loss -= own;
        self.reference_loss -= right;
        self.difference_squares += (right - own) * (right - own);
        true
    }

    /// Count the tokens that another has counted.
    pub fn merge(&mut self, other: &Prediction) {
        self.tokens += other.tokens;
        self.same_first += other.same_first;
        self.greatest_divergence = self.greatest_divergence.max(other.greatest_divergence);
        self.loss += other.loss;
        self.reference_loss += other.reference_loss;
        self.divergence += other.divergence;
        self.difference_squares += other.difference_squares;
    }

    /// The perplexity of the text: the exponential of the mean of `-ln p` of its tokens.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.mean(self.loss).exp()
    }

    /// The perplexity of the text under the reference.
    #[must_use]
    pub fn reference_perplexity(&self) -> f64 {
        self.mean(self.reference_loss).exp()
    }

    /// The mean Kullback-Leibler divergence of the model's probabilities from the reference's, in nats.
    #[must_use]
    pub fn divergence(&self) -> f64 {
        self.mean(self.divergence)
    }

    /// The natural logarithm of the ratio of both perplexities, and its standard error, with tokens taken as independent.
    #[must_use]
    pub fn log_ratio(&self) -> (f64, f64) {
        let mean = self.mean(self.loss - self.reference_loss);
        let variance = (self.mean(self.difference_squares) - mean * mean).max(0.0);
        (mean, (variance / self.tokens.max(1) as f64).sqrt())
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.tokens.max(1) as f64
    }
}

/// The natural logarithms of the probabilities that scores stand for; none where these are no numbers.
fn log_probabilities(scores: &[f32]) -> Option<Vec<f64>> {
    let greatest = scores.iter().fold(f64::NEG_INFINITY, |greatest, &score| greatest.max(f64::from(score)));
    let sum: f64 = scores.iter().map(|&score| (f64::from(score) - greatest).exp()).sum();
    let total = greatest + sum.ln();
    total.is_finite().then(|| scores.iter().map(|&score| f64::from(score) - total).collect())
}

fn first_greatest(row: &[f64]) -> usize {
    (1..row.len()).fold(0, |best, place| if row[place] > row[best] { place } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_and_divergence_of_a_small_example() {
        // Probabilities 1/4, 3/4 beside 1/2, 1/2; scores are the same up to a constant.
        let mut prediction = Prediction::default();
        assert!(prediction.add(&[5.0, 5.0 + 3f32.ln()], &[-1.0, -1.0], 0));
        assert!((prediction.perplexity() - 4.0).abs() < 1e-6, "{prediction:?}");
        assert!((prediction.reference_perplexity() - 2.0).abs() < 1e-12, "{prediction:?}");
        let divergence = 0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln();
        assert!((prediction.divergence() - divergence).abs() < 1e-6, "{prediction:?}");
        assert_eq!((prediction.tokens, prediction.same_first), (1, 0));
        assert!(prediction.add(&[0.0, 1.0], &[0.0, 1.0], 1));
        assert_eq!((prediction.tokens, prediction.same_first), (2, 1));
        // Differences ln 2 and 0: their mean, and the error of the mean.
        let (ratio, error) = prediction.log_ratio();
        assert!((ratio - 2f64.ln() / 2.0).abs() < 1e-6 && (error - 2f64.ln() / 8f64.sqrt()).abs() < 1e-6);
        assert!((prediction.greatest_divergence - divergence).abs() < 1e-6);
        // Together as one after the other.
        let (mut first, mut second) = (Prediction::default(), Prediction::default());
        assert!(first.add(&[5.0, 5.0 + 3f32.ln()], &[-1.0, -1.0], 0) && second.add(&[0.0, 1.0], &[0.0, 1.0], 1));
        first.merge(&second);
        assert_eq!(first, prediction);
    }

    #[test]
    fn scores_that_are_no_numbers_are_not_counted() {
        let mut prediction = Prediction::default();
        let nothing = f32::NEG_INFINITY;
        for (found, reference, token) in [
            (vec![f32::NAN, 0.0], vec![0.0, 0.0], 0),
            (vec![0.0, 0.0], vec![f32::INFINITY, 0.0], 0),
            (vec![0.0, 0.0], vec![nothing, nothing], 0),
            (vec![0.0, 0.0], vec![0.0, 0.0], 2),
            (vec![0.0, 0.0], vec![0.0, 0.0, 0.0], 1),
        ] {
            assert!(!prediction.add(&found, &reference, token), "{found:?} {reference:?}");
        }
        assert_eq!(prediction, Prediction::default());
        // A token that both hold impossible is none of those that differ.
        assert!(prediction.add(&[0.0, nothing], &[0.0, nothing], 0));
        assert_eq!(prediction.divergence(), 0.0);
    }

    #[test]
    fn differences_of_a_small_example() {
        let mut deviation = Deviation::default();
        deviation.add(&[3.0, 0.0, f64::NAN], &[3.0, 4.0, 1.0]);
        assert_eq!((deviation.elements, deviation.not_finite, deviation.maximum), (3, 1, 4.0));
        assert_eq!(deviation.mean(), 2.0);
        assert_eq!(deviation.relative(), Some(0.8));
        assert_eq!(deviation.cosine(), Some(0.6));
        assert!((deviation.signal_to_noise() - 10.0 * (25.0_f64 / 16.0).log10()).abs() < 1e-12);
    }

    #[test]
    fn equal_and_zero_numbers_have_defined_measures() {
        let mut same = Deviation::default();
        same.add(&[0.0, 0.0], &[0.0, 0.0]);
        assert_eq!((same.relative(), same.cosine(), same.signal_to_noise()), (Some(0.0), Some(1.0), f64::INFINITY));
        let mut zero = Deviation::default();
        zero.add(&[1.0], &[0.0]);
        assert_eq!((zero.relative(), zero.cosine(), zero.signal_to_noise()), (None, None, f64::NEG_INFINITY));
        assert_eq!(Deviation::default().mean(), 0.0);
    }

    #[test]
    fn ranks_of_rows() {
        let mut ranking = Ranking::default();
        let reference = [0.0, 9.0, 1.0, 2.0, 3.0, 4.0];
        ranking.add(&reference, &reference, 6);
        ranking.add(&[0.0, 3.0, 9.0, 8.0, 7.0, 6.0], &reference, 6);
        ranking.add(&[9.0, 3.0, 9.0, 8.0, 7.0, 6.0], &reference, 6);
        ranking.add(&[f64::NAN, 3.0, 9.0, 8.0, 7.0, 6.0], &reference, 6);
        assert_eq!(ranking, Ranking { rows: 3, first: 1, among_five: 2 });
        // Equal numbers: the first is the greater on both sides.
        let mut equal = Ranking::default();
        equal.add(&[1.0, 1.0], &[1.0, 1.0], 2);
        assert_eq!(equal, Ranking { rows: 1, first: 1, among_five: 1 });
    }
}
