//! Moving elements without an index: `CenterCropPad` (opset 18), `Concat` (1 to 13), `ConstantOfShape` (9 to 25),
//! `DepthToSpace` (1 to 28), `Expand` (8, 13), `Flatten` (1 to 25), `Pad` (1 to 25), `Range` (11, 27), `Reshape` (1 to
//! 25), `Shape`, `Size` (1 to 25), `Slice` (1 to 13), `SpaceToDepth` (1 to 28), `Split` (1 to 18), `Squeeze`, `Unsqueeze`
//! (1 to 25), `Tile` (1 to 13), `Transpose` (1 to 25).
//!
//! `Crop` and `DynamicSlice` were experimental before opset 10; ONNX Runtime still has them.
//!
//! Shapes, axes, pads and sizes are attributes in old versions and operands in new ones; here they are always operands.
//! Later versions of most operators only take more element types.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, from_scalars};
use ipuc_formats::ops::{
    CenterCropPad, ChannelOrder, Concat, DepthToSpace, Expand, Flatten, Pad, PadMode, Range, Reshape, ScatterElements,
    ScatterReduction, ShapeOf, SizeOf, Slice, SpaceToDepth, Split, Squeeze, Tile, Transpose, TypeError, Unsqueeze,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// `"Name" versions.. => lowering;` a line becomes one row a version.
macro_rules! rows {
    ($($name:literal $($since:literal)+ => $lower:expr;)*) => { &[$($(row($name, $since, $lower),)+)*] };
}

/// Moves elements without computing.
pub const ROWS: &[Row] = rows! {
    "CenterCropPad" 18 => center_crop_pad;
    "Concat" 1 4 11 13 => concat;
    "ConstantOfShape" 9 20 21 23 24 25 => constant_of_shape;
    "Crop" 1 => crop;
    "DepthToSpace" 1 11 13 28 => depth_to_space;
    "DynamicSlice" 1 => |node| {
        node.at_most_inputs(4)?;
        operands(node, Slice {}, 3)
    };
    "Expand" 8 13 => |node| operands(node, Expand {}, 2);
    "Flatten" 1 9 11 13 21 23 24 25 => flatten;
    "Pad" 1 2 => pad_by_attributes;
    "Pad" 11 13 18 19 21 23 24 25 => pad;
    "Range" 11 27 => range;
    "Reshape" 1 5 13 14 19 21 23 24 25 => reshape;
    "Shape" 1 13 15 19 21 23 24 25 => shape;
    "Size" 1 13 19 21 23 24 25 => |node| operands(node, SizeOf {}, 1);
    "Slice" 1 => slice_by_attributes;
    "Slice" 10 11 13 => |node| operands(node, Slice {}, 3);
    "SpaceToDepth" 1 13 28 => space_to_depth;
    "Split" 1 2 11 13 18 => split;
    "Squeeze" 1 11 13 21 23 24 25 => squeeze;
    "Tile" 1 => tile_along_axis;
    "Tile" 6 13 => |node| operands(node, Tile {}, 2);
    "Transpose" 1 13 21 23 24 25 => transpose;
    "Unsqueeze" 1 11 13 21 23 24 25 => unsqueeze;
};

/// All operands as they are, of which the first `required` must be there.
fn operands(node: &mut Lowering<'_, '_>, op: impl Into<ipuc_formats::ops::Op>, required: usize) -> Lowered {
    for index in 0..required {
        node.required(index)?;
    }
    let operands = node.inputs();
    node.emit(op, operands)
}

/// An attribute of integers that must be there, as a constant.
fn integers(node: &mut Lowering<'_, '_>, name: &str) -> Result<Operand, LowerError> {
    let integers = node.ints(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))?;
    Ok(node.constant(Tensor::vector_i64(&integers)))
}

/// An attribute of integers that may be left out, as a constant.
fn optional_integers(node: &mut Lowering<'_, '_>, name: &str) -> Result<Operand, LowerError> {
    let integers = node.ints(name)?;
    Ok(integers.map_or(Operand::Absent, |integers| node.constant(Tensor::vector_i64(&integers))))
}

fn required_int(node: &mut Lowering<'_, '_>, name: &str) -> Result<i64, LowerError> {
    node.int(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()))
}

fn center_crop_pad(node: &mut Lowering<'_, '_>) -> Lowered {
    let axes = node.ints("axes")?;
    operands(node, CenterCropPad { axes }, 2)
}

fn concat(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = match node.int("axis")? {
        None if node.since() < 4 => 1,
        None => return Err(LowerError::MissingAttribute("axis".to_string())),
        Some(axis) => axis,
    };
    operands(node, Concat { axis }, node.input_count().max(1))
}

/// `x: [n, c, h, w]` without a border of these rows and columns; with `scale` so many rows and columns are left.
fn crop(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(1)?;
    let x = node.required(0)?;
    let rank = node.rank(&x)?;
    if rank != 4 {
        return Err(TypeError::Rank { operand: 0, expected: "4".to_string(), found: rank }.into());
    }
    let border = node.ints("border")?.ok_or_else(|| LowerError::MissingAttribute("border".to_string()))?;
    let &[left, top, right, bottom] = &border[..] else {
        return Err(node.refuse(format!("attribute `border` = {border:?}")));
    };
    if border.iter().any(|&border| border < 0) {
        return Err(node.refuse(format!("attribute `border` = {border:?}")));
    }
    let Some(scale) = node.ints("scale")? else {
        // Padding by what is negative cuts off, and fails where there is less.
        let pads = node.integers(&[0, 0, -top, -left, 0, 0, -bottom, -right]);
        return node.emit(Pad { mode: PadMode::Constant }, vec![x, pads]);
    };
    let refused = || node.refuse(format!("attribute `scale` = {scale:?}"));
    let &[height, width] = &scale[..] else { return Err(refused()) };
    let (Some(end_row), Some(end_column)) = (top.checked_add(height), left.checked_add(width)) else {
        return Err(refused());
    };
    if height < 0 || width < 0 {
        return Err(refused());
    }
    let rows = node.sliced(x, 2, [top, end_row, 1])?;
    let region = node.sliced(rows, 3, [left, end_column, 1])?;
    // Fails where the input has fewer.
    Ok(vec![node.reshaped(region, &[0, 0, height, width])?])
}

/// A scalar, expanded.
fn constant_of_shape(node: &mut Lowering<'_, '_>) -> Lowered {
    let shape = node.required(0)?;
    let value = match node.tensor("value")? {
        None => Tensor::zeros(DType::F32, &[])?,
        Some(value) if value.count() == 1 => value.reshaped(&[])?,
        Some(value) => return Err(node.refuse(format!("attribute `value` of {} elements", value.count()))),
    };
    let value = node.constant(value);
    node.emit(Expand {}, vec![value, shape])
}

fn channel_order(node: &mut Lowering<'_, '_>, since: i64) -> Result<ChannelOrder, LowerError> {
    let order = if node.since() >= since { node.keyword("mode")? } else { None };
    Ok(order.unwrap_or(ChannelOrder::Dcr))
}

fn depth_to_space(node: &mut Lowering<'_, '_>) -> Lowered {
    let order = channel_order(node, 11)?;
    let block = required_int(node, "blocksize")?;
    operands(node, DepthToSpace { block, order }, 1)
}

fn space_to_depth(node: &mut Lowering<'_, '_>) -> Lowered {
    let order = channel_order(node, 28)?;
    let block = required_int(node, "blocksize")?;
    operands(node, SpaceToDepth { block, order }, 1)
}

fn flatten(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?.unwrap_or(1);
    operands(node, Flatten { axis }, 1)
}

fn pad_by_attributes(node: &mut Lowering<'_, '_>) -> Lowered {
    let data = node.required(0)?;
    let mode = node.keyword("mode")?.unwrap_or(PadMode::Constant);
    let pads = integers(node, if node.since() < 2 { "paddings" } else { "pads" })?;
    let value = Scalar::Float(node.float("value")?.unwrap_or(0.0).into());
    let value = match mode {
        PadMode::Constant => {
            let value =
                from_scalars(node.dtype(&data)?, &[], &[value]).map_err(|error| node.refuse(error.to_string()))?;
            node.constant(value)
        }
        PadMode::Reflect | PadMode::Edge | PadMode::Wrap => Operand::Absent,
    };
    node.emit(Pad { mode }, vec![data, pads, value])
}

fn pad(node: &mut Lowering<'_, '_>) -> Lowered {
    let mode = node.keyword("mode")?.unwrap_or(PadMode::Constant);
    if mode == PadMode::Wrap && node.since() < 19 {
        return Err(node.refuse("attribute `mode` = \"wrap\" before opset 19"));
    }
    let (data, pads) = (node.required(0)?, node.required(1)?);
    let value = if mode == PadMode::Constant { node.input(2) } else { Operand::Absent };
    let axes = if node.since() >= 18 { node.input(3) } else { Operand::Absent };
    node.emit(Pad { mode }, vec![data, pads, value, axes])
}

fn range(node: &mut Lowering<'_, '_>) -> Lowered {
    if node.since() >= 27 {
        let stash = node.int("stash_type")?.unwrap_or(1);
        let start = node.required(0)?;
        let narrow = matches!(node.dtype(&start)?, DType::F16 | DType::BF16);
        if narrow && stash != 1 {
            return Err(node.refuse(format!("attribute `stash_type` = {stash}")));
        }
    }
    operands(node, Range {}, 3)
}

fn reshape(node: &mut Lowering<'_, '_>) -> Lowered {
    if node.since() < 5 {
        let data = node.required(0)?;
        let shape = integers(node, "shape")?;
        return node.emit(Reshape { allow_zero: false }, vec![data, shape]);
    }
    let allow_zero = node.since() >= 14 && node.flag("allowzero", false)?;
    operands(node, Reshape { allow_zero }, 2)
}

fn shape(node: &mut Lowering<'_, '_>) -> Lowered {
    let (start, end) = if node.since() >= 15 { (node.int("start")?, node.int("end")?) } else { (None, None) };
    operands(node, ShapeOf { start: start.unwrap_or(0), end }, 1)
}

fn slice_by_attributes(node: &mut Lowering<'_, '_>) -> Lowered {
    let data = node.required(0)?;
    let (starts, ends) = (integers(node, "starts")?, integers(node, "ends")?);
    let axes = optional_integers(node, "axes")?;
    node.emit(Slice {}, vec![data, starts, ends, axes])
}

fn split(node: &mut Lowering<'_, '_>) -> Lowered {
    let data = node.required(0)?;
    let axis = node.int("axis")?.unwrap_or(0);
    let sizes = match node.since() {
        13.. => node.input(1),
        // The first version has an operand and an attribute.
        1 if node.input(1) != Operand::Absent => node.input(1),
        _ => optional_integers(node, "split")?,
    };
    let count = if node.since() >= 18 { node.int("num_outputs")? } else { None };
    let outputs = node.output_count() as i64;
    let (parts, even) = match (count, sizes) {
        (Some(_), Operand::Value(_) | Operand::Constant(_)) => {
            return Err(node.refuse("operand `split` beside attribute `num_outputs`"));
        }
        (None, Operand::Absent) if node.since() >= 18 => {
            return Err(node.refuse("neither operand `split` nor attribute `num_outputs`"));
        }
        (Some(count), Operand::Absent) => (count, false),
        (None, Operand::Absent | Operand::Value(_) | Operand::Constant(_)) => (outputs, true),
    };
    if parts != outputs {
        return Err(node.refuse(format!("attribute `num_outputs` = {parts} with {outputs} outputs")));
    }
    node.emit(Split { axis, parts, even }, vec![data, sizes])
}

/// `tiles` repetitions along `axis`, both one element: repetitions of all axes, 1 along the others.
fn tile_along_axis(node: &mut Lowering<'_, '_>) -> Lowered {
    let (data, tiles, axis) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let rank = node.rank(&data)?;
    let [tiles, axis] = [tiles, axis].map(|operand| {
        let operand = node.cast(operand, DType::I64)?;
        node.reshaped(operand, &[1])
    });
    let ones = node.integers(&vec![1; rank]);
    let repeats =
        node.emit_one(ScatterElements { axis: 0, reduction: ScatterReduction::None }, vec![ones, axis?, tiles?])?;
    node.emit(Tile {}, vec![data, repeats])
}

fn squeeze(node: &mut Lowering<'_, '_>) -> Lowered {
    let data = node.required(0)?;
    let axes = if node.since() >= 13 { node.input(1) } else { optional_integers(node, "axes")? };
    node.emit(Squeeze {}, vec![data, axes])
}

fn unsqueeze(node: &mut Lowering<'_, '_>) -> Lowered {
    let data = node.required(0)?;
    let axes = if node.since() >= 13 { node.required(1)? } else { integers(node, "axes")? };
    node.emit(Unsqueeze {}, vec![data, axes])
}

fn transpose(node: &mut Lowering<'_, '_>) -> Lowered {
    let permutation = node.ints("perm")?.unwrap_or_default();
    operands(node, Transpose { permutation }, 1)
}
