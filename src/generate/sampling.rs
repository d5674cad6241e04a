//! The choice of a token by its score.

use super::error::GenerateError;
use crate::generation::GenerationSettings;
use std::collections::BTreeSet;

/// How tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// By what scores are divided; the most likely token is always taken where it is 0.
    pub temperature: f32,
    /// How many of the most likely tokens are chosen from; all where 0.
    pub top_k: usize,
    /// The most likely tokens that have this much probability together are chosen from; all where 1.
    pub top_p: f32,
    /// Tokens are left out that are less likely than this share of the most likely one's probability; none where 0.
    pub min_p: f32,
    /// By what positive scores of tokens that have occurred are divided, and negative ones multiplied; without effect where 1.
    pub repetition_penalty: f32,
    /// The same seed gives the same tokens.
    pub seed: u64,
}

impl Sampling {
    /// The most likely token, always.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }

    /// As the model's authors want it, where they say so.
    pub fn of_model(settings: &GenerationSettings) -> Sampling {
        let plain = Sampling::greedy();
        Sampling {
            temperature: settings.temperature.unwrap_or(plain.temperature),
            top_k: settings.top_k.map_or(plain.top_k, |count| count as usize),
            top_p: settings.top_p.unwrap_or(plain.top_p),
            repetition_penalty: settings.repetition_penalty.unwrap_or(plain.repetition_penalty),
            ..plain
        }
    }

    /// # Errors
    /// [`GenerateError::Sampling`] for the first number that has no meaning.
    pub(super) fn check(&self) -> Result<(), GenerateError> {
        let from_zero = |number: f32| number >= 0.0 && number.is_finite();
        let share = |number: f32| (0.0..=1.0).contains(&number);
        for (name, found, fits, expected) in [
            ("the temperature", self.temperature, from_zero(self.temperature), "a number from 0 on"),
            ("top-p", self.top_p, share(self.top_p) && self.top_p > 0.0, "greater than 0 and at most 1"),
            ("min-p", self.min_p, share(self.min_p), "from 0 to 1"),
            (
                "the repetition penalty",
                self.repetition_penalty,
                from_zero(self.repetition_penalty) && self.repetition_penalty > 0.0,
                "a number greater than 0",
            ),
        ] {
            if !fits {
                return Err(GenerateError::Sampling { name, found, expected });
            }
        }
        Ok(())
    }
}

/// Scores that are compared at a time.
const LANES: usize = 32;

/// Chooses tokens, one number of the sequence that its seed gives for each.
#[derive(Debug, Clone)]
pub(super) struct Chooser {
    sampling: Sampling,
    state: u64,
}

impl Chooser {
    pub(super) fn new(sampling: &Sampling) -> Chooser {
        Chooser { sampling: sampling.clone(), state: sampling.seed }
    }

    /// A token by the scores of all; `None` where these are no numbers. `seen` are the tokens that have occurred.
    pub(super) fn choose(&mut self, scores: &[f32], seen: &BTreeSet<u32>) -> Option<u32> {
        let drawn = self.draw();
        let penalized = self.penalized(scores, seen);
        let scores = penalized.as_deref().unwrap_or(scores);
        let best = most_likely(scores)?;
        if self.sampling.temperature == 0.0 {
            return u32::try_from(best).ok();
        }
        let scaled = |score: f32| f64::from((score - scores[best]) / self.sampling.temperature);
        let weight = |(token, &score): (usize, &f32)| (token, if score.is_nan() { 0.0 } else { scaled(score).exp() });
        let mut weights: Vec<(usize, f64)> = scores.iter().enumerate().map(weight).collect();
        self.leave_out(&mut weights);
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut left = drawn * total;
        let chosen = weights.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        // Rounding may leave a little behind the last one.
        u32::try_from(chosen.map_or(best, |(token, _)| *token)).ok()
    }

    fn penalized(&self, scores: &[f32], seen: &BTreeSet<u32>) -> Option<Vec<f32>> {
        let penalty = self.sampling.repetition_penalty;
        if penalty == 1.0 || seen.is_empty() {
            return None;
        }
        let mut scores = scores.to_vec();
        for &token in seen {
            if let Some(score) = scores.get_mut(token as usize) {
                *score = if *score > 0.0 { *score / penalty } else { *score * penalty };
            }
        }
        Some(scores)
    }

    /// Leave out what top-k, top-p and min-p do not allow; the most likely token stays.
    fn leave_out(&self, weights: &mut Vec<(usize, f64)>) {
        let Sampling { top_k, top_p, min_p, .. } = self.sampling;
        let more_likely =
            |one: &(usize, f64), other: &(usize, f64)| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0));
        if top_k > 0 && top_k < weights.len() {
            weights.select_nth_unstable_by(top_k - 1, more_likely);
            weights.truncate(top_k);
        }
        if top_p < 1.0 {
            weights.sort_unstable_by(more_likely);
            let wanted = f64::from(top_p) * weights.iter().map(|(_, weight)| weight).sum::<f64>();
            let mut sum = 0.0;
            let kept = weights.iter().take_while(|(_, weight)| {
                let needed = sum < wanted;
                sum += weight;
                needed
            });
            let kept = kept.count().max(1);
            weights.truncate(kept);
        }
        if min_p > 0.0 {
            // The most likely one has the weight 1.
            weights.retain(|(_, weight)| *weight >= f64::from(min_p));
        }
        weights.sort_unstable_by_key(|(token, _)| *token);
    }

    /// The next number from 0 up to 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The first of the greatest scores; `None` where none is a number.
fn most_likely(scores: &[f32]) -> Option<usize> {
    // Lane by lane: a vocabulary has a hundred thousand tokens, and each waits for this.
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (vectors, rest) = scores.as_chunks::<LANES>();
    let greater = |one: f32, other: f32| if other > one { other } else { one };
    for vector in vectors {
        for (greatest, &score) in lanes.iter_mut().zip(vector) {
            *greatest = greater(*greatest, score);
        }
    }
    let greatest = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, greater);
    if !greatest.is_finite() {
        return None;
    }
    let vector =
        vectors.iter().position(|vector| vector.iter().fold(false, |found, &score| found | (score == greatest)));
    let first = vector.unwrap_or(vectors.len()) * LANES;
    scores[first..].iter().position(|&score| score == greatest).map(|at| first + at)
}

/// The logarithm of a token's probability, and the most likely tokens with theirs, from the most likely on.
pub(super) fn log_probabilities(scores: &[f32], token: u32, count: usize) -> (f32, Vec<(u32, f32)>) {
    let greatest = scores.iter().copied().filter(|score| !score.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = scores.iter().filter(|score| !score.is_nan()).map(|score| f64::from(score - greatest).exp()).sum();
    let logarithm = |score: f32| (f64::from(score - greatest) - sum.ln()) as f32;
    let mut order: Vec<usize> = (0..scores.len()).filter(|&token| !scores[token].is_nan()).collect();
    let more_likely = |one: &usize, other: &usize| scores[*other].total_cmp(&scores[*one]).then(one.cmp(other));
    if count < order.len() && count > 0 {
        order.select_nth_unstable_by(count - 1, more_likely);
    }
    order.truncate(count);
    order.sort_unstable_by(more_likely);
    let top = order.into_iter().map(|token| (token as u32, logarithm(scores[token]))).collect();
    (scores.get(token as usize).map_or(f32::NEG_INFINITY, |&score| logarithm(score)), top)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(sampling: Sampling, scores: &[f32], seen: &[u32]) -> Vec<usize> {
        let mut chooser = Chooser::new(&sampling);
        let seen: BTreeSet<u32> = seen.iter().copied().collect();
        let mut counts = vec![0; scores.len()];
        for _ in 0..10_000 {
            counts[chooser.choose(scores, &seen).unwrap() as usize] += 1;
        }
        counts
    }

    fn plain() -> Sampling {
        Sampling { temperature: 1.0, seed: 7, ..Sampling::greedy() }
    }

    const PROBABILITIES: [f32; 4] = [0.2, 0.5, 0.1, 0.2];

    fn scores() -> [f32; 4] {
        PROBABILITIES.map(f32::ln)
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        for (found, expected) in counts(plain(), &scores(), &[]).iter().zip(PROBABILITIES) {
            let expected = f64::from(expected) * 10_000.0;
            assert!((*found as f64 - expected).abs() < 4.0 * expected.sqrt(), "{found} {expected}");
        }
    }

    #[test]
    fn limits_leave_out_the_less_likely() {
        let left = |sampling| counts(sampling, &scores(), &[]).iter().map(|&count| count > 0).collect::<Vec<_>>();
        assert_eq!(left(Sampling { top_k: 2, ..plain() }), [true, true, false, false]);
        assert_eq!(left(Sampling { top_p: 0.6, ..plain() }), [true, true, false, false]);
        assert_eq!(left(Sampling { top_p: 0.5, ..plain() }), [false, true, false, false]);
        assert_eq!(left(Sampling { min_p: 0.3, ..plain() }), [true, true, false, true]);
        assert_eq!(left(Sampling { temperature: 0.0, ..plain() }), [false, true, false, false]);
    }

    #[test]
    fn repeated_tokens_lose() {
        let greedy = Sampling { repetition_penalty: 10.0, ..Sampling::greedy() };
        assert_eq!(counts(greedy.clone(), &[1.0, 2.0, -1.0], &[1]), [10_000, 0, 0]);
        assert_eq!(counts(greedy, &[-1.0, -0.5, -2.0], &[1]), [10_000, 0, 0]);
    }

    #[test]
    fn ties_and_what_is_no_number() {
        let greedy = &mut Chooser::new(&Sampling::greedy());
        assert_eq!(greedy.choose(&[1.0, 3.0, 3.0], &BTreeSet::new()), Some(1));
        assert_eq!(greedy.choose(&[f32::NAN, 3.0, f32::NEG_INFINITY], &BTreeSet::new()), Some(1));
        assert_eq!(greedy.choose(&[f32::NAN, f32::NAN], &BTreeSet::new()), None);
        assert_eq!(greedy.choose(&[f32::NEG_INFINITY; 2], &BTreeSet::new()), None);
        assert_eq!(greedy.choose(&[], &BTreeSet::new()), None);
    }

    #[test]
    fn the_first_of_the_greatest_is_found_anywhere() {
        for length in [1, 31, 32, 33, 100, 200] {
            for place in 0..length {
                let mut scores = vec![-2.0; length];
                scores[0] = f32::NAN;
                scores[place..].fill(-1.0);
                assert_eq!(most_likely(&scores), Some(place), "{place} of {length}");
            }
        }
        assert_eq!(most_likely(&[1.0, f32::INFINITY]), None);
    }

    #[test]
    fn numbers_without_meaning_are_refused() {
        for (sampling, expected) in [
            (Sampling { temperature: -1.0, ..plain() }, "the temperature"),
            (Sampling { temperature: f32::NAN, ..plain() }, "the temperature"),
            (Sampling { top_p: 0.0, ..plain() }, "top-p"),
            (Sampling { min_p: 1.5, ..plain() }, "min-p"),
            (Sampling { repetition_penalty: 0.0, ..plain() }, "the repetition penalty"),
        ] {
            let Err(GenerateError::Sampling { name, .. }) = sampling.check() else { panic!("{sampling:?}") };
            assert_eq!(name, expected);
        }
        plain().check().unwrap();
    }

    #[test]
    fn logarithms_of_probabilities() {
        let (chosen, top) = log_probabilities(&scores(), 2, 2);
        assert!((chosen - 0.1f32.ln()).abs() < 1e-5, "{chosen}");
        assert_eq!(top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 0]);
        assert!((top[0].1 - 0.5f32.ln()).abs() < 1e-5, "{top:?}");
        assert_eq!(log_probabilities(&scores(), 2, 0).1, []);
    }
}
