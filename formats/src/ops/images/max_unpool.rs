//! Partial inverse of a maximum pool: ONNX `MaxUnpool` (opsets 9, 11, 22).
//!
//! Without an output shape, extents follow from the window attributes and indices count elements of the result. With
//! one they count elements of the result too, as `MaxPool` gives them, but cases of the operator's own tests count
//! them in the extents that would follow without: indices are read so where they do not lie in their windows of the
//! result.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::products::convolution::require_float;
use crate::ops::windows::{at, check_list, for_each_index, listed, value_error};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    integers, loops, tensor, tensor_operand,
};
use crate::tensor::{TensorError, element_count};
use crate::value::Value;

attributes! {
    /// Puts elements where indices say, and zeros elsewhere: `x: [n, c, d..]`, `indices: [n, c, d..]` (i64), optional
    /// `output_shape: [rank]` (i64) to `[n, c, o..]`.
    pub struct MaxUnpool revision 1 {
        /// Extent of a window along each spatial axis.
        1 since 1 => kernel: Vec<i64>,
        /// Distance of windows along each spatial axis; 1 where empty.
        2 since 1 => strides: Vec<i64>,
        /// Padding before each spatial axis, then after each; 0 where empty.
        3 since 1 => pads: Vec<i64>,
    }
}

impl MaxUnpool {
    fn check(&self, rank: Option<usize>) -> Result<(), TypeError> {
        if let Some(found) = rank.filter(|&rank| rank < 3) {
            return Err(TypeError::Rank { operand: 0, expected: "at least 3".to_string(), found });
        }
        if self.kernel.is_empty() {
            return Err(value_error("`kernel`", "empty", "an extent for each spatial axis"));
        }
        let spatial = Some(rank.map_or(self.kernel.len(), |rank| rank - 2));
        check_list("kernel", &self.kernel, spatial, 1)?;
        check_list("strides", &self.strides, spatial, 1)?;
        check_list("pads", &self.pads, spatial.map(|spatial| 2 * spatial), 0)
    }

    /// Extents of the result that follow from the attributes.
    fn extents(&self, dims: &[Dim]) -> Vec<Dim> {
        let rank = self.kernel.len();
        let spatial = dims[2..].iter().enumerate().map(|(axis, dim)| {
            let pads = Dim::known(at(&self.pads, axis, 0) + at(&self.pads, rank + axis, 0));
            (dim - 1) * at(&self.strides, axis, 1) + self.kernel[axis] - pads
        });
        dims[..2].iter().cloned().chain(spatial).collect()
    }

    /// Every index lies in its window of an output of these extents, and in its own plane.
    fn lie_in_windows(&self, x: &[usize], indices: &[i64], output: &[usize]) -> bool {
        let mut flat = 0;
        let mut all = true;
        for_each_index(x, |position| {
            let mut rest = indices[flat];
            flat += 1;
            for axis in (0..x.len()).rev() {
                let extent = output[axis].max(1) as i64;
                let own = rest.rem_euclid(extent);
                rest = rest.div_euclid(extent);
                let range = if axis < 2 {
                    position[axis] as i64..position[axis] as i64 + 1
                } else {
                    let stride = at(&self.strides, axis - 2, 1);
                    let start = (position[axis] as i64).saturating_mul(stride) - at(&self.pads, axis - 2, 0);
                    start..start.saturating_add(self.kernel[axis - 2])
                };
                all &= range.contains(&own);
            }
            all &= rest == 0;
        });
        all
    }
}

impl Operator for MaxUnpool {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (indices_dtype, indices) = tensor_operand(inputs, 1)?;
        require_float(dtype, 0)?;
        if indices_dtype != DType::I64 {
            return Err(TypeError::ElementType { operand: 1, expected: "i64".to_string(), found: indices_dtype });
        }
        self.check(x.rank())?;
        let rank = self.kernel.len() + 2;
        if let (Shape::Ranked(x), Shape::Ranked(indices)) = (x, indices) {
            if x.len() != indices.len() {
                return Err(TypeError::Rank { operand: 1, expected: x.len().to_string(), found: indices.len() });
            }
            for (x, index) in x.iter().zip(indices) {
                context.require_equal(x, index, "extent of the indices")?;
            }
        }
        let fresh = || (0..rank).map(|axis| context.fresh(&format!("extent.{axis}"))).collect::<Vec<Dim>>();
        let dims = match (inputs.get(2).and_then(Option::as_ref), x) {
            (Some(asked), _) => {
                let (found, _) = tensor_operand(inputs, 2)?;
                if found != DType::I64 {
                    return Err(TypeError::ElementType { operand: 2, expected: "i64".to_string(), found });
                }
                asked.elements_as_dims().unwrap_or_else(fresh)
            }
            (None, Shape::Ranked(dims)) => self.extents(dims),
            (None, Shape::Unranked) => fresh(),
        };
        if dims.len() != rank {
            return Err(value_error("length of the output shape", dims.len(), rank.to_string()));
        }
        if let Some(negative) = dims.iter().find(|dim| dim.as_known().is_some_and(|extent| extent < 0)) {
            return Err(value_error("an extent of the output", negative, "at least 0"));
        }
        Ok(vec![Fact::tensor(dtype, dims)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, indices) = (tensor(inputs, 0)?, integers(inputs, 1)?);
        require_float(x.dtype(), 0)?;
        self.check(Some(x.rank()))?;
        if indices.len() != x.count() {
            return Err(value_error("number of indices", indices.len(), x.count().to_string()).into());
        }
        let too_large = |shape: &[usize]| TensorError::TooLarge { dtype: x.dtype(), shape: shape.to_vec() };
        let dims: Vec<Dim> = x.shape().iter().map(|&extent| Dim::from(extent)).collect();
        let sizes = |sizes: Vec<Option<i64>>| -> Result<Vec<usize>, TypeError> {
            let size = |size: Option<i64>| size.and_then(|size| usize::try_from(size).ok());
            sizes
                .into_iter()
                .map(|found| {
                    size(found).ok_or_else(|| value_error("an extent of the output", found.unwrap_or(-1), "at least 0"))
                })
                .collect()
        };
        let inferred = sizes(self.extents(&dims).iter().map(Dim::as_known).collect())?;
        let asked = match inputs.get(2).and_then(Option::as_ref) {
            None => inferred.clone(),
            Some(_) => sizes(integers(inputs, 2)?.into_iter().map(Some).collect())?,
        };
        if asked.len() != x.rank() {
            return Err(value_error("length of the output shape", asked.len(), x.rank().to_string()).into());
        }
        // The extents in which indices count; their corner is the result.
        let counted =
            if asked == inferred || self.lie_in_windows(x.shape(), &indices, &asked) { &asked } else { &inferred };
        let count = element_count(counted).ok_or_else(|| too_large(counted))?;
        let mut sources: Vec<Option<usize>> = listed(x.dtype(), counted)?;
        sources.resize(count, None);
        for (source, &index) in indices.iter().enumerate() {
            let target = usize::try_from(index).ok().and_then(|index| sources.get_mut(index));
            *target.ok_or_else(|| ReferenceError::OutOfRange {
                subject: "an index of a maximum".to_string(),
                found: index,
                range: format!("0..{count}"),
            })? = Some(source);
        }
        let mut chosen = listed(x.dtype(), &asked)?;
        for_each_index(&asked, |position| {
            let flat = position
                .iter()
                .zip(counted)
                .try_fold(0, |flat, (&index, &extent)| (index < extent).then_some(flat * extent + index));
            chosen.push(flat.and_then(|flat| sources[flat]));
        });
        Ok(vec![x.select(&asked, chosen.into_iter())?.into()])
    }
}

impl Computes for MaxUnpool {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        // Indices count over all batches and channels.
        loops::serial(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use crate::tensor::Tensor;

    fn operands(indices: &[i64]) -> Vec<Tensor> {
        let x = Tensor::from_elements(&[1, 1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        vec![x, Tensor::from_elements(&[1, 1, 2, 2], indices).unwrap()]
    }

    fn operator() -> MaxUnpool {
        MaxUnpool { kernel: vec![2, 2], strides: vec![2, 2], pads: vec![] }
    }

    #[test]
    fn elements_go_where_indices_say() {
        let result = run(&operator(), &operands(&[5, 7, 13, 15])).unwrap();
        let expected = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 4.0];
        assert_eq!((result.shape(), result.elements::<f32>().unwrap()), (&[1, 1, 4, 4][..], &expected[..]));
        assert_eq!(
            run(&operator(), &operands(&[5, 7, 13, 16])).unwrap_err().to_string(),
            "an index of a maximum is 16, outside 0..16"
        );
        assert_eq!(
            run(&operator(), &operands(&[-1, 7, 13, 15])).unwrap_err().to_string(),
            "an index of a maximum is -1, outside 0..16"
        );
    }

    #[test]
    fn an_output_shape_enlarges() {
        let asked = |indices: &[i64]| {
            let mut operands = operands(indices);
            operands.push(Tensor::vector_i64(&[1, 1, 5, 5]));
            let result = run(&operator(), &operands).unwrap();
            let found = result.elements::<f32>().unwrap().iter().enumerate().filter(|(_, element)| **element != 0.0);
            found.map(|(index, _)| index).collect::<Vec<_>>()
        };
        // As the operator's test counts them, in 4 by 4; then as a pool of 5 by 5 gives them.
        assert_eq!(asked(&[5, 7, 13, 15]), [6, 8, 16, 18]);
        assert_eq!(asked(&[6, 8, 16, 18]), [6, 8, 16, 18]);
    }
}
