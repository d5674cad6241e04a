//! Channels to squares of pixels and back: ONNX `DepthToSpace` (opsets 1, 11, 13, 28) and `SpaceToDepth` (opsets 1, 13,
//! 28).

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{flat, follow, moved, unknown_shape};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts, TypeError, loops,
    tensor, tensor_operand,
};
use crate::tensor::{TensorError, strides};
use crate::value::Value;

attributes! {
    /// `x: [n, c * block * block, h, w]` to `[n, c, h * block, w * block]`.
    pub struct DepthToSpace revision 1 {
        /// Side of the squares.
        1 since 1 => block: i64,
        /// How channels are counted.
        2 since 1 => order: ChannelOrder,
    }
}

attributes! {
    /// `x: [n, c, h * block, w * block]` to `[n, c * block * block, h, w]`.
    pub struct SpaceToDepth revision 1 {
        /// Side of the squares.
        1 since 1 => block: i64,
        /// How channels are counted.
        2 since 1 => order: ChannelOrder,
    }
}

/// How the channels behind a square are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ChannelOrder {
    /// Place in the square first: `(row * block + column) * c + channel`.
    Dcr,
    /// Channel first: `(channel * block + row) * block + column`.
    Crd,
}
impl Keyword for ChannelOrder {}

impl ChannelOrder {
    /// The channel beside squares for one of `channels` and a place in a square.
    pub fn channel(self, block: usize, channels: usize, channel: usize, row: usize, column: usize) -> usize {
        match self {
            ChannelOrder::Dcr => (row * block + column) * channels + channel,
            ChannelOrder::Crd => (channel * block + row) * block + column,
        }
    }
}

/// The side of a square, small enough for its area not to overflow.
fn side(block: i64) -> Result<usize, TypeError> {
    let refused = || TypeError::Value {
        subject: "block".to_string(),
        found: block.to_string(),
        expected: format!("1 to {}", i32::MAX),
    };
    usize::try_from(block).ok().filter(|&side| (1..=i32::MAX as usize).contains(&side)).ok_or_else(refused)
}

fn image(shape: &Shape, context: &InferContext<'_>) -> Result<[Dim; 4], TypeError> {
    let unknown = unknown_shape(context, Some(4));
    let dims = shape.dims().or(unknown.dims()).unwrap_or(&[]);
    let found = dims.len();
    let four = <[Dim; 4]>::try_from(dims.to_vec());
    four.map_err(|_| TypeError::Rank { operand: 0, expected: "4".to_string(), found })
}

fn divided(dim: &Dim, divisor: i64, subject: &str, context: &mut InferContext<'_>) -> Result<Dim, TypeError> {
    let divisor = Dim::known(divisor);
    if let Some(quotient) = dim.divide_exact(&divisor) {
        return Ok(quotient);
    }
    if dim.is_known() {
        let (left, right) = (dim.to_string(), divisor.to_string());
        return Err(TypeError::Dimension { subject: subject.to_string(), left, right });
    }
    context.oblige(Relation::Multiple, dim, &divisor, subject);
    Ok(dim.floor_div(&divisor))
}

fn image_extents(shape: &[usize]) -> Result<[usize; 4], TypeError> {
    let refused = |_| TypeError::Rank { operand: 0, expected: "4".to_string(), found: shape.len() };
    <[usize; 4]>::try_from(shape).map_err(refused)
}

fn divided_extent(extent: usize, divisor: usize) -> Result<usize, TypeError> {
    if extent.is_multiple_of(divisor) {
        return Ok(extent / divisor);
    }
    let (left, right) = (extent.to_string(), divisor.to_string());
    Err(TypeError::Dimension { subject: "blocks of an axis".to_string(), left, right })
}

impl Operator for DepthToSpace {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let block = side(self.block)? as i64;
        let [batch, depth, height, width] = image(shape, context)?;
        let channels = divided(&depth, block * block, "channels", context)?;
        let mut results = vec![Fact::tensor(dtype, vec![batch, channels, height * block, width * block])];
        follow(self, inputs, &[0], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let block = side(self.block)?;
        let [batch, depth, height, width] = image_extents(data.shape())?;
        let channels = divided_extent(depth, block * block)?;
        let too_large = || TensorError::TooLarge { dtype: data.dtype(), shape: data.shape().to_vec() };
        let grown = |extent: usize| extent.checked_mul(block).ok_or_else(too_large);
        let extents = [batch, channels, grown(height)?, grown(width)?];
        let strides = strides(data.shape());
        let source = |at: &[usize]| {
            let channel = self.order.channel(block, channels, at[1], at[2] % block, at[3] % block);
            Some(flat(&[at[0], channel, at[2] / block, at[3] / block], &strides))
        };
        Ok(vec![moved(data, &extents, source)?.into()])
    }
}

impl Moves for DepthToSpace {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |axis| (axis == 0).then(|| loops::operand(0, 0)))
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

impl Operator for SpaceToDepth {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let block = side(self.block)? as i64;
        let [batch, channels, height, width] = image(shape, context)?;
        let height = divided(&height, block, "height", context)?;
        let width = divided(&width, block, "width", context)?;
        let mut results = vec![Fact::tensor(dtype, vec![batch, channels * (block * block), height, width])];
        follow(self, inputs, &[0], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let block = side(self.block)?;
        let [batch, channels, height, width] = image_extents(data.shape())?;
        let too_large = || TensorError::TooLarge { dtype: data.dtype(), shape: data.shape().to_vec() };
        let depth = channels.checked_mul(block * block).ok_or_else(too_large)?;
        let extents = [batch, depth, divided_extent(height, block)?, divided_extent(width, block)?];
        let strides = strides(data.shape());
        let source = |at: &[usize]| {
            let (channel, row, column) = match self.order {
                ChannelOrder::Dcr => {
                    let place = at[1] / channels;
                    (at[1] % channels, place / block, place % block)
                }
                ChannelOrder::Crd => (at[1] / (block * block), at[1] / block % block, at[1] % block),
            };
            Some(flat(&[at[0], channel, at[2] * block + row, at[3] * block + column], &strides))
        };
        Ok(vec![moved(data, &extents, source)?.into()])
    }
}

impl Moves for SpaceToDepth {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |axis| (axis == 0).then(|| loops::operand(0, 0)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{first, floats, infer, inferred, iota};
    use strum::VariantArray;

    #[test]
    fn extents_move_between_axes() {
        let order = ChannelOrder::Dcr;
        assert_eq!(inferred(&DepthToSpace { block: 2, order }, &[floats("n, 8, h, w")]), "f32[n, 2, 2*h, 2*w]");
        assert_eq!(inferred(&SpaceToDepth { block: 2, order }, &[floats("n, 3, 2*h, 6")]), "f32[n, 12, h, 3]");
        let (_, obligations) = infer(&SpaceToDepth { block: 2, order }, &[Some(floats("n, 3, h, 6"))]).unwrap();
        assert_eq!(obligations, ["h multiple 2"]);
        assert!(inferred(&DepthToSpace { block: 2, order }, &[floats("n, 6, h, w")]).contains("6 does not fit 4"));
        assert!(inferred(&DepthToSpace { block: 0, order }, &[floats("n, 6, h, w")]).contains("block is 0"));
        assert!(inferred(&DepthToSpace { block: 2, order }, &[floats("n, 4")]).contains("rank 4"));
    }

    #[test]
    fn the_two_are_inverse() {
        for &order in ChannelOrder::VARIANTS {
            let data = iota(&[2, 12, 2, 3]);
            let spread = first(&DepthToSpace { block: 2, order }, &[&data]);
            assert_eq!(first(&SpaceToDepth { block: 2, order }, &[&spread]), data);
        }
    }

    #[test]
    fn orders_differ() {
        let row = |order| {
            let spread = first(&DepthToSpace { block: 2, order }, &[&iota(&[1, 8, 1, 1])]);
            spread.elements::<f32>().unwrap()[..4].to_vec()
        };
        assert_eq!(row(ChannelOrder::Dcr), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(row(ChannelOrder::Crd), [0.0, 1.0, 2.0, 3.0]);
    }
}
