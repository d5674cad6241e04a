//! Conversion between element types: ONNX `Cast` (opset 6 to 28) and `CastLike`.
//!
//! Integers wrap among integer types; floats are truncated towards them, saturating at 32 and 64 bits and wrapping at fewer
//! where the specification leaves the result open. Floats become the nearest value, once. Bool is what is not zero. Numbers are written as texts in
//! their shortest form that reads back as the same number.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::narrow::RoundMode;
use crate::ops::elementwise::binary::{FollowedOperand, dims_fit};
use crate::ops::scalar::{Narrowing, Scalar, is_number, narrowed, scalars};
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError, VectorClass, optional,
    tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Converts each element: `x: [..]` to `[..]` of type `to`.
    pub struct Cast revision 1 {
        /// The element type of the result.
        1 since 1 => to: DType,
        /// Values beyond a float of 8 bits become NaN or infinity instead of its greatest value.
        2 since 1 => overflow: bool,
        /// Rounding towards f8e8m0; `up` where absent.
        3 since 1 => round: Option<RoundMode>,
    }
}

impl Cast {
    /// A conversion with the usual treatment of values out of range.
    pub fn to(dtype: DType) -> Cast {
        Cast { to: dtype, overflow: false, round: None }
    }

    fn narrowing(&self) -> Narrowing {
        Narrowing { saturate: !self.overflow, round: self.round.unwrap_or_default() }
    }

    fn check(&self, from: DType) -> Result<(), TypeError> {
        let fits = |dtype| is_number(dtype) || matches!(dtype, DType::Bool | DType::String);
        if fits(from) && fits(self.to) {
            return Ok(());
        }
        if from == self.to {
            return Ok(());
        }
        Err(TypeError::Unsupported(format!("a conversion of {from} to {}", self.to)))
    }

    /// Elements known as dimensions, where conversion keeps them.
    fn followed(&self, inputs: &[Option<Fact>], context: &InferContext<'_>) -> Option<Vec<Dim>> {
        let fact = optional(inputs, 0)?;
        let operand = FollowedOperand::new(fact)?;
        let dims: Vec<Dim> = operand.elements(&operand.extents).cloned().collect();
        match self.to {
            DType::I64 => Some(dims),
            DType::I32 => dims_fit(DType::I32, &dims).then_some(dims),
            DType::Bool => dims
                .iter()
                .map(|dim| match dim.bounds(context.ranges) {
                    (0, 0) => Some(Dim::ZERO),
                    (least, greatest) if least > 0 || greatest < 0 => Some(Dim::ONE),
                    _ => None,
                })
                .collect(),
            _ => None,
        }
    }
}

impl Operator for Cast {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (from, shape) = tensor_operand(inputs, 0)?;
        self.check(from)?;
        Ok(vec![match self.followed(inputs, context) {
            Some(dims) => Fact::of_dims(self.to, shape.clone(), dims),
            None => Fact::tensor(self.to, shape.clone()),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let from = input.dtype();
        self.check(from)?;
        let result = match (from, self.to) {
            (from, to) if from == to => input.clone(),
            (DType::String, to) => {
                let values: Vec<Scalar> =
                    input.strings()?.iter().map(|text| parse(text, to)).collect::<Result<_, _>>()?;
                narrowed(to, input.shape(), &values, self.narrowing())?
            }
            (from, DType::String) => {
                let texts = scalars(input)?.into_iter().map(|value| print(value, from)).collect();
                Tensor::from_strings(input.shape(), texts)?
            }
            (_, to) => narrowed(to, input.shape(), &scalars(input)?, self.narrowing())?,
        };
        Ok(vec![result.into()])
    }
}

impl Elementwise for Cast {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        vec![(VectorClass::Convert, 1)]
    }
}

/// A number as ONNX writes it: plain or scientific, `INF`, `+INF`, `-INF`, `NaN` in any case.
fn parse(text: &str, to: DType) -> Result<Scalar, ReferenceError> {
    let plain = text.trim();
    if !to.is_float()
        && let Ok(integer) = plain.parse::<i128>()
    {
        return Ok(Scalar::Integer(integer));
    }
    let float = match to {
        // Read in the type itself, since reading f64 first would round twice.
        DType::F32 => plain.parse::<f32>().map(f64::from),
        _ => plain.parse::<f64>(),
    };
    float.map(Scalar::Float).map_err(|_| {
        TypeError::Value {
            subject: "a text that is cast to a number".to_string(),
            found: crate::attribute_text::quote(text),
            expected: format!("a number of type {to}"),
        }
        .into()
    })
}

/// The shortest text that reads back as the same number of the type; integral floats keep a `.0`.
fn print(value: Scalar, from: DType) -> String {
    match value {
        Scalar::Integer(integer) => integer.to_string(),
        Scalar::Float(float) if float.is_nan() => "NaN".to_string(),
        Scalar::Float(float) if float.is_infinite() => if float > 0.0 { "INF" } else { "-INF" }.to_string(),
        // The shortest text of a narrower type would need its own search; its f32 value is exact.
        Scalar::Float(float) if from != DType::F64 => format!("{:?}", float as f32),
        Scalar::Float(float) => format!("{float:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::run;

    fn cast(input: Tensor, to: DType) -> Tensor {
        run(&Cast::to(to), &[input]).unwrap()
    }

    #[test]
    fn numbers_convert_as_specified() {
        let floats = Tensor::from_elements(&[4], &[-1.7f32, 0.0, 2.5, f32::NAN]).unwrap();
        assert_eq!(cast(floats.clone(), DType::I32).elements::<i32>().unwrap(), [-1, 0, 2, 0]);
        assert_eq!(cast(floats, DType::Bool).bools().unwrap(), [true, false, true, true]);
        let integers = Tensor::from_elements(&[2], &[200i16, -1]).unwrap();
        assert_eq!(cast(integers.clone(), DType::I8).elements::<i8>().unwrap(), [-56, -1]);
        assert_eq!(cast(integers, DType::U64).elements::<u64>().unwrap(), [200, u64::MAX]);
        let bools = Tensor::from_bools(&[2], &[true, false]).unwrap();
        assert_eq!(cast(bools, DType::F32).elements::<f32>().unwrap(), [1.0, 0.0]);
        // 2^24 + 1 lies between two f32; 2^63 + 2^39 + 1 above the middle between two.
        let long = Tensor::from_elements(&[2], &[(1u64 << 24) + 1, (1 << 63) + (1 << 39) + 1]).unwrap();
        let rounded = cast(long, DType::F32);
        assert_eq!(rounded.elements::<f32>().unwrap(), [16_777_216.0, 9.223_373e18]);
    }

    #[test]
    fn narrow_floats_saturate_or_overflow() {
        let input = || Tensor::from_elements(&[2], &[1e6f32, 1.0]).unwrap();
        let to = DType::F8E4M3FN;
        assert_eq!(cast(input(), to).codes(), [0x7e, 0x38]);
        let overflow = Cast { to, overflow: true, round: None };
        assert_eq!(run(&overflow, &[input()]).unwrap().codes(), [0x7f, 0x38]);
        assert_eq!(cast(cast(input(), to), DType::F32).elements::<f32>().unwrap(), [448.0, 1.0]);
        let power = Tensor::from_elements(&[1], &[3.0f32]).unwrap();
        let down = Cast { to: DType::F8E8M0, overflow: false, round: Some(RoundMode::Down) };
        assert_eq!(cast(power.clone(), DType::F8E8M0).codes(), [129]);
        assert_eq!(run(&down, &[power]).unwrap().codes(), [128]);
    }

    #[test]
    fn texts_become_numbers_and_back() {
        let texts = ["0.47892547", "1e-5", "+INF", "-inf", "nan", "12"].map(str::to_string).to_vec();
        let numbers = cast(Tensor::from_strings(&[6], texts).unwrap(), DType::F32);
        let values = numbers.elements::<f32>().unwrap();
        assert_eq!(values[..4], [0.478_925_47, 1e-5, f32::INFINITY, f32::NEG_INFINITY]);
        assert!(values[4].is_nan());
        let printed = cast(numbers, DType::String);
        assert_eq!(printed.strings().unwrap(), ["0.47892547", "1e-5", "INF", "-INF", "NaN", "12.0"]);
        let long = Tensor::from_strings(&[1], vec!["9007199254740993".into()]).unwrap();
        assert_eq!(cast(long, DType::I64).elements::<i64>().unwrap(), [9_007_199_254_740_993]);
        let words = Tensor::from_strings(&[1], vec!["hello".into()]).unwrap();
        assert_eq!(
            run(&Cast::to(DType::F32), &[words]).unwrap_err().to_string(),
            "a text that is cast to a number is \"hello\", expected a number of type f32"
        );
        let complex = Tensor::zeros(DType::C64, &[1]).unwrap();
        assert_eq!(
            run(&Cast::to(DType::F32), &[complex]).unwrap_err().to_string(),
            "a conversion of c64 to f32 is not supported"
        );
    }

    #[test]
    fn dimensions_survive() {
        let ranges = Ranges::new();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("cast", &ranges, &mut blocks);
        let n = Dim::symbol("n");
        let inputs = [Some(Fact::of_dims(DType::I64, vec![Dim::known(2)], vec![n.clone(), Dim::known(1 << 40)]))];
        let wide = Cast::to(DType::I64).infer(&inputs, &mut context).unwrap();
        assert_eq!(wide[0].elements_as_dims(), Some(vec![n, Dim::known(1 << 40)]));
        let narrow = Cast::to(DType::I32).infer(&inputs, &mut context).unwrap();
        assert_eq!(narrow[0].contents, None);
    }
}
