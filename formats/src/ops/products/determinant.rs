//! Determinants of square matrices: ONNX `Det` (opsets 11, 22), by elimination with row exchanges in f64.

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::windows::{listed, volume};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Determinant of each matrix: `x: [.., m, m]` to `[..]`.
    pub struct Determinant revision 1 {}
}

impl Operator for Determinant {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        require_float(dtype, 0)?;
        let shape = match x {
            Shape::Unranked => Shape::Unranked,
            Shape::Ranked(dims) => {
                let [batch @ .., rows, columns] = dims.as_slice() else {
                    let found = dims.len();
                    return Err(TypeError::Rank { operand: 0, expected: "at least 2".to_string(), found });
                };
                context.require_equal(rows, columns, "rows and columns of a square matrix")?;
                Shape::Ranked(batch.to_vec())
            }
        };
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        require_float(x.dtype(), 0)?;
        let (batch, size) = match x.shape() {
            [batch @ .., rows, columns] if rows == columns => (batch, *rows),
            other => {
                let (left, right) = (format!("{other:?}"), "square matrices".to_string());
                return Err(TypeError::Dimension { subject: "determinant".to_string(), left, right }.into());
            }
        };
        let mut determinants = listed(x.dtype(), batch)?;
        let elements: Vec<f64> = scalars(x)?.into_iter().map(Scalar::to_f64).collect();
        let area = size.saturating_mul(size);
        if area == 0 {
            determinants.resize(volume(batch.iter().copied()), Scalar::Float(1.0));
        } else {
            let matrices = elements.chunks(area);
            determinants.extend(matrices.map(|matrix| Scalar::Float(determinant(matrix.to_vec(), size))));
        }
        Ok(vec![from_scalars(x.dtype(), batch, &determinants)?.into()])
    }
}

impl Computes for Determinant {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let batch = facts.dims(0).map_or(0, |dims| dims.len().saturating_sub(2));
        let rest = facts.dims(0).map_or(Dim::ZERO, |dims| Dim::product(dims.get(batch..).unwrap_or(&[])));
        loops::leading(facts, batch, &rest)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let rows = facts.dims(0).and_then(|dims| dims.last().cloned()).unwrap_or_else(|| facts.fresh("rows"));
        each(&(facts.elements(0) * rows), &[(VectorClass::Arithmetic, 1)])
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
