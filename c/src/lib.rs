//! ipuc for C: the functions that `include/ipuc.h` declares.
//!
//! What a function gives is freed with the function of the same noun; what it takes stays the caller's, and is not used
//! after it returns. Errors are sentences, kept for each thread until its next failure.

use ipuc::compile::{CompileOptions, Source};
use ipuc::{DType, OpenOptions, SessionOptions, Tensor, Value};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// The result, or nothing and a sentence for [`ipuc_error`].
fn told<T>(result: Result<T, String>) -> Option<T> {
    result
        .map_err(|error| {
            let sentence = CString::new(error.replace('\0', " ")).unwrap_or_default();
            ERROR.with_borrow_mut(|last| *last = sentence);
        })
        .ok()
}

/// A pointer for C.
fn given<T>(result: Result<T, String>) -> *mut T {
    told(result).map_or(std::ptr::null_mut(), |value| Box::into_raw(Box::new(value)))
}

/// The text of a C string.
///
/// # Safety
/// The pointer is NULL or that of a string that ends with a zero.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, String> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| format!("{what} is not UTF-8"))
}

/// # Safety
/// As [`text`].
unsafe fn required<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, String> {
    // SAFETY: as the caller says.
    unsafe { text(pointer, what) }?.ok_or_else(|| format!("{what} is NULL"))
}

/// # Safety
/// The pointer is NULL or one that this library gave and that is not freed.
unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, String> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or_else(|| format!("{what} is NULL"))
}

/// # Safety
/// As [`object`], and nobody else uses it meanwhile.
unsafe fn object_mut<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, String> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_mut() }.ok_or_else(|| format!("{what} is NULL"))
}

/// # Safety
/// The pointer is NULL, or one that [`given`] made and that is not used afterwards.
unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: as the caller says.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// An opened file, which sessions share.
pub struct IpucModel {
    model: ipuc::Model,
}

/// State of one caller.
pub struct IpucSession {
    session: ipuc::Session,
}

/// What a run gave.
pub struct IpucOutputs {
    outputs: Vec<Output>,
}

struct Output {
    name: CString,
    tensor: Tensor,
}

/// A dense tensor, row-major. `data_type` is a number of ONNX's `TensorProto.DataType` (1 is float, 7 is int64_t); elements
/// of less than a byte are packed, the first in the lowest bits. Strings are not supported.
#[repr(C)]
pub struct IpucTensor {
    /// Name of the input or output.
    pub name: *const c_char,
    /// Element type.
    pub data_type: i32,
    /// Number of axes.
    pub rank: usize,
    /// Extent of each axis.
    pub shape: *const usize,
    /// The elements.
    pub data: *const c_void,
    /// Length of the elements in bytes.
    pub bytes: usize,
}

/// Why the last function of this thread that failed did: a sentence, valid until the next one fails. Empty where none has.
#[unsafe(no_mangle)]
pub extern "C" fn ipuc_error() -> *const c_char {
    ERROR.with_borrow(|last| last.as_ptr())
}

/// Compile a model (an .onnx file) into a file (.ipu).
///
/// # Safety
/// Both are strings that end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_compile(model: *const c_char, output: *const c_char) -> bool {
    let compile = || {
        // SAFETY: as the caller says.
        let (model, output) = unsafe { (required(model, "the model")?, required(output, "the output")?) };
        let source = Source { entry: "main".to_string(), path: PathBuf::from(model) };
        ipuc::compile(&[source], output.as_ref(), &CompileOptions::default()).map_err(|error| error.to_string())
    };
    told(compile()).is_some()
}

/// Open an .ipu file. `memory_bytes` bounds weights, activations, state, inputs and outputs: weights that do not fit are
/// streamed from the file; 0 is what the machine has.
///
/// # Safety
/// The path is a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_model_open(path: *const c_char, memory_bytes: u64) -> *mut IpucModel {
    let open = || {
        // SAFETY: as the caller says.
        let path = unsafe { required(path, "the path") }?;
        let memory_bytes = (memory_bytes > 0).then_some(memory_bytes);
        let options = OpenOptions { memory_bytes, ..OpenOptions::default() };
        ipuc::open_with(path, options).map(|model| IpucModel { model }).map_err(|error| error.to_string())
    };
    given(open())
}

/// Free a model; its sessions stay.
///
/// # Safety
/// It is NULL or a model that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_model_free(model: *mut IpucModel) {
    // SAFETY: as the caller says.
    unsafe { free(model) }
}

/// A session with fresh state; 0 threads are all cores.
///
/// # Safety
/// The model is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_session_new(model: *const IpucModel, threads: usize) -> *mut IpucSession {
    let make = || {
        // SAFETY: as the caller says.
        let model = unsafe { object(model, "the model") }?;
        let options = SessionOptions { threads, ..SessionOptions::default() };
        let session = ipuc::Session::new(&model.model, &options).map_err(|error| error.to_string())?;
        Ok(IpucSession { session })
    };
    given(make())
}

/// Another session with the same state, from which both go their own ways.
///
/// # Safety
/// The session is not freed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_session_fork(session: *const IpucSession) -> *mut IpucSession {
    // SAFETY: as the caller says.
    let session = unsafe { object(session, "the session") };
    given(session.map(|session| IpucSession { session: session.session.fork() }))
}

/// Forget all state.
///
/// # Safety
/// The session is not freed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_session_reset(session: *mut IpucSession) -> bool {
    // SAFETY: as the caller says.
    let session = unsafe { object_mut(session, "the session") };
    told(session.map(|session| session.session.reset())).is_some()
}

/// Free a session.
///
/// # Safety
/// It is NULL or a session that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_session_free(session: *mut IpucSession) {
    // SAFETY: as the caller says.
    unsafe { free(session) }
}

/// Run an entry (NULL where there is only one) on so many inputs, which are copied.
///
/// # Safety
/// The session is not freed and no other thread uses it; the inputs are as their fields say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_run(
    session: *mut IpucSession,
    entry: *const c_char,
    inputs: *const IpucTensor,
    input_count: usize,
) -> *mut IpucOutputs {
    let run = || {
        // SAFETY: as the caller says.
        let session = unsafe { object_mut(session, "the session") }?;
        // SAFETY: as the caller says.
        let entry = unsafe { text(entry, "the entry") }?;
        // SAFETY: as the caller says.
        let inputs = unsafe { slice(inputs, input_count, "the inputs") }?;
        // SAFETY: as the caller says.
        let values = inputs.iter().map(|input| unsafe { value(input) }).collect::<Result<Vec<_>, String>>()?;
        let found = session.session.run(entry, values).map_err(|error| error.to_string())?;
        Ok(IpucOutputs { outputs: found.into_iter().map(output).collect::<Result<_, _>>()? })
    };
    given(run())
}

/// # Safety
/// The pointer is that of so many elements, or there are none.
unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], String> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(format!("{what} are NULL"));
    }
    // SAFETY: as the caller says.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// # Safety
/// The fields are as they say.
unsafe fn value(input: &IpucTensor) -> Result<(String, Value), String> {
    // SAFETY: as the caller says.
    let name = unsafe { required(input.name, "the name of an input") }?;
    let unknown = || format!("input `{name}`: there is no element type {}", input.data_type);
    let dtype = DType::from_onnx(input.data_type).ok_or_else(unknown)?;
    if dtype == DType::String {
        return Err(format!("input `{name}` is of strings, which are not supported here"));
    }
    // SAFETY: as the caller says.
    let shape = unsafe { slice(input.shape, input.rank, "the extents of an input") }?;
    // SAFETY: as the caller says.
    let bytes = unsafe { slice(input.data.cast::<u8>(), input.bytes, "the elements of an input") }?;
    let tensor = Tensor::from_bytes(dtype, shape, bytes).map_err(|error| format!("input `{name}`: {error}"))?;
    Ok((name.to_string(), tensor.into()))
}

fn output((name, value): (String, Value)) -> Result<Output, String> {
    let Value::Tensor(tensor) = value else { return Err(format!("output `{name}` is no tensor")) };
    if tensor.dtype() == DType::String {
        return Err(format!("output `{name}` is of strings, which are not supported here"));
    }
    let c_name = CString::new(name.as_str()).map_err(|_| format!("output `{name}` has a zero in its name"))?;
    Ok(Output { name: c_name, tensor })
}

/// The number of outputs.
///
/// # Safety
/// The outputs are NULL or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_outputs_count(outputs: *const IpucOutputs) -> usize {
    // SAFETY: as the caller says.
    unsafe { outputs.as_ref() }.map_or(0, |outputs| outputs.outputs.len())
}

/// Fill in an output by its number, or by its name where that is not NULL; what it points to lives as long as the outputs.
///
/// # Safety
/// The outputs are not freed, the name is NULL or a string that ends with a zero, and the tensor may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_outputs_get(
    outputs: *const IpucOutputs,
    index: usize,
    name: *const c_char,
    tensor: *mut IpucTensor,
) -> bool {
    let find = || {
        // SAFETY: as the caller says.
        let outputs = unsafe { object(outputs, "the outputs") }?;
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of an output") }?;
        let found = match name {
            Some(name) => outputs.outputs.iter().find(|output| output.name.to_bytes() == name.as_bytes()),
            None => outputs.outputs.get(index),
        };
        let known =
            || outputs.outputs.iter().map(|output| output.name.to_string_lossy()).collect::<Vec<_>>().join(", ");
        let missing = || match name {
            Some(name) => format!("there is no output `{name}`; outputs are {}", known()),
            None => format!("there is no output {index}; outputs are {}", known()),
        };
        let found = found.ok_or_else(missing)?;
        // SAFETY: as the caller says.
        let target = unsafe { object_mut(tensor, "the tensor") }?;
        *target = IpucTensor {
            name: found.name.as_ptr(),
            data_type: found.tensor.dtype().onnx_code(),
            rank: found.tensor.rank(),
            shape: found.tensor.shape().as_ptr(),
            data: found.tensor.bytes().as_ptr().cast(),
            bytes: found.tensor.bytes().len(),
        };
        Ok(())
    };
    told(find()).is_some()
}

/// Free outputs.
///
/// # Safety
/// They are NULL or not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipuc_outputs_free(outputs: *mut IpucOutputs) {
    // SAFETY: as the caller says.
    unsafe { free(outputs) }
}
