//! Repetition along axes of extent 1, by multidirectional broadcasting: ONNX `Expand` (opsets 8, 13) and
//! `ConstantOfShape` (of a scalar).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::{broadcast_extents, broadcast_shapes, broadcast_strides};
use crate::ops::movement::moving::{extent, flat, follow, integer_vector, moved, unknown_shape};
use crate::ops::{
    AxisKind, InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers,
    loops, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// `x: [..]`, `shape: [rank]` (i64) to the shape that both broadcast to.
    pub struct Expand revision 1 {}
}

/// The shape where the contents of the shape operand are unknown: extents above 1 stay.
fn partly_known(shape: &Shape, length: Option<usize>, context: &InferContext<'_>) -> Shape {
    let (Some(dims), Some(length)) = (shape.dims(), length) else { return Shape::Unranked };
    let Shape::Ranked(mut result) = unknown_shape(context, Some(length.max(dims.len()))) else {
        return Shape::Unranked;
    };
    let offset = result.len() - dims.len();
    for (axis, dim) in dims.iter().enumerate() {
        if offset + axis < result.len() - length || dim.as_known().is_some_and(|extent| extent > 1) {
            result[offset + axis] = dim.clone();
        }
    }
    Shape::Ranked(result)
}

impl Operator for Expand {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let target = integer_vector(inputs, 1)?;
        let result = match target.elements {
            Some(elements) => {
                if let Some(negative) = elements.iter().filter_map(Dim::as_known).find(|&extent| extent < 0) {
                    let (subject, expected) = ("shape".to_string(), "0 and more".to_string());
                    return Err(TypeError::Value { subject, found: negative.to_string(), expected });
                }
                broadcast_shapes(&[shape, &Shape::Ranked(elements)], context)?
            }
            None => partly_known(shape, target.length, context),
        };
        let mut results = vec![Fact::tensor(dtype, result)];
        follow(self, inputs, &[0], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let target: Vec<usize> =
            integers(inputs, 1)?.into_iter().map(|element| extent(element, "shape")).collect::<Result<_, _>>()?;
        let extents = broadcast_extents(&[data.shape(), &target])?;
        let strides = broadcast_strides(data.shape(), &extents);
        Ok(vec![moved(data, &extents, |at| Some(flat(at, &strides)))?.into()])
    }
}

impl Moves for Expand {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::broadcast(facts, 1, |_| AxisKind::Parallel)
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, inputs: &[Option<Fact>], result: &Fact) -> bool {
        inputs.first().and_then(Option::as_ref).is_some_and(|data| data.rank().is_some() && data.kind == result.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::movement::moving::testing::{contents, first, floats, infer, inferred, iota, vector};
    use crate::tensor::Tensor;

    #[test]
    fn shapes_broadcast_both_ways() {
        assert_eq!(inferred(&Expand {}, &[floats("3, 1"), vector(&[2, 1, 6])]), "f32[2, 3, 6]");
        assert_eq!(inferred(&Expand {}, &[floats("n, 1"), contents("1, m")]), "f32[n, m]");
        assert_eq!(inferred(&Expand {}, &[floats(""), contents("n, m")]), "f32[n, m]");
        let shape = Fact::tensor(DType::I64, vec![Dim::known(2)]);
        assert_eq!(inferred(&Expand {}, &[floats("5, 3, 1"), shape]), "f32[5, 3, step.dim2]");
        assert!(inferred(&Expand {}, &[floats("3"), vector(&[4])]).contains("does not fit"));
        assert!(inferred(&Expand {}, &[floats("3"), vector(&[-1])]).contains("shape is -1"));
    }

    #[test]
    fn contents_are_repeated() {
        let (facts, _) = infer(&Expand {}, &[Some(contents("n")), Some(vector(&[3]))]).unwrap();
        assert_eq!(facts[0].elements_as_dims().unwrap(), vec![Dim::symbol("n"); 3]);
    }

    #[test]
    fn elements_are_repeated() {
        let result = first(&Expand {}, &[&iota(&[2, 1]), &Tensor::vector_i64(&[2, 1, 2])]);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!(first(&Expand {}, &[&iota(&[1]), &Tensor::vector_i64(&[0])]).shape(), [0]);
    }
}
