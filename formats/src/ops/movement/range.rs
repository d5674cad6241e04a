//! Evenly spaced numbers: ONNX `Range` (opsets 11, 27).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Contents, Fact, MAXIMUM_FOLLOWED_ELEMENTS};
use crate::ops::movement::moving::require_single;
use crate::ops::scalar::{Scalar, from_scalars, is_number, round_to, scalars};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, required, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError};
use crate::value::Value;

attributes! {
    /// `start + i * delta` for `start: []`, `limit: []`, `delta: []` of one number type, as long as it is before the limit:
    /// `[max(ceil((limit - start) / delta), 0)]`. f16 and bf16 are computed in f32.
    pub struct Range revision 1 {}
}

fn zero_delta() -> TypeError {
    TypeError::Value { subject: "delta".to_string(), found: "0".to_string(), expected: "anything else".to_string() }
}

/// How many numbers there are from start to limit in steps of delta.
fn counted(bounds: [Scalar; 3], dtype: DType) -> Result<i128, ReferenceError> {
    let [start, limit, delta] = bounds;
    if let (Scalar::Integer(start), Scalar::Integer(limit), Scalar::Integer(delta)) = (start, limit, delta) {
        if delta == 0 {
            return Err(zero_delta().into());
        }
        let (span, magnitude) = if delta > 0 { (limit - start, delta) } else { (start - limit, -delta) };
        return Ok((span.max(0) + magnitude - 1) / magnitude);
    }
    let (start, limit, delta) = (start.to_f64(), limit.to_f64(), delta.to_f64());
    // The difference in the type itself (f32 for halves), the quotient in f64: what ONNX Runtime does.
    let difference = if dtype == DType::F64 { limit - start } else { round_to(DType::F32, limit - start) };
    let count = (difference / delta).ceil();
    if delta == 0.0 {
        return Err(zero_delta().into());
    }
    if count.is_nan() || count > 2f64.powi(53) {
        let (subject, range) = ("a count of numbers".to_string(), "0 to 2^53".to_string());
        return Err(ReferenceError::OutOfRange { subject, found: i64::MAX, range });
    }
    Ok(count.max(0.0) as i128)
}

impl Range {
    fn dtype(inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
        let (dtype, _) = tensor_operand(inputs, 0)?;
        if !is_number(dtype) || dtype.bits() < 8 || dtype.is_narrow_float() {
            let expected = "a number type of at least 8 bits".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        for operand in 0..3 {
            let (found, shape) = tensor_operand(inputs, operand)?;
            if found != dtype {
                return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found });
            }
            require_single(shape, operand)?;
        }
        Ok(dtype)
    }

    /// The extent for bounds that are known as dimensions.
    fn of_dims(start: &Dim, limit: &Dim, delta: &Dim, context: &InferContext<'_>) -> Result<Option<Dim>, TypeError> {
        let (least, greatest) = delta.bounds(context.ranges);
        if delta.as_known() == Some(0) {
            return Err(zero_delta());
        }
        if let (Some(start), Some(limit), Some(delta)) = (start.as_known(), limit.as_known(), delta.as_known()) {
            // The difference of two extreme numbers does not fit into a dimension.
            let bounds = [start, limit, delta].map(|bound| Scalar::Integer(bound.into()));
            let count = counted(bounds, DType::I64).ok().and_then(|count| i64::try_from(count).ok());
            return Ok(count.map(Dim::known));
        }
        let quotient = if least > 0 {
            (limit - start).ceil_div(delta)
        } else if greatest < 0 {
            (start - limit).ceil_div(&-delta)
        } else {
            return Ok(None);
        };
        let count = Dim::max(&quotient, &Dim::ZERO).simplify(context.ranges);
        Ok((!count.is_refused()).then_some(count))
    }
}

/// The scalar operand as a dimension.
fn dim_of(fact: &Fact) -> Option<Dim> {
    fact.elements_as_dims()?.into_iter().next()
}

impl Operator for Range {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let dtype = Range::dtype(inputs)?;
        let operands = [required(inputs, 0)?, required(inputs, 1)?, required(inputs, 2)?];
        let mut result = Fact::tensor(dtype, vec![context.fresh("count")]);
        if let [Some(start), Some(limit), Some(delta)] = operands.map(dim_of) {
            if let Some(count) = Range::of_dims(&start, &limit, &delta, context)? {
                let known = count.as_known();
                result = Fact::tensor(dtype, vec![count]);
                if let Some(count) = known.filter(|&count| count <= MAXIMUM_FOLLOWED_ELEMENTS as i64) {
                    let elements = (0..count).map(|index| &start + &delta * index).collect();
                    result.contents = Some(Contents::Dims(elements));
                }
            }
        } else if let [Some(start), Some(limit), Some(delta)] = operands.map(Fact::as_constant)
            && let Ok(bounds) = bounds_of(&[start, limit, delta])
            && let Ok(count) = counted(bounds, dtype)
        {
            result = Fact::tensor(dtype, vec![Dim::known(i64::try_from(count).unwrap_or(i64::MAX))]);
        }
        Ok(vec![result])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (dtype, count) = (tensor(inputs, 0)?.dtype(), self.count(inputs)?);
        let bounds = bounds_of(&[tensor(inputs, 0)?, tensor(inputs, 1)?, tensor(inputs, 2)?])?;
        let too_large = || TensorError::TooLarge { dtype, shape: vec![count] };
        let mut elements = Vec::new();
        elements.try_reserve_exact(count).map_err(|_| too_large())?;
        let [start, _, delta] = bounds;
        elements.extend((0..count).map(|index| match (start, delta) {
            (Scalar::Integer(start), Scalar::Integer(delta)) => Scalar::Integer(start + delta * index as i128),
            (start, delta) => Scalar::Float(start.to_f64() + delta.to_f64() * index as f64),
        }));
        Ok(vec![from_scalars(dtype, &[count], &elements)?.into()])
    }
}

impl Range {
    /// The number of elements for these operands.
    ///
    /// # Errors
    /// [`ReferenceError`] where operands differ in type or are no single numbers, or there are too many elements.
    pub fn count(&self, inputs: &[Option<Value>]) -> Result<usize, ReferenceError> {
        let operands = [tensor(inputs, 0)?, tensor(inputs, 1)?, tensor(inputs, 2)?];
        let dtype = operands[0].dtype();
        if let Some(operand) = operands.iter().position(|operand| operand.dtype() != dtype) {
            let (expected, found) = (dtype.to_string(), operands[operand].dtype());
            return Err(TypeError::ElementType { operand, expected, found }.into());
        }
        let counted = counted(bounds_of(&operands)?, dtype)?;
        let too_large = || TensorError::TooLarge { dtype, shape: vec![usize::MAX] };
        Ok(usize::try_from(counted).map_err(|_| too_large())?)
    }
}

impl Computes for Range {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |_| None)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 2)])
    }
}

fn bounds_of(operands: &[&Tensor; 3]) -> Result<[Scalar; 3], ReferenceError> {
    let mut bounds = [Scalar::Integer(0); 3];
    for (operand, tensor) in operands.iter().enumerate() {
        match scalars(tensor)?[..] {
            [only] => bounds[operand] = only,
            _ => return Err(crate::ops::movement::moving::count_mismatch(operand, tensor.count(), 1).into()),
        }
    }
    Ok(bounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{dims, infer, inferred, run};

    fn scalar(text: &str) -> Fact {
        Fact::of_dims(DType::I64, Vec::new(), dims(text))
    }

    fn counted(start: &str, limit: &str, delta: &str) -> String {
        inferred(&Range {}, &[scalar(start), scalar(limit), scalar(delta)])
    }

    #[test]
    fn extents_follow_from_the_bounds() {
        assert_eq!(counted("0", "n", "1"), "i64[n]");
        assert_eq!(counted("past", "past + seq", "1"), "i64[seq]");
        assert_eq!(counted("0", "n", "2"), "i64[floordiv(n + 1, 2)]");
        assert_eq!(counted("n", "0", "-1"), "i64[n]");
        assert_eq!(counted("1", "n", "1"), "i64[max(n, 1) - 1]");
        assert_eq!(counted("5", "1", "1"), "i64[0]");
        assert!(counted("0", "n", "0").contains("delta is 0"));
        assert_eq!(counted("0", "n", "m"), "i64[step.count]");
        let inputs = [scalar("n"), scalar("n + 2"), scalar("1")].map(Some);
        assert_eq!(infer(&Range {}, &inputs).unwrap().0[0].elements_as_dims().unwrap(), dims("n, n + 1"));
    }

    #[test]
    fn numbers_are_evenly_spaced() {
        let numbers = |bounds: [f32; 3]| {
            let inputs = bounds.map(|bound| Some(Tensor::from_elements(&[], &[bound]).unwrap()));
            run(&Range {}, &inputs).map(|results| results[0].elements::<f32>().unwrap().to_vec())
        };
        assert_eq!(numbers([1.0, 2.0, 0.3]).unwrap(), [1.0, 1.3, 1.6, 1.9000001]);
        assert_eq!(numbers([0.0, 1.0, 0.1]).unwrap().len(), 10);
        assert!(numbers([0.0, 1.0, -1.0]).unwrap().is_empty());
        assert_eq!(numbers([0.0, 1.0, 0.0]).unwrap_err().to_string(), "delta is 0, expected anything else");
        assert_eq!(
            numbers([0.0, f32::INFINITY, 1.0]).unwrap_err().to_string(),
            "a count of numbers is 9223372036854775807, outside 0 to 2^53"
        );
        let integers = |bounds: [i64; 3]| {
            let inputs = bounds.map(|bound| Some(Tensor::from_elements(&[], &[bound]).unwrap()));
            run(&Range {}, &inputs).map(|results| results[0].elements::<i64>().unwrap().to_vec())
        };
        assert_eq!(integers([10, 4, -2]).unwrap(), [10, 8, 6]);
        assert_eq!(integers([i64::MAX - 1, i64::MAX, 5]).unwrap(), [i64::MAX - 1]);
        assert_eq!(
            integers([i64::MIN, i64::MAX, 1]).unwrap_err().to_string(),
            "i64[18446744073709551615] is too large to address"
        );
    }
}
