//! The elements of an array: those of a vector, or of a tensor that a model gave; neither is copied.

use ipuc_formats::element::{Element, bf16, f16};
use ipuc_formats::tensor::{Tensor, TensorError};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A Rust type of elements.
pub trait ArrayElement: Clone {
    /// A tensor of these elements.
    ///
    /// # Errors
    /// [`TensorError::Size`] where they do not fill the shape.
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError>;

    /// The elements of a tensor; `None` where it holds another type.
    fn of_tensor(tensor: Tensor) -> Option<Elements<Self>>;
}

macro_rules! numeric_elements {
    ($($Element:ty)*) => { $(
        impl ArrayElement for $Element {
            fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
                Tensor::from_vec(shape, elements)
            }
            fn of_tensor(tensor: Tensor) -> Option<Elements<Self>> {
                Elements::shared(tensor)
            }
        }
    )* };
}
numeric_elements! { u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64 }

impl ArrayElement for bool {
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
        Tensor::from_bools(shape, &elements)
    }
    /// A copy: bytes are no booleans before each has been looked at.
    fn of_tensor(tensor: Tensor) -> Option<Elements<Self>> {
        tensor.bools().ok().map(Elements::from)
    }
}

impl ArrayElement for String {
    fn into_tensor(shape: &[usize], elements: Vec<Self>) -> Result<Tensor, TensorError> {
        Tensor::from_strings(shape, elements)
    }
    fn of_tensor(tensor: Tensor) -> Option<Elements<Self>> {
        tensor.into_strings().ok().map(Elements::from)
    }
}

/// Elements, used as a slice.
///
/// ```
/// let mut elements = ipuc::Elements::from(vec![1f32, 2.0]);
/// elements[1] = 3.0;
/// assert_eq!(elements.iter().sum::<f32>(), 4.0);
/// assert_eq!(elements.into_vec(), [1.0, 3.0]);
/// ```
#[derive(Clone)]
pub struct Elements<T> {
    /// Where they are read as long as it is there.
    shared: Option<Arc<dyn Shared<T>>>,
    own: Vec<T>,
}

/// A tensor whose elements lie as in a slice of `T`.
trait Shared<T>: Send + Sync {
    fn elements(&self) -> &[T];
    fn tensor(&self) -> &Tensor;
}

/// A tensor of numbers of one type, which nothing can change any more.
struct Numbers<T> {
    tensor: Tensor,
    element: PhantomData<T>,
}

impl<T: Element> Numbers<T> {
    fn of_tensor(tensor: Tensor) -> Option<Self> {
        (tensor.dtype() == T::DTYPE).then_some(Numbers { tensor, element: PhantomData })
    }
}

impl<T: Element> Shared<T> for Numbers<T> {
    fn elements(&self) -> &[T] {
        bytemuck::cast_slice(self.tensor.bytes())
    }
    fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl<T: Element> Elements<T> {
    /// The elements of a tensor where they lie; `None` where it holds another type.
    pub(super) fn shared(tensor: Tensor) -> Option<Self> {
        Some(Elements { shared: Some(Arc::new(Numbers::of_tensor(tensor)?)), own: Vec::new() })
    }
}

impl<T: ArrayElement> Elements<T> {
    /// The elements of a tensor; `None` where it holds another type.
    pub fn of_tensor(tensor: Tensor) -> Option<Self> {
        T::of_tensor(tensor)
    }

    /// The vector or the tensor.
    pub(super) fn into_parts(self) -> Result<Vec<T>, Tensor> {
        match self.shared {
            None => Ok(self.own),
            Some(shared) => Err(shared.tensor().clone()),
        }
    }

    /// The elements as a vector, which takes a copy where a model gave them.
    pub fn into_vec(self) -> Vec<T> {
        match self.shared {
            None => self.own,
            Some(shared) => shared.elements().to_vec(),
        }
    }
}

impl<T> From<Vec<T>> for Elements<T> {
    fn from(own: Vec<T>) -> Self {
        Elements { shared: None, own }
    }
}

impl<T: ArrayElement> Deref for Elements<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.shared {
            None => &self.own,
            Some(shared) => shared.elements(),
        }
    }
}

impl<T: ArrayElement> DerefMut for Elements<T> {
    /// For writing; what a model gave is copied first.
    fn deref_mut(&mut self) -> &mut [T] {
        if let Some(shared) = self.shared.take() {
            self.own = shared.elements().to_vec();
        }
        &mut self.own
    }
}

impl<T: ArrayElement> IntoIterator for Elements<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.into_vec().into_iter()
    }
}

impl<'a, T: ArrayElement> IntoIterator for &'a Elements<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: ArrayElement + fmt::Debug> fmt::Debug for Elements<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

impl<T: ArrayElement + PartialEq, Other: AsRef<[T]>> PartialEq<Other> for Elements<T> {
    fn eq(&self, other: &Other) -> bool {
        **self == *other.as_ref()
    }
}

impl<T: ArrayElement> AsRef<[T]> for Elements<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}
