//! The language model of a search: the graphs that ONNX Runtime's converter makes of GPT-2, of T5 and of Whisper.
//!
//! A decoder alone takes tokens, their positions, a mask and the past (keys and values as `[2, n, h, t, d]`) of each layer, and
//! gives the scores of next tokens and the present. A decoder behind an encoder takes tokens, the encoder's mask, its own past
//! (keys, then values, of each layer) and the keys and values that the encoder gave. An encoder of sounds reads the first tokens, too,
//! and gives the scores of the next and their present.

use crate::import::lowering::{GraphPorts, LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::ops::{
    BinaryFunction, Cast, Compare, CompareRelation, Concat, Cumulative, CumulativeFunction, Expand, Gather, Reduce,
    ReduceFunction, Select, ShapeOf,
};
use ipuc_formats::tensor::Tensor;

/// Makes rows of the batch rows of the search.
pub(super) type Rows<'r> = &'r mut dyn FnMut(&mut Lowering<'_, '_>, Operand) -> Result<Operand, LowerError>;

/// How the graphs of a search are called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Decoder,
    EncoderDecoder,
    /// A decoder behind an encoder of sounds, which reads the first tokens, too.
    Speech,
}

/// A language model, and what it reads next.
pub(super) struct Model {
    family: Family,
    /// A decoder behind an encoder reads all tokens each time: its graph does not say that it reads one.
    reads_all: bool,
    /// What an iteration changes. Of a decoder alone: tokens, positions, the next position, a mask, and the past; of one behind an
    /// encoder: tokens, and the past.
    pub state: Vec<Operand>,
    /// What stays: the encoder's mask, then its keys and values.
    pub fixed: Vec<Operand>,
    /// Tokens that are there: `[rows, t]`, i64.
    pub tokens: Operand,
    /// Scores of the first token, and the present behind the tokens that are there, where the encoder gives them.
    pub first: Option<(Operand, Vec<Operand>)>,
}

/// Values of [`Model::state`] before the past.
fn before_past(family: Family) -> usize {
    match family {
        Family::Decoder => 4,
        Family::EncoderDecoder | Family::Speech => 1,
    }
}

impl Model {
    /// A decoder that goes on from the prompts of input 0.
    pub(super) fn decoder(
        node: &mut Lowering<'_, '_>,
        pad: i64,
        mask: usize,
        rows: Rows<'_>,
    ) -> Result<Model, LowerError> {
        let ports = ports(node, "decoder")?;
        check_names(node, &ports, &["input_ids", "position_ids", "attention_mask"], "past")?;
        let layers = &ports.inputs[3..];
        if ports.outputs != 1 + layers.len() {
            return Err(node.refuse(format!("attribute `decoder` with {} outputs", ports.outputs)));
        }
        let prompts = node.required(0)?;
        let ids = node.cast(prompts, DType::I64)?;
        let pad = node.constant(Tensor::scalar(pad));
        let padding = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![ids, pad])?;
        let [zero, one] = [0i64, 1].map(|number| node.constant(Tensor::scalar(number)));
        let own = node.emit_one(Select {}, vec![padding, zero, one])?;
        let mask = match node.input(mask) {
            Operand::Absent => own,
            given => given,
        };
        // Positions count the tokens that are no padding, whatever the mask says.
        let axis = node.constant(Tensor::scalar(1i64));
        let before = Cumulative { function: CumulativeFunction::Sum, exclusive: true, reverse: false };
        let before = node.emit_one(before, vec![own, axis])?;
        let positions = node.binary(BinaryFunction::Mul, before, own)?;
        let axis = node.integers(&[1]);
        let sum = Reduce { function: ReduceFunction::Sum, keep_axes: true, keep_without_axes: false };
        let next = node.emit_one(sum, vec![own, axis])?;
        let mut state = Vec::new();
        for value in [ids, positions, next, mask] {
            let value = rows(node, value)?;
            state.push(node.cast(value, DType::I32)?);
        }
        let tokens = rows(node, ids)?;
        for (name, kind) in layers {
            state.push(empty_past(node, tokens, (name, kind), [2, 4])?);
        }
        Ok(Model { family: Family::Decoder, reads_all: false, state, fixed: Vec::new(), tokens, first: None })
    }

    /// A decoder behind an encoder of input 0, whose texts begin with `start`.
    pub(super) fn encoder_decoder(
        node: &mut Lowering<'_, '_>,
        [pad, start]: [i64; 2],
        mask: usize,
        rows: Rows<'_>,
    ) -> Result<Model, LowerError> {
        let encoder = ports(node, "encoder")?;
        check_names(node, &encoder, &["encoder_input_ids", "encoder_attention_mask"], "")?;
        let decoder = ports(node, "decoder")?;
        check_names(node, &decoder, &["input_ids", "encoder_attention_mask"], "past")?;
        let layers = decoder.outputs.saturating_sub(1);
        if decoder.inputs.len() != 2 + layers + encoder.outputs {
            let found = format!("{} inputs behind an encoder with {} outputs", decoder.inputs.len(), encoder.outputs);
            return Err(node.refuse(format!("attribute `decoder` with {found}")));
        }
        let sources = node.required(0)?;
        if node.dtype(&sources)? != DType::I32 {
            return Err(node.refuse("input `input_ids` of another type than i32"));
        }
        let mask = match node.input(mask) {
            Operand::Absent => {
                let pad = node.constant(Tensor::scalar(pad as i32));
                let padding = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![sources, pad])?;
                let [zero, one] = [0i32, 1].map(|number| node.constant(Tensor::scalar(number)));
                node.emit_one(Select {}, vec![padding, zero, one])?
            }
            given => node.cast(given, DType::I32)?,
        };
        let keys = node.in_place("encoder", &[sources, mask])?;
        let mut fixed = Vec::new();
        for value in std::iter::once(mask).chain(keys) {
            fixed.push(rows(node, value)?);
        }
        let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![sources])?;
        let one = node.integers(&[1]);
        let shape = node.emit_one(Concat { axis: 0 }, vec![batch, one])?;
        let start = node.constant(Tensor::scalar(start));
        let begins = node.emit_one(Expand {}, vec![start, shape])?;
        let tokens = rows(node, begins)?;
        let mut state = vec![node.cast(tokens, DType::I32)?];
        for (name, kind) in &decoder.inputs[2..2 + layers] {
            state.push(empty_past(node, tokens, (name, kind), [1, 3])?);
        }
        let reads_all = match &decoder.inputs[0].1 {
            Type::Tensor { shape: Shape::Ranked(dims), .. } => dims.get(1).and_then(Dim::as_known) != Some(1),
            _ => true,
        };
        Ok(Model { family: Family::EncoderDecoder, reads_all, state, fixed, tokens, first: None })
    }

    /// A decoder behind an encoder of the features of input 0 and of the first tokens, which are those of input `first`, or `start`.
    pub(super) fn speech(
        node: &mut Lowering<'_, '_>,
        start: i64,
        first: usize,
        rows: Rows<'_>,
    ) -> Result<Model, LowerError> {
        let (encoder, decoder) = (ports(node, "encoder")?, ports(node, "decoder")?);
        let tokens: Vec<Option<DType>> =
            encoder.inputs.iter().skip(1).map(|(_, kind)| kind.as_tensor().map(|(dtype, _)| dtype)).collect();
        if tokens != [Some(DType::I32)] {
            return Err(node.refuse("attribute `encoder` with other inputs than features and tokens"));
        }
        let own = decoder.outputs.saturating_sub(1);
        let hidden = usize::from(decoder.inputs.get(1).is_some_and(|(name, _)| name == "encoder_hidden_states"));
        if decoder.inputs.len() != 1 + hidden + 2 * own || encoder.outputs != 2 + 2 * own {
            let found = format!("{} inputs behind an encoder with {} outputs", decoder.inputs.len(), encoder.outputs);
            return Err(node.refuse(format!("attribute `decoder` with {found}")));
        }
        let past = &decoder.inputs[1 + hidden..];
        if let Some((name, _)) =
            past.iter().find(|(name, _)| !name.starts_with("past_") || name.contains("sequence_length"))
        {
            return Err(node.refuse(format!("input `{name}` of a graph of the search")));
        }
        let features = node.required(0)?;
        let begins = match node.input(first) {
            Operand::Absent => {
                let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![features])?;
                let one = node.integers(&[1]);
                let shape = node.emit_one(Concat { axis: 0 }, vec![batch, one])?;
                let start = node.constant(Tensor::scalar(start as i32));
                node.emit_one(Expand {}, vec![start, shape])?
            }
            given => given,
        };
        let mut results = node.in_place("encoder", &[features, begins])?;
        let mut keys = results.split_off(2 + own);
        let present = results.split_off(2);
        // What the encoder gives is of the batch; beams are rows of it.
        let logits = node.cast(results[0], DType::F32)?;
        let scores = node.taken(logits, 1, -1)?;
        let scores = rows(node, scores)?;
        let present = present.into_iter().map(|layer| rows(node, layer)).collect::<Result<Vec<_>, _>>()?;
        if hidden == 1 {
            keys.insert(0, results[1]);
        }
        let fixed = keys.into_iter().map(|layer| rows(node, layer)).collect::<Result<Vec<_>, _>>()?;
        let tokens = node.cast(begins, DType::I64)?;
        let tokens = rows(node, tokens)?;
        let mut state = vec![node.cast(tokens, DType::I32)?];
        state.extend(&present);
        let first = Some((scores, present));
        Ok(Model { family: Family::Speech, reads_all: false, state, fixed, tokens, first })
    }

    /// Scores of the next token, `[rows, v]` (f32), and the present, by the graph of this attribute.
    pub(super) fn run(
        &self,
        node: &mut Lowering<'_, '_>,
        attribute: &str,
        [state, fixed]: [&[Operand]; 2],
    ) -> Result<(Operand, Vec<Operand>), LowerError> {
        let inputs: Vec<Operand> = match (self.family, state, fixed) {
            (Family::Decoder, [ids, positions, _, mask, past @ ..], _) => {
                [&[*ids, *positions, *mask][..], past].concat()
            }
            (Family::EncoderDecoder, [ids, past @ ..], [mask, keys @ ..]) => [&[*ids, *mask][..], past, keys].concat(),
            // The states of the encoder, where the decoder reads them, are one more than the keys.
            (Family::Speech, [ids, past @ ..], fixed) => {
                let (hidden, keys) = fixed.split_at(fixed.len() - past.len());
                [&[*ids][..], hidden, past, keys].concat()
            }
            _ => return Err(node.refuse("a search without its state")),
        };
        let mut outputs = node.in_place(attribute, &inputs)?;
        if outputs.is_empty() {
            return Err(node.refuse(format!("attribute `{attribute}` without outputs")));
        }
        let present = outputs.split_off(1);
        if present.len() != state.len() - before_past(self.family) {
            return Err(node.refuse(format!("attribute `{attribute}` with {} outputs", present.len() + 1)));
        }
        let logits = node.cast(outputs[0], DType::F32)?;
        Ok((node.taken(logits, 1, -1)?, present))
    }

    /// The state behind `tokens: [rows, t]` (i64), whose last are `column: [rows]`, and each of which follows the row of the
    /// present that `sources: [rows]` says (absent: its own).
    pub(super) fn next(
        &self,
        node: &mut Lowering<'_, '_>,
        state: &[Operand],
        present: Vec<Operand>,
        [tokens, column, sources]: [Operand; 3],
    ) -> Result<Vec<Operand>, LowerError> {
        let read = if self.reads_all { tokens } else { node.unsqueezed(column, &[1])? };
        let mut next = vec![node.cast(read, DType::I32)?];
        let axis = match self.family {
            Family::Decoder => {
                let (position, mask) = (state[2], state[3]);
                let one = node.constant(Tensor::scalar(1i32));
                let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![position])?;
                let ones = node.emit_one(Expand {}, vec![one, shape])?;
                let mask = node.emit_one(Concat { axis: 1 }, vec![mask, ones])?;
                next.extend([position, node.plus(position, one)?, mask]);
                1
            }
            Family::EncoderDecoder | Family::Speech => 0,
        };
        for layer in present {
            next.push(match sources {
                Operand::Absent => layer,
                sources => node.emit_one(Gather { axis }, vec![layer, sources])?,
            });
        }
        Ok(next)
    }
}

fn ports(node: &mut Lowering<'_, '_>, attribute: &str) -> Result<GraphPorts, LowerError> {
    node.graph_ports(attribute)?.ok_or_else(|| LowerError::MissingAttribute(attribute.to_string()))
}

/// Inputs of a graph must have these names, and those behind them one that begins with `rest` (empty: there are none).
fn check_names(node: &Lowering<'_, '_>, ports: &GraphPorts, expected: &[&str], rest: &str) -> Result<(), LowerError> {
    for (index, (name, kind)) in ports.inputs.iter().enumerate() {
        let fits = match expected.get(index) {
            Some(expected) => name == expected && matches!(kind, Type::Tensor { dtype: DType::I32, .. }),
            None => !rest.is_empty() && name.starts_with(rest) && !name.contains("sequence_length"),
        };
        if !fits {
            return Err(node.refuse(format!("input `{name}` of a graph of the search, of type {kind},")));
        }
    }
    match expected.get(ports.inputs.len()) {
        Some(missing) => Err(node.refuse(format!("a graph of the search without input `{missing}`"))),
        None => Ok(()),
    }
}

/// A past without rows, as a graph's input says: its heads and their size are at `axes`, the rows of `tokens` before the heads.
fn empty_past(
    node: &mut Lowering<'_, '_>,
    tokens: Operand,
    (name, kind): (&str, &Type),
    axes: [usize; 2],
) -> Result<Operand, LowerError> {
    let unknown = format!("input `{name}` of a graph of the search, of type {kind},");
    let Type::Tensor { dtype, shape: Shape::Ranked(dims) } = kind else { return Err(node.refuse(unknown)) };
    let extent = |axis: usize| dims.get(axis).and_then(|dim| usize::try_from(dim.as_known()?).ok());
    let (Some(heads), Some(size)) = (extent(axes[0]), extent(axes[1])) else { return Err(node.refuse(unknown)) };
    if dims.len() != axes[1] + 1 {
        return Err(node.refuse(unknown));
    }
    let mut shape = vec![1; dims.len()];
    (shape[axes[0]], shape[axes[1] - 1], shape[axes[1]]) = (heads, 0, size);
    let empty = node.constant(Tensor::zeros(*dtype, &shape)?);
    let rows = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![tokens])?;
    let behind = node.integers(&[1, 1, 1]);
    let before = node.integers(&vec![2; axes[0] - 1]);
    let shape = node.emit_one(Concat { axis: 0 }, vec![before, rows, behind])?;
    node.emit_one(Expand {}, vec![empty, shape])
}

/// `[rows, t]` with a column behind it.
pub(super) fn with_column(
    node: &mut Lowering<'_, '_>,
    tokens: Operand,
    column: Operand,
) -> Result<Operand, LowerError> {
    let column = node.unsqueezed(column, &[1])?;
    node.emit_one(Concat { axis: 1 }, vec![tokens, column])
}

/// As i32.
pub(super) fn as_tokens(node: &mut Lowering<'_, '_>, tokens: Operand) -> Result<Operand, LowerError> {
    node.emit_one(Cast::to(DType::I32), vec![tokens])
}
