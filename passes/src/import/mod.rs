//! ONNX becomes IR: functions are inlined, operator versions resolved, names kept, weights left where they are.
//!
//! Read `walk.rs` for the walk over a model, `lowering.rs` for what one node's lowering sees; the tables of operators
//! are one file a family. A new operator is a row there.
//!
//! Every node that cannot be imported is reported, not only the first. Nothing is guessed: an attribute that no lowering
//! asks for is an error. This module types values as far as lowerings need it; [`crate::infer`] does so in earnest.

mod attributes;
mod compose;
mod constant;
#[cfg(feature = "cross-check")]
mod cross_check;
mod definition;
mod expansion;
mod functions;
mod importer;
mod lower_error;
mod lowering;
mod not_imported;
mod notes;
mod opsets;
mod order;
mod overridable;
mod registry;
mod tensors;
mod types;
mod walk;

mod attention;
mod classical;
mod control;
mod elementwise;
mod images;
mod movement;
mod normalization;
mod products;
mod quantization;
mod recurrence;
mod signal;
mod text;

#[cfg(feature = "cross-check")]
pub use cross_check::{CrossCheck, Disagreement, cross_check};
pub use expansion::ExpansionError;
pub use lower_error::LowerError;
pub use lowering::{Body, Lowering, Row, row};
pub use not_imported::NOT_IMPORTED;
pub use notes::{NOTES, Note};
pub use registry::{NEWEST_OPSET, all as rows, element_types};

use crate::ir::{Entry, Graph, Source};
use functions::Functions;
use importer::Importer;
use ipuc_formats::onnx::TensorSource;
use ipuc_formats::onnx::schema::ModelProto;
use ipuc_formats::read_at::ReadAt;
use opsets::opsets;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The import tables of all families.
fn tables() -> impl Iterator<Item = &'static [Row]> {
    let families: [&[&[Row]]; 13] = [
        &[constant::ROWS],
        attention::TABLES,
        classical::TABLES,
        control::TABLES,
        elementwise::TABLES,
        images::TABLES,
        movement::TABLES,
        normalization::TABLES,
        products::TABLES,
        quantization::TABLES,
        recurrence::TABLES,
        &[signal::ROWS],
        text::TABLES,
    ];
    families.into_iter().flatten().copied()
}

/// Opens files of external data; who implements it decides which files a model may use.
pub trait ExternalFiles {
    /// The file that holds a tensor's elements, which is known to be long enough for them.
    ///
    /// # Errors
    /// A sentence that says why the file cannot be used.
    fn open(&self, tensor: &TensorSource) -> Result<Arc<dyn ReadAt>, String>;
}

/// A node that cannot be imported, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Domain; empty for the default one.
    pub domain: String,
    /// Operator.
    pub operator: String,
    /// Version of the operator set, where the model imports it.
    pub opset: Option<i64>,
    /// Name of the node, with the calls of functions that lead to it.
    pub node: String,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domain = if self.domain.is_empty() { "ai.onnx" } else { &self.domain };
        write!(formatter, "node `{}` ({domain}.{}", self.node, self.operator)?;
        if let Some(opset) = self.opset {
            write!(formatter, ", opset {opset}")?;
        }
        write!(formatter, "): {}", self.reason)
    }
}

fn list(refusals: &[Refusal]) -> String {
    if let [only] = refusals {
        return only.to_string();
    }
    let lines: Vec<String> = refusals.iter().map(|refusal| format!("\n  {refusal}")).collect();
    format!("{} of the model's nodes cannot be compiled:{}", refusals.len(), lines.concat())
}

/// Why a model cannot be imported.
#[derive(Debug, Error)]
pub enum ImportError {
    /// Nodes that cannot be imported; all of them.
    #[error("{}", list(.0))]
    Refused(Vec<Refusal>),
    /// The nodes of a graph wait for each other.
    #[error("the graph has a cycle through `{name}`")]
    Cycle {
        /// Name of a value on the cycle.
        name: String,
    },
    /// Two definitions of one name.
    #[error("`{name}` is defined twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// An input without a type.
    #[error("input `{name}` has no type")]
    UntypedInput {
        /// Name of the input.
        name: String,
    },
    /// An input whose type is not supported.
    #[error("input `{name}`: {reason}")]
    Input {
        /// Name of the input.
        name: String,
        /// Why.
        reason: String,
    },
    /// An output that nothing defines.
    #[error("output `{name}` is not defined by any node, input or weight")]
    UndefinedOutput {
        /// Name of the output.
        name: String,
    },
    /// An input that shall be overridable and has no default.
    #[error("`{name}` is no input with a default")]
    NotOverridable {
        /// The name.
        name: String,
    },
    /// A weight that cannot be read.
    #[error("weight `{name}`: {reason}")]
    Weight {
        /// Name of the weight.
        name: String,
        /// Why.
        reason: String,
    },
    /// Its functions cannot be put in place of their calls.
    #[error(transparent)]
    Expansion(#[from] ExpansionError),
    /// The model has no graph.
    #[error("the model has no graph")]
    NoGraph,
    /// Two models of one name.
    #[error("two models are named `{0}`: give one of them another name")]
    DuplicateEntry(String),
}

/// A model to import: an entry of the program.
pub struct Model<'m> {
    /// Name of the entry.
    pub entry: &'m str,
    /// Name of the file (no path of this machine).
    pub file_name: &'m str,
    /// The model with its large tensors left in the file.
    pub proto: &'m ModelProto,
    /// The file.
    pub bytes: Arc<dyn ReadAt>,
    /// Files of external data.
    pub files: &'m dyn ExternalFiles,
    /// Inputs with a default, an initializer, that a caller may give: they become optional. Any other keeps its default.
    pub overridable: &'m [String],
}

/// Import models as the entries of one program.
///
/// # Errors
/// [`ImportError`] where a model is malformed or holds what is not supported.
pub fn import(models: &[Model<'_>]) -> Result<Graph, ImportError> {
    let mut graph = Graph::default();
    for model in models {
        if graph.entries.iter().any(|entry| entry.name == model.entry) {
            return Err(ImportError::DuplicateEntry(model.entry.to_string()));
        }
        let source = graph.sources.len() as u32;
        graph.sources.push(Source { name: model.file_name.to_string(), bytes: model.bytes.clone() });
        let functions = Functions::new(&model.proto.functions);
        let main = model.proto.graph.as_ref().ok_or(ImportError::NoGraph)?;
        expansion::check(main, &functions)?;
        let mut importer = Importer::new(graph, functions, model.files, source);
        importer.overridable = model.overridable;
        let imports = Arc::new(opsets(&model.proto.opset_import));
        let (block, inputs, outputs) = importer.lower_entry(main, imports)?;
        graph = importer.finish()?;
        graph.entries.push(Entry { name: model.entry.to_string(), block, inputs, outputs, states: Vec::new() });
    }
    Ok(graph)
}
