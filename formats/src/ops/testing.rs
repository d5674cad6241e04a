//! What the tests of several operators share.

use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::{NoBlocks, Operator, Product, ReferenceContext, ReferenceError, StepFacts};
use crate::tensor::Tensor;
use crate::value::Value;

/// First result of the reference for tensor operands.
pub fn run(operator: &dyn Operator, inputs: &[Tensor]) -> Result<Tensor, ReferenceError> {
    run_optional(operator, &inputs.iter().cloned().map(Some).collect::<Vec<_>>())
}

/// First result of the reference for tensor operands, some of which may be absent.
pub fn run_optional(operator: &dyn Operator, inputs: &[Option<Tensor>]) -> Result<Tensor, ReferenceError> {
    Ok(run_all(operator, inputs)?.remove(0))
}

/// All results of the reference, which must be tensors.
pub fn run_all(operator: &dyn Operator, inputs: &[Option<Tensor>]) -> Result<Vec<Tensor>, ReferenceError> {
    let inputs: Vec<Option<Value>> = inputs.iter().cloned().map(|input| input.map(Value::from)).collect();
    let mut blocks = NoBlocks;
    let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks))?;
    Ok(results.into_iter().map(|result| result.as_tensor().cloned().expect("a tensor")).collect())
}

/// The elements of a bool tensor.
pub fn bools(tensor: &Tensor) -> Vec<bool> {
    tensor.bools().expect("a bool tensor")
}

/// Multiply-accumulates of a product: the points of its spaces.
pub fn macs(operator: &dyn Product, inputs: &[Option<Fact>], outputs: &[Fact]) -> Dim {
    let spaces = operator.spaces(&StepFacts::new("test", inputs, outputs));
    Dim::sum(&spaces.iter().map(|space| space.points() * space.macs).collect::<Vec<_>>())
}
