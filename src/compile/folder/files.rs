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

/// Inputs that are no weights.
pub(super) fn input_names(graph: &GraphProto) -> Vec<&str> {
    let weights: Vec<&str> = graph.initializer.iter().filter_map(|weight| weight.name.as_deref()).collect();
    let inputs = graph.input.iter().filter_map(|input| input.name.as_deref());
    inputs.filter(|name| !weights.contains(name)).collect()
}

/// Models of `genai_config.json` beside encoder and decoder are not supported.
pub(super) fn refuse_others(files: &Files<'_>, model: &Json) -> Result<(), FolderError> {
    for part in ["embedding", "vision", "speech"] {
        if model.get(part).is_some() {
            return Err(files.unsupported(format!("a model `{part}` beside its decoder")));
        }
    }
    let Some(pipeline) = model["decoder"].get("pipeline") else { return Ok(()) };
    // A list of objects, each of which describes models by their names.
    let parts = pipeline.as_array().into_iter().flatten().filter_map(Json::as_object);
    let names: Vec<&str> = parts.flat_map(|part| part.keys().map(String::as_str)).collect();
    Err(files.unsupported(format!("a pipeline of several models ({})", names.join(", "))))
}
