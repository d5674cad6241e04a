//! The softmax of the queries of a task, block by block of keys.

use crate::{
    elementwise::{
        change_vectors,
        functions::{ExponentialOfDifference, exponential},
    },
    simd::{LANES, Simd, joined},
};
use std::ops::Range;

/// Keys of a block: one run of a product.
pub const BLOCK: usize = 128;

/// The softmax of some queries so far. Steps go over all queries, one step after the other: those of one wait for each other.
pub(super) struct Running {
    pub(super) queries: Vec<RunningQuery>,
    /// For each query, what is joined: largest scores or sums of a block.
    lanes: Vec<[f32; LANES]>,
    /// For each query, what its sums before a block are multiplied with.
    factors: Vec<[f32; LANES]>,
}

/// The softmax of a query so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningQuery {
    pub largest: f32,
    pub sum: f32,
    /// It has not seen a key yet.
    pub is_hidden: bool,
}

impl Running {
    /// Before the first block.
    pub(super) fn new(queries: Vec<RunningQuery>) -> Self {
        let (lanes, factors) = (vec![[0.0; LANES]; queries.len()], vec![[1.0; LANES]; queries.len().div_ceil(LANES)]);
        Self { queries, lanes, factors }
    }

    /// What the sums of a query before the last block are multiplied with.
    pub(super) fn factor(&self, query: usize) -> f32 {
        self.factors[query / LANES][query % LANES]
    }

    /// Scores of the keys `seen` of a block become weights; those of others are anything, but 0 in vectors with keys that are seen.
    /// A query all of whose scores are -infinity sees nothing.
    #[inline(always)]
    pub(super) fn weigh<S: Simd>(&mut self, simd: S, seen: &mut [Range<usize>], scores: &mut [[f32; BLOCK]]) {
        self.find_largest(simd, seen, scores);
        for factors in &mut self.factors {
            simd.store(exponential(simd, simd.load(factors)), factors);
        }
        for (query, (seen, scores)) in seen.iter().zip(scores).enumerate().filter(|(_, (seen, _))| !seen.is_empty()) {
            let largest = self.queries[query].largest;
            let weights = vectors(seen, scores);
            change_vectors(simd, ExponentialOfDifference { subtrahend: largest }, weights);
            let mut sum = simd.splat(0.0);
            for vector in weights {
                sum = simd.add(sum, simd.load(vector));
            }
            simd.store(sum, &mut self.lanes[query]);
        }
        for (query, _) in seen.iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
            let factor = self.factor(query);
            let own = &mut self.queries[query];
            own.sum = own.sum * factor + joined(&self.lanes[query], |a, b| a + b);
        }
    }

    /// The largest scores with those of a block, and the exponents of the factors.
    #[inline(always)]
    fn find_largest<S: Simd>(&mut self, simd: S, seen: &mut [Range<usize>], scores: &mut [[f32; BLOCK]]) {
        for (query, (seen, scores)) in seen.iter().zip(&mut *scores).enumerate() {
            let mut largest = simd.splat(self.queries[query].largest);
            if !seen.is_empty() {
                scores[seen.start / LANES * LANES..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..seen.end.next_multiple_of(LANES)].fill(f32::NEG_INFINITY);
                // NaN is no largest score: it becomes a weight, and with it the sum, by which outputs are divided.
                for scores in vectors(seen, scores) {
                    largest = simd.at_least(largest, simd.load(scores));
                }
            }
            simd.store(largest, &mut self.lanes[query]);
        }
        for (query, (seen, scores)) in seen.iter_mut().zip(scores).enumerate() {
            let largest = joined(&self.lanes[query], |a, b| if b > a { b } else { a });
            let own = &mut self.queries[query];
            own.is_hidden &= Range::is_empty(seen);
            if largest == f32::NEG_INFINITY && !Range::is_empty(seen) {
                if scores[seen.clone()].iter().any(|score| score.is_nan()) {
                    own.sum = f32::NAN;
                }
                *seen = 0..0;
            }
            self.factors[query / LANES][query % LANES] =
                if largest == own.largest { 0.0 } else { own.largest - largest };
            own.largest = largest;
        }
    }
}

/// The vectors with keys that are seen: others would add zeros.
#[inline(always)]
fn vectors<'s>(seen: &Range<usize>, scores: &'s mut [f32; BLOCK]) -> &'s mut [[f32; LANES]] {
    scores[seen.start / LANES * LANES..seen.end.next_multiple_of(LANES)].as_chunks_mut().0
}
