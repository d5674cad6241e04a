//! The same bits as another element type: ONNX `BitCast` (opset 26), and of another width, as codes packed in bytes.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::{
    AxisKind, InferContext, Moves, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts, TypeError,
    loops, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Reinterprets each element: `x: [..]` to `[..]` of a type of the same width; of integers also of another width, where
    /// elements along the last axis are divided or joined, the lowest bits first.
    pub struct BitCast revision 1 {
        /// The element type of the result.
        1 since 1 => to: DType,
    }
}

impl BitCast {
    fn check(&self, from: DType) -> Result<(), TypeError> {
        let (given, wanted) = (from.bits(), self.to.bits());
        let integers = from.is_integer() && self.to.is_integer();
        if given != 0
            && (given == wanted || (integers && (given.is_multiple_of(wanted) || wanted.is_multiple_of(given))))
        {
            return Ok(());
        }
        Err(TypeError::ElementType { operand: 0, expected: format!("as wide as {}", self.to), found: from })
    }
}

fn no_axis(found: usize) -> TypeError {
    TypeError::Rank { operand: 0, expected: "1 or more".to_string(), found }
}

impl Operator for BitCast {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (from, shape) = tensor_operand(inputs, 0)?;
        self.check(from)?;
        let (given, wanted) = (from.bits() as i64, self.to.bits() as i64);
        let Shape::Ranked(dims) = shape else { return Ok(vec![Fact::tensor(self.to, shape.clone())]) };
        let mut dims = dims.clone();
        if given != wanted {
            let last = dims.last_mut().ok_or_else(|| no_axis(0))?;
            if wanted > given {
                context.oblige(Relation::Multiple, last, &Dim::known(wanted / given), "elements that are joined");
            }
            *last = (&*last * given).floor_div(&Dim::known(wanted));
        }
        Ok(vec![Fact::tensor(self.to, dims)])
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
        if input.dtype().bits() == self.to.bits() {
            return Ok(vec![input.reinterpreted(self.to)?.into()]);
        }
        let mut shape = input.shape().to_vec();
        let last = shape.last_mut().ok_or_else(|| no_axis(0))?;
        let bits = *last * input.dtype().bits();
        if !bits.is_multiple_of(self.to.bits()) || !bits.is_multiple_of(8) {
            let subject = format!("rows of {bits} bits as {}", self.to);
            return Err(TypeError::Unsupported(subject).into());
        }
        *last = bits / self.to.bits();
        Ok(vec![Tensor::from_bytes(self.to, &shape, input.bytes())?.into()])
    }
}

impl Moves for BitCast {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::broadcast(facts, 1, |_| AxisKind::Parallel)
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
    use crate::ops::testing::run;

    #[test]
    fn bits_stay() {
        let floats = Tensor::from_elements(&[2], &[1.0f32, -0.0]).unwrap();
        let integers = run(&BitCast { to: DType::U32 }, std::slice::from_ref(&floats)).unwrap();
        assert_eq!(integers.elements::<u32>().unwrap(), [0x3f80_0000, 0x8000_0000]);
        assert_eq!(run(&BitCast { to: DType::F32 }, &[integers]).unwrap(), floats);
        assert_eq!(
            run(&BitCast { to: DType::F64 }, &[floats]).unwrap_err().to_string(),
            "operand 0 must be as wide as f64, found f32"
        );
        let packed = Tensor::from_elements(&[1, 2], &[0x21u8, 0x43]).unwrap();
        let codes = run(&BitCast { to: DType::U4 }, std::slice::from_ref(&packed)).unwrap();
        assert_eq!((codes.shape(), codes.codes()), ([1, 4].as_slice(), vec![1, 2, 3, 4]));
        assert_eq!(run(&BitCast { to: DType::U8 }, &[codes]).unwrap(), packed);
        let bytes = Tensor::from_elements(&[2], &[1u8, 2]).unwrap();
        assert_eq!(
            run(&BitCast { to: DType::Bool }, &[bytes]).unwrap_err().to_string(),
            "a byte that becomes bool is 2, outside 0 and 1"
        );
    }
}
