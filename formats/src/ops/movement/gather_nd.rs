//! Slices chosen by tuples of indices: ONNX `GatherND` (opsets 11, 12, 13).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{flat, follow, index_operand, moved_checked, position};
use crate::ops::{
    Gathers, InferContext, Operator, Read, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers,
    loops, tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// `data: [batch.., a.., inner..]`, `indices: [batch.., outer.., k]` (i32, i64; k indices into a..) to
    /// `[batch.., outer.., inner..]`.
    pub struct GatherNd revision 1 {
        /// Number of leading axes that both have in common.
        1 since 1 => batch_dims: i64,
    }
}

impl GatherNd {
    /// The number of batch axes, checked against both ranks.
    fn batch(&self, data_rank: usize, index_rank: usize) -> Result<usize, TypeError> {
        let limit = data_rank.min(index_rank);
        usize::try_from(self.batch_dims).ok().filter(|&batch| batch < limit).ok_or_else(|| TypeError::Value {
            subject: "batch_dims".to_string(),
            found: self.batch_dims.to_string(),
            expected: format!("0 or more and under {limit}"),
        })
    }
}

/// The length of the tuples fits the axes that they index.
pub(crate) fn check_tuple(length: usize, axes: usize) -> Result<(), TypeError> {
    if (1..=axes).contains(&length) {
        return Ok(());
    }
    Err(TypeError::Value {
        subject: "last extent of the indices".to_string(),
        found: length.to_string(),
        expected: format!("1 to {axes}"),
    })
}

impl Operator for GatherNd {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let indices = index_operand(inputs, 1)?;
        let (Some(dims), Some(indices)) = (shape.dims(), indices.dims()) else {
            return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]);
        };
        let batch = self.batch(dims.len(), indices.len())?;
        let (tuple, outer) = indices.split_last().ok_or(TypeError::MissingOperand { operand: 1 })?;
        let mut result = outer.to_vec();
        for axis in 0..batch {
            result[axis] = context.require_equal(&dims[axis], &outer[axis], &format!("batch axis {axis}"))?;
        }
        let result = match tuple.as_known().map(usize::try_from) {
            Some(length) => {
                let length = length.unwrap_or(0);
                check_tuple(length, dims.len() - batch)?;
                result.extend_from_slice(&dims[batch + length..]);
                Shape::Ranked(result)
            }
            None => Shape::Unranked,
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
        let (data, indices) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let batch = self.batch(data.rank(), indices.rank())?;
        let (&length, outer) = indices.shape().split_last().ok_or(TypeError::MissingOperand { operand: 1 })?;
        check_tuple(length, data.rank() - batch)?;
        if data.shape()[..batch] != outer[..batch] {
            let (left, right) = (format!("{:?}", data.shape()), format!("{:?}", indices.shape()));
            return Err(TypeError::Dimension { subject: "batch axes".to_string(), left, right }.into());
        }
        let chosen = integers(inputs, 1)?;
        let extents = [outer, &data.shape()[batch + length..]].concat();
        let (data_strides, outer_strides) = (strides(data.shape()), strides(outer));
        let source = |at: &[usize]| {
            let tuple = flat(&at[..outer.len()], &outer_strides) * length;
            let mut source = flat(&at[..batch], &data_strides);
            for nth in 0..length {
                let axis = batch + nth;
                source += position(chosen[tuple + nth], data.shape()[axis])? * data_strides[axis];
            }
            Ok(source + flat(&at[outer.len()..], &data_strides[batch + length..]))
        };
        Ok(vec![moved_checked(data, &extents, source)?.into()])
    }
}

impl Gathers for GatherNd {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let outer = facts.dims(1).map_or(0, |indices| indices.len().saturating_sub(1));
        loops::mapped(facts, |at| (at < outer).then(|| loops::operand(1, at)))
    }

    /// Tuples may pick elements of any axis: kernels take the data whole.
    fn read(&self, _operand: usize) -> Read {
        Read::Once
    }

    fn parts(&self, facts: &StepFacts<'_>) -> Dim {
        match facts.dims(1) {
            Some([outer @ .., _]) => Dim::product(outer),
            Some([]) | None => facts.fresh("parts"),
        }
    }
}

/// The last extent of an index operand, where it is known.
pub(crate) fn tuple_length(indices: &[Dim]) -> Option<usize> {
    indices.last().and_then(Dim::as_known).and_then(|length| usize::try_from(length).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::movement::moving::testing::{dims, first, floats, inferred, iota, run};
    use crate::tensor::Tensor;

    #[test]
    fn tuples_choose_slices() {
        let indices = Tensor::from_elements(&[2, 1], &[1i64, 0]).unwrap();
        let result = first(&GatherNd { batch_dims: 1 }, &[&iota(&[2, 2, 2]), &indices]);
        assert_eq!((result.shape(), result.elements::<f32>().unwrap()), (&[2, 2][..], &[2.0, 3.0, 4.0, 5.0][..]));
        let indices = Tensor::from_elements(&[2, 2], &[0i64, 0, -1, 1]).unwrap();
        assert_eq!(
            first(&GatherNd { batch_dims: 0 }, &[&iota(&[2, 2]), &indices]).elements::<f32>().unwrap(),
            [0.0, 3.0]
        );
        assert_eq!(
            run(&GatherNd { batch_dims: 2 }, &[Some(iota(&[2, 2])), Some(indices)]).unwrap_err().to_string(),
            "batch_dims is 2, expected 0 or more and under 2"
        );
    }

    #[test]
    fn shapes_are_joined() {
        let indices = |text| Fact::tensor(DType::I64, dims(text));
        assert_eq!(inferred(&GatherNd { batch_dims: 0 }, &[floats("a, b, c"), indices("n, 2")]), "f32[n, c]");
        assert_eq!(inferred(&GatherNd { batch_dims: 1 }, &[floats("a, b, c"), indices("a, n, 1")]), "f32[a, n, c]");
        assert_eq!(inferred(&GatherNd { batch_dims: 0 }, &[floats("a, b"), indices("n, k")]), "f32[..]");
        assert!(inferred(&GatherNd { batch_dims: 0 }, &[floats("a"), indices("n, 2")]).contains("1 to 1"));
        assert!(inferred(&GatherNd { batch_dims: -1 }, &[floats("a"), indices("n, 1")]).contains("batch_dims"));
    }
}
