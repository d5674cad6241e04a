//! Convolutions and pools: `Conv` (opsets 1, 11, 22), `ConvTranspose` (1, 11, 22), `DeformConv` (19, 22), `ConvInteger`
//! (10), `QLinearConv` (10), `AveragePool` (1 to 22), `MaxPool` (1 to 22), `LpPool` (1 to 22), their global forms,
//! `MaxUnpool` (9 to 22), `Col2Im` (18).
//!
//! `QLinearConv` becomes an integer convolution, whose program scales the sums by `x_scale * w_scale / y_scale`, rounds them
//! to even, adds the zero point and saturates.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::import::products::quantized::{joint_scale, requantization, requantized};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{
    Arithmetic, AutoPad, Cast, Col2im, Convolution, ConvolutionTranspose, DeformableConvolution, IntegerConvolution,
    MaxUnpool, Pool, PoolFunction, Program, TypeError, Unsqueeze,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Convolutions and pools.
pub const ROWS: &[Row] = &[
    row("Conv", 1, convolution),
    row("Conv", 11, convolution),
    row("Conv", 22, convolution),
    row("ConvTranspose", 1, convolution_transpose),
    row("ConvTranspose", 11, convolution_transpose),
    row("ConvTranspose", 22, convolution_transpose),
    row("AveragePool", 1, average_pool),
    row("AveragePool", 7, average_pool),
    row("AveragePool", 10, average_pool),
    row("AveragePool", 11, average_pool),
    row("AveragePool", 19, average_pool),
    row("AveragePool", 22, average_pool),
    row("MaxPool", 1, max_pool),
    row("MaxPool", 8, max_pool),
    row("MaxPool", 10, max_pool),
    row("MaxPool", 11, max_pool),
    row("MaxPool", 12, max_pool),
    row("MaxPool", 22, max_pool),
    row("LpPool", 1, norm_pool),
    row("LpPool", 2, norm_pool),
    row("LpPool", 11, norm_pool),
    row("LpPool", 18, norm_pool),
    row("LpPool", 22, norm_pool),
    row("GlobalAveragePool", 1, global_average_pool),
    row("GlobalAveragePool", 22, global_average_pool),
    row("GlobalMaxPool", 1, global_max_pool),
    row("GlobalMaxPool", 22, global_max_pool),
    row("GlobalLpPool", 1, global_norm_pool),
    row("GlobalLpPool", 2, global_norm_pool),
    row("GlobalLpPool", 22, global_norm_pool),
    row("DeformConv", 19, deformable_convolution),
    row("DeformConv", 22, deformable_convolution),
    row("ConvInteger", 10, integer_convolution),
    row("QLinearConv", 10, quantized_convolution),
    row("MaxUnpool", 9, max_unpool),
    row("MaxUnpool", 11, max_unpool),
    row("MaxUnpool", 22, max_unpool),
    row("Col2Im", 18, col2im),
];

/// The window attributes that all share.
pub(crate) struct WindowAttributes {
    pub(crate) auto_pad: Option<AutoPad>,
    pub(crate) strides: Vec<i64>,
    pub(crate) dilations: Vec<i64>,
    pub(crate) pads: Vec<i64>,
}

/// Read `auto_pad`, `strides`, `dilations` and `pads`. Lists that say the default are left empty.
pub(crate) fn window_attributes(node: &mut Lowering<'_, '_>) -> Result<WindowAttributes, LowerError> {
    let auto_pad = match node.text("auto_pad")?.as_deref() {
        None | Some("" | "NOTSET") => None,
        Some("SAME_UPPER") => Some(AutoPad::SameUpper),
        Some("SAME_LOWER") => Some(AutoPad::SameLower),
        Some("VALID") => Some(AutoPad::Valid),
        Some(other) => return Err(node.refuse(format!("attribute `auto_pad` = \"{other}\""))),
    };
    let pads = node.ints("pads")?.unwrap_or_default();
    // Padding beside `auto_pad` is refused unless it is none, which some exporters write.
    let pads = if auto_pad.is_some() && pads.iter().all(|&pad| pad == 0) { Vec::new() } else { pads };
    Ok(WindowAttributes {
        auto_pad,
        strides: node.ints("strides")?.unwrap_or_default(),
        dilations: node.ints("dilations")?.unwrap_or_default(),
        pads,
    })
}

/// `kernel_shape` repeats the extents of the weights: require that it tells the same.
pub(crate) fn check_kernel_shape(node: &mut Lowering<'_, '_>, weights: &Operand) -> Result<(), LowerError> {
    let Some(stated) = node.ints("kernel_shape")? else { return Ok(()) };
    let fact = node.fact(weights);
    let Some([_, _, kernel @ ..]) = fact.as_ref().and_then(Fact::dims) else { return Ok(()) };
    let differs = kernel.len() != stated.len()
        || kernel.iter().zip(&stated).any(|(own, stated)| own.as_known().is_some_and(|own| own != *stated));
    if differs {
        let extents: Vec<String> = kernel.iter().map(ToString::to_string).collect();
        return Err(TypeError::Dimension {
            subject: "`kernel_shape`".to_string(),
            left: format!("{stated:?}"),
            right: format!("weights of [{}]", extents.join(", ")),
        }
        .into());
    }
    Ok(())
}

fn operands_with_bias(node: &Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let mut operands = vec![node.required(0)?, node.required(1)?];
    match node.input(2) {
        Operand::Absent => {}
        bias => operands.push(bias),
    }
    Ok(operands)
}

fn convolution(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = operands_with_bias(node)?;
    check_kernel_shape(node, &operands[1])?;
    let WindowAttributes { auto_pad, strides, dilations, pads } = window_attributes(node)?;
    let groups = node.int("group")?.unwrap_or(1);
    let (arithmetic, program) = (Arithmetic::default(), Program::default());
    node.emit(Convolution { auto_pad, strides, dilations, pads, groups, arithmetic, program }, operands)
}

fn convolution_transpose(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = operands_with_bias(node)?;
    check_kernel_shape(node, &operands[1])?;
    let WindowAttributes { auto_pad, strides, dilations, mut pads } = window_attributes(node)?;
    let output_padding = node.ints("output_padding")?.unwrap_or_default();
    let mut output_shape = node.ints("output_shape")?.unwrap_or_default();
    let rank = node.fact(&operands[0]).and_then(|fact| fact.rank());
    if rank.is_some_and(|rank| output_shape.len() == rank) && output_shape.len() > 2 {
        // Some exporters write batch and channels too.
        output_shape.drain(..2);
    }
    if !output_shape.is_empty() {
        // "If output_shape is specified pads values are ignored."
        pads.clear();
    }
    let groups = node.int("group")?.unwrap_or(1);
    let operator = ConvolutionTranspose {
        auto_pad,
        strides,
        dilations,
        pads,
        output_padding,
        output_shape,
        groups,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    };
    node.emit(operator, operands)
}

/// A pool with the attributes that all versions share; those of later versions are read where they are there.
pub(crate) fn pool(node: &mut Lowering<'_, '_>, function: PoolFunction) -> Result<Pool, LowerError> {
    let kernel = node.ints("kernel_shape")?.filter(|kernel| !kernel.is_empty());
    let kernel = kernel.ok_or_else(|| LowerError::MissingAttribute("kernel_shape".to_string()))?;
    let WindowAttributes { auto_pad, strides, dilations, pads } = window_attributes(node)?;
    let ceil_mode = node.flag("ceil_mode", false)?;
    Ok(Pool { kernel, auto_pad, strides, dilations, pads, ceil_mode, ..Pool::global(function) })
}

/// A pool of `com.microsoft`: with `auto_pad` of VALID the number of windows is rounded up, too, where `ceil_mode` says so.
pub(crate) fn pool_of_runtime(node: &mut Lowering<'_, '_>, function: PoolFunction) -> Result<Pool, LowerError> {
    let pool = pool(node, function)?;
    let counted_up = pool.ceil_mode && pool.auto_pad == Some(AutoPad::Valid);
    Ok(if counted_up { Pool { auto_pad: None, ..pool } } else { pool })
}

fn average_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let pool = Pool { count_include_pad: node.flag("count_include_pad", false)?, ..pool(node, PoolFunction::Average)? };
    let x = node.required(0)?;
    node.emit(pool, vec![x])
}

fn max_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let indices = node.output_used(1);
    let column_major = node.flag("storage_order", false)? && indices;
    let pool = Pool { indices, column_major, ..pool(node, PoolFunction::Max)? };
    let x = node.required(0)?;
    node.emit(pool, vec![x])
}

/// The degree of a norm, which is a float in the first versions.
fn exponent(node: &mut Lowering<'_, '_>) -> Result<Option<i64>, LowerError> {
    if node.since() > 1 {
        return node.int("p");
    }
    match node.float("p")? {
        Some(p) if p.fract() != 0.0 || p.abs() > 64.0 => Err(node.refuse(format!("attribute `p` = {p}"))),
        p => Ok(p.map(|p| p as i64)),
    }
}

fn norm_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let exponent = exponent(node)?;
    let pool = Pool { exponent, ..pool(node, PoolFunction::Norm)? };
    let x = node.required(0)?;
    node.emit(pool, vec![x])
}

fn global_average_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    node.emit(Pool::global(PoolFunction::Average), vec![x])
}

fn global_max_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    node.emit(Pool::global(PoolFunction::Max), vec![x])
}

fn global_norm_pool(node: &mut Lowering<'_, '_>) -> Lowered {
    let pool = Pool { exponent: exponent(node)?, ..Pool::global(PoolFunction::Norm) };
    let x = node.required(0)?;
    node.emit(pool, vec![x])
}

fn deformable_convolution(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?, node.input(3), node.required(2)?, node.input(4)];
    check_kernel_shape(node, &operands[1])?;
    let operator = DeformableConvolution {
        strides: node.ints("strides")?.unwrap_or_default(),
        dilations: node.ints("dilations")?.unwrap_or_default(),
        pads: node.ints("pads")?.unwrap_or_default(),
        groups: node.int("group")?.unwrap_or(1),
        offset_groups: node.int("offset_group")?.unwrap_or(1),
    };
    node.emit(operator, operands)
}

fn integer_sums(node: &mut Lowering<'_, '_>, operands: Vec<Operand>, program: Program) -> Result<Operand, LowerError> {
    check_kernel_shape(node, &operands[1])?;
    let WindowAttributes { auto_pad, strides, dilations, pads } = window_attributes(node)?;
    let groups = node.int("group")?.unwrap_or(1);
    let (channels_last, plain_inputs) = (false, false);
    let sums = IntegerConvolution { auto_pad, strides, dilations, pads, groups, program, channels_last, plain_inputs };
    node.emit_one(sums, operands)
}

fn integer_convolution(node: &mut Lowering<'_, '_>) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?, node.input(2), node.input(3)];
    Ok(vec![integer_sums(node, operands, Program::default())?])
}

fn quantized_convolution(node: &mut Lowering<'_, '_>) -> Lowered {
    let x = node.required(0)?;
    quantized_convolution_of(node, x)
}

/// `QLinearConv` of its first input in another layout: `x: [n, c, d..]`.
pub(super) fn quantized_convolution_of(node: &mut Lowering<'_, '_>, x: Operand) -> Lowered {
    let (x_scale, x_zero_point) = (node.required(1)?, node.required(2)?);
    let (w, w_scale, w_zero_point) = (node.required(3)?, node.required(4)?, node.required(5)?);
    let (y_scale, y_zero_point) = (node.required(6)?, node.required(7)?);
    // The result has as many axes as the operands.
    let rank = [&x, &w].into_iter().find_map(|operand| node.fact(operand)?.rank());
    let w_scale = per_filter(node, w_scale, rank)?;
    let scale = joint_scale(node, x_scale, w_scale, y_scale)?;
    let mut operands = vec![x, w, x_zero_point, w_zero_point, node.input(8)];
    if let Some(program) = requantization(node, &scale, &y_zero_point, rank, 5)? {
        operands.extend([scale, y_zero_point]);
        return Ok(vec![integer_sums(node, operands, program)?]);
    }
    let sums = integer_sums(node, operands, Program::default())?;
    let sums = node.emit_one(Cast::to(DType::F32), vec![sums])?;
    requantized(node, sums, scale, y_zero_point)
}

/// A scale of one axis has an element a filter: put it before the spatial axes of a result of `rank` axes.
fn per_filter(node: &mut Lowering<'_, '_>, scale: Operand, rank: Option<usize>) -> Result<Operand, LowerError> {
    let fact = node.fact(&scale);
    let single =
        fact.as_ref().and_then(Fact::dims).is_some_and(|dims| dims.iter().all(|dim| dim.as_known() == Some(1)));
    match (fact.and_then(|fact| fact.rank()), rank) {
        _ if single => Ok(scale),
        (Some(1), Some(rank)) => {
            let axes: Vec<i64> = (1..=rank as i64 - 2).collect();
            let axes = node.constant(Tensor::vector_i64(&axes));
            node.emit_one(Unsqueeze {}, vec![scale, axes])
        }
        (Some(0), _) => Ok(scale),
        (Some(found), Some(_)) => Err(TypeError::Rank { operand: 4, expected: "0 or 1".to_string(), found }.into()),
        (None, _) | (_, None) => Err(node.refuse("a quantized convolution of operands of unknown rank")),
    }
}

fn max_unpool(node: &mut Lowering<'_, '_>) -> Lowered {
    let kernel = node.ints("kernel_shape")?;
    let kernel = kernel.ok_or_else(|| LowerError::MissingAttribute("kernel_shape".to_string()))?;
    let strides = node.ints("strides")?.unwrap_or_default();
    let pads = node.ints("pads")?.unwrap_or_default();
    let operands = vec![node.required(0)?, node.required(1)?, node.input(2)];
    node.emit(MaxUnpool { kernel, strides, pads }, operands)
}

fn col2im(node: &mut Lowering<'_, '_>) -> Lowered {
    let operator = Col2im {
        strides: node.ints("strides")?.unwrap_or_default(),
        dilations: node.ints("dilations")?.unwrap_or_default(),
        pads: node.ints("pads")?.unwrap_or_default(),
    };
    let operands = vec![node.required(0)?, node.required(1)?, node.required(2)?];
    node.emit(operator, operands)
}
