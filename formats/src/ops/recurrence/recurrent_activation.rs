//! Directions and activation functions of the recurrent layers.

use crate::attribute::{Attribute, AttributeValue, Keyword};

/// The order in which a recurrent layer walks over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Direction {
    /// From the first step.
    Forward,
    /// From the last step of each sequence.
    Reverse,
    /// Both, with weights of their own.
    Bidirectional,
}
impl Keyword for Direction {}

impl Direction {
    /// Number of walks.
    pub fn count(self) -> usize {
        match self {
            Direction::Forward | Direction::Reverse => 1,
            Direction::Bidirectional => 2,
        }
    }

    /// Whether walk `index` starts at the end.
    pub fn is_reverse(self, index: usize) -> bool {
        match self {
            Direction::Forward => false,
            Direction::Reverse => true,
            Direction::Bidirectional => index == 1,
        }
    }
}

/// Activation functions of recurrent layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum RecurrentFunction {
    /// `max(x, 0)`.
    Relu,
    /// `tanh(x)`.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `alpha * x + beta`.
    Affine,
    /// `x`, or `alpha * x` below 0.
    LeakyRelu,
    /// `x`, or 0 below `alpha`.
    ThresholdedRelu,
    /// `alpha * tanh(beta * x)`.
    ScaledTanh,
    /// `alpha * x + beta` between 0 and 1.
    HardSigmoid,
    /// `x`, or `alpha * (exp(x) - 1)` below 0.
    Elu,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `ln(1 + exp(x))`.
    Softplus,
}
impl Keyword for RecurrentFunction {}

impl RecurrentFunction {
    /// The function's value.
    pub fn apply(self, x: f64, alpha: f64, beta: f64) -> f64 {
        match self {
            RecurrentFunction::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            RecurrentFunction::Tanh => x.tanh(),
            RecurrentFunction::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            RecurrentFunction::Affine => alpha * x + beta,
            RecurrentFunction::LeakyRelu => {
                if x < 0.0 {
                    alpha * x
                } else {
                    x
                }
            }
            RecurrentFunction::ThresholdedRelu => {
                if x < alpha {
                    0.0
                } else {
                    x
                }
            }
            RecurrentFunction::ScaledTanh => alpha * (beta * x).tanh(),
            RecurrentFunction::HardSigmoid => (alpha * x + beta).clamp(0.0, 1.0),
            RecurrentFunction::Elu => {
                if x < 0.0 {
                    alpha * x.exp_m1()
                } else {
                    x
                }
            }
            RecurrentFunction::Softsign => x / (1.0 + x.abs()),
            // Without overflow for large x, exact for small ones.
            RecurrentFunction::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        }
    }
}

/// An activation function with its parameters (0 where the function has none).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecurrentActivation {
    /// The function.
    pub function: RecurrentFunction,
    /// First parameter.
    pub alpha: f32,
    /// Second parameter.
    pub beta: f32,
}

impl RecurrentActivation {
    /// A function without parameters.
    pub const fn plain(function: RecurrentFunction) -> RecurrentActivation {
        RecurrentActivation { function, alpha: 0.0, beta: 0.0 }
    }

    /// The activation's value.
    pub fn apply(self, x: f64) -> f64 {
        self.function.apply(x, f64::from(self.alpha), f64::from(self.beta))
    }
}

/// Stored as one text an activation: `tanh 0.0 0.0`.
impl Attribute for Vec<RecurrentActivation> {
    fn to_value(&self) -> Option<AttributeValue> {
        let text = |activation: &RecurrentActivation| {
            let name: &'static str = activation.function.into();
            format!("{name} {:?} {:?}", activation.alpha, activation.beta)
        };
        (!self.is_empty()).then(|| AttributeValue::Texts(self.iter().map(text).collect()))
    }

    fn from_value(value: &AttributeValue) -> Option<Self> {
        let AttributeValue::Texts(texts) = value else { return None };
        let parse = |text: &String| {
            let words: Vec<&str> = text.split(' ').collect();
            let [name, alpha, beta] = words.as_slice() else { return None };
            Some(RecurrentActivation {
                function: name.parse().ok()?,
                alpha: alpha.parse().ok()?,
                beta: beta.parse().ok()?,
            })
        };
        texts.iter().map(parse).collect()
    }

    fn absent() -> Option<Self> {
        Some(Vec::new())
    }
}
