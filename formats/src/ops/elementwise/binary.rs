//! One function of two elements, with broadcasting: ONNX `Add`, `Sub`, `Mul`, `Div`, `Pow`, `Mod`, `Min`, `Max`,
//! `PRelu`, `And`, `Or`, `Xor`, `BitwiseAnd`, `BitwiseOr`, `BitwiseXor`, `BitShift` (opset 7 and later).
//!
//! Integers wrap; dividing one by zero is an error. `Sum`, `Mean` and `Min`, `Max` of several operands are chains.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::{broadcast_extents, broadcast_shapes, broadcast_strides, strided_indices};
use crate::ops::scalar::{Scalar, from_scalars, is_number, scalars};
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError, VectorClass, optional,
    tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::room;
use crate::value::Value;

attributes! {
    /// Applies `function` to pairs: `x: [..], y: [..]` to their broadcast shape, of x's element type.
    pub struct Binary revision 1 {
        /// The function.
        1 since 1 => function: BinaryFunction,
    }
}

/// Functions of [`Binary`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum BinaryFunction {
    /// x + y.
    Add,
    /// x - y.
    Sub,
    /// x * y.
    Mul,
    /// x / y, truncated for integers.
    Div,
    /// x to the power y, which may have another type.
    Pow,
    /// The smaller; NaN where either is.
    Min,
    /// The larger; NaN where either is.
    Max,
    /// The remainder of division rounded down: has y's sign.
    Modulo,
    /// The remainder of truncated division: has x's sign.
    Remainder,
    /// `x >= 0 ? x : y * x`.
    Prelu,
    /// Logical and of bool.
    And,
    /// Logical or of bool.
    Or,
    /// Logical exclusive or of bool.
    Xor,
    /// And of all bits.
    BitAnd,
    /// Or of all bits.
    BitOr,
    /// Exclusive or of all bits.
    BitXor,
    /// x shifted up by y bits; 0 where y is negative or at least the width.
    ShiftLeft,
    /// x shifted down by y bits, keeping the sign; 0 or -1 where y is negative or at least the width.
    ShiftRight,
}
impl Keyword for BinaryFunction {}

impl BinaryFunction {
    /// Whether swapping the operands changes nothing (floats included, except which NaN comes out).
    pub fn is_commutative(self) -> bool {
        use BinaryFunction::*;
        match self {
            Add | Mul | Min | Max | And | Or | Xor | BitAnd | BitOr | BitXor => true,
            Sub | Div | Pow | Modulo | Remainder | Prelu | ShiftLeft | ShiftRight => false,
        }
    }

    pub(crate) fn check(self, left: DType, right: DType) -> Result<(), TypeError> {
        use BinaryFunction::*;
        let (fits, expected): (fn(DType) -> bool, _) = match self {
            Add | Sub | Mul | Div | Pow | Min | Max | Modulo | Remainder | Prelu => (is_number, "a real number type"),
            And | Or | Xor => (|dtype| dtype == DType::Bool, "bool"),
            BitAnd | BitOr | BitXor | ShiftLeft | ShiftRight => (DType::is_integer, "an integer type"),
        };
        for (operand, found) in [left, right].into_iter().enumerate() {
            if !fits(found) {
                return Err(TypeError::ElementType { operand, expected: expected.to_string(), found });
            }
        }
        if left != right && self != Pow {
            return Err(TypeError::ElementType { operand: 1, expected: left.to_string(), found: right });
        }
        Ok(())
    }

    /// The function of two floats. Functions of integers and bools act on integral values, as 64-bit integers.
    pub fn apply(self, x: f64, y: f64) -> f64 {
        match self {
            BinaryFunction::Add => x + y,
            BinaryFunction::Sub => x - y,
            BinaryFunction::Mul => x * y,
            BinaryFunction::Div => x / y,
            BinaryFunction::Pow => x.powf(y),
            BinaryFunction::Min if x.is_nan() || y.is_nan() => f64::NAN,
            BinaryFunction::Min => x.min(y),
            BinaryFunction::Max if x.is_nan() || y.is_nan() => f64::NAN,
            BinaryFunction::Max => x.max(y),
            BinaryFunction::Modulo => floor_modulo(x, y),
            BinaryFunction::Remainder => x % y,
            BinaryFunction::Prelu if x < 0.0 => y * x,
            BinaryFunction::Prelu => x,
            BinaryFunction::And
            | BinaryFunction::Or
            | BinaryFunction::Xor
            | BinaryFunction::BitAnd
            | BinaryFunction::BitOr
            | BinaryFunction::BitXor
            | BinaryFunction::ShiftLeft
            | BinaryFunction::ShiftRight => {
                let wide = |value: f64| i128::from(value as i64);
                // None of these divides.
                self.apply_integers(wide(x), wide(y), i64::BITS).unwrap_or(0) as f64
            }
        }
    }

    /// The function of two f32, rounded once.
    pub fn apply_f32(self, x: f32, y: f32) -> f32 {
        self.apply(f64::from(x), f64::from(y)) as f32
    }

    /// The function of two integers (or bools) of `bits` bits before wrapping; `None` for a division by zero.
    pub fn apply_integers(self, x: i128, y: i128, bits: u32) -> Option<i128> {
        Some(match self {
            BinaryFunction::Add => x + y,
            BinaryFunction::Sub => x - y,
            BinaryFunction::Mul => x.wrapping_mul(y),
            BinaryFunction::Div => x.checked_div(y)?,
            BinaryFunction::Pow => integer_power(x, y)?,
            BinaryFunction::Min => x.min(y),
            BinaryFunction::Max => x.max(y),
            BinaryFunction::Modulo => x.checked_rem(y)?.wrapping_add(y) % y,
            BinaryFunction::Remainder => x.checked_rem(y)?,
            BinaryFunction::Prelu if x < 0 => x.wrapping_mul(y),
            BinaryFunction::Prelu => x,
            BinaryFunction::And | BinaryFunction::BitAnd => x & y,
            BinaryFunction::Or | BinaryFunction::BitOr => x | y,
            BinaryFunction::Xor | BinaryFunction::BitXor => x ^ y,
            BinaryFunction::ShiftLeft => {
                if (0..bits.into()).contains(&y) {
                    x << y
                } else {
                    0
                }
            }
            BinaryFunction::ShiftRight => {
                if (0..bits.into()).contains(&y) {
                    x >> y
                } else {
                    x.signum().min(0)
                }
            }
        })
    }

    pub(crate) fn apply_scalars(self, x: Scalar, y: Scalar, bits: u32) -> Result<Scalar, ReferenceError> {
        match (x, y) {
            (Scalar::Integer(x), Scalar::Integer(y)) => {
                self.apply_integers(x, y, bits).map(Scalar::Integer).ok_or_else(|| ReferenceError::OutOfRange {
                    subject: "an integer divisor".to_string(),
                    found: 0,
                    range: "anything but 0".to_string(),
                })
            }
            (x, y) => Ok(Scalar::Float(self.apply(x.to_f64(), y.to_f64()))),
        }
    }

    fn apply_dims(self, x: &Dim, y: &Dim, context: &InferContext<'_>) -> Option<Dim> {
        if let (Some(x), Some(y)) = (x.as_known(), y.as_known()) {
            let result = self.apply_integers(x.into(), y.into(), i64::BITS)?;
            return i64::try_from(result).ok().map(Dim::known);
        }
        let least = |dim: &Dim| dim.bounds(context.ranges).0;
        // A run that divides by zero ends there, so that a divisor that may be zero need not be excluded.
        let divides_down = least(x) >= 0 && least(y) >= 0 && y.as_known() != Some(0);
        // Expressions do not wrap, so that sums with sentinels such as the greatest integer are not followed.
        let wraps = [x, y].iter().any(|dim| dim.as_known().is_some_and(|known| known.unsigned_abs() > 1 << 48));
        let dim = match self {
            BinaryFunction::Add if !wraps => x + y,
            BinaryFunction::Sub if !wraps => x - y,
            BinaryFunction::Mul if !wraps => x * y,
            BinaryFunction::Min => Dim::min(x, y).simplify(context.ranges),
            BinaryFunction::Max => Dim::max(x, y).simplify(context.ranges),
            BinaryFunction::Div if divides_down => x.floor_div(y),
            BinaryFunction::Modulo | BinaryFunction::Remainder if divides_down => x.modulo(y),
            BinaryFunction::Prelu if least(x) >= 0 => x.clone(),
            BinaryFunction::Pow if y.as_known() == Some(1) => x.clone(),
            BinaryFunction::Pow if y.as_known() == Some(2) => x * x,
            _ => return None,
        };
        (!dim.is_refused()).then_some(dim)
    }
}

/// The remainder with the sign of `y`, as ONNX `Mod` states it for signed zeros and infinities.
fn floor_modulo(x: f64, y: f64) -> f64 {
    let remainder = x % y;
    if remainder == 0.0 {
        return 0f64.copysign(y);
    }
    if (remainder < 0.0) != (y < 0.0) { remainder + y } else { remainder }
}

/// Exact modulo 2^128; a negative exponent truncates, `None` for zero to a negative power.
fn integer_power(base: i128, exponent: i128) -> Option<i128> {
    let odd = exponent & 1 == 1;
    match (base, u64::try_from(exponent)) {
        (1, _) => Some(1),
        (-1, _) => Some(if odd { -1 } else { 1 }),
        (0, Err(_)) => None,
        (_, Err(_)) => Some(0),
        (_, Ok(mut exponent)) => {
            let (mut power, mut square) = (1i128, base);
            while exponent > 0 {
                if exponent & 1 == 1 {
                    power = power.wrapping_mul(square);
                }
                square = square.wrapping_mul(square);
                exponent >>= 1;
            }
            Some(power)
        }
    }
}

/// For small integer operands with known elements: `combine` of each broadcast pair, where all give something.
pub(crate) fn followed_pairs(
    inputs: &[Option<Fact>],
    mut combine: impl FnMut(&Dim, &Dim) -> Option<Dim>,
) -> Option<Vec<Dim>> {
    let left = FollowedOperand::new(optional(inputs, 0)?)?;
    let right = FollowedOperand::new(optional(inputs, 1)?)?;
    let extents = broadcast_extents(&[&left.extents, &right.extents]).ok()?;
    let pairs = left.elements(&extents).zip(right.elements(&extents));
    if extents.iter().product::<usize>() > crate::fact::MAXIMUM_FOLLOWED_ELEMENTS {
        return None;
    }
    pairs.map(|(x, y)| combine(x, y)).collect()
}

/// An operand whose elements are known as dimensions.
pub(crate) struct FollowedOperand {
    pub(crate) extents: Vec<usize>,
    dims: Vec<Dim>,
}

impl FollowedOperand {
    /// `None` where elements are unknown, or are of a type whose arithmetic wraps early.
    pub(crate) fn new(fact: &Fact) -> Option<FollowedOperand> {
        let (dtype, shape) = fact.kind.as_tensor()?;
        if !matches!(dtype, DType::I64 | DType::I32 | DType::Bool) {
            return None;
        }
        let operand = FollowedOperand { extents: shape.as_known()?, dims: fact.elements_as_dims()? };
        (crate::tensor::element_count(&operand.extents) == Some(operand.dims.len())).then_some(operand)
    }

    /// The elements as broadcast to `target`.
    pub(crate) fn elements(&self, target: &[usize]) -> impl Iterator<Item = &Dim> {
        strided_indices(target, &broadcast_strides(&self.extents, target)).map(|index| &self.dims[index])
    }
}

/// Whether every known number fits in the type: expressions do not wrap, elements do.
pub(crate) fn dims_fit(dtype: DType, dims: &[Dim]) -> bool {
    dtype != DType::I32 || dims.iter().filter_map(Dim::as_known).all(|known| i32::try_from(known).is_ok())
}

/// Flat indices into two tensors for each element of their broadcast shape.
pub(crate) fn paired_indices(
    left: &Tensor,
    right: &Tensor,
    extents: &[usize],
) -> impl Iterator<Item = (usize, usize)> + use<> {
    let indices = |tensor: &Tensor| strided_indices(extents, &broadcast_strides(tensor.shape(), extents));
    indices(left).zip(indices(right))
}

impl Operator for Binary {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, left) = tensor_operand(inputs, 0)?;
        let (right_dtype, right) = tensor_operand(inputs, 1)?;
        self.function.check(dtype, right_dtype)?;
        let shape: Shape = broadcast_shapes(&[left, right], context)?;
        let followed = followed_pairs(inputs, |x, y| self.function.apply_dims(x, y, context));
        Ok(vec![match followed {
            Some(dims) if dims_fit(dtype, &dims) => Fact::of_dims(dtype, shape, dims),
            Some(_) | None => Fact::tensor(dtype, shape),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (left, right) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        self.function.check(left.dtype(), right.dtype())?;
        let extents = broadcast_extents(&[left.shape(), right.shape()])?;
        let (x, y) = (scalars(left)?, scalars(right)?);
        let bits = left.dtype().bits() as u32;
        // The size is checked before anything of that size is made.
        let mut values = room(Tensor::zeros(left.dtype(), &extents)?.count())?;
        for (at_left, at_right) in paired_indices(left, right, &extents) {
            values.push(self.function.apply_scalars(x[at_left], y[at_right], bits)?);
        }
        Ok(vec![from_scalars(left.dtype(), &extents, &values)?.into()])
    }
}

impl Elementwise for Binary {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        self.function.per_element()
    }
}

impl BinaryFunction {
    /// Operations on each element.
    pub fn per_element(self) -> Vec<(VectorClass, i64)> {
        match self {
            BinaryFunction::Add
            | BinaryFunction::Sub
            | BinaryFunction::Mul
            | BinaryFunction::Min
            | BinaryFunction::Max
            | BinaryFunction::And
            | BinaryFunction::Or
            | BinaryFunction::Xor
            | BinaryFunction::BitAnd
            | BinaryFunction::BitOr
            | BinaryFunction::BitXor
            | BinaryFunction::ShiftLeft
            | BinaryFunction::ShiftRight => vec![(VectorClass::Arithmetic, 1)],
            BinaryFunction::Prelu => vec![(VectorClass::Arithmetic, 2)],
            BinaryFunction::Div | BinaryFunction::Modulo | BinaryFunction::Remainder => vec![(VectorClass::Divide, 1)],
            BinaryFunction::Pow => vec![(VectorClass::Transcendental, 1)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::element::Element;
    use crate::ops::NoBlocks;
    use crate::ops::testing::run;
    use proptest::prelude::*;

    fn of<T: Element>(function: BinaryFunction, x: &[T], y: &[T]) -> Vec<T> {
        let operands = [x, y].map(|elements| Tensor::from_elements(&[elements.len()], elements).unwrap());
        run(&Binary { function }, &operands).unwrap().elements().unwrap().to_vec()
    }

    #[test]
    fn integers_wrap_and_truncate() {
        assert_eq!(of(BinaryFunction::Add, &[i64::MAX, 1], &[1, 2]), [i64::MIN, 3]);
        assert_eq!(of(BinaryFunction::Mul, &[u64::MAX], &[u64::MAX]), [1]);
        assert_eq!(of(BinaryFunction::Sub, &[0u8], &[1]), [255]);
        assert_eq!(of(BinaryFunction::Div, &[-7i32, 7, i32::MIN], &[2, -2, -1]), [-3, -3, i32::MIN]);
        assert_eq!(of(BinaryFunction::Min, &[i64::MAX, 4], &[i64::MAX - 1, 5]), [i64::MAX - 1, 4]);
        assert_eq!(of(BinaryFunction::Pow, &[3i64, -2, 2, 0], &[40, 3, -1, 0]), [3i64.wrapping_pow(40), -8, 0, 1]);
        assert_eq!(of(BinaryFunction::Prelu, &[-3i64, 3], &[2, 2]), [-6, 3]);
        let zero = [Tensor::scalar(1i64), Tensor::scalar(0i64)];
        for function in [BinaryFunction::Div, BinaryFunction::Modulo, BinaryFunction::Remainder] {
            assert_eq!(
                run(&Binary { function }, &zero).unwrap_err().to_string(),
                "an integer divisor is 0, outside anything but 0"
            );
        }
    }

    #[test]
    fn remainders_have_their_signs() {
        let (x, y) = ([-4i64, 7, 5, 4, -7, 8], [2, -3, 8, -2, 3, 5]);
        assert_eq!(of(BinaryFunction::Modulo, &x, &y), [0, -2, 5, 0, 2, 3]);
        assert_eq!(of(BinaryFunction::Remainder, &x, &y), [0, 1, 5, 0, -1, 3]);
        let (x, y) = ([-4.3f32, 7.2, 0.0, -1.0, 1.0], [2.0, -3.0, -2.0, f32::INFINITY, f32::NEG_INFINITY]);
        let floor = of(BinaryFunction::Modulo, &x, &y);
        assert!((floor[0] - 1.7).abs() < 1e-6 && (floor[1] + 1.8).abs() < 1e-6);
        assert!(floor[2] == 0.0 && floor[2].is_sign_negative());
        assert_eq!(floor[3..], [f32::INFINITY, f32::NEG_INFINITY]);
        assert!((of(BinaryFunction::Remainder, &x, &y)[0] + 0.3).abs() < 1e-6);
    }

    #[test]
    fn shifts_fill_and_end() {
        assert_eq!(of(BinaryFunction::ShiftLeft, &[1u8, 16, 1, 0x7f], &[7, 4, 8, 1]), [128, 0, 0, 254]);
        assert_eq!(of(BinaryFunction::ShiftRight, &[-8i8, -8, 8, -8], &[1, 8, 9, -1]), [-4, -1, 0, -1]);
    }

    #[test]
    fn not_a_number_wins() {
        for function in [BinaryFunction::Min, BinaryFunction::Max] {
            assert!(
                of(function, &[f32::NAN], &[1.0]).iter().chain(&of(function, &[1.0], &[f32::NAN])).all(|x| x.is_nan())
            );
        }
    }

    #[test]
    fn types_and_shapes_are_checked() {
        let add = Binary { function: BinaryFunction::Add };
        let operand = |shape: &[usize]| Tensor::zeros(DType::F32, shape).unwrap();
        assert_eq!(run(&add, &[operand(&[2, 1]), operand(&[3])]).unwrap().shape(), [2, 3]);
        assert_eq!(run(&add, &[operand(&[2]), operand(&[3])]).unwrap_err().to_string(), "broadcast: 2 does not fit 3");
        assert_eq!(
            run(&add, &[operand(&[2]), Tensor::scalar(1i32)]).unwrap_err().to_string(),
            "operand 1 must be f32, found i32"
        );
        assert_eq!(
            run(&add, &[Tensor::scalar_bool(true), Tensor::scalar_bool(true)]).unwrap_err().to_string(),
            "operand 0 must be a real number type, found bool"
        );
        let power = Binary { function: BinaryFunction::Pow };
        let mixed = run(&power, &[Tensor::scalar(3i32), Tensor::scalar(2.5f32)]).unwrap();
        assert_eq!(mixed.elements::<i32>().unwrap(), [15]);
    }

    #[test]
    fn dimensions_are_followed() {
        let ranges = Ranges::new();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("binary", &ranges, &mut blocks);
        let n = Dim::symbol("n");
        let vector = |dims: &[Dim]| Some(Fact::of_dims(DType::I64, vec![Dim::from(dims.len())], dims.to_vec()));
        let mut of = |function, x: &[Dim], y: &[Dim]| {
            let facts = Binary { function }.infer(&[vector(x), vector(y)], &mut context).unwrap();
            facts[0].elements_as_dims()
        };
        let two = [Dim::known(2)];
        assert_eq!(
            of(BinaryFunction::Div, &[n.clone(), Dim::known(-3)], &two),
            Some(vec![n.floor_div(&two[0]), Dim::known(-1)])
        );
        // A numerator that may be negative is truncated, not rounded down.
        assert_eq!(of(BinaryFunction::Div, &[n.clone() - 1], &two), None);
        assert_eq!(of(BinaryFunction::Div, std::slice::from_ref(&n), &[Dim::known(0)]), None);
        assert_eq!(of(BinaryFunction::Sub, &two, &[n.clone(), n.clone()]), Some(vec![-&n + 2, -&n + 2]));
        assert_eq!(of(BinaryFunction::Modulo, std::slice::from_ref(&n), &two), Some(vec![n.modulo(&two[0])]));
    }

    proptest! {
        #[test]
        fn division_and_remainder_give_the_number_back(x: i32, y: i32) {
            prop_assume!(y != 0);
            let (x, y) = (i128::from(x), i128::from(y));
            let of = |function: BinaryFunction| function.apply_integers(x, y, 32).unwrap();
            prop_assert_eq!(of(BinaryFunction::Div) * y + of(BinaryFunction::Remainder), x);
            prop_assert_eq!(of(BinaryFunction::Modulo), x - y * x.div_euclid(y) - if x.rem_euclid(y) != 0 && y < 0 { -y } else { 0 });
        }
    }
}
