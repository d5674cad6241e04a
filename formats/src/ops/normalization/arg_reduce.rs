//! Index of the largest or smallest element along an axis: ONNX `ArgMax` and `ArgMin` (opsets 1, 11, 12, 13).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::element::Number;
use crate::fact::{Fact, Shape};
use crate::ops::normalization::reduce::{reduced_extents, sets};
use crate::ops::{
    AxisKind, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError,
    VectorClass, each, loops, normalize_axis, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;
use crate::with_number;

attributes! {
    /// Index along `axis` of the largest element: `data: [..]` to `i64[..]`. NaN wins over every number.
    pub struct ArgReduce revision 1 {
        /// The smallest element instead of the largest.
        1 since 1 => smallest: bool,
        /// Counted from the back where negative.
        2 since 1 => axis: i64,
        /// The axis stays, with extent 1.
        3 since 1 => keep_axis: bool,
        /// Of several equal elements the last instead of the first.
        4 since 1 => last: bool,
    }
}

fn takes(dtype: DType) -> bool {
    dtype.bits() >= 8 && (dtype.is_integer() || dtype.is_float() && !dtype.is_narrow_float())
}

impl Operator for ArgReduce {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if !takes(dtype) {
            let expected = "a number type of at least 8 bits".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        let Shape::Ranked(dims) = shape else { return Ok(vec![Fact::tensor(DType::I64, Shape::Unranked)]) };
        let axis = normalize_axis(self.axis, dims.len())?;
        if dims[axis].as_known() == Some(0) {
            return Err(no_element(self.axis));
        }
        if !dims[axis].is_known() {
            context.oblige(crate::ops::Relation::AtMost, &Dim::ONE, &dims[axis], "extent of the reduced axis");
        }
        let mut dims = dims.to_vec();
        if self.keep_axis {
            dims[axis] = Dim::ONE;
        } else {
            dims.remove(axis);
        }
        Ok(vec![Fact::tensor(DType::I64, dims)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let axis = normalize_axis(self.axis, data.rank())?;
        let found = with_number!(
            data.dtype(),
            T => self.find::<T>(data, axis)?,
            otherwise return Err(TypeError::Unsupported(format!("arg_reduce of {}", data.dtype())).into())
        );
        let extents = reduced_extents(data.shape(), &[axis], self.keep_axis);
        Ok(vec![Tensor::from_elements(&extents, &found)?.into()])
    }
}

impl Computes for ArgReduce {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        match facts.dims(0).map(|dims| normalize_axis(self.axis, dims.len())) {
            Some(Ok(axis)) => loops::along(facts, &[axis], AxisKind::Reduced, self.keep_axis),
            Some(Err(_)) | None => loops::serial(facts),
        }
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

fn no_element(axis: i64) -> TypeError {
    TypeError::Value {
        subject: format!("extent of axis {axis}"),
        found: "0".to_string(),
        expected: "at least one element to choose from".to_string(),
    }
}

impl ArgReduce {
    fn find<T: Number>(&self, data: &Tensor, axis: usize) -> Result<Vec<i64>, ReferenceError> {
        let elements = data.elements::<T>()?;
        let sets = sets(data.shape(), &[axis])?;
        if sets.offsets.is_empty() && !sets.starts.is_empty() {
            return Err(no_element(self.axis).into());
        }
        let choose = |start: &usize| {
            let mut best = 0usize;
            for candidate in 1..sets.offsets.len() {
                let (value, so_far) = (elements[start + sets.offsets[candidate]], elements[start + sets.offsets[best]]);
                if self.wins(value, so_far) {
                    best = candidate;
                }
            }
            best as i64
        };
        Ok(sets.starts.iter().map(choose).collect())
    }

    /// Whether a later element is chosen over the one that was chosen so far.
    pub fn wins<T: Number>(&self, value: T, so_far: T) -> bool {
        let is_nan = |number: T| number.partial_cmp(&number).is_none();
        let (value_is_nan, so_far_is_nan) = (is_nan(value), is_nan(so_far));
        if value_is_nan || so_far_is_nan {
            return value_is_nan && (!so_far_is_nan || self.last);
        }
        let better = if self.smallest { value < so_far } else { value > so_far };
        better || (self.last && value == so_far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    fn find(operator: &ArgReduce, data: Tensor) -> Result<Vec<i64>, ReferenceError> {
        let mut blocks = NoBlocks;
        let results = operator.reference(&[Some(data.into())], &mut ReferenceContext::new(&mut blocks))?;
        Ok(results[0].as_tensor().unwrap().elements::<i64>().unwrap().to_vec())
    }

    fn operator(smallest: bool, axis: i64, last: bool) -> ArgReduce {
        ArgReduce { smallest, axis, keep_axis: true, last }
    }

    #[test]
    fn first_or_last_of_equals() {
        let data = || Tensor::from_elements(&[2, 3], &[2.0f32, 1.0, 2.0, 3.0, 3.0, 10.0]).unwrap();
        assert_eq!(find(&operator(false, 1, false), data()).unwrap(), [0, 2]);
        assert_eq!(find(&operator(false, 1, true), data()).unwrap(), [2, 2]);
        assert_eq!(find(&operator(true, -1, true), data()).unwrap(), [1, 1]);
        assert_eq!(find(&operator(false, 0, false), data()).unwrap(), [1, 1, 1]);
    }

    #[test]
    fn large_integers_are_told_apart() {
        let data = Tensor::vector_i64(&[(1 << 53) + 1, 1 << 53, (1 << 53) + 2]);
        assert_eq!(find(&operator(false, 0, false), data).unwrap(), [2]);
    }

    #[test]
    fn nan_wins() {
        let data = || Tensor::from_elements(&[4], &[1.0f32, f32::NAN, f32::NAN, 2.0]).unwrap();
        assert_eq!(find(&operator(false, 0, false), data()).unwrap(), [1]);
        assert_eq!(find(&operator(true, 0, false), data()).unwrap(), [1]);
        assert_eq!(find(&operator(true, 0, true), data()).unwrap(), [2]);
    }

    #[test]
    fn an_empty_axis_is_refused() {
        assert_eq!(
            find(&operator(false, 1, false), Tensor::zeros(DType::F32, &[2, 0]).unwrap()).unwrap_err().to_string(),
            "extent of axis 1 is 0, expected at least one element to choose from"
        );
        assert!(find(&operator(false, 1, false), Tensor::zeros(DType::F32, &[0, 0]).unwrap()).unwrap().is_empty());
    }

    #[test]
    fn the_axis_is_kept_or_removed() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("a", &ranges, &mut blocks);
        let data = [Some(Fact::tensor(DType::F32, vec![Dim::symbol("n"), Dim::known(3)]))];
        let kept = operator(false, 1, false).infer(&data, &mut context).unwrap();
        assert_eq!(kept[0].kind.to_string(), "i64[n, 1]");
        let removed = ArgReduce { keep_axis: false, ..operator(false, 0, false) }.infer(&data, &mut context).unwrap();
        assert_eq!(removed[0].kind.to_string(), "i64[3]");
        assert_eq!(context.obligations.len(), 1);
    }
}
