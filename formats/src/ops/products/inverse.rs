//! Inverses of square matrices: `Inverse` of `com.microsoft`, by elimination with row exchanges in f64.

use crate::attributes;
use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::products::square::{Squares, elimination, square_operand, square_spaces};
use crate::ops::scalar::{Scalar, from_scalars};
use crate::ops::windows::listed;
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass,
    tensor,
};
use crate::value::Value;

attributes! {
    /// Inverse of each matrix: `x: [.., m, m]` to `[.., m, m]`; NaN and infinities where there is none.
    pub struct Inverse revision 1 {}
}

impl Operator for Inverse {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x, _) = square_operand(inputs, context)?;
        Ok(vec![Fact::tensor(dtype, x.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        let squares = Squares::of(x, "inverse")?;
        let mut inverses = listed(x.dtype(), x.shape())?;
        for matrix in squares.matrices() {
            inverses.extend(inverse(matrix, squares.size).into_iter().map(Scalar::Float));
        }
        Ok(vec![from_scalars(x.dtype(), x.shape(), &inverses)?.into()])
    }
}

impl Computes for Inverse {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        square_spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        elimination(facts, 2)
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
