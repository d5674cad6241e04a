//! Axes cut or padded with zeros around their center: ONNX `CenterCropPad` (opset 18).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{count_mismatch, distinct_axes, extent, flat, follow, integer_vector, moved};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers, loops,
    tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// `x: [..]` with the extents `shape: [n]` (i32, i64) at the axes. Of an odd difference the larger half is at the end.
    pub struct CenterCropPad revision 1 {
        /// The axes; absent for all.
        1 since 1 => axes: Option<Vec<i64>>,
    }
}

impl CenterCropPad {
    fn chosen(&self, rank: usize) -> Result<Vec<usize>, TypeError> {
        match &self.axes {
            Some(axes) => distinct_axes(axes, rank),
            None => Ok((0..rank).collect()),
        }
    }
}

impl Operator for CenterCropPad {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let target = integer_vector(inputs, 1)?;
        let Some(dims) = shape.dims() else { return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]) };
        let axes = self.chosen(dims.len())?;
        if let Some(found) = target.length.filter(|&length| length != axes.len()) {
            return Err(count_mismatch(1, found, axes.len()));
        }
        let mut result = dims.to_vec();
        for (at, axis) in axes.into_iter().enumerate() {
            result[axis] = match &target.elements {
                Some(elements) => elements[at].clone(),
                None => context.fresh(&format!("dim{axis}")),
            };
        }
        if let Some(found) = result.iter().filter_map(Dim::as_known).find(|&extent| extent < 0) {
            let (subject, expected) = ("shape".to_string(), "0 and more".to_string());
            return Err(TypeError::Value { subject, found: found.to_string(), expected });
        }
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
        let axes = self.chosen(data.rank())?;
        let target = integers(inputs, 1)?;
        if target.len() != axes.len() {
            return Err(count_mismatch(1, target.len(), axes.len()).into());
        }
        let mut extents = data.shape().to_vec();
        for (axis, element) in axes.into_iter().zip(target) {
            extents[axis] = extent(element, "shape")?;
        }
        let strides = strides(data.shape());
        let mut place = vec![0usize; data.rank()];
        let source = |at: &[usize]| {
            for (axis, &own) in data.shape().iter().enumerate() {
                let cut = own.saturating_sub(extents[axis]) / 2;
                let padded = extents[axis].saturating_sub(own) / 2;
                place[axis] = (at[axis] + cut).checked_sub(padded).filter(|&at| at < own)?;
            }
            Some(flat(&place, &strides))
        };
        Ok(vec![moved(data, &extents, source)?.into()])
    }
}

impl Moves for CenterCropPad {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let dims = facts.dims(0).unwrap_or(&[]);
        let same = |axis: usize| dims.get(axis).zip(facts.result(0)).is_some_and(|(own, result)| *own == result[axis]);
        loops::mapped(facts, |axis| same(axis).then(|| loops::operand(0, axis)))
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, _inputs: &[Option<Fact>], _result: &Fact) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{contents, first, floats, inferred, iota, vector};
    use crate::tensor::Tensor;

    #[test]
    fn the_center_stays() {
        let fitted = |count, target| {
            let result = first(&CenterCropPad { axes: None }, &[&iota(&[count]), &Tensor::vector_i64(&[target])]);
            result.elements::<f32>().unwrap().to_vec()
        };
        assert_eq!(fitted(5, 2), [1.0, 2.0]);
        assert_eq!(fitted(4, 1), [1.0]);
        assert_eq!(fitted(3, 6), [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
        assert_eq!(fitted(0, 2), [0.0, 0.0]);
    }

    #[test]
    fn extents_are_given() {
        let crop = CenterCropPad { axes: Some(vec![-1, 0]) };
        assert_eq!(inferred(&crop, &[floats("a, b, c"), contents("n, 4")]), "f32[4, b, n]");
        assert!(inferred(&crop, &[floats("a, b, c"), vector(&[3])]).contains("expected 2"));
        assert!(inferred(&crop, &[floats("a, b, c"), vector(&[3, -1])]).contains("shape is -1"));
    }
}
