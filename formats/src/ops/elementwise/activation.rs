//! Functions of one element that networks put between layers, some with one or two parameters: ONNX `Relu`,
//! `LeakyRelu`, `Elu`, `Selu`, `Celu`, `HardSigmoid`, `Sigmoid`, `Softplus`, `Softsign`, `ThresholdedRelu`, `Shrink`,
//! `HardSwish`, `Mish`, `Gelu`, `Swish` (all opsets), and `Affine`, `ScaledTanh` of the recurrent operators.
//!
//! `Tanh` is a [`Unary`](crate::ops::Unary).

use crate::attribute::Keyword;
use crate::attributes;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::scalar::{Scalar, from_scalars, is_number, scalars};
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError, VectorClass, tensor,
    tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Applies `function` to each element: `x: [..]` to `[..]` of the same element type.
    pub struct Activation revision 1 {
        /// The function.
        1 since 1 => function: ActivationFunction,
        /// First parameter, where the function has one.
        2 since 1 => alpha: Option<f32>,
        /// Second parameter, where the function has two.
        3 since 1 => beta: Option<f32>,
    }
}

/// Functions of [`Activation`]; `a` is alpha, `b` is beta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ActivationFunction {
    /// `max(x, 0)`.
    Relu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `log(1 + exp(x))`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x * tanh(softplus(x))`.
    Mish,
    /// `x * max(0, min(1, x / 6 + 1 / 2))`.
    HardSwish,
    /// `x * (1 + erf(x / sqrt(2))) / 2`.
    Gelu,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2`.
    GeluTanh,
    /// `x >= 0 ? x : a * x`; a = 0.01.
    LeakyRelu,
    /// `x >= 0 ? x : a * (exp(x) - 1)`; a = 1.
    Elu,
    /// `max(0, x) + min(0, a * (exp(x / a) - 1))`; a = 1.
    Celu,
    /// `x > a ? x : 0`, so that NaN gives 0; a = 1.
    ThresholdedRelu,
    /// `x * sigmoid(a * x)`; a = 1.
    Swish,
    /// `b * (x > 0 ? x : a * (exp(x) - 1))`; a = 1.6732632, b = 1.050701.
    Selu,
    /// `max(0, min(1, a * x + b))`; a = 0.2, b = 0.5.
    HardSigmoid,
    /// `x < -a ? x + b : x > a ? x - b : 0`, so that NaN gives 0; a = 0.5, b = 0.
    Shrink,
    /// `a * x + b`; a = 1, b = 0.
    Affine,
    /// `a * tanh(b * x)`; a = 1, b = 1.
    ScaledTanh,
}
impl Keyword for ActivationFunction {}

impl ActivationFunction {
    /// The values of the parameters where they are not given; `None` for a parameter that the function has not.
    pub fn defaults(self) -> (Option<f32>, Option<f32>) {
        use ActivationFunction::*;
        match self {
            Relu | Sigmoid | Softplus | Softsign | Mish | HardSwish | Gelu | GeluTanh => (None, None),
            LeakyRelu => (Some(0.01), None),
            Elu | Celu | ThresholdedRelu | Swish => (Some(1.0), None),
            Selu => (Some(1.673_263_2), Some(1.050_701)),
            HardSigmoid => (Some(0.2), Some(0.5)),
            Shrink => (Some(0.5), Some(0.0)),
            Affine => (Some(1.0), Some(0.0)),
            ScaledTanh => (Some(1.0), Some(1.0)),
        }
    }

    /// The function of one value; parameters that the function has not are not read.
    pub fn apply(self, x: f64, alpha: f64, beta: f64) -> f64 {
        match self {
            ActivationFunction::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            ActivationFunction::Sigmoid => sigmoid(x),
            ActivationFunction::Softplus => softplus(x),
            ActivationFunction::Softsign => x / (1.0 + x.abs()),
            ActivationFunction::Mish => x * softplus(x).tanh(),
            ActivationFunction::HardSwish => x * limit(x / 6.0 + 0.5),
            ActivationFunction::Gelu => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            ActivationFunction::GeluTanh => {
                let inner = std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            ActivationFunction::LeakyRelu => {
                if x < 0.0 {
                    alpha * x
                } else {
                    x
                }
            }
            ActivationFunction::Elu => {
                if x < 0.0 {
                    alpha * x.exp_m1()
                } else {
                    x
                }
            }
            ActivationFunction::Celu => {
                if x < 0.0 {
                    alpha * (x / alpha).exp_m1()
                } else {
                    x
                }
            }
            ActivationFunction::ThresholdedRelu => {
                if x > alpha {
                    x
                } else {
                    0.0
                }
            }
            ActivationFunction::Swish => x * sigmoid(alpha * x),
            ActivationFunction::Selu => beta * if x <= 0.0 { alpha * x.exp_m1() } else { x },
            ActivationFunction::HardSigmoid => limit(alpha * x + beta),
            ActivationFunction::Shrink => match x {
                _ if x < -alpha => x + beta,
                _ if x > alpha => x - beta,
                _ => 0.0,
            },
            ActivationFunction::Affine => alpha * x + beta,
            ActivationFunction::ScaledTanh => alpha * (beta * x).tanh(),
        }
    }

    /// Functions that give integers for integers in ONNX (`Relu`, `Shrink`); the others take floats only.
    fn takes_integers(self) -> bool {
        matches!(self, ActivationFunction::Relu | ActivationFunction::Shrink)
    }

    pub(crate) fn check(self, dtype: DType) -> Result<(), TypeError> {
        let (fits, expected) = if self.takes_integers() {
            (is_number(dtype), "a real number type")
        } else {
            (dtype.is_float(), "a floating-point type")
        };
        if fits {
            return Ok(());
        }
        Err(TypeError::ElementType { operand: 0, expected: expected.to_string(), found: dtype })
    }
}

/// Without overflow for any argument.
fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

/// Without overflow for large arguments, without cancellation for small ones.
fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

/// Between 0 and 1; NaN stays.
fn limit(x: f64) -> f64 {
    if x.is_nan() { x } else { x.clamp(0.0, 1.0) }
}

impl Activation {
    /// The function with its usual parameters.
    pub fn new(function: ActivationFunction) -> Activation {
        Activation { function, alpha: None, beta: None }
    }

    /// Both parameters, defaults filled in.
    pub fn parameters(&self) -> (f32, f32) {
        let (alpha, beta) = self.function.defaults();
        (self.alpha.or(alpha).unwrap_or(0.0), self.beta.or(beta).unwrap_or(0.0))
    }

    /// The function of one value.
    pub fn apply(&self, value: f64) -> f64 {
        let (alpha, beta) = self.parameters();
        self.function.apply(value, f64::from(alpha), f64::from(beta))
    }

    /// The function of one f32, rounded once.
    pub fn apply_f32(&self, value: f32) -> f32 {
        self.apply(f64::from(value)) as f32
    }

    /// A parameter that the function has not is refused, since it would silently do nothing.
    pub(crate) fn check_parameters(&self) -> Result<(), TypeError> {
        let name: &'static str = self.function.into();
        let (alpha, beta) = self.function.defaults();
        for (parameter, given, known) in [("alpha", self.alpha, alpha), ("beta", self.beta, beta)] {
            if let (Some(value), None) = (given, known) {
                return Err(TypeError::Value {
                    subject: format!("{parameter} of {name}"),
                    found: value.to_string(),
                    expected: "nothing".to_string(),
                });
            }
        }
        Ok(())
    }

    pub(crate) fn apply_scalar(&self, value: Scalar) -> Scalar {
        match (self.function, value) {
            (ActivationFunction::Relu, Scalar::Integer(integer)) => Scalar::Integer(integer.max(0)),
            (_, other) => Scalar::Float(self.apply(other.to_f64())),
        }
    }
}

impl Operator for Activation {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        self.function.check(dtype)?;
        self.check_parameters()?;
        Ok(vec![Fact::tensor(dtype, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        self.function.check(input.dtype())?;
        self.check_parameters()?;
        let mapped: Vec<Scalar> = scalars(input)?.into_iter().map(|element| self.apply_scalar(element)).collect();
        Ok(vec![from_scalars(input.dtype(), input.shape(), &mapped)?.into()])
    }
}

impl Elementwise for Activation {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        self.function.per_element()
    }
}

impl ActivationFunction {
    /// Operations on each element.
    pub fn per_element(self) -> Vec<(VectorClass, i64)> {
        let (arithmetic, divide, transcendental) =
            (VectorClass::Arithmetic, VectorClass::Divide, VectorClass::Transcendental);
        match self {
            ActivationFunction::Relu => vec![(arithmetic, 1)],
            ActivationFunction::LeakyRelu | ActivationFunction::Affine | ActivationFunction::ThresholdedRelu => {
                vec![(arithmetic, 2)]
            }
            ActivationFunction::HardSigmoid | ActivationFunction::Shrink => vec![(arithmetic, 4)],
            ActivationFunction::HardSwish => vec![(arithmetic, 5)],
            ActivationFunction::Softsign => vec![(arithmetic, 2), (divide, 1)],
            ActivationFunction::Sigmoid => vec![(arithmetic, 2), (divide, 1), (transcendental, 1)],
            ActivationFunction::Swish => vec![(arithmetic, 3), (divide, 1), (transcendental, 1)],
            ActivationFunction::Elu | ActivationFunction::Celu | ActivationFunction::Selu => {
                vec![(arithmetic, 4), (transcendental, 1)]
            }
            ActivationFunction::ScaledTanh => vec![(arithmetic, 2), (transcendental, 1)],
            ActivationFunction::Gelu => vec![(arithmetic, 4), (transcendental, 1)],
            ActivationFunction::GeluTanh => vec![(arithmetic, 7), (transcendental, 1)],
            ActivationFunction::Softplus => vec![(arithmetic, 1), (transcendental, 2)],
            ActivationFunction::Mish => vec![(arithmetic, 2), (transcendental, 3)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;
    use strum::VariantArray;

    fn of(function: ActivationFunction, alpha: Option<f32>, beta: Option<f32>, elements: &[f32]) -> Vec<f32> {
        let x = Tensor::from_elements(&[elements.len()], elements).unwrap();
        run(&Activation { function, alpha, beta }, &[x]).unwrap().elements().unwrap().to_vec()
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} for {expected}");
        }
    }

    #[test]
    fn functions_have_their_values() {
        use ActivationFunction::*;
        close(&of(Relu, None, None, &[-1.0, 2.0]), &[0.0, 2.0]);
        close(&of(Sigmoid, None, None, &[0.0, 1.0, -1000.0]), &[0.5, 0.731_058_6, 0.0]);
        close(&of(Softplus, None, None, &[0.0, 1000.0, -1.0]), &[std::f32::consts::LN_2, 1000.0, 0.313_261_7]);
        close(&of(Softsign, None, None, &[-1.0, 3.0]), &[-0.5, 0.75]);
        close(&of(Mish, None, None, &[1.0]), &[0.865_098_4]);
        close(&of(HardSwish, None, None, &[-4.0, 1.0, 5.0]), &[0.0, 0.666_666_7, 5.0]);
        close(&of(Gelu, None, None, &[1.0, -1.0]), &[0.841_344_7, -0.158_655_3]);
        close(&of(GeluTanh, None, None, &[1.0, -1.0]), &[0.841_192, -0.158_808]);
        close(&of(LeakyRelu, None, None, &[-1.0, 2.0]), &[-0.01, 2.0]);
        close(&of(Elu, Some(2.0), None, &[-1.0, 1.0]), &[-1.264_241_1, 1.0]);
        close(&of(Celu, Some(2.0), None, &[-1.0, 1.0]), &[-0.786_938_7, 1.0]);
        close(&of(ThresholdedRelu, Some(2.0), None, &[1.5, 2.0, 2.5]), &[0.0, 0.0, 2.5]);
        close(&of(Swish, Some(2.0), None, &[1.0]), &[0.880_797_1]);
        close(&of(Selu, Some(2.0), Some(3.0), &[-1.0, 1.0]), &[-3.792_723_4, 3.0]);
        close(&of(HardSigmoid, None, None, &[-9.0, 1.0, 9.0]), &[0.0, 0.7, 1.0]);
        close(&of(Shrink, Some(1.5), Some(1.0), &[-2.0, -1.0, 1.0, 2.0]), &[-1.0, 0.0, 0.0, 1.0]);
        close(&of(Affine, Some(2.0), Some(1.0), &[3.0]), &[7.0]);
        close(&of(ScaledTanh, Some(2.0), Some(0.5), &[2.0]), &[1.523_188_3]);
    }

    #[test]
    fn not_a_number_stays_except_under_a_threshold() {
        for &function in ActivationFunction::VARIANTS {
            let result = Activation::new(function).apply_f32(f32::NAN);
            let cuts = matches!(function, ActivationFunction::ThresholdedRelu | ActivationFunction::Shrink);
            assert_eq!(result.is_nan(), !cuts, "{function:?}: {result}");
        }
    }

    #[test]
    fn integers_and_parameters_are_checked() {
        let integers = Tensor::from_elements(&[2], &[-(1i64 << 60), (1 << 60) + 1]).unwrap();
        let relu = run(&Activation::new(ActivationFunction::Relu), std::slice::from_ref(&integers)).unwrap();
        assert_eq!(relu.elements::<i64>().unwrap(), [0, (1 << 60) + 1]);
        assert_eq!(
            run(&Activation::new(ActivationFunction::Sigmoid), std::slice::from_ref(&integers))
                .unwrap_err()
                .to_string(),
            "operand 0 must be a floating-point type, found i64"
        );
        let idle = Activation { alpha: Some(1.0), ..Activation::new(ActivationFunction::Relu) };
        assert_eq!(run(&idle, &[integers]).unwrap_err().to_string(), "alpha of relu is 1, expected nothing");
        let bytes = Tensor::from_elements(&[3], &[-3i8, 0, 3]).unwrap();
        let shrink = Activation { function: ActivationFunction::Shrink, alpha: Some(1.5), beta: Some(1.5) };
        assert_eq!(run(&shrink, &[bytes]).unwrap().elements::<i8>().unwrap(), [-1, 0, 1]);
    }
}
