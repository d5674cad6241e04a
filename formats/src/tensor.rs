//! Dense tensors: an element type, a shape, and shared bytes.
//!
//! Bytes are little-endian and packed as in ONNX `raw_data` (sub-byte elements fill a byte from its low bits).
//! Who owns the bytes is open ([`Storage`]): the heap here, an arena or a mapped file in the runtime.

use crate::dtype::DType;
use crate::element::Element;
use bytemuck::Pod;
use ipuc_codes::aligned::{AlignedBytes, Line};
use ipuc_codes::size::Size;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// Why a tensor cannot be built or viewed as asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TensorError {
    /// Element counts or byte sizes do not agree.
    #[error("{dtype}{shape:?} needs {expected} bytes, there are {found}")]
    Size {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Vec<usize>,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// An element that the tensor does not have is asked for.
    #[error("element {index} of {dtype}{shape:?} is asked for, which has {count}")]
    Index {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Vec<usize>,
        /// Number of elements.
        count: usize,
        /// Position of the element in row-major order.
        index: usize,
    },
    /// The number of elements or bytes does not fit in memory addresses.
    #[error("{dtype}{shape:?} is too large to address")]
    TooLarge {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Vec<usize>,
    },
    /// The system has no memory for it.
    #[error("there is no memory for a tensor {dtype}{shape:?}")]
    Memory {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Vec<usize>,
    },
    /// The system has no memory for a list that is sized while running.
    #[error("there is no memory for {}", Size::from(*bytes))]
    Room {
        /// What it would take.
        bytes: usize,
    },
    /// The tensor holds another element type.
    #[error("expected elements of type {expected}, found {found}")]
    ElementType {
        /// What was asked for.
        expected: DType,
        /// What the tensor holds.
        found: DType,
    },
}

/// Bytes that a tensor shares. Written only while a single tensor owns them.
pub trait Storage: Send + Sync {
    /// All bytes.
    fn bytes(&self) -> &[u8];
    /// All bytes for writing, or `None` where they are read-only.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;
    /// Whoever made them counts them against a budget.
    fn is_counted(&self) -> bool {
        false
    }
}

impl<U: Pod + Send + Sync> Storage for AlignedBytes<U> {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }
}

/// Elements of a vector that a tensor has taken over.
struct Elements<T>(Vec<T>);

impl<T: Element> Storage for Elements<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(bytemuck::cast_slice_mut(&mut self.0))
    }
}

/// The only element of a tensor: scalars are many, and take one piece of memory.
struct Single<T>(T);

impl<T: Pod + Send + Sync> Storage for Single<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.0)
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(bytemuck::bytes_of_mut(&mut self.0))
    }
}

/// Some bytes of another storage, which may be written once nobody else has any of it.
struct Part {
    whole: Arc<dyn Storage>,
    bytes: Range<usize>,
}

impl Storage for Part {
    fn bytes(&self) -> &[u8] {
        &self.whole.bytes()[self.bytes.clone()]
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.whole)?.bytes_mut()?.get_mut(self.bytes.clone())
    }
    fn is_counted(&self) -> bool {
        self.whole.is_counted()
    }
}

/// Extents of the axes; those of usual tensors take no memory of their own, as steps make several tensors a microsecond.
type Extents = SmallVec<[usize; 6]>;

#[derive(Clone)]
enum Data {
    Bytes(Arc<dyn Storage>),
    Strings(Arc<Vec<String>>),
}

/// A dense tensor; cloning shares the bytes.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Extents,
    data: Data,
}

/// A list without elements, with room for `count`.
///
/// # Errors
/// [`TensorError::Room`] where there is no memory for them.
pub fn room<T>(count: usize) -> Result<Vec<T>, TensorError> {
    let mut list = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    list.try_reserve_exact(count).map_err(|_| TensorError::Room { bytes })?;
    Ok(list)
}

/// A list of `count` times a value.
///
/// # Errors
/// [`TensorError::Room`] where there is no memory for them.
pub fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, TensorError> {
    let mut list = room(count)?;
    list.resize(count, value);
    Ok(list)
}

/// Number of elements of a shape, or `None` on overflow.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent))
}

/// Row-major strides of a shape, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

fn required_bytes(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    element_count(shape)
        .and_then(|count| dtype.packed_bytes(count))
        .ok_or_else(|| TensorError::TooLarge { dtype, shape: shape.to_vec() })
}

impl Tensor {
    /// A tensor of zero bytes on the heap (not for strings).
    ///
    /// # Errors
    /// [`TensorError::TooLarge`] where the size overflows or the type is string.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let bytes = required_bytes(dtype, shape)?;
        let storage = AlignedBytes::<Line>::zeroed(bytes);
        let storage = storage.map_err(|_| TensorError::Memory { dtype, shape: shape.to_vec() })?;
        Ok(Tensor { dtype, shape: Extents::from_slice(shape), data: Data::Bytes(Arc::new(storage)) })
    }

    /// A tensor over canonical bytes (copied to the heap).
    ///
    /// # Errors
    /// [`TensorError::Size`] where the bytes do not fill the shape exactly.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, TensorError> {
        let storage = AlignedBytes::<Line>::copied(bytes);
        let storage = storage.map_err(|_| TensorError::Memory { dtype, shape: shape.to_vec() })?;
        Tensor::over(dtype, shape, Arc::new(storage))
    }

    /// A tensor over shared storage, which must hold exactly the bytes of the shape.
    ///
    /// # Errors
    /// [`TensorError::Size`] where it does not.
    pub fn over(dtype: DType, shape: &[usize], storage: Arc<dyn Storage>) -> Result<Tensor, TensorError> {
        let expected = required_bytes(dtype, shape)?;
        let found = storage.bytes().len();
        if expected != found {
            return Err(TensorError::Size { dtype, shape: shape.to_vec(), expected, found });
        }
        Ok(Tensor { dtype, shape: Extents::from_slice(shape), data: Data::Bytes(storage) })
    }

    /// A tensor of numbers.
    ///
    /// # Errors
    /// [`TensorError::Size`] where the count of elements differs from the shape's.
    pub fn from_elements<T: Element>(shape: &[usize], elements: &[T]) -> Result<Tensor, TensorError> {
        Tensor::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(elements))
    }

    /// A tensor of the numbers of a vector, which are not copied.
    ///
    /// # Errors
    /// [`TensorError::Size`] where the count of elements differs from the shape's.
    pub fn from_vec<T: Element>(shape: &[usize], elements: Vec<T>) -> Result<Tensor, TensorError> {
        Tensor::over(T::DTYPE, shape, Arc::new(Elements(elements)))
    }

    /// A tensor of booleans.
    ///
    /// # Errors
    /// [`TensorError::Size`] where the count of elements differs from the shape's.
    pub fn from_bools(shape: &[usize], elements: &[bool]) -> Result<Tensor, TensorError> {
        let bytes: Vec<u8> = elements.iter().map(|&element| u8::from(element)).collect();
        Tensor::from_bytes(DType::Bool, shape, &bytes)
    }

    /// A tensor of strings.
    ///
    /// # Errors
    /// [`TensorError::Size`] where the count of elements differs from the shape's.
    pub fn from_strings(shape: &[usize], elements: Vec<String>) -> Result<Tensor, TensorError> {
        let expected = element_count(shape)
            .ok_or_else(|| TensorError::TooLarge { dtype: DType::String, shape: shape.to_vec() })?;
        if expected != elements.len() {
            let found = elements.len();
            return Err(TensorError::Size { dtype: DType::String, shape: shape.to_vec(), expected, found });
        }
        Ok(Tensor { dtype: DType::String, shape: Extents::from_slice(shape), data: Data::Strings(Arc::new(elements)) })
    }

    /// A tensor of one element with shape `[]`.
    pub fn scalar<T: Element>(element: T) -> Tensor {
        Tensor { dtype: T::DTYPE, shape: Extents::new(), data: Data::Bytes(Arc::new(Single(element))) }
    }

    /// A boolean of shape `[]`.
    pub fn scalar_bool(element: bool) -> Tensor {
        Tensor { dtype: DType::Bool, shape: Extents::new(), data: Data::Bytes(Arc::new(Single(u8::from(element)))) }
    }

    /// A vector of i64, shape `[n]`.
    pub fn vector_i64(elements: &[i64]) -> Tensor {
        let storage = AlignedBytes::<Line>::from(bytemuck::cast_slice::<i64, u8>(elements));
        Tensor {
            dtype: DType::I64,
            shape: Extents::from_slice(&[elements.len()]),
            data: Data::Bytes(Arc::new(storage)),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extent of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The packed bytes; empty for strings.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Bytes(storage) => storage.bytes(),
            Data::Strings(_) => &[],
        }
    }

    /// The bytes for writing; copies them first where they are shared or read-only. Empty for strings.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Data::Bytes(storage) = &mut self.data else { return &mut [] };
        if Arc::get_mut(storage).and_then(|storage| storage.bytes_mut()).is_none() {
            *storage = Arc::new(AlignedBytes::<Line>::from(storage.bytes()));
        }
        Arc::get_mut(storage).and_then(|storage| storage.bytes_mut()).unwrap_or(&mut [])
    }

    /// What holds the bytes, shared with this tensor; `None` for strings.
    pub fn storage(&self) -> Option<Arc<dyn Storage>> {
        match &self.data {
            Data::Bytes(storage) => Some(storage.clone()),
            Data::Strings(_) => None,
        }
    }

    /// This tensor alone owns its bytes and may write them without a copy.
    pub fn is_exclusive(&mut self) -> bool {
        match &mut self.data {
            Data::Bytes(storage) => Arc::get_mut(storage).and_then(|storage| storage.bytes_mut()).is_some(),
            Data::Strings(strings) => Arc::get_mut(strings).is_some(),
        }
    }

    /// The elements as a slice.
    ///
    /// # Errors
    /// [`TensorError::ElementType`] where the tensor holds another type.
    pub fn elements<T: Element>(&self) -> Result<&[T], TensorError> {
        self.expect_dtype(T::DTYPE)?;
        // Every storage is aligned for the element types, so the cast fails for a wrong type only.
        bytemuck::try_cast_slice(self.bytes())
            .map_err(|_| TensorError::ElementType { expected: T::DTYPE, found: self.dtype })
    }

    /// The elements as a slice for writing; copies them first where they are shared.
    ///
    /// # Errors
    /// [`TensorError::ElementType`] where the tensor holds another type.
    pub fn elements_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.expect_dtype(T::DTYPE)?;
        let found = self.dtype;
        bytemuck::try_cast_slice_mut(self.bytes_mut())
            .map_err(|_| TensorError::ElementType { expected: T::DTYPE, found })
    }

    /// The booleans (one byte each, 0 or 1).
    ///
    /// # Errors
    /// [`TensorError::ElementType`] where the tensor holds another type.
    pub fn bools(&self) -> Result<Vec<bool>, TensorError> {
        self.expect_dtype(DType::Bool)?;
        Ok(self.bytes().iter().map(|&byte| byte != 0).collect())
    }

    /// The strings.
    ///
    /// # Errors
    /// [`TensorError::ElementType`] where the tensor holds another type.
    pub fn strings(&self) -> Result<&[String], TensorError> {
        match &self.data {
            Data::Strings(strings) => Ok(strings),
            Data::Bytes(_) => Err(TensorError::ElementType { expected: DType::String, found: self.dtype }),
        }
    }

    /// The strings as a vector, copied where another tensor has them too.
    ///
    /// # Errors
    /// [`TensorError::ElementType`] where the tensor holds another type.
    pub fn into_strings(self) -> Result<Vec<String>, TensorError> {
        match self.data {
            Data::Strings(strings) => Ok(Arc::unwrap_or_clone(strings)),
            Data::Bytes(_) => Err(TensorError::ElementType { expected: DType::String, found: self.dtype }),
        }
    }

    fn expect_dtype(&self, expected: DType) -> Result<(), TensorError> {
        if self.dtype == expected { Ok(()) } else { Err(TensorError::ElementType { expected, found: self.dtype }) }
    }

    /// The same elements under another shape; shares the bytes.
    ///
    /// # Errors
    /// [`TensorError::Size`] where the counts differ.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Tensor, TensorError> {
        if element_count(shape) != Some(self.count()) {
            let expected = element_count(shape).unwrap_or(usize::MAX);
            return Err(TensorError::Size { dtype: self.dtype, shape: shape.to_vec(), expected, found: self.count() });
        }
        Ok(Tensor { dtype: self.dtype, shape: Extents::from_slice(shape), data: self.data.clone() })
    }

    /// The elements from `first` on, in row-major order, that fill `shape`; shares the bytes. `None` where there are fewer, for
    /// strings, and for elements that are no whole bytes.
    #[must_use]
    pub fn part(&self, first: usize, shape: &[usize]) -> Option<Tensor> {
        let whole = self.storage().filter(|_| self.dtype.bits().is_multiple_of(8))?;
        let size = self.dtype.bits() / 8;
        let start = first.checked_mul(size)?;
        let end = element_count(shape)?.checked_mul(size)?.checked_add(start)?;
        whole.bytes().get(start..end)?;
        let data = Data::Bytes(Arc::new(Part { whole, bytes: start..end }));
        Some(Tensor { dtype: self.dtype, shape: Extents::from_slice(shape), data })
    }

    /// The same bits under another type of the same width (not strings); shares the bytes.
    ///
    /// # Errors
    /// [`TensorError::ElementType`] where widths differ.
    pub fn reinterpreted(&self, dtype: DType) -> Result<Tensor, TensorError> {
        if self.dtype.bits() != dtype.bits() {
            return Err(TensorError::ElementType { expected: dtype, found: self.dtype });
        }
        Ok(Tensor { dtype, shape: self.shape.clone(), data: self.data.clone() })
    }

    /// One byte an element, holding the element's bits in its low bits, for sub-byte types.
    pub fn codes(&self) -> Vec<u8> {
        unpack_codes(self.bytes(), self.dtype.bits(), self.count())
    }

    /// A tensor of a type of at most 8 bits from one code a byte.
    ///
    /// # Errors
    /// [`TensorError::Size`] where the count differs from the shape's; [`TensorError::TooLarge`] for wider types.
    pub fn from_codes(dtype: DType, shape: &[usize], codes: &[u8]) -> Result<Tensor, TensorError> {
        if !(1..=8).contains(&dtype.bits()) {
            return Err(TensorError::TooLarge { dtype, shape: shape.to_vec() });
        }
        if element_count(shape) != Some(codes.len()) {
            let expected = element_count(shape).unwrap_or(usize::MAX);
            return Err(TensorError::Size { dtype, shape: shape.to_vec(), expected, found: codes.len() });
        }
        Tensor::from_bytes(dtype, shape, &pack_codes(codes, dtype.bits()))
    }

    /// A tensor of `shape` whose element `i` is this tensor's element `indices[i]`, or zero (empty text) where `None`.
    /// Works for every element type; the plain way to move data in references.
    ///
    /// # Errors
    /// [`TensorError::Size`] where the number of indices differs from the shape's count or an index is out of range.
    pub fn select(&self, shape: &[usize], indices: impl Iterator<Item = Option<usize>>) -> Result<Tensor, TensorError> {
        let no_memory = || TensorError::Memory { dtype: self.dtype, shape: shape.to_vec() };
        let mut listed: Vec<Option<usize>> = Vec::new();
        listed.try_reserve_exact(indices.size_hint().0).map_err(|_| no_memory())?;
        listed.extend(indices);
        let indices = listed;
        let count = self.count();
        if let Some(index) = indices.iter().flatten().copied().find(|&index| index >= count) {
            return Err(TensorError::Index { dtype: self.dtype, shape: self.shape.to_vec(), count, index });
        }
        if let Data::Strings(strings) = &self.data {
            let chosen = indices.iter().map(|index| index.map_or_else(String::new, |at| strings[at].clone()));
            return Tensor::from_strings(shape, chosen.collect());
        }
        if self.dtype.is_sub_byte() {
            let codes = self.codes();
            let chosen: Vec<u8> = indices.iter().map(|index| index.map_or(0, |at| codes[at])).collect();
            return Tensor::from_codes(self.dtype, shape, &chosen);
        }
        let width = self.dtype.bits() / 8;
        let source = self.bytes();
        let mut chosen = AlignedBytes::<Line>::zeroed(indices.len().saturating_mul(width)).map_err(|_| no_memory())?;
        for (chosen, index) in chosen.chunks_exact_mut(width.max(1)).zip(indices) {
            if let Some(at) = index {
                chosen.copy_from_slice(&source[at * width..(at + 1) * width]);
            }
        }
        Tensor::over(self.dtype, shape, Arc::new(chosen))
    }
}

/// Spread packed elements of `bits` (1 to 8) bits, low bits first, to one byte each.
pub fn unpack_codes(bytes: &[u8], bits: usize, count: usize) -> Vec<u8> {
    if bits == 4 {
        let mut codes: Vec<u8> = bytes[..count.div_ceil(2)].iter().flat_map(|&byte| [byte & 0xf, byte >> 4]).collect();
        codes.truncate(count);
        return codes;
    }
    let mask = ((1u16 << bits) - 1) as u8;
    (0..count)
        .map(|index| {
            let bit = index * bits;
            let low = u16::from(bytes[bit / 8]);
            let high = bytes.get(bit / 8 + 1).map_or(0, |&byte| u16::from(byte));
            (((high << 8 | low) >> (bit % 8)) as u8) & mask
        })
        .collect()
}

/// Pack codes of `bits` (1 to 8) bits, low bits first.
pub fn pack_codes(codes: &[u8], bits: usize) -> Vec<u8> {
    let mask = ((1u16 << bits) - 1) as u8;
    let mut bytes = vec![0u8; (codes.len() * bits).div_ceil(8)];
    for (index, &code) in codes.iter().enumerate() {
        let bit = index * bits;
        let spread = u16::from(code & mask) << (bit % 8);
        bytes[bit / 8] |= spread as u8;
        if spread > 0xff {
            bytes[bit / 8 + 1] |= (spread >> 8) as u8;
        }
    }
    bytes
}

impl PartialEq for Tensor {
    /// Equal types, shapes and bits: NaN equals itself, 0.0 differs from -0.0.
    fn eq(&self, other: &Tensor) -> bool {
        if self.dtype != other.dtype || self.shape != other.shape {
            return false;
        }
        match (&self.data, &other.data) {
            (Data::Bytes(left), Data::Bytes(right)) => left.bytes() == right.bytes(),
            (Data::Strings(left), Data::Strings(right)) => left == right,
            (Data::Bytes(_), Data::Strings(_)) | (Data::Strings(_), Data::Bytes(_)) => false,
        }
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}{:?}", self.dtype, self.shape)?;
        if self.count() <= 16 {
            match &self.data {
                Data::Strings(strings) => write!(formatter, " {strings:?}")?,
                Data::Bytes(_) => crate::with_number!(
                    self.dtype,
                    T => write!(formatter, " {:?}", self.elements::<T>().unwrap_or(&[]))?,
                    otherwise write!(formatter, " {:?}", self.bytes())?
                ),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_at_every_width() {
        for bits in 1..=8 {
            let codes: Vec<u8> = (0..37u16).map(|index| (index * 11 % (1 << bits)) as u8).collect();
            assert_eq!(unpack_codes(&pack_codes(&codes, bits), bits, codes.len()), codes, "{bits} bits");
        }
        assert_eq!(pack_codes(&[1, 2, 3], 4), [0x21, 0x03]);
    }

    #[test]
    fn vectors_are_taken_over() {
        let elements = vec![1.0f32, 2.0, 3.0];
        let address = elements.as_ptr();
        let mut tensor = Tensor::from_vec(&[3], elements).unwrap();
        assert_eq!(tensor.elements::<f32>().unwrap().as_ptr(), address);
        assert!(tensor.is_exclusive());
        tensor.elements_mut::<f32>().unwrap()[1] = 7.0;
        assert_eq!(tensor.elements::<f32>().unwrap(), [1.0, 7.0, 3.0]);
        let error = Tensor::from_vec(&[2], vec![1u8]).unwrap_err();
        assert!(matches!(error, TensorError::Size { expected: 2, found: 1, .. }), "{error}");
    }

    #[test]
    fn parts_share_bytes_and_are_written_in_place_by_the_last() {
        let whole = Tensor::from_elements(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let address = whole.elements::<f32>().unwrap().as_ptr();
        let (mut first, mut second) = (whole.part(0, &[2]).unwrap(), whole.part(2, &[2, 2]).unwrap());
        drop(whole);
        assert_eq!(second.elements::<f32>().unwrap(), [3.0, 4.0, 5.0, 6.0]);
        assert!(!second.is_exclusive());
        first.elements_mut::<f32>().unwrap()[0] = 7.0;
        assert_eq!(first.elements::<f32>().unwrap(), [7.0, 2.0], "a copy: the second has the rest");
        assert!(second.is_exclusive());
        second.elements_mut::<f32>().unwrap()[3] = 8.0;
        assert_eq!(second.elements::<f32>().unwrap(), [3.0, 4.0, 5.0, 8.0]);
        assert_eq!(second.elements::<f32>().unwrap().as_ptr(), address.wrapping_add(2));
    }

    #[test]
    fn parts_beyond_the_end_or_of_no_whole_bytes_are_none() {
        let bytes = Tensor::from_elements(&[3], &[1u8, 2, 3]).unwrap();
        assert!(bytes.part(1, &[3]).is_none() && bytes.part(usize::MAX, &[1]).is_none());
        assert!(Tensor::from_codes(DType::U4, &[4], &[1, 2, 3, 4]).unwrap().part(2, &[2]).is_none());
        assert!(Tensor::from_strings(&[1], vec!["a".to_string()]).unwrap().part(0, &[1]).is_none());
    }

    #[test]
    fn writing_copies_shared_bytes() {
        let first = Tensor::from_elements(&[2], &[1.0f32, 2.0]).unwrap();
        let mut second = first.clone();
        second.elements_mut::<f32>().unwrap()[0] = 7.0;
        assert_eq!(first.elements::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(second.elements::<f32>().unwrap(), [7.0, 2.0]);
        assert!(second.is_exclusive());
    }

    #[test]
    fn select_moves_every_kind_of_element() {
        let strings = Tensor::from_strings(&[2], vec!["a".into(), "b".into()]).unwrap();
        let moved = strings.select(&[3], [Some(1), None, Some(0)].into_iter()).unwrap();
        assert_eq!(moved.strings().unwrap(), ["b", "", "a"]);
        let nibbles = Tensor::from_codes(DType::U4, &[3], &[1, 2, 3]).unwrap();
        assert_eq!(nibbles.select(&[2], [Some(2), Some(0)].into_iter()).unwrap().codes(), [3, 1]);
        let numbers = Tensor::vector_i64(&[5, 6]);
        assert_eq!(
            numbers.select(&[1], [Some(2)].into_iter()).unwrap_err().to_string(),
            "element 2 of i64[2] is asked for, which has 2"
        );
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(
            Tensor::from_bytes(DType::F32, &[2], &[0; 7]).unwrap_err().to_string(),
            "f32[2] needs 8 bytes, there are 7"
        );
        assert!(matches!(Tensor::zeros(DType::F64, &[usize::MAX, 2]), Err(TensorError::TooLarge { .. })));
        assert_eq!(Tensor::zeros(DType::F64, &[usize::MAX, 0]).unwrap().count(), 0);
    }
}
