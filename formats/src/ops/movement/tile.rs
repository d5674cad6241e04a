//! A tensor repeated along its axes: ONNX `Tile` (opsets 6, 13).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{count_mismatch, extent, flat, follow, integer_vector, moved, unknown_shape};
use crate::ops::{
    AxisKind, InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers,
    loops, optional, tensor, tensor_operand,
};
use crate::tensor::{TensorError, strides};
use crate::value::Value;

attributes! {
    /// `x: [..]`, `repeats: [rank]` (i64): axis i of x, `repeats[i]` times over.
    pub struct Tile revision 1 {}
}

impl Operator for Tile {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let repeats = integer_vector(inputs, 1)?;
        if let (Some(rank), Some(length)) = (shape.rank(), repeats.length)
            && rank != length
        {
            return Err(count_mismatch(1, length, rank));
        }
        let result = match (shape.dims(), repeats.elements) {
            (Some(dims), Some(repeats)) => {
                if let Some(found) = repeats.iter().filter_map(Dim::as_known).find(|&repeat| repeat < 0) {
                    let (subject, expected) = ("repeats".to_string(), "0 and more".to_string());
                    return Err(TypeError::Value { subject, found: found.to_string(), expected });
                }
                Shape::Ranked(dims.iter().zip(&repeats).map(|(dim, repeat)| dim * repeat).collect())
            }
            (dims, _) => unknown_shape(context, dims.map(<[Dim]>::len).or(repeats.length)),
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
        let repeats = integers(inputs, 1)?;
        if repeats.len() != data.rank() {
            return Err(count_mismatch(1, repeats.len(), data.rank()).into());
        }
        let mut extents = Vec::with_capacity(repeats.len());
        for (&own, &repeat) in data.shape().iter().zip(&repeats) {
            let too_large = || TensorError::TooLarge { dtype: data.dtype(), shape: data.shape().to_vec() };
            extents.push(own.checked_mul(extent(repeat, "repeats")?).ok_or_else(too_large)?);
        }
        let strides = strides(data.shape());
        let mut within = vec![0usize; data.rank()];
        let source = |at: &[usize]| {
            for (axis, extent) in data.shape().iter().enumerate() {
                within[axis] = at[axis] % extent;
            }
            Some(flat(&within, &strides))
        };
        Ok(vec![moved(data, &extents, source)?.into()])
    }
}

impl Moves for Tile {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::broadcast(facts, 1, |_| AxisKind::Parallel)
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, inputs: &[Option<Fact>], _result: &Fact) -> bool {
        let repeats = optional(inputs, 1).and_then(Fact::elements_as_integers);
        repeats.is_some_and(|repeats| repeats.iter().all(|&repeat| repeat == 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{contents, first, floats, inferred, iota, run, vector};
    use crate::tensor::Tensor;

    #[test]
    fn axes_are_repeated() {
        assert_eq!(inferred(&Tile {}, &[floats("n, 3"), contents("2, m")]), "f32[2*n, 3*m]");
        assert!(inferred(&Tile {}, &[floats("n, 3"), vector(&[2])]).contains("operand 1"));
        assert!(inferred(&Tile {}, &[floats("n"), vector(&[-2])]).contains("repeats is -2"));
        let result = first(&Tile {}, &[&iota(&[1, 2]), &Tensor::vector_i64(&[2, 2])]);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
        assert_eq!(first(&Tile {}, &[&iota(&[2]), &Tensor::vector_i64(&[0])]).shape(), [0]);
        assert_eq!(
            run(&Tile {}, &[Some(iota(&[2])), Some(Tensor::vector_i64(&[i64::MAX]))]).unwrap_err().to_string(),
            "f32[18446744073709551614] is too large to address"
        );
        assert_eq!(
            run(&Tile {}, &[Some(iota(&[2])), Some(Tensor::vector_i64(&[1, 1]))]).unwrap_err().to_string(),
            "number of elements of operand 1 is 2, expected 1"
        );
    }
}
