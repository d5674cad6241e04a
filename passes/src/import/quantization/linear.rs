//! Quantization: `QuantizeLinear`, `DequantizeLinear` (opset 10 to 28), `DynamicQuantizeLinear` (opset 11).
//!
//! Versions: 10 knows one scale; 13 adds scales of an axis, 19 floats of 8 bits and `saturate`, 21 blocks, types of 4 bits
//! and `output_dtype`, 23 `precision`, 25 types of 2 bits, 28 floats of 6 bits.

use crate::import::elementwise::type_attribute;
use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Dequantize, DynamicQuantize, Quantize, TypeError};

/// Quantization.
pub const ROWS: &[Row] = &[
    row("DequantizeLinear", 10, dequantize),
    row("DequantizeLinear", 13, dequantize),
    row("DequantizeLinear", 19, dequantize),
    row("DequantizeLinear", 21, dequantize),
    row("DequantizeLinear", 23, dequantize),
    row("DequantizeLinear", 24, dequantize),
    row("DequantizeLinear", 25, dequantize),
    row("DequantizeLinear", 28, dequantize),
    row("DynamicQuantizeLinear", 11, dynamic_quantize),
    row("QuantizeLinear", 10, quantize),
    row("QuantizeLinear", 13, quantize),
    row("QuantizeLinear", 19, quantize),
    row("QuantizeLinear", 21, quantize),
    row("QuantizeLinear", 23, quantize),
    row("QuantizeLinear", 24, quantize),
    row("QuantizeLinear", 25, quantize),
    row("QuantizeLinear", 28, quantize),
];

/// Axis and block size, as far as the version has them.
fn granularity(node: &mut Lowering<'_, '_>) -> Result<(i64, i64), LowerError> {
    let axis = if node.since() >= 13 { node.int("axis")? } else { None };
    let block_size = if node.since() >= 21 { node.int("block_size")? } else { None };
    Ok((axis.unwrap_or(1), block_size.unwrap_or(0)))
}

/// A type attribute where 0 means absent.
fn optional_type(node: &mut Lowering<'_, '_>, name: &str, since: i64) -> Result<Option<DType>, LowerError> {
    if node.since() < since || node.int(name)? == Some(0) {
        return Ok(None);
    }
    type_attribute(node, name)
}

fn quantize(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let (axis, block_size) = granularity(node)?;
    let overflow = node.since() >= 19 && !node.flag("saturate", true)?;
    let output = optional_type(node, "output_dtype", 21)?;
    let precision = optional_type(node, "precision", 23)?;
    let (x, scale, zero_point) = (node.required(0)?, node.required(1)?, node.input(2));
    let to = match zero_point {
        Operand::Absent => output.unwrap_or(DType::U8),
        given => node.dtype(&given)?,
    };
    if let Some(found) = output.filter(|&output| output != to) {
        let expected = format!("{found} as attribute `output_dtype` says");
        return Err(TypeError::ElementType { operand: 2, expected, found: to }.into());
    }
    node.emit(Quantize { to, axis, block_size, overflow, precision }, vec![x, scale, zero_point])
}

fn dequantize(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let (axis, block_size) = granularity(node)?;
    let to = optional_type(node, "output_dtype", 23)?;
    let (x, scale, zero_point) = (node.required(0)?, node.required(1)?, node.input(2));
    let expected = node.dtype(&x)?;
    if zero_point != Operand::Absent && node.dtype(&zero_point)? != expected {
        let found = node.dtype(&zero_point)?;
        return Err(TypeError::ElementType { operand: 2, expected: expected.to_string(), found }.into());
    }
    node.emit(Dequantize { to, axis, block_size }, vec![x, scale, zero_point])
}

fn dynamic_quantize(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let x = node.required(0)?;
    node.emit(DynamicQuantize {}, vec![x])
}
