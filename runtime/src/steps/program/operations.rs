//! Loops for the functions of programs.

use super::chains::Chain;
use super::registers::{Class, Register};
use crate::steps::elementwise::powers::Power;
use crate::steps::elementwise::vectors::{self, Change};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, CompareRelation, Function, ReferenceError, UnaryFunction};
use ipuc_kernels::simd::{Instructions, LANES, Routine, Simd};

/// How a step is computed: a function, then what its result is rounded to.
pub(super) struct Operation {
    compute: Compute,
    dtype: DType,
    to: DType,
}

pub(super) enum Compute {
    /// The argument itself.
    Keep,
    /// A function of f32.
    Change(Change),
    /// A function of two f32.
    Floats(Arithmetic),
    /// f32 to a constant power.
    Power(Power),
    /// A function of two i32, which saturates.
    Integers(Arithmetic),
    /// Whether a relation holds between two f32.
    Compare(CompareRelation),
    /// Whether a function of f32 holds.
    Test(UnaryFunction),
    /// A function of two truths.
    Logic(Logic),
    /// f32 where a truth holds, else another.
    SelectFloats,
    /// i32 where a truth holds, else another.
    SelectIntegers,
    /// f32 between two others.
    ClampFloats,
    /// i32 between two others.
    ClampIntegers,
    /// i32 as f32.
    Widen,
    /// f32 towards zero, as i32.
    Truncate,
    /// i32 in the low bits of `to`.
    Wrap,
    /// The sum of two i32, which wraps around.
    AddWrapping,
    /// `(x - zero) * scale` of i32.
    Dequantize { zero: i32, scale: f32 },
    /// The nearest i32 of `x / scale`, within bounds, plus `zero`.
    Quantize { scale: f32, zero: i32, least: i32, greatest: i32 },
    /// Steps of f32 as one loop.
    Chain(Chain),
    /// As the reference does.
    General(Function),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    Prelu,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Logic {
    And,
    Or,
    Xor,
}

/// The loop for a function of arguments of these types, rounded to `to`; `constant` is the second argument where it is one.
pub(super) fn operation(function: &Function, arguments: &[DType], constant: Option<f64>, to: DType) -> Operation {
    let dtype = arguments.first().copied().unwrap_or(to);
    let known = match function {
        Function::Select => selection(arguments.get(1).copied().unwrap_or(to), to),
        Function::Binary(BinaryFunction::Pow) => {
            let floats = Class::of(dtype) == Class::Float && Class::of(to) == Class::Float;
            constant.filter(|_| floats).map(|exponent| Compute::Power(Power::new(exponent)))
        }
        function => known(function, dtype, to),
    };
    let compute = known.unwrap_or_else(|| Compute::General(function.clone()));
    Operation { compute, dtype, to }
}

/// The loop that chooses between elements of type `from`.
fn selection(from: DType, to: DType) -> Option<Compute> {
    match (Class::of(from), Class::of(to)) {
        (Class::Float, Class::Float) => Some(Compute::SelectFloats),
        (Class::Integer, Class::Integer) => Some(Compute::SelectIntegers),
        (Class::Float | Class::Integer | Class::General, _) => None,
    }
}

/// The loop that gives a truth.
fn truth(function: &Function, from: DType) -> Option<Compute> {
    match (Class::of(from), function) {
        (Class::Float, Function::Compare(relation)) => Some(Compute::Compare(*relation)),
        (Class::Float, Function::Unary(function)) => Some(Compute::Test(*function)),
        (_, Function::Binary(function)) if from == DType::Bool => match function {
            BinaryFunction::And => Some(Compute::Logic(Logic::And)),
            BinaryFunction::Or => Some(Compute::Logic(Logic::Or)),
            BinaryFunction::Xor => Some(Compute::Logic(Logic::Xor)),
            _ => None,
        },
        _ => None,
    }
}

fn known(function: &Function, from: DType, to: DType) -> Option<Compute> {
    let (own, into) = (Class::of(from), Class::of(to));
    if into == Class::General {
        return None;
    }
    if to == DType::Bool && *function != Function::Cast {
        return truth(function, from);
    }
    // A result in f32 that is rounded again has the bits of one rounding where the arguments have few.
    let rounds_once = to == DType::F32 || (into == Class::Float && from != DType::F32);
    match (own, function) {
        (Class::Float, Function::Unary(function)) => {
            let exact = match function {
                UnaryFunction::Abs
                | UnaryFunction::Neg
                | UnaryFunction::Sign
                | UnaryFunction::Ceil
                | UnaryFunction::Floor
                | UnaryFunction::Round => true,
                UnaryFunction::Sqrt | UnaryFunction::Reciprocal => rounds_once,
                // Approximations, which are rounded once more.
                _ => into == Class::Float,
            };
            vectors::unary(*function).filter(|_| exact).map(Compute::Change)
        }
        (Class::Float, Function::Activation(activation)) => {
            (into == Class::Float).then(|| Compute::Change(vectors::activation(activation)))
        }
        (Class::Float, Function::Binary(function)) => match arithmetic(*function)? {
            function @ (Arithmetic::Min | Arithmetic::Max) => Some(Compute::Floats(function)),
            function => rounds_once.then_some(Compute::Floats(function)),
        },
        (Class::Integer, Function::Binary(function)) if from != DType::Bool && into == Class::Integer => {
            match arithmetic(*function)? {
                Arithmetic::Div | Arithmetic::Prelu => None,
                function => Some(Compute::Integers(function)),
            }
        }
        (Class::Float, Function::Clamp) => Some(Compute::ClampFloats),
        (Class::Integer, Function::Clamp) => (into == Class::Integer).then_some(Compute::ClampIntegers),
        (Class::Float, Function::Cast) if into == Class::Float => Some(Compute::Keep),
        (Class::Float, Function::Cast) => (to == DType::I32).then_some(Compute::Truncate),
        (Class::Integer, Function::Cast) if into == Class::Integer => Some(Compute::Wrap),
        // An i32 is rounded to f32 before it is rounded to 16 bits.
        (Class::Integer, Function::Cast) => (to == DType::F32 || from.bits() <= 16).then_some(Compute::Widen),
        (Class::General, _)
        | (Class::Integer, Function::Unary(_) | Function::Activation(_) | Function::Binary(_))
        | (_, Function::Compare(_) | Function::Select) => None,
    }
}

fn arithmetic(function: BinaryFunction) -> Option<Arithmetic> {
    match function {
        BinaryFunction::Add => Some(Arithmetic::Add),
        BinaryFunction::Sub => Some(Arithmetic::Sub),
        BinaryFunction::Mul => Some(Arithmetic::Mul),
        BinaryFunction::Div => Some(Arithmetic::Div),
        BinaryFunction::Min => Some(Arithmetic::Min),
        BinaryFunction::Max => Some(Arithmetic::Max),
        BinaryFunction::Prelu => Some(Arithmetic::Prelu),
        BinaryFunction::Pow
        | BinaryFunction::Modulo
        | BinaryFunction::Remainder
        | BinaryFunction::And
        | BinaryFunction::Or
        | BinaryFunction::Xor
        | BinaryFunction::BitAnd
        | BinaryFunction::BitOr
        | BinaryFunction::BitXor
        | BinaryFunction::ShiftLeft
        | BinaryFunction::ShiftRight => None,
    }
}

impl Operation {
    /// A loop that belongs to no single function.
    pub(super) fn new(compute: Compute, to: DType) -> Operation {
        Operation { compute, dtype: to, to }
    }

    /// Whether its result is its argument, held in the same way.
    pub(super) fn is_identity(&self) -> bool {
        match &self.compute {
            Compute::Keep => self.to == DType::F32,
            Compute::Wrap if self.to != DType::Bool => {
                let ((least, greatest), (from, to)) = (bounds(self.to), bounds(self.dtype));
                least <= from && to <= greatest
            }
            _ => false,
        }
    }

    /// The arguments, where it is this function of two f32 that gives f32.
    pub(super) fn floats_of<'a>(&self, function: Arithmetic, arguments: &'a [usize]) -> Option<&'a [usize]> {
        matches!(&self.compute, Compute::Floats(own) if *own == function && self.to == DType::F32).then_some(arguments)
    }

    /// The arguments, where it is this function of two i32 that gives this type.
    pub(super) fn integers_of<'a>(
        &self,
        function: Arithmetic,
        to: DType,
        arguments: &'a [usize],
    ) -> Option<&'a [usize]> {
        matches!(&self.compute, Compute::Integers(own) if *own == function && self.to == to).then_some(arguments)
    }

    /// The arguments, where it is this function of types that have no loop of their own.
    pub(super) fn general_of<'a>(
        &self,
        function: &Function,
        types: (DType, DType),
        arguments: &'a [usize],
    ) -> Option<&'a [usize]> {
        let is_own = matches!(&self.compute, Compute::General(own) if own == function);
        (is_own && (self.dtype, self.to) == types).then_some(arguments)
    }

    /// The arguments, where it is an i32 as f32.
    pub(super) fn widened<'a>(&self, arguments: &'a [usize]) -> Option<&'a [usize]> {
        (matches!(self.compute, Compute::Widen) && self.to == DType::F32).then_some(arguments)
    }

    /// What its result is rounded to.
    pub(super) fn to(&self) -> DType {
        self.to
    }

    /// The function of two f32 that gives f32, where it is one.
    pub(super) fn float_pair(&self) -> Option<Arithmetic> {
        match &self.compute {
            Compute::Floats(function) if self.to == DType::F32 => Some(*function),
            _ => None,
        }
    }

    /// The power with a constant exponent that gives f32, where it is one.
    pub(super) fn float_power(&self) -> Option<Power> {
        match &self.compute {
            Compute::Power(power) if self.to == DType::F32 => Some(*power),
            _ => None,
        }
    }

    /// Whether it keeps an f32 between two others.
    pub(super) fn clamps_floats(&self) -> bool {
        matches!(self.compute, Compute::ClampFloats) && self.to == DType::F32
    }

    /// Whether it makes f32 of one value of f32.
    pub(super) fn changes_floats(&self) -> bool {
        matches!(self.compute, Compute::Change(_)) && self.to == DType::F32
    }

    /// What is subtracted from an i32, and what the f32 of the difference is multiplied by, if anything.
    pub(super) fn widening(&self) -> Option<(i32, Option<f32>)> {
        match self.compute {
            Compute::Widen if self.to == DType::F32 => Some((0, None)),
            Compute::Dequantize { zero, scale } => Some((zero, Some(scale))),
            _ => None,
        }
    }

    /// Scale, zero point, and the bounds of what the zero point is added to.
    pub(super) fn quantizing(&self) -> Option<(f32, i32, i32, i32)> {
        match self.compute {
            Compute::Quantize { scale, zero, least, greatest } => Some((scale, zero, least, greatest)),
            _ => None,
        }
    }

    pub(super) fn chain(&self) -> Option<&Chain> {
        match &self.compute {
            Compute::Chain(chain) => Some(chain),
            _ => None,
        }
    }

    /// About how many operations an element costs.
    pub(super) fn cost(&self) -> usize {
        match &self.compute {
            Compute::Keep
            | Compute::Floats(_)
            | Compute::Integers(_)
            | Compute::Compare(_)
            | Compute::Test(_)
            | Compute::Logic(_)
            | Compute::SelectFloats
            | Compute::SelectIntegers
            | Compute::Widen
            | Compute::Wrap
            | Compute::AddWrapping => 1,
            Compute::Power(power) => power.cost(),
            Compute::Dequantize { .. } => 3,
            Compute::Quantize { .. } => 6,
            Compute::ClampFloats | Compute::ClampIntegers | Compute::Truncate => 2,
            Compute::Change(change) => change.cost,
            Compute::Chain(chain) => chain.cost(),
            Compute::General(_) => 50,
        }
    }

    /// Computes `count` elements.
    pub(super) fn run(
        &self,
        arguments: &[&Register],
        count: usize,
        result: &mut Register,
    ) -> Result<(), ReferenceError> {
        if let Compute::General(function) = &self.compute {
            let elements: Vec<_> = arguments.iter().map(|argument| argument.to_scalars(count)).collect();
            let elements: Vec<_> = elements.iter().map(Vec::as_slice).collect();
            result.assign(&function.apply_all(self.dtype, &elements, self.to)?);
            return Ok(());
        }
        Instructions::best().run(Block { operation: self, arguments, count, result });
        Ok(())
    }

    #[inline(always)]
    fn floats(&self, arguments: &[&Register], count: usize, out: &mut Vec<f32>) {
        out.resize(count, 0.0);
        match (&self.compute, arguments) {
            (Compute::Floats(function), [Register::Float(x), Register::Float(y)]) => {
                float_pairs(*function, &x[..count], &y[..count], out);
            }
            (Compute::ClampFloats, [Register::Float(x), Register::Float(least), Register::Float(greatest)]) => {
                let bounds = least.iter().zip(greatest);
                fill(out, x[..count].iter().zip(bounds).map(|(&x, (&y, &z))| clamped(x, y, z)));
            }
            (Compute::Power(power), [Register::Float(x), _]) => power.of_all(&x[..count], out),
            (Compute::SelectFloats, [Register::Integer(holds), Register::Float(x), Register::Float(y)]) => {
                choose(&holds[..count], x, y, out);
            }
            (&Compute::Dequantize { zero, scale }, [Register::Integer(x)]) => {
                fill(out, x[..count].iter().map(|&x| x.wrapping_sub(zero) as f32 * scale));
            }
            (Compute::Widen, [Register::Integer(x)]) => fill(out, x[..count].iter().map(|&x| x as f32)),
            (_, [Register::Float(x)]) => {
                out.copy_from_slice(&x[..count]);
                if let Compute::Change(change) = &self.compute {
                    (change.apply)(out);
                }
            }
            // Arguments have the classes that the loop was chosen for.
            _ => out.fill(0.0),
        }
    }

    #[inline(always)]
    fn integers<S: Simd>(&self, simd: S, arguments: &[&Register], count: usize, out: &mut Vec<i32>) {
        out.resize(count, 0);
        match (&self.compute, arguments) {
            (Compute::Integers(function), [Register::Integer(x), Register::Integer(y)]) => {
                integer_pairs(*function, &x[..count], &y[..count], out);
            }
            (Compute::Compare(relation), [Register::Float(x), Register::Float(y)]) => {
                compare(*relation, &x[..count], &y[..count], out);
            }
            (Compute::Test(function), [Register::Float(x)]) => test(*function, &x[..count], out),
            (Compute::Logic(function), [Register::Integer(x), Register::Integer(y)]) => {
                let pairs = x[..count].iter().zip(y);
                match function {
                    Logic::And => fill(out, pairs.map(|(x, y)| x & y)),
                    Logic::Or => fill(out, pairs.map(|(x, y)| x | y)),
                    Logic::Xor => fill(out, pairs.map(|(x, y)| x ^ y)),
                }
            }
            (Compute::SelectIntegers, [Register::Integer(holds), Register::Integer(x), Register::Integer(y)]) => {
                choose(&holds[..count], x, y, out);
            }
            (Compute::ClampIntegers, [Register::Integer(x), Register::Integer(least), Register::Integer(greatest)]) => {
                let bounds = least.iter().zip(greatest);
                fill(out, x[..count].iter().zip(bounds).map(|(&x, (&y, &z))| x.max(y).min(z)));
            }
            (Compute::Wrap, [Register::Integer(x)]) => wrapped(self.to, &x[..count], out),
            (Compute::AddWrapping, [Register::Integer(x), Register::Integer(y)]) => {
                fill(out, x[..count].iter().zip(y).map(|(x, &y)| x.wrapping_add(y)));
            }
            (&Compute::Quantize { scale, zero, least, greatest }, [Register::Float(x)]) => {
                nearest(simd, &x[..count], out, |x| x / scale);
                out.iter_mut().for_each(|value| *value = (*value).max(least).min(greatest) + zero);
            }
            (Compute::Truncate, [Register::Float(x)]) => nearest(simd, &x[..count], out, f32::trunc),
            // Arguments have the classes that the loop was chosen for.
            _ => out.fill(0),
        }
    }
}

/// A block of a step that has a loop.
struct Block<'a> {
    operation: &'a Operation,
    arguments: &'a [&'a Register],
    count: usize,
    result: &'a mut Register,
}

impl Routine for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Block { operation, arguments, count, result } = self;
        match result {
            Register::Float(out) => {
                operation.floats(arguments, count, out);
                round_floats(simd, operation.to, out);
            }
            Register::Integer(out) if is_float_result(&operation.compute) => {
                let mut wide = Vec::with_capacity(count);
                operation.floats(arguments, count, &mut wide);
                let (least, greatest) = bounds(operation.to);
                out.resize(count, 0);
                nearest(simd, &wide, out, |value| value);
                out.iter_mut().for_each(|value| *value = (*value).max(least).min(greatest));
            }
            Register::Integer(out) => {
                operation.integers(simd, arguments, count, out);
                let (least, greatest) = bounds(operation.to);
                out.iter_mut().for_each(|value| *value = (*value).max(least).min(greatest));
            }
            // Such results are computed as the reference does.
            Register::General(_) => {}
        }
    }
}

fn is_float_result(compute: &Compute) -> bool {
    match compute {
        Compute::Change(_)
        | Compute::Floats(_)
        | Compute::Power(_)
        | Compute::SelectFloats
        | Compute::ClampFloats
        | Compute::Keep
        | Compute::Dequantize { .. }
        | Compute::Widen => true,
        Compute::Integers(_)
        | Compute::Compare(_)
        | Compute::Test(_)
        | Compute::Logic(_)
        | Compute::SelectIntegers
        | Compute::ClampIntegers
        | Compute::Truncate
        | Compute::Wrap
        | Compute::AddWrapping
        | Compute::Quantize { .. }
        | Compute::Chain(_)
        | Compute::General(_) => false,
    }
}

/// The range of an integer type of at most 32 bits.
pub(super) fn bounds(dtype: DType) -> (i32, i32) {
    let bits = dtype.bits() as u32;
    match dtype {
        DType::Bool => (0, 1),
        other if other.is_signed_integer() => (i32::MIN >> (32 - bits), i32::MAX >> (32 - bits)),
        _ => (0, i32::MAX >> (31 - bits)),
    }
}

#[inline(always)]
fn round_floats<S: Simd>(simd: S, to: DType, values: &mut [f32]) {
    match to {
        DType::F16 => values.chunks_mut(LANES).for_each(|values| {
            simd.store_partial(simd.round_to_f16(simd.load_partial(values)), values);
        }),
        DType::BF16 => values.chunks_mut(LANES).for_each(|values| {
            simd.store_partial(simd.round_to_bf16(simd.load_partial(values)), values);
        }),
        _ => {}
    }
}

/// Writes a block.
#[inline(always)]
fn fill<T>(out: &mut [T], values: impl Iterator<Item = T>) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
}

/// The nearest integers of what `change` gives, as [`Simd::nearest_integers`].
#[inline(always)]
fn nearest<S: Simd>(simd: S, x: &[f32], out: &mut [i32], change: impl Fn(f32) -> f32) {
    let ((vectors, rest), (out, last)) = (x.as_chunks(), out.as_chunks_mut());
    for (x, out) in vectors.iter().zip(out) {
        simd.store_integers(simd.nearest_integers(simd.load(&x.map(&change))), out);
    }
    let (mut lanes, mut integers) = ([0.0; LANES], [0; LANES]);
    fill(&mut lanes, rest.iter().map(|&x| change(x)));
    simd.store_integers(simd.nearest_integers(simd.load(&lanes)), &mut integers);
    last.copy_from_slice(&integers[..last.len()]);
}

/// x, not below `least`, then not above `greatest`; NaN where any is.
#[inline(always)]
fn clamped(x: f32, least: f32, greatest: f32) -> f32 {
    let above = if x < least || least.is_nan() { least } else { x };
    let within = if above > greatest || greatest.is_nan() { greatest } else { above };
    if x.is_nan() || least.is_nan() { f32::NAN } else { within }
}

/// `x` where the truth is not 0, else `y`.
#[inline(always)]
fn choose<T: Copy>(holds: &[i32], x: &[T], y: &[T], out: &mut [T]) {
    fill(out, holds.iter().zip(x.iter().zip(y)).map(|(&holds, (&x, &y))| if holds != 0 { x } else { y }));
}

#[inline(always)]
fn compare(relation: CompareRelation, x: &[f32], y: &[f32], out: &mut [i32]) {
    let pairs = x.iter().zip(y);
    match relation {
        CompareRelation::Equal => fill(out, pairs.map(|(x, y)| i32::from(x == y))),
        CompareRelation::Less => fill(out, pairs.map(|(x, y)| i32::from(x < y))),
        CompareRelation::LessOrEqual => fill(out, pairs.map(|(x, y)| i32::from(x <= y))),
        CompareRelation::Greater => fill(out, pairs.map(|(x, y)| i32::from(x > y))),
        CompareRelation::GreaterOrEqual => fill(out, pairs.map(|(x, y)| i32::from(x >= y))),
    }
}

#[inline(always)]
fn test(function: UnaryFunction, x: &[f32], out: &mut [i32]) {
    match function {
        UnaryFunction::IsNan => fill(out, x.iter().map(|x| i32::from(x.is_nan()))),
        UnaryFunction::IsInfinite => fill(out, x.iter().map(|x| i32::from(x.is_infinite()))),
        other => fill(out, x.iter().map(|&x| i32::from(other.apply_f32(x) != 0.0))),
    }
}

#[inline(always)]
fn float_pairs(function: Arithmetic, x: &[f32], y: &[f32], out: &mut [f32]) {
    let pairs = x.iter().zip(y);
    match function {
        Arithmetic::Add => fill(out, pairs.map(|(x, y)| x + y)),
        Arithmetic::Sub => fill(out, pairs.map(|(x, y)| x - y)),
        Arithmetic::Mul => fill(out, pairs.map(|(x, y)| x * y)),
        Arithmetic::Div => fill(out, pairs.map(|(x, y)| x / y)),
        Arithmetic::Min => fill(out, pairs.map(|(&x, &y)| if x < y || x.is_nan() { x } else { y })),
        Arithmetic::Max => fill(out, pairs.map(|(&x, &y)| if x > y || x.is_nan() { x } else { y })),
        Arithmetic::Prelu => fill(out, pairs.map(|(&x, &y)| if x < 0.0 { x * y } else { x })),
    }
}

#[inline(always)]
fn integer_pairs(function: Arithmetic, x: &[i32], y: &[i32], out: &mut [i32]) {
    let pairs = x.iter().zip(y);
    match function {
        Arithmetic::Add => fill(out, pairs.map(|(x, &y)| x.saturating_add(y))),
        Arithmetic::Sub => fill(out, pairs.map(|(x, &y)| x.saturating_sub(y))),
        Arithmetic::Mul => fill(out, pairs.map(|(x, &y)| x.saturating_mul(y))),
        Arithmetic::Min => fill(out, pairs.map(|(&x, &y)| x.min(y))),
        Arithmetic::Max => fill(out, pairs.map(|(&x, &y)| x.max(y))),
        // These are computed as the reference does.
        Arithmetic::Div | Arithmetic::Prelu => out.fill(0),
    }
}

/// The low bits of each value, as a type of at most 32 bits takes them; truths are what is not zero.
#[inline(always)]
fn wrapped(to: DType, x: &[i32], out: &mut [i32]) {
    if to == DType::Bool {
        return fill(out, x.iter().map(|&x| i32::from(x != 0)));
    }
    let unused = 32 - to.bits() as u32;
    if to.is_signed_integer() {
        fill(out, x.iter().map(|&x| x << unused >> unused));
    } else {
        fill(out, x.iter().map(|&x| ((x as u32) << unused >> unused) as i32));
    }
}
