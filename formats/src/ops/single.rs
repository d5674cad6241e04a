//! Operands of one element: sizes, thresholds, positions. ONNX writes them with shape `[]` or `[1]`.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::{ReferenceError, TypeError, optional, optional_tensor, tensor_operand};
use crate::tensor::Tensor;
use crate::value::Value;
use crate::with_number;

/// Require one element of one of these types, as far as the shape is known; an absent operand is fine.
///
/// # Errors
/// [`TypeError`] where it is something else.
pub fn check_single(inputs: &[Option<Fact>], operand: usize, types: &[DType]) -> Result<(), TypeError> {
    if optional(inputs, operand).is_none() {
        return Ok(());
    }
    let (found, shape) = tensor_operand(inputs, operand)?;
    if !types.contains(&found) {
        let names: Vec<&str> = types.iter().map(|dtype| dtype.name()).collect();
        return Err(TypeError::ElementType { operand, expected: names.join(" or "), found });
    }
    match shape.dims().and_then(|dims| Dim::product(dims).as_known()) {
        Some(1) | None => Ok(()),
        Some(_) => Err(TypeError::Value {
            subject: format!("shape of operand {operand}"),
            found: shape.to_string(),
            expected: "one element".to_string(),
        }),
    }
}

/// The element as an expression, where it is known.
pub fn single_dim(inputs: &[Option<Fact>], operand: usize) -> Option<Dim> {
    match optional(inputs, operand)?.elements_as_dims()?.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    }
}

fn single_tensor(inputs: &[Option<Value>], operand: usize) -> Result<Option<&Tensor>, ReferenceError> {
    match optional_tensor(inputs, operand)? {
        Some(tensor) if tensor.count() != 1 => Err(TypeError::Value {
            subject: format!("operand {operand}"),
            found: format!("{} elements", tensor.count()),
            expected: "one element".to_string(),
        }
        .into()),
        found => Ok(found),
    }
}

/// The element of an integer or bool operand; `None` where it is absent.
///
/// # Errors
/// [`TypeError`] where it has another type or another number of elements.
pub fn single_integer(inputs: &[Option<Value>], operand: usize) -> Result<Option<i64>, ReferenceError> {
    let Some(found) = single_tensor(inputs, operand)? else { return Ok(None) };
    let elements = crate::fact::integers(found).unwrap_or_default();
    match elements.as_slice() {
        &[element] => Ok(Some(element)),
        _ => Err(element_type(operand, "an integer type", found)),
    }
}

/// The element of a numeric operand; `None` where it is absent.
///
/// # Errors
/// As [`single_integer`].
pub fn single_float(inputs: &[Option<Value>], operand: usize) -> Result<Option<f64>, ReferenceError> {
    let Some(found) = single_tensor(inputs, operand)? else { return Ok(None) };
    let element = with_number!(
        found.dtype(),
        T => found.elements::<T>()?.first().map(|&element| crate::element::Number::to_f64_lossy(element)),
        otherwise None
    );
    element.map(Some).ok_or_else(|| element_type(operand, "a number type", found))
}

fn element_type(operand: usize, expected: &str, found: &Tensor) -> ReferenceError {
    TypeError::ElementType { operand, expected: expected.to_string(), found: found.dtype() }.into()
}

/// A result of numbers given as f64, rounded to a number type.
///
/// # Errors
/// [`TypeError::Unsupported`] for other types, `TensorError` where the count differs from the shape's.
pub fn from_f64(dtype: DType, shape: &[usize], elements: &[f64]) -> Result<Tensor, ReferenceError> {
    with_number!(
        dtype,
        T => {
            let rounded: Vec<T> = elements.iter().map(|&element| {
                <T as crate::element::Number>::from_f64_lossy(element)
            }).collect();
            Ok(Tensor::from_elements(shape, &rounded)?)
        },
        otherwise Err(TypeError::Unsupported(format!("a result of type {dtype}")).into())
    )
}

/// The elements of a tensor of numbers as f64.
///
/// # Errors
/// [`TypeError::ElementType`] for other types.
pub fn to_f64(tensor: &Tensor, operand: usize) -> Result<Vec<f64>, ReferenceError> {
    with_number!(
        tensor.dtype(),
        T => Ok(tensor.elements::<T>()?.iter().map(|&element| {
            crate::element::Number::to_f64_lossy(element)
        }).collect()),
        otherwise Err(element_type(operand, "a number type", tensor))
    )
}

/// Every type that [`crate::with_number!`] covers: what ONNX lets windows and filter banks be made of.
pub const NUMBERS: &[DType] = &[
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// The floating-point types of 16 bits and more.
pub const FLOATS: &[DType] = &[DType::F16, DType::BF16, DType::F32, DType::F64];

/// The types of indices and sizes.
pub const INDICES: &[DType] = &[DType::I32, DType::I64];
