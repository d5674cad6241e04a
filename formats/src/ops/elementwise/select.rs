//! One of two elements by a condition, with broadcasting: ONNX `Where` (opset 9, 16).

use crate::attributes;
use crate::dtype::DType;
use crate::fact::{Fact, MAXIMUM_FOLLOWED_ELEMENTS};
use crate::ops::broadcast::{broadcast_extents, broadcast_shapes, broadcast_strides, strided_indices};
use crate::ops::elementwise::binary::FollowedOperand;
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError, VectorClass, optional,
    tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// `condition: bool [..], x: [..], y: [..]` to their broadcast shape: x where the condition holds, else y.
    pub struct Select revision 1 {}
}

fn check(condition: DType, left: DType, right: DType) -> Result<(), TypeError> {
    if condition != DType::Bool {
        return Err(TypeError::ElementType { operand: 0, expected: "bool".to_string(), found: condition });
    }
    if left != right {
        return Err(TypeError::ElementType { operand: 2, expected: left.to_string(), found: right });
    }
    Ok(())
}

/// Elements known as dimensions: where the condition is known, or both sides are equal.
fn followed(inputs: &[Option<Fact>]) -> Option<Vec<crate::dim::Dim>> {
    let x = FollowedOperand::new(optional(inputs, 1)?)?;
    let y = FollowedOperand::new(optional(inputs, 2)?)?;
    let condition_extents = optional(inputs, 0)?.kind.as_tensor()?.1.as_known()?;
    let extents = broadcast_extents(&[&condition_extents, &x.extents, &y.extents]).ok()?;
    if crate::tensor::element_count(&extents)? > MAXIMUM_FOLLOWED_ELEMENTS {
        return None;
    }
    let condition = FollowedOperand::new(optional(inputs, 0)?);
    let conditions: Vec<Option<i64>> = match &condition {
        Some(condition) => condition.elements(&extents).map(|element| element.as_known()).collect(),
        None => vec![None; extents.iter().product()],
    };
    x.elements(&extents)
        .zip(y.elements(&extents))
        .zip(conditions)
        .map(|((x, y), condition)| match condition {
            Some(0) => Some(y.clone()),
            Some(_) => Some(x.clone()),
            None => (x == y).then(|| x.clone()),
        })
        .collect()
}

impl Operator for Select {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (condition_dtype, condition) = tensor_operand(inputs, 0)?;
        let (dtype, left) = tensor_operand(inputs, 1)?;
        let (right_dtype, right) = tensor_operand(inputs, 2)?;
        check(condition_dtype, dtype, right_dtype)?;
        let shape = broadcast_shapes(&[condition, left, right], context)?;
        Ok(vec![match followed(inputs) {
            Some(dims) => Fact::of_dims(dtype, shape, dims),
            None => Fact::tensor(dtype, shape),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (condition, left, right) = (tensor(inputs, 0)?, tensor(inputs, 1)?, tensor(inputs, 2)?);
        check(condition.dtype(), left.dtype(), right.dtype())?;
        let extents = broadcast_extents(&[condition.shape(), left.shape(), right.shape()])?;
        // The size is checked before anything of that size is made.
        Tensor::zeros(DType::Bool, &extents)?;
        let indices = |tensor: &Tensor| strided_indices(&extents, &broadcast_strides(tensor.shape(), &extents));
        let bools = condition.bools()?;
        // Both sides end to end: the right one's elements follow the left one's.
        let both = concatenated(left, right)?;
        let chosen = indices(condition).zip(indices(left).zip(indices(right)));
        let chosen = chosen.map(|(at, (x, y))| Some(if bools[at] { x } else { left.count() + y }));
        Ok(vec![both.select(&extents, chosen)?.into()])
    }
}

impl Elementwise for Select {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        vec![(VectorClass::Arithmetic, 1)]
    }
}

fn concatenated(left: &Tensor, right: &Tensor) -> Result<Tensor, ReferenceError> {
    let dtype = left.dtype();
    let shape = [left.count() + right.count()];
    if dtype == DType::String {
        return Ok(Tensor::from_strings(&shape, [left.strings()?, right.strings()?].concat())?);
    }
    if dtype.is_sub_byte() {
        return Ok(Tensor::from_codes(dtype, &shape, &[left.codes(), right.codes()].concat())?);
    }
    Ok(Tensor::from_bytes(dtype, &shape, &[left.bytes(), right.bytes()].concat())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::{Dim, Ranges};
    use crate::ops::NoBlocks;
    use crate::ops::testing::run;

    #[test]
    fn elements_of_every_kind_are_chosen() {
        let condition = || Tensor::from_bools(&[2, 1], &[true, false]).unwrap();
        let x = Tensor::from_elements(&[2], &[1i64, 2]).unwrap();
        let y = Tensor::from_elements(&[1], &[9i64]).unwrap();
        let chosen = run(&Select {}, &[condition(), x, y]).unwrap();
        assert_eq!((chosen.shape(), chosen.elements::<i64>().unwrap()), (&[2, 2][..], &[1, 2, 9, 9][..]));
        let text = |text: &str| Tensor::from_strings(&[], vec![text.to_string()]).unwrap();
        let chosen = run(&Select {}, &[condition(), text("a"), text("b")]).unwrap();
        assert_eq!(chosen.strings().unwrap(), ["a", "b"]);
        let nibbles = |code| Tensor::from_codes(DType::I4, &[1], &[code]).unwrap();
        assert_eq!(run(&Select {}, &[condition(), nibbles(3), nibbles(12)]).unwrap().codes(), [3, 12]);
        assert_eq!(
            run(&Select {}, &[nibbles(1), nibbles(1), nibbles(1)]).unwrap_err().to_string(),
            "operand 0 must be bool, found i4"
        );
    }

    #[test]
    fn known_conditions_choose_dimensions() {
        let ranges = Ranges::new();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("select", &ranges, &mut blocks);
        let vector = |dtype, dims: Vec<Dim>| Some(Fact::of_dims(dtype, vec![Dim::from(dims.len())], dims));
        let n = Dim::symbol("n");
        let x = vector(DType::I64, vec![n.clone(), Dim::known(3)]);
        let y = vector(DType::I64, vec![Dim::known(1), Dim::known(3)]);
        let condition = vector(DType::Bool, vec![Dim::known(1), Dim::known(0)]);
        let fact = Select {}.infer(&[condition, x.clone(), y.clone()], &mut context).unwrap();
        assert_eq!(fact[0].elements_as_dims(), Some(vec![n, Dim::known(3)]));
        let unknown = Some(Fact::tensor(DType::Bool, vec![Dim::known(2)]));
        let fact = Select {}.infer(&[unknown.clone(), x, y.clone()], &mut context).unwrap();
        assert_eq!(fact[0].contents, None);
        let fact = Select {}.infer(&[unknown, y.clone(), y], &mut context).unwrap();
        assert_eq!(fact[0].elements_as_integers(), Some(vec![1, 3]));
    }
}
