//! Arrays of the crate `ndarray`: made into tensors and inputs of typed handles, and made of outputs.
//!
//! Elements are taken over without a copy where they lie row by row, one after another; views of tensors copy nothing.
//!
//! ```
//! use ipuc::Array;
//! use ipuc::arrays::{tensor, view};
//! use ndarray::{Array2, array};
//!
//! let tensor = tensor(array![[1f32, 2.0], [3.0, 4.0]].into_dyn())?;
//! assert_eq!(tensor.shape(), [2, 2]);
//! assert_eq!(view::<f32>(&tensor)?.sum(), 10.0);
//!
//! let input: Array<f32, 2> = array![[1f32, 2.0]].into();
//! let output: Array2<f32> = input.try_into()?;
//! assert_eq!(output[[0, 1]], 2.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::handle::{Array, ArrayElement};
use ipuc_formats::element::Element;
use ipuc_formats::tensor::{Tensor, TensorError};
use ndarray::{ArrayD, ArrayViewD, Dimension, ShapeError};

/// A tensor of the elements of an array.
///
/// # Errors
/// None that an array can cause: [`TensorError`] is that of [`Tensor::from_vec`].
pub fn tensor<T: Element>(array: ArrayD<T>) -> Result<Tensor, TensorError> {
    let shape = array.shape().to_vec();
    Tensor::from_vec(&shape, row_major(array))
}

/// The elements of a tensor, where they lie.
///
/// # Errors
/// [`TensorError::ElementType`] where the tensor holds another type.
pub fn view<T: Element>(tensor: &Tensor) -> Result<ArrayViewD<'_, T>, TensorError> {
    let elements = tensor.elements::<T>()?;
    let (expected, found) = (tensor.count(), elements.len());
    // A tensor has as many elements as its shape says, which both sides count alike.
    ArrayViewD::from_shape(tensor.shape(), elements).map_err(|_| TensorError::Size {
        dtype: T::DTYPE,
        shape: tensor.shape().to_vec(),
        expected,
        found,
    })
}

/// All elements, the last axis running fastest; the array's own vector where that is how they lie.
fn row_major<T: Clone, D: Dimension>(array: ndarray::Array<T, D>) -> Vec<T> {
    if !array.is_standard_layout() {
        return array.iter().cloned().collect();
    }
    let count = array.len();
    let (mut elements, offset) = array.into_raw_vec_and_offset();
    // A part that was sliced out lies among others.
    elements.truncate(offset.unwrap_or(0) + count);
    elements.drain(..offset.unwrap_or(0));
    elements
}

macro_rules! ranks {
    ($($rank:literal $Dim:ident)*) => { $(
        impl<T: ArrayElement> From<ndarray::Array<T, ndarray::$Dim>> for Array<T, $rank> {
            fn from(array: ndarray::Array<T, ndarray::$Dim>) -> Self {
                let mut shape = [0; $rank];
                shape.copy_from_slice(array.shape());
                Array::new(shape, row_major(array))
            }
        }

        impl<T: ArrayElement> TryFrom<Array<T, $rank>> for ndarray::Array<T, ndarray::$Dim> {
            type Error = ShapeError;

            fn try_from(array: Array<T, $rank>) -> Result<Self, ShapeError> {
                ndarray::Array::from_shape_vec(ndarray::Dim(array.shape), array.elements.into_vec())
            }
        }
    )* };
}
ranks! { 0 Ix0 1 Ix1 2 Ix2 3 Ix3 4 Ix4 5 Ix5 6 Ix6 }

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array3, s};

    fn counted() -> Array3<i64> {
        Array3::from_shape_fn((2, 3, 4), |(i, j, k)| (i * 100 + j * 10 + k) as i64)
    }

    #[test]
    fn elements_are_taken_over_in_row_major_order() {
        let array = counted();
        let place = array.as_ptr();
        let tensor_of_it = tensor(array.into_dyn()).unwrap();
        assert_eq!(tensor_of_it.elements::<i64>().unwrap().as_ptr(), place, "nothing is copied");
        assert_eq!(view::<i64>(&tensor_of_it).unwrap(), counted().into_dyn());
        let turned = counted().reversed_axes();
        let tensor_of_it = tensor(turned.clone().into_dyn()).unwrap();
        assert_eq!(tensor_of_it.shape(), [4, 3, 2]);
        assert_eq!(view::<i64>(&tensor_of_it).unwrap(), turned.into_dyn());
        let part = counted().slice_move(s![1, .., ..]);
        assert_eq!(tensor(part.into_dyn()).unwrap().elements::<i64>().unwrap()[..5], [100, 101, 102, 103, 110]);
    }

    #[test]
    fn typed_arrays_are_converted_both_ways() {
        let array: Array<i64, 3> = counted().into();
        assert_eq!((array.shape, array.elements[5]), ([2, 3, 4], 11));
        let back: Array3<i64> = array.try_into().unwrap();
        assert_eq!(back, counted());
        let short = Array::new([2, 2], vec![1f32]);
        let error = ndarray::Array2::try_from(short).unwrap_err();
        assert_eq!(error.kind(), ndarray::ErrorKind::OutOfBounds);
    }

    #[test]
    fn other_element_types_are_refused() {
        let error = view::<f32>(&Tensor::scalar(1i64)).unwrap_err();
        assert!(matches!(error, TensorError::ElementType { .. }), "{error}");
    }
}
