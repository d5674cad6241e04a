//! Sparse constants, spread out: ONNX operators take dense tensors only.
//!
//! Source: `SparseTensorProto` of the schema.

use super::data_field::TensorData;
use super::elements::signed;
use super::schema::{SparseTensorProto, TensorProto};
use super::tensor::TensorSource;
use super::tensor_fault::{TensorDataError, TensorFault};
use crate::dtype::DType;
use crate::limits::ONNX_SPARSE_BYTES;
use crate::read_at::ReadAt;
use crate::tensor::filled;
use crate::tensor::{Tensor, TensorError, element_count};

/// Why a sparse tensor could not be spread out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SparseError {
    /// A part is malformed.
    #[error(transparent)]
    Data(#[from] TensorDataError),
    /// A part is missing.
    #[error("sparse tensor `{name}` has no {part}")]
    Missing {
        /// Name of the sparse tensor.
        name: String,
        /// `values` or `indices`.
        part: &'static str,
    },
    /// A shape that cannot be.
    #[error("sparse tensor `{name}` has the shape {shape:?}, which is negative or takes more than {} MiB", ONNX_SPARSE_BYTES >> 20)]
    Shape {
        /// Name of the sparse tensor.
        name: String,
        /// Its shape.
        shape: Vec<i64>,
    },
    /// Values and indices that do not pair.
    #[error(
        "sparse tensor `{name}` of {rank} axes has values of shape {values:?} and {dtype} indices of shape {indices:?}, which do not pair"
    )]
    Parts {
        /// Name of the sparse tensor.
        name: String,
        /// Number of axes.
        rank: usize,
        /// Shape of the values.
        values: Vec<usize>,
        /// Shape of the indices.
        indices: Vec<usize>,
        /// Element type of the indices.
        dtype: DType,
    },
    /// An index outside, or not after the one before.
    #[error(
        "sparse tensor `{name}` has index {index:?} at place {place}, which is outside of {shape:?} or out of order"
    )]
    Index {
        /// Name of the sparse tensor.
        name: String,
        /// Which index.
        place: usize,
        /// The index.
        index: Vec<i64>,
        /// Shape of the sparse tensor.
        shape: Vec<i64>,
    },
}

/// The dense form of a sparse tensor: zeros, or empty text, where it has no value. `file` is the ONNX file;
/// external data is not followed.
///
/// # Errors
/// [`SparseError`] when a part is malformed, or an index is out of bounds or out of order.
pub fn dense_tensor(sparse: &SparseTensorProto, file: &dyn ReadAt) -> Result<Tensor, SparseError> {
    let name = sparse.values.as_ref().map(|values| values.name().to_owned()).unwrap_or_default();
    let part = |tensor: &Option<TensorProto>, part| {
        let tensor = tensor.as_ref().ok_or(SparseError::Missing { name: name.clone(), part })?;
        let source = TensorSource::of(tensor)?;
        if let TensorData::External(_) = source.data() {
            return Err(source.error(TensorFault::ExternalUnsupported).into());
        }
        Ok::<_, SparseError>(source.load(file)?)
    };
    let values = part(&sparse.values, "values")?;
    let indices = part(&sparse.indices, "indices")?;
    let shape = dense_shape(sparse, values.dtype())
        .ok_or_else(|| SparseError::Shape { name: name.clone(), shape: sparse.dims.clone() })?;
    let parts = || SparseError::Parts {
        name: name.clone(),
        rank: shape.len(),
        values: values.shape().to_vec(),
        indices: indices.shape().to_vec(),
        dtype: indices.dtype(),
    };
    let per_value = match (values.shape(), indices.shape()) {
        ([values], [indices]) if values == indices => 1,
        ([values], [indices, rank]) if values == indices && *rank == shape.len() => *rank,
        _ => return Err(parts()),
    };
    let linear = indices.shape().len() == 1;
    let indices = indices.elements::<i64>().map_err(|_| parts())?;
    let mut places = Vec::with_capacity(values.count());
    for place in 0..values.count() {
        let index = &indices[place * per_value..(place + 1) * per_value];
        let position = if linear { bounded(index[0], count(&shape)) } else { position(index, &shape) };
        let position = position.filter(|position| places.last().is_none_or(|last| position > last));
        places.push(position.ok_or_else(|| SparseError::Index {
            name: name.clone(),
            place,
            index: index.to_vec(),
            shape: signed(&shape),
        })?);
    }
    spread(&values, &shape, &places).map_err(|_| SparseError::Shape { name: name.clone(), shape: sparse.dims.clone() })
}

fn count(shape: &[usize]) -> usize {
    element_count(shape).unwrap_or(usize::MAX)
}

/// The shape, if a dense tensor of it may be made.
fn dense_shape(sparse: &SparseTensorProto, dtype: DType) -> Option<Vec<usize>> {
    let shape: Option<Vec<usize>> = sparse.dims.iter().map(|extent| usize::try_from(*extent).ok()).collect();
    let shape = shape?;
    let count = element_count(&shape)?;
    let bytes = match dtype {
        DType::String => count.checked_mul(size_of::<String>())?,
        _ => dtype.packed_bytes(count)?,
    };
    (bytes as u64 <= ONNX_SPARSE_BYTES).then_some(shape)
}

fn bounded(index: i64, extent: usize) -> Option<usize> {
    usize::try_from(index).ok().filter(|index| *index < extent)
}

/// Row-major position of an index with one number an axis.
fn position(index: &[i64], shape: &[usize]) -> Option<usize> {
    let mut axes = index.iter().zip(shape);
    axes.try_fold(0, |position, (index, extent)| Some(position * extent + bounded(*index, *extent)?))
}

/// A tensor of zeros with the values at the places.
fn spread(values: &Tensor, shape: &[usize], places: &[usize]) -> Result<Tensor, TensorError> {
    let dtype = values.dtype();
    if dtype == DType::String {
        let mut text = filled(String::new(), count(shape))?;
        for (value, place) in values.strings()?.iter().zip(places) {
            text[*place].clone_from(value);
        }
        return Tensor::from_strings(shape, text);
    }
    if dtype.is_sub_byte() {
        let mut codes = filled(0, count(shape))?;
        for (code, place) in values.codes().iter().zip(places) {
            codes[*place] = *code;
        }
        return Tensor::from_codes(dtype, shape, &codes);
    }
    let width = dtype.bits() / 8;
    let mut tensor = Tensor::zeros(dtype, shape)?;
    let bytes = tensor.bytes_mut();
    for (value, place) in values.bytes().chunks_exact(width).zip(places) {
        bytes[place * width..(place + 1) * width].copy_from_slice(value);
    }
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: DType, dims: &[i64]) -> TensorProto {
        TensorProto {
            dims: dims.to_vec(),
            data_type: Some(dtype.onnx_code()),
            name: Some("w".into()),
            ..TensorProto::default()
        }
    }

    fn sparse(dims: &[i64], indices: &[i64], index_dims: &[i64]) -> SparseTensorProto {
        let count = index_dims[0];
        let values =
            TensorProto { float_data: (1..=count).map(|value| value as f32).collect(), ..tensor(DType::F32, &[count]) };
        let indices = TensorProto { int64_data: indices.to_vec(), ..tensor(DType::I64, index_dims) };
        SparseTensorProto { values: Some(values), indices: Some(indices), dims: dims.to_vec() }
    }

    fn dense(sparse: &SparseTensorProto) -> Result<Tensor, String> {
        dense_tensor(sparse, &[0u8; 0]).map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_of_indices() {
        let expected = Tensor::from_elements(&[2, 3], &[0.0f32, 1.0, 0.0, 0.0, 0.0, 2.0]);
        let expected = expected.map_err(|error| error.to_string());
        assert_eq!(dense(&sparse(&[2, 3], &[1, 5], &[2])), expected);
        assert_eq!(dense(&sparse(&[2, 3], &[0, 1, 1, 2], &[2, 2])), expected);
        assert_eq!(dense(&sparse(&[2], &[], &[0])), Ok(Tensor::from_elements(&[2], &[0.0f32; 2]).unwrap()));
    }

    #[test]
    fn every_kind_of_element() {
        let values = TensorProto { int32_data: vec![0x21], ..tensor(DType::U4, &[2]) };
        let nibbles = SparseTensorProto { values: Some(values), ..sparse(&[3], &[0, 2], &[2]) };
        assert_eq!(dense(&nibbles).unwrap().codes(), [1, 0, 2]);
        let values = TensorProto { string_data: vec![b"a".to_vec(), b"b".to_vec()], ..tensor(DType::String, &[2]) };
        let text = SparseTensorProto { values: Some(values), ..nibbles };
        assert_eq!(dense(&text).unwrap().strings().unwrap(), ["a", "", "b"]);
    }

    #[test]
    fn indices_are_checked() {
        for indices in [[5, 1], [1, 1], [-1, 2], [0, 6]] {
            assert!(dense(&sparse(&[2, 3], &indices, &[2])).unwrap_err().contains("out of order"), "{indices:?}");
        }
        assert!(dense(&sparse(&[2, 3], &[0, 3], &[1, 2])).unwrap_err().contains("[0, 3]"));
        assert!(dense(&sparse(&[2, 3], &[0, 1, 2], &[1, 3])).unwrap_err().contains("2 axes"));
    }

    #[test]
    fn shapes_are_bounded() {
        for dims in [[-1, 3], [1 << 40, 1], [1 << 40, 1 << 40]] {
            assert!(dense(&sparse(&dims, &[0], &[1])).unwrap_err().contains("takes more than"), "{dims:?}");
        }
        let missing = SparseTensorProto { indices: None, ..sparse(&[1], &[0], &[1]) };
        assert_eq!(dense(&missing).unwrap_err(), "sparse tensor `w` has no indices");
    }
}
