//! Scaled dot-product attention in f32, some rows of scores at a time.
//!
//! A task is up to `ROWS` queries that share a head of keys: scores for the keys that one of them sees, their softmax,
//! and the product with the values. Heads that share keys lie side by side, so that keys are read once for all of them.
//! What a query does not see has no part in its sums. Bits depend on shapes and masks only.

use super::elementwise::{functions, map_in_place};
use super::matrix::{Matrix, MatrixMut};
use super::product::{Epilogue, PlainElements, PlainLayout, PlainMatrix, Start, plain_product};
use super::simd::Instructions;
use super::softmax::{SoftmaxKind, softmax_in_place};
use super::threads;
use std::ops::Range;

/// Queries of a task.
const ROWS: usize = 64;

/// Keys or values: `[batch, heads, keys, size]` with distances between batches, heads and keys.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The elements.
    pub values: &'a [f32],
    /// Distances in elements.
    pub strides: [usize; 3],
    /// Elements of a row.
    pub size: usize,
}

/// Added to the scores, with broadcasting.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    /// The elements.
    pub values: &'a [f32],
    /// Distances between batches, heads, queries and keys; 0 along repeated axes.
    pub strides: [usize; 4],
    /// Keys behind these are not seen.
    pub keys: usize,
}

/// Which keys a query sees by its position.
#[derive(Clone, Copy, Debug)]
pub struct Frontier<'a> {
    /// Position of the first query, for each of the batch.
    pub offsets: &'a [i64],
    /// Keys that are no padding, for each of the batch.
    pub valid: Option<&'a [i64]>,
    /// No keys behind its own position.
    pub causal: bool,
    /// Most keys before its own position.
    pub left: Option<i64>,
    /// Most keys behind its own position.
    pub right: Option<i64>,
}

impl Frontier<'_> {
    /// The keys that query `query` sees of `keys`.
    fn visible(&self, batch: usize, query: usize, keys: usize) -> Range<usize> {
        let position = self.offsets[batch].saturating_add(query as i64);
        let mut end = keys as i64;
        if self.causal {
            end = end.min(position.saturating_add(1));
        }
        if let Some(right) = self.right {
            end = end.min(position.saturating_add(right).saturating_add(1));
        }
        if let Some(valid) = self.valid {
            end = end.min(valid[batch]);
        }
        let start = self.left.map_or(0, |left| position.saturating_sub(left)).max(0);
        let end = usize::try_from(end).unwrap_or(0);
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(end);
        start..end
    }
}

/// A stage of the scores that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The scaled product.
    Product,
    /// After the softcap.
    Softcap,
    /// After mask and frontier.
    Bias,
    /// After the softmax.
    Softmax,
}

/// Operands and options.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Extent of the batch.
    pub batch: usize,
    /// Heads of keys.
    pub key_heads: usize,
    /// Heads of queries for each head of keys.
    pub group: usize,
    /// Queries of a head.
    pub queries: usize,
    /// Keys of a head.
    pub keys: usize,
    /// Queries times scale: `[batch, key_heads, group, queries, size]`.
    pub query: &'a [f32],
    /// The keys.
    pub key: Heads<'a>,
    /// The values.
    pub value: Heads<'a>,
    /// Scores become `softcap * tanh(score / softcap)`, where it is above 0.
    pub softcap: f32,
    /// The mask.
    pub mask: Option<Mask<'a>>,
    /// What is seen.
    pub frontier: Frontier<'a>,
}

/// Writes `out: [batch, key_heads, group, queries, value size]`, and `scores: [batch, key_heads, group, queries, keys]`
/// where a stage of them is wanted.
///
/// # Panics
/// If lengths disagree, or an extent is 0.
pub fn attention(
    instructions: Instructions,
    operands: &Attention<'_>,
    out: &mut [f32],
    scores: Option<(Stage, &mut [f32])>,
) {
    let Attention { batch, key_heads, group, queries, keys, .. } = *operands;
    let rows = group * queries;
    let (size, width) = (operands.key.size, operands.value.size);
    assert_eq!(operands.query.len(), batch * key_heads * rows * size, "elements of queries");
    assert_eq!(out.len(), batch * key_heads * rows * width, "elements of the result");
    let shown = scores.as_ref().map(|(stage, _)| *stage);
    let shown_chunks: Vec<&mut [f32]> = match scores {
        None => Vec::new(),
        Some((_, scores)) => {
            assert_eq!(scores.len(), batch * key_heads * rows * keys, "elements of scores");
            scores.chunks_mut(rows * keys).flat_map(|head| head.chunks_mut(ROWS * keys)).collect()
        }
    };
    let mut shown_chunks = shown_chunks.into_iter();
    let tasks: Vec<Task<'_>> = out
        .chunks_mut(rows * width)
        .enumerate()
        .flat_map(|(head, out)| out.chunks_mut(ROWS * width).enumerate().map(move |(block, out)| (head, block, out)))
        .map(|(head, block, out)| {
            let scores = shown_chunks.next().unwrap_or_default();
            Task { operands, head, first: block * ROWS, rows: out.len() / width, out, shown, scores }
        })
        .collect();
    if batch * key_heads * rows * keys * (size + width) < threads::SERIAL_OPERATIONS {
        return tasks.into_iter().for_each(|task| task.run(instructions));
    }
    threads::each(tasks, |task| task.run(instructions));
}

/// Some rows of one head of keys.
struct Task<'a> {
    operands: &'a Attention<'a>,
    /// Batch and head of keys, as one.
    head: usize,
    /// First row among those of the head.
    first: usize,
    rows: usize,
    out: &'a mut [f32],
    shown: Option<Stage>,
    /// `[rows, keys]`, where a stage is wanted.
    scores: &'a mut [f32],
}

impl Task<'_> {
    fn run(mut self, instructions: Instructions) {
        let operands = self.operands;
        let (batch, key_head) = (self.head / operands.key_heads, self.head % operands.key_heads);
        let visible: Vec<Range<usize>> = (0..self.rows).map(|row| self.visible(batch, row)).collect();
        let seen = visible.iter().filter(|range| !range.is_empty());
        let start = seen.clone().map(|range| range.start).min().unwrap_or(0);
        let end = seen.map(|range| range.end).max().unwrap_or(0);
        // Where scores are shown, all of them are wanted.
        let (start, end) = if self.shown.is_some() { (0, operands.keys) } else { (start, end) };
        let count = end - start;
        let (size, width) = (operands.key.size, operands.value.size);
        let mut scores = vec![0.0; self.rows * count];
        let row = self.head * operands.group * operands.queries + self.first;
        plain_product(
            instructions,
            Matrix::new(&operands.query[row * size..], self.rows, size),
            rows_of(&operands.key, batch, key_head, start, count, PlainLayout::InputsInner),
            MatrixMut::new(&mut scores, self.rows, count),
            Start::Zero,
            Epilogue::default(),
        );
        self.show(Stage::Product, &scores);
        if operands.softcap > 0.0 {
            let cap = operands.softcap;
            scores.iter_mut().for_each(|score| *score /= cap);
            map_in_place(instructions, functions::ScaledTanh { alpha: cap, beta: 1.0 }, &mut scores);
        }
        self.show(Stage::Softcap, &scores);
        for (row, range) in visible.iter().enumerate() {
            let scores = &mut scores[row * count..(row + 1) * count];
            self.weigh(instructions, row, batch, key_head, scores, range, start);
        }
        self.show(Stage::Softmax, &scores);
        plain_product(
            instructions,
            Matrix::new(&scores, self.rows, count),
            rows_of(&operands.value, batch, key_head, start, count, PlainLayout::OutputsInner),
            MatrixMut::new(self.out, self.rows, width),
            Start::Zero,
            Epilogue::default(),
        );
    }

    fn visible(&self, batch: usize, row: usize) -> Range<usize> {
        let query = (self.first + row) % self.operands.queries;
        let keys = self.operands.mask.map_or(self.operands.keys, |mask| mask.keys.min(self.operands.keys));
        self.operands.frontier.visible(batch, query, keys)
    }

    fn show(&mut self, stage: Stage, scores: &[f32]) {
        if self.shown == Some(stage) {
            self.scores.copy_from_slice(scores);
        }
    }

    /// Scores of the keys from `start` on become weights: the mask is added, the softmax taken of what is visible.
    #[allow(clippy::too_many_arguments, reason = "one row of a task")]
    fn weigh(
        &mut self,
        instructions: Instructions,
        row: usize,
        batch: usize,
        key_head: usize,
        scores: &mut [f32],
        visible: &Range<usize>,
        start: usize,
    ) {
        let operands = self.operands;
        let seen = visible.start.max(start) - start..visible.end.max(start) - start;
        let mut hidden = seen.is_empty();
        if let Some(mask) = &operands.mask {
            let (head, query) = ((self.first + row) / operands.queries, (self.first + row) % operands.queries);
            let [by_batch, by_head, by_query, by_key] = mask.strides;
            let first = batch * by_batch + (key_head * operands.group + head) * by_head + query * by_query;
            hidden = true;
            for key in seen.clone() {
                let bias = mask.values[first + (start + key) * by_key];
                hidden &= bias == f32::NEG_INFINITY;
                scores[key] += bias;
            }
        }
        if self.shown == Some(Stage::Bias) {
            let shown = &mut self.scores[row * operands.keys..(row + 1) * operands.keys];
            shown.fill(f32::NEG_INFINITY);
            shown[start + seen.start..start + seen.end].copy_from_slice(&scores[seen.clone()]);
        }
        if hidden {
            return scores.fill(0.0);
        }
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let seen = &mut scores[seen];
        let length = seen.len();
        softmax_in_place(instructions, SoftmaxKind::Softmax, seen, length, 1);
    }
}

/// `count` rows of a head from `start` on as the right side of a product.
fn rows_of<'a>(
    heads: &Heads<'a>,
    batch: usize,
    head: usize,
    start: usize,
    count: usize,
    layout: PlainLayout,
) -> PlainMatrix<'a> {
    let [by_batch, by_head, by_key] = heads.strides;
    let first = batch * by_batch + head * by_head + start * by_key;
    let elements = PlainElements::F32(heads.values.get(first..).unwrap_or_default());
    let (inputs, outputs) = match layout {
        PlainLayout::InputsInner => (heads.size, count),
        PlainLayout::OutputsInner => (count, heads.size),
    };
    PlainMatrix { elements, layout, stride: by_key, inputs, outputs }
}
