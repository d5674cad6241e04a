//! The same bits as another element type: ONNX `BitCast` (opset 26).

use crate::attributes;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::{InferContext, Operator, ReferenceContext, ReferenceError, TypeError, tensor, tensor_operand};
use crate::value::Value;

attributes! {
    /// Reinterprets each element: `x: [..]` to `[..]` of a type of the same width.
    pub struct BitCast revision 1 {
        /// The element type of the result.
        1 since 1 => to: DType,
    }
}

impl BitCast {
    fn check(&self, from: DType) -> Result<(), TypeError> {
        if from.bits() != 0 && from.bits() == self.to.bits() {
            return Ok(());
        }
        Err(TypeError::ElementType { operand: 0, expected: format!("as wide as {}", self.to), found: from })
    }
}

impl Operator for BitCast {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (from, shape) = tensor_operand(inputs, 0)?;
        self.check(from)?;
        Ok(vec![Fact::tensor(self.to, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        self.check(input.dtype())?;
        if self.to == DType::Bool
            && let Some(&other) = input.bytes().iter().find(|&&byte| byte > 1)
        {
            return Err(ReferenceError::OutOfRange {
                subject: "a byte that becomes bool".to_string(),
                found: other.into(),
                range: "0 and 1".to_string(),
            });
        }
        Ok(vec![input.reinterpreted(self.to)?.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    #[test]
    fn bits_stay() {
        let floats = Tensor::from_elements(&[2], &[1.0f32, -0.0]).unwrap();
        let integers = run(&BitCast { to: DType::U32 }, std::slice::from_ref(&floats)).unwrap();
        assert_eq!(integers.elements::<u32>().unwrap(), [0x3f80_0000, 0x8000_0000]);
        assert_eq!(run(&BitCast { to: DType::F32 }, &[integers]).unwrap(), floats);
        assert!(run(&BitCast { to: DType::F64 }, &[floats]).is_err());
        let bytes = Tensor::from_elements(&[2], &[1u8, 2]).unwrap();
        assert!(run(&BitCast { to: DType::Bool }, &[bytes]).is_err());
    }
}
