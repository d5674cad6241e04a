//! The cheapest way through a table of costs: `DynamicTimeWarping` of `com.microsoft`.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError};
use crate::value::Value;

attributes! {
    /// Rows and columns of the points of the cheapest way from the first point to the last, which goes on by a row, a column, or
    /// both: `costs: f32 [m, n]` or `[1, m, n]` to `i32 [2, points]`. Sums are of f32; of equal ones the way by a column is
    /// taken.
    pub struct TimeWarping revision 1 {}
}

/// Where a point is reached from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Both,
    Row,
    Column,
}

/// The points of the way, the last first; `None` where memory is short.
fn way(costs: &[f32], columns: usize) -> Option<Vec<[i32; 2]>> {
    let rows = costs.len() / columns.max(1);
    let mut steps = Vec::new();
    steps.try_reserve_exact(costs.len()).ok()?;
    // Sums of the row before, behind a column that nothing comes from.
    let mut above = Vec::new();
    above.try_reserve_exact(columns + 1).ok()?;
    above.resize(columns + 1, f32::INFINITY);
    above[0] = 0.0;
    for row in costs.chunks_exact(columns.max(1)) {
        let (mut left, mut corner) = (f32::INFINITY, above[0]);
        above[0] = f32::INFINITY;
        for (cost, above) in row.iter().zip(&mut above[1..]) {
            let (step, before) = match *above {
                above if corner < above && corner < left => (Step::Both, corner),
                above if above < corner && above < left => (Step::Row, above),
                _ => (Step::Column, left),
            };
            steps.push(step);
            corner = *above;
            left = cost + before;
            *above = left;
        }
    }
    let mut points = Vec::new();
    points.try_reserve_exact(rows + columns).ok()?;
    let (mut row, mut column) = (rows, columns);
    while row > 0 && column > 0 {
        points.push([row as i32 - 1, column as i32 - 1]);
        match steps[(row - 1) * columns + column - 1] {
            Step::Both => (row, column) = (row - 1, column - 1),
            Step::Row => row -= 1,
            Step::Column => column -= 1,
        }
    }
    Some(points)
}

fn rank_error(found: usize) -> TypeError {
    TypeError::Rank { operand: 0, expected: "2, or 3 with one table".to_string(), found }
}

impl Operator for TimeWarping {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (found, shape) = tensor_operand(inputs, 0)?;
        if found != DType::F32 {
            return Err(TypeError::ElementType { operand: 0, expected: "f32".to_string(), found });
        }
        match shape.dims() {
            None | Some([_, _]) => {}
            Some([tables, _, _]) => {
                context.require_equal(tables, &Dim::known(1), "tables of costs")?;
            }
            Some(dims) => return Err(rank_error(dims.len())),
        }
        Ok(vec![Fact::tensor(DType::I32, vec![Dim::known(2), context.fresh("points")])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let costs = tensor(inputs, 0)?;
        let columns = match *costs.shape() {
            [_, columns] | [1, _, columns] => columns,
            ref shape => return Err(rank_error(shape.len()).into()),
        };
        let points = way(costs.elements::<f32>()?, columns);
        let points =
            points.ok_or_else(|| TensorError::Memory { dtype: DType::I32, shape: vec![2, costs.shape().len()] })?;
        let axis = |axis: usize| points.iter().rev().map(move |point| point[axis]);
        let elements: Vec<i32> = axis(0).chain(axis(1)).collect();
        Ok(vec![Tensor::from_elements(&[2, points.len()], &elements)?.into()])
    }
}

impl Serial for TimeWarping {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 4)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    fn warped(shape: &[usize], costs: &[f32]) -> Vec<i32> {
        let costs = Tensor::from_elements(shape, costs).unwrap();
        run(&TimeWarping {}, &[costs]).unwrap().elements::<i32>().unwrap().to_vec()
    }

    #[test]
    fn the_cheapest_way_is_found() {
        let costs = [0.0, 9.0, 9.0, 0.0, 9.0, 9.0, 9.0, 0.0, 0.0];
        assert_eq!(warped(&[3, 3], &costs), [0, 1, 2, 2, 0, 0, 1, 2]);
        // Of equal sums that by a column.
        assert_eq!(warped(&[1, 2, 3], &[0.0; 6]), [0, 1, 1, 1, 0, 0, 1, 2]);
        assert_eq!(warped(&[2, 1], &[1.0, 1.0]), [0, 1, 0, 0]);
        assert_eq!(warped(&[0, 3], &[]), [0i32; 0]);
        assert_eq!(warped(&[3, 0], &[]), [0i32; 0]);
    }

    #[test]
    fn several_tables_are_refused() {
        let costs = Tensor::from_elements(&[2, 1, 1], &[0f32; 2]).unwrap();
        let error = run(&TimeWarping {}, &[costs]).unwrap_err().to_string();
        assert!(error.contains("tables of costs") || error.contains("rank"), "{error}");
    }
}
