//! Tensors whose bytes Python and the runtime share.

use crate::raised;
use ipuc::{DType, Storage};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Arc;

/// Bytes of an object of Python; it lives for as long as a tensor has them.
struct Borrowed(PyUntypedBuffer);

impl Storage for Borrowed {
    fn bytes(&self) -> &[u8] {
        let length = self.0.len_bytes();
        if length == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous, which `Tensor::over` has checked, and is held until this is dropped. That nobody
        // writes to it during a run is asked of callers of `Session.run`.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), length) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// A tensor: `dtype` as ipuc names it, `shape`, and the bytes by the buffer protocol.
#[pyclass(frozen, module = "ipuc._native")]
pub struct Tensor {
    /// The tensor.
    pub tensor: ipuc::Tensor,
    /// Where the bytes are and how many, and whether nobody else has them.
    place: (*mut u8, usize, bool),
}

// SAFETY: the pointer is into the tensor's own bytes, which are sent with it; it is followed by Python only.
unsafe impl Send for Tensor {}
// SAFETY: as above; this crate does not follow the pointer.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// A tensor for Python.
    pub fn new(mut tensor: ipuc::Tensor) -> Tensor {
        let place = if tensor.is_exclusive() {
            let bytes = tensor.bytes_mut();
            (bytes.as_mut_ptr(), bytes.len(), true)
        } else {
            (tensor.bytes().as_ptr().cast_mut(), tensor.bytes().len(), false)
        };
        Tensor { tensor, place }
    }
}

#[pymethods]
impl Tensor {
    /// A tensor over the bytes of a contiguous buffer, which must not change for as long as the tensor is used. They are
    /// copied only where they do not begin at a multiple of 16.
    #[staticmethod]
    fn over(dtype: &str, shape: Vec<usize>, buffer: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let dtype = dtype_of(dtype)?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the buffer is not contiguous"));
        }
        let aligned = (buffer.buf_ptr() as usize).is_multiple_of(16);
        let borrowed = Borrowed(buffer);
        let tensor = if aligned {
            ipuc::Tensor::over(dtype, &shape, Arc::new(borrowed))
        } else {
            ipuc::Tensor::from_bytes(dtype, &shape, borrowed.bytes())
        };
        Ok(Tensor::new(tensor.map_err(raised)?))
    }

    /// A tensor of texts.
    #[staticmethod]
    fn of_strings(shape: Vec<usize>, elements: Vec<String>) -> PyResult<Tensor> {
        ipuc::Tensor::from_strings(&shape, elements).map(Tensor::new).map_err(raised)
    }

    /// A tensor of elements of less than a byte, from one code a byte.
    #[staticmethod]
    fn of_codes(dtype: &str, shape: Vec<usize>, codes: &[u8]) -> PyResult<Tensor> {
        ipuc::Tensor::from_codes(dtype_of(dtype)?, &shape, codes).map(Tensor::new).map_err(raised)
    }

    /// Element type, as ipuc names it.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.tensor.dtype().name()
    }

    /// Extent of each axis.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.tensor.shape().to_vec()
    }

    /// All texts; the last axis runs fastest.
    fn strings(&self) -> PyResult<Vec<String>> {
        self.tensor.strings().map(<[String]>::to_vec).map_err(raised)
    }

    /// One code a byte, of elements of less than a byte.
    fn codes(&self) -> Vec<u8> {
        self.tensor.codes()
    }

    /// The bytes, which Python may write where nobody else has them.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view is given"));
        }
        let (pointer, length, exclusive) = slf.get().place;
        let length = ffi::Py_ssize_t::try_from(length).map_err(|_| PyBufferError::new_err("too many bytes"))?;
        // SAFETY: Python gives a view to fill; the bytes live as long as this object, which the view holds. They are
        // written through the view only where no other tensor has them.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer.cast(), length, c_int::from(!exclusive), flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

fn dtype_of(name: &str) -> PyResult<DType> {
    ipuc::formats::dtype::parse(name).ok_or_else(|| PyTypeError::new_err(format!("there is no element type `{name}`")))
}
