//! Slices chosen by a condition: ONNX `Compress` (opsets 9, 11, 28).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{flat, follow, moved};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    normalize_axis, required, tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// The slices of `x: [..]` along an axis where `condition: [n]` (bool) is true; where it ends before the axis, the
    /// rest is dropped.
    pub struct Compress revision 1 {
        /// Counted from the back where negative; absent for the elements of all axes as a vector.
        1 since 1 => axis: Option<i64>,
    }
}

/// The number of slices, where condition and axis are known.
fn count(condition: &Fact, total: &Dim) -> Option<Dim> {
    let condition = condition.elements_as_integers()?;
    let within = match total.as_known() {
        Some(total) => condition.len().min(usize::try_from(total).ok()?),
        // A condition that is false all over chooses nothing of any axis.
        None if condition.iter().all(|&chosen| chosen == 0) => 0,
        None => return None,
    };
    Some(Dim::from(condition[..within].iter().filter(|&&chosen| chosen != 0).count()))
}

impl Operator for Compress {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let (found, condition) = tensor_operand(inputs, 1)?;
        if found != DType::Bool {
            return Err(TypeError::ElementType { operand: 1, expected: "bool".to_string(), found });
        }
        if let Some(found) = condition.rank().filter(|&rank| rank != 1) {
            return Err(TypeError::Rank { operand: 1, expected: "1".to_string(), found });
        }
        let condition = required(inputs, 1)?;
        let fresh = context.fresh("count");
        let result = match (shape.dims(), self.axis) {
            (Some(dims), Some(axis)) => {
                let axis = normalize_axis(axis, dims.len())?;
                let mut dims = dims.to_vec();
                dims[axis] = count(condition, &dims[axis]).unwrap_or(fresh);
                Shape::Ranked(dims)
            }
            (Some(dims), None) => Shape::Ranked(vec![count(condition, &Dim::product(dims)).unwrap_or(fresh)]),
            (None, Some(_)) => Shape::Unranked,
            (None, None) => Shape::Ranked(vec![fresh]),
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
        let (data, condition) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        if condition.rank() != 1 {
            return Err(TypeError::Rank { operand: 1, expected: "1".to_string(), found: condition.rank() }.into());
        }
        let chosen = condition.bools()?;
        let (data, axis) = match self.axis {
            Some(axis) => (data.clone(), normalize_axis(axis, data.rank())?),
            None => (data.reshaped(&[data.count()])?, 0),
        };
        let kept: Vec<usize> = (0..chosen.len().min(data.shape()[axis])).filter(|&at| chosen[at]).collect();
        let mut extents = data.shape().to_vec();
        extents[axis] = kept.len();
        let strides = strides(data.shape());
        let mut place = vec![0usize; data.rank()];
        let source = |at: &[usize]| {
            place.copy_from_slice(at);
            place[axis] = kept[at[axis]];
            Some(flat(&place, &strides))
        };
        Ok(vec![moved(&data, &extents, source)?.into()])
    }
}

impl Serial for Compress {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(1), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{dims, first, floats, inferred, iota};
    use crate::tensor::Tensor;

    #[test]
    fn slices_are_chosen() {
        let condition = Tensor::from_bools(&[3], &[false, true, true]).unwrap();
        let rows = first(&Compress { axis: Some(0) }, &[&iota(&[2, 2]), &condition]);
        assert_eq!((rows.shape(), rows.elements::<f32>().unwrap()), (&[1, 2][..], &[2.0, 3.0][..]));
        let elements = first(&Compress { axis: None }, &[&iota(&[2, 2]), &condition]);
        assert_eq!(elements.elements::<f32>().unwrap(), [1.0, 2.0]);
        let condition = Fact::constant(condition);
        assert_eq!(inferred(&Compress { axis: Some(-1) }, &[floats("n, 2"), condition.clone()]), "f32[n, 1]");
        assert_eq!(inferred(&Compress { axis: Some(0) }, &[floats("n, 2"), condition]), "f32[step.count, 2]");
        let unknown = Fact::tensor(DType::Bool, dims("m"));
        assert_eq!(inferred(&Compress { axis: None }, &[floats("n, 2"), unknown]), "f32[step.count]");
    }
}
