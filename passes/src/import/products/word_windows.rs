//! Words embedded by windows over their characters: `WordConvEmbedding` of `com.microsoft`.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BinaryFunction, Compare, CompareRelation, Concat, Gather, Reduce, ReduceFunction, Select, ShapeOf, Slice, Unary,
    UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Embeddings of words.
pub const ROWS: &[Row] = &[Row { domain: "com.microsoft", name: "WordConvEmbedding", since: 1, lower: embedded }];

/// Characters of a window, each of which becomes a step.
const MOST_CHARACTERS: i64 = 64;

/// The greatest `tanh(w * window + b)` over the windows that begin in a word, of `words: [n, l]` (characters above 0, then zeros),
/// `w: [f, 1, k, e]`, `b: [f]` and the characters' embeddings `[v, e]`; a word shorter than a window has one, one without
/// characters gives zeros.
fn embedded(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(4)?;
    let [words, weights, bias, table] = [0, 1, 2, 3].map(|input| node.required(input));
    let (words, weights, bias, table) = (words?, weights?, bias?, table?);
    let (filters, window) = (node.extent(&weights, 0, "filters")?, node.extent(&weights, 2, "windows of a word")?);
    let size = node.extent(&weights, 3, "embeddings of characters")?;
    if window > MOST_CHARACTERS {
        return Err(node.refuse(format!("windows of {window} characters")));
    }
    for (name, found) in [("embedding_size", filters), ("conv_window_size", window), ("char_embedding_size", size)] {
        node.only_int(name, found)?;
    }
    if node.rank(&words)? != 2 {
        return Err(node.refuse("words of another rank than 2"));
    }
    let characters = node.emit_one(Gather { axis: 0 }, vec![table, words])?;
    let length = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![words])?;
    let [zero, one, extent] = [0, 1, window].map(|number| node.constant(Tensor::scalar(number)));
    let less = node.binary(BinaryFunction::Sub, length, extent)?;
    let count = node.plus(less, one)?;
    // Characters of a window are side by side in a row, as the weights of a filter are.
    let mut windows = Vec::new();
    for offset in 0..window {
        let start = node.integers(&[offset]);
        let end = node.plus(count, start)?;
        let axis = node.integers(&[1]);
        windows.push(node.emit_one(Slice {}, vec![characters, start, end, axis])?);
    }
    let windows = node.emit_one(Concat { axis: 2 }, windows)?;
    let flat = node.reshaped(weights, &[filters, -1])?;
    let sums = node.product(windows, flat, true)?;
    let sums = node.plus(sums, bias)?;
    let values = node.emit_one(Unary { function: UnaryFunction::Tanh }, vec![sums])?;
    let none = node.constant(Tensor::scalar(0i32));
    let there = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![words, none])?;
    let there = node.cast(there, DType::I64)?;
    let axis = node.integers(&[1]);
    let sum = Reduce { function: ReduceFunction::Sum, keep_axes: true, keep_without_axes: false };
    let lengths = node.emit_one(sum, vec![there, axis])?;
    let begins = node.binary(BinaryFunction::Sub, lengths, extent)?;
    let begins = node.binary(BinaryFunction::Max, begins, zero)?;
    let places = node.counted(count)?;
    let seen = node.emit_one(Compare { relation: CompareRelation::LessOrEqual }, vec![places, begins])?;
    let seen = node.unsqueezed(seen, &[2])?;
    let least = node.constant(Tensor::scalar(f32::MIN));
    let values = node.emit_one(Select {}, vec![seen, values, least])?;
    let greatest = Reduce { function: ReduceFunction::Max, keep_axes: false, keep_without_axes: false };
    let greatest = node.emit_one(greatest, vec![values, axis])?;
    let first = node.sliced(words, 1, [0, 1, 1])?;
    let some = node.emit_one(Compare { relation: CompareRelation::Greater }, vec![first, none])?;
    let nothing = node.constant(Tensor::scalar(0f32));
    Ok(vec![node.emit_one(Select {}, vec![some, greatest, nothing])?])
}
