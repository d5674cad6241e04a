//! What becomes of the scores of a next token before one is chosen.

use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BinaryFunction, Compare, CompareRelation, GatherElements, RepeatBlock, ScatterElements, ScatterReduction, Select,
    ShapeOf,
};
use ipuc_formats::tensor::Tensor;

/// The inputs of a node with what changes scores.
pub(super) struct ScoreInputs {
    pub min_length: usize,
    pub repetition_penalty: usize,
    pub vocab_mask: usize,
    pub prefix_vocab_mask: usize,
}

/// What changes scores, in the order in which ONNX Runtime does it.
pub(super) struct ScoreChanges {
    /// Runs of so many tokens do not occur twice; 0: they may.
    run: i64,
    /// The token that ends a text.
    end: i64,
    temperature: f32,
    given: Given,
}

/// Operands that change scores; absent where the node has none.
#[derive(Clone, Copy)]
struct Given {
    /// `[1]`, f32.
    penalty: Operand,
    /// Tokens that may be chosen: `[v]`, bool.
    allowed: Operand,
    /// Tokens that may be chosen first: `[rows, v]`, bool.
    allowed_first: Operand,
    /// `[1]`, i64.
    least: Operand,
}

impl ScoreChanges {
    /// Those of a node that ends texts with this token, at this temperature; `rows` makes rows of the batch rows of the search.
    pub(super) fn of(
        node: &mut Lowering<'_, '_>,
        inputs: &ScoreInputs,
        (end, temperature): (i64, f32),
        rows: &mut dyn FnMut(&mut Lowering<'_, '_>, Operand) -> Result<Operand, LowerError>,
    ) -> Result<ScoreChanges, LowerError> {
        let run = node.int("no_repeat_ngram_size")?.unwrap_or(0).max(0);
        let penalty = node.input(inputs.repetition_penalty);
        let penalty = node.cast(penalty, DType::F32)?;
        let allowed = seen(node, inputs.vocab_mask, "vocab_mask")?;
        let mut allowed_first = seen(node, inputs.prefix_vocab_mask, "prefix_vocab_mask")?;
        if allowed_first != Operand::Absent {
            allowed_first = rows(node, allowed_first)?;
        }
        let least = node.cast(node.input(inputs.min_length), DType::I64)?;
        Ok(ScoreChanges { run, end, temperature, given: Given { penalty, allowed, allowed_first, least } })
    }

    /// Operands that a body needs.
    pub(super) fn operands(&self) -> Vec<Operand> {
        let Given { penalty, allowed, allowed_first, least } = self.given;
        vec![penalty, allowed, allowed_first, least]
    }

    /// `scores: [rows, v]` of what follows `tokens: [rows, t]` (i64), with `operands` as a body has them.
    pub(super) fn applied(
        &self,
        node: &mut Lowering<'_, '_>,
        operands: &[Operand],
        scores: Operand,
        tokens: Operand,
        iteration: Operand,
    ) -> Result<Operand, LowerError> {
        let &[penalty, allowed, allowed_first, least] = operands else {
            return Err(node.refuse("scores without their operands"));
        };
        let mut scores = scores;
        if penalty != Operand::Absent {
            scores = penalized(node, scores, tokens, penalty)?;
        }
        let lowest = node.constant(Tensor::scalar(f32::MIN));
        if self.run > 0 {
            let blocked = node.emit_one(RepeatBlock { length: self.run }, vec![tokens, scores])?;
            scores = node.binary(BinaryFunction::Max, blocked, lowest)?;
        }
        if allowed != Operand::Absent {
            scores = node.emit_one(Select {}, vec![allowed, scores, lowest])?;
        }
        if allowed_first != Operand::Absent {
            let zero = node.constant(Tensor::scalar(0i64));
            let later = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![iteration, zero])?;
            let allowed = node.binary(BinaryFunction::Or, allowed_first, later)?;
            scores = node.emit_one(Select {}, vec![allowed, scores, lowest])?;
        }
        if least != Operand::Absent {
            scores = self.not_ended(node, [scores, tokens, least, lowest])?;
        }
        if self.temperature != 1.0 {
            let temperature = node.constant(Tensor::scalar(self.temperature));
            scores = node.binary(BinaryFunction::Div, scores, temperature)?;
        }
        Ok(scores)
    }

    /// Scores with the lowest for the end where there are fewer tokens than `least`.
    fn not_ended(
        &self,
        node: &mut Lowering<'_, '_>,
        [scores, tokens, least, lowest]: [Operand; 4],
    ) -> Result<Operand, LowerError> {
        let vocabulary = node.extent(&scores, -1, "scores of tokens")?;
        let [end, vocabulary] = [self.end, vocabulary].map(|number| node.constant(Tensor::scalar(number)));
        let places = node.counted(vocabulary)?;
        let ends = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![places, end])?;
        let count = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![tokens])?;
        let short = node.emit_one(Compare { relation: CompareRelation::Less }, vec![count, least])?;
        let blocked = node.binary(BinaryFunction::And, ends, short)?;
        node.emit_one(Select {}, vec![blocked, lowest, scores])
    }
}

/// Where a mask of integers is not 0. Scores keep their known extents only beside a mask of known rank.
fn seen(node: &mut Lowering<'_, '_>, input: usize, name: &str) -> Result<Operand, LowerError> {
    let mask = node.input(input);
    if mask != Operand::Absent && node.rank(&mask).is_err() {
        return Err(node.refuse(format!("input `{name}` of unknown rank")));
    }
    node.cast(mask, DType::Bool)
}

/// Scores of tokens that have occurred, divided by the penalty, or where negative multiplied.
fn penalized(
    node: &mut Lowering<'_, '_>,
    scores: Operand,
    tokens: Operand,
    penalty: Operand,
) -> Result<Operand, LowerError> {
    let own = node.emit_one(GatherElements { axis: 1 }, vec![scores, tokens])?;
    let zero = node.constant(Tensor::scalar(0f32));
    let negative = node.emit_one(Compare { relation: CompareRelation::Less }, vec![own, zero])?;
    let [more, less] = [BinaryFunction::Mul, BinaryFunction::Div].map(|function| node.binary(function, own, penalty));
    let changed = node.emit_one(Select {}, vec![negative, more?, less?])?;
    // A token that occurs several times has the same score each time.
    let scatter = ScatterElements { axis: 1, reduction: ScatterReduction::None };
    node.emit_one(scatter, vec![scores, tokens, changed])
}
