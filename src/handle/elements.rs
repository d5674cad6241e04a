//! The elements of an array: those of a vector, or of a tensor that a model gave; neither is copied.

use super::element::ArrayElement;
use ipuc_formats::tensor::Tensor;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Elements, used as a slice.
///
/// ```
/// let mut elements = ipuc::Elements::from(vec![1f32, 2.0]);
/// elements[1] = 3.0;
/// assert_eq!(elements.iter().sum::<f32>(), 4.0);
/// assert_eq!(elements.into_vec(), [1.0, 3.0]);
/// ```
#[derive(Clone)]
pub struct Elements<T>(Held<T>);

#[derive(Clone)]
enum Held<T> {
    Vector(Vec<T>),
    /// A tensor with elements of this type that lie as in a slice.
    Tensor(Tensor),
}

impl<T: ArrayElement> Elements<T> {
    /// The elements of a tensor; `None` where it holds another type.
    pub fn of_tensor(tensor: Tensor) -> Option<Self> {
        if T::view(&tensor).is_some() {
            return Some(Elements(Held::Tensor(tensor)));
        }
        T::copied(&tensor).map(Elements::from)
    }

    /// The vector or the tensor.
    pub(super) fn into_parts(self) -> Result<Vec<T>, Tensor> {
        match self.0 {
            Held::Vector(elements) => Ok(elements),
            Held::Tensor(tensor) => Err(tensor),
        }
    }

    /// The elements as a vector, which takes a copy where a model gave them.
    pub fn into_vec(self) -> Vec<T> {
        match self.0 {
            Held::Vector(elements) => elements,
            Held::Tensor(tensor) => T::copied(&tensor).unwrap_or_default(),
        }
    }
}

impl<T> From<Vec<T>> for Elements<T> {
    fn from(elements: Vec<T>) -> Self {
        Elements(Held::Vector(elements))
    }
}

impl<T: ArrayElement> Deref for Elements<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.0 {
            Held::Vector(elements) => elements,
            // It is one of this type, as `of_tensor` has seen.
            Held::Tensor(tensor) => T::view(tensor).unwrap_or_default(),
        }
    }
}

impl<T: ArrayElement> DerefMut for Elements<T> {
    /// For writing; what a model gave is copied first.
    fn deref_mut(&mut self) -> &mut [T] {
        if let Held::Tensor(tensor) = &self.0 {
            self.0 = Held::Vector(T::copied(tensor).unwrap_or_default());
        }
        match &mut self.0 {
            Held::Vector(elements) => elements,
            Held::Tensor(_) => &mut [],
        }
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
