//! Typed values at the border of a model: what handles that [`build`](crate::build) generates are made of.
//!
//! An [`Array`] has its element type and its number of axes in its Rust type, so that a wrong one does not compile. What
//! has no Rust type of its own (sequences, tensors of unknown rank, elements of less than a byte) stays a [`Value`].

mod elements;

pub use elements::{ArrayElement, Elements};

use ipuc_formats::tensor::TensorError;
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
pub struct Array<T: ArrayElement, const RANK: usize> {
    /// Extent of each axis.
    pub shape: [usize; RANK],
    /// The elements; the last axis runs fastest.
    pub elements: Elements<T>,
}

impl<T: ArrayElement, const RANK: usize> Array<T, RANK> {
    /// An array of these elements, which are not copied. That they fill the shape is checked when a model runs.
    #[must_use]
    pub fn new(shape: [usize; RANK], elements: impl Into<Elements<T>>) -> Self {
        Array { shape, elements: elements.into() }
    }
}

impl<T: ArrayElement> Array<T, 0> {
    /// One element with no axes.
    #[must_use]
    pub fn scalar(element: T) -> Self {
        Array::new([], vec![element])
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
        let tensor = match self.elements.into_parts() {
            Ok(elements) => T::into_tensor(&self.shape, elements)?,
            Err(tensor) => tensor.reshaped(&self.shape)?,
        };
        Ok(Value::Tensor(tensor))
    }
    fn of_value(value: Value) -> Option<Self> {
        let Value::Tensor(tensor) = value else { return None };
        Some(Array { shape: tensor.shape().try_into().ok()?, elements: Elements::of_tensor(tensor)? })
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
    use ipuc_formats::tensor::Tensor;

    #[test]
    fn arrays_round_trip() {
        let array = Array::new([1, 2], vec![1.5f32, -2.0]);
        let value = array.clone().into_value().unwrap();
        assert_eq!(Array::<f32, 2>::of_value(value.clone()), Some(array));
        assert_eq!(Array::<f32, 1>::of_value(value.clone()), None);
        assert_eq!(Array::<i64, 2>::of_value(value), None);
        let numbers = Tensor::vector_i64(&[1, 2]);
        assert!(
            Elements::<u64>::of_tensor(numbers.clone()).is_none() && Elements::<bool>::of_tensor(numbers).is_none()
        );
        let words = Array::new([1], vec!["a".to_string()]);
        assert_eq!(Array::of_value(words.clone().into_value().unwrap()), Some(words));
        let truth = Array::scalar(true);
        assert_eq!(Array::of_value(truth.clone().into_value().unwrap()), Some(truth));
    }

    #[test]
    fn elements_lie_where_they_were_made() {
        let elements = vec![1.5f32, -2.0, 3.0, 4.0];
        let place = elements.as_ptr();
        let value = Array::new([2, 2], elements).into_value().unwrap();
        assert_eq!(value.as_tensor().unwrap().elements::<f32>().unwrap().as_ptr(), place);
        // An output is the memory of the model, and goes back as it is.
        let array = Array::<f32, 2>::of_value(value).unwrap();
        assert_eq!(array.elements.as_ptr(), place);
        let mut other = Array::new([4], array.elements.clone());
        assert_eq!(other.elements.as_ptr(), place);
        let value = other.clone().into_value().unwrap();
        assert_eq!(value.as_tensor().unwrap().elements::<f32>().unwrap().as_ptr(), place);
        // Who writes has elements of its own.
        other.elements[0] = 9.0;
        assert_eq!(other.elements, [9.0, -2.0, 3.0, 4.0]);
        assert_eq!(array.elements, vec![1.5, -2.0, 3.0, 4.0]);
        assert!(array.elements.iter().eq(&[1.5, -2.0, 3.0, 4.0]));
        assert!(Array::<f32, 1>::new([3], array.elements).into_value().is_err(), "they do not fill the shape");
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
