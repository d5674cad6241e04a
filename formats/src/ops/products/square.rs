//! What operators on square matrices share: which shapes they take, their loops and their work.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, scalars};
use crate::ops::{InferContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each, loops, tensor_operand};
use crate::tensor::Tensor;

/// Type and shape of the matrices, `[.., m, m]`, and the extents before these two.
///
/// # Errors
/// [`TypeError`] where they are no square matrices of floats.
pub(super) fn square_operand<'a>(
    inputs: &'a [Option<Fact>],
    context: &mut InferContext<'_>,
) -> Result<(DType, &'a Shape, Shape), TypeError> {
    let (dtype, x) = tensor_operand(inputs, 0)?;
    require_float(dtype, 0)?;
    let Shape::Ranked(dims) = x else { return Ok((dtype, x, Shape::Unranked)) };
    let [batch @ .., rows, columns] = dims.as_slice() else {
        return Err(TypeError::Rank { operand: 0, expected: "at least 2".to_string(), found: dims.len() });
    };
    context.require_equal(rows, columns, "rows and columns of a square matrix")?;
    Ok((dtype, x, Shape::Ranked(batch.to_vec())))
}

/// Square matrices of a tensor, one after another.
pub(super) struct Squares<'a> {
    /// The extents before the matrices'.
    pub(super) batch: &'a [usize],
    /// Rows of a matrix.
    pub(super) size: usize,
    elements: Vec<f64>,
}

impl<'a> Squares<'a> {
    /// # Errors
    /// [`ReferenceError`] where the operand of `operator` is no square matrices of floats.
    pub(super) fn of(x: &'a Tensor, operator: &str) -> Result<Squares<'a>, ReferenceError> {
        require_float(x.dtype(), 0)?;
        match x.shape() {
            [batch @ .., rows, columns] if rows == columns => {
                let elements = scalars(x)?.into_iter().map(Scalar::to_f64).collect();
                Ok(Squares { batch, size: *rows, elements })
            }
            other => {
                let (left, right) = (format!("{other:?}"), "square matrices".to_string());
                Err(TypeError::Dimension { subject: operator.to_string(), left, right }.into())
            }
        }
    }

    /// The elements of each matrix, row by row; none of matrices without elements.
    pub(super) fn matrices(&self) -> impl Iterator<Item = Vec<f64>> {
        self.elements.chunks(self.size.saturating_mul(self.size).max(1)).map(<[f64]>::to_vec)
    }
}

/// A matrix is eliminated as a whole.
pub(super) fn square_spaces(facts: &StepFacts<'_>) -> Vec<Space> {
    let batch = facts.dims(0).map_or(0, |dims| dims.len().saturating_sub(2));
    let rest = facts.dims(0).map_or(Dim::ZERO, |dims| Dim::product(dims.get(batch..).unwrap_or(&[])));
    loops::leading(facts, batch, &rest)
}

/// `count` operations for each element and row.
pub(super) fn elimination(facts: &StepFacts<'_>, count: i64) -> Vec<(VectorClass, Dim)> {
    let rows = facts.dims(0).and_then(|dims| dims.last().cloned()).unwrap_or_else(|| facts.fresh("rows"));
    each(&(facts.elements(0) * rows), &[(VectorClass::Arithmetic, count)])
}
