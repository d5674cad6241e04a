//! The queries of a task, block by block of keys.
//!
//! The order of the reduction of a query, whatever other queries there are and whatever keys they see: keys are cut into
//! blocks of [`BLOCK`] from position 0 on; a score is a product in the order of `product`. For each block of which the query sees
//! a key, in order, with m the largest score before and m' the largest with those of the block:
//!
//! - the sum becomes `sum * exp(m - m') + sum of exp(score - m')`, where the block is summed in 16 lanes (position modulo 16), then
//!   lanes pairwise;
//! - the output becomes `output * exp(m - m') + sum of exp(score - m') * value`, where the block is summed with fused
//!   multiply-adds in order, beginning at 0.
//!
//! Before the first block, m is the sink and the sum 1 where there is a sink. At the end the output is divided by the sum. A block of which a query sees nothing, by its position or by the mask, is passed
//! over.

use super::running::{BLOCK, Running, RunningQuery};
use super::{Attention, HeadElements, Heads, Pages, Stage};
use crate::ahead::CacheLine;
use crate::elementwise::VectorFunction;
use crate::elementwise::functions::{ScaledTanh, exponential};
use crate::matrix::Matrix;
use crate::product::{PlainElements, PlainLayout, PlainMatrix, Start, plain_product_within};
use crate::scratch::scratch;
use crate::simd::{LANES, Routine, Simd};
use ipuc_codes::{load_row, row_bytes};
use std::ops::Range;

/// Queries that see different keys of a block and add their values together.
const ROWS_TOGETHER: usize = 8;

/// Some queries of one head of keys.
pub(super) struct Task<'a, 'o> {
    pub operands: &'a Attention<'a>,
    /// Batch and head of keys, as one.
    pub head: usize,
    /// First query among those of the head.
    pub first: usize,
    pub rows: usize,
    /// A row for each query, of the size of values.
    pub out: &'a mut [&'o mut [f32]],
    pub shown: Option<Stage>,
    /// `[rows, keys]`, where a stage is wanted.
    pub scores: &'a mut [f32],
}

impl Routine for &mut Task<'_, '_> {
    /// The multiplications that were left out.
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> u64 {
        let mut left_out = 0;
        let visible: Vec<Range<usize>> = (0..self.rows).map(|row| self.visible(row)).collect();
        let keys = self.walked(&visible);
        let mut running = Running::new((0..self.rows).map(|row| self.start(row)).collect());
        let mut scores = scratch(self.rows * BLOCK);
        let mut weighed: Vec<Range<usize>> = Vec::with_capacity(self.rows);
        self.out.iter_mut().for_each(|out| out.fill(0.0));
        let stride = self.query_stride();
        let mut queries = scratch(self.rows * stride);
        self.scale_queries(&mut queries, stride);
        for first in (keys.start / BLOCK * BLOCK..keys.end).step_by(BLOCK) {
            let block = first..keys.end.min(first + BLOCK);
            if self.is_hidden(&block, &visible) {
                let multiplications = self.rows * block.len() * (self.operands.key.size + self.operands.value.size);
                left_out += multiplications as u64;
                continue;
            }
            self.multiply_keys(simd, &queries, &block, &mut scores);
            self.cap(simd, &block, &mut scores);
            weighed.clear();
            // Loops, since a closure would not be compiled for the instructions.
            for (row, visible) in visible.iter().enumerate() {
                let scores = &mut scores.as_chunks_mut().0[row];
                weighed.push(self.mask(simd, row, &block, visible, scores).unwrap_or_default());
            }
            running.weigh(simd, &mut weighed, scores.as_chunks_mut().0);
            for (row, _) in weighed.iter().enumerate().filter(|(_, keys)| !keys.is_empty()) {
                self.rescale(simd, row, running.factor(row));
            }
            self.add_values(simd, first, &weighed, &mut scores);
        }
        self.finish(simd, &running.queries);
        left_out
    }
}

impl Task<'_, '_> {
    fn batch(&self) -> usize {
        self.head / self.operands.key_heads
    }

    /// Head among those of its keys, and position, of a query.
    fn query(&self, row: usize) -> (usize, usize) {
        ((self.first + row) / self.operands.queries, (self.first + row) % self.operands.queries)
    }

    /// Head among all heads of queries.
    fn query_head(&self, row: usize) -> usize {
        self.head % self.operands.key_heads * self.operands.group + self.query(row).0
    }

    /// The softmax of a query before its first key.
    fn start(&self, row: usize) -> RunningQuery {
        let sink = self.operands.sink.map_or(f32::NEG_INFINITY, |sinks| sinks[self.query_head(row)]);
        RunningQuery { largest: sink, sum: if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 }, is_hidden: true }
    }

    /// The keys that a query sees by its position.
    fn visible(&self, row: usize) -> Range<usize> {
        let keys = self.operands.mask.map_or(self.operands.keys, |mask| mask.keys.min(self.operands.keys));
        self.operands.frontier.visible(self.batch(), self.query(row).1, keys)
    }

    /// From the first key that one of the queries sees to the last; all of them where scores are shown.
    fn walked(&self, visible: &[Range<usize>]) -> Range<usize> {
        if self.shown.is_some() {
            return 0..self.operands.keys;
        }
        let seen = visible.iter().filter(|range| !range.is_empty());
        let start = seen.clone().map(|range| range.start).min().unwrap_or(0);
        start..seen.map(|range| range.end).max().unwrap_or(0)
    }

    /// From one scaled query to the next: short ones have room for a whole run of a product, which reads them where they lie.
    fn query_stride(&self) -> usize {
        self.operands.key.size.max(BLOCK)
    }

    /// The queries times scale.
    #[inline(always)]
    fn scale_queries(&self, scaled: &mut [f32], stride: usize) {
        let (size, scale) = (self.operands.key.size, self.operands.scale);
        for (row, scaled) in scaled.chunks_mut(stride).enumerate() {
            let place = self.operands.row(self.batch(), self.query_head(row), self.query(row).1);
            for (scaled, query) in scaled.iter_mut().zip(&self.operands.query[place * size..][..size]) {
                *scaled = query * scale;
            }
        }
    }

    /// Scores `[rows, BLOCK]` of the keys of a block.
    #[inline(always)]
    fn multiply_keys<S: Simd>(&mut self, simd: S, queries: &[f32], block: &Range<usize>, scores: &mut [f32]) {
        let size = self.operands.key.size;
        let queries = Matrix::with_stride(queries, self.rows, size, self.query_stride());
        let mut decoded = scratch(self.operands.key.decoded_elements());
        self.operands.key.decode(self.head, block, &mut decoded);
        let heads = self.operands.key_heads;
        let keys = self.operands.key.rows(self.head, heads, block, PlainLayout::InputsInner, &decoded);
        let mut out: Vec<_> = scores.chunks_mut(BLOCK).map(|scores| &mut scores[..block.len()]).collect();
        // The weights of a layer have passed through the caches since values and keys were read last: memory is asked for what
        // comes next while there is something to compute.
        self.operands.value.ask(simd, self.head, heads, block);
        plain_product_within(simd, queries, keys, &mut out, Start::Zero);
        if block.end.is_multiple_of(BLOCK) {
            let next = block.end..self.operands.keys.min(block.end + BLOCK);
            self.operands.key.ask(simd, self.head, heads, &next);
        }
        self.show(Stage::Product, block, scores);
    }

    /// The softcap.
    #[inline(always)]
    fn cap<S: Simd>(&mut self, simd: S, block: &Range<usize>, scores: &mut [f32]) {
        let cap = self.operands.softcap;
        if cap > 0.0 {
            for scores in scores.as_chunks_mut::<LANES>().0 {
                let score = simd.divide(simd.load(scores), simd.splat(cap));
                simd.store(ScaledTanh { alpha: cap, beta: 1.0 }.apply(simd, score), scores);
            }
        }
        self.show(Stage::Softcap, block, scores);
    }

    /// Whether the mask hides all of a block from all queries, whose scores nobody wants to see: neither keys nor values are read.
    fn is_hidden(&self, block: &Range<usize>, visible: &[Range<usize>]) -> bool {
        let (Some(mask), None) = (&self.operands.mask, self.shown) else { return false };
        let [by_batch, by_head, by_query, by_key] = mask.strides;
        visible.iter().enumerate().all(|(row, visible)| {
            let first = self.batch() * by_batch + self.query_head(row) * by_head + self.query(row).1 * by_query;
            let seen = visible.start.max(block.start)..visible.end.min(block.end);
            seen.into_iter().all(|key| mask.values[first + key * by_key] == f32::NEG_INFINITY)
        })
    }

    /// Adds the mask to the scores of a query; gives the keys of the block that it sees, if any.
    #[inline(always)]
    fn mask<S: Simd>(
        &mut self,
        simd: S,
        row: usize,
        block: &Range<usize>,
        visible: &Range<usize>,
        scores: &mut [f32; BLOCK],
    ) -> Option<Range<usize>> {
        let within = |key: usize| key.clamp(block.start, block.end) - block.start;
        let seen = within(visible.start)..within(visible.end);
        let mut hidden = seen.is_empty();
        if let Some(mask) = &self.operands.mask {
            let [by_batch, by_head, by_query, by_key] = mask.strides;
            let first = self.batch() * by_batch + self.query_head(row) * by_head + self.query(row).1 * by_query;
            let bias = |key: usize| first + (block.start + key) * by_key;
            let scores = &mut scores[seen.clone()];
            hidden = match by_key {
                1 => add_biases(simd, &mask.values[bias(seen.start)..bias(seen.end)], scores),
                _ => {
                    let mut hidden = true;
                    for (key, score) in seen.clone().zip(scores) {
                        let bias = mask.values[bias(key)];
                        hidden &= bias == f32::NEG_INFINITY;
                        *score += bias;
                    }
                    hidden
                }
            };
        }
        if matches!(self.shown, Some(Stage::Bias | Stage::Softmax)) {
            let shown = &mut self.scores[row * self.operands.keys..][block.clone()];
            shown.fill(f32::NEG_INFINITY);
            shown[seen.clone()].copy_from_slice(&scores[seen.clone()]);
        }
        if hidden { None } else { Some(seen) }
    }

    /// Multiplies the output of a query so far.
    #[inline(always)]
    fn rescale<S: Simd>(&mut self, simd: S, row: usize, factor: f32) {
        if factor != 1.0 {
            for out in self.out[row].chunks_mut(LANES) {
                simd.store_partial(simd.multiply(simd.load_partial(out), simd.splat(factor)), out);
            }
        }
    }

    /// Adds the values of a block times their weights. Queries that follow each other and see the same keys do it together, and so
    /// do a few that see the first keys of a block up to different ones: weights of 0 change no sum of finite values, but the sign of
    /// one that has underflowed to 0.
    #[inline(always)]
    fn add_values<S: Simd>(&mut self, simd: S, first: usize, seen: &[Range<usize>], weights: &mut [f32]) {
        let values = self.operands.value;
        let mut decoded = scratch(values.decoded_elements());
        let weighed = seen.iter().filter(|keys| !keys.is_empty());
        let start = weighed.clone().map(|keys| keys.start).min().unwrap_or(0);
        let end = weighed.map(|keys| keys.end).max().unwrap_or(0);
        values.decode(self.head, &(first + start..first + end), &mut decoded);
        let heads = self.operands.key_heads;
        let mut row = 0;
        while row < seen.len() {
            let keys = seen[row].clone();
            let (count, last) = queries_together(&seen[row..], |not_seen| {
                let place = first + not_seen.start..first + not_seen.end;
                values.rows(self.head, heads, &place, PlainLayout::OutputsInner, &decoded).is_finite()
            });
            let rows = row..row + count;
            row = rows.end;
            if keys.is_empty() {
                continue;
            }
            for (own, weights) in seen[rows.clone()].iter().zip(weights[rows.start * BLOCK..].chunks_mut(BLOCK)) {
                weights[own.end..last].fill(0.0);
            }
            let place = first + keys.start..first + last;
            let values = values.rows(self.head, heads, &place, PlainLayout::OutputsInner, &decoded);
            let weights = &weights[rows.start * BLOCK + keys.start..];
            let weights = Matrix::with_stride(weights, rows.len(), last - keys.start, BLOCK);
            plain_product_within(simd, weights, values, &mut self.out[rows], Start::Output);
        }
    }

    /// Divides by the sums. A query that sees nothing gives zeros.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, simd: S, running: &[RunningQuery]) {
        let keys = self.operands.keys;
        for (out, running) in self.out.iter_mut().zip(running) {
            for out in out.chunks_mut(LANES).filter(|_| !running.is_hidden) {
                simd.store_partial(simd.divide(simd.load_partial(out), simd.splat(running.sum)), out);
            }
        }
        if self.shown == Some(Stage::Softmax) {
            for (scores, running) in self.scores.chunks_mut(keys).zip(running) {
                for scores in scores.chunks_mut(LANES) {
                    let power =
                        exponential(simd, simd.subtract(simd.load_partial(scores), simd.splat(running.largest)));
                    let weight = simd.divide(power, simd.splat(running.sum));
                    simd.store_partial(if running.is_hidden { simd.splat(0.0) } else { weight }, scores);
                }
            }
        }
    }

    fn show(&mut self, stage: Stage, block: &Range<usize>, scores: &[f32]) {
        if self.shown == Some(stage) {
            for (shown, scores) in self.scores.chunks_mut(self.operands.keys).zip(scores.chunks(BLOCK)) {
                shown[block.clone()].copy_from_slice(&scores[..block.len()]);
            }
        }
    }
}

/// How many of the next queries (at least one) add their values together, and where the keys end of the one that sees most of them:
/// those that see the same keys, or else a few that see the first keys up to different ones, if the values that not all see are
/// finite.
fn queries_together(seen: &[Range<usize>], are_finite: impl FnOnce(Range<usize>) -> bool) -> (usize, usize) {
    let Some(keys) = seen.first() else { return (0, 0) };
    let same = seen.iter().take_while(|own| *own == keys).count();
    let few = &seen[..seen.len().min(ROWS_TOGETHER)];
    let alike = few.iter().take_while(|own| own.start == keys.start && !own.is_empty()).count();
    if same >= ROWS_TOGETHER || alike <= same {
        return (same, keys.end);
    }
    let ends = few[..alike].iter().map(|own| own.end);
    let not_seen = ends.clone().fold(keys.end, usize::min)..ends.fold(keys.end, usize::max);
    let last = not_seen.end;
    if are_finite(not_seen) { (alike, last) } else { (same, keys.end) }
}

/// Adds biases to scores; gives whether they hide all of them.
#[inline(always)]
fn add_biases<S: Simd>(simd: S, biases: &[f32], scores: &mut [f32]) -> bool {
    let mut largest = simd.splat(f32::NEG_INFINITY);
    let (vectors, rest) = scores.as_chunks_mut::<LANES>();
    let (added, last) = biases.as_chunks::<LANES>();
    for (scores, biases) in vectors.iter_mut().zip(added) {
        let bias = simd.load(biases);
        largest = simd.maximum(largest, bias);
        simd.store(simd.add(simd.load(scores), bias), scores);
    }
    let mut hidden = true;
    for (score, bias) in rest.iter_mut().zip(last) {
        hidden &= *bias == f32::NEG_INFINITY;
        *score += bias;
    }
    let mut lanes = [0.0; LANES];
    simd.store(largest, &mut lanes);
    hidden && lanes.iter().all(|lane| *lane == f32::NEG_INFINITY)
}

/// Asks the second-level cache for rows of `width` elements.
#[inline(always)]
fn ask_rows<S: Simd, E>(simd: S, elements: &[E], rows: usize, width: usize, stride: usize) {
    for row in 0..rows {
        for element in (0..width).step_by(size_of::<CacheLine>() / size_of::<E>()) {
            simd.prefetch_far(elements, row * stride + element);
        }
    }
}

impl<'a> Heads<'a> {
    /// Asks for some keys of a head, all of one block, where they are not stored as codes.
    #[inline(always)]
    fn ask<S: Simd>(&self, simd: S, head: usize, heads: usize, keys: &Range<usize>) {
        if keys.is_empty() || self.decoded_elements() > 0 {
            return;
        }
        let matrix = self.rows(head, heads, keys, PlainLayout::InputsInner, &[]);
        match matrix.elements {
            PlainElements::F32(elements) => ask_rows(simd, elements, keys.len(), self.size, matrix.stride),
            PlainElements::F16(elements) => ask_rows(simd, elements, keys.len(), self.size, matrix.stride),
            PlainElements::Bf16(elements) => ask_rows(simd, elements, keys.len(), self.size, matrix.stride),
        }
    }

    /// Elements of a block of keys that are stored as codes; 0 where they are not.
    fn decoded_elements(&self) -> usize {
        match self.elements {
            HeadElements::Pages { pages: Pages::I8(_), .. } => BLOCK * self.size,
            HeadElements::Pages { pages: Pages::F32(_) | Pages::F16(_), .. } | HeadElements::Whole { .. } => 0,
        }
    }

    /// Decodes some keys of a head (batch and head as one), all of one block, where they are stored as codes. A key goes to its
    /// place in the block.
    #[inline(always)]
    fn decode(&self, head: usize, keys: &Range<usize>, decoded: &mut [f32]) {
        let HeadElements::Pages { pages: Pages::I8(pages), positions } = self.elements else { return };
        let row = row_bytes(self.size).unwrap_or(usize::MAX);
        let first = (keys.start % positions).saturating_mul(row);
        let rows = behind(pages, keys.start / positions, head, first).chunks_exact(row);
        let decoded = decoded[keys.start % BLOCK * self.size..].chunks_exact_mut(self.size);
        for (row, to) in rows.zip(decoded).take(keys.len()) {
            load_row(row, to);
        }
    }

    /// Some keys of a head, all of one block, as the right side of a product; `decoded` has those that are stored as codes.
    fn rows<'b>(
        &self,
        head: usize,
        heads: usize,
        keys: &Range<usize>,
        layout: PlainLayout,
        decoded: &'b [f32],
    ) -> PlainMatrix<'b>
    where
        'a: 'b,
    {
        let (elements, stride) = match self.elements {
            HeadElements::Whole { values, strides: [by_batch, by_head, by_key] } => {
                let first = head / heads * by_batch + head % heads * by_head + keys.start * by_key;
                (PlainElements::F32(values.get(first..).unwrap_or_default()), by_key)
            }
            HeadElements::Pages { pages, positions } => {
                let (page, key) = (keys.start / positions, keys.start % positions);
                let elements = match pages {
                    Pages::F32(pages) => PlainElements::F32(behind(pages, page, head, key * self.size)),
                    Pages::F16(pages) => PlainElements::F16(behind(pages, page, head, key * self.size)),
                    Pages::I8(_) => PlainElements::F32(&decoded[keys.start % BLOCK * self.size..]),
                };
                (elements, self.size)
            }
        };
        let (inputs, outputs) = match layout {
            PlainLayout::InputsInner => (self.size, keys.len()),
            PlainLayout::OutputsInner => (keys.len(), self.size),
        };
        PlainMatrix { elements, layout, stride, inputs, outputs }
    }
}

/// What a head has in a page from a place on.
fn behind<'a, T>(pages: &'a [Vec<&'a [T]>], page: usize, head: usize, first: usize) -> &'a [T] {
    let page = pages.get(page).and_then(|page| page.get(head));
    page.and_then(|page| page.get(first..)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_the_same_keys_and_a_few_of_different_ends_add_values_together() {
        let causal: Vec<_> = (1..=12).map(|end| 0..end).collect();
        let finite = |expected: Range<usize>| {
            move |not_seen| {
                assert_eq!(not_seen, expected);
                true
            }
        };
        assert_eq!(queries_together(&causal, finite(1..8)), (8, 8));
        assert_eq!(queries_together(&causal[8..], finite(9..12)), (4, 12));
        assert_eq!(queries_together(&causal, |_| false), (1, 1), "infinite values");
        let mut same = vec![0..5; 20];
        same.push(0..6);
        assert_eq!(queries_together(&same, |_| panic!("nothing is hidden")), (20, 5));
        assert_eq!(queries_together(&same[17..], finite(5..6)), (4, 6));
        let windows: Vec<_> = (0..4).map(|start| start..start + 3).collect();
        assert_eq!(queries_together(&windows, |_| panic!("nothing is hidden")), (1, 3));
        assert_eq!(queries_together(&[0..0, 0..0, 0..3], |_| panic!("nothing is seen")), (2, 0));
        assert_eq!(queries_together(&[0..2, 0..0, 0..3], |_| panic!("one sees nothing")), (1, 2));
    }
}
