//! Models that are open: the bytes of the model and of its external data.

use super::error::CompileError;
use super::options::{CompileOptions, Source};
use crate::files::{ExternalFileError, ExternalFiles, SourceFile};
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::{
    ModelProto, TensorProto, ValueInfoProto, tensor_proto, tensor_shape_proto, type_proto,
};
use ipuc_formats::onnx::{TensorSource, read_model};
use ipuc_formats::read_at::ReadAt;
use std::cell::OnceCell;
use std::sync::Arc;

/// Hands external data to the importer, and keeps the first error with its type.
pub(super) struct Opener<'a> {
    pub files: &'a ExternalFiles,
    pub failed: OnceCell<ExternalFileError>,
    /// Files of weights may be missing: only their sizes are wanted.
    pub sizes_only: bool,
}

/// A file that is missing: its floats and codes are zero, wherever they are. Integers of shapes are never made up.
struct Missing;

impl ReadAt for Missing {
    fn length(&self) -> u64 {
        u64::MAX >> 1
    }

    fn read_exact_at(&self, _offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        buffer.fill(0);
        Ok(())
    }
}

/// Whether the file of a tensor is missing and shapes do not depend on its elements.
fn may_be_missing(tensor: &TensorSource, error: &ExternalFileError) -> bool {
    let shapes =
        matches!(tensor.dtype(), DType::I64 | DType::I32 | DType::U64 | DType::U32 | DType::Bool | DType::String);
    !shapes && matches!(error, ExternalFileError::Missing { .. })
}

impl ipuc_passes::import::ExternalFiles for Opener<'_> {
    fn open(&self, tensor: &TensorSource) -> Result<Arc<dyn ReadAt>, String> {
        match self.files.open(tensor) {
            Ok(file) => Ok(file),
            Err(error) => {
                if self.sizes_only && may_be_missing(tensor, &error) {
                    return Ok(Arc::new(Missing));
                }
                let message = error.to_string();
                // The importer stops there, so that there is no second one.
                let _ = self.failed.set(error);
                Err(message)
            }
        }
    }
}

/// An opened model.
pub(super) struct Opened {
    pub entry: String,
    pub file: Arc<SourceFile>,
    pub proto: ModelProto,
    pub external: ExternalFiles,
    pub name: String,
}

pub(super) fn open(source: &Source, options: &CompileOptions) -> Result<Opened, CompileError> {
    let file = Arc::new(SourceFile::open(&source.path)?);
    let mut proto = read_model(&*file).map_err(|error| CompileError::Onnx { path: source.path.clone(), error })?;
    for branch in options.branches.iter().filter(|branch| branch.entry == source.entry) {
        branch.constant_inputs.iter().for_each(|(name, value)| fix_input(&mut proto, name, *value));
        branch.extents.iter().for_each(|(name, axis, extent)| fix_extent(&mut proto, name, *axis, *extent));
        branch.without_rows.iter().for_each(|name| leave_empty(&mut proto, name));
    }
    let external = ExternalFiles::of_model(&source.path, &options.external_data_roots)?;
    let name = source.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Opened { entry: source.entry.clone(), file, proto, external, name })
}

/// Make an input a constant, where the model has it.
fn fix_input(model: &mut ModelProto, name: &str, value: bool) {
    let Some(graph) = &mut model.graph else { return };
    let Some(at) = graph.input.iter().position(|input| input.name.as_deref() == Some(name)) else { return };
    let input = graph.input.remove(at);
    let tensor = input.r#type.and_then(|kind| match kind.value {
        Some(type_proto::Value::TensorType(tensor)) => tensor.shape,
        _ => None,
    });
    graph.initializer.push(TensorProto {
        name: Some(name.to_string()),
        dims: vec![1; tensor.map_or(0, |shape| shape.dim.len())],
        data_type: Some(tensor_proto::DataType::Bool.into()),
        raw_data: Some(vec![u8::from(value)]),
        ..TensorProto::default()
    });
}

/// Make an input a constant without rows, where the model has it and says how long they are.
fn leave_empty(model: &mut ModelProto, name: &str) {
    let Some(graph) = &mut model.graph else { return };
    let Some(at) = graph.input.iter().position(|input| input.name.as_deref() == Some(name)) else { return };
    let Some((kind, dims)) = empty_shape(&graph.input[at]) else { return };
    graph.input.remove(at);
    graph.initializer.push(TensorProto {
        name: Some(name.to_string()),
        dims,
        data_type: Some(kind),
        raw_data: Some(Vec::new()),
        ..TensorProto::default()
    });
}

/// The element type of an input and its extents without rows; `None` where another extent than the first is open.
pub(super) fn empty_shape(input: &ValueInfoProto) -> Option<(i32, Vec<i64>)> {
    let Some(type_proto::Value::TensorType(tensor)) = &input.r#type.as_ref()?.value else { return None };
    let (_, rows) = tensor.shape.as_ref()?.dim.split_first()?;
    let known = rows.iter().map(|dim| match dim.value {
        Some(tensor_shape_proto::dimension::Value::DimValue(extent)) if extent > 0 => Some(extent),
        Some(_) | None => None,
    });
    Some((tensor.elem_type?, std::iter::once(Some(0)).chain(known).collect::<Option<_>>()?))
}

/// Make an extent of an input a number, where the model has it open.
fn fix_extent(model: &mut ModelProto, name: &str, axis: usize, extent: u32) {
    let input =
        model.graph.iter_mut().flat_map(|graph| &mut graph.input).find(|input| input.name.as_deref() == Some(name));
    let Some(type_proto::Value::TensorType(tensor)) =
        input.and_then(|input| input.r#type.as_mut()).and_then(|kind| kind.value.as_mut())
    else {
        return;
    };
    if let Some(dim) = tensor.shape.as_mut().and_then(|shape| shape.dim.get_mut(axis)) {
        dim.value = Some(tensor_shape_proto::dimension::Value::DimValue(extent.into()));
    }
}
