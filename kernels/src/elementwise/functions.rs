//! Functions of one f32, 16 lanes at a time.
//!
//! Errors are in units in the last place (ULP) of the exact result, the largest that tests found with fused
//! multiply-adds; without (portable) one more. Those of gates, which cancel for negative numbers, are a share of x. Infinities and NaN
//! come out as they should.

use crate::simd::Arithmetic;

/// A function of one number over vectors.
pub trait VectorFunction: Copy + Send + Sync {
    /// About how many multiplications it takes.
    fn cost(self) -> usize;

    /// The function of each lane. Implementations are `#[inline(always)]`.
    fn apply<S: Arithmetic>(self, simd: S, x: S::Vector) -> S::Vector;
}

/// The polynomial with `coefficients` from the highest power down.
#[inline(always)]
fn polynomial<S: Arithmetic, const N: usize>(simd: S, x: S::Vector, coefficients: [f32; N]) -> S::Vector {
    let mut sum = simd.splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = simd.fused(sum, x, simd.splat(*coefficient));
    }
    sum
}

/// `(exp(r) - 1, n)` with x = r + n * log(2), for |x| up to 105. Polynomial of Cephes `expf`.
#[inline(always)]
fn reduced_exponential<S: Arithmetic>(simd: S, x: S::Vector) -> (S::Vector, S::Vector) {
    // A sum with this has no places behind the point.
    let shift = simd.splat(12_582_912.0);
    let n = simd.subtract(simd.fused(x, simd.splat(std::f32::consts::LOG2_E), shift), shift);
    // log(2) in two parts, of which the first has few bits.
    let r = simd.fused(n, simd.splat(-0.693_359_4), x);
    let r = simd.fused(n, simd.splat(2.121_944_4e-4), r);
    // Pairs of powers, so that few multiplications wait for one another.
    let square = simd.multiply(r, r);
    let high = simd.fused(simd.splat(1.987_569_1e-4), r, simd.splat(1.398_199_9e-3));
    let middle = simd.fused(simd.splat(8.333_452e-3), r, simd.splat(4.166_579_6e-2));
    let low = simd.fused(simd.splat(1.666_666_5e-1), r, simd.splat(5e-1));
    let p = simd.fused(simd.fused(high, square, middle), square, low);
    (simd.fused(square, p, r), n)
}

/// x within limits; NaN stays NaN.
#[inline(always)]
fn limit<S: Arithmetic>(simd: S, x: S::Vector, least: f32, greatest: f32) -> S::Vector {
    simd.at_most(simd.at_least(x, simd.splat(least)), simd.splat(greatest))
}

/// What exponentials are 0 below, and infinite above.
const LEAST_EXPONENT: f32 = -105.0;
const GREATEST_EXPONENT: f32 = 89.0;

/// exp(x), to 1 ULP (below the normal numbers, 1 unit of those).
#[inline(always)]
pub fn exponential<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    let (less_one, n) = reduced_exponential(simd, limit(simd, x, LEAST_EXPONENT, GREATEST_EXPONENT));
    simd.scale_by_power_from(simd.add(less_one, simd.splat(1.0)), n, x, LEAST_EXPONENT)
}

/// exp(x) of x from -87 to 88, to 1 ULP.
#[inline(always)]
fn exponential_of_few<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    let (less_one, n) = reduced_exponential(simd, x);
    simd.scale_by_power(simd.add(less_one, simd.splat(1.0)), n)
}

/// exp(x) - 1, to 2 ULP.
#[inline(always)]
fn exponential_less_one<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    let large = simd.subtract(exponential(simd, x), simd.splat(1.0));
    let (small, _) = reduced_exponential(simd, limit(simd, x, -0.34, 0.34));
    simd.select_less(simd.absolute(x), simd.splat(0.34), small, large)
}

/// log(x), to 1 ULP. Polynomial of Cephes `logf`.
#[inline(always)]
pub fn logarithm<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    // Numbers below the normal ones are scaled up.
    let tiny = simd.splat(f32::MIN_POSITIVE);
    let scaled = simd.select_less(x, tiny, simd.multiply(x, simd.splat(33_554_432.0)), x);
    let shift = simd.select_less(x, tiny, simd.splat(-25.0), zero);
    let (m, e) = simd.mantissa_and_exponent(scaled);
    let large = simd.splat(std::f32::consts::SQRT_2);
    let e = simd.add(simd.add(e, shift), simd.select_less(large, m, one, zero));
    let m = simd.subtract(simd.select_less(large, m, simd.multiply(m, simd.splat(0.5)), m), one);
    let square = simd.multiply(m, m);
    let p = polynomial(
        simd,
        m,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_84e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_4e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let y = simd.multiply(simd.multiply(p, m), square);
    let y = simd.fused(e, simd.splat(-2.121_944_4e-4), y);
    let y = simd.fused(square, simd.splat(-0.5), y);
    let value = simd.fused(e, simd.splat(0.693_359_4), simd.add(m, y));
    let value = simd.select_less(simd.splat(f32::MAX), x, x, value);
    let value = simd.select_less(zero, x, value, simd.splat(f32::NEG_INFINITY));
    let value = simd.select_less(x, zero, simd.splat(f32::NAN), value);
    // NaN compares with nothing: it falls through to minus infinity above.
    simd.select_less(simd.absolute(x), simd.splat(f32::INFINITY), value, simd.maximum(x, value))
}

/// tanh(x), to 2 ULP. Polynomial of Cephes `tanhf`.
#[inline(always)]
pub fn hyperbolic_tangent<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    let magnitude = simd.absolute(x);
    let square = simd.multiply(x, x);
    let p = polynomial(simd, square, [-5.704_988_6e-3, 2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let small = simd.fused(simd.multiply(p, square), x, x);
    // From 10 on it is 1.
    let e = exponential_of_few(simd, simd.at_most(simd.add(magnitude, magnitude), simd.splat(20.0)));
    let reciprocal = simd.reciprocal(simd.add(e, simd.splat(1.0)));
    let large = simd.fused(simd.splat(-2.0), reciprocal, simd.splat(1.0));
    simd.select_less(magnitude, simd.splat(0.625), small, simd.copy_sign(large, x))
}

/// 1 / (1 + exp(-x)), to 3 ULP.
#[inline(always)]
pub fn logistic<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    // The exponential and what it is added to are scaled down, so that it is finite wherever the result is not 0. Above 60, where it
    // would be below the normal numbers, it does not change the sum.
    const SCALE: f32 = 1.0 / 67_108_864.0;
    let negative = simd.subtract(simd.splat(0.0), limit(simd, x, LEAST_EXPONENT, 60.0));
    let (less_one, n) = reduced_exponential(simd, negative);
    let scale = simd.splat(SCALE);
    let e = simd.scale_by_power(simd.fused(less_one, scale, scale), n);
    simd.multiply_from(scale, simd.reciprocal(simd.add(scale, e)), x, LEAST_EXPONENT)
}

/// erf(x), to 2 ULP. Polynomials by N. Juffa (2014).
#[inline(always)]
pub fn error_function<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    let t = simd.minimum(simd.absolute(x), simd.splat(4.0));
    let square = simd.multiply(t, t);
    let p = simd.fused(simd.splat(-1.728_534_7e-5), t, simd.splat(3.831_971_3e-4));
    let q = simd.fused(simd.splat(-3.883_964_4e-3), t, simd.splat(2.425_462_2e-2));
    let p = simd.fused(p, square, q);
    let p = simd.fused(p, t, simd.splat(-1.067_778_8e-1));
    let p = simd.fused(p, t, simd.splat(-6.348_467e-1));
    let p = simd.fused(p, t, simd.splat(-1.287_175_1e-1));
    let p = simd.fused(p, t, simd.subtract(simd.splat(0.0), t));
    let large = simd.subtract(simd.splat(1.0), exponential_of_few(simd, p));
    let p = polynomial(
        simd,
        square,
        [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
    );
    let small = simd.fused(p, x, x);
    simd.select_less(t, simd.splat(0.927_734_4), small, simd.copy_sign(large, x))
}

/// An odd function that goes from -1/2 to 1/2, which it has reached at `end`: x * p(x^2) / q(x^2), coefficients from the highest power
/// down.
#[inline(always)]
fn odd_rational<S: Arithmetic, const N: usize>(simd: S, x: S::Vector, end: f32, p: [f32; N], q: [f32; N]) -> S::Vector {
    let x = limit(simd, x, -end, end);
    let square = simd.multiply(x, x);
    let value = simd.divide(simd.multiply(polynomial(simd, square, p), x), polynomial(simd, square, q));
    limit(simd, value, -0.5, 0.5)
}

/// tanh(x) / 2, to 2.5e-7; the rational function itself, of least largest error, to 5e-8.
#[inline(always)]
fn half_hyperbolic_tangent<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    let p = [7.335_586e-9, 1.075_626e-5, 1.774_468_5e-3, 6.712_762e-2, 0.499_999_97];
    let q = [8.300_645e-7, 3.373_897e-4, 2.607_859_9e-2, 0.467_588_42, 1.0];
    odd_rational(simd, x, 8.78, p, q)
}

/// erf(x / sqrt(2)) / 2, to 2.5e-7; the rational function itself, of least largest error, to 4e-8.
#[inline(always)]
fn half_error_function<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    let p = [2.274_935e-8, 6.352_128e-6, 1.688_267_4e-4, 4.677_267_4e-3, 3.385_275e-2, 0.398_942_23];
    let q = [1.197_504_3e-6, 7.364_786e-5, 1.884_451e-3, 2.864_593e-2, 0.251_522_18, 1.0];
    odd_rational(simd, x, 5.68, p, q)
}

/// x * (1/2 + gate).
#[inline(always)]
fn gated<S: Arithmetic>(simd: S, x: S::Vector, gate: S::Vector) -> S::Vector {
    simd.multiply(x, simd.add(gate, simd.splat(0.5)))
}

/// log(1 + exp(x)), to 3 ULP.
#[inline(always)]
fn soft_plus<S: Arithmetic>(simd: S, x: S::Vector) -> S::Vector {
    // log(1 + e) = 2 * atanh(e / (2 + e)) with e up to 1.
    let e = exponential(simd, simd.subtract(simd.splat(0.0), simd.absolute(x)));
    let s = simd.divide(e, simd.add(e, simd.splat(2.0)));
    let square = simd.multiply(s, s);
    let p = polynomial(simd, square, [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0]);
    let half = simd.fused(simd.multiply(p, square), s, s);
    simd.add(simd.maximum(x, simd.splat(0.0)), simd.add(half, half))
}

/// Declares functions: documentation, name and parameters, cost, and the vector expression.
macro_rules! functions {
    ($($(#[$doc:meta])+ $name:ident($($parameter:ident),*) cost $cost:literal |$simd:ident, $x:ident| $body:expr;)+) => { $(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(
                /// Parameter of the function.
                pub $parameter: f32,
            )*
        }

        impl VectorFunction for $name {
            fn cost(self) -> usize {
                $cost
            }

            #[inline(always)]
            fn apply<S: Arithmetic>(self, $simd: S, $x: S::Vector) -> S::Vector {
                let Self { $($parameter),* } = self;
                $(let $parameter = $simd.splat($parameter);)*
                $body
            }
        }
    )+ };
}

functions! {
    /// |x|.
    Absolute() cost 1 |simd, x| simd.absolute(x);
    /// -x.
    Negate() cost 1 |simd, x| simd.multiply(x, simd.splat(-1.0));
    /// x^2, correctly rounded.
    Square() cost 1 |simd, x| simd.multiply(x, x);
    /// x^3, to 2 ULP.
    Cube() cost 2 |simd, x| simd.multiply(simd.multiply(x, x), x);
    /// The square root, correctly rounded.
    SquareRoot() cost 4 |simd, x| simd.square_root(x);
    /// 1 / x, correctly rounded.
    Reciprocal() cost 4 |simd, x| simd.divide(simd.splat(1.0), x);
    /// The greatest integer that is not above.
    Floor() cost 1 |simd, x| simd.floor(x);
    /// The least integer that is not below.
    Ceil() cost 1 |simd, x| simd.ceil(x);
    /// The nearest integer, ties to even.
    Round() cost 1 |simd, x| simd.round(x);
    /// exp(x), to 1 ULP.
    Exponential() cost 10 |simd, x| exponential(simd, x);
    /// exp(x - subtrahend), to 1 ULP of that of the rounded difference.
    ExponentialOfDifference(subtrahend) cost 11 |simd, x| exponential(simd, simd.subtract(x, subtrahend));
    /// log(x), to 1 ULP.
    Logarithm() cost 16 |simd, x| logarithm(simd, x);
    /// erf(x), to 2 ULP.
    ErrorFunction() cost 22 |simd, x| error_function(simd, x);
    /// tanh(x), to 2 ULP.
    HyperbolicTangent() cost 18 |simd, x| hyperbolic_tangent(simd, x);
    /// 1 / (1 + exp(-x)), to 3 ULP.
    Logistic() cost 14 |simd, x| logistic(simd, x);
    /// 0 where x is below 0, else x.
    Relu() cost 1 |simd, x| simd.at_least(x, simd.splat(0.0));
    /// x between `least` and `greatest` (which wins if they cross).
    Clamp(least, greatest) cost 1 |simd, x| simd.minimum(simd.maximum(x, least), greatest);
    /// scale * x + offset.
    Affine(scale, offset) cost 1 |simd, x| simd.add(simd.multiply(x, scale), offset);
    /// log(1 + exp(x)), to 3 ULP.
    SoftPlus() cost 24 |simd, x| soft_plus(simd, x);
    /// x / (1 + |x|).
    SoftSign() cost 4 |simd, x| simd.divide(x, simd.add(simd.absolute(x), simd.splat(1.0)));
    /// x * tanh(log(1 + exp(x))).
    Mish() cost 16 |simd, x| {
        // With e = exp(x), tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2); 1 for x above 20.
        let e = exponential(simd, simd.minimum(x, simd.splat(20.0)));
        let n = simd.multiply(e, simd.add(e, simd.splat(2.0)));
        simd.multiply(x, simd.divide(n, simd.add(n, simd.splat(2.0))))
    };
    /// x * max(0, min(1, x / 6 + 1 / 2)).
    HardSwish() cost 4 |simd, x| {
        let gate = simd.fused(x, simd.splat(1.0 / 6.0), simd.splat(0.5));
        simd.multiply(x, limit(simd, gate, 0.0, 1.0))
    };
    /// x * (1 + erf(x / sqrt(2))) / 2, to 4e-7 of x.
    Gelu() cost 14 |simd, x| gated(simd, x, half_error_function(simd, x));
    /// x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2, to 4e-7 of x.
    GeluTanh() cost 16 |simd, x| {
        let cube = Cube {}.apply(simd, x);
        let inner = simd.fused(cube, simd.splat(0.044_715), x);
        gated(simd, x, half_hyperbolic_tangent(simd, simd.multiply(inner, simd.splat(0.797_884_6))))
    };
    /// x where it is not negative, else slope * x.
    LeakyRelu(slope) cost 2 |simd, x| simd.select_less(x, simd.splat(0.0), simd.multiply(x, slope), x);
    /// x where it is not negative, else alpha * (exp(x) - 1).
    Elu(alpha) cost 16 |simd, x| {
        let negative = simd.multiply(alpha, exponential_less_one(simd, x));
        simd.select_less(x, simd.splat(0.0), negative, x)
    };
    /// max(0, x) + min(0, alpha * (exp(x / alpha) - 1)).
    Celu(alpha) cost 18 |simd, x| {
        let zero = simd.splat(0.0);
        let negative = simd.multiply(alpha, exponential_less_one(simd, simd.divide(x, alpha)));
        simd.add(simd.maximum(x, zero), simd.minimum(negative, zero))
    };
    /// gamma * (x > 0 ? x : alpha * (exp(x) - 1)).
    Selu(alpha, gamma) cost 18 |simd, x| {
        let negative = simd.multiply(alpha, exponential_less_one(simd, x));
        simd.multiply(gamma, simd.select_less(simd.splat(0.0), x, x, negative))
    };
    /// x where it is above `most`, else 0 (also for NaN).
    KeepAbove(most) cost 1 |simd, x| simd.select_less(most, x, x, simd.splat(0.0));
    /// 1 where x is above 0, -1 where it is below, else x.
    Sign() cost 2 |simd, x| {
        let zero = simd.splat(0.0);
        simd.select_less(x, zero, simd.splat(-1.0), simd.select_less(zero, x, simd.splat(1.0), x))
    };
    /// x where it is not below `least` (NaN stays), else 0.
    CutBelow(least) cost 1 |simd, x| simd.select_less(x, least, simd.splat(0.0), x);
    /// x < -alpha ? x + beta : x > alpha ? x - beta : 0.
    Shrink(alpha, beta) cost 3 |simd, x| {
        let zero = simd.splat(0.0);
        let above = simd.select_less(alpha, x, simd.subtract(x, beta), zero);
        simd.select_less(x, simd.subtract(zero, alpha), simd.add(x, beta), above)
    };
    /// x / (1 + exp(-alpha * x)), to 4e-7 of x.
    Swish(alpha) cost 14 |simd, x| {
        gated(simd, x, half_hyperbolic_tangent(simd, simd.multiply(x, simd.multiply(alpha, simd.splat(0.5)))))
    };
    /// max(0, min(1, alpha * x + beta)).
    HardSigmoid(alpha, beta) cost 3 |simd, x| limit(simd, simd.add(simd.multiply(x, alpha), beta), 0.0, 1.0);
    /// alpha * tanh(beta * x).
    ScaledTanh(alpha, beta) cost 20 |simd, x| simd.multiply(alpha, hyperbolic_tangent(simd, simd.multiply(x, beta)));
}
