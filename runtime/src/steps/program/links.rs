//! The steps that chains are made of.

use ipuc_formats::ops::{ActivationFunction, Function, UnaryFunction};
use ipuc_kernels::elementwise::{VectorFunction, functions};
use ipuc_kernels::simd::Simd;

/// Multiplications of a function that takes many of them.
const LONG_COST: usize = 8;

/// A step: its arguments are slots.
#[derive(Clone, Copy)]
pub(super) enum Link {
    Add(usize, usize),
    Sub(usize, usize),
    Mul(usize, usize),
    Div(usize, usize),
    /// Not below the first number, then not above the second.
    Clamp(usize, f32, f32),
    /// A function of one number.
    Change(usize, LinkFunction),
}

/// A function of one number that chains compute as it is computed alone.
#[derive(Clone, Copy)]
pub(super) enum LinkFunction {
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    HardSigmoid { alpha: f32, beta: f32 },
    HardSwish,
    Sigmoid,
    Swish { alpha: f32 },
    Tanh,
}

impl LinkFunction {
    /// `None` for a function that no chain has.
    pub(super) fn of(function: &Function) -> Option<LinkFunction> {
        match function {
            Function::Unary(UnaryFunction::Erf) => Some(LinkFunction::Erf),
            Function::Unary(UnaryFunction::Exp) => Some(LinkFunction::Exp),
            Function::Unary(UnaryFunction::Tanh) => Some(LinkFunction::Tanh),
            Function::Activation(activation) => {
                let (alpha, beta) = activation.parameters();
                match activation.function {
                    ActivationFunction::Gelu => Some(LinkFunction::Gelu),
                    ActivationFunction::GeluTanh => Some(LinkFunction::GeluTanh),
                    ActivationFunction::HardSigmoid => Some(LinkFunction::HardSigmoid { alpha, beta }),
                    ActivationFunction::HardSwish => Some(LinkFunction::HardSwish),
                    ActivationFunction::Sigmoid => Some(LinkFunction::Sigmoid),
                    ActivationFunction::Swish => Some(LinkFunction::Swish { alpha }),
                    ActivationFunction::Relu
                    | ActivationFunction::Softplus
                    | ActivationFunction::Softsign
                    | ActivationFunction::Mish
                    | ActivationFunction::LeakyRelu
                    | ActivationFunction::Elu
                    | ActivationFunction::Celu
                    | ActivationFunction::Selu
                    | ActivationFunction::Shrink
                    | ActivationFunction::Affine
                    | ActivationFunction::ScaledTanh
                    | ActivationFunction::ThresholdedRelu => None,
                }
            }
            Function::Unary(_)
            | Function::Binary(_)
            | Function::Clamp
            | Function::Select
            | Function::Compare(_)
            | Function::Cast => None,
        }
    }

    /// Whether it takes so many operations that several vectors are to be computed one after another.
    pub(super) fn is_long(self) -> bool {
        self.cost() >= LONG_COST
    }

    fn cost(self) -> usize {
        match self {
            LinkFunction::Erf => functions::ErrorFunction {}.cost(),
            LinkFunction::Exp => functions::Exponential {}.cost(),
            LinkFunction::Gelu => functions::Gelu {}.cost(),
            LinkFunction::GeluTanh => functions::GeluTanh {}.cost(),
            LinkFunction::HardSigmoid { alpha, beta } => functions::HardSigmoid { alpha, beta }.cost(),
            LinkFunction::HardSwish => functions::HardSwish {}.cost(),
            LinkFunction::Sigmoid => functions::Logistic {}.cost(),
            LinkFunction::Swish { alpha } => functions::Swish { alpha }.cost(),
            LinkFunction::Tanh => functions::HyperbolicTangent {}.cost(),
        }
    }

    /// The function of each lane.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        match self {
            LinkFunction::Erf => functions::ErrorFunction {}.apply(simd, x),
            LinkFunction::Exp => functions::Exponential {}.apply(simd, x),
            LinkFunction::Gelu => functions::Gelu {}.apply(simd, x),
            LinkFunction::GeluTanh => functions::GeluTanh {}.apply(simd, x),
            LinkFunction::HardSigmoid { alpha, beta } => functions::HardSigmoid { alpha, beta }.apply(simd, x),
            LinkFunction::HardSwish => functions::HardSwish {}.apply(simd, x),
            LinkFunction::Sigmoid => functions::Logistic {}.apply(simd, x),
            LinkFunction::Swish { alpha } => functions::Swish { alpha }.apply(simd, x),
            LinkFunction::Tanh => functions::HyperbolicTangent {}.apply(simd, x),
        }
    }
}

impl Link {
    /// What it reads.
    pub(super) fn slots(self) -> (usize, Option<usize>) {
        match self {
            Link::Add(x, y) | Link::Sub(x, y) | Link::Mul(x, y) | Link::Div(x, y) => (x, Some(y)),
            Link::Clamp(x, ..) | Link::Change(x, _) => (x, None),
        }
    }

    /// About how many multiplications an element takes.
    pub(super) fn cost(self) -> usize {
        match self {
            Link::Add(..) | Link::Sub(..) | Link::Mul(..) | Link::Div(..) | Link::Clamp(..) => 1,
            Link::Change(_, function) => function.cost(),
        }
    }
}

/// A step over its arguments; a step of one argument does not read `y`.
#[inline(always)]
pub(super) fn linked<S: Simd, const COUNT: usize>(
    simd: S,
    link: Link,
    x: [S::Vector; COUNT],
    y: [S::Vector; COUNT],
) -> [S::Vector; COUNT] {
    let mut result = x;
    match link {
        Link::Add(..) => {
            for vector in 0..COUNT {
                result[vector] = simd.add(x[vector], y[vector]);
            }
        }
        Link::Sub(..) => {
            for vector in 0..COUNT {
                result[vector] = simd.subtract(x[vector], y[vector]);
            }
        }
        Link::Mul(..) => {
            for vector in 0..COUNT {
                result[vector] = simd.multiply(x[vector], y[vector]);
            }
        }
        Link::Div(..) => {
            for vector in 0..COUNT {
                result[vector] = simd.divide(x[vector], y[vector]);
            }
        }
        Link::Clamp(_, least, greatest) => {
            let (least, greatest) = (simd.splat(least), simd.splat(greatest));
            for vector in 0..COUNT {
                result[vector] = simd.at_most(simd.at_least(x[vector], least), greatest);
            }
        }
        Link::Change(_, function) => {
            for vector in 0..COUNT {
                result[vector] = function.apply(simd, x[vector]);
            }
        }
    }
    result
}
