//! The steps that chains are made of.

use crate::steps::elementwise::powers::Power;
use ipuc_formats::ops::{ActivationFunction, Function, UnaryFunction};
use ipuc_kernels::elementwise::{VectorFunction, change, functions, of_each};
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
    Cube,
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    HardSigmoid { alpha: f32, beta: f32 },
    HardSwish,
    Sigmoid,
    Square,
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

    /// A power that chains have; `None` for another.
    pub(super) fn of_power(power: Power) -> Option<LinkFunction> {
        match power {
            Power::Square => Some(LinkFunction::Square),
            Power::Cube => Some(LinkFunction::Cube),
            Power::Root | Power::Of(_) => None,
        }
    }

    fn cost(self) -> usize {
        self.with(Cost)
    }

    /// Hands the kernel's function to what uses it.
    #[inline(always)]
    fn with<U: FunctionUse>(self, using: U) -> U::Output {
        match self {
            LinkFunction::Cube => using.of(functions::Cube {}),
            LinkFunction::Erf => using.of(functions::ErrorFunction {}),
            LinkFunction::Exp => using.of(functions::Exponential {}),
            LinkFunction::Gelu => using.of(functions::Gelu {}),
            LinkFunction::GeluTanh => using.of(functions::GeluTanh {}),
            LinkFunction::HardSigmoid { alpha, beta } => using.of(functions::HardSigmoid { alpha, beta }),
            LinkFunction::HardSwish => using.of(functions::HardSwish {}),
            LinkFunction::Sigmoid => using.of(functions::Logistic {}),
            LinkFunction::Square => using.of(functions::Square {}),
            LinkFunction::Swish { alpha } => using.of(functions::Swish { alpha }),
            LinkFunction::Tanh => using.of(functions::HyperbolicTangent {}),
        }
    }

    /// The function of each vector.
    #[inline(always)]
    fn of_each<S: Simd, const COUNT: usize>(self, simd: S, vectors: [S::Vector; COUNT]) -> [S::Vector; COUNT] {
        self.with(OfEach { simd, vectors })
    }
}

/// Changes some values where they are.
#[inline(always)]
pub(super) fn change_all<S: Simd>(simd: S, function: LinkFunction, values: &mut [f32]) {
    function.with(ChangeAll { simd, values });
}

/// What is done with a function.
trait FunctionUse {
    type Output;

    fn of(self, function: impl VectorFunction) -> Self::Output;
}

struct Cost;

impl FunctionUse for Cost {
    type Output = usize;

    fn of(self, function: impl VectorFunction) -> usize {
        function.cost()
    }
}

struct OfEach<S: Simd, const COUNT: usize> {
    simd: S,
    vectors: [S::Vector; COUNT],
}

impl<S: Simd, const COUNT: usize> FunctionUse for OfEach<S, COUNT> {
    type Output = [S::Vector; COUNT];

    #[inline(always)]
    fn of(self, function: impl VectorFunction) -> Self::Output {
        of_each(self.simd, function, self.vectors)
    }
}

struct ChangeAll<'a, S> {
    simd: S,
    values: &'a mut [f32],
}

impl<S: Simd> FunctionUse for ChangeAll<'_, S> {
    type Output = ();

    #[inline(always)]
    fn of(self, function: impl VectorFunction) {
        change(self.simd, function, self.values);
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
        Link::Change(_, function) => result = function.of_each(simd, x),
    }
    result
}
