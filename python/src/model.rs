//! Compiling, opening and running models.

use crate::values::{from_python, to_python};
use crate::{IpucError, raised};
use ipuc::compile::{Activations, Budget, CompileOptions, Source, WeightOptions, folder};
use ipuc::formats::ops::RowScheme;
use ipuc::{OpenOptions, Resident, SessionOptions, Type, Value};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// A dimension: one size, or the least and the greatest.
#[derive(FromPyObject)]
pub enum Range {
    /// The only size.
    Size(i64),
    /// Both ends, which it may have.
    Ends(i64, i64),
}

/// Compile models, each under the name of its entry; gives the path of the file.
#[pyfunction]
#[pyo3(signature = (models, output, *, states, dimensions, weights, size, max_error, keep, weights_for, activations, cache, unfused, memory, external_data_roots))]
#[allow(clippy::too_many_arguments, reason = "they are named in Python")]
pub fn compile(
    py: Python<'_>,
    models: Vec<(String, PathBuf)>,
    output: PathBuf,
    states: Vec<String>,
    dimensions: BTreeMap<String, Range>,
    weights: Option<&str>,
    size: Option<u64>,
    max_error: Option<f64>,
    keep: Vec<String>,
    weights_for: Vec<(String, String)>,
    activations: Option<&str>,
    cache: Option<&str>,
    unfused: bool,
    memory: Option<u64>,
    external_data_roots: Vec<PathBuf>,
) -> PyResult<PathBuf> {
    let precision = |text: &str| text.parse().map_err(PyValueError::new_err);
    let each = weights_for.iter().map(|(pattern, text)| Ok((pattern.clone(), precision(text)?)));
    let mut options = CompileOptions {
        states,
        weights: WeightOptions {
            precision: weights.map(precision).transpose()?,
            budget: match (size, max_error) {
                (Some(_), Some(_)) => return Err(PyValueError::new_err("`size` and `max_error` exclude each other")),
                (Some(bytes), None) => Some(Budget::Size(bytes)),
                (None, most) => most.map(Budget::Error),
            },
            keep,
            each: each.collect::<PyResult<_>>()?,
        },
        activations: match activations {
            None => Activations::Model,
            Some("keep") => Activations::Keep,
            Some("i8") => Activations::I8,
            Some(other) => return Err(unknown("activations", other, "`keep` or `i8`")),
        },
        cache: match cache {
            None => None,
            Some("f16") => Some(RowScheme::F16),
            Some("i8") => Some(RowScheme::I8),
            Some(other) => return Err(unknown("cache", other, "`f16` or `i8`")),
        },
        unfused,
        memory,
        external_data_roots,
        ..CompileOptions::default()
    };
    for (name, range) in dimensions {
        let (minimum, maximum) = match range {
            Range::Size(size) => (size, size),
            Range::Ends(minimum, maximum) => (minimum, maximum),
        };
        if minimum == maximum {
            options.dimensions.insert(name.as_str(), minimum);
        }
        options.ranges.push((name, minimum, maximum));
    }
    py.detach(|| {
        let mut sources: Vec<Source> = models.into_iter().map(|(entry, path)| Source { entry, path }).collect();
        if let [model] = sources.as_slice()
            && model.path.is_dir()
        {
            sources = folder::read(&model.path).map_err(raised)?.apply(&mut options);
        }
        ipuc::compile(&sources, &output, &options).map_err(raised)?;
        Ok(output)
    })
}

fn unknown(argument: &str, found: &str, expected: &str) -> PyErr {
    PyValueError::new_err(format!("{argument} is {expected}, not `{found}`"))
}

/// An opened file, which sessions share.
#[pyclass(frozen, module = "ipuc._native")]
pub struct Model {
    pub(crate) model: ipuc::Model,
}

/// Name and type of an input or output.
type Named = (String, String);

#[pymethods]
impl Model {
    /// Open an `.ipu` file.
    #[staticmethod]
    #[pyo3(signature = (path, *, memory, context, spill, shared))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        memory: Option<u64>,
        context: Option<u64>,
        spill: Option<PathBuf>,
        shared: bool,
    ) -> PyResult<Model> {
        let resident = if shared { Resident::Map } else { Resident::Copy };
        let options =
            OpenOptions { memory_bytes: memory, context, spill_folder: spill, resident, ..OpenOptions::default() };
        py.detach(|| ipuc::open_with(path, options)).map(|model| Model { model }).map_err(raised)
    }

    /// Names of the entries.
    fn entries(&self) -> Vec<String> {
        self.model.manifest().entries.iter().map(|entry| entry.name.clone()).collect()
    }

    /// Names and types of what a caller gives to an entry.
    #[pyo3(signature = (entry=None))]
    fn inputs(&self, entry: Option<&str>) -> PyResult<Vec<Named>> {
        let entry = self.model.entry(entry).map_err(raised)?;
        Ok(self.model.inputs(entry).into_iter().map(|port| (port.name, port.kind.to_string())).collect())
    }

    /// Names of what an entry gives.
    #[pyo3(signature = (entry=None))]
    fn outputs(&self, entry: Option<&str>) -> PyResult<Vec<String>> {
        Ok(self.model.outputs(self.model.entry(entry).map_err(raised)?))
    }

    /// Names of the states.
    fn states(&self) -> Vec<String> {
        self.model.manifest().states.iter().map(|state| state.name.clone()).collect()
    }

    /// A session with fresh state.
    #[pyo3(signature = (threads=0, seed=0))]
    fn session(&self, threads: usize, seed: u64) -> PyResult<Session> {
        let session = ipuc::Session::new(&self.model, &SessionOptions { threads, seed }).map_err(raised)?;
        Ok(Session { model: self.model.clone(), session })
    }
}

/// State and options of one caller.
#[pyclass(module = "ipuc._native")]
pub struct Session {
    model: ipuc::Model,
    session: ipuc::Session,
}

#[pymethods]
impl Session {
    /// Run an entry on inputs by name; gives its outputs by name.
    ///
    /// Arrays are not copied where their elements lie one after another; they must not change during the run.
    #[pyo3(signature = (inputs, entry=None))]
    fn run<'py>(
        &mut self,
        py: Python<'py>,
        inputs: HashMap<String, Bound<'py, PyAny>>,
        entry: Option<&str>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let ports = self.model.inputs(self.model.entry(entry).map_err(raised)?);
        let mut given: Vec<(String, Value)> = Vec::with_capacity(ports.len());
        for (name, object) in &inputs {
            let Some(port) = ports.iter().find(|port| port.name == *name) else {
                let known: Vec<String> = ports.iter().map(|port| format!("`{}`", port.name)).collect();
                let message = format!("there is no input `{name}`; inputs are {}", known.join(", "));
                return Err(IpucError::new_err(message));
            };
            given.push((name.clone(), from_python(object, &port.kind)?));
        }
        for port in ports.iter().filter(|port| !inputs.contains_key(&port.name)) {
            if let Type::Optional(element) = &port.kind {
                given.push((port.name.clone(), Value::Optional { element: (**element).clone(), value: None }));
            }
        }
        let borrowed = Borrowed::of(&given);
        let outputs = py.detach(|| self.session.run(entry, given)).map_err(raised)?;
        self.own_states(&borrowed)?;
        let result = PyDict::new(py);
        for (name, value) in outputs {
            result.set_item(name, to_python(py, borrowed.copied(value)?)?)?;
        }
        Ok(result)
    }

    /// Another session with the same state, from which both go their own ways.
    fn fork(&self) -> Session {
        Session { model: self.model.clone(), session: self.session.fork() }
    }

    /// Forget all state.
    fn reset(&mut self) {
        self.session.reset();
    }

    /// Take back all positions of growing states but the first ones.
    fn truncate(&mut self, positions: usize) -> PyResult<()> {
        self.session.truncate(positions).map_err(raised)
    }

    /// Contents of a state; `None` where no run and nobody else has set them.
    fn state(&self, py: Python<'_>, name: &str) -> PyResult<Option<Py<PyAny>>> {
        let value = self.session.state(name).map_err(raised)?;
        // The session keeps its own: what Python may write is a copy.
        value.map(|value| to_python(py, deep_copy(value)?)).transpose()
    }

    /// Give a state other contents.
    fn set_state(&mut self, name: &str, contents: &Bound<'_, PyAny>) -> PyResult<()> {
        let manifest = self.model.manifest();
        let number = manifest.states.iter().position(|state| state.name == name);
        let kinds = manifest.entries.iter().flat_map(|entry| {
            let block = &manifest.blocks[entry.block as usize];
            let used = entry.states.iter().filter(|used| Some(used.state as usize) == number);
            used.filter_map(|used| Some(&block.values[used.input? as usize].kind))
        });
        let kind = kinds.into_iter().next();
        let kind = kind.ok_or_else(|| IpucError::new_err(format!("there is no state `{name}` that an entry reads")))?;
        let value = deep_copy(from_python(contents, kind)?)?;
        self.session.set_state(name, value).map_err(raised)
    }

    /// All state as bytes.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let mut bytes = Vec::new();
        self.session.save(&mut bytes).map_err(raised)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Put saved state in place of the present one.
    fn restore(&mut self, saved: &[u8]) -> PyResult<()> {
        self.session.restore(&mut &*saved).map_err(raised)
    }
}

impl Session {
    /// State must not lie in arrays of the caller, who may write to them later.
    fn own_states(&mut self, borrowed: &Borrowed) -> PyResult<()> {
        if !borrowed.is_held() {
            return Ok(());
        }
        let names: Vec<String> = self.model.manifest().states.iter().map(|state| state.name.clone()).collect();
        for name in names {
            match self.session.state(&name).map_err(raised)? {
                Some(value) if borrowed.has(&value) => {
                    self.session.set_state(&name, deep_copy(value)?).map_err(raised)?;
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}

/// Where inputs lie that are the caller's.
struct Borrowed {
    storages: Vec<std::sync::Weak<dyn ipuc::Storage>>,
    ranges: Vec<std::ops::Range<usize>>,
}

impl Borrowed {
    fn of(values: &[(String, Value)]) -> Borrowed {
        let mut borrowed = Borrowed { storages: Vec::new(), ranges: Vec::new() };
        values.iter().for_each(|(_, value)| borrowed.add(value));
        borrowed
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::Tensor(tensor) => {
                self.storages.extend(tensor.storage().map(|storage| std::sync::Arc::downgrade(&storage)));
                self.ranges.push(range(tensor));
            }
            Value::Sequence { items, .. } => items.iter().for_each(|item| self.add(item)),
            Value::Optional { value, .. } => value.iter().for_each(|value| self.add(value)),
            Value::Map { entries, .. } => entries.iter().for_each(|(_, value)| self.add(value)),
        }
    }

    /// Somebody has an input after the run.
    fn is_held(&self) -> bool {
        self.storages.iter().any(|storage| storage.strong_count() > 0)
    }

    fn has(&self, value: &Value) -> bool {
        match value {
            Value::Tensor(tensor) => {
                let found = range(tensor);
                self.ranges.iter().any(|input| input.start < found.end && found.start < input.end)
            }
            Value::Sequence { items, .. } => items.iter().any(|item| self.has(item)),
            Value::Optional { value, .. } => value.iter().any(|value| self.has(value)),
            Value::Map { entries, .. } => entries.iter().any(|(_, value)| self.has(value)),
        }
    }

    /// The value, copied where it lies in an input.
    fn copied(&self, value: Value) -> PyResult<Value> {
        if self.has(&value) { deep_copy(value) } else { Ok(value) }
    }
}

/// Addresses of a tensor's bytes.
fn range(tensor: &ipuc::Tensor) -> std::ops::Range<usize> {
    let start = tensor.bytes().as_ptr() as usize;
    start..start + tensor.bytes().len()
}

fn deep_copy(value: Value) -> PyResult<Value> {
    Ok(match value {
        Value::Tensor(tensor) => Value::Tensor(match tensor.strings() {
            // Texts are shared with nobody who could change them.
            Ok(_) => tensor,
            Err(_) => ipuc::Tensor::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes()).map_err(raised)?,
        }),
        Value::Sequence { element, items } => {
            Value::Sequence { element, items: items.into_iter().map(deep_copy).collect::<PyResult<_>>()? }
        }
        Value::Optional { element, value } => {
            Value::Optional { element, value: value.map(|value| deep_copy(*value).map(Box::new)).transpose()? }
        }
        Value::Map { key, element, entries } => {
            let copied = entries.into_iter().map(|(key, value)| Ok((key, deep_copy(value)?)));
            Value::Map { key, element, entries: copied.collect::<PyResult<_>>()? }
        }
    })
}
