//! Inverses of square matrices: `Inverse` of `com.microsoft`, by elimination with row exchanges in f64.

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::windows::listed;
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Inverse of each matrix: `x: [.., m, m]` to `[.., m, m]`; NaN and infinities where there is none.
    pub struct Inverse revision 1 {}
}

impl Operator for Inverse {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        require_float(dtype, 0)?;
        if let Shape::Ranked(dims) = x {
            let [.., rows, columns] = dims.as_slice() else {
                let found = dims.len();
                return Err(TypeError::Rank { operand: 0, expected: "at least 2".to_string(), found });
            };
            context.require_equal(rows, columns, "rows and columns of a square matrix")?;
        }
        Ok(vec![Fact::tensor(dtype, x.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        require_float(x.dtype(), 0)?;
        let size = match x.shape() {
            [.., rows, columns] if rows == columns => *rows,
            other => {
                let (left, right) = (format!("{other:?}"), "square matrices".to_string());
                return Err(TypeError::Dimension { subject: "inverse".to_string(), left, right }.into());
            }
        };
        let mut inverses = listed(x.dtype(), x.shape())?;
        let elements: Vec<f64> = scalars(x)?.into_iter().map(Scalar::to_f64).collect();
        for matrix in elements.chunks(size.saturating_mul(size).max(1)) {
            inverses.extend(inverse(matrix.to_vec(), size).into_iter().map(Scalar::Float));
        }
        Ok(vec![from_scalars(x.dtype(), x.shape(), &inverses)?.into()])
    }
}

impl Computes for Inverse {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let batch = facts.dims(0).map_or(0, |dims| dims.len().saturating_sub(2));
        let rest = facts.dims(0).map_or(Dim::ZERO, |dims| Dim::product(dims.get(batch..).unwrap_or(&[])));
        loops::leading(facts, batch, &rest)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let rows = facts.dims(0).and_then(|dims| dims.last().cloned()).unwrap_or_else(|| facts.fresh("rows"));
        each(&(facts.elements(0) * rows), &[(VectorClass::Arithmetic, 2)])
    }
}

/// Inverse of a row-major matrix, by Gauss and Jordan.
fn inverse(mut matrix: Vec<f64>, size: usize) -> Vec<f64> {
    let mut result = vec![0.0; size * size];
    (0..size).for_each(|row| result[row * size + row] = 1.0);
    for column in 0..size {
        let magnitude = |row: usize| matrix[row * size + column].abs();
        let pivot = (column..size).fold(column, |best, row| if magnitude(row) > magnitude(best) { row } else { best });
        for other in 0..size {
            matrix.swap(pivot * size + other, column * size + other);
            result.swap(pivot * size + other, column * size + other);
        }
        let diagonal = matrix[column * size + column];
        for other in 0..size {
            matrix[column * size + other] /= diagonal;
            result[column * size + other] /= diagonal;
        }
        for row in (0..size).filter(|&row| row != column) {
            let factor = matrix[row * size + column];
            for other in 0..size {
                matrix[row * size + other] -= factor * matrix[column * size + other];
                result[row * size + other] -= factor * result[column * size + other];
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    #[test]
    fn matrices_of_every_size() {
        let inverse = |shape: &[usize], elements: &[f32]| {
            run(&Inverse {}, &[Tensor::from_elements(shape, elements).unwrap()])
                .map(|x| x.elements::<f32>().unwrap().to_vec())
        };
        assert_eq!(inverse(&[1, 2, 2], &[0.0, 2.0, 4.0, 0.0]).unwrap(), [0.0, 0.25, 0.5, 0.0]);
        assert_eq!(inverse(&[2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap(), [-2.0, 1.0, 1.5, -0.5]);
        assert!(inverse(&[1, 1], &[0.0]).unwrap()[0].is_infinite());
        assert!(inverse(&[2, 0, 0], &[]).unwrap().is_empty());
        assert_eq!(
            inverse(&[2, 1], &[1.0, 2.0]).unwrap_err().to_string(),
            "inverse: [2, 1] does not fit square matrices"
        );
    }
}
