//! Reads the files of a folder.

use crate::files::SourceFile;
use ipuc_formats::limits::IPU_ATTACHMENT_BYTES;
use ipuc_formats::onnx::read_model;
use ipuc_formats::onnx::schema::GraphProto;
use serde_json::Value as Json;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Names of decoders with a cache, as Optimum and transformers export them; the first that is there is taken.
const DECODERS: &[&str] = &["decoder_model_merged.onnx", "decoder_with_past_model.onnx", "model.onnx"];

/// Why a folder is no language model that can be compiled.
#[derive(Debug, Error)]
pub enum FolderError {
    /// A file that is needed is not there.
    #[error("the folder `{}` has no {file}", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The file, or several of which one is needed.
        file: String,
    },
    /// A file cannot be read, or does not say what it should.
    #[error("cannot use `{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Several files may be the model.
    #[error("the folder `{}` has several models ({}) and no configuration that tells which is meant", folder.display(), names.join(", "))]
    Several {
        /// The folder.
        folder: PathBuf,
        /// Their names.
        names: Vec<String>,
    },
    /// A kind of model that is not supported.
    #[error("the model in `{}` needs {what}, which is not supported", folder.display())]
    Unsupported {
        /// The folder.
        folder: PathBuf,
        /// What it needs.
        what: String,
    },
}

/// The files of a folder.
pub(super) struct Files<'a> {
    pub(super) folder: &'a Path,
}

impl Files<'_> {
    pub(super) fn fault(&self, path: &Path, reason: impl ToString) -> FolderError {
        FolderError::File { path: path.to_owned(), reason: reason.to_string() }
    }

    pub(super) fn unsupported(&self, what: impl Into<String>) -> FolderError {
        FolderError::Unsupported { folder: self.folder.to_owned(), what: what.into() }
    }

    /// The file of this name, here or in `onnx/`.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        let paths = [self.folder.join(name), self.folder.join("onnx").join(name)];
        paths.into_iter().find(|path| path.is_file())
    }

    /// The bytes of a file; `None` where it is not there.
    pub(super) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.folder.join(name);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.fault(&path, error)),
        };
        let mut bytes = Vec::new();
        let read = file.take(IPU_ATTACHMENT_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.fault(&path, error))?;
        if bytes.len() as u64 > IPU_ATTACHMENT_BYTES {
            return Err(self.fault(&path, format!("it has more than {IPU_ATTACHMENT_BYTES} bytes")));
        }
        Ok(Some(bytes))
    }

    pub(super) fn required(&self, name: &str) -> Result<Vec<u8>, FolderError> {
        let missing = || FolderError::Missing { folder: self.folder.to_owned(), file: name.to_string() };
        self.bytes(name)?.ok_or_else(missing)
    }

    pub(super) fn json(&self, name: &str) -> Result<Option<Json>, FolderError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| self.fault(&self.folder.join(name), error))
    }
}

/// The graph of a model.
pub(super) fn graph(files: &Files<'_>, path: &Path) -> Result<GraphProto, FolderError> {
    let model = SourceFile::open(path).map_err(|error| files.fault(path, error))?;
    let model = read_model(&model).map_err(|error| files.fault(path, error))?;
    Ok(model.graph.unwrap_or_default())
}

/// Path of the file that a part of `genai_config.json` names.
pub(super) fn genai_file(files: &Files<'_>, part: &str, described: &Json) -> Result<PathBuf, FolderError> {
    let path = files.folder.join("genai_config.json");
    let Some(name) = described["filename"].as_str() else {
        return Err(files.fault(&path, format!("it names no file as `model.{part}.filename`")));
    };
    if Path::new(name).components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return Err(files.fault(&path, format!("the {part} `{name}` is not in the folder")));
    }
    Ok(files.folder.join(name))
}

/// Path of the decoder among files with known names, or of the only model.
pub(super) fn exported_decoder(files: &Files<'_>) -> Result<PathBuf, FolderError> {
    let folders = [files.folder.to_owned(), files.folder.join("onnx")];
    let known = folders.iter().flat_map(|folder| DECODERS.iter().map(|name| folder.join(name)));
    if let Some(path) = known.into_iter().find(|path| path.is_file()) {
        return Ok(path);
    }
    let entries = fs::read_dir(files.folder).map_err(|error| files.fault(files.folder, error))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut models: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "onnx")).collect();
    models.sort();
    match models.as_slice() {
        [only] => Ok(only.clone()),
        [] => {
            let file = format!("model: genai_config.json, {} or another .onnx file", DECODERS.join(", "));
            Err(FolderError::Missing { folder: files.folder.to_owned(), file })
        }
        several => {
            let name = |path: &PathBuf| path.file_name().map_or_else(String::new, |name| name.display().to_string());
            let names = several.iter().map(name).collect();
            Err(FolderError::Several { folder: files.folder.to_owned(), names })
        }
    }
}

/// Names of what a model reads and gives.
#[derive(Debug, Clone, Default)]
pub(super) struct Ports {
    pub(super) inputs: Vec<String>,
    pub(super) outputs: Vec<String>,
}

impl Ports {
    pub(super) fn of(graph: &GraphProto) -> Ports {
        let inputs = input_names(graph).into_iter().map(str::to_string).collect();
        Ports { inputs, outputs: graph.output.iter().filter_map(|output| output.name.clone()).collect() }
    }
}

/// Inputs that are no weights.
pub(super) fn input_names(graph: &GraphProto) -> Vec<&str> {
    let weights: Vec<&str> = graph.initializer.iter().filter_map(|weight| weight.name.as_deref()).collect();
    let inputs = graph.input.iter().filter_map(|input| input.name.as_deref());
    inputs.filter(|name| !weights.contains(name)).collect()
}

/// Models of `genai_config.json` beside encoder and decoder, without which they give no text, are not supported.
pub(super) fn refuse_others(files: &Files<'_>, model: &Json) -> Result<(), FolderError> {
    match ["embedding", "vision", "speech"].into_iter().find(|part| model.get(part).is_some()) {
        Some(part) => Err(files.unsupported(format!("a model `{part}` beside its decoder"))),
        None => Ok(()),
    }
}
