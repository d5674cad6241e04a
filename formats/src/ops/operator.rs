//! The facets of an operator that compiler and runtime share.

use crate::attribute::BlockIndex;
use crate::dim::{Bindings, Dim, Equality, Ranges};
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::{ReferenceContext, ReferenceError};
use crate::value::Value;
use thiserror::Error;

/// Why an operator cannot take these operands.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TypeError {
    /// A required operand is absent.
    #[error("operand {operand} is missing")]
    MissingOperand {
        /// Index of the operand.
        operand: usize,
    },
    /// The number of operands is wrong.
    #[error("expected {expected} operands, found {found}")]
    OperandCount {
        /// What is expected, in words.
        expected: String,
        /// How many there are.
        found: usize,
    },
    /// An operand is not of the kind (tensor, sequence, ..) that is needed.
    #[error("operand {operand} must be {expected}, found {found}")]
    Kind {
        /// Index of the operand.
        operand: usize,
        /// What is expected, in words.
        expected: &'static str,
        /// The type found.
        found: String,
    },
    /// An operand has an element type that the operator does not take.
    #[error("operand {operand} must be {expected}, found {found}")]
    ElementType {
        /// Index of the operand.
        operand: usize,
        /// What is expected, in words.
        expected: String,
        /// The element type found.
        found: DType,
    },
    /// An operand has a rank that the operator does not take.
    #[error("operand {operand} must have rank {expected}, found {found}")]
    Rank {
        /// Index of the operand.
        operand: usize,
        /// What is expected, in words.
        expected: String,
        /// Rank found.
        found: usize,
    },
    /// Two dimensions that must agree do not.
    #[error("{subject}: {left} does not fit {right}")]
    Dimension {
        /// What is compared, in words.
        subject: String,
        /// One side.
        left: String,
        /// Other side.
        right: String,
    },
    /// An axis outside the rank.
    #[error("axis {axis} is outside a tensor of rank {rank}")]
    Axis {
        /// The axis.
        axis: i64,
        /// The rank.
        rank: usize,
    },
    /// An attribute or the contents of an operand are not allowed.
    #[error("{subject} is {found}, expected {expected}")]
    Value {
        /// Attribute or operand, in words.
        subject: String,
        /// What was found.
        found: String,
        /// What is expected, in words.
        expected: String,
    },
    /// The operator exists, this combination of types or attributes is not supported.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A block of a control-flow operator cannot be typed.
    #[error("in the body: {0}")]
    Block(String),
    /// A scalar program means nothing here.
    #[error("program: {0}")]
    Program(#[from] crate::ops::program::error::ProgramError),
}

/// What a relation between two dimensions that only a bind can decide must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum Relation {
    /// Left equals right.
    Equal,
    /// Left equals right, or one of them is 1.
    Broadcastable,
    /// Left is at most right.
    AtMost,
    /// Left is a multiple of right.
    Multiple,
}

/// An equation that symbols neither prove nor refute; checked when dimensions bind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Obligation {
    /// Relation.
    pub relation: Relation,
    /// Left side.
    pub left: Dim,
    /// Right side.
    pub right: Dim,
    /// What is compared, in words, with the name of the step.
    pub subject: String,
}

impl Obligation {
    /// Whether it holds at these sizes; `None` where they leave a side open.
    #[must_use]
    pub fn holds(&self, bindings: &Bindings) -> Option<bool> {
        let (left, right) = (self.left.evaluate(bindings).ok()?, self.right.evaluate(bindings).ok()?);
        Some(match self.relation {
            Relation::Equal => left == right,
            Relation::Broadcastable => left == right || left == 1 || right == 1,
            Relation::AtMost => left <= right,
            Relation::Multiple => left.checked_rem(right) == Some(0),
        })
    }
}

/// Types blocks while a control-flow operator is typed.
pub trait BlockInference {
    /// Facts of the block's results for these facts of its parameters.
    ///
    /// # Errors
    /// [`TypeError::Block`] where a step of the block does not fit.
    fn infer_block(&mut self, block: BlockIndex, parameters: &[Fact]) -> Result<Vec<Fact>, TypeError>;
}

/// For operators without blocks.
pub struct NoBlocks;

impl BlockInference for NoBlocks {
    fn infer_block(&mut self, block: BlockIndex, _parameters: &[Fact]) -> Result<Vec<Fact>, TypeError> {
        Err(TypeError::Block(format!("block {} does not exist", block.0)))
    }
}

/// What `infer` may ask and report besides its operands.
pub struct InferContext<'a> {
    /// Name of the step; fresh dimensions are named after it, so that inferring again gives the same names.
    pub step: &'a str,
    /// Ranges of symbols.
    pub ranges: &'a Ranges,
    /// Bodies of control flow.
    pub blocks: &'a mut dyn BlockInference,
    /// Equations left to the bind.
    pub obligations: Vec<Obligation>,
}

impl<'a> InferContext<'a> {
    /// A context for the step of this name.
    pub fn new(step: &'a str, ranges: &'a Ranges, blocks: &'a mut dyn BlockInference) -> Self {
        InferContext { step, ranges, blocks, obligations: Vec::new() }
    }

    /// A dimension known only at run time, named `step.label`.
    pub fn fresh(&self, label: &str) -> Dim {
        Dim::symbol(&format!("{}.{label}", self.step))
    }

    /// Require two dimensions to be equal; gives the one that says more.
    ///
    /// # Errors
    /// [`TypeError::Dimension`] where they cannot be equal.
    pub fn require_equal(&mut self, left: &Dim, right: &Dim, subject: &str) -> Result<Dim, TypeError> {
        match crate::dim::equality(left, right, self.ranges) {
            Equality::Proven => Ok(left.clone()),
            Equality::Refuted => Err(TypeError::Dimension {
                subject: subject.to_string(),
                left: left.to_string(),
                right: right.to_string(),
            }),
            Equality::Unknown => {
                self.oblige(Relation::Equal, left, right, subject);
                Ok(if right.is_known() { right.clone() } else { left.clone() })
            }
        }
    }

    /// Leave a relation to the bind.
    pub fn oblige(&mut self, relation: Relation, left: &Dim, right: &Dim, subject: &str) {
        let subject = format!("{}: {subject}", self.step);
        self.obligations.push(Obligation { relation, left: left.clone(), right: right.clone(), subject });
    }
}

/// How a step reads the weight behind one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum Read {
    /// Whole, once.
    Once,
    /// Whole, again each iteration of a loop.
    Repeated,
    /// Rows along axis 0, chosen by an index.
    Rows,
    /// One of several groups (an expert), chosen by an index.
    Groups,
    /// Skipped where an activation is zero.
    Nonzero,
}

/// What running an operator may do besides computing its results from its operands.
/// In the order of how much it forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Nothing: it may be folded, shared, removed.
    Pure,
    /// It draws random numbers: it may be removed, not folded or shared.
    Random,
    /// It changes state: it is ordered and never removed.
    State,
}

/// A weight seen as `groups` matrices along axis 0, each of `inputs` × `outputs` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightMatrix {
    /// Independent matrices.
    pub groups: u64,
    /// Extent of the reduction.
    pub inputs: u64,
    /// Number of outputs of one matrix.
    pub outputs: u64,
    /// Axis of a matrix that counts outputs: 0 for `[outputs, inputs]`, 1 for `[inputs, outputs]`.
    pub output_axis: u32,
}

/// One operator: its type rule and its meaning. What else it says depends on its [class](crate::ops::Class).
pub trait Operator: std::fmt::Debug {
    /// Facts of the results from facts of the operands.
    ///
    /// # Errors
    /// [`TypeError`] where the operands do not fit.
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError>;

    /// The results, by naive loops that are obviously right.
    ///
    /// # Errors
    /// [`ReferenceError`] where the operands do not fit or their contents are out of range.
    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError>;
}

/// The fact of operand `operand`.
///
/// # Errors
/// [`TypeError::MissingOperand`] where it is absent.
pub fn required(inputs: &[Option<Fact>], operand: usize) -> Result<&Fact, TypeError> {
    optional(inputs, operand).ok_or(TypeError::MissingOperand { operand })
}

/// The fact of operand `operand`, or `None` where it is absent.
pub fn optional(inputs: &[Option<Fact>], operand: usize) -> Option<&Fact> {
    inputs.get(operand).and_then(Option::as_ref)
}

/// Element type and shape of operand `operand`.
///
/// # Errors
/// [`TypeError`] where it is absent or no tensor.
pub fn tensor_operand(inputs: &[Option<Fact>], operand: usize) -> Result<(DType, &Shape), TypeError> {
    let fact = required(inputs, operand)?;
    fact.kind.as_tensor().ok_or_else(|| TypeError::Kind { operand, expected: "a tensor", found: fact.kind.to_string() })
}

/// An axis counted from the front, from one that may count from the back.
///
/// # Errors
/// [`TypeError::Axis`] where it is outside `-rank..rank`.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize, TypeError> {
    let from_front = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    match from_front.map(usize::try_from) {
        Some(Ok(normalized)) if normalized < rank => Ok(normalized),
        _ => Err(TypeError::Axis { axis, rank }),
    }
}
