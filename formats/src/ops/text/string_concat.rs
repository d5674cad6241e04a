//! Joining texts element by element: ONNX `StringConcat` (opset 20).

use crate::attributes;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::broadcast::{broadcast_extents, broadcast_shapes, broadcast_strides, strided_indices};
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError, VectorClass, tensor,
    tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Each text of `left` followed by that of `right`, with broadcasting.
    pub struct StringConcat revision 1 {}
}

/// Require a tensor of strings.
pub(super) fn string_operand(inputs: &[Option<Fact>], operand: usize) -> Result<&crate::fact::Shape, TypeError> {
    match tensor_operand(inputs, operand)? {
        (DType::String, shape) => Ok(shape),
        (found, _) => Err(TypeError::ElementType { operand, expected: "string".to_string(), found }),
    }
}

impl Operator for StringConcat {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let shapes = [string_operand(inputs, 0)?, string_operand(inputs, 1)?];
        Ok(vec![Fact::tensor(DType::String, broadcast_shapes(&shapes, context)?)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (left, right) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let (heads, tails) = (left.strings()?, right.strings()?);
        let extents = broadcast_extents(&[left.shape(), right.shape()])?;
        let left_indices = strided_indices(&extents, &broadcast_strides(left.shape(), &extents));
        let right_indices = strided_indices(&extents, &broadcast_strides(right.shape(), &extents));
        let joined = left_indices.zip(right_indices).map(|(head, tail)| format!("{}{}", heads[head], tails[tail]));
        Ok(vec![Tensor::from_strings(&extents, joined.collect())?.into()])
    }
}

impl Elementwise for StringConcat {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        vec![(VectorClass::Arithmetic, 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;

    #[test]
    fn the_examples_of_the_onnx_page() {
        let run = |left: Tensor, right: Tensor| {
            let mut blocks = NoBlocks;
            let inputs = [Some(left.into()), Some(right.into())];
            StringConcat {}.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap()
        };
        let texts = |shape: &[usize], texts: &[&str]| {
            Tensor::from_strings(shape, texts.iter().map(|text| text.to_string()).collect()).unwrap()
        };
        let joined = run(texts(&[3], &["cat", "dog", "snake"]), texts(&[1], &["s"]));
        assert_eq!(joined, [texts(&[3], &["cats", "dogs", "snakes"]).into()]);
        let joined = run(texts(&[], &["的"]), texts(&[2, 1], &["", "中"]));
        assert_eq!(joined, [texts(&[2, 1], &["的", "的中"]).into()]);
    }
}
