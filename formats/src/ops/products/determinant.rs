//! Determinants of square matrices: ONNX `Det` (opsets 11, 22), by elimination with row exchanges in f64.

use crate::attributes;
use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::products::square::{Squares, elimination, square_operand, square_spaces};
use crate::ops::scalar::{Scalar, from_scalars};
use crate::ops::windows::{listed, volume};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass,
    tensor,
};
use crate::value::Value;

attributes! {
    /// Determinant of each matrix: `x: [.., m, m]` to `[..]`.
    pub struct Determinant revision 1 {}
}

impl Operator for Determinant {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, _, batch) = square_operand(inputs, context)?;
        Ok(vec![Fact::tensor(dtype, batch)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        let squares = Squares::of(x, "determinant")?;
        let mut determinants = listed(x.dtype(), squares.batch)?;
        determinants.extend(squares.matrices().map(|matrix| Scalar::Float(determinant(matrix, squares.size))));
        if squares.size == 0 {
            determinants.resize(volume(squares.batch.iter().copied()), Scalar::Float(1.0));
        }
        Ok(vec![from_scalars(x.dtype(), squares.batch, &determinants)?.into()])
    }
}

impl Computes for Determinant {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        square_spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        elimination(facts, 1)
    }
}

/// Determinant of a row-major matrix.
fn determinant(mut matrix: Vec<f64>, size: usize) -> f64 {
    let mut result = 1.0;
    for column in 0..size {
        let magnitude = |row: usize| matrix[row * size + column].abs();
        let pivot = (column..size).fold(column, |best, row| if magnitude(row) > magnitude(best) { row } else { best });
        if pivot != column {
            for other in 0..size {
                matrix.swap(pivot * size + other, column * size + other);
            }
            result = -result;
        }
        let diagonal = matrix[column * size + column];
        result *= diagonal;
        if diagonal == 0.0 {
            return result;
        }
        for row in column + 1..size {
            let factor = matrix[row * size + column] / diagonal;
            for other in column..size {
                matrix[row * size + other] -= factor * matrix[column * size + other];
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
        let det = |shape: &[usize], elements: &[f32]| {
            run(&Determinant {}, &[Tensor::from_elements(shape, elements).unwrap()]).unwrap()
        };
        let two = det(&[3, 2, 2], &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 2.0, 1.0, 1.0, 3.0, 3.0, 1.0]);
        assert_eq!(two.elements::<f32>().unwrap(), [-2.0, -3.0, -8.0]);
        let three = det(&[3, 3], &[0.0, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 4.0]);
        assert_eq!((three.shape(), three.elements::<f32>().unwrap()), (&[][..], &[-24.0f32][..]));
        assert_eq!(det(&[2, 2], &[1.0, 2.0, 2.0, 4.0]).elements::<f32>().unwrap(), [0.0]);
        assert_eq!(det(&[2, 0, 0], &[]).elements::<f32>().unwrap(), [1.0, 1.0]);
        assert_eq!(
            run(&Determinant {}, &[Tensor::zeros(crate::dtype::DType::F32, &[2, 3]).unwrap()]).unwrap_err().to_string(),
            "determinant: [2, 3] does not fit square matrices"
        );
    }
}
