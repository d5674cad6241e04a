//! `Constant` (1, 9, 11, 12, 13, 19, 21, 23, ..): no step, an operand.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::tensor::Tensor;

/// `Constant`.
pub const ROWS: &[Row] = &[row("Constant", 1, constant)];

fn constant(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let mut values: Vec<Operand> = Vec::new();
    values.extend(node.weight("value")?);
    values.extend(node.sparse_weight("sparse_value")?);
    let mut tensors: Vec<Tensor> = Vec::new();
    tensors.extend(node.float("value_float")?.map(Tensor::scalar));
    tensors.extend(node.int("value_int")?.map(Tensor::scalar));
    if let Some(floats) = node.floats("value_floats")? {
        tensors.push(Tensor::from_elements(&[floats.len()], &floats)?);
    }
    tensors.extend(node.ints("value_ints")?.map(|ints| Tensor::vector_i64(&ints)));
    if let Some(text) = node.text("value_string")? {
        tensors.push(Tensor::from_strings(&[], vec![text])?);
    }
    if let Some(texts) = node.texts("value_strings")? {
        tensors.push(Tensor::from_strings(&[texts.len()], texts)?);
    }
    for tensor in tensors {
        values.push(node.constant(tensor));
    }
    match values.as_slice() {
        [_] => Ok(values),
        _ => Err(node.refuse(format!("a constant with {} values", values.len()))),
    }
}
