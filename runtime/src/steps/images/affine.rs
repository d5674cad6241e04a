//! Positions of affine maps, each summed in f64 and rounded once, as the reference does.

use crate::steps::normalization::reduction::{loaded, reference};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{self, AffineGrid};
use ipuc_formats::tensor::{element_count, room};
use ipuc_formats::value::Value;
use ipuc_kernels::threads::{chunks, parts};

/// About how many operations a position costs.
const COST: usize = 8;

impl Kernel for AffineGrid {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let (theta, sizes) = (ops::tensor(&inputs, 0)?, ops::integers(&inputs, 1)?);
        let extents: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
        let extents = extents.unwrap_or_default();
        let (Some((&batch, rest)), true) = (extents.split_first(), theta.dtype() == DType::F32) else {
            return reference(self, inputs, context);
        };
        let spatial = rest.get(1..).unwrap_or_default();
        let rank = spatial.len();
        let shape = [&[batch], spatial, &[rank]].concat();
        if !matches!(rank, 2 | 3) || theta.shape() != [batch, rank, rank + 1] || element_count(&shape).is_none() {
            return reference(self, inputs, context);
        }
        let mut result = context.allocate(0, DType::F32, &shape)?;
        // Without elements extents may be of any size.
        if result.count() == 0 {
            return Ok(vec![result.into()]);
        }
        let maps = theta.elements::<f32>()?;
        let mut axes: Vec<Vec<f64>> = Vec::new();
        for &extent in spatial {
            let mut positions = room(extent)?;
            positions.extend((0..extent).map(|index| self.position(index, extent)));
            axes.push(positions);
        }
        let out = result.elements_mut::<f32>()?;
        let Some((columns, outer)) = axes.split_last() else { return Ok(vec![result.into()]) };
        let (line, lines) = (columns.len() * rank, out.len() / (columns.len() * rank));
        let each = lines.div_ceil(parts(out.len() * COST, lines));
        chunks(out, each * line, |part, out| {
            for (at, out) in out.chunks_exact_mut(line).enumerate() {
                let mut rest = part * each + at;
                // The outer positions, innermost first.
                let mut point = [0.0; 2];
                for (place, positions) in point.iter_mut().zip(outer.iter().rev()) {
                    *place = positions[rest % positions.len()];
                    rest /= positions.len();
                }
                let map = &maps[rest * rank * (rank + 1)..][..rank * (rank + 1)];
                for (row, map) in map.chunks_exact(rank + 1).enumerate() {
                    let factor = |at: usize| f64::from(map[at]);
                    for (out, column) in out.iter_mut().skip(row).step_by(rank).zip(columns) {
                        let sum = factor(0) * column + factor(1) * point[0];
                        let sum = if rank == 3 { sum + factor(2) * point[1] } else { sum };
                        *out = (sum + factor(rank)) as f32;
                    }
                }
            }
        });
        Ok(vec![result.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use ipuc_formats::tensor::Tensor;

    #[test]
    fn positions_have_the_bits_of_the_reference() {
        for align_corners in [false, true] {
            for sizes in
                [&[2i64, 3, 5, 7][..], &[1, 1, 1, 4], &[2, 1, 3, 4, 5], &[1, 2, 200, 100], &[0, 1, 3, 3], &[1, 1, 3, 0]]
            {
                let rank = sizes.len() - 2;
                for dtype in [DType::F32, DType::F64] {
                    let theta = random(dtype, &[sizes[0] as usize, rank, rank + 1], 3);
                    check(&AffineGrid { align_corners }, &[theta, Some(Tensor::vector_i64(sizes))], 0.0);
                }
            }
        }
    }
}
