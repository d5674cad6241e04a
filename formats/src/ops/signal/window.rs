//! Windows for spectra: ONNX `HannWindow`, `HammingWindow`, `BlackmanWindow` (opset 17).

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::single::{INDICES, NUMBERS, check_single, from_f64, single_dim, single_integer};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, required,
};
use crate::tensor::Tensor;
use crate::value::Value;
use std::f64::consts::TAU;

attributes! {
    /// A window `[size]` of a size (i32 or i64, one element).
    pub struct Window revision 1 {
        /// The formula.
        1 since 1 => function: WindowFunction,
        /// One period of a longer signal, not symmetric.
        2 since 1 => periodic: bool,
        /// Element type of the result.
        3 since 1 => dtype: DType,
    }
}

/// Formulas of [`Window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum WindowFunction {
    /// 0.5 - 0.5 cos.
    Hann,
    /// 25/46 - 21/46 cos.
    Hamming,
    /// 0.42 - 0.5 cos + 0.08 cos of twice the angle.
    Blackman,
}
impl Keyword for WindowFunction {}

impl WindowFunction {
    fn at(self, angle: f64) -> f64 {
        match self {
            WindowFunction::Hann => 0.5 - 0.5 * angle.cos(),
            WindowFunction::Hamming => 25.0 / 46.0 - 21.0 / 46.0 * angle.cos(),
            WindowFunction::Blackman => 0.42 - 0.5 * angle.cos() + 0.08 * (2.0 * angle).cos(),
        }
    }
}

/// Require a type that ONNX lets windows and filter banks have.
pub(super) fn check_result_type(dtype: DType) -> Result<(), TypeError> {
    if NUMBERS.contains(&dtype) { Ok(()) } else { Err(TypeError::Unsupported(format!("a result of type {dtype}"))) }
}

/// A size that an operand gives.
pub(super) fn size(inputs: &[Option<Value>], operand: usize) -> Result<usize, ReferenceError> {
    let found = single_integer(inputs, operand)?.ok_or(TypeError::MissingOperand { operand })?;
    usize::try_from(found).map_err(|_| ReferenceError::OutOfRange {
        subject: format!("size in operand {operand}"),
        found,
        range: "0 and above".to_string(),
    })
}

impl Operator for Window {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        check_result_type(self.dtype)?;
        required(inputs, 0)?;
        check_single(inputs, 0, INDICES)?;
        let size = single_dim(inputs, 0).unwrap_or_else(|| context.fresh("size"));
        Ok(vec![Fact::tensor(self.dtype, vec![size])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        check_result_type(self.dtype)?;
        let size = size(inputs, 0)?;
        // Refuses sizes that cannot be, before anything of that size is computed.
        Tensor::zeros(self.dtype, &[size])?;
        // A symmetric window of one point divides by zero, as the formula of ONNX does.
        let period = if self.periodic { size as f64 } else { size as f64 - 1.0 };
        let elements: Vec<f64> = (0..size).map(|index| self.function.at(TAU * index as f64 / period)).collect();
        Ok(vec![from_f64(self.dtype, &[size], &elements)?.into()])
    }
}

impl Computes for Window {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |_| None)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 2), (VectorClass::Transcendental, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::{Dim, Ranges};
    use crate::ops::NoBlocks;

    fn run(function: WindowFunction, periodic: bool, size: i64) -> Result<Vec<f64>, ReferenceError> {
        let mut blocks = NoBlocks;
        let operator = Window { function, periodic, dtype: DType::F64 };
        let input = Some(Tensor::scalar(size).into());
        let results = operator.reference(&[input], &mut ReferenceContext::new(&mut blocks))?;
        Ok(results[0].as_tensor().unwrap().elements::<f64>().unwrap().to_vec())
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?} {expected:?}");
    }

    #[test]
    fn points_by_hand() {
        assert_near(&run(WindowFunction::Hann, true, 4).unwrap(), &[0.0, 0.5, 1.0, 0.5]);
        assert_near(&run(WindowFunction::Hann, false, 3).unwrap(), &[0.0, 1.0, 0.0]);
        assert_near(&run(WindowFunction::Hamming, false, 3).unwrap(), &[4.0 / 46.0, 1.0, 4.0 / 46.0]);
        assert_near(&run(WindowFunction::Blackman, true, 4).unwrap(), &[0.0, 0.34, 1.0, 0.34]);
        assert!(run(WindowFunction::Hann, false, 1).unwrap()[0].is_nan());
        assert!(run(WindowFunction::Hann, true, 0).unwrap().is_empty());
        assert_eq!(
            run(WindowFunction::Hann, true, -1).unwrap_err().to_string(),
            "size in operand 0 is -1, outside 0 and above"
        );
    }

    #[test]
    fn the_size_is_followed() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("window", &ranges, &mut blocks);
        let operator = Window { function: WindowFunction::Hann, periodic: true, dtype: DType::F16 };
        let size = Fact::of_dims(DType::I64, vec![], vec![Dim::symbol("n")]);
        let facts = operator.infer(&[Some(size)], &mut context).unwrap();
        assert_eq!(facts, [Fact::tensor(DType::F16, vec![Dim::symbol("n")])]);
        let wrong = Window { dtype: DType::Bool, ..operator };
        assert_eq!(
            wrong.infer(&[Some(Fact::tensor(DType::I64, vec![]))], &mut context).unwrap_err().to_string(),
            "a result of type bool is not supported"
        );
    }
}
