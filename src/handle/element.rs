//! Rust types of elements of arrays.

use ipuc_formats::element::{bf16, f16};
use ipuc_formats::tensor::{Tensor, TensorError};

/// A Rust type of elements.
pub trait ArrayElement: Clone {
    /// A tensor of these elements.
    ///
    /// # Errors
    /// [`TensorError::Size`] where they do not fill the shape.
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError>;

    /// The elements of a tensor where they lie; `None` where it holds another type, or does not have them as they are here.
    fn view(tensor: &Tensor) -> Option<&[Self]>;

    /// A copy of the elements of a tensor; `None` where it holds another type.
    fn copied(tensor: &Tensor) -> Option<Vec<Self>> {
        Self::view(tensor).map(<[Self]>::to_vec)
    }
}

macro_rules! numeric_elements {
    ($($Element:ty)*) => { $(
        impl ArrayElement for $Element {
            fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
                Tensor::from_vec(shape, elements)
            }
            fn view(tensor: &Tensor) -> Option<&[Self]> {
                tensor.elements::<$Element>().ok()
            }
        }
    )* };
}
numeric_elements! { u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64 }

impl ArrayElement for bool {
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
        Tensor::from_bools(shape, &elements)
    }
    /// Bytes are no booleans before each has been looked at.
    fn view(_tensor: &Tensor) -> Option<&[Self]> {
        None
    }
    fn copied(tensor: &Tensor) -> Option<Vec<Self>> {
        tensor.bools().ok()
    }
}

impl ArrayElement for String {
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
        Tensor::from_strings(shape, elements)
    }
    fn view(tensor: &Tensor) -> Option<&[Self]> {
        tensor.strings().ok()
    }
}
