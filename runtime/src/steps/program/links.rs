//! The steps that chains are made of.

use ipuc_formats::ops::{ActivationFunction, Function, UnaryFunction};
use ipuc_kernels::elementwise::{VectorFunction, functions};
use ipuc_kernels::simd::Simd;

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

    #[inline(always)]
    fn change<S: Simd, const COUNT: usize>(self, simd: S, x: [S::Vector; COUNT]) -> [S::Vector; COUNT] {
        match self {
            LinkFunction::Erf => each(simd, functions::ErrorFunction {}, x),
            LinkFunction::Exp => each(simd, functions::Exponential {}, x),
            LinkFunction::Gelu => each(simd, functions::Gelu {}, x),
            LinkFunction::GeluTanh => each(simd, functions::GeluTanh {}, x),
            LinkFunction::HardSigmoid { alpha, beta } => each(simd, functions::HardSigmoid { alpha, beta }, x),
            LinkFunction::HardSwish => each(simd, functions::HardSwish {}, x),
            LinkFunction::Sigmoid => each(simd, functions::Logistic {}, x),
            LinkFunction::Swish { alpha } => each(simd, functions::Swish { alpha }, x),
            LinkFunction::Tanh => each(simd, functions::HyperbolicTangent {}, x),
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

#[inline(always)]
fn each<S: Simd, const COUNT: usize>(
    simd: S,
    function: impl VectorFunction,
    x: [S::Vector; COUNT],
) -> [S::Vector; COUNT] {
    let mut result = x;
    for vector in 0..COUNT {
        result[vector] = function.apply(simd, x[vector]);
    }
    result
}

/// A step over its arguments, of which some have one.
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
        Link::Change(_, function) => result = function.change(simd, x),
    }
    result
}
