//! ipuc compiles ONNX models into execution-ordered `.ipu` files and runs them.
//!
//! A model is compiled once, by the command line (`ipuc compile`), by [`fn@compile`], or by a build script ([`build`]),
//! which also gives the program a handle with the names and types of the model. [`fn@open`] opens the file; a [`Session`]
//! keeps the state of one caller and runs it.
//!
//! ```no_run
//! use ipuc::compile::{CompileOptions, Source};
//! use ipuc::{Session, SessionOptions, Tensor};
//!
//! let source = Source { entry: "main".to_string(), path: "digits.onnx".into() };
//! ipuc::compile(&[source], "digits.ipu".as_ref(), &CompileOptions::default())?;
//!
//! let model = ipuc::open("digits.ipu")?;
//! let mut session = Session::new(&model, &SessionOptions::default())?;
//! let image = Tensor::from_elements(&[1, 784], &[0f32; 784])?;
//! let outputs = session.run(None, vec![("image".to_string(), image.into())])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | crate | what it is for | what it knows nothing of |
//! | --- | --- | --- |
//! | `ipuc` | this facade and the command line: files, errors for people | |
//! | `ipuc-formats` | the contract: ONNX bytes, `.ipu` bytes, encodings of weights, and what every operator means | graphs, files, threads |
//! | `ipuc-passes` | the compiler: import, the graph, the passes over it, emission | the runtime, files |
//! | `ipuc-runtime` | the executor: steps, memory, sessions | the compiler, ONNX |
//! | `ipuc-kernels` | the numeric cores: plain functions over slices | operators, values, files |
//! | `ipuc-codes` | the formulas of quantized values that the contract and the kernels share, memory at borders | everything else |
//! | `ipuc-pages` | memory for direct reads and writes | everything else |
//!
//! Compiler and runtime depend on the contract and never on one another: the file is all that passes between them. This crate
//! hands the runtime's kernels to the compiler, so that what is computed while compiling has the bits of a run.
//! Features: `compile` and `run` bring one half each, `generate` text from language models, `serve` that behind HTTP,
//! `images` the decoding of files of images (`ImageDecoder`), `ndarray` its arrays as inputs and outputs, `cli` (the default)
//! all but the last and the command line. A program that only opens
//! files builds no compiler.

#[cfg(feature = "run")]
pub mod accuracy;
#[cfg(feature = "ndarray")]
pub mod arrays;
#[cfg(feature = "compile")]
pub mod build;
#[cfg(feature = "compile")]
pub mod cache;
#[cfg(all(feature = "compile", feature = "run"))]
pub mod calibrate;
#[cfg(feature = "cli")]
pub mod cli;
pub mod compare;
#[cfg(feature = "compile")]
pub mod compile;
pub mod files;
#[cfg(feature = "generate")]
pub mod generate;
#[cfg(any(feature = "compile", feature = "generate"))]
pub mod generation;
#[cfg(feature = "run")]
pub mod handle;
#[cfg(any(feature = "compile", feature = "run"))]
mod memory;
#[cfg(feature = "run")]
pub mod observe;
#[cfg(feature = "run")]
pub mod open;
#[cfg(feature = "run")]
pub mod precision;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(all(feature = "compile", feature = "run"))]
pub mod simulate;

#[cfg(feature = "compile")]
pub use compile::compile;
#[cfg(feature = "run")]
pub use handle::{Array, ArrayElement, Elements, HandleError};
/// The contract: what is in files, and what operators mean.
pub use ipuc_formats as formats;
pub use ipuc_formats::attribute::AttributeError;
pub use ipuc_formats::dim::{Bindings, Dim, DimError, DimParseError, Ranges, Refusal};
pub use ipuc_formats::dtype::DType;
pub use ipuc_formats::element::{Element, bf16, f16};
pub use ipuc_formats::encodings::{EncodingError, PartRange, PartRecord};
pub use ipuc_formats::fact::{Fact, Shape, Type};
pub use ipuc_formats::model::{ChunkDigest, EntryRecord, Fault, FormatError, Manifest, WireFault};
pub use ipuc_formats::ops::{ProgramError, ReferenceError, TypeError};
pub use ipuc_formats::read_at::ReadAt;
pub use ipuc_formats::tensor::{Storage, Tensor, TensorError};
pub use ipuc_formats::value::Value;
/// The compiler.
#[cfg(feature = "compile")]
pub use ipuc_passes as passes;
/// The executor.
#[cfg(feature = "run")]
pub use ipuc_runtime as runtime;
#[cfg(feature = "run")]
pub use ipuc_runtime::{
    CancelToken, CompletedRead, Limits, MemoryUse, Model, ModelOptions, Observer, OpenError, PassReport, Port,
    ReadQueue, Residency, RunError, SavedStateError, Session, SessionOptions, SharedBytes, Skipped, Span, StepCounter,
    StepStall, Threads, Trace, Track, UnknownInstructions, VersionError, WeightFile, steps::KernelError,
};
#[cfg(any(feature = "compile", feature = "run"))]
pub use memory::available_bytes;
#[cfg(feature = "run")]
pub use open::{OpenFileError, OpenOptions, Resident, open, open_bytes, open_pair, open_pipe, open_static, open_with};

/// The module of a model that [`build::compile`](crate::build) compiled, under the name of the model's file.
#[cfg(feature = "run")]
#[macro_export]
macro_rules! include_model {
    ($visibility:vis $name:ident) => {
        #[allow(dead_code, reason = "a program uses what it needs of a generated handle")]
        $visibility mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
        }
    };
}
