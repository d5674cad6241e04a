//! A token drawn by its probability among the most probable ones: `Sampling`.
//!
//! Numbers are those of ONNX Runtime on Linux: of the generator `x * 16807 mod (2^31 - 1)`, two for each text and token.

use crate::import::control::counted_loop::{CountedLoop, Next};
use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BinaryFunction, Compare, CompareRelation, Cumulative, CumulativeFunction, Reduce, ReduceFunction, ScatterElements,
    ScatterReduction, Select, ShapeOf, Softmax, SoftmaxFunction, TopK, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

/// The generator's modulus and factor.
const MODULUS: i64 = 2_147_483_647;
const FACTOR: i64 = 16_807;

const SEED: usize = 8;

/// Which tokens may be drawn.
pub(super) struct Drawing {
    /// The share of the probabilities that is kept.
    share: f32,
    /// Tokens that are kept in any case.
    least: i64,
    /// The score of others.
    filter: f32,
    /// From the most probable token on, until the share is reached; else from the least probable on what is beyond it goes.
    from_best: bool,
}

impl Drawing {
    /// That of a node, and the generator's first state: `[1]`, i64.
    pub(super) fn of(node: &mut Lowering<'_, '_>) -> Result<(Drawing, Operand), LowerError> {
        let share = node.float("top_p")?.unwrap_or(0.0);
        let least = node.int("min_tokens_to_keep")?.unwrap_or(0).max(0);
        let from_best = node.flag("custom", false)?;
        if share.is_nan() || share <= 0.0 && least == 0 && !from_best {
            return Err(node.refuse(format!("attribute `top_p` = {share} without `min_tokens_to_keep`")));
        }
        let filter = node.float("filter_value")?.unwrap_or(-1e20);
        node.refuse_outputs(&[(1, "filtered_logits")])?;
        let seed = match node.input(SEED) {
            Operand::Absent => return Err(node.refuse("`Sampling` without the input `seed`, which draws at random,")),
            seed => node.cast(seed, DType::I64)?,
        };
        let seed = node.reshaped(seed, &[1])?;
        let [modulus, zero, one] = [MODULUS, 0, 1].map(|number| node.constant(Tensor::scalar(number)));
        let seed = node.binary(BinaryFunction::Modulo, seed, modulus)?;
        let none = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![seed, zero])?;
        let first = node.emit_one(Select {}, vec![none, one, seed])?;
        Ok((Drawing { share, least, filter, from_best }, first))
    }

    /// A token for each row of `scores: [rows, v]`: `[rows]`, and the generator's next state.
    pub(super) fn draw(
        &self,
        node: &mut Lowering<'_, '_>,
        scores: Operand,
        state: Operand,
    ) -> Result<[Operand; 2], LowerError> {
        let scores = self.filtered(node, scores)?;
        let axis = node.integers(&[1]);
        let greatest = Reduce { function: ReduceFunction::Max, keep_axes: true, keep_without_axes: false };
        let most = node.emit_one(greatest, vec![scores, axis])?;
        let below = node.binary(BinaryFunction::Sub, scores, most)?;
        let below = node.cast(below, DType::F64)?;
        let weights = node.emit_one(Unary { function: UnaryFunction::Exp }, vec![below])?;
        let sums = cumulated(node, weights)?;
        let [drawn, state] = drawn(node, scores, state)?;
        let all = node.sliced(sums, 1, [-1, i64::MAX, 1])?;
        let drawn = node.unsqueezed(drawn, &[1])?;
        let wanted = node.binary(BinaryFunction::Mul, drawn, all)?;
        let passed = node.emit_one(Compare { relation: CompareRelation::LessOrEqual }, vec![sums, wanted])?;
        let passed = node.cast(passed, DType::I64)?;
        let sum = Reduce { function: ReduceFunction::Sum, keep_axes: false, keep_without_axes: false };
        let place = node.emit_one(sum, vec![passed, axis])?;
        let vocabulary = node.extent(&scores, -1, "scores of tokens")?;
        let last = node.constant(Tensor::scalar(vocabulary - 1));
        Ok([node.binary(BinaryFunction::Min, place, last)?, state])
    }

    /// Scores with the filter's for those that may not be drawn.
    fn filtered(&self, node: &mut Lowering<'_, '_>, scores: Operand) -> Result<Operand, LowerError> {
        let vocabulary = node.extent(&scores, -1, "scores of tokens")?;
        let count = node.integers(&[vocabulary]);
        let sorted = node.emit(TopK { axis: 1, largest: self.from_best, sorted: true }, vec![scores, count])?;
        let softmax = Softmax { function: SoftmaxFunction::Softmax, axis: -1, trailing: false };
        let probabilities = node.emit_one(softmax, vec![sorted[0]])?;
        let sums = cumulated(node, probabilities)?;
        let dropped = if self.from_best {
            let before = node.binary(BinaryFunction::Sub, sums, probabilities)?;
            let share = node.constant(Tensor::scalar(self.share));
            node.emit_one(Compare { relation: CompareRelation::Greater }, vec![before, share])?
        } else {
            let rest = node.constant(Tensor::scalar(1.0 - self.share));
            let beyond = node.emit_one(Compare { relation: CompareRelation::LessOrEqual }, vec![sums, rest])?;
            let kept = node.constant(Tensor::scalar(vocabulary.saturating_sub(self.least)));
            let places = node.counted(count)?;
            let may = node.emit_one(Compare { relation: CompareRelation::Less }, vec![places, kept])?;
            node.binary(BinaryFunction::And, beyond, may)?
        };
        let filter = node.constant(Tensor::scalar(self.filter));
        let changed = node.emit_one(Select {}, vec![dropped, filter, sorted[0]])?;
        let scatter = ScatterElements { axis: 1, reduction: ScatterReduction::None };
        node.emit_one(scatter, vec![scores, sorted[1], changed])
    }
}

/// Sums along the last of two axes.
fn cumulated(node: &mut Lowering<'_, '_>, operand: Operand) -> Result<Operand, LowerError> {
    let axis = node.constant(Tensor::scalar(1i64));
    let sums = Cumulative { function: CumulativeFunction::Sum, exclusive: false, reverse: false };
    node.emit_one(sums, vec![operand, axis])
}

/// A number from 0 up to 1 for each row, one after the other: `[rows]`, f64; and the generator's next state.
fn drawn(node: &mut Lowering<'_, '_>, rows: Operand, state: Operand) -> Result<[Operand; 2], LowerError> {
    let trips = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![rows])?;
    let draws = CountedLoop { trips, condition: Operand::Absent, carried: vec![state], captured: Vec::new() };
    let results = draws.emit(node, &mut |node, iteration| {
        let [factor, modulus, one] = [FACTOR, MODULUS, 1].map(|number| node.constant(Tensor::scalar(number)));
        let mut state = iteration.carried[0];
        let mut parts = Vec::new();
        for _ in 0..2 {
            let product = node.binary(BinaryFunction::Mul, state, factor)?;
            state = node.binary(BinaryFunction::Modulo, product, modulus)?;
            let part = node.binary(BinaryFunction::Sub, state, one)?;
            parts.push(node.cast(part, DType::F64)?);
        }
        let range = (MODULUS - 1) as f64;
        let below = 1.0 - f64::EPSILON / 2.0;
        let [range, square, below] = [range, range * range, below].map(|number| node.constant(Tensor::scalar(number)));
        let high = node.binary(BinaryFunction::Mul, parts[1], range)?;
        let sum = node.plus(parts[0], high)?;
        let drawn = node.binary(BinaryFunction::Div, sum, square)?;
        let drawn = node.binary(BinaryFunction::Min, drawn, below)?;
        let drawn = node.reshaped(drawn, &[])?;
        let goes_on = node.constant(Tensor::scalar_bool(true));
        Ok(Next { goes_on, carried: vec![state], collected: vec![drawn] })
    })?;
    Ok([results[1], results[0]])
}
