//! Batch normalization by constants after a convolution goes into the filters and the bias of that.
//!
//! ```text
//! constant @w : f32[2, 1, 1] = f32[2, 1, 1]:[1.0, 3.0]
//! constant @scale : f32[2] = f32[2]:[4.0, 2.0]
//! constant @bias : f32[2] = f32[2]:[0.5, 0.5]
//! constant @mean : f32[2] = f32[2]:[1.0, 2.0]
//! constant @variance : f32[2] = f32[2]:[4.0, 1.0]
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 1, 8]) {
//!   %c : f32[n, 2, 8] = convolution groups=1 %x, @w from "conv"
//!   %y : f32[n, 2, 8] = batch_normalization epsilon=0 momentum=0.9 %c, @scale, @bias, @mean, @variance from "normalize"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @w : f32[2, 1, 1] = f32[2, 1, 1]:[1.0, 3.0]
//! constant @5 : f32[2, 1, 1] = f32[2, 1, 1]:[2.0, 2.0]
//! constant @6 "w" : f32[2, 1, 1] = binary function=mul @w, @5
//! constant @7 : f32[2] = f32[2]:[-1.5, -3.5]
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 1, 8]) {
//!   %y : f32[n, 2, 8] = convolution groups=1 %x, @6, @7 from "conv + normalize"
//!   return %y
//! }
//! ```
//!
//! Each filter is multiplied by its factor while the file is written, and the bias is `(bias - mean) * factor + bias of the
//! normalization`, computed in f64. Results are off by a few roundings of what is summed, as the sums themselves are. Leaves alone:
//! filters that are not floats in the model's file, or that are computed, and factors so large or small that products with them
//! would leave the range of f32.

use super::batch_normalization::Channels;
use super::readers::{Steps, join_each};
use crate::ir::{Constant, ConstantData, ConstantId, Graph, Operand, Step};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Binary, BinaryFunction, Convolution, Op};
use ipuc_formats::tensor::Tensor;

/// The largest magnitude of a factor, and the inverse of the smallest.
const LARGEST_FACTOR: f32 = (1u64 << 40) as f32;

/// Take normalizations of a block into convolutions before them; gives how many are gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    join_each(graph, index, normalized)
}

/// The convolution whose sums only the normalization at `at` reads, and both as one.
fn normalized(graph: &mut Graph, steps: &Steps, at: usize) -> Option<(usize, Step)> {
    let step = steps.get(at)?;
    let (Op::BatchNormalization(normalization), Some(&Operand::Value(sums))) = (&step.op, step.operands.first()) else {
        return None;
    };
    let producer = steps.only_for(at, sums)?;
    let convolution = steps.get(producer)?;
    let Op::Convolution(Convolution { program, .. }) = &convolution.op else { return None };
    let (input, weight, bias) = constant_filters(convolution)?;
    let channels = Channels::of(graph, normalization, step)?;
    (program.is_empty() && is_plain(graph, weight) && channels.factors.iter().all(is_usual)).then_some(())?;
    let bias = biased(graph, &channels, bias)?;
    let weight = scaled(graph, weight, &channels.factors)?;
    let bias = graph.add_constant(Constant::of(bias, None));
    let operands = vec![input, Operand::Constant(weight), Operand::Constant(bias)];
    let name = format!("{} + {}", convolution.name, step.name).into();
    Some((producer, Step { op: convolution.op.clone(), operands, results: step.results.clone(), name }))
}

/// The input of a convolution, its filters and its bias, where these are constants.
pub(super) fn constant_filters(convolution: &Step) -> Option<(Operand, ConstantId, Option<ConstantId>)> {
    match *convolution.operands.as_slice() {
        [input, Operand::Constant(weight)] | [input, Operand::Constant(weight), Operand::Absent] => {
            Some((input, weight, None))
        }
        [input, Operand::Constant(weight), Operand::Constant(bias)] => Some((input, weight, Some(bias))),
        _ => None,
    }
}

/// Whether a constant has the floats that a model's file has.
pub(super) fn is_plain(graph: &Graph, id: ConstantId) -> bool {
    let constant = graph.constant(id);
    constant.dtype == DType::F32
        && match constant.data {
            ConstantData::Tensor(_) | ConstantData::Stored(_) | ConstantData::Hashed(_) => true,
            ConstantData::Recipe { .. } | ConstantData::Rounded(_) => false,
        }
}

/// Whether filters stay within the range of f32 when they are multiplied by this.
fn is_usual(factor: &f32) -> bool {
    *factor == 0.0 || (1.0 / LARGEST_FACTOR..=LARGEST_FACTOR).contains(&factor.abs())
}

/// `(bias - mean) * factor + bias of the normalization`; `None` where there is another number of any of them.
fn biased(graph: &Graph, channels: &Channels, bias: Option<ConstantId>) -> Option<Tensor> {
    let Channels { means, factors, biases, .. } = channels;
    let own = match bias {
        Some(id) if graph.constant(id).dtype == DType::F32 => {
            graph.load_constant(id).ok()?.elements::<f32>().ok()?.to_vec()
        }
        Some(_) => return None,
        None => vec![0.0; factors.len()],
    };
    let is_whole = [means.len(), biases.len(), own.len()].iter().all(|&count| count == factors.len());
    is_whole.then_some(())?;
    let each = own.iter().zip(means).zip(factors.iter().zip(biases));
    let bias = |((&own, &mean), (&factor, &bias)): ((&f32, &f32), (&f32, &f32))| {
        ((f64::from(own) - f64::from(mean)) * f64::from(factor) + f64::from(bias)) as f32
    };
    Tensor::from_elements(&[factors.len()], &each.map(bias).collect::<Vec<f32>>()).ok()
}

/// The filters, each times its factor.
fn scaled(graph: &mut Graph, weight: ConstantId, factors: &[f32]) -> Option<ConstantId> {
    let Constant { name, dtype, shape, .. } = graph.constant(weight).clone();
    (shape.first() == Some(&factors.len())).then_some(())?;
    let mut along = vec![1; shape.len()];
    along[0] = factors.len();
    let factors = graph.add_constant(Constant::of(Tensor::from_elements(&along, factors).ok()?, None));
    let data = ConstantData::Recipe {
        op: Binary { function: BinaryFunction::Mul }.into(),
        operands: vec![Some(weight), Some(factors)],
    };
    Some(graph.add_constant(Constant { name, dtype, shape, data, origin: None, encoding: None, zeros: None }))
}

#[cfg(test)]
mod tests {
    use super::apply;
    use crate::ir::text::parse;
    use ipuc_formats::attribute::BlockIndex;

    const PLAIN: &str = r#"constant @w : f32[2, 1, 1] = f32[2, 1, 1]:[1.0, 3.0]
constant @scale : f32[2] = f32[2]:[4.0, 2.0]
constant @bias : f32[2] = f32[2]:[0.5, 0.5]
constant @mean : f32[2] = f32[2]:[1.0, 2.0]
constant @variance : f32[2] = f32[2]:[4.0, 1.0]
entry "main"("x") -> ("y") = block 0
block 0(%x : f32[n, 1, 8]) {
  %c : f32[n, 2, 8] = convolution groups=1 %x, @w from "conv"
  %y : f32[n, 2, 8] = batch_normalization epsilon=0 momentum=0.9 %c, @scale, @bias, @mean, @variance from "normalize"
  return %y
}
"#;

    fn gone(text: &str) -> usize {
        let mut graph = parse(text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
        apply(&mut graph, BlockIndex(0))
    }

    #[test]
    fn only_plain_filters_whose_sums_nobody_else_reads_take_a_normalization() {
        let changed = |from: &str, to: &str| {
            assert!(PLAIN.contains(from), "{from}");
            gone(&PLAIN.replace(from, to))
        };
        assert_eq!(gone(PLAIN), 1);
        let other_reader =
            gone(&PLAIN.replace("return %y", "return %c, %y").replace(r#"-> ("y")"#, r#"-> ("c", "y")"#));
        let computed = changed(
            "constant @w : f32[2, 1, 1] = f32[2, 1, 1]:[1.0, 3.0]",
            "constant @v : f32[2, 1, 1] = f32[2, 1, 1]:[1.0, 3.0]\nconstant @w : f32[2, 1, 1] = unary function=neg @v",
        );
        let huge = changed("f32[2]:[4.0, 2.0]", "f32[2]:[4.0, 2e30]");
        let not_a_number = changed("f32[2]:[4.0, 1.0]", "f32[2]:[4.0, -1.0]");
        let zero = changed("f32[2]:[4.0, 2.0]", "f32[2]:[4.0, 0.0]");
        assert_eq!([other_reader, computed, huge, not_a_number, zero], [0, 0, 0, 0, 1]);
    }
}
