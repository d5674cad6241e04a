//! Quantization with given scales: ONNX `QuantizeLinear` (opset 10 to 28), per tensor, per axis and blocked.
//!
//! `y = saturate(round(x / scale) + zero_point)`, halves to even. The quotient is rounded to the type of the division
//! (attribute `precision`, else the type of the scale where that is f32, f16 or bf16, else f32).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::narrow::RoundMode;
use crate::ops::quantization::granularity::Granularity;
use crate::ops::scalar::{Narrowing, Scalar, narrowed, round_to, saturate, scalars};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    optional, optional_tensor, quantization::granularity, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// `x: [..], scale: [], [n] or blocks, zero_point: as scale or absent` to `[..]` of type `to`.
    pub struct Quantize revision 1 {
        /// The element type of the result.
        1 since 1 => to: DType,
        /// The axis that scales vary along, counted from the back where negative; unused where there is one scale.
        2 since 1 => axis: i64,
        /// Elements of the axis that share a scale; 0 where each has its own.
        3 since 1 => block_size: i64,
        /// Values beyond a float of 8 bits become NaN or infinity instead of its greatest value.
        4 since 1 => overflow: bool,
        /// The type of the division, where it is not the scale's.
        5 since 1 => precision: Option<DType>,
    }
}

impl Quantize {
    fn check(&self, input: DType, scale: DType, zero_point: Option<DType>) -> Result<(), TypeError> {
        check_type(0, input, is_real, "f16, bf16, f32, f64 or i32")?;
        check_type(1, scale, |dtype| is_real(dtype) || dtype == DType::F8E8M0, "f16, bf16, f32, f64, i32 or f8e8m0")?;
        if let Some(found) = zero_point {
            check_type(2, found, |dtype| dtype == self.to, self.to.name())?;
        }
        if !is_quantized(self.to) || self.to == DType::I32 {
            return Err(TypeError::Unsupported(format!("quantization to {}", self.to)));
        }
        match self.precision {
            None | Some(DType::F32 | DType::F16 | DType::BF16 | DType::F64) => Ok(()),
            Some(other) => Err(TypeError::Unsupported(format!("division in {other}"))),
        }
    }

    /// The type in which `x / scale` is computed.
    fn division(&self, scale: DType) -> DType {
        match (self.precision, scale) {
            (Some(precision), _) => precision,
            (None, DType::F16 | DType::BF16 | DType::F64) => scale,
            (None, _) => DType::F32,
        }
    }
}

/// Types that are quantized from.
pub(crate) fn is_real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::I32)
}

/// Types that are quantized to.
pub(crate) fn is_quantized(dtype: DType) -> bool {
    (dtype.is_integer() && dtype.bits() <= 16)
        || dtype == DType::I32
        || (dtype.is_narrow_float() && dtype != DType::F8E8M0)
}

pub(crate) fn check_type(
    operand: usize,
    found: DType,
    fits: impl Fn(DType) -> bool,
    expected: &str,
) -> Result<(), TypeError> {
    if fits(found) {
        return Ok(());
    }
    Err(TypeError::ElementType { operand, expected: expected.to_string(), found })
}

impl Operator for Quantize {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let (scale_dtype, scale) = tensor_operand(inputs, 1)?;
        let zero_point = match optional(inputs, 2) {
            Some(_) => Some(tensor_operand(inputs, 2)?),
            None => None,
        };
        self.check(dtype, scale_dtype, zero_point.map(|(dtype, _)| dtype))?;
        for parameter in [Some(scale), zero_point.map(|(_, shape)| shape)].into_iter().flatten() {
            Granularity::infer(shape, parameter, self.axis, self.block_size, context)?;
        }
        Ok(vec![Fact::tensor(self.to, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (input, scale) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let zero_point = optional_tensor(inputs, 2)?;
        self.check(input.dtype(), scale.dtype(), zero_point.map(|tensor| tensor.dtype()))?;
        let division = self.division(scale.dtype());
        let scale_of = Granularity::of(input.shape(), scale.shape(), self.axis, self.block_size)?;
        let scales = scalars(scale)?;
        let zero_points = match zero_point {
            None => None,
            Some(tensor) => {
                let granularity = Granularity::of(input.shape(), tensor.shape(), self.axis, self.block_size)?;
                Some((granularity, scalars(tensor)?))
            }
        };
        let mut results = Vec::with_capacity(input.count());
        for (index, value) in scalars(input)?.into_iter().enumerate() {
            let scale = round_to(division, scales[scale_of.index(index)].to_f64());
            let quotient = round_to(division, round_to(division, value.to_f64()) / scale);
            let zero = zero_points.as_ref().map(|(granularity, values)| values[granularity.index(index)]);
            results.push(match zero.unwrap_or(Scalar::Integer(0)) {
                Scalar::Integer(zero) if self.to.is_integer() => {
                    saturate(self.to, (quotient.round_ties_even() as i128).saturating_add(zero))
                }
                zero => Scalar::Float(quotient + zero.to_f64()),
            });
        }
        let narrowing = Narrowing { saturate: !self.overflow, round: RoundMode::Up };
        Ok(vec![narrowed(self.to, input.shape(), &results, narrowing)?.into()])
    }
}

impl Computes for Quantize {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        granularity::spaces(facts, self.axis, self.block_size)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 3), (VectorClass::Convert, 1), (VectorClass::Divide, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    fn quantize(to: DType) -> Quantize {
        Quantize { to, axis: 1, block_size: 0, overflow: false, precision: None }
    }

    #[test]
    fn one_scale_rounds_to_even_and_saturates() {
        let x = Tensor::from_elements(&[6], &[0.0f32, 3.0, 5.0, 1000.0, -254.0, -1000.0]).unwrap();
        let scale = Tensor::scalar(2.0f32);
        let zero = Tensor::scalar(128u8);
        let y = run(&quantize(DType::U8), &[x.clone(), scale.clone(), zero]).unwrap();
        assert_eq!(y.elements::<u8>().unwrap(), [128, 130, 130, 255, 1, 0]);
        let nibbles = run(&quantize(DType::I4), &[x, scale]).unwrap();
        assert_eq!(scalars(&nibbles).unwrap(), [0, 2, 2, 7, -8, -8].map(Scalar::Integer));
    }

    #[test]
    fn axes_and_blocks_have_scales() {
        let x = Tensor::from_elements(&[2, 3], &[2.0f32, 4.0, 6.0, 8.0, 10.0, 12.0]).unwrap();
        let scale = Tensor::from_elements(&[3], &[1.0f32, 2.0, 3.0]).unwrap();
        let y = run(&quantize(DType::I8), &[x.clone(), scale]).unwrap();
        assert_eq!(y.elements::<i8>().unwrap(), [2, 2, 2, 8, 5, 4]);
        let blocked = Quantize { block_size: 2, axis: -1, ..quantize(DType::I8) };
        let scale = Tensor::from_elements(&[2, 2], &[1.0f32, 2.0, 4.0, 6.0]).unwrap();
        let zero = Tensor::from_elements(&[2, 2], &[0i8, 1, 2, 3]).unwrap();
        let y = run(&blocked, &[x.clone(), scale, zero]).unwrap();
        assert_eq!(y.elements::<i8>().unwrap(), [2, 4, 4, 4, 4, 5]);
        let wrong = Tensor::from_elements(&[2, 1], &[1.0f32, 2.0]).unwrap();
        assert_eq!(run(&blocked, &[x, wrong]).unwrap_err().to_string(), "scales: [2, 2] does not fit [2, 1]");
    }

    #[test]
    fn narrow_floats_and_precision() {
        let x = Tensor::from_elements(&[3], &[1000.0f32, 1.5, 1e9]).unwrap();
        let scale = Tensor::scalar(2.0f32);
        let y = run(&quantize(DType::F8E4M3FN), &[x.clone(), scale.clone()]).unwrap();
        assert_eq!(scalars(&y).unwrap(), [448.0, 0.75, 448.0].map(Scalar::Float));
        let overflow = Quantize { overflow: true, ..quantize(DType::F8E5M2) };
        let y = run(&overflow, &[x.clone(), scale.clone()]).unwrap();
        assert_eq!(scalars(&y).unwrap(), [512.0, 0.75, f64::INFINITY].map(Scalar::Float));
        // 2049 is no f16: divided there, it is 2048.
        let odd = Tensor::from_elements(&[1], &[2049.0f32]).unwrap();
        let one = Tensor::scalar(1.0f32);
        let half = Quantize { precision: Some(DType::F16), ..quantize(DType::I16) };
        assert_eq!(run(&half, &[odd.clone(), one.clone()]).unwrap().elements::<i16>().unwrap(), [2048]);
        assert_eq!(run(&quantize(DType::I16), &[odd.clone(), one.clone()]).unwrap().elements::<i16>().unwrap(), [2049]);
        assert_eq!(
            run(&quantize(DType::I64), &[odd, one]).unwrap_err().to_string(),
            "quantization to i64 is not supported"
        );
        // Not a number becomes zero, infinities saturate past any zero point.
        let special = Tensor::from_elements(&[2], &[f32::NAN, f32::INFINITY]).unwrap();
        let y = run(&quantize(DType::I8), &[special, scale, Tensor::scalar(5i8)]).unwrap();
        assert_eq!(y.elements::<i8>().unwrap(), [5, 127]);
    }
}
