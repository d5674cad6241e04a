//! The most probable texts of several beams: `BeamSearch`, and `WhisperBeamSearch`, which begins with what its encoder gives.
//!
//! Of the `2 * beams` best continuations of a text those that end it become candidates where they are among the first `beams`, and
//! the first `beams` of the others go on. The best candidates of each text are kept, the best first; of equal ones the older
//! comes first. A text is done when it has as many candidates as beams and none that goes on can be better (`early_stopping`: at
//! once).

use super::greedy::some_not;
use super::model::{Model, as_tokens, with_column};
use super::scores::{ScoreChanges, ScoreInputs};
use super::{Lowered, Marks, check_vocabulary, count, marks, padded, room};
use crate::import::control::counted_loop::{CountedLoop, Iteration, Next};
use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BinaryFunction, Compare, CompareRelation, Concat, Expand, Gather, GatherElements, GatherNd, Reduce, ReduceFunction,
    Reshape, Select, ShapeOf, Slice, Softmax, SoftmaxFunction, TopK, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

const SCORES: ScoreInputs = ScoreInputs { min_length: 2, repetition_penalty: 6, vocab_mask: 7, prefix_vocab_mask: 8 };
const PENALTY: usize = 5;
const MASK: usize = 9;

/// Score of the beams but the first before there is a token, so that all continue the first.
const NO_BEAM: f32 = -1e9;

/// Values that an iteration carries before the model's state.
#[derive(Clone, Copy)]
struct Carried {
    /// `[batch * beams, t]`, i64.
    tokens: Operand,
    /// Sums of the logarithms of probabilities: `[batch, beams]`.
    sums: Operand,
    /// Candidates with padding, `[batch, beams, longest]`, their scores `[batch, beams]`, and how many there are `[batch]`.
    texts: Operand,
    scores: Operand,
    count: Operand,
    /// Which texts are done: `[batch]`.
    done: Operand,
}

/// Values of outside that an iteration reads.
#[derive(Clone, Copy)]
struct Settings {
    /// `[1]`, i64.
    beams: Operand,
    longest: Operand,
    /// `[1]`, f32; absent: 1.
    penalty: Operand,
    temperature: Operand,
}

struct Beams {
    model: Model,
    changes: ScoreChanges,
    marks: Marks,
    early: bool,
}

pub(super) fn search(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(12)?;
    // `decoder_input_ids` and `logits_processor`, which ONNX Runtime reads for Whisper only.
    node.ignore_input(10);
    node.ignore_input(11);
    let marks = marks(node)?;
    let early = node.flag("early_stopping", false)?;
    let beams = count(node, 3)?;
    let mut rows = |node: &mut Lowering<'_, '_>, batch: Operand| repeated_rows(node, batch, beams);
    let model = match node.int("model_type")?.unwrap_or(0) {
        0 => {
            node.only_int("decoder_start_token_id", -1)?;
            Model::decoder(node, marks.pad, MASK, &mut rows)?
        }
        1 => {
            let start = node.int("decoder_start_token_id")?;
            let start = start.ok_or_else(|| LowerError::MissingAttribute("decoder_start_token_id".to_string()))?;
            if node.has("init_decoder") {
                return Err(node.refuse("attribute `init_decoder` with `model_type` = 1"));
            }
            Model::encoder_decoder(node, [marks.pad, start], MASK, &mut rows)?
        }
        other => return Err(node.refuse(format!("attribute `model_type` = {other}"))),
    };
    let changes = ScoreChanges::of(node, &SCORES, (marks.end, 1.0), &mut rows)?;
    found(node, [beams, Operand::Absent], Beams { model, changes, marks, early })
}

/// What only a processor of scores reads, which is refused, and what only outputs need that are.
const SPEECH_TOKENS: [&str; 6] = [
    "translate_token_id",
    "transcribe_token_id",
    "start_of_lm_token_id",
    "no_speech_token_id",
    "no_timestamps_token_id",
    "beginning_timestamp_token_id",
];

pub(super) fn speech(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(15)?;
    node.refuse_inputs(&[(MASK, "attention_mask"), (12, "cross_qk_layer_head"), (13, "extra_decoding_ids")])?;
    node.refuse_outputs(&[(3, "cross_qk"), (4, "non_speech_probs")])?;
    node.only_int("model_type", 2)?;
    node.only_int("decoder_output_cross_qk", 0)?;
    if node.has("init_decoder") {
        return Err(node.refuse("attribute `init_decoder`"));
    }
    match node.input(11) {
        Operand::Absent => {}
        processor
            if node.fact(&processor).and_then(|fact| fact.elements_as_integers()).is_some_and(|kind| kind == [0]) => {}
        _ => return Err(node.refuse("input `logits_processor` other than 0")),
    }
    for name in SPEECH_TOKENS {
        node.int(name)?;
    }
    let marks = marks(node)?;
    let early = node.flag("early_stopping", false)?;
    let beams = count(node, 3)?;
    let mut rows = |node: &mut Lowering<'_, '_>, batch: Operand| repeated_rows(node, batch, beams);
    let start = node.int("decoder_start_token_id")?.unwrap_or(-1);
    if start < 0 && node.input(10) == Operand::Absent {
        return Err(LowerError::MissingAttribute("decoder_start_token_id".to_string()));
    }
    let model = Model::speech(node, start, 10, &mut rows)?;
    let changes = ScoreChanges::of(node, &SCORES, (marks.end, 1.0), &mut rows)?;
    let temperature = positive_or_one(node, node.input(14))?;
    found(node, [beams, temperature], Beams { model, changes, marks, early })
}

/// The results of a search.
/// A temperature that scores are divided by: 1 in place of one that is not positive, which ONNX Runtime leaves out.
fn positive_or_one(node: &mut Lowering<'_, '_>, temperature: Operand) -> Result<Operand, LowerError> {
    if temperature == Operand::Absent {
        return Ok(temperature);
    }
    let temperature = node.cast(temperature, DType::F32)?;
    let [zero, one] = [0f32, 1.0].map(|number| node.constant(Tensor::scalar(number)));
    let positive = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![temperature, zero])?;
    node.emit_one(Select {}, vec![positive, temperature, one])
}

fn found(node: &mut Lowering<'_, '_>, [beams, temperature]: [Operand; 2], search: Beams) -> Lowered {
    let longest = count(node, 1)?;
    let trips = room(node, longest, search.model.tokens)?;
    let penalty = node.cast(node.input(PENALTY), DType::F32)?;
    let settings = Settings { beams, longest, penalty, temperature };
    let carried = search.begin(node, settings)?;
    let (carried, collected) = search.run(node, settings, carried, trips)?;
    search.finish(node, settings, carried, collected, trips)
}

impl Beams {
    /// What the first iteration takes.
    fn begin(&self, node: &mut Lowering<'_, '_>, settings: Settings) -> Result<Carried, LowerError> {
        let tokens = self.model.tokens;
        let rows = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![tokens])?;
        let batch = node.binary(BinaryFunction::Div, rows, settings.beams)?;
        let table = node.emit_one(Concat { axis: 0 }, vec![batch, settings.beams])?;
        let place = node.counted(settings.beams)?;
        let [zero, one] = [0i64, 1].map(|number| node.constant(Tensor::scalar(number)));
        let first = node.emit_one(Compare { relation: CompareRelation::Less }, vec![place, one])?;
        let [none, worst, nothing] =
            [NO_BEAM, f32::NEG_INFINITY, 0.0].map(|score| node.constant(Tensor::scalar(score)));
        let sums = node.emit_one(Select {}, vec![first, nothing, none])?;
        let cube = node.emit_one(Concat { axis: 0 }, vec![table, settings.longest])?;
        let pad = node.constant(Tensor::scalar(self.marks.pad));
        let open = node.constant(Tensor::scalar_bool(false));
        let mut expanded = |value: Operand, shape: Operand| node.emit_one(Expand {}, vec![value, shape]);
        Ok(Carried {
            tokens,
            sums: expanded(sums, table)?,
            texts: expanded(pad, cube)?,
            scores: expanded(worst, table)?,
            count: expanded(zero, batch)?,
            done: expanded(open, batch)?,
        })
    }

    /// All iterations: what they leave, and the scores of each where the node gives them.
    fn run(
        &self,
        node: &mut Lowering<'_, '_>,
        settings: Settings,
        begin: Carried,
        trips: Operand,
    ) -> Result<(Carried, Vec<Operand>), LowerError> {
        let mut carried = [begin.values().to_vec(), self.model.state.clone()].concat();
        let fixed = self.model.fixed.len();
        let captured = [self.changes.operands(), settings.values().to_vec(), self.model.fixed.clone()].concat();
        let (mut left, mut condition, mut collected) = (trips, Operand::Absent, Vec::new());
        if node.has("init_decoder") || self.model.first.is_some() {
            let number = node.constant(Tensor::scalar(0i64));
            let first = Iteration { number, carried: &carried, captured: &captured };
            let next = self.iterate(node, ("init_decoder", fixed), first)?;
            (carried, condition) = (next.carried, next.goes_on);
            for scores in next.collected {
                collected.push(node.unsqueezed(scores, &[0])?);
            }
            let one = node.integers(&[1]);
            left = node.binary(BinaryFunction::Sub, trips, one)?;
        }
        let peeled = condition != Operand::Absent;
        let search = CountedLoop { trips: left, condition, carried, captured };
        let mut results = search.emit(node, &mut |node, mut iteration| {
            if peeled {
                let one = node.constant(Tensor::scalar(1i64));
                iteration.number = node.plus(iteration.number, one)?;
            }
            self.iterate(node, ("decoder", fixed), iteration)
        })?;
        if node.output_used(2) {
            collected.extend(results.pop());
        }
        let carried = Carried::of(node, &results)?;
        Ok((carried, collected))
    }

    fn iterate(
        &self,
        node: &mut Lowering<'_, '_>,
        (attribute, fixed): (&str, usize),
        iteration: Iteration<'_>,
    ) -> Result<Next, LowerError> {
        let carried = Carried::of(node, iteration.carried)?;
        let state = &iteration.carried[Carried::COUNT..];
        let (captured, fixed) = iteration.captured.split_at(iteration.captured.len() - fixed);
        let (changes, settings) = captured.split_at(captured.len() - Settings::COUNT);
        let settings =
            Settings { beams: settings[0], longest: settings[1], penalty: settings[2], temperature: settings[3] };
        let (logits, present) = match &self.model.first {
            Some((logits, present)) if attribute == "init_decoder" => (*logits, present.clone()),
            _ => self.model.run(node, attribute, [state, fixed])?,
        };
        check_vocabulary(node, logits)?;
        let softmax = Softmax { function: SoftmaxFunction::LogSoftmax, axis: -1, trailing: false };
        let scores = node.emit_one(softmax, vec![logits])?;
        let mut scores = self.changes.applied(node, changes, scores, carried.tokens, iteration.number)?;
        if settings.temperature != Operand::Absent {
            scores = node.binary(BinaryFunction::Div, scores, settings.temperature)?;
        }
        let any = node.integers(&[-1]);
        let column = node.reshaped(carried.sums, &[-1, 1])?;
        let scores = node.plus(scores, column)?;
        let vocabulary = node.extent(&scores, -1, "scores of tokens")?;
        let size = node.integers(&[vocabulary]);
        let table = node.emit_one(Concat { axis: 0 }, vec![any, settings.beams, size])?;
        let table = node.emit_one(Reshape { allow_zero: false }, vec![scores, table])?;
        let (next, chosen, sources) = self.continued(node, (carried, settings), table, vocabulary)?;
        let goes_on = some_not(node, next.done)?;
        let state = self.model.next(node, state, present, [next.tokens, chosen, sources])?;
        let collected = if node.output_used(2) { vec![table] } else { Vec::new() };
        Ok(Next { goes_on, carried: [next.values().to_vec(), state].concat(), collected })
    }

    /// What is carried on of `table: [batch, beams, v]`, the scores of continuations; the tokens that follow, and the row that
    /// each follows: `[batch * beams]`.
    fn continued(
        &self,
        node: &mut Lowering<'_, '_>,
        (carried, settings): (Carried, Settings),
        table: Operand,
        vocabulary: i64,
    ) -> Result<(Carried, Operand, Operand), LowerError> {
        let two = node.integers(&[2]);
        let wide = node.binary(BinaryFunction::Mul, settings.beams, two)?;
        let flat = node.reshaped(table, &[0, -1])?;
        let best = node.emit(TopK { axis: 1, largest: true, sorted: true }, vec![flat, wide])?;
        let vocabulary = node.constant(Tensor::scalar(vocabulary));
        let tokens = node.binary(BinaryFunction::Remainder, best[1], vocabulary)?;
        let beams = node.binary(BinaryFunction::Div, best[1], vocabulary)?;
        let end = node.constant(Tensor::scalar(self.marks.end));
        let ends = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![tokens, end])?;
        let ended = self.ended(node, (carried, settings), [best[0], beams, ends])?;
        // Those that end come behind all others.
        let place = node.counted(wide)?;
        let behind = node.plus(place, wide)?;
        let order = node.emit_one(Select {}, vec![ends, behind, place])?;
        let going = node.emit(TopK { axis: 1, largest: false, sorted: true }, vec![order, settings.beams])?;
        let mut picked = Vec::new();
        for values in [best[0], tokens, beams] {
            picked.push(node.emit_one(GatherElements { axis: 1 }, vec![values, going[1]])?);
        }
        // Of texts that were done before padding is carried on.
        let done = node.unsqueezed(carried.done, &[1])?;
        let pad = node.constant(Tensor::scalar(self.marks.pad));
        let nothing = node.constant(Tensor::scalar(0f32));
        let first = node.constant(Tensor::scalar(0i64));
        let sums = node.emit_one(Select {}, vec![done, nothing, picked[0]])?;
        let chosen = node.emit_one(Select {}, vec![done, pad, picked[1]])?;
        let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![sums])?;
        let base = node.counted(batch)?;
        let base = node.binary(BinaryFunction::Mul, base, settings.beams)?;
        let base = node.unsqueezed(base, &[1])?;
        let sources = node.plus(picked[2], base)?;
        let sources = node.emit_one(Select {}, vec![done, first, sources])?;
        let (chosen, sources) = (node.reshaped(chosen, &[-1])?, node.reshaped(sources, &[-1])?);
        let tokens = node.emit_one(Gather { axis: 0 }, vec![carried.tokens, sources])?;
        let tokens = with_column(node, tokens, chosen)?;
        Ok((Carried { tokens, sums, ..ended }, chosen, sources))
    }

    /// Candidates with those continuations that end a text: of `[batch, 2 * beams]` sums, beams, and which end.
    fn ended(
        &self,
        node: &mut Lowering<'_, '_>,
        (carried, settings): (Carried, Settings),
        [sums, beams, ends]: [Operand; 3],
    ) -> Result<Carried, LowerError> {
        let [zero, axis] = [0, 1].map(|number| node.integers(&[number]));
        let mut firsts = Vec::new();
        for values in [sums, beams, ends] {
            firsts.push(node.emit_one(Slice {}, vec![values, zero, settings.beams, axis])?);
        }
        let done = node.unsqueezed(carried.done, &[1])?;
        let open = node.emit_one(not(), vec![done])?;
        let counts = node.binary(BinaryFunction::And, firsts[2], open)?;
        let any = node.integers(&[-1]);
        let length = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![carried.tokens])?;
        let rows = node.emit_one(Concat { axis: 0 }, vec![any, settings.beams, length])?;
        let texts = node.emit_one(Reshape { allow_zero: false }, vec![carried.tokens, rows])?;
        let places = node.unsqueezed(firsts[1], &[2])?;
        let texts = node.emit_one(GatherNd { batch_dims: 1 }, vec![texts, places])?;
        let scores = by_length(node, firsts[0], length, settings.penalty)?;
        let merged = self.merged(node, (carried, settings), [texts, scores, counts])?;
        // Nothing that goes on can be better than the worst candidate, or nothing that goes on is waited for.
        let full = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![merged.count, settings.beams])?;
        let mut ends = full;
        if !self.early {
            let worst = node.taken(merged.scores, 1, -1)?;
            let best = node.taken(sums, 1, 0)?;
            let best = by_length(node, best, length, settings.penalty)?;
            let none = node.emit_one(Compare { relation: CompareRelation::GreaterOrEqual }, vec![worst, best])?;
            ends = node.binary(BinaryFunction::And, full, none)?;
        }
        let done = node.binary(BinaryFunction::Or, carried.done, ends)?;
        Ok(Carried { done, ..merged })
    }

    /// The best of the candidates and of `texts: [batch, beams, t]` with scores, of which those count that `counts` says.
    fn merged(
        &self,
        node: &mut Lowering<'_, '_>,
        (carried, settings): (Carried, Settings),
        [texts, scores, counts]: [Operand; 3],
    ) -> Result<Carried, LowerError> {
        let worst = node.constant(Tensor::scalar(f32::NEG_INFINITY));
        let scores = node.emit_one(Select {}, vec![counts, scores, worst])?;
        let pad = node.constant(Tensor::scalar(self.marks.pad));
        let texts = padded(node, texts, settings.longest, [2, 3], pad)?;
        let texts = node.emit_one(Concat { axis: 1 }, vec![carried.texts, texts])?;
        let scores = node.emit_one(Concat { axis: 1 }, vec![carried.scores, scores])?;
        let best = node.emit(TopK { axis: 1, largest: true, sorted: true }, vec![scores, settings.beams])?;
        let places = node.unsqueezed(best[1], &[2])?;
        let texts = node.emit_one(GatherNd { batch_dims: 1 }, vec![texts, places])?;
        let counts = node.cast(counts, DType::I64)?;
        let axis = node.integers(&[1]);
        let sum = Reduce { function: ReduceFunction::Sum, keep_axes: false, keep_without_axes: false };
        let more = node.emit_one(sum, vec![counts, axis])?;
        let count = node.plus(carried.count, more)?;
        let count = node.binary(BinaryFunction::Min, count, settings.beams)?;
        Ok(Carried { texts, scores: best[0], count, ..carried })
    }

    /// The results: of texts that are not done the beams are candidates, too.
    fn finish(
        &self,
        node: &mut Lowering<'_, '_>,
        settings: Settings,
        carried: Carried,
        collected: Vec<Operand>,
        trips: Operand,
    ) -> Lowered {
        let any = node.integers(&[-1]);
        let length = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![carried.tokens])?;
        let rows = node.emit_one(Concat { axis: 0 }, vec![any, settings.beams, length])?;
        let texts = node.emit_one(Reshape { allow_zero: false }, vec![carried.tokens, rows])?;
        let scores = by_length(node, carried.sums, length, settings.penalty)?;
        let open = node.emit_one(not(), vec![carried.done])?;
        let open = node.unsqueezed(open, &[1])?;
        let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![scores])?;
        let counts = node.emit_one(Expand {}, vec![open, shape])?;
        let merged = self.merged(node, (carried, settings), [texts, scores, counts])?;
        // A place that there is not is an error when it runs.
        let wanted = count(node, 4)?;
        let places = node.counted(wanted)?;
        let texts = node.emit_one(Gather { axis: 1 }, vec![merged.texts, places])?;
        let scores = node.emit_one(Gather { axis: 1 }, vec![merged.scores, places])?;
        let mut results = vec![as_tokens(node, texts)?, scores];
        if let [_, ..] = collected[..] {
            let scores = node.emit_one(Concat { axis: 0 }, collected)?;
            let nothing = node.constant(Tensor::scalar(0f32));
            results.push(padded(node, scores, trips, [0, 4], nothing)?);
        }
        Ok(results)
    }
}

impl Carried {
    const COUNT: usize = 6;

    fn values(&self) -> [Operand; Carried::COUNT] {
        [self.tokens, self.sums, self.texts, self.scores, self.count, self.done]
    }

    fn of(node: &Lowering<'_, '_>, values: &[Operand]) -> Result<Carried, LowerError> {
        match *values {
            [tokens, sums, texts, scores, count, done, ..] => Ok(Carried { tokens, sums, texts, scores, count, done }),
            _ => Err(node.refuse("a search without its state")),
        }
    }
}

impl Settings {
    const COUNT: usize = 4;

    fn values(&self) -> [Operand; Settings::COUNT] {
        [self.beams, self.longest, self.penalty, self.temperature]
    }
}

fn not() -> Unary {
    Unary { function: UnaryFunction::Not }
}

/// Each row so many times, one after the other.
fn repeated_rows(node: &mut Lowering<'_, '_>, rows: Operand, times: Operand) -> Result<Operand, LowerError> {
    let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![rows])?;
    let count = node.binary(BinaryFunction::Mul, batch, times)?;
    let places = node.counted(count)?;
    let sources = node.binary(BinaryFunction::Div, places, times)?;
    node.emit_one(Gather { axis: 0 }, vec![rows, sources])
}

/// Sums divided by `length ^ penalty`.
fn by_length(
    node: &mut Lowering<'_, '_>,
    sums: Operand,
    length: Operand,
    penalty: Operand,
) -> Result<Operand, LowerError> {
    let mut length = node.cast(length, DType::F32)?;
    if penalty != Operand::Absent {
        length = node.binary(BinaryFunction::Pow, length, penalty)?;
    }
    node.binary(BinaryFunction::Div, sums, length)
}
