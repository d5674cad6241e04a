//! Which vector function computes a function of one element over blocks of f32.

use ipuc_formats::ops::{Activation, ActivationFunction, UnaryFunction};
use ipuc_kernels::elementwise::angles::{Cosine, Sine, Tangent};
use ipuc_kernels::elementwise::arcs::{ArcCosine, ArcSine, ArcTangent};
use ipuc_kernels::elementwise::{RoundedFunction, VectorFunction, apply, apply_rounded, functions};
use ipuc_kernels::simd::Instructions;

/// Operations that an exponential or the like costs.
const TRANSCENDENTAL_COST: usize = 16;

/// Changes a block of f32.
type ChangeBlock = Box<dyn Fn(&mut [f32]) + Send + Sync>;

/// A change of blocks of f32.
pub(in crate::steps) struct Change {
    /// About how many multiplications an element takes.
    pub(in crate::steps) cost: usize,
    /// The change.
    pub(in crate::steps) apply: ChangeBlock,
}

fn vector(function: impl VectorFunction + 'static) -> Change {
    let instructions = Instructions::best();
    Change { cost: function.cost(), apply: Box::new(move |values| apply(instructions, function, values)) }
}

fn rounded(function: impl RoundedFunction + 'static) -> Change {
    let instructions = Instructions::best();
    Change { cost: function.cost(), apply: Box::new(move |values| apply_rounded(instructions, function, values)) }
}

fn scalar(cost: usize, function: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Change {
    let all = move |values: &mut [f32]| values.iter_mut().for_each(|value| *value = function(*value));
    Change { cost, apply: Box::new(all) }
}

/// A function of one f32 that gives a float; `None` for tests and functions of integers.
pub(in crate::steps) fn unary(function: UnaryFunction) -> Option<Change> {
    use UnaryFunction::*;
    Some(match function {
        Abs => vector(functions::Absolute {}),
        Neg => vector(functions::Negate {}),
        Sqrt => vector(functions::SquareRoot {}),
        Reciprocal => vector(functions::Reciprocal {}),
        Ceil => vector(functions::Ceil {}),
        Floor => vector(functions::Floor {}),
        Round => vector(functions::Round {}),
        Exp => vector(functions::Exponential {}),
        Log => vector(functions::Logarithm {}),
        Erf => vector(functions::ErrorFunction {}),
        Tanh => vector(functions::HyperbolicTangent {}),
        Sign => vector(functions::Sign {}),
        Sin => rounded(Sine {}),
        Cos => rounded(Cosine {}),
        Tan => rounded(Tangent {}),
        Asin => rounded(ArcSine {}),
        Acos => rounded(ArcCosine {}),
        Atan => rounded(ArcTangent {}),
        Sinh | Cosh | Asinh | Acosh | Atanh => scalar(TRANSCENDENTAL_COST, move |x| function.apply_f32(x)),
        Not | BitNot | IsNan | IsInfinite | IsPositiveInfinity | IsNegativeInfinity => return None,
    })
}

/// Limits; NaN stays NaN.
pub(in crate::steps) fn clamp(least: f32, greatest: f32) -> Change {
    vector(functions::Clamp { least, greatest })
}

/// An activation of one f32.
pub(in crate::steps) fn activation(activation: &Activation) -> Change {
    use ActivationFunction::*;
    let (alpha, beta) = activation.parameters();
    match activation.function {
        Relu => vector(functions::Relu {}),
        Sigmoid => vector(functions::Logistic {}),
        Softplus => vector(functions::SoftPlus {}),
        Softsign => vector(functions::SoftSign {}),
        Mish => vector(functions::Mish {}),
        HardSwish => vector(functions::HardSwish {}),
        Gelu => vector(functions::Gelu {}),
        GeluTanh => vector(functions::GeluTanh {}),
        LeakyRelu => vector(functions::LeakyRelu { slope: alpha }),
        Elu => vector(functions::Elu { alpha }),
        Celu => vector(functions::Celu { alpha }),
        Swish => vector(functions::Swish { alpha }),
        Selu => vector(functions::Selu { alpha, gamma: beta }),
        HardSigmoid => vector(functions::HardSigmoid { alpha, beta }),
        Shrink => vector(functions::Shrink { alpha, beta }),
        Affine => vector(functions::Affine { scale: alpha, offset: beta }),
        ScaledTanh => vector(functions::ScaledTanh { alpha, beta }),
        ThresholdedRelu => vector(functions::KeepAbove { most: alpha }),
    }
}
