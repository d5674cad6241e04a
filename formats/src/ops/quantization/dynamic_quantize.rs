//! Quantization to u8 with a scale found from the data: ONNX `DynamicQuantizeLinear` (opset 11).
//!
//! `scale = (max(0, max(x)) - min(0, min(x))) / 255`, `zero_point = saturate(round(-min(0, min(x)) / scale))`, halves to
//! even, each step in f32 as in the operator's function body. Where all elements are zero, or there are none, the
//! specification divides by zero; here the scale is 1 then.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::quantization::quantize::check_type;
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// `x: f32 [..]` to `y: u8 [..], scale: f32 [], zero_point: u8 []`.
    pub struct DynamicQuantize revision 1 {}
}

/// Scale and zero point of values in this range.
pub fn dynamic_parameters(minimum: f32, maximum: f32) -> (f32, u8) {
    let (minimum, maximum) = (minimum.min(0.0), maximum.max(0.0));
    let range = maximum - minimum;
    let scale = if range == 0.0 { 1.0 } else { range / 255.0 };
    let zero_point = (-minimum / scale).clamp(0.0, 255.0).round_ties_even();
    (scale, zero_point as u8)
}

/// One value in these parameters.
#[inline(always)]
pub fn dynamic_code(value: f32, scale: f32, zero_point: u8) -> u8 {
    /// The last place of f32 between this and twice it is 1: the low bits of a sum with it are those of an integer.
    const UNITS: f32 = 8_388_608.0;
    let code = (value / scale).round_ties_even() + f32::from(zero_point);
    // NaN has code 0.
    let code = if code > 0.0 { code } else { 0.0 };
    let code = if code < 255.0 { code } else { 255.0 };
    (code + UNITS).to_bits() as u8
}

impl Operator for DynamicQuantize {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        check_type(0, dtype, |dtype| dtype == DType::F32, "f32")?;
        Ok(vec![
            Fact::tensor(DType::U8, shape.clone()),
            Fact::tensor(DType::F32, Vec::new()),
            Fact::tensor(DType::U8, Vec::new()),
        ])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        check_type(0, input.dtype(), |dtype| dtype == DType::F32, "f32")?;
        let elements = input.elements::<f32>()?;
        let minimum = elements.iter().copied().fold(0.0, f32::min);
        let maximum = elements.iter().copied().fold(0.0, f32::max);
        let (scale, zero_point) = dynamic_parameters(minimum, maximum);
        let codes: Vec<u8> = elements.iter().map(|&element| dynamic_code(element, scale, zero_point)).collect();
        let quantized = Tensor::from_elements(input.shape(), &codes)?;
        Ok(vec![quantized.into(), Tensor::scalar(scale).into(), Tensor::scalar(zero_point).into()])
    }
}

impl Serial for DynamicQuantize {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 5), (VectorClass::Convert, 1), (VectorClass::Divide, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run_all;

    #[test]
    fn the_example_of_the_specification() {
        let x = Tensor::from_elements(&[6], &[0.0f32, 2.0, -3.0, -2.5, 1.34, 0.5]).unwrap();
        let results = run_all(&DynamicQuantize {}, &[Some(x)]).unwrap();
        assert_eq!(results[0].elements::<u8>().unwrap(), [153, 255, 0, 26, 221, 179]);
        assert_eq!(results[1].elements::<f32>().unwrap(), [0.019_607_844]);
        assert_eq!(results[2].elements::<u8>().unwrap(), [153]);
    }

    #[test]
    fn codes_saturate() {
        let codes = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -1e30, 1e30, 0.5, 1.5, 254.5, 255.5, 1e-40];
        assert_eq!(codes.map(|value| dynamic_code(value, 1.0, 0)), [0, 0, 255, 0, 255, 0, 2, 254, 255, 0]);
        assert_eq!([-3.0, -2.5, 253.0, 254.0].map(|value| dynamic_code(value, 1.0, 2)), [0, 0, 255, 255]);
        assert!((0..=255).all(|code| dynamic_code(code as f32 - 7.0, 1.0, 7) == code as u8));
    }

    #[test]
    fn zeros_have_a_scale() {
        let x = Tensor::from_elements(&[2], &[0.0f32, 0.0]).unwrap();
        let results = run_all(&DynamicQuantize {}, &[Some(x)]).unwrap();
        assert_eq!(results[0].elements::<u8>().unwrap(), [0, 0]);
        assert_eq!(results[1].elements::<f32>().unwrap(), [1.0]);
    }
}
