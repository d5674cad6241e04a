//! Values of quantized elements: ONNX `DequantizeLinear` (opset 10 to 28), per tensor, per axis and blocked.
//!
//! `y = (x - zero_point) * scale`: the difference is exact and taken as f32, the product is rounded to f32 and then to the
//! type of the result. Zero points may be floats, as `com.microsoft.MatMulNBits` has them.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::quantization::granularity::Granularity;
use crate::ops::quantization::quantize::{check_type, is_quantized};
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    optional, optional_tensor, quantization::granularity, tensor, tensor_operand,
};
use crate::value::Value;
use ipuc_codes::{code_difference, dequantized};

attributes! {
    /// `x: [..], scale: [], [n] or blocks, zero_point: as scale or absent` to `[..]`.
    pub struct Dequantize revision 1 {
        /// The element type of the result, where it is not the scale's.
        1 since 1 => to: Option<DType>,
        /// The axis that scales vary along, counted from the back where negative; unused where there is one scale.
        2 since 1 => axis: i64,
        /// Elements of the axis that share a scale; 0 where each has its own.
        3 since 1 => block_size: i64,
    }
}

impl Dequantize {
    /// Checks the types; gives the result's.
    fn check(&self, input: DType, scale: DType, zero_point: Option<DType>) -> Result<DType, TypeError> {
        check_type(0, input, is_quantized, "an integer type of at most 16 bits, i32 or a narrow float type")?;
        let scale_fits = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F8E8M0);
        check_type(1, scale, scale_fits, "f32, f16, bf16 or f8e8m0")?;
        if let Some(found) = zero_point {
            let fits = |dtype| dtype == input || matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
            check_type(2, found, fits, &format!("{input} or a float type"))?;
        }
        match self.to.unwrap_or(scale) {
            to @ (DType::F32 | DType::F16 | DType::BF16) => Ok(to),
            other => Err(TypeError::Unsupported(format!("dequantization to {other}"))),
        }
    }
}

impl Operator for Dequantize {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let (scale_dtype, scale) = tensor_operand(inputs, 1)?;
        let zero_point = match optional(inputs, 2) {
            Some(_) => Some(tensor_operand(inputs, 2)?),
            None => None,
        };
        let to = self.check(dtype, scale_dtype, zero_point.map(|(dtype, _)| dtype))?;
        for parameter in [Some(scale), zero_point.map(|(_, shape)| shape)].into_iter().flatten() {
            Granularity::infer(shape, parameter, self.axis, self.block_size, context)?;
        }
        Ok(vec![Fact::tensor(to, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (input, scale) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let zero_point = optional_tensor(inputs, 2)?;
        let to = self.check(input.dtype(), scale.dtype(), zero_point.map(|tensor| tensor.dtype()))?;
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
            let zero = zero_points.as_ref().map(|(granularity, values)| values[granularity.index(index)]);
            // Codes have at most 32 bits, so that differences are exact.
            let difference = code_difference(value.to_f64(), zero.map_or(0.0, Scalar::to_f64));
            let product = dequantized(difference, scales[scale_of.index(index)].to_f64() as f32);
            results.push(Scalar::Float(product.into()));
        }
        Ok(vec![from_scalars(to, input.shape(), &results)?.into()])
    }
}

impl Computes for Dequantize {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        granularity::spaces(facts, self.axis, self.block_size)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 2), (VectorClass::Convert, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    fn dequantize() -> Dequantize {
        Dequantize { to: None, axis: 0, block_size: 0 }
    }

    #[test]
    fn differences_do_not_wrap() {
        let x = Tensor::from_elements(&[3], &[0u8, 128, 255]).unwrap();
        let y = run(&dequantize(), &[x, Tensor::scalar(2.0f32), Tensor::scalar(128u8)]).unwrap();
        assert_eq!(y.elements::<f32>().unwrap(), [-256.0, 0.0, 254.0]);
        let long = Tensor::from_elements(&[1], &[i32::MIN]).unwrap();
        let y = run(&dequantize(), &[long, Tensor::scalar(1.0f32)]).unwrap();
        assert_eq!(y.elements::<f32>().unwrap(), [-2_147_483_648.0]);
    }

    #[test]
    fn axes_blocks_and_types() {
        let x = Tensor::from_codes(DType::I4, &[2, 2], &[0xf, 1, 2, 3]).unwrap();
        let scale = Tensor::from_elements(&[2], &[2.0f32, 3.0]).unwrap();
        let y = run(&dequantize(), &[x.clone(), scale]).unwrap();
        assert_eq!(y.elements::<f32>().unwrap(), [-2.0, 2.0, 6.0, 9.0]);
        let powers = Tensor::from_codes(DType::F8E8M0, &[1, 2], &[128, 129]).unwrap();
        let blocked = Dequantize { to: Some(DType::F16), block_size: 2, ..dequantize() };
        let y = run(&blocked, &[x.clone(), powers.clone()]).unwrap();
        let elements: Vec<f32> = y.elements::<half::f16>().unwrap().iter().map(|&element| element.into()).collect();
        assert_eq!(elements, [-2.0, 4.0, 4.0, 12.0]);
        // A scale of f8e8m0 is no type for a result.
        assert_eq!(
            run(&Dequantize { to: None, ..blocked }, &[x.clone(), powers]).unwrap_err().to_string(),
            "dequantization to f8e8m0 is not supported"
        );
        assert_eq!(
            run(&dequantize(), &[x, Tensor::scalar(1.0f32), Tensor::scalar(1u8)]).unwrap_err().to_string(),
            "operand 2 must be i4 or a float type, found u8"
        );
    }
}
