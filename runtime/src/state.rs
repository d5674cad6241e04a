//! State of a session: inputs of an entry whose next contents are outputs of the last run.
//!
//! A state begins as zeros. Its extents are those of the entry's other inputs, but 0 along the axis that grows from run
//! to run: a key/value cache begins empty, a recurrent state begins at full size.

use crate::error::RunError;
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::{BlockRecord, EntryRecord, StateRecord};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

/// The first contents of a state, at the dimensions that the given inputs bind.
///
/// # Errors
/// [`RunError::State`] where an extent does not follow from them.
pub(crate) fn initial(
    entry: &EntryRecord,
    block: &BlockRecord,
    state: &StateRecord,
    bindings: &Bindings,
) -> Result<Value, RunError> {
    let name = &entry.inputs[state.input as usize];
    let failure = |reason: String| RunError::State { name: name.clone(), reason };
    let kind = &block.values[state.input as usize].kind;
    match kind {
        Type::Tensor { dtype, shape: Shape::Ranked(dims) } => {
            let extents = dims.iter().enumerate().map(|(axis, dim)| {
                if state.append_axis == Some(axis as u32) {
                    return Ok(0);
                }
                extent(dim, bindings).ok_or_else(|| {
                    failure(format!("its first extent along axis {axis} is {dim}, which no input tells"))
                })
            });
            let shape: Vec<usize> = extents.collect::<Result<_, _>>()?;
            Ok(Tensor::zeros(*dtype, &shape).map_err(|error| failure(error.to_string()))?.into())
        }
        Type::Tensor { shape: Shape::Unranked, .. } => Err(failure("its rank is unknown".to_string())),
        Type::Sequence(element) => Ok(Value::Sequence { element: (**element).clone(), items: Vec::new() }),
        Type::Optional(element) => Ok(Value::Optional { element: (**element).clone(), value: None }),
        Type::Map { key, element } => Ok(Value::Map { key: *key, element: (**element).clone(), entries: Vec::new() }),
    }
}

fn extent(dim: &Dim, bindings: &Bindings) -> Option<usize> {
    usize::try_from(dim.evaluate(bindings).ok()?).ok()
}
