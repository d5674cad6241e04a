//! The upper or lower triangle of matrices, and identity matrices: ONNX `Trilu` (opset 14) and `EyeLike` (opsets 9, 22).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::movement::moving::{flat, follow, moved, only_integer, single_integer, sources};
use crate::ops::scalar::{Scalar, from_scalars, is_number};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, loops, optional,
    tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// `x: [.., rows, columns]` with zero below (upper) or above (lower) diagonal `k: []` (i64; absent: 0), which itself
    /// stays. Diagonal 1 is the one right of the main one.
    pub struct Trilu revision 1 {
        /// The upper triangle stays.
        1 since 1 => upper: bool,
    }
}

attributes! {
    /// Ones on one diagonal and zeros elsewhere, in the shape of `x: [rows, columns]`.
    pub struct EyeLike revision 1 {
        /// Element type of the result.
        1 since 1 => dtype: DType,
        /// The diagonal: 0 is the main one, 1 the one right of it.
        2 since 1 => diagonal: i64,
    }
}

/// Diagonal of a place.
fn diagonal(row: usize, column: usize) -> i128 {
    column as i128 - row as i128
}

impl Operator for Trilu {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if let Some(found) = shape.rank().filter(|&rank| rank < 2) {
            return Err(TypeError::Rank { operand: 0, expected: "2 or more".to_string(), found });
        }
        if optional(inputs, 1).is_some() {
            single_integer(inputs, 1)?;
        }
        let mut results = vec![Fact::tensor(dtype, shape.clone())];
        follow(self, inputs, &[0], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let k = match inputs.get(1) {
            Some(Some(_)) => i128::from(only_integer(inputs, 1)?),
            Some(None) | None => 0,
        };
        if data.rank() < 2 {
            return Err(TypeError::Rank { operand: 0, expected: "2 or more".to_string(), found: data.rank() }.into());
        }
        let strides = strides(data.shape());
        let source = |at: &[usize]| {
            let diagonal = diagonal(at[at.len() - 2], at[at.len() - 1]);
            let stays = if self.upper { diagonal >= k } else { diagonal <= k };
            stays.then(|| flat(at, &strides))
        };
        Ok(vec![moved(data, data.shape(), source)?.into()])
    }
}

impl Moves for Trilu {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |axis| Some(loops::operand(0, axis)))
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, _inputs: &[Option<Fact>], _result: &Fact) -> bool {
        false
    }
}

impl Operator for EyeLike {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (_, shape) = tensor_operand(inputs, 0)?;
        if !is_number(self.dtype) && self.dtype != DType::Bool {
            return Err(TypeError::Unsupported(format!("an identity matrix of {}", self.dtype)));
        }
        match shape.rank() {
            Some(2) | None => Ok(vec![Fact::tensor(self.dtype, shape.clone())]),
            Some(found) => Err(TypeError::Rank { operand: 0, expected: "2".to_string(), found }),
        }
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let shape = tensor(inputs, 0)?.shape();
        if shape.len() != 2 {
            return Err(TypeError::Rank { operand: 0, expected: "2".to_string(), found: shape.len() }.into());
        }
        let on = |at: &[usize]| diagonal(at[0], at[1]) == i128::from(self.diagonal);
        let elements = sources(self.dtype, shape, |at| Scalar::Integer(i128::from(on(at))))?;
        Ok(vec![from_scalars(self.dtype, shape, &elements)?.into()])
    }
}

impl Moves for EyeLike {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |_| None)
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.result_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, _inputs: &[Option<Fact>], _result: &Fact) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{first, floats, inferred, iota, run};
    use crate::tensor::Tensor;

    fn triangle(upper: bool, k: i64) -> Vec<f32> {
        let ones = Tensor::from_elements(&[2, 3], &[1f32; 6]).unwrap();
        let result = first(&Trilu { upper }, &[&ones, &Tensor::from_elements(&[], &[k]).unwrap()]);
        result.elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn triangles_include_their_diagonal() {
        assert_eq!(triangle(true, 0), [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
        assert_eq!(triangle(false, 0), [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        assert_eq!(triangle(true, 2), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(triangle(false, -1), [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!(triangle(true, i64::MIN), [1.0; 6]);
        assert_eq!(inferred(&Trilu { upper: true }, &[floats("b, n, n")]), "f32[b, n, n]");
        assert!(inferred(&Trilu { upper: true }, &[floats("n")]).contains("2 or more"));
    }

    #[test]
    fn identities_take_the_shape_of_their_operand() {
        let eye = EyeLike { dtype: DType::F16, diagonal: 1 };
        assert_eq!(inferred(&eye, &[floats("n, m")]), "f16[n, m]");
        assert!(inferred(&eye, &[floats("n")]).contains("rank 2"));
        let result = first(&EyeLike { dtype: DType::I32, diagonal: 1 }, &[&iota(&[2, 3])]);
        assert_eq!(result.elements::<i32>().unwrap(), [0, 1, 0, 0, 0, 1]);
        assert_eq!(run(&eye, &[Some(iota(&[2]))]).unwrap_err().to_string(), "operand 0 must have rank 2, found 1");
    }
}
