//! Why a node cannot be lowered.

use ipuc_formats::ops::TypeError;
use ipuc_formats::tensor::TensorError;
use thiserror::Error;

/// Why a node cannot be lowered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LowerError {
    /// Operands or attributes do not fit the operator.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// A tensor in an attribute is malformed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A tensor in the model cannot be read.
    #[error("{0}")]
    Weight(String),
    /// An attribute has another type than the operator says.
    #[error("attribute `{name}` must be of type {expected}")]
    AttributeType {
        /// Name of the attribute.
        name: String,
        /// What is expected, in words.
        expected: &'static str,
    },
    /// An attribute that must be there is not.
    #[error("attribute `{0}` is missing")]
    MissingAttribute(String),
    /// Attributes that this operator version does not have.
    #[error("attribute {0} is not one that this version of the operator has")]
    UnknownAttributes(String),
    /// An input that this operator version, with these attributes, does not have.
    #[error("input {index} (`{name}`) is not one that this version of the operator takes")]
    UnknownInput {
        /// Its index.
        index: usize,
        /// Its name in the model.
        name: String,
    },
    /// A combination that is not supported.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// An operator that is not imported, with the reason.
    #[error("this operator is not supported: {0}")]
    NotImported(&'static str),
    /// A name that nothing defines.
    #[error("nothing defines `{0}`")]
    Undefined(String),
    /// A node of a body failed; it is reported under its own name.
    #[error("its body cannot be imported")]
    Body,
}
