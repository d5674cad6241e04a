//! Searches for texts of `com.microsoft`: `BeamSearch`, `WhisperBeamSearch`, `GreedySearch` and `Sampling`, the loops around the graphs of a language model, as
//! ONNX Runtime computes them on a processor.
//!
//! A search becomes a loop that carries tokens and the model's past. Behind a text that has ended are tokens of padding.

mod beams;
mod drawing;
mod greedy;
mod model;
mod scores;

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, Concat, Gather, Pad, PadMode, ShapeOf};

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Searches of ONNX Runtime.
pub const ROWS: &[Row] = &[
    row("BeamSearch", beams::search),
    row("GreedySearch", greedy::search),
    row("Sampling", greedy::sampling),
    row("WhisperBeamSearch", beams::speech),
];

/// Tokens with a meaning of their own.
struct Marks {
    end: i64,
    pad: i64,
}

fn marks(node: &mut Lowering<'_, '_>) -> Result<Marks, LowerError> {
    let mut required = |name: &str| node.int(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()));
    Ok(Marks { end: required("eos_token_id")?, pad: required("pad_token_id")? })
}

/// A required input of one element, as i64 `[1]`.
fn count(node: &mut Lowering<'_, '_>, input: usize) -> Result<Operand, LowerError> {
    let given = node.required(input)?;
    let given = node.cast(given, DType::I64)?;
    node.reshaped(given, &[1])
}

/// Tokens that are to follow those of `tokens: [rows, t]`: `[1]`; an error when it runs where there are none.
fn room(node: &mut Lowering<'_, '_>, longest: Operand, tokens: Operand) -> Result<Operand, LowerError> {
    let length = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![tokens])?;
    let room = node.binary(BinaryFunction::Sub, longest, length)?;
    let steps = node.counted(room)?;
    // There is no first of no steps.
    let first = node.integers(&[0]);
    let first = node.emit_one(Gather { axis: 0 }, vec![steps, first])?;
    node.plus(room, first)
}

/// `[.., t]` with padding behind it: `[.., longest]`.
fn padded(
    node: &mut Lowering<'_, '_>,
    tokens: Operand,
    longest: Operand,
    [axis, rank]: [i64; 2],
    pad: Operand,
) -> Result<Operand, LowerError> {
    let length = node.emit_one(ShapeOf { start: axis, end: Some(axis + 1) }, vec![tokens])?;
    let missing = node.binary(BinaryFunction::Sub, longest, length)?;
    let before = node.integers(&vec![0; (rank + axis) as usize]);
    let after = node.integers(&vec![0; (rank - axis - 1) as usize]);
    let pads = node.emit_one(Concat { axis: 0 }, vec![before, missing, after])?;
    node.emit_one(Pad { mode: PadMode::Constant }, vec![tokens, pads, pad])
}

/// Refuse a vocabulary of another size than that of the scores, which ONNX Runtime would misread.
fn check_vocabulary(node: &mut Lowering<'_, '_>, scores: Operand) -> Result<(), LowerError> {
    let vocabulary = node.extent(&scores, -1, "scores of tokens")?;
    match node.int("vocab_size")? {
        Some(stated) if stated > 0 && stated != vocabulary => {
            Err(node.refuse(format!("attribute `vocab_size` = {stated} with scores of {vocabulary} tokens")))
        }
        Some(_) | None => Ok(()),
    }
}
