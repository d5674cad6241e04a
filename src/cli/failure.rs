//! Errors as a user sees them: one sentence, a hint where there is something to do, and an exit code.

use super::output::at_least;
use crate::calibrate::CalibrateError;
use crate::compile::folder::FolderError;
use crate::compile::{CompileError, Source};
use crate::files::numpy::NumpyError;
use crate::files::{ExternalFileError, SourceFileError};
use crate::generate::{ContextError, GenerateError};
use crate::generation::TOKENIZER;
use crate::open::OpenFileError;
use crate::serve::ServeError;
use crate::simulate::SimulateError;
use ipuc_formats::machine::{CostError, ProgramError, TargetError};
use ipuc_formats::model::FormatError;
use ipuc_formats::onnx::{OnnxError, ValueError};
use ipuc_formats::ops::{ReferenceError, TypeError};
use ipuc_formats::tensor::TensorError;
use ipuc_passes::emit::EmitError;
use ipuc_passes::error::PassError;
use ipuc_passes::ir::ConstantError;
use ipuc_passes::pipeline::PipelineError;
use ipuc_runtime::steps::KernelError;
use ipuc_runtime::{OpenError, RunError, SavedStateError, VersionError};
use std::fmt;
use std::io;

/// What the program ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Success = 0,
    /// The result is negative: a mismatch, a failed check.
    Negative = 1,
    /// A wrong flag; a wrong input name, element type or shape.
    Usage = 2,
    /// A file that is bad or holds what is not supported.
    File = 3,
    /// Memory or disk is short.
    Resource = 4,
    /// A file that the command line names is not there.
    Missing = 5,
}

/// An error of the command line itself, as opposed to those of the libraries.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: Code,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// The command line, or what it names, is wrong.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Failure { code: Code::Usage, message: message.into(), hint: None }
    }

    /// A file is bad.
    pub(super) fn file(message: impl Into<String>) -> Self {
        Failure { code: Code::File, message: message.into(), hint: None }
    }

    /// Memory is short.
    pub(super) fn memory(message: impl Into<String>) -> Self {
        Failure { code: Code::Resource, message: message.into(), hint: None }
    }

    /// A file cannot be written.
    pub(super) fn output(message: String, error: &io::Error) -> Self {
        Failure { code: of_output(error), message: format!("{message}: {error}"), hint: None }
    }

    pub(super) fn with_hint(self, hint: impl Into<String>) -> Self {
        Failure { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Print an error; gives the code to end with.
#[allow(clippy::print_stderr, reason = "errors go to stderr")]
pub(super) fn report(error: &anyhow::Error) -> Code {
    let (code, hint) = error.chain().find_map(classify).unwrap_or((Code::File, None));
    if is_broken_pipe(error) {
        // The reader of the output has seen enough.
        return Code::Success;
    }
    eprintln!("error: {}", sentence(error));
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    code
}

/// Context and cause, once each: errors that already name their cause are not followed by it.
fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if sentence.ends_with(&text) {
            continue;
        }
        if !sentence.is_empty() {
            sentence.push_str(": ");
        }
        sentence.push_str(&text);
    }
    sentence
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<io::Error>() {
        Some(error) => Some(error.kind()),
        None => cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind),
    };
    error.chain().filter_map(kind).any(|kind| kind == io::ErrorKind::BrokenPipe)
}

type Verdict = (Code, Option<String>);

fn classify(cause: &(dyn std::error::Error + 'static)) -> Option<Verdict> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some((failure.code, failure.hint.clone()));
    }
    if let Some(error) = cause.downcast_ref::<CompileError>() {
        return Some(of_compile(error));
    }
    if let Some(error) = cause.downcast_ref::<CalibrateError>() {
        return of_calibrate(error);
    }
    if let Some(error) = cause.downcast_ref::<OpenFileError>() {
        return Some(match error {
            OpenFileError::Source(error) => (of_source(error), None),
            OpenFileError::Arriving { error, .. } => (of_io(error), None),
            OpenFileError::Model { error, .. } => of_open(error),
        });
    }
    if let Some(error) = cause.downcast_ref::<RunError>() {
        return Some(of_run(error));
    }
    if let Some(error) = cause.downcast_ref::<SimulateError>() {
        return Some(of_simulate(error));
    }
    if cause.is::<TargetError>() {
        return Some((Code::Usage, None));
    }
    if let Some(error) = cause.downcast_ref::<SavedStateError>() {
        return Some(match error {
            SavedStateError::Io(error) => (of_io(error), None),
            SavedStateError::Malformed(_) | SavedStateError::OtherModel { .. } => (Code::File, None),
            SavedStateError::State(error) => of_run(error),
        });
    }
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        return Some((of_io(error), None));
    }
    if let Some(kind) = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind) {
        return Some((of_io(&io::Error::from(kind)), None));
    }
    if let Some(error) = cause.downcast_ref::<FormatError>() {
        return Some(of_format(error));
    }
    if let Some(error) = cause.downcast_ref::<GenerateError>() {
        return Some(of_generate(error));
    }
    if let Some(error) = cause.downcast_ref::<ServeError>() {
        return match error {
            ServeError::Listen { .. } => Some((Code::Usage, None)),
            ServeError::Key { .. } => {
                Some((Code::Usage, Some("set it as IPUC_API_KEY in the environment".to_string())))
            }
            ServeError::Generate(error) => Some(of_generate(error)),
            ServeError::Thread { .. } => Some((Code::Resource, None)),
        };
    }
    if let Some(ContextError::Malformed(_)) = cause.downcast_ref::<ContextError>() {
        return Some((Code::File, None));
    }
    if let Some(error) = cause.downcast_ref::<FolderError>() {
        return Some(of_folder(error));
    }
    if let Some(error) = cause.downcast_ref::<SourceFileError>() {
        return Some((of_source(error), None));
    }
    if let Some(error) = cause.downcast_ref::<NumpyError>() {
        return Some((of_numpy(error), None));
    }
    let is_file_error = cause.is::<ValueError>() || cause.is::<OnnxError>();
    is_file_error.then_some((Code::File, None))
}

/// An error that names no file, with the models in which it occurred.
pub(super) fn in_models(error: CompileError, sources: &[Source]) -> anyhow::Error {
    if error.names_file() {
        return error.into();
    }
    let names: Vec<String> = sources.iter().map(|source| format!("`{}`", source.path.display())).collect();
    anyhow::Error::new(error).context(format!("cannot compile {}", names.join(", ")))
}

fn of_compile(error: &CompileError) -> Verdict {
    match error {
        CompileError::Source(error) => (of_source(error), None),
        CompileError::Import(_) => (Code::File, None),
        // Folders are named on the command line, files in the model.
        CompileError::External(error) => (Code::Usage, hint_of_external(error)),
        CompileError::ExternalData { error, .. } => (Code::File, hint_of_external(error)),
        CompileError::Overwrites { .. } => (Code::Usage, Some("name another file with -o FILE.ipu".to_string())),
        CompileError::UnknownDimension { .. } => (Code::Usage, None),
        CompileError::Onnx { error, .. } => (Code::File, error.hint().map(str::to_string)),
        CompileError::Pipeline(PipelineError::Pass(
            PassError::State { .. }
            | PassError::Cache
            | PassError::NoWeight { .. }
            | PassError::KeptWeight { .. }
            | PassError::Budget { .. }
            | PassError::Prefill { .. }
            | PassError::Threshold { .. }
            | PassError::Uncalibrated { .. },
        )) => (Code::Usage, None),
        CompileError::Pipeline(PipelineError::Pass(PassError::Size { least_bytes, .. })) => {
            (Code::Usage, Some(format!("give it at least --size {}", at_least(*least_bytes))))
        }
        CompileError::Size { weights_bytes, .. } => {
            (Code::Usage, Some(format!("give it at least --size {}", at_least(*weights_bytes))))
        }
        CompileError::Pipeline(PipelineError::Pass(PassError::Constant(ConstantError::Rounding {
            tensor, ..
        })))
        | CompileError::Emit(EmitError::Constant(ConstantError::Rounding { tensor, .. })) => {
            (Code::File, Some(format!("--keep '{tensor}' leaves it as it is")))
        }
        CompileError::Pipeline(PipelineError::Pass(
            PassError::Type { .. } | PassError::Constant(_) | PassError::LeftOut { .. } | PassError::Join { .. },
        )) => (Code::File, None),
        CompileError::Pipeline(
            PipelineError::Invariant { .. }
            | PipelineError::Unsettled { .. }
            | PipelineError::Pass(PassError::PlainChannels { .. }),
        )
        | CompileError::Emit(EmitError::UnusedState { .. }) => {
            (Code::File, Some("please report this together with the model".to_string()))
        }
        CompileError::Emit(EmitError::Write { error, .. }) | CompileError::Output { error, .. } => {
            (of_output(error), None)
        }
        CompileError::Emit(EmitError::Memory { needed_bytes, .. }) => {
            (Code::Resource, Some(format!("give it at least --memory {}", at_least(*needed_bytes))))
        }
        CompileError::Emit(EmitError::Buffer { .. }) => {
            (Code::Resource, Some("less is needed with a lower --memory".to_string()))
        }
        CompileError::Emit(EmitError::Constant(_) | EmitError::Encoding { .. } | EmitError::Format(_)) => {
            (Code::File, None)
        }
        CompileError::Range(_) => (Code::Usage, None),
    }
}

fn of_generate(error: &GenerateError) -> Verdict {
    match error {
        GenerateError::NoLanguageModel { .. } => {
            (Code::File, Some("compile the folder of the model: ipuc compile FOLDER -o MODEL.ipu".to_string()))
        }
        GenerateError::Attachment { .. }
        | GenerateError::Entry { .. }
        | GenerateError::Template { .. }
        | GenerateError::Tokens { .. }
        | GenerateError::Scores { .. } => (Code::File, None),
        GenerateError::NoTemplate => {
            (Code::Usage, Some("continue a text with ipuc generate --prompt TEXT".to_string()))
        }
        GenerateError::EmptyPrompt
        | GenerateError::Context { .. }
        | GenerateError::Draft { .. }
        | GenerateError::Grammar { .. }
        | GenerateError::Input { .. }
        | GenerateError::Sampling { .. } => (Code::Usage, None),
        GenerateError::Run(error) => of_run(error),
    }
}

fn of_folder(error: &FolderError) -> Verdict {
    let hint = match error {
        FolderError::Missing { file, .. } if file == TOKENIZER => {
            Some("a model that is no language model is compiled by the name of its .onnx file")
        }
        FolderError::Several { .. } => Some("move the others into another folder"),
        FolderError::Missing { .. } | FolderError::File { .. } | FolderError::Unsupported { .. } => None,
    };
    (Code::File, hint.map(str::to_string))
}

fn of_calibrate(error: &CalibrateError) -> Option<Verdict> {
    match error {
        CalibrateError::Compile(error) => Some(of_compile(error)),
        CalibrateError::Folder(error) => Some((of_io(error), None)),
        CalibrateError::Run(error) => Some(of_run(error)),
        CalibrateError::NotFinite { .. } => Some((Code::File, None)),
        CalibrateError::NoFloats => {
            let hint = "choose with --size, or a precision with --weights";
            Some((Code::Usage, Some(hint.to_string())))
        }
        CalibrateError::NoExample | CalibrateError::NoTokenizer { .. } | CalibrateError::Input { .. } => {
            Some((Code::Usage, None))
        }
        CalibrateError::Tokenizer { .. } => Some((Code::File, None)),
        CalibrateError::OutputError { .. } => {
            let hint = "--activations keep rounds no activations; a larger error can be kept";
            Some((Code::Usage, Some(hint.to_string())))
        }
        // Its own cause says it.
        CalibrateError::Open(_) => None,
    }
}

fn of_simulate(error: &SimulateError) -> Verdict {
    match error {
        SimulateError::Program(ProgramError::Unbound { names }) => {
            let first = names.first().map_or("NAME", String::as_str);
            (Code::Usage, Some(format!("give each a size, as --dim {first}=1")))
        }
        SimulateError::Program(ProgramError::Entry { .. }) => {
            (Code::Usage, Some("choose one with --entry NAME".to_string()))
        }
        SimulateError::Program(ProgramError::UnknownDimension { .. })
        | SimulateError::NoStep { .. }
        | SimulateError::TooMany { .. } => (Code::Usage, None),
        SimulateError::Program(ProgramError::Types { .. } | ProgramError::Extent { .. }) => (Code::File, None),
        SimulateError::Cost(CostError::Type { known, .. }) => {
            let type_ = known.first().copied().unwrap_or("f16");
            (Code::Usage, Some(format!("compute it in another type, as --numerics {type_}")))
        }
        SimulateError::Cost(CostError::Memory { .. } | CostError::Capacity { .. }) | SimulateError::Chips { .. } => {
            (Code::Negative, None)
        }
        SimulateError::Links { .. } => {
            (Code::Usage, Some("describe how they are joined in a target file of your own".to_string()))
        }
    }
}

fn hint_of_external(error: &ExternalFileError) -> Option<String> {
    error.hint().map(str::to_string)
}

fn of_open(error: &OpenError) -> Verdict {
    match error {
        OpenError::Format(error) => of_format(error),
        OpenError::Step { .. } | OpenError::OtherFiles { .. } | OpenError::Read { .. } => (Code::File, None),
        OpenError::Memory { .. } => (Code::Resource, None),
        OpenError::Budget { needed_bytes, .. } => {
            (Code::Resource, Some(format!("give at least --memory {}", at_least(*needed_bytes))))
        }
    }
}

fn of_format(error: &FormatError) -> Verdict {
    let hint = match error {
        FormatError::Version { .. } => Some("compile the model again with this version of ipuc"),
        FormatError::TooShort { .. }
        | FormatError::TextTransfer
        | FormatError::SuperblockChecksum { .. }
        | FormatError::Truncated { .. }
        | FormatError::Excess { .. }
        | FormatError::ManifestHash
        | FormatError::Checksum { .. }
        | FormatError::ChunkHash { .. } => Some("copy the file again, or compile the model again"),
        _ => None,
    };
    (Code::File, hint.map(str::to_string))
}

/// A run that fails for its inputs, with what can be done, unless there is a better hint.
pub(super) fn with_hint(error: RunError, hint: impl FnOnce() -> String) -> anyhow::Error {
    match of_run(&error) {
        (Code::Usage, None) => Failure::usage(sentence(&error.into())).with_hint(hint()).into(),
        _ => error.into(),
    }
}

fn of_run(error: &RunError) -> Verdict {
    match error {
        RunError::UnknownEntry { .. } | RunError::UnnamedEntry { .. } => {
            (Code::Usage, Some("choose one with --entry NAME".to_string()))
        }
        RunError::Instructions(_)
        | RunError::OtherModel
        | RunError::UnknownInput { .. }
        | RunError::MissingInput { .. }
        | RunError::InputType { .. }
        | RunError::InputShape { .. }
        | RunError::OutOfRange { .. }
        | RunError::Obligation { .. }
        | RunError::Replaced { .. }
        | RunError::State { .. } => (Code::Usage, None),
        RunError::Threads { .. } | RunError::Memory { .. } => (Code::Resource, None),
        RunError::Spill { .. } => (Code::Resource, Some("name another folder with --spill DIR".to_string())),
        RunError::Budget { needed_bytes, .. } => {
            (Code::Resource, Some(format!("give at least --memory {}", at_least(*needed_bytes))))
        }
        RunError::Step { error, .. } => (of_step(error), None),
    }
}

/// A compiled step fails where inputs are not what it can take, or where it cannot take anything of the kind.
fn of_step(error: &KernelError) -> Code {
    match error {
        KernelError::Reference(error) => of_reference(error),
        KernelError::Memory { .. } => Code::Resource,
        KernelError::Version(VersionError::Memory { .. } | VersionError::Spill { .. }) => Code::Resource,
        KernelError::Version(VersionError::Mismatch { .. } | VersionError::Forgotten { .. }) => Code::Usage,
        KernelError::Weight { .. } | KernelError::Cancelled => Code::File,
    }
}

fn of_reference(error: &ReferenceError) -> Code {
    match error {
        ReferenceError::Type(TypeError::Unsupported(_)) => Code::File,
        ReferenceError::Type(_) | ReferenceError::OutOfRange { .. } => Code::Usage,
        ReferenceError::Tensor(
            TensorError::TooLarge { .. } | TensorError::Memory { .. } | TensorError::Room { .. },
        ) => Code::Resource,
        ReferenceError::Tensor(_) => Code::Usage,
        ReferenceError::Block(error) => match error.downcast_ref::<RunError>() {
            Some(error) => of_run(error).0,
            None => Code::File,
        },
        ReferenceError::Kernel(error) => error.downcast_ref::<KernelError>().map_or(Code::File, of_step),
    }
}

/// A place that cannot be written to is a wrong argument; a full disk is not.
fn of_output(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem => Code::Usage,
        _ => Code::Resource,
    }
}

fn of_source(error: &SourceFileError) -> Code {
    match error {
        SourceFileError::Open { error, .. } => of_io(error),
        _ => Code::File,
    }
}

fn of_numpy(error: &NumpyError) -> Code {
    match error {
        NumpyError::Io(error) => of_io(error),
        NumpyError::Member { error, .. } => of_numpy(error),
        NumpyError::Tensor(TensorError::Memory { .. } | TensorError::Room { .. }) => Code::Resource,
        NumpyError::Signature
        | NumpyError::Version(_)
        | NumpyError::Header(_)
        | NumpyError::ElementType(_)
        | NumpyError::NotRepresentable(_)
        | NumpyError::Length { .. }
        | NumpyError::Tensor(_)
        | NumpyError::Archive(_) => Code::File,
    }
}

fn of_io(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::NotFound => Code::Missing,
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::OutOfMemory
        | io::ErrorKind::FileTooLarge => Code::Resource,
        _ => Code::File,
    }
}
