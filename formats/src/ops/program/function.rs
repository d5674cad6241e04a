//! Functions of the steps of a program.

use crate::dtype::DType;
use crate::ops::scalar::{Scalar, convert, is_number, round_scalar};
use crate::ops::work::{Cost, VectorClass};
use crate::ops::{Activation, BinaryFunction, CompareRelation, ReferenceError, TypeError, UnaryFunction};

/// A function of one to three elements.
#[derive(Debug, Clone, PartialEq)]
pub enum Function {
    /// Of one element.
    Unary(UnaryFunction),
    /// Of one element, with parameters.
    Activation(Activation),
    /// Of two elements of one type.
    Binary(BinaryFunction),
    /// Whether a relation holds between two elements of one type.
    Compare(CompareRelation),
    /// The second argument where the first, a bool, holds, else the third.
    Select,
    /// The first argument, not below the second, then not above the third; NaN stays.
    Clamp,
    /// As the operator `cast` converts: integers wrap, floats are truncated towards them.
    Cast,
}

/// Types of the elements that programs compute with.
pub(super) fn is_element(dtype: DType) -> bool {
    dtype == DType::Bool || (dtype.is_integer() && dtype.bits() <= 64) || is_float(dtype)
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

impl Function {
    /// The name in texts.
    pub fn name(&self) -> &'static str {
        match self {
            Function::Unary(function) => function.into(),
            Function::Activation(activation) => activation.function.into(),
            Function::Binary(function) => function.into(),
            Function::Compare(relation) => relation.into(),
            Function::Select => "select",
            Function::Clamp => "clamp",
            Function::Cast => "cast",
        }
    }

    /// How many arguments it takes.
    pub fn arity(&self) -> usize {
        match self {
            Function::Unary(_) | Function::Activation(_) | Function::Cast => 1,
            Function::Binary(_) | Function::Compare(_) => 2,
            Function::Select | Function::Clamp => 3,
        }
    }

    /// Refuse types of arguments that it does not take, or a type that it does not give.
    ///
    /// # Errors
    /// [`TypeError`] that names them.
    pub(super) fn check(&self, arguments: &[DType], to: DType) -> Result<(), TypeError> {
        let first = arguments.first().copied().unwrap_or(to);
        let same = |from: usize| match arguments.get(from..).unwrap_or(&[]).iter().find(|&&dtype| dtype != first) {
            Some(&found) => Err(TypeError::ElementType { operand: 1, expected: first.to_string(), found }),
            None => Ok(()),
        };
        // Whether the result is a truth.
        let truth = match self {
            Function::Unary(function) => {
                function.check(first)?;
                function.is_test() || first == DType::Bool
            }
            Function::Activation(activation) => {
                activation.function.check(first)?;
                activation.check_parameters()?;
                false
            }
            Function::Binary(function) => {
                let right = arguments.get(1).copied().unwrap_or(first);
                function.check(first, right)?;
                first == DType::Bool
            }
            Function::Compare(relation) => {
                let right = arguments.get(1).copied().unwrap_or(first);
                relation.check(first, right)?;
                true
            }
            Function::Select => {
                if first != DType::Bool {
                    return Err(TypeError::ElementType { operand: 0, expected: "bool".to_string(), found: first });
                }
                match arguments {
                    [_, x, y] if x != y => {
                        return Err(TypeError::ElementType { operand: 2, expected: x.to_string(), found: *y });
                    }
                    [_, x, _] => *x == DType::Bool,
                    _ => false,
                }
            }
            Function::Clamp => {
                if !is_number(first) {
                    let expected = "a real number type".to_string();
                    return Err(TypeError::ElementType { operand: 0, expected, found: first });
                }
                same(1)?;
                false
            }
            Function::Cast => return Ok(()),
        };
        match (truth, to == DType::Bool) {
            (true, true) | (false, false) => Ok(()),
            (true, false) => Err(TypeError::Unsupported(format!("`{}` rounded to {to}", self.name()))),
            (false, true) => Err(TypeError::Unsupported(format!("`{}` rounded to a truth", self.name()))),
        }
    }

    /// The function of each element of arguments of these types, rounded to `to`.
    ///
    /// # Errors
    /// [`ReferenceError`] for a division of integers by zero.
    ///
    /// # Panics
    /// If there are other arguments than [`Function::arity`] says, or they have different lengths.
    pub fn apply_all(&self, dtype: DType, arguments: &[&[Scalar]], to: DType) -> Result<Vec<Scalar>, ReferenceError> {
        let bits = dtype.bits() as u32;
        let x = arguments[0];
        let mut results = match self {
            Function::Unary(function) => x.iter().map(|&x| function.apply_scalar(x)).collect(),
            Function::Activation(activation) => x.iter().map(|&x| activation.apply_scalar(x)).collect(),
            Function::Binary(function) => {
                let pairs = x.iter().zip(arguments[1]);
                pairs.map(|(&x, &y)| function.apply_scalars(x, y, bits)).collect::<Result<Vec<_>, _>>()?
            }
            Function::Compare(relation) => {
                let holds = |(&x, &y)| Scalar::Integer(i128::from(relation.holds_between(x, y)));
                x.iter().zip(arguments[1]).map(holds).collect()
            }
            Function::Select => {
                let both = arguments[1].iter().zip(arguments[2]);
                x.iter().zip(both).map(|(test, (&x, &y))| if test.is_true() { x } else { y }).collect()
            }
            Function::Clamp => {
                let bounds = arguments[1].iter().zip(arguments[2]);
                x.iter().zip(bounds).map(|(&x, (&least, &greatest))| clamped(x, least, greatest)).collect()
            }
            Function::Cast => return convert(to, x),
        };
        if self.acts_on_bits() {
            results = convert(dtype, &results)?;
        }
        results.iter_mut().for_each(|result: &mut Scalar| *result = round_scalar(to, *result));
        Ok(results)
    }

    /// Whether its result has the bits of its argument's type, whatever number they are.
    fn acts_on_bits(&self) -> bool {
        matches!(self, Function::Unary(UnaryFunction::BitNot) | Function::Binary(BinaryFunction::ShiftLeft))
    }

    /// Operations on each element.
    pub fn per_element(&self) -> Vec<Cost> {
        match self {
            Function::Unary(function) => function.per_element(),
            Function::Activation(activation) => activation.function.per_element(),
            Function::Binary(function) => function.per_element(),
            Function::Compare(_) | Function::Select => vec![(VectorClass::Arithmetic, 1)],
            Function::Clamp => vec![(VectorClass::Arithmetic, 2)],
            Function::Cast => vec![(VectorClass::Convert, 1)],
        }
    }
}

/// `min(greatest, max(least, value))`; NaN stays.
fn clamped(value: Scalar, least: Scalar, greatest: Scalar) -> Scalar {
    match (value, least, greatest) {
        (Scalar::Integer(value), Scalar::Integer(least), Scalar::Integer(greatest)) => {
            Scalar::Integer(value.max(least).min(greatest))
        }
        (value, least, greatest) => {
            let above = BinaryFunction::Max.apply(value.to_f64(), least.to_f64());
            Scalar::Float(BinaryFunction::Min.apply(above, greatest.to_f64()))
        }
    }
}
