//! Sampling grids of affine maps: ONNX `AffineGrid` (opset 20), two or three spatial axes.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::windows::{for_each_index, listed, value_error};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    integers, loops, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Positions for `GridSample`: `theta: [n, r, r + 1]`, `size: [r + 2]` (i64: n, c, extents) to `[n, extents.., r]`.
    pub struct AffineGrid revision 1 {
        /// -1 and 1 are the centres of the outer elements, not their edges.
        1 since 1 => align_corners: bool,
    }
}

impl AffineGrid {
    /// Normalized position of an element along an axis.
    pub fn position(&self, index: usize, extent: usize) -> f64 {
        let (index, extent) = (index as f64, extent as f64);
        if !self.align_corners {
            return (2.0 * index + 1.0) / extent - 1.0;
        }
        if extent > 1.0 { 2.0 * index / (extent - 1.0) - 1.0 } else { -1.0 }
    }
}

/// Number of spatial axes, from either operand.
fn spatial_rank(theta: Option<&[Dim]>, size: Option<&[Dim]>) -> Result<Option<usize>, TypeError> {
    if let Some(dims) = theta
        && dims.len() != 3
    {
        return Err(TypeError::Rank { operand: 0, expected: "3".to_string(), found: dims.len() });
    }
    if let Some(dims) = size
        && dims.len() != 1
    {
        return Err(TypeError::Rank { operand: 1, expected: "1".to_string(), found: dims.len() });
    }
    let from_theta = theta.and_then(|dims| dims[1].as_known());
    let from_size = size.and_then(|dims| dims[0].as_known()).map(|length| length - 2);
    match from_theta.or(from_size) {
        None => Ok(None),
        Some(rank @ (2 | 3)) => Ok(Some(rank as usize)),
        Some(other) => Err(value_error("number of spatial axes", other, "2 or 3")),
    }
}

impl Operator for AffineGrid {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, theta) = tensor_operand(inputs, 0)?;
        let (size_dtype, size) = tensor_operand(inputs, 1)?;
        require_float(dtype, 0)?;
        if size_dtype != DType::I64 {
            return Err(TypeError::ElementType { operand: 1, expected: "i64".to_string(), found: size_dtype });
        }
        let Some(rank) = spatial_rank(theta.dims(), size.dims())? else {
            return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]);
        };
        if let Some([_, rows, columns]) = theta.dims() {
            context.require_equal(rows, &Dim::from(rank), "rows of the affine map")?;
            context.require_equal(columns, &Dim::from(rank + 1), "columns of the affine map")?;
        }
        if let Some([length]) = size.dims() {
            context.require_equal(length, &Dim::from(rank + 2), "length of the size")?;
        }
        let sizes = inputs.get(1).and_then(Option::as_ref).and_then(Fact::elements_as_dims);
        let mut dims = match (&sizes, theta.dims()) {
            (Some(sizes), Some([batch, ..])) => vec![context.require_equal(batch, &sizes[0], "batch of the grid")?],
            (None, Some([batch, ..])) => vec![batch.clone()],
            (Some(sizes), Some([]) | None) => vec![sizes[0].clone()],
            (None, Some([]) | None) => vec![context.fresh("batch")],
        };
        dims.extend((0..rank).map(|axis| match &sizes {
            Some(sizes) => sizes[axis + 2].clone(),
            None => context.fresh(&format!("extent.{axis}")),
        }));
        if let Some(negative) = dims.iter().find(|dim| dim.as_known().is_some_and(|extent| extent < 0)) {
            return Err(value_error("a size", negative, "at least 0"));
        }
        dims.push(Dim::from(rank));
        Ok(vec![Fact::tensor(dtype, dims)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let theta = tensor(inputs, 0)?;
        require_float(theta.dtype(), 0)?;
        let sizes = integers(inputs, 1)?;
        let extents: Vec<usize> = sizes.iter().map(|&size| usize::try_from(size).unwrap_or(usize::MAX)).collect();
        let rank = extents.len().saturating_sub(2);
        if !matches!(rank, 2 | 3) || theta.shape() != [extents[0], rank, rank + 1] {
            return Err(TypeError::Dimension {
                subject: "affine map".to_string(),
                left: format!("{:?}", theta.shape()),
                right: format!("size {sizes:?}"),
            }
            .into());
        }
        let mut shape = vec![extents[0]];
        shape.extend_from_slice(&extents[2..]);
        let mut with_positions = shape.clone();
        with_positions.push(rank);
        let map: Vec<f64> = scalars(theta)?.into_iter().map(Scalar::to_f64).collect();
        let mut grid = listed(theta.dtype(), &with_positions)?;
        for_each_index(&shape, |index| {
            // Innermost axis first, then 1 for the translation.
            let outermost_first = index[1..].iter().zip(&shape[1..]);
            let mut point: Vec<f64> = outermost_first.map(|(&index, &extent)| self.position(index, extent)).collect();
            point.reverse();
            point.push(1.0);
            let rows = map[index[0] * rank * (rank + 1)..].chunks(rank + 1).take(rank);
            grid.extend(rows.map(|row| Scalar::Float(row.iter().zip(&point).map(|(left, right)| left * right).sum())));
        });
        Ok(vec![from_scalars(theta.dtype(), &with_positions, &grid)?.into()])
    }
}

impl Computes for AffineGrid {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let batch = |axis: usize| (axis == 0).then(|| loops::operand(0, 0));
        loops::mapped(facts, batch)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let terms = facts.dims(0).and_then(|dims| dims.last().cloned()).unwrap_or_else(|| facts.fresh("terms"));
        each(&(facts.result_elements(0) * terms), &[(VectorClass::Arithmetic, 2)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    #[test]
    fn the_identity_gives_centres_or_corners() {
        let theta = Tensor::from_elements(&[1, 2, 3], &[1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0]).unwrap();
        let size = Tensor::vector_i64(&[1, 1, 1, 2]);
        let centres = run(&AffineGrid { align_corners: false }, &[theta.clone(), size.clone()]).unwrap();
        assert_eq!(
            (centres.shape(), centres.elements::<f32>().unwrap()),
            (&[1, 1, 2, 2][..], &[-0.5f32, 0.0, 0.5, 0.0][..])
        );
        let corners = run(&AffineGrid { align_corners: true }, &[theta.clone(), size]).unwrap();
        assert_eq!(corners.elements::<f32>().unwrap(), [-1.0, -1.0, 1.0, -1.0]);
        let negative = Tensor::vector_i64(&[1, 1, -1, 2]);
        assert_eq!(
            run(&AffineGrid { align_corners: true }, &[theta, negative]).unwrap_err().to_string(),
            "f32[1, 18446744073709551615, 2, 2] is too large to address"
        );
    }

    #[test]
    fn maps_and_translations_in_three_axes() {
        let rows = [0.0f32, 0.0, 1.0, 5.0, 0.0, 1.0, 0.0, 6.0, 1.0, 0.0, 0.0, 7.0];
        let theta = Tensor::from_elements(&[1, 3, 4], &rows).unwrap();
        let size = Tensor::vector_i64(&[1, 1, 2, 1, 1]);
        let grid = run(&AffineGrid { align_corners: false }, &[theta, size]).unwrap();
        assert_eq!(grid.elements::<f32>().unwrap(), [4.5, 6.0, 7.0, 5.5, 6.0, 7.0]);
    }
}
