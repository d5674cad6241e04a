//! Elements that go elsewhere, of `com.microsoft`: `ExpandDims`, `GatherND`, `Pad`, `Range`, `Trilu`, `UnfoldTensor`, `Unique`, and what is
//! composed of such: `CDist`, `GridSample`, `Rfft`, `Irfft`, as ONNX Runtime 1.31 defines them.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BinaryFunction, FourierTransform, Gather, GatherNd, GridPadding, GridSample, Pad, PadMode, Range, Reduce,
    ReduceFunction, ResizeMode, Trilu, Unary, UnaryFunction, Unique, Unsqueeze, normalize_axis,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Moves of ONNX Runtime.
pub const ROWS: &[Row] = &[
    row("CDist", distances),
    row("ExpandDims", expand_dims),
    row("GatherND", gather_nd),
    row("GridSample", grid_sample),
    row("Irfft", |node| real_transform(node, true)),
    row("Pad", pad),
    row("Range", range),
    row("Rfft", |node| real_transform(node, false)),
    row("Trilu", trilu),
    row("UnfoldTensor", unfold),
    row("Unique", unique),
];

fn expand_dims(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let (x, axis) = (node.required(0)?, node.required(1)?);
    let axis = node.cast(axis, DType::I64)?;
    let axis = node.reshaped(axis, &[1])?;
    node.emit(Unsqueeze {}, vec![x, axis])
}

fn gather_nd(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(GatherNd { batch_dims: 0 }, operands)
}

/// `pads` may be `[2 * n]` or `[1, 2 * n]`.
fn pad(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(3)?;
    let mode = node.keyword("mode")?.unwrap_or(PadMode::Constant);
    let (data, pads) = (node.required(0)?, node.required(1)?);
    let pads = node.reshaped(pads, &[-1])?;
    let mut operands = vec![data, pads];
    if mode == PadMode::Constant && node.input(2) != Operand::Absent {
        let value = node.input(2);
        operands.push(node.reshaped(value, &[])?);
    }
    node.emit(Pad { mode }, operands)
}

/// `delta` is 1 where it is left out. Each may have one axis of extent 1.
fn range(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(3)?;
    let (start, limit) = (node.required(0)?, node.required(1)?);
    let delta = match node.input(2) {
        Operand::Absent => {
            let dtype = node.dtype(&start)?;
            node.scalar(dtype, 1.0)?
        }
        delta => delta,
    };
    let mut operands = Vec::new();
    for operand in [start, limit, delta] {
        operands.push(node.reshaped(operand, &[])?);
    }
    node.emit(Range {}, operands)
}

fn trilu(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let upper = node.flag("upper", true)?;
    let x = node.required(0)?;
    let mut operands = vec![x];
    if node.input(1) != Operand::Absent {
        let diagonal = node.input(1);
        operands.push(node.reshaped(diagonal, &[])?);
    }
    node.emit(Trilu { upper }, operands)
}

/// Values in the order in which they first occur, the place among them of each element, and their counts.
fn unique(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(1)?;
    let x = node.required(0)?;
    let results = node.emit(Unique { axis: None, sorted: false }, vec![x])?;
    Ok(vec![results[0], results[2], results[3]])
}

/// All slices of `size` along an axis, `step` apart, each along a new last axis.
fn unfold(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(1)?;
    let (size, step) = (node.positive("size")?, node.int("step")?.unwrap_or(1));
    if step < 1 {
        return Err(node.refuse(format!("attribute `step` = {step}")));
    }
    let axis = node.int("dim")?.unwrap_or(-1);
    let x = node.required(0)?;
    let rank = node.rank(&x)?;
    let axis = normalize_axis(axis, rank)?;
    let extent = node.extent(&x, axis as i64, "an unfolded axis")?;
    if size > extent {
        return Err(node.refuse(format!("attribute `size` = {size} along an axis of {extent}")));
    }
    let [count, size, step] =
        [(extent - size) / step + 1, size, step].map(|number| node.constant(Tensor::scalar(number)));
    let starts = node.counted(count)?;
    let starts = node.binary(BinaryFunction::Mul, starts, step)?;
    let starts = node.unsqueezed(starts, &[1])?;
    let offsets = node.counted(size)?;
    let places = node.plus(starts, offsets)?;
    let slices = node.emit_one(Gather { axis: axis as i64 }, vec![x, places])?;
    let mut permutation: Vec<i64> = (0..=rank as i64).collect();
    let moved = permutation.remove(axis + 1);
    permutation.push(moved);
    Ok(vec![node.transposed(slices, permutation)?])
}

fn grid_sample(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let mode = match node.text("mode")?.as_deref() {
        None | Some("bilinear") => ResizeMode::Linear,
        Some("nearest") => ResizeMode::Nearest,
        Some("bicubic") => ResizeMode::Cubic,
        Some(other) => return Err(node.refuse(format!("attribute `mode` = \"{other}\""))),
    };
    let padding = node.keyword("padding_mode")?.unwrap_or(GridPadding::Zeros);
    let align_corners = node.flag("align_corners", false)?;
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(GridSample { mode, padding, align_corners }, operands)
}

/// Distances of the rows of `A: [m, k]` to those of `B: [n, k]`: `|a|^2 + |b|^2 - 2 a b`, not below 0, and its root.
fn distances(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let rooted = match node.text("metric")?.as_deref() {
        None | Some("sqeuclidean") => false,
        Some("euclidean") => true,
        Some(other) => return Err(node.refuse(format!("attribute `metric` = \"{other}\""))),
    };
    let operands = [node.required(0)?, node.required(1)?];
    let dtype = node.dtype(&operands[0])?;
    let mut squares = Vec::new();
    for operand in operands {
        let axis = node.integers(&[1]);
        let sum = Reduce { function: ReduceFunction::SumSquare, keep_axes: true, keep_without_axes: false };
        squares.push(node.emit_one(sum, vec![operand, axis])?);
    }
    let columns = node.transposed(squares[1], vec![1, 0])?;
    let product = node.product(operands[0], operands[1], true)?;
    let product = node.times(product, -2.0)?;
    let sum = node.plus(product, squares[0])?;
    let sum = node.plus(sum, columns)?;
    let zero = node.scalar(dtype, 0.0)?;
    let distance = node.binary(BinaryFunction::Max, sum, zero)?;
    if rooted { node.emit(Unary { function: UnaryFunction::Sqrt }, vec![distance]) } else { Ok(vec![distance]) }
}

/// The transform of a real signal along the last axis: `[.., n]` to `[.., n / 2 + 1, 2]`, or back.
fn real_transform(node: &mut Lowering<'_, '_>, inverse: bool) -> Lowered {
    node.at_most_inputs(1)?;
    node.only_int("normalized", 0)?;
    node.only_int("onesided", 1)?;
    node.only_int("signal_ndim", 1)?;
    let x = node.required(0)?;
    if !inverse {
        let axis = node.integers(&[-1]);
        let signal = node.emit_one(Unsqueeze {}, vec![x, axis])?;
        return node.emit(FourierTransform { inverse, onesided: true }, vec![signal]);
    }
    // The signal is of even length, where the operator's default would be an odd one.
    let count = node.extent(&x, -2, "frequencies")?;
    let length = node.constant(ipuc_formats::tensor::Tensor::scalar(2 * (count - 1)));
    let signal = node.emit_one(FourierTransform { inverse, onesided: true }, vec![x, length])?;
    Ok(vec![node.taken(signal, -1, 0)?])
}
