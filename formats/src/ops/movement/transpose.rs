//! Axes in another order: ONNX `Transpose` (opsets 1, 13, 21, 23, 24, 25).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{distinct_axes, flat, follow, moved};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, loops, tensor,
    tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// Axis i of the result is axis `permutation[i]` of `x: [..]`.
    pub struct Transpose revision 1 {
        /// Every axis once; empty reverses the axes.
        1 since 1 => permutation: Vec<i64>,
    }
}

impl Transpose {
    /// The axis of the operand behind each axis of the result.
    ///
    /// # Errors
    /// [`TypeError`] where the attribute is not a permutation of the axes.
    pub fn axes(&self, rank: usize) -> Result<Vec<usize>, TypeError> {
        if self.permutation.is_empty() {
            return Ok((0..rank).rev().collect());
        }
        if self.permutation.len() != rank {
            let expected = format!("{}, the length of the permutation", self.permutation.len());
            return Err(TypeError::Rank { operand: 0, expected, found: rank });
        }
        distinct_axes(&self.permutation, rank)
    }

    /// Whether the elements of an operand of these extents stay in their order, since only axes of extent 1 move.
    pub fn keeps_order(&self, extents: &[usize]) -> bool {
        let Ok(axes) = self.axes(extents.len()) else { return false };
        axes.into_iter().filter(|&axis| extents[axis] != 1).is_sorted()
    }
}

impl Operator for Transpose {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let result = match shape.dims() {
            Some(dims) => Shape::Ranked(self.axes(dims.len())?.into_iter().map(|axis| dims[axis].clone()).collect()),
            None if self.permutation.is_empty() => Shape::Unranked,
            None => {
                self.axes(self.permutation.len())?;
                crate::ops::movement::moving::unknown_shape(context, Some(self.permutation.len()))
            }
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
        let axes = self.axes(data.rank())?;
        let own = strides(data.shape());
        let extents: Vec<usize> = axes.iter().map(|&axis| data.shape()[axis]).collect();
        let strides: Vec<usize> = axes.iter().map(|&axis| own[axis]).collect();
        Ok(vec![moved(data, &extents, |at| Some(flat(at, &strides)))?.into()])
    }
}

impl Moves for Transpose {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let axes = facts.dims(0).and_then(|dims| self.axes(dims.len()).ok());
        match axes {
            Some(axes) => loops::mapped(facts, |axis| axes.get(axis).map(|&own| loops::operand(0, own))),
            None => loops::serial(facts),
        }
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, inputs: &[Option<Fact>], _result: &Fact) -> bool {
        let rank = inputs.first().and_then(Option::as_ref).and_then(Fact::rank);
        let axes = rank.and_then(|rank| self.axes(rank).ok());
        axes.is_some_and(|axes| axes.iter().enumerate().all(|(at, &axis)| at == axis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::movement::moving::testing::{first, floats, inferred, iota};
    use crate::tensor::Tensor;

    #[test]
    fn axes_move() {
        let transpose = Transpose { permutation: vec![2, 0, 1] };
        assert_eq!(inferred(&transpose, &[floats("n, 3, 4")]), "f32[4, n, 3]");
        assert_eq!(inferred(&Transpose { permutation: vec![] }, &[floats("n, 3, 4")]), "f32[4, 3, n]");
        assert!(inferred(&transpose, &[floats("n, 3")]).contains("rank 3"));
        assert!(inferred(&Transpose { permutation: vec![0, 0] }, &[floats("n, 3")]).contains("at most once"));
        let result = first(&Transpose { permutation: vec![1, 0] }, &[&iota(&[2, 3])]);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        let nibbles = Tensor::from_codes(DType::I4, &[2, 2], &[1, 2, 3, 4]).unwrap();
        assert_eq!(first(&Transpose { permutation: vec![] }, &[&nibbles]).codes(), [1, 3, 2, 4]);
    }

    #[test]
    fn elements_stay_in_order_where_only_axes_of_extent_1_move() {
        let heads = Transpose { permutation: vec![0, 2, 1, 3] };
        assert!(heads.keeps_order(&[2, 1, 3, 4]) && heads.keeps_order(&[2, 3, 1, 4]));
        assert!(!heads.keeps_order(&[2, 3, 2, 4]) && !heads.keeps_order(&[2, 3]));
        assert!(Transpose { permutation: vec![] }.keeps_order(&[1, 5, 1]));
    }

    #[test]
    fn a_permutation_that_moves_nothing_is_an_identity() {
        let fact = [Some(floats("n, 3"))];
        assert!(Transpose { permutation: vec![0, 1] }.is_identity(&fact, &floats("n, 3")));
        assert!(!Transpose { permutation: vec![1, 0] }.is_identity(&fact, &floats("3, n")));
    }
}
