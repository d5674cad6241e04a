//! One function of one element: ONNX `Abs`, `Neg`, `Sqrt`, `Exp`, `Erf`, `IsNaN`, .. (all opsets).
//!
//! Functions with parameters, and those that only networks use, are [`Activation`](crate::ops::Activation)s.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::scalar::{Scalar, from_scalars, is_number, scalars};
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError, VectorClass, required,
    tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Applies `function` to each element: `x: [..]` to `[..]`, of the same element type or bool for the tests.
    pub struct Unary revision 1 {
        /// The function.
        1 since 1 => function: UnaryFunction,
    }
}

/// Functions of [`Unary`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum UnaryFunction {
    /// Absolute value; the least integer stays.
    Abs,
    /// Negation; the least integer stays.
    Neg,
    /// -1, 0 or 1; NaN stays.
    Sign,
    /// Square root.
    Sqrt,
    /// 1 / x.
    Reciprocal,
    /// Natural exponential.
    Exp,
    /// Natural logarithm.
    Log,
    /// Error function.
    Erf,
    /// Least integer not below.
    Ceil,
    /// Greatest integer not above.
    Floor,
    /// Nearest integer, halves to even.
    Round,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Tangent.
    Tan,
    /// Inverse sine.
    Asin,
    /// Inverse cosine.
    Acos,
    /// Inverse tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Hyperbolic tangent.
    Tanh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// Logical negation of bool.
    Not,
    /// Every bit of an integer inverted.
    BitNot,
    /// Whether it is NaN.
    IsNan,
    /// Whether it is an infinity.
    IsInfinite,
    /// Whether it is the positive infinity.
    IsPositiveInfinity,
    /// Whether it is the negative infinity.
    IsNegativeInfinity,
}
impl Keyword for UnaryFunction {}

/// What a function takes and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Domain {
    Numbers,
    SignedNumbers,
    FloatsOrIntegers,
    Floats,
    Bools,
    Integers,
    Tests,
}

impl UnaryFunction {
    fn domain(self) -> Domain {
        use UnaryFunction::*;
        match self {
            Abs | Sign => Domain::Numbers,
            Neg => Domain::SignedNumbers,
            // Erf-9 allows integers.
            Erf => Domain::FloatsOrIntegers,
            Sqrt | Reciprocal | Exp | Log | Ceil | Floor | Round | Sin | Cos | Tan | Asin | Acos | Atan | Sinh
            | Cosh | Tanh | Asinh | Acosh | Atanh => Domain::Floats,
            Not => Domain::Bools,
            BitNot => Domain::Integers,
            IsNan | IsInfinite | IsPositiveInfinity | IsNegativeInfinity => Domain::Tests,
        }
    }

    /// Whether the function is a test, whose result is bool.
    pub fn is_test(self) -> bool {
        self.domain() == Domain::Tests
    }

    /// Refuse an element type that the function does not take.
    ///
    /// # Errors
    /// [`TypeError::ElementType`] that names both.
    pub fn check(self, dtype: DType) -> Result<(), TypeError> {
        let (fits, expected) = match self.domain() {
            Domain::Numbers | Domain::FloatsOrIntegers => (is_number(dtype), "a real number type"),
            Domain::SignedNumbers => (is_number(dtype) && !dtype.is_unsigned_integer(), "a signed number type"),
            Domain::Floats | Domain::Tests => (dtype.is_float(), "a floating-point type"),
            Domain::Bools => (dtype == DType::Bool, "bool"),
            Domain::Integers => (dtype.is_integer(), "an integer type"),
        };
        if fits {
            return Ok(());
        }
        Err(TypeError::ElementType { operand: 0, expected: expected.to_string(), found: dtype })
    }

    /// The function of one value. A test gives 1 or 0; `Not` takes 0 as false; `BitNot` acts on integral values.
    pub fn apply(self, value: f64) -> f64 {
        let truth = |truth: bool| f64::from(u8::from(truth));
        match self {
            UnaryFunction::Abs => value.abs(),
            UnaryFunction::Neg => -value,
            UnaryFunction::Sign if value == 0.0 || value.is_nan() => value,
            UnaryFunction::Sign => value.signum(),
            UnaryFunction::Sqrt => value.sqrt(),
            UnaryFunction::Reciprocal => value.recip(),
            UnaryFunction::Exp => value.exp(),
            UnaryFunction::Log => value.ln(),
            UnaryFunction::Erf => libm::erf(value),
            UnaryFunction::Ceil => value.ceil(),
            UnaryFunction::Floor => value.floor(),
            UnaryFunction::Round => value.round_ties_even(),
            UnaryFunction::Sin => value.sin(),
            UnaryFunction::Cos => value.cos(),
            UnaryFunction::Tan => value.tan(),
            UnaryFunction::Asin => value.asin(),
            UnaryFunction::Acos => value.acos(),
            UnaryFunction::Atan => value.atan(),
            UnaryFunction::Sinh => value.sinh(),
            UnaryFunction::Cosh => value.cosh(),
            UnaryFunction::Tanh => value.tanh(),
            UnaryFunction::Asinh => value.asinh(),
            UnaryFunction::Acosh => value.acosh(),
            UnaryFunction::Atanh => value.atanh(),
            UnaryFunction::Not => truth(value == 0.0),
            UnaryFunction::BitNot => -value - 1.0,
            UnaryFunction::IsNan => truth(value.is_nan()),
            UnaryFunction::IsInfinite => truth(value.is_infinite()),
            UnaryFunction::IsPositiveInfinity => truth(value == f64::INFINITY),
            UnaryFunction::IsNegativeInfinity => truth(value == f64::NEG_INFINITY),
        }
    }

    /// The function of one f32, rounded once.
    pub fn apply_f32(self, value: f32) -> f32 {
        self.apply(f64::from(value)) as f32
    }

    pub(crate) fn apply_scalar(self, value: Scalar) -> Scalar {
        match (self, value) {
            (UnaryFunction::Abs, Scalar::Integer(integer)) => Scalar::Integer(integer.abs()),
            (UnaryFunction::Neg, Scalar::Integer(integer)) => Scalar::Integer(-integer),
            (UnaryFunction::Sign, Scalar::Integer(integer)) => Scalar::Integer(integer.signum()),
            (UnaryFunction::Not, Scalar::Integer(integer)) => Scalar::Integer(i128::from(integer == 0)),
            (UnaryFunction::BitNot, Scalar::Integer(integer)) => Scalar::Integer(!integer),
            (function, other) => Scalar::Float(function.apply(other.to_f64())),
        }
    }

    fn apply_dim(self, dim: &Dim, context: &InferContext<'_>) -> Option<Dim> {
        match self {
            UnaryFunction::Neg => Some(-dim),
            UnaryFunction::Abs if dim.bounds(context.ranges).0 >= 0 => Some(dim.clone()),
            UnaryFunction::Sign if dim.bounds(context.ranges).0 > 0 => Some(Dim::ONE),
            UnaryFunction::Not => match dim.bounds(context.ranges) {
                (0, 0) => Some(Dim::ONE),
                (1, 1) => Some(Dim::ZERO),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Operator for Unary {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        self.function.check(dtype)?;
        let result = if self.function.is_test() { DType::Bool } else { dtype };
        let fact = Fact::tensor(result, shape.clone());
        let signed = dtype == DType::I64 || dtype == DType::I32 || dtype == DType::Bool;
        let elements = required(inputs, 0)?.elements_as_dims().filter(|_| signed);
        let followed = elements.and_then(|dims| dims.iter().map(|dim| self.function.apply_dim(dim, context)).collect());
        Ok(vec![match followed {
            Some(dims) => Fact::of_dims(result, shape.clone(), dims),
            None => fact,
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        self.function.check(input.dtype())?;
        let mapped: Vec<Scalar> =
            scalars(input)?.into_iter().map(|element| self.function.apply_scalar(element)).collect();
        let result = if self.function.is_test() { DType::Bool } else { input.dtype() };
        Ok(vec![from_scalars(result, input.shape(), &mapped)?.into()])
    }
}

impl Elementwise for Unary {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        self.function.per_element()
    }
}

impl UnaryFunction {
    /// Operations on each element.
    pub fn per_element(self) -> Vec<(VectorClass, i64)> {
        match self {
            UnaryFunction::Abs
            | UnaryFunction::Neg
            | UnaryFunction::Sign
            | UnaryFunction::Ceil
            | UnaryFunction::Floor
            | UnaryFunction::Round
            | UnaryFunction::Not
            | UnaryFunction::BitNot
            | UnaryFunction::IsNan
            | UnaryFunction::IsInfinite
            | UnaryFunction::IsPositiveInfinity
            | UnaryFunction::IsNegativeInfinity => vec![(VectorClass::Arithmetic, 1)],
            UnaryFunction::Sqrt | UnaryFunction::Reciprocal => vec![(VectorClass::Divide, 1)],
            UnaryFunction::Exp
            | UnaryFunction::Log
            | UnaryFunction::Erf
            | UnaryFunction::Sin
            | UnaryFunction::Cos
            | UnaryFunction::Tan
            | UnaryFunction::Asin
            | UnaryFunction::Acos
            | UnaryFunction::Atan
            | UnaryFunction::Sinh
            | UnaryFunction::Cosh
            | UnaryFunction::Tanh
            | UnaryFunction::Asinh
            | UnaryFunction::Acosh
            | UnaryFunction::Atanh => vec![(VectorClass::Transcendental, 1)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::{bools, run};
    use crate::tensor::Tensor;
    use strum::VariantArray;

    fn unary(function: UnaryFunction, input: Tensor) -> Tensor {
        run(&Unary { function }, &[input]).unwrap()
    }

    fn of_f32(function: UnaryFunction, elements: &[f32]) -> Vec<f32> {
        unary(function, Tensor::from_elements(&[elements.len()], elements).unwrap()).elements().unwrap().to_vec()
    }

    #[test]
    fn functions_have_their_values() {
        assert_eq!(of_f32(UnaryFunction::Round, &[0.5, 1.5, 2.5, -0.5, -1.5]), [0.0, 2.0, 2.0, -0.0, -2.0]);
        assert_eq!(of_f32(UnaryFunction::Sign, &[-3.0, 0.0, 2.0]), [-1.0, 0.0, 1.0]);
        assert_eq!(of_f32(UnaryFunction::Reciprocal, &[4.0, 0.0]), [0.25, f32::INFINITY]);
        assert_eq!(of_f32(UnaryFunction::Erf, &[0.0, 0.5, -3.0]), [0.0, 0.520_499_9, -0.999_977_9]);
        assert_eq!(of_f32(UnaryFunction::Tanh, &[1.0]), [0.761_594_2]);
        assert_eq!(of_f32(UnaryFunction::Asinh, &[1.0]), [0.881_373_6]);
        assert!(of_f32(UnaryFunction::Sqrt, &[-1.0])[0].is_nan());
        assert!(of_f32(UnaryFunction::Sign, &[f32::NAN])[0].is_nan());
    }

    #[test]
    fn integers_are_exact() {
        let long = (1i64 << 53) + 1;
        let input = || Tensor::from_elements(&[3], &[-long, 0, i64::MIN]).unwrap();
        assert_eq!(unary(UnaryFunction::Abs, input()).elements::<i64>().unwrap(), [long, 0, i64::MIN]);
        assert_eq!(unary(UnaryFunction::Neg, input()).elements::<i64>().unwrap(), [long, 0, i64::MIN]);
        assert_eq!(unary(UnaryFunction::Sign, input()).elements::<i64>().unwrap(), [-1, 0, -1]);
        assert_eq!(unary(UnaryFunction::BitNot, input()).elements::<i64>().unwrap(), [long - 1, -1, i64::MAX]);
        let bytes = Tensor::from_elements(&[2], &[0u8, 5]).unwrap();
        assert_eq!(unary(UnaryFunction::BitNot, bytes.clone()).elements::<u8>().unwrap(), [255, 250]);
        assert_eq!(
            run(&Unary { function: UnaryFunction::Neg }, std::slice::from_ref(&bytes)).unwrap_err().to_string(),
            "operand 0 must be a signed number type, found u8"
        );
        assert_eq!(
            run(&Unary { function: UnaryFunction::Exp }, &[bytes]).unwrap_err().to_string(),
            "operand 0 must be a floating-point type, found u8"
        );
    }

    #[test]
    fn tests_give_bool() {
        let input = || Tensor::from_elements(&[4], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0]).unwrap();
        assert_eq!(bools(&unary(UnaryFunction::IsNan, input())), [true, false, false, false]);
        assert_eq!(bools(&unary(UnaryFunction::IsInfinite, input())), [false, true, true, false]);
        assert_eq!(bools(&unary(UnaryFunction::IsPositiveInfinity, input())), [false, true, false, false]);
        assert_eq!(bools(&unary(UnaryFunction::IsNegativeInfinity, input())), [false, false, true, false]);
        let narrow = Tensor::from_codes(DType::F8E5M2, &[2], &[0x7c, 0x7f]).unwrap();
        assert_eq!(bools(&unary(UnaryFunction::IsInfinite, narrow)), [true, false]);
        assert_eq!(bools(&unary(UnaryFunction::Not, Tensor::scalar_bool(true))), [false]);
    }

    #[test]
    fn infer_and_reference_agree_on_types() {
        let ranges = Ranges::new();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("unary", &ranges, &mut blocks);
        for &function in UnaryFunction::VARIANTS {
            for &dtype in DType::VARIANTS.iter().filter(|&&dtype| dtype != DType::String) {
                let input = Tensor::zeros(dtype, &[3]).unwrap();
                let fact = Unary { function }.infer(&[Some(Fact::tensor(dtype, vec![Dim::known(3)]))], &mut context);
                match (run(&Unary { function }, &[input]), fact) {
                    (Ok(result), Ok(fact)) => assert_eq!(Some(result.dtype()), fact[0].dtype()),
                    (result, fact) => assert!(result.is_err() && fact.is_err(), "{function:?} of {dtype}"),
                }
            }
        }
    }

    #[test]
    fn dimensions_are_followed() {
        let ranges = Ranges::new();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("unary", &ranges, &mut blocks);
        let n = Dim::symbol("n");
        let inputs = [Some(Fact::of_dims(DType::I64, vec![Dim::known(1)], vec![n.clone()]))];
        let mut of = |function| Unary { function }.infer(&inputs, &mut context).unwrap()[0].elements_as_dims();
        assert_eq!(of(UnaryFunction::Neg), Some(vec![-&n]));
        assert_eq!(of(UnaryFunction::Abs), Some(vec![n]));
        assert_eq!(of(UnaryFunction::BitNot), None);
    }
}
