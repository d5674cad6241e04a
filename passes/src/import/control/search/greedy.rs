//! One token after the other: the most probable each time (`GreedySearch`), or one that is drawn (`Sampling`).

use super::drawing::Drawing;
use super::model::{Model, as_tokens, with_column};
use super::scores::{ScoreChanges, ScoreInputs};
use super::{Lowered, Marks, check_vocabulary, count, marks, padded, room};
use crate::import::control::counted_loop::{CountedLoop, Iteration, Next};
use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::ops::{
    ArgReduce, BinaryFunction, Compare, CompareRelation, Expand, Reduce, ReduceFunction, Select, ShapeOf, Unary,
    UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

const SCORES: ScoreInputs = ScoreInputs { min_length: 2, repetition_penalty: 3, vocab_mask: 4, prefix_vocab_mask: 5 };
const MASK: usize = 6;

pub(super) fn search(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(7)?;
    run(node, 1.0, None)
}

pub(super) fn sampling(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(9)?;
    // What the presence penalty is multiplied with, which is none.
    node.ignore_input(7);
    if let Some(penalty) = node.float("presence_penalty")?.filter(|penalty| *penalty != 0.0) {
        return Err(node.refuse(format!("attribute `presence_penalty` = {penalty}")));
    }
    let drawing = Drawing::of(node)?;
    let temperature = node.float("temperature")?.unwrap_or(1.0);
    if temperature <= 0.0 || !temperature.is_finite() {
        return Err(node.refuse(format!("attribute `temperature` = {temperature}")));
    }
    run(node, temperature, Some(drawing))
}

/// The search; with the generator's first state where tokens are drawn.
fn run(node: &mut Lowering<'_, '_>, temperature: f32, drawing: Option<(Drawing, Operand)>) -> Lowered {
    node.only_int("model_type", 0)?;
    node.only_int("decoder_start_token_id", -1)?;
    if node.has("encoder") {
        return Err(node.refuse("attribute `encoder`"));
    }
    let marks = marks(node)?;
    let model = Model::decoder(node, marks.pad, MASK, &mut |_, rows| Ok(rows))?;
    let changes = ScoreChanges::of(node, &SCORES, (marks.end, temperature), &mut |_, rows| Ok(rows))?;
    let longest = count(node, 1)?;
    let trips = room(node, longest, model.tokens)?;
    let going = node.constant(Tensor::scalar_bool(false));
    let rows = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![model.tokens])?;
    let ended = node.emit_one(Expand {}, vec![going, rows])?;
    let mut carried = vec![model.tokens, ended];
    let (drawing, random) = drawing.unzip();
    carried.extend(random);
    carried.extend(&model.state);
    let search = Greedy { model, changes, marks, drawing };
    let captured = search.changes.operands();
    let (mut trips, mut condition) = (trips, Operand::Absent);
    if node.has("init_decoder") {
        let first = node.constant(Tensor::scalar(0i64));
        let iteration = Iteration { number: first, carried: &carried, captured: &captured };
        let next = search.iterate(node, "init_decoder", iteration)?;
        (carried, condition) = (next.carried, next.goes_on);
        let one = node.integers(&[1]);
        trips = node.binary(BinaryFunction::Sub, trips, one)?;
    }
    let peeled = condition != Operand::Absent;
    let results = CountedLoop { trips, condition, carried, captured }.emit(node, &mut |node, mut iteration| {
        if peeled {
            let one = node.constant(Tensor::scalar(1i64));
            iteration.number = node.plus(iteration.number, one)?;
        }
        search.iterate(node, "decoder", iteration)
    })?;
    let pad = node.constant(Tensor::scalar(search.marks.pad));
    let tokens = padded(node, results[0], longest, [1, 2], pad)?;
    Ok(vec![as_tokens(node, tokens)?])
}

struct Greedy {
    model: Model,
    changes: ScoreChanges,
    marks: Marks,
    /// How tokens are drawn; `None`: the most probable one follows.
    drawing: Option<Drawing>,
}

impl Greedy {
    /// Carried are tokens `[rows, t]`, which texts have ended `[rows]`, where tokens are drawn the generator's state, and the
    /// model's state.
    fn iterate(
        &self,
        node: &mut Lowering<'_, '_>,
        attribute: &str,
        iteration: Iteration<'_>,
    ) -> Result<Next, LowerError> {
        let own = 2 + usize::from(self.drawing.is_some());
        let (carried, state) = iteration.carried.split_at(own.min(iteration.carried.len()));
        let [tokens, ended, random @ ..] = carried else { return Err(node.refuse("a search of nothing")) };
        let (scores, present) = self.model.run(node, attribute, [state, &[]])?;
        check_vocabulary(node, scores)?;
        let scores = self.changes.applied(node, iteration.captured, scores, *tokens, iteration.number)?;
        let (chosen, random) = match (&self.drawing, random) {
            (Some(drawing), [random]) => {
                let [chosen, random] = drawing.draw(node, scores, *random)?;
                (chosen, Some(random))
            }
            _ => {
                let greatest = ArgReduce { smallest: false, axis: 1, keep_axis: false, last: false };
                (node.emit_one(greatest, vec![scores])?, None)
            }
        };
        self.follow(node, [*tokens, *ended, chosen], random, (state, present))
    }

    /// The next iteration, where `chosen: [rows]` follow; of texts that have ended padding does, also in place of their end.
    fn follow(
        &self,
        node: &mut Lowering<'_, '_>,
        [tokens, ended, chosen]: [Operand; 3],
        random: Option<Operand>,
        (state, present): (&[Operand], Vec<Operand>),
    ) -> Result<Next, LowerError> {
        let [end, pad] = [self.marks.end, self.marks.pad].map(|token| node.constant(Tensor::scalar(token)));
        let ends = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![chosen, end])?;
        let ended = node.binary(BinaryFunction::Or, ended, ends)?;
        let chosen = node.emit_one(Select {}, vec![ended, pad, chosen])?;
        let goes_on = some_not(node, ended)?;
        let tokens = with_column(node, tokens, chosen)?;
        let mut carried = vec![tokens, ended];
        carried.extend(random);
        carried.extend(self.model.next(node, state, present, [tokens, chosen, Operand::Absent])?);
        Ok(Next { goes_on, carried, collected: Vec::new() })
    }
}

/// Whether some of `flags: [n]` is false: `[]`.
pub(super) fn some_not(node: &mut Lowering<'_, '_>, flags: Operand) -> Result<Operand, LowerError> {
    let open = node.emit_one(Unary { function: UnaryFunction::Not }, vec![flags])?;
    let axis = node.integers(&[0]);
    let any = Reduce { function: ReduceFunction::Max, keep_axes: false, keep_without_axes: false };
    node.emit_one(any, vec![open, axis])
}
