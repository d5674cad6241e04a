//! Scaled dot-product attention in f32, block by block of keys (`blocks`).
//!
//! A task is up to `MOST_ROWS` queries that share a head of keys. Heads that share keys lie side by side, so that keys are read
//! once for all of them, or a few times where there are fewer heads of keys than keep all threads busy.

mod blocks;
mod running;

use super::simd::Instructions;
use super::{team, threads};
use blocks::Task;
use half::f16;
pub use running::BLOCK;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Queries of a task.
const MOST_ROWS: usize = 128;

/// Rows of the largest tile of a product.
const TILE_ROWS: usize = 8;

/// Queries that cost as much as reading keys and values once, measured.
const ROWS_OF_PASS: usize = 3;

/// Keys or values: `[batch, heads, keys, size]`.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The elements.
    pub elements: HeadElements<'a>,
    /// Elements of a row.
    pub size: usize,
}

/// Where keys or values lie.
#[derive(Clone, Copy, Debug)]
pub enum HeadElements<'a> {
    /// With distances between batches, heads and keys.
    Whole {
        /// The elements.
        values: &'a [f32],
        /// Distances in elements.
        strides: [usize; 3],
    },
    /// In pages along the keys.
    Pages {
        /// The pages.
        pages: Pages<'a>,
        /// Keys of a page, a multiple of [`BLOCK`].
        positions: usize,
    },
}

/// For each page and each head (batch and head as one), its keys: `[keys of the page, size]`.
#[derive(Clone, Copy, Debug)]
pub enum Pages<'a> {
    /// Of f32.
    F32(&'a [Vec<&'a [f32]>]),
    /// Of f16.
    F16(&'a [Vec<&'a [f16]>]),
    /// Of a scale and codes of 8 bits a key, as [`ipuc_codes::store_row`] writes them.
    I8(&'a [Vec<&'a [u8]>]),
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

/// Where the rows of queries and of results lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLayout {
    /// `[batch, heads of queries, queries, size]`.
    ByHead,
    /// `[batch, queries, heads of queries, size]`, as products write them.
    ByQuery,
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
    /// The queries, as `layout` says; heads that share keys are neighbours.
    pub query: &'a [f32],
    /// Where queries, and results, lie.
    pub layout: RowLayout,
    /// Factor of the queries.
    pub scale: f32,
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
    /// A further score of each head of queries, whose value is 0: `[key_heads * group]`.
    pub sink: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Where a query of a head begins, in rows.
    fn row(&self, batch: usize, head: usize, query: usize) -> usize {
        let heads = self.key_heads * self.group;
        match self.layout {
            RowLayout::ByHead => (batch * heads + head) * self.queries + query,
            RowLayout::ByQuery => (batch * self.queries + query) * heads + head,
        }
    }

    /// The rows of a result, by batch, head and query.
    fn rows_of<'o>(&self, out: &'o mut [f32]) -> Vec<&'o mut [f32]> {
        let rows = out.chunks_mut(self.value.size);
        let heads = self.key_heads * self.group;
        match self.layout {
            RowLayout::ByQuery if heads > 1 => {
                let mut by_head: Vec<&mut [f32]> = Vec::new();
                by_head.resize_with(rows.len(), Default::default);
                for (place, row) in rows.enumerate() {
                    let (query, head) = (place / heads, place % heads);
                    let (batch, query) = (query / self.queries, query % self.queries);
                    by_head[(batch * heads + head) * self.queries + query] = row;
                }
                by_head
            }
            // Rows of one head lie side by side in either layout.
            RowLayout::ByHead | RowLayout::ByQuery => rows.collect(),
        }
    }
}

/// Queries of a task, where each of `heads` heads of keys has `rows`: as many as let all threads end at about the same time.
fn rows_of_task(heads: usize, rows: usize, threads: usize) -> usize {
    let most = rows.min(MOST_ROWS);
    if threads == 1 {
        // About as many in each, of whole tiles.
        return rows.div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(TILE_ROWS).min(most);
    }
    // What the thread with most tasks does.
    let longest = |each: &usize| (heads * rows.div_ceil(*each)).div_ceil(threads) * (each + ROWS_OF_PASS);
    (1..=most).rev().min_by_key(longest).unwrap_or(1)
}

/// Writes `out`, whose rows lie as those of the queries, and `scores: [batch, key_heads, group, queries, keys]` where a stage of
/// them is wanted. Gives the multiplications that were left out, since the mask hides whole blocks of keys.
///
/// # Panics
/// If lengths disagree, or an extent is 0.
pub fn attention(
    instructions: Instructions,
    operands: &Attention<'_>,
    out: &mut [f32],
    scores: Option<(Stage, &mut [f32])>,
) -> u64 {
    let Attention { batch, key_heads, group, queries, keys, .. } = *operands;
    let rows = group * queries;
    let (size, width) = (operands.key.size, operands.value.size);
    assert_eq!(operands.query.len(), batch * key_heads * rows * size, "elements of queries");
    assert_eq!(out.len(), batch * key_heads * rows * width, "elements of the result");
    let is_serial = batch * key_heads * rows * keys * (size + width) < threads::SERIAL_OPERATIONS;
    // What the mask lets tasks leave out must not depend on the threads.
    let is_free = operands.mask.is_none_or(|mask| queries == 1 && mask.strides[1] == 0);
    let threads = if is_serial || !is_free { 1 } else { team::count() };
    let rows_each = rows_of_task(batch * key_heads, rows, threads);
    let shown = scores.as_ref().map(|(stage, _)| *stage);
    let shown_chunks: Vec<&mut [f32]> = match scores {
        None => Vec::new(),
        Some((_, scores)) => {
            assert_eq!(scores.len(), batch * key_heads * rows * keys, "elements of scores");
            scores.chunks_mut(rows * keys).flat_map(|head| head.chunks_mut(rows_each * keys)).collect()
        }
    };
    let mut shown_chunks = shown_chunks.into_iter();
    let mut places = operands.rows_of(out);
    let mut places = &mut places[..];
    let mut tasks: Vec<Task<'_, '_>> = Vec::new();
    for head in 0..batch * key_heads {
        for first in (0..rows).step_by(rows_each) {
            let rows = (rows - first).min(rows_each);
            let out;
            (out, places) = places.split_at_mut(rows);
            let scores = shown_chunks.next().unwrap_or_default();
            tasks.push(Task { operands, head, first, rows, out, shown, scores });
        }
    }
    if is_serial {
        return tasks.iter_mut().map(|task| instructions.run(task)).sum();
    }
    let left_out = AtomicU64::new(0);
    threads::each_mut(tasks, |task| {
        left_out.fetch_add(instructions.run(task), Ordering::Relaxed);
    });
    left_out.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_as_long_as_lets_threads_end_together() {
        // (heads of keys, queries of each, threads) and queries of a task.
        let cases = [
            ((3, 3, 1), 3),
            ((3, 3, 2), 3),
            ((2, 3, 2), 3),
            ((1, 9, 4), 3),
            ((3, 192, 2), 96),
            ((1, 1, 4), 1),
            ((3, 384, 2), 96),
            ((1, 100, 1), 100),
            ((1, 197, 1), 104),
            ((1, 100, 2), 50),
            ((32, 1, 4), 1),
        ];
        for ((heads, rows, threads), expected) in cases {
            assert_eq!(
                rows_of_task(heads, rows, threads),
                expected,
                "{heads} heads of {rows} queries, {threads} threads"
            );
        }
    }
}
