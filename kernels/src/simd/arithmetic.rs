//! Arithmetic of f32, which functions of numbers are made of: of one vector, or of several together.

/// Operations on lanes of f32 by IEEE 754, rounded to nearest even.
pub trait Arithmetic: Copy {
    /// Lanes of f32.
    type Vector: Copy;

    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::Vector;

    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a - b`.
    fn subtract(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a * b`.
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a / b`.
    fn divide(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a * b + c`, rounded once where the instructions can, else twice.
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// `then` where `a < b`, else `otherwise` (also where a lane of `a` or `b` is NaN).
    fn select_less(self, a: Self::Vector, b: Self::Vector, then: Self::Vector, otherwise: Self::Vector)
    -> Self::Vector;

    /// `least` where a lane is less, else the lane, NaN too.
    #[inline(always)]
    fn at_least(self, a: Self::Vector, least: Self::Vector) -> Self::Vector {
        self.select_less(a, least, least, a)
    }

    /// `greatest` where a lane is greater, else the lane, NaN too.
    #[inline(always)]
    fn at_most(self, a: Self::Vector, greatest: Self::Vector) -> Self::Vector {
        self.select_less(greatest, a, greatest, a)
    }

    /// The larger; NaN where either is.
    fn maximum(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// The smaller; NaN where either is.
    fn minimum(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// The square root.
    fn square_root(self, a: Self::Vector) -> Self::Vector;

    /// The greatest integer that is not above.
    fn floor(self, a: Self::Vector) -> Self::Vector;

    /// The least integer that is not below.
    fn ceil(self, a: Self::Vector) -> Self::Vector;

    /// Magnitude.
    fn absolute(self, a: Self::Vector) -> Self::Vector;

    /// The magnitude of `magnitude` with the sign bit of `sign`.
    fn copy_sign(self, magnitude: Self::Vector, sign: Self::Vector) -> Self::Vector;

    /// The nearest integer, ties to even.
    fn round(self, a: Self::Vector) -> Self::Vector;

    /// `(m, e)` with `a = m * 2^e` and m from 1 to 2, for positive normal lanes; anything for others.
    fn mantissa_and_exponent(self, a: Self::Vector) -> (Self::Vector, Self::Vector);

    /// `a * 2^exponent`, rounded once, for `a` from 1 to 2 (nearly so from 0.7), or less where the result is a normal number; `exponent`
    /// holds integers from -252 to 254.
    fn scale_by_power(self, a: Self::Vector, exponent: Self::Vector) -> Self::Vector;

    /// [`Arithmetic::scale_by_power`] in lanes whose `x` is not less than `least`; in others, where it is 0, without the slow path that
    /// processors take where a product underflows.
    #[inline(always)]
    fn scale_by_power_from(self, a: Self::Vector, exponent: Self::Vector, x: Self::Vector, least: f32) -> Self::Vector {
        let _ = (x, least);
        self.scale_by_power(a, exponent)
    }

    /// `a * b` in lanes whose `x` is not less than `least`; in others, where it is 0, without the slow path that processors take where
    /// a product underflows.
    #[inline(always)]
    fn multiply_from(self, a: Self::Vector, b: Self::Vector, x: Self::Vector, least: f32) -> Self::Vector {
        let _ = (x, least);
        self.multiply(a, b)
    }

    /// 1 / a, to 1 ULP, of numbers that are normal as their reciprocals are.
    #[inline(always)]
    fn reciprocal(self, a: Self::Vector) -> Self::Vector {
        self.divide(self.splat(1.0), a)
    }
}

/// Several vectors at a time: each operation for all of them before the next, so that operations that do not wait for each other stand
/// side by side. A processor that begins them as they come finds fewer where one function is written behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Together<S, const COUNT: usize>(pub S);

/// Operations of each vector.
macro_rules! of_each {
    ($($name:ident($($vector:ident),+ $(; $number:ident)?);)+) => { $(
        #[inline(always)]
        fn $name(self, $($vector: Self::Vector),+ $(, $number: f32)?) -> Self::Vector {
            let mut results = self.splat(0.0);
            for index in 0..COUNT {
                results[index] = self.0.$name($($vector[index]),+ $(, $number)?);
            }
            results
        }
    )+ };
}

impl<S: Arithmetic, const COUNT: usize> Arithmetic for Together<S, COUNT> {
    type Vector = [S::Vector; COUNT];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [self.0.splat(value); COUNT]
    }

    of_each! {
        add(a, b);
        subtract(a, b);
        multiply(a, b);
        divide(a, b);
        fused(a, b, c);
        select_less(a, b, then, otherwise);
        at_least(a, least);
        at_most(a, greatest);
        maximum(a, b);
        minimum(a, b);
        square_root(a);
        floor(a);
        ceil(a);
        absolute(a);
        copy_sign(magnitude, sign);
        round(a);
        scale_by_power(a, exponent);
        scale_by_power_from(a, exponent, x; least);
        multiply_from(a, b, x; least);
        reciprocal(a);
    }

    #[inline(always)]
    fn mantissa_and_exponent(self, a: Self::Vector) -> (Self::Vector, Self::Vector) {
        let mut parts = (a, a);
        for index in 0..COUNT {
            (parts.0[index], parts.1[index]) = self.0.mantissa_and_exponent(a[index]);
        }
        parts
    }
}
