//! Convolutions and pools of ONNX Runtime: `FusedConv`, `NhwcConv`, `NhwcFusedConv`, `NhwcMaxPool`, `ConvTransposeWithDynamicPads` of
//! `com.microsoft`, as ONNX Runtime 1.31 defines them.
//!
//! Those with channels behind the spatial axes become transpositions around the operator of ONNX; weights of `NhwcConv` and
//! `NhwcFusedConv` are `[filters, channels, kernel..]`, as in ONNX.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::products::microsoft::applied;
use crate::import::products::windows::{check_kernel_shape, pool_of_runtime, window_attributes};
use crate::ir::Operand;
use ipuc_formats::ops::{
    Arithmetic, AutoPad, Clamp, Concat, Convolution, ConvolutionTranspose, Pad, PadMode, Pool, PoolFunction, Program,
    Unary, UnaryFunction,
};

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Convolutions and pools of ONNX Runtime.
pub const ROWS: &[Row] = &[
    row("ConvTransposeWithDynamicPads", cropped_transpose),
    row("FusedConv", |node| fused_convolution(node, false)),
    row("NhwcConv", |node| {
        let result = convolution(node, true)?;
        Ok(vec![channels_last(node, result)?])
    }),
    row("NhwcFusedConv", |node| fused_convolution(node, true)),
    row("NhwcMaxPool", max_pool),
];

/// `[n, spatial.., c]` as `[n, c, spatial..]`.
pub(crate) fn channels_first(node: &mut Lowering<'_, '_>, operand: Operand) -> Result<Operand, LowerError> {
    let rank = node.rank(&operand)? as i64;
    let permutation = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    node.transposed(operand, permutation)
}

/// `[n, c, spatial..]` as `[n, spatial.., c]`.
pub(crate) fn channels_last(node: &mut Lowering<'_, '_>, operand: Operand) -> Result<Operand, LowerError> {
    let rank = node.rank(&operand)? as i64;
    let permutation = [0].into_iter().chain(2..rank).chain([1]).collect();
    node.transposed(operand, permutation)
}

/// The convolution of inputs 0 to 2, with channels before the spatial axes.
fn convolution(node: &mut Lowering<'_, '_>, last: bool) -> Result<Operand, LowerError> {
    let (mut x, weights, bias) = (node.required(0)?, node.required(1)?, node.input(2));
    if last {
        x = channels_first(node, x)?;
    }
    check_kernel_shape(node, &weights)?;
    let window = window_attributes(node)?;
    let operator = Convolution {
        auto_pad: window.auto_pad,
        strides: window.strides,
        dilations: window.dilations,
        pads: window.pads,
        groups: node.int("group")?.unwrap_or(1),
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    };
    let mut operands = vec![x, weights];
    operands.extend(Some(bias).filter(|&bias| bias != Operand::Absent));
    node.emit_one(operator, operands)
}

/// `activation(conv(X, W) + B + Z)`, where Z has the shape of the result.
fn fused_convolution(node: &mut Lowering<'_, '_>, last: bool) -> Lowered {
    node.at_most_inputs(4)?;
    let name = node.text("activation")?.unwrap_or_default();
    let parameters = node.floats("activation_params")?.unwrap_or_default();
    let mut result = convolution(node, last)?;
    if last {
        result = channels_last(node, result)?;
    }
    result = node.plus(result, node.input(3))?;
    match (name.as_str(), &parameters[..]) {
        ("", _) => Ok(vec![result]),
        ("Clip", &[least, greatest]) => {
            let dtype = node.dtype(&result)?;
            let bounds = [node.scalar(dtype, least.into())?, node.scalar(dtype, greatest.into())?];
            node.emit(Clamp {}, vec![result, bounds[0], bounds[1]])
        }
        ("Clip", _) => Err(node.refuse("activation `Clip` without its 2 parameters")),
        (name, _) => {
            let parameters = [parameters.first().copied(), parameters.get(1).copied()];
            Ok(vec![applied(node, name, result, parameters)?])
        }
    }
}

/// The transposed convolution without padding, cut to what computed pads leave.
fn cropped_transpose(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(4)?;
    let (x, weights, pads, bias) = (node.required(0)?, node.required(1)?, node.input(2), node.input(3));
    check_kernel_shape(node, &weights)?;
    let window = window_attributes(node)?;
    // Where extents say how much is padded, computed pads do not count.
    let same = window.auto_pad.filter(|mode| *mode != AutoPad::Valid);
    let operator = ConvolutionTranspose {
        auto_pad: same,
        strides: window.strides,
        dilations: window.dilations,
        pads: Vec::new(),
        output_padding: node.ints("output_padding")?.unwrap_or_default(),
        output_shape: Vec::new(),
        groups: node.int("group")?.unwrap_or(1),
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    };
    let mut operands = vec![x, weights];
    operands.extend(Some(bias).filter(|&bias| bias != Operand::Absent));
    let whole = node.emit_one(operator, operands)?;
    if pads == Operand::Absent || same.is_some() {
        return Ok(vec![whole]);
    }
    // Padding by what is negative cuts off. Batch and channels keep what they have.
    let axes = node.rank(&x)? as i64 - 2;
    let pads = node.emit_one(Unary { function: UnaryFunction::Neg }, vec![pads])?;
    let (begins, ends) = (node.sliced(pads, 0, [0, axes, 1])?, node.sliced(pads, 0, [axes, 2 * axes, 1])?);
    let kept = node.integers(&[0, 0]);
    let pads = node.emit_one(Concat { axis: 0 }, vec![kept, begins, kept, ends])?;
    node.emit(Pad { mode: PadMode::Constant }, vec![whole, pads])
}

fn max_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(1)?;
    let pool = pool_of_runtime(node, PoolFunction::Max)?;
    let x = node.required(0)?;
    let x = channels_first(node, x)?;
    let pool = padded_by_taps(node, pool, &x)?;
    let result = node.emit_one(pool, vec![x])?;
    Ok(vec![channels_last(node, result)?])
}

/// The pool with its padding as numbers where `auto_pad` follows from the extents and taps lie apart: ONNX Runtime pads as if they
/// did not, by `(windows - 1) * stride + kernel - extent`, where there are `extent / stride` windows, rounded up.
fn padded_by_taps(node: &Lowering<'_, '_>, pool: Pool, x: &Operand) -> Result<Pool, LowerError> {
    let is_upper = match pool.auto_pad {
        Some(AutoPad::SameUpper) => true,
        Some(AutoPad::SameLower) => false,
        Some(AutoPad::Valid) | None => return Ok(pool),
    };
    // What is no extent, and padding beside `auto_pad`, is refused where the types are inferred.
    let is_extent = |value: &i64| (1..=i64::from(i32::MAX)).contains(value);
    let is_apart = pool.dilations.iter().any(|&dilation| dilation != 1);
    let is_padded = pool.pads.iter().any(|&pad| pad != 0);
    if !is_apart || is_padded || !pool.kernel.iter().chain(&pool.strides).all(is_extent) {
        return Ok(pool);
    }
    if pool.ceil_mode {
        return Err(node.refuse("`ceil_mode` beside `auto_pad` and `dilations`"));
    }
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (axis, &kernel) in pool.kernel.iter().enumerate() {
        let stride = pool.strides.get(axis).copied().unwrap_or(1);
        let all = if stride == 1 {
            kernel - 1
        } else {
            let extent = node.extent(x, axis as i64 + 2, "`auto_pad` with `dilations` and `strides` over an axis")?;
            let windows = extent / stride + i64::from(extent % stride > 0);
            ((windows - 1) * stride + kernel - extent).max(0)
        };
        let less = all / 2;
        before.push(if is_upper { less } else { all - less });
        after.push(if is_upper { all - less } else { less });
    }
    Ok(Pool { auto_pad: None, pads: [before, after].concat(), ..pool })
}
