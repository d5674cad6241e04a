//! Values of Python and values of models: arrays, lists, dictionaries, and None for what is optional.

use crate::tensor::Tensor;
use ipuc::{DType, Type, Value};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// The value of a type that an object stands for.
pub fn from_python(object: &Bound<'_, PyAny>, kind: &Type) -> PyResult<Value> {
    match kind {
        Type::Tensor { dtype, .. } => tensor(object, *dtype).map(Value::Tensor),
        Type::Sequence(element) => {
            let items = object.try_iter()?.map(|item| from_python(&item?, element));
            Ok(Value::Sequence { element: (**element).clone(), items: items.collect::<PyResult<_>>()? })
        }
        Type::Optional(element) => {
            let value = if object.is_none() { None } else { Some(Box::new(from_python(object, element)?)) };
            Ok(Value::Optional { element: (**element).clone(), value })
        }
        Type::Map { key, element } => {
            let given: &Bound<'_, PyDict> =
                object.cast().map_err(|_| PyTypeError::new_err(format!("a dictionary is needed for {kind}")))?;
            let mut entries = Vec::with_capacity(given.len());
            for (name, value) in given.iter() {
                entries.push((tensor(&name, *key)?, from_python(&value, element)?));
            }
            Ok(Value::Map { key: *key, element: (**element).clone(), entries })
        }
    }
}

fn tensor(object: &Bound<'_, PyAny>, dtype: DType) -> PyResult<ipuc::Tensor> {
    let made = object.py().import("ipuc._arrays")?.call_method1("to_tensor", (object, dtype.name()))?;
    let made: &Bound<'_, Tensor> = made.cast().map_err(PyErr::from)?;
    Ok(made.get().tensor.clone())
}

/// The object for a value.
pub fn to_python(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    match value {
        Value::Tensor(tensor) => {
            let tensor = Py::new(py, Tensor::new(tensor))?;
            Ok(py.import("ipuc._arrays")?.call_method1("to_array", (tensor,))?.unbind())
        }
        Value::Sequence { items, .. } => {
            let items = items.into_iter().map(|item| to_python(py, item)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, items)?.into_any().unbind())
        }
        Value::Optional { value: None, .. } => Ok(py.None()),
        Value::Optional { value: Some(value), .. } => to_python(py, *value),
        Value::Map { entries, .. } => {
            let dictionary = PyDict::new(py);
            for (key, value) in entries {
                let key = to_python(py, Value::Tensor(key))?.call_method0(py, "item")?;
                dictionary.set_item(key, to_python(py, value)?)?;
            }
            Ok(dictionary.into_any().unbind())
        }
    }
}
