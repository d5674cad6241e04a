//! Single elements chosen by index along one axis: ONNX `GatherElements` (opsets 11, 13).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::movement::moving::{flat, follow, index_operand, moved_checked, position};
use crate::ops::{
    Gathers, InferContext, Operator, Read, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers,
    loops, normalize_axis, tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// `data: [..]`, `indices: [..]` (i32, i64) of the same rank to the shape of the indices: each element comes from
    /// its own place but for the axis, where the index says.
    pub struct GatherElements revision 1 {
        /// Counted from the back where negative.
        1 since 1 => axis: i64,
    }
}

impl Operator for GatherElements {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let indices = index_operand(inputs, 1)?;
        if let Some(rank) = shape.rank().or(indices.rank()) {
            normalize_axis(self.axis, rank)?;
        }
        if let (Some(rank), Some(found)) = (shape.rank(), indices.rank())
            && rank != found
        {
            return Err(TypeError::Rank { operand: 1, expected: rank.to_string(), found });
        }
        let mut results = vec![Fact::tensor(dtype, indices.clone())];
        follow(self, inputs, &[0], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (data, indices) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let axis = normalize_axis(self.axis, data.rank())?;
        if indices.rank() != data.rank() {
            let expected = data.rank().to_string();
            return Err(TypeError::Rank { operand: 1, expected, found: indices.rank() }.into());
        }
        let chosen = integers(inputs, 1)?;
        let (data_strides, index_strides) = (strides(data.shape()), strides(indices.shape()));
        let mut place = vec![0usize; data.rank()];
        let source = |at: &[usize]| {
            for (own, &coordinate) in at.iter().enumerate() {
                let index = if own == axis { chosen[flat(at, &index_strides)] } else { coordinate as i64 };
                place[own] = position(index, data.shape()[own])?;
            }
            Ok(flat(&place, &data_strides))
        };
        Ok(vec![moved_checked(data, indices.shape(), source)?.into()])
    }
}

impl Gathers for GatherElements {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |at| Some(loops::operand(1, at)))
    }

    fn read(&self, _operand: usize) -> Read {
        Read::Once
    }

    fn parts(&self, facts: &StepFacts<'_>) -> Dim {
        facts.elements(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{first, floats, inferred, iota, run};
    use crate::tensor::Tensor;

    #[test]
    fn elements_are_chosen() {
        let gather = GatherElements { axis: 1 };
        let indices = Tensor::from_elements(&[2, 2], &[0i64, 0, 1, -2]).unwrap();
        let result = first(&gather, &[&iota(&[2, 2]), &indices]);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 0.0, 3.0, 2.0]);
        let beyond = Tensor::from_elements(&[3, 1], &[0i64, 0, 0]).unwrap();
        assert_eq!(
            run(&gather, &[Some(iota(&[2, 2])), Some(beyond)]).unwrap_err().to_string(),
            "an index is 2, outside -2 to 2 - 1"
        );
        let indices = Fact::tensor(crate::dtype::DType::I32, vec!["n".parse().unwrap()]);
        assert!(inferred(&gather, &[floats("2, 2"), indices]).contains("rank 2, found 1"));
    }
}
