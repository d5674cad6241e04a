//! Where queries, keys and the rows of a cache stand in `GroupQueryAttention`, for each of the batch.
//!
//! A cache begins with the first token, or it holds the last ones only (`sliding_window_cache`): of T tokens the L latest, in
//! order from row 0 on. With room for C rows and a window of W keys, L is T up to C; from then on `C - W + 1` rows go at once
//! whenever one more would not fit. A chunk of queries may be padded on the right (`query_seqlens`).

use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BinaryFunction, CacheScatter, Compare, CompareRelation, Concat, Expand, Gather, GatherNd, Pad, PadMode, Select,
    ShapeOf, Slice,
};
use ipuc_formats::tensor::Tensor;

/// Inputs that say where everything stands.
const LENGTHS: usize = 5;
const TOTAL: usize = 6;
const QUERIES: usize = 16;

/// What the lengths say, as i64.
pub(super) struct Places {
    /// Position of the first query, for each of the batch.
    pub first: Operand,
    /// Tokens with the new ones, for each of the batch.
    pub tokens: Operand,
    /// Number of queries: `[1]`.
    pub steps: Operand,
    /// The greatest number of tokens in the batch, or a bound of it where queries are counted: `[]`.
    pub total: Operand,
    /// Queries that are no padding, for each of the batch; absent where they are not given.
    pub queries: Operand,
    /// Where the cache holds the last tokens only.
    pub window: Option<Window>,
}

/// The rows of a cache that holds the last tokens only.
pub(super) struct Window {
    /// Rows of past tokens, and of all tokens when the new ones are in it, for each of the batch.
    before: Operand,
    after: Operand,
    /// Rows that the cache has: `[]`.
    capacity: Operand,
}

impl Places {
    /// Of a node with this past, whose window has so many keys where it may drop those before.
    pub(super) fn of(
        node: &mut Lowering<'_, '_>,
        query: Operand,
        past: Operand,
        sliding: Option<i64>,
    ) -> Result<Places, LowerError> {
        let (lengths, total) = (node.required(LENGTHS)?, node.required(TOTAL)?);
        let lengths = node.reshaped(lengths, &[-1])?;
        let lengths = node.cast(lengths, DType::I64)?;
        let total = node.reshaped(total, &[])?;
        let total = node.cast(total, DType::I64)?;
        let steps = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![query])?;
        let [zero, one] = [0, 1].map(|number| node.integers(&[number]));
        // The lengths are those of all tokens less one. In a first prompt that is padded they are shorter than the queries.
        let tokens = node.binary(BinaryFunction::Add, lengths, one)?;
        let queries = match node.input(QUERIES) {
            Operand::Absent => Operand::Absent,
            given => {
                let given = node.reshaped(given, &[-1])?;
                let given = node.cast(given, DType::I64)?;
                let most = node.binary(BinaryFunction::Min, tokens, steps)?;
                let given = node.binary(BinaryFunction::Min, given, most)?;
                node.binary(BinaryFunction::Max, given, zero)?
            }
        };
        let counted = if queries == Operand::Absent { steps } else { queries };
        let first = node.binary(BinaryFunction::Sub, tokens, counted)?;
        let first = node.binary(BinaryFunction::Max, first, zero)?;
        let window = match sliding {
            None => None,
            Some(_) if past == Operand::Absent => {
                return Err(node.refuse("attribute `sliding_window_cache` without `past_key`"));
            }
            Some(keys) => Some(Window::of(node, past, keys, [first, tokens])?),
        };
        Ok(Places { first, tokens, steps, total, queries, window })
    }

    /// The first prompt is told from its length; of one whose queries are counted nothing is.
    pub(super) fn is_prompt(&self, node: &mut Lowering<'_, '_>) -> Result<Operand, LowerError> {
        node.emit_one(Compare { relation: CompareRelation::Equal }, vec![self.steps, self.total])
    }

    /// Rows of the cache before the new ones, for each of the batch; then with them.
    pub(super) fn rows(&self, node: &mut Lowering<'_, '_>) -> Result<[Operand; 2], LowerError> {
        let Some(window) = &self.window else { return Ok([self.first, self.tokens]) };
        let counted = node.binary(BinaryFunction::Sub, self.tokens, self.first)?;
        Ok([window.before, node.plus(window.before, counted)?])
    }

    /// Of `past` and `new` rows `[b, h, _, d]`: the rows that queries see, and those that are kept.
    pub(super) fn kept(
        &self,
        node: &mut Lowering<'_, '_>,
        past: Operand,
        new: Operand,
    ) -> Result<[Operand; 2], LowerError> {
        if self.window.is_none() && self.queries == Operand::Absent {
            let present = node.emit_one(CacheScatter {}, vec![past, new, self.first, self.total])?;
            return Ok([present, present]);
        }
        if past == Operand::Absent {
            return Err(node.refuse("input `query_seqlens` without `past_key`"));
        }
        let capacity = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![past])?;
        let staged_rows = node.plus(capacity, self.steps)?;
        let [before, _] = self.rows(node)?;
        let staged = node.emit_one(CacheScatter {}, vec![past, new, before, staged_rows])?;
        if let Some(window) = &self.window {
            return Ok([staged, window.latest(node, self, staged)?]);
        }
        // As many rows as the cache has room for, or the bound of the tokens says.
        let rows = node.binary(BinaryFunction::Max, capacity, self.total)?;
        let [zero, axis] = [0, 2].map(|number| node.integers(&[number]));
        let missing = node.binary(BinaryFunction::Sub, rows, staged_rows)?;
        let missing = node.binary(BinaryFunction::Max, missing, zero)?;
        let pads = node.integers(&[0; 6]);
        let pads = node.emit_one(Concat { axis: 0 }, vec![pads, missing, zero])?;
        let padded = node.emit_one(Pad { mode: PadMode::Constant }, vec![staged, pads])?;
        let present = node.emit_one(Slice {}, vec![padded, zero, rows, axis])?;
        let present = emptied_from(node, present, self.tokens)?;
        Ok([present, present])
    }

    /// `bias: [_, _, s, total]`, a column a token, with a column a row of the keys that queries see.
    pub(super) fn bias_of_rows(
        &self,
        node: &mut Lowering<'_, '_>,
        bias: Operand,
        seen: Operand,
    ) -> Result<Operand, LowerError> {
        let Some(window) = self.window.as_ref().filter(|_| bias != Operand::Absent) else { return Ok(bias) };
        if node.rank(&bias)? != 4 {
            return Err(node.refuse("input `attention_bias` of another rank than 4 with `sliding_window_cache`"));
        }
        let dropped = node.binary(BinaryFunction::Sub, self.first, window.before)?;
        let dropped = node.unsqueezed(dropped, &[1])?;
        let rows = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![seen])?;
        let rows = node.counted(rows)?;
        let columns = node.plus(dropped, rows)?;
        let one = node.constant(Tensor::scalar(1i64));
        let last = node.binary(BinaryFunction::Sub, self.total, one)?;
        let columns = node.binary(BinaryFunction::Min, columns, last)?;
        let columns = node.unsqueezed(columns, &[2])?;
        let bias = node.transposed(bias, vec![0, 3, 1, 2])?;
        let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![seen])?;
        let ones = node.integers(&[1, 1, 1]);
        let shape = node.emit_one(Concat { axis: 0 }, vec![batch, ones])?;
        let bias = node.emit_one(Expand {}, vec![bias, shape])?;
        let bias = node.emit_one(GatherNd { batch_dims: 1 }, vec![bias, columns])?;
        node.transposed(bias, vec![0, 2, 3, 1])
    }

    /// `[b, h, s, d]` with zeros for queries that are padding.
    pub(super) fn without_padding(&self, node: &mut Lowering<'_, '_>, results: Operand) -> Result<Operand, LowerError> {
        if self.queries == Operand::Absent { Ok(results) } else { emptied_from(node, results, self.queries) }
    }

    /// `scores: [b, h, s, rows]` of the first tokens, zeros where a query does not see a key: `[b, h, s, total]`.
    pub(super) fn scores(
        &self,
        node: &mut Lowering<'_, '_>,
        scores: Operand,
        causal: bool,
        left_window: Option<i64>,
    ) -> Result<Operand, LowerError> {
        let [zero, axis] = [0, 3].map(|number| node.integers(&[number]));
        let total = node.reshaped(self.total, &[1])?;
        let scores = node.emit_one(Slice {}, vec![scores, zero, total, axis])?;
        let keys = node.counted(self.total)?;
        let tokens = node.unsqueezed(self.tokens, &[1, 2, 3])?;
        let mut seen = node.emit_one(Compare { relation: CompareRelation::Less }, vec![keys, tokens])?;
        let first = node.unsqueezed(self.first, &[1, 2, 3])?;
        let steps = node.counted(self.steps)?;
        let steps = node.unsqueezed(steps, &[1])?;
        let own = node.plus(first, steps)?;
        if causal {
            let before = node.emit_one(Compare { relation: CompareRelation::LessOrEqual }, vec![keys, own])?;
            seen = node.binary(BinaryFunction::And, seen, before)?;
        }
        if let Some(window) = left_window {
            let window = node.constant(Tensor::scalar(window));
            let least = node.binary(BinaryFunction::Sub, own, window)?;
            let near = node.emit_one(Compare { relation: CompareRelation::GreaterOrEqual }, vec![keys, least])?;
            seen = node.binary(BinaryFunction::And, seen, near)?;
        }
        let nothing = node.constant(Tensor::scalar(0f32));
        let scores = node.emit_one(Select {}, vec![seen, scores, nothing])?;
        self.without_padding(node, scores)
    }
}

impl Window {
    /// Of a cache `past: [b, h, c, d]`, before and after the tokens `[first, tokens]`.
    fn of(
        node: &mut Lowering<'_, '_>,
        past: Operand,
        keys: i64,
        [first, tokens]: [Operand; 2],
    ) -> Result<Window, LowerError> {
        let capacity = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![past])?;
        let capacity = node.reshaped(capacity, &[])?;
        // A place that a cache with room for less than the window does not have: an error when it runs.
        let rows = node.counted(capacity)?;
        let last = node.constant(Tensor::scalar(keys.saturating_sub(1)));
        let last = node.emit_one(Gather { axis: 0 }, vec![rows, last])?;
        let group = node.binary(BinaryFunction::Sub, capacity, last)?;
        let mut resident = |tokens: Operand| {
            let [zero, one] = [0i64, 1].map(|number| node.constant(Tensor::scalar(number)));
            let over = node.binary(BinaryFunction::Sub, tokens, capacity)?;
            let over = node.binary(BinaryFunction::Max, over, zero)?;
            let over = node.plus(over, group)?;
            let over = node.binary(BinaryFunction::Sub, over, one)?;
            let groups = node.binary(BinaryFunction::Div, over, group)?;
            let dropped = node.binary(BinaryFunction::Mul, groups, group)?;
            node.binary(BinaryFunction::Sub, tokens, dropped)
        };
        let (before, after) = (resident(first)?, resident(tokens)?);
        Ok(Window { before, after, capacity })
    }

    /// The rows that stay of `staged: [b, h, _, d]`, then zeros: `[b, h, capacity, d]`.
    fn latest(&self, node: &mut Lowering<'_, '_>, places: &Places, staged: Operand) -> Result<Operand, LowerError> {
        let [_, rows] = places.rows(node)?;
        let dropped = node.binary(BinaryFunction::Sub, rows, self.after)?;
        let dropped = node.unsqueezed(dropped, &[1])?;
        let places = node.counted(self.capacity)?;
        // What is behind the rows that stay is not given; any row does.
        let sources = node.plus(dropped, places)?;
        let rows = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![staged])?;
        let one = node.integers(&[1]);
        let last = node.binary(BinaryFunction::Sub, rows, one)?;
        let sources = node.binary(BinaryFunction::Min, sources, last)?;
        let sources = node.unsqueezed(sources, &[2])?;
        let rows = node.transposed(staged, vec![0, 2, 1, 3])?;
        let latest = node.emit_one(GatherNd { batch_dims: 1 }, vec![rows, sources])?;
        let latest = node.transposed(latest, vec![0, 2, 1, 3])?;
        emptied_from(node, latest, self.after)
    }
}

/// `[b, h, n, d]` with zeros from row `counts: [b]` on.
fn emptied_from(node: &mut Lowering<'_, '_>, operand: Operand, counts: Operand) -> Result<Operand, LowerError> {
    let rows = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![operand])?;
    let rows = node.counted(rows)?;
    let rows = node.unsqueezed(rows, &[1])?;
    let counts = node.unsqueezed(counts, &[1, 2, 3])?;
    let kept = node.emit_one(Compare { relation: CompareRelation::Less }, vec![rows, counts])?;
    let dtype = node.dtype(&operand)?;
    let zero = node.scalar(dtype, 0.0)?;
    node.emit_one(Select {}, vec![kept, operand, zero])
}
