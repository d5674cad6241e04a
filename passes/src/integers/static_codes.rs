//! Codes for activations, with one scale and one zero point for all elements, as calibration has seen them.
//!
//! A `quantize` and a `dequantize` go before each product whose weight is codes of 8 bits with a scale for each output, or one:
//! what a quantized graph has there. What follows makes integers of them, as of those.

use super::products::takes_codes;
use crate::error::PassError;
use crate::ir::{Constant, ConstantError, ConstantId, Graph, Operand, Step, ValueId};
use crate::moments::{Calibration, CodeRange};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{Dequantize, Op, Quantize};
use ipuc_formats::tensor::{Tensor, TensorError};
use std::collections::{HashMap, HashSet};

/// Have products of a block read codes; gives how many do.
pub(super) fn round(graph: &mut Graph, index: BlockIndex, calibration: &Calibration) -> Result<usize, PassError> {
    let steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut made: Vec<Step> = Vec::with_capacity(steps.len());
    let mut rounded: HashMap<ValueId, ValueId> = HashMap::new();
    // What codes are already.
    let mut decoded: HashSet<ValueId> = HashSet::new();
    let mut changes = 0;
    for mut step in steps {
        if let Some(&Operand::Value(x)) = step.operands.first()
            && let Some(spread) = calibration.spreads.get(&x.0)
            && !decoded.contains(&x)
            && takes_codes(graph, &step)?
        {
            let known = rounded.get(&x).copied();
            let codes = match known {
                Some(codes) => codes,
                None => insert(graph, &mut made, x, spread.codes(), &step)?,
            };
            rounded.insert(x, codes);
            step.operands[0] = Operand::Value(codes);
            changes += 1;
        }
        if matches!(step.op, Op::Dequantize(_)) {
            decoded.extend(&step.results);
        }
        made.push(step);
    }
    graph.block_mut(index).steps = made;
    Ok(changes)
}

/// Round a value to codes and back; gives the value of the codes.
fn insert(
    graph: &mut Graph,
    steps: &mut Vec<Step>,
    x: ValueId,
    CodeRange { scale, zero }: CodeRange,
    reader: &Step,
) -> Result<ValueId, PassError> {
    let scale = constant(graph, Tensor::from_elements(&[], &[scale]))?;
    let zero = constant(graph, Tensor::from_elements(&[], &[zero]))?;
    let fact = &graph.value(x).fact;
    // What products of f32 read is a tensor.
    let shape = fact.kind.as_tensor().map(|(_, shape)| shape.clone()).unwrap_or(ipuc_formats::fact::Shape::Unranked);
    let codes = graph.add_value(Fact::tensor(DType::I8, shape.clone()), None);
    let decoded = graph.add_value(Fact::tensor(DType::F32, shape), None);
    let parameters = |value| vec![Operand::Value(value), Operand::Constant(scale), Operand::Constant(zero)];
    let op = Quantize { to: DType::I8, axis: 1, block_size: 0, overflow: false, precision: None };
    let name = reader.name.clone();
    steps.push(Step { op: op.into(), operands: parameters(x), results: vec![codes], name: name.clone() });
    let op = Dequantize { to: None, axis: 1, block_size: 0 };
    steps.push(Step { op: op.into(), operands: parameters(codes), results: vec![decoded], name });
    Ok(decoded)
}

fn constant(graph: &mut Graph, tensor: Result<Tensor, TensorError>) -> Result<ConstantId, PassError> {
    let tensor = tensor.map_err(|error| ConstantError::Recipe {
        tensor: "scale of activations".to_string(),
        operator: "quantize",
        error: error.into(),
    })?;
    Ok(graph.add_constant(Constant::of(tensor, None)))
}
