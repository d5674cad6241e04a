//! Classes as vectors: ONNX `OneHot` (opsets 9, 11, 28).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{count_mismatch, extent, flat, follow, moved, require_single};
use crate::ops::scalar::{Scalar, is_number, scalars};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, normalize_axis, required, tensor, tensor_operand,
};
use crate::tensor::{Tensor, strides};
use crate::value::Value;

attributes! {
    /// `indices: [..]` and `depth: []` (numbers; fractions are cut off), `values: [2]` (off, on) to the shape of the
    /// indices with an axis of extent depth more: on where the index says (from the back where negative), off elsewhere.
    pub struct OneHot revision 1 {
        /// Where the axis is in the result; counted from the back where negative.
        1 since 1 => axis: i64,
    }
}

fn number_operand(inputs: &[Option<Fact>], operand: usize) -> Result<&Shape, TypeError> {
    let (found, shape) = tensor_operand(inputs, operand)?;
    if is_number(found) {
        return Ok(shape);
    }
    Err(TypeError::ElementType { operand, expected: "a real number type".to_string(), found })
}

/// The integer part; `None` for NaN.
fn truncated(scalar: Scalar) -> Option<i128> {
    match scalar {
        Scalar::Integer(integer) => Some(integer),
        Scalar::Float(float) if float.is_nan() => None,
        Scalar::Float(float) => Some(float as i128),
    }
}

fn depth_of(tensor: &Tensor) -> Result<usize, ReferenceError> {
    let [depth] = scalars(tensor)?[..] else { return Err(count_mismatch(1, tensor.count(), 1).into()) };
    extent(truncated(depth).and_then(|depth| i64::try_from(depth).ok()).unwrap_or(-1), "depth")
}

fn depth_dim(fact: &Fact) -> Result<Option<Dim>, TypeError> {
    let depth = match fact.elements_as_dims() {
        Some(elements) => elements.into_iter().next(),
        None => fact.as_constant().and_then(|tensor| depth_of(tensor).ok()).map(Dim::from),
    };
    match depth.as_ref().and_then(Dim::as_known) {
        Some(found) if found < 0 => {
            let (subject, expected) = ("depth".to_string(), "0 and more".to_string());
            Err(TypeError::Value { subject, found: found.to_string(), expected })
        }
        _ => Ok(depth),
    }
}

impl Operator for OneHot {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let indices = number_operand(inputs, 0)?;
        require_single(number_operand(inputs, 1)?, 1)?;
        let (dtype, values) = tensor_operand(inputs, 2)?;
        if let Some(dims) = values.dims() {
            let [count] = dims else {
                return Err(TypeError::Rank { operand: 2, expected: "1".to_string(), found: dims.len() });
            };
            context.require_equal(count, &Dim::known(2), "number of values")?;
        }
        let depth = depth_dim(required(inputs, 1)?)?.unwrap_or_else(|| context.fresh("depth"));
        let result = match indices.dims() {
            Some(dims) => {
                let mut dims = dims.to_vec();
                dims.insert(normalize_axis(self.axis, dims.len() + 1)?, depth);
                Shape::Ranked(dims)
            }
            None => Shape::Unranked,
        };
        let mut results = vec![Fact::tensor(dtype, result)];
        if inputs.first().and_then(Option::as_ref).and_then(Fact::dtype) != Some(DType::Bool) {
            follow(self, inputs, &[2], &mut results);
        }
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (indices, values) = (tensor(inputs, 0)?, tensor(inputs, 2)?);
        if values.shape() != [2] {
            return Err(count_mismatch(2, values.count(), 2).into());
        }
        let depth = depth_of(tensor(inputs, 1)?)?;
        let axis = normalize_axis(self.axis, indices.rank() + 1)?;
        let chosen: Vec<Option<i128>> = scalars(indices)?.into_iter().map(truncated).collect();
        let mut extents = indices.shape().to_vec();
        extents.insert(axis, depth);
        let index_strides = strides(indices.shape());
        let source = |at: &[usize]| {
            let index = chosen[flat(&at[..axis], &index_strides) + flat(&at[axis + 1..], &index_strides[axis..])];
            let class = index.map(|index| if index < 0 { index + depth as i128 } else { index });
            Some(usize::from(class == Some(at[axis] as i128)))
        };
        Ok(vec![moved(values, &extents, source)?.into()])
    }
}

impl Computes for OneHot {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let axis = facts.result(0).and_then(|dims| normalize_axis(self.axis, dims.len()).ok());
        let Some(axis) = axis else { return loops::serial(facts) };
        loops::mapped(facts, |at| (at != axis).then(|| loops::operand(0, if at < axis { at } else { at - 1 })))
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{contents, dims, first, floats, inferred, run};

    fn values() -> Tensor {
        Tensor::from_elements(&[2], &[0f32, 1.0]).unwrap()
    }

    fn depth(depth: i64) -> Tensor {
        Tensor::from_elements(&[], &[depth]).unwrap()
    }

    #[test]
    fn classes_become_vectors() {
        let one_hot = OneHot { axis: -1 };
        let result = first(&one_hot, &[&Tensor::vector_i64(&[1, -1, 3, -4]), &depth(3), &values()]);
        let expected = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0; 3], [0.0; 3]].concat();
        assert_eq!(result.elements::<f32>().unwrap(), expected);
        let across = first(&OneHot { axis: 0 }, &[&Tensor::vector_i64(&[1, 0]), &depth(2), &values()]);
        assert_eq!(across.elements::<f32>().unwrap(), [0.0, 1.0, 1.0, 0.0]);
        let fractions = Tensor::from_elements(&[3], &[1.9f32, -0.5, f32::NAN]).unwrap();
        let result = first(&one_hot, &[&fractions, &Tensor::from_elements(&[1], &[2.5f64]).unwrap(), &values()]);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(
            run(&one_hot, &[Some(depth(0)), Some(depth(-1)), Some(values())]).unwrap_err().to_string(),
            "depth is -1, outside 0 and more"
        );
    }

    #[test]
    fn the_depth_is_an_extent() {
        let indices = Fact::tensor(DType::I32, dims("n, m"));
        assert_eq!(inferred(&OneHot { axis: 1 }, &[indices.clone(), contents("c"), floats("2")]), "f32[n, c, m]");
        let unknown = Fact::tensor(DType::F32, Vec::new());
        assert_eq!(inferred(&OneHot { axis: -1 }, &[indices.clone(), unknown, floats("2")]), "f32[n, m, step.depth]");
        assert!(inferred(&OneHot { axis: 3 }, &[indices, contents("c"), floats("2")]).contains("axis 3"));
    }
}
