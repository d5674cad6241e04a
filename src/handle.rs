//! Typed values at the border of a model: what handles that [`build`](crate::build) generates are made of.
//!
//! An [`Array`] has its element type and its number of axes in its Rust type, so that a wrong one does not compile. What
//! has no Rust type of its own (sequences, tensors of unknown rank, elements of less than a byte) stays a [`Value`].

use ipuc_formats::element::{bf16, f16};
use ipuc_formats::tensor::{Tensor, TensorError};
use ipuc_formats::value::Value;
use ipuc_runtime::RunError;
use std::path::PathBuf;
use thiserror::Error;

/// A dense array, row-major.
///
/// ```
/// let array = ipuc::Array::new([2, 3], vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// assert_eq!(array.elements[1 * 3 + 2], 6.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Array<T, const RANK: usize> {
    /// Extent of each axis.
    pub shape: [usize; RANK],
    /// The elements; the last axis runs fastest.
    pub elements: Vec<T>,
}

impl<T, const RANK: usize> Array<T, RANK> {
    /// An array of these elements. That they fill the shape is checked when a model runs.
    #[must_use]
    pub fn new(shape: [usize; RANK], elements: Vec<T>) -> Self {
        Array { shape, elements }
    }
}

impl<T> Array<T, 0> {
    /// One element with no axes.
    #[must_use]
    pub fn scalar(element: T) -> Self {
        Array { shape: [], elements: vec![element] }
    }
}

/// The file of this name in the folder of the program, or in that above it, where tests and examples are in folders of their
/// own; where it is in neither, `built`.
#[must_use]
pub fn beside(name: &str, built: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let mut places = program.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    places.find(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(built))
}

/// Why a typed run gives no outputs.
#[derive(Debug, Error)]
pub enum HandleError {
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The elements of an input do not fill its shape.
    #[error("input `{name}`: {error}")]
    Input {
        /// Name of the input.
        name: &'static str,
        /// Why.
        error: TensorError,
    },
    /// An output that the file does not have; the file at hand is not the one of the handle.
    #[error("there is no output `{name}`, which the handle was generated for")]
    MissingOutput {
        /// Name of the output.
        name: &'static str,
    },
    /// An output has another type than the one that was compiled; the file at hand is not the one of the handle.
    #[error("output `{name}` is {found}, which is not the type that the handle was generated for")]
    Output {
        /// Name of the output.
        name: &'static str,
        /// What it is.
        found: String,
    },
}

/// A Rust type of elements.
pub trait ArrayElement: Sized {
    /// A tensor of these elements.
    ///
    /// # Errors
    /// [`TensorError::Size`] where they do not fill the shape.
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError>;

    /// The elements of a tensor; `None` where it holds another type.
    fn of_tensor(tensor: &Tensor) -> Option<Vec<Self>>;
}

macro_rules! numeric_elements {
    ($($Element:ty)*) => { $(
        impl ArrayElement for $Element {
            fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
                Tensor::from_vec(shape, elements)
            }
            fn of_tensor(tensor: &Tensor) -> Option<Vec<Self>> {
                Some(tensor.elements::<$Element>().ok()?.to_vec())
            }
        }
    )* };
}
numeric_elements! { u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64 }

impl ArrayElement for bool {
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
        Tensor::from_bools(shape, &elements)
    }
    fn of_tensor(tensor: &Tensor) -> Option<Vec<Self>> {
        tensor.bools().ok()
    }
}

impl ArrayElement for String {
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
        Tensor::from_strings(shape, elements)
    }
    fn of_tensor(tensor: &Tensor) -> Option<Vec<Self>> {
        Some(tensor.strings().ok()?.to_vec())
    }
}

/// What a generated handle gives to a model and takes from it.
pub trait Port: Sized {
    /// The value for a run.
    ///
    /// # Errors
    /// [`TensorError`] where elements do not fill their shape.
    fn into_value(self) -> Result<Value, TensorError>;

    /// The typed form of a result; `None` where it has another type.
    fn of_value(value: Value) -> Option<Self>;
}

impl Port for Value {
    fn into_value(self) -> Result<Value, TensorError> {
        Ok(self)
    }
    fn of_value(value: Value) -> Option<Self> {
        Some(value)
    }
}

impl<T: ArrayElement, const RANK: usize> Port for Array<T, RANK> {
    fn into_value(self) -> Result<Value, TensorError> {
        T::into_tensor(&self.shape, self.elements).map(Value::Tensor)
    }
    fn of_value(value: Value) -> Option<Self> {
        let tensor = value.as_tensor()?;
        Some(Array { shape: tensor.shape().try_into().ok()?, elements: T::of_tensor(tensor)? })
    }
}

/// An input of a generated handle by its name.
///
/// # Errors
/// [`HandleError::Input`] where elements do not fill their shape.
pub fn input(name: &'static str, port: impl Port) -> Result<(String, Value), HandleError> {
    let value = port.into_value().map_err(|error| HandleError::Input { name, error })?;
    Ok((name.to_string(), value))
}

/// An output of a generated handle by its name.
///
/// # Errors
/// [`HandleError::MissingOutput`] where there is none of this name, [`HandleError::Output`] where it has another type.
pub fn output<P: Port>(name: &'static str, outputs: &mut Vec<(String, Value)>) -> Result<P, HandleError> {
    let index = outputs.iter().position(|(output, _)| output == name);
    let index = index.ok_or(HandleError::MissingOutput { name })?;
    let (_, value) = outputs.swap_remove(index);
    let found = value.kind();
    P::of_value(value).ok_or_else(|| HandleError::Output { name, found: found.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_round_trip() {
        let array = Array::new([1, 2], vec![1.5f32, -2.0]);
        let value = array.clone().into_value().unwrap();
        assert_eq!(Array::<f32, 2>::of_value(value.clone()), Some(array));
        assert_eq!(Array::<f32, 1>::of_value(value.clone()), None);
        assert_eq!(Array::<i64, 2>::of_value(value), None);
        let words = Array::new([1], vec!["a".to_string()]);
        assert_eq!(Array::of_value(words.clone().into_value().unwrap()), Some(words));
        let truth = Array::scalar(true);
        assert_eq!(Array::of_value(truth.clone().into_value().unwrap()), Some(truth));
    }

    #[test]
    fn errors_name_the_port() {
        let error = input("x", Array::new([3], vec![1i64])).unwrap_err();
        assert!(error.to_string().starts_with("input `x`: "), "{error}");
        let mut outputs = vec![input("y", Array::scalar(1i64)).unwrap()];
        let error = output::<Array<f32, 0>>("y", &mut outputs).unwrap_err();
        let expected = "output `y` is i64[], which is not the type that the handle was generated for";
        assert_eq!(error.to_string(), expected);
        let missing = output::<Array<i64, 0>>("y", &mut outputs).unwrap_err();
        assert_eq!(missing.to_string(), "there is no output `y`, which the handle was generated for");
    }
}
