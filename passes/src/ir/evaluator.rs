//! How steps are computed whose operands are constants.

use ipuc_formats::ops::{NoBlocks, Op, ReferenceContext, ReferenceError};
use ipuc_formats::value::Value;
use std::fmt;

/// Gives the results of an operator for these operands, of which those that are left out are `None`.
pub type Evaluate = fn(&Op, &[Option<Value>]) -> Result<Vec<Value>, ReferenceError>;

/// Gives the results of an operator without bodies. By default they are those of its reference, which is exact and rounds
/// once; a compiler whose files are run hands in the kernels of the runtime, so that folded bits are those of a run
/// that does not fuse.
#[derive(Clone, Copy)]
pub struct Evaluator(pub Evaluate);

impl Evaluator {
    /// The results for these operands.
    ///
    /// # Errors
    /// [`ReferenceError`] where the operands do not fit or their contents are out of range.
    pub fn results(self, op: &Op, operands: &[Option<Value>]) -> Result<Vec<Value>, ReferenceError> {
        (self.0)(op, operands)
    }
}

impl Default for Evaluator {
    fn default() -> Self {
        Evaluator(|op, operands| op.operator().reference(operands, &mut ReferenceContext::new(&mut NoBlocks)))
    }
}

impl fmt::Debug for Evaluator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Evaluator")
    }
}
