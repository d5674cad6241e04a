//! The module `ipuc._native`: models, sessions and text for Python.
//!
//! Tensors cross the border as [`tensor::Tensor`], whose bytes Python and the runtime share; `ipuc/_arrays.py` makes NumPy
//! arrays of them. Runs release the lock of the interpreter.

mod model;
mod tensor;
mod text;
mod values;

use ipuc::OpenFileError;
use ipuc::compile::CompileError;
use ipuc::files::SourceFileError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::error::Error;

pyo3::create_exception!(ipuc, IpucError, pyo3::exceptions::PyRuntimeError, "What ipuc cannot do, and why.");

/// The error for Python: an `OSError` where a file is missing or cannot be read, else an `IpucError`.
fn raised(error: impl Error + 'static) -> PyErr {
    match source_error(&error) {
        Some(SourceFileError::Open { error: system, .. }) if system.raw_os_error().is_some() => {
            PyOSError::new_err((system.raw_os_error(), error.to_string()))
        }
        Some(_) | None => IpucError::new_err(error.to_string()),
    }
}

/// What is wrong with a file that was to be opened.
fn source_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a SourceFileError> {
    if let Some(CompileError::Source(error)) = error.downcast_ref() {
        return Some(error);
    }
    if let Some(OpenFileError::Source(error)) = error.downcast_ref() {
        return Some(error);
    }
    error.downcast_ref()
}

/// What Python finds in this library.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::IpucError;
    #[pymodule_export]
    use super::model::{Model, Session, compile};
    #[pymodule_export]
    use super::tensor::Tensor;
    #[pymodule_export]
    use super::text::TextModel;
}
