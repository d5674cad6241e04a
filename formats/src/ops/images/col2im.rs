//! Sums of overlapping blocks: ONNX `Col2Im` (opset 18), with any number of spatial axes.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::products::convolution::require_multiple;
use crate::ops::scalar::{Scalar, from_scalars, is_number, scalars};
use crate::ops::windows::{WindowAxis, Windows, for_each_index, for_each_tap, listed, value_error, volume};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    integers, loops, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError, element_count};
use crate::value::Value;

attributes! {
    /// Adds columns up to an image: `x: [n, c * block, l]`, `image_shape: [r]`, `block_shape: [r]` (i64) to
    /// `[n, c, image..]`.
    pub struct Col2im revision 1 {
        /// Distance of blocks along each spatial axis; 1 where empty.
        1 since 1 => strides: Vec<i64>,
        /// Distance of taps along each spatial axis; 1 where empty.
        2 since 1 => dilations: Vec<i64>,
        /// Padding before each spatial axis, then after each; 0 where empty.
        3 since 1 => pads: Vec<i64>,
    }
}

impl Col2im {
    fn windows(&self) -> Windows<'_> {
        Windows {
            auto_pad: None,
            strides: &self.strides,
            dilations: &self.dilations,
            pads: &self.pads,
            ceil_mode: false,
        }
    }
}

/// Where the columns of a [`Col2im`] go.
pub struct Col2imPlan {
    /// The spatial axes: their `output` windows are read, their `input` positions written.
    pub axes: Vec<WindowAxis>,
    /// Shape of the result.
    pub shape: Vec<usize>,
}

impl Col2im {
    /// Windows and result for these operands.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not fit.
    pub fn plan(&self, inputs: &[Option<Value>]) -> Result<Col2imPlan, ReferenceError> {
        let x = tensor(inputs, 0)?;
        let sizes = |operand: usize| -> Result<Vec<usize>, ReferenceError> {
            let size = |size: i64| usize::try_from(size).map_err(|_| value_error("a size", size, "at least 0"));
            Ok(integers(inputs, operand)?.into_iter().map(size).collect::<Result<_, _>>()?)
        };
        let (image, block) = (sizes(1)?, sizes(2)?);
        if image.len() != block.len() {
            return Err(value_error("length of the block shape", block.len(), image.len().to_string()).into());
        }
        let axes = self.windows().resolve(&image, &block)?;
        let &[batch, columns, blocks] = x.shape() else {
            return Err(TypeError::Rank { operand: 0, expected: "3".to_string(), found: x.rank() }.into());
        };
        let outputs: Vec<usize> = axes.iter().map(|axis| axis.output).collect();
        let taps = volume(block.iter().copied());
        if taps == 0 || !columns.is_multiple_of(taps) || volume(outputs.iter().copied()) != blocks {
            return Err(TypeError::Dimension {
                subject: "columns".to_string(),
                left: format!("{:?}", x.shape()),
                right: format!("blocks of {block:?} at {outputs:?} positions"),
            }
            .into());
        }
        let channels = columns / taps;
        let shape: Vec<usize> = [batch, channels].into_iter().chain(image.iter().copied()).collect();
        if element_count(&shape).is_none() {
            return Err(TensorError::TooLarge { dtype: x.dtype(), shape }.into());
        }
        Ok(Col2imPlan { axes, shape })
    }
}

fn require_summable(dtype: DType) -> Result<(), TypeError> {
    if is_number(dtype) || dtype.is_complex() {
        return Ok(());
    }
    Err(TypeError::ElementType { operand: 0, expected: "a number to be added".to_string(), found: dtype })
}

/// Real and imaginary parts of a tensor, or the tensor itself.
fn parts(tensor: &Tensor) -> Result<Vec<Tensor>, ReferenceError> {
    let (part, width) = match tensor.dtype() {
        DType::C64 => (DType::F32, 4),
        DType::C128 => (DType::F64, 8),
        _ => return Ok(vec![tensor.clone()]),
    };
    let bytes = |offset: usize| -> Vec<u8> {
        tensor.bytes().chunks(2 * width).flat_map(|pair| pair[offset..offset + width].to_vec()).collect()
    };
    Ok(vec![
        Tensor::from_bytes(part, tensor.shape(), &bytes(0))?,
        Tensor::from_bytes(part, tensor.shape(), &bytes(width))?,
    ])
}

/// The inverse of [`parts`].
fn joined(dtype: DType, parts: &[Tensor]) -> Result<Tensor, ReferenceError> {
    let (real, imaginary) = match parts {
        [real, imaginary] => (real, imaginary),
        [whole] => return Ok(whole.clone()),
        _ => return Err(TypeError::Unsupported("a number of many parts".to_string()).into()),
    };
    let width = dtype.bits() / 16;
    let pairs = real.bytes().chunks(width).zip(imaginary.bytes().chunks(width));
    let bytes: Vec<u8> = pairs.flat_map(|(real, imaginary)| [real, imaginary].concat()).collect();
    Ok(Tensor::from_bytes(dtype, real.shape(), &bytes)?)
}

impl Operator for Col2im {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        require_summable(dtype)?;
        if let Some(found) = x.rank().filter(|&rank| rank != 3) {
            return Err(TypeError::Rank { operand: 0, expected: "3".to_string(), found });
        }
        let mut rank = None;
        for operand in [1, 2] {
            let (found, shape) = tensor_operand(inputs, operand)?;
            if found != DType::I64 {
                return Err(TypeError::ElementType { operand, expected: "i64".to_string(), found });
            }
            match shape.dims() {
                Some([length]) => rank = rank.or(length.as_known()),
                None => {}
                Some(dims) => return Err(TypeError::Rank { operand, expected: "1".to_string(), found: dims.len() }),
            }
        }
        let image = inputs[1].as_ref().and_then(Fact::elements_as_dims);
        let block = inputs[2].as_ref().and_then(Fact::elements_as_dims);
        let rank = image.as_ref().or(block.as_ref()).map(Vec::len).or(rank.and_then(|rank| usize::try_from(rank).ok()));
        self.windows().check(rank)?;
        let Some(rank) = rank else { return Ok(vec![Fact::tensor(dtype, crate::fact::Shape::Unranked)]) };
        let batch = x.dims().map_or_else(|| context.fresh("batch"), |dims| dims[0].clone());
        let mut channels = context.fresh("channels");
        if let (Some([_, columns, _]), Some(block)) = (x.dims(), &block) {
            let size = Dim::product(block);
            if size.as_known().is_some_and(|size| size < 1) {
                return Err(value_error("size of a block", size, "at least 1"));
            }
            require_multiple(columns, &size, "channels of the columns", context)?;
            channels = columns.divide_exact(&size).unwrap_or_else(|| columns.floor_div(&size));
        }
        let mut dims = vec![batch, channels];
        match &image {
            Some(image) => dims.extend_from_slice(image),
            None => dims.extend((0..rank).map(|axis| context.fresh(&format!("extent.{axis}")))),
        }
        if let (Some(image), Some(block), Some([_, _, columns])) = (&image, &block, x.dims()) {
            if image.len() != block.len() {
                return Err(value_error("length of the block shape", block.len(), image.len().to_string()));
            }
            let blocks = Dim::product(&self.windows().extents(image, block)?);
            context.require_equal(columns, &blocks, "number of blocks")?;
        }
        Ok(vec![Fact::tensor(dtype, dims)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        require_summable(x.dtype())?;
        let Col2imPlan { axes, shape } = self.plan(inputs)?;
        let (&[_, _, blocks], [batch, channels, image @ ..]) = (x.shape(), shape.as_slice()) else {
            return Err(TypeError::Rank { operand: 0, expected: "3".to_string(), found: x.rank() }.into());
        };
        let outputs: Vec<usize> = axes.iter().map(|axis| axis.output).collect();
        let taps = volume(axes.iter().map(|axis| axis.kernel));
        let count = volume(shape.iter().copied());
        let size = volume(image.iter().copied());
        let sum_part = |part: Tensor| -> Result<Tensor, ReferenceError> {
            let elements = scalars(&part)?;
            let zero = if part.dtype().is_integer() { Scalar::Integer(0) } else { Scalar::Float(0.0) };
            let mut sums = listed(part.dtype(), &shape)?;
            sums.resize(count, zero);
            if count > 0 {
                for plane in 0..batch * channels {
                    let mut column = 0;
                    for_each_index(&outputs, |output| {
                        for_each_tap(&axes, output, |tap, position| {
                            let sum = &mut sums[plane * size + position];
                            *sum = added(*sum, elements[(plane * taps + tap) * blocks + column]);
                        });
                        column += 1;
                    });
                }
            }
            from_scalars(part.dtype(), &shape, &sums)
        };
        let sums = parts(x)?.into_iter().map(sum_part).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![joined(x.dtype(), &sums)?.into()])
    }
}

impl Computes for Col2im {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let rest = facts.dims(0).map_or(Dim::ZERO, |dims| Dim::product(dims.get(1..).unwrap_or(&[])));
        loops::leading(facts, 1, &rest)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

fn added(left: Scalar, right: Scalar) -> Scalar {
    match (left, right) {
        (Scalar::Integer(left), Scalar::Integer(right)) => Scalar::Integer(left.wrapping_add(right)),
        (left, right) => Scalar::Float(left.to_f64() + right.to_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;
    use num_complex::Complex;

    fn plain() -> Col2im {
        Col2im { strides: vec![], dilations: vec![], pads: vec![] }
    }

    #[test]
    fn overlapping_blocks_are_added() {
        // Blocks of two in a row of three: [1, 2] at 0 and [10, 20] at 1.
        let x = Tensor::from_elements(&[1, 2, 2], &[1i64, 10, 2, 20]).unwrap();
        let operands = [x, Tensor::vector_i64(&[3]), Tensor::vector_i64(&[2])];
        assert_eq!(run(&plain(), &operands).unwrap().elements::<i64>().unwrap(), [1, 12, 20]);
        let padded = Col2im { pads: vec![1, 0], ..plain() };
        let x = Tensor::from_elements(&[1, 2, 2], &[1i64, 10, 2, 20]).unwrap();
        let operands = [x, Tensor::vector_i64(&[2]), Tensor::vector_i64(&[2])];
        assert_eq!(run(&padded, &operands).unwrap().elements::<i64>().unwrap(), [12, 20]);
    }

    #[test]
    fn complex_numbers_are_added_by_parts() {
        let x = [Complex::new(1.0f32, -1.0), Complex::new(2.0, -2.0), Complex::new(3.0, 5.0), Complex::new(4.0, 6.0)];
        let x = Tensor::from_elements(&[1, 2, 2], &x).unwrap();
        let operands = [x, Tensor::vector_i64(&[3]), Tensor::vector_i64(&[2])];
        let sums = run(&plain(), &operands).unwrap();
        assert_eq!(sums.elements::<Complex<f32>>().unwrap()[1], Complex::new(5.0, 3.0));
    }

    #[test]
    fn misfits_are_refused() {
        let x = Tensor::from_elements(&[1, 2, 2], &[1i64, 10, 2, 20]).unwrap();
        let refused = |image: &[i64], block: &[i64]| {
            run(&plain(), &[x.clone(), Tensor::vector_i64(image), Tensor::vector_i64(block)]).is_err()
        };
        assert!(refused(&[4], &[2]));
        assert!(refused(&[3], &[0]));
        assert!(refused(&[3], &[3]));
        assert!(refused(&[-3], &[2]));
        let strings = Tensor::from_strings(&[1, 1, 1], vec!["a".into()]).unwrap();
        assert_eq!(
            run(&plain(), &[strings, Tensor::vector_i64(&[1]), Tensor::vector_i64(&[1])]).unwrap_err().to_string(),
            "operand 0 must be a number to be added, found string"
        );
    }
}
