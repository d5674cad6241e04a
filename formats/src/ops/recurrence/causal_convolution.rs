//! Depthwise convolution over the past: ONNX `CausalConvWithState` (opset 27).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::attention::rotary_embedding::require_dims;
use crate::ops::floats::{narrowed, require_computing_float, rounded_step, widened};
use crate::ops::loops;
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Space,
    StepFacts, TypeError, VectorClass, WeightMatrix, each, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::filled;
use crate::value::Value;

attributes! {
    /// Each channel convolved with its own kernel, looking back only.
    ///
    /// Operands: `x: [b, c, l]`, `weight: [c, 1, k]`, optional `bias: [c]`, `state: [b, c, k-1]` (what came before;
    /// zeros where absent). Results: `[b, c, l]`, and the last `k-1` elements seen, `[b, c, k-1]`.
    pub struct CausalConvolution revision 1 {
        /// Multiply the result by its sigmoid.
        1 since 1 => silu: bool,
    }
}

fn check_types(inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
    let (dtype, _) = tensor_operand(inputs, 0)?;
    require_computing_float(dtype, 0)?;
    tensor_operand(inputs, 1)?;
    for operand in 1..4 {
        if optional(inputs, operand).is_none() {
            continue;
        }
        let (found, _) = tensor_operand(inputs, operand)?;
        if found != dtype {
            return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found });
        }
    }
    Ok(dtype)
}

fn no_kernel() -> TypeError {
    TypeError::Value {
        subject: "kernel length".to_string(),
        found: "0".to_string(),
        expected: "at least 1".to_string(),
    }
}

impl Operator for CausalConvolution {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let dtype = check_types(inputs)?;
        let dims = |operand: usize| optional(inputs, operand).and_then(Fact::dims);
        let fresh = || ["batch", "channels", "length"].map(|label| context.fresh(label)).to_vec();
        let data = dims(0).map_or_else(fresh, <[Dim]>::to_vec);
        let [batch, channels, _] = &data[..] else {
            return Err(TypeError::Rank { operand: 0, expected: "3".to_string(), found: data.len() });
        };
        let kernel = match dims(1) {
            None => context.fresh("kernel"),
            Some([rows, one, kernel]) => {
                require_dims(1, &[rows.clone(), one.clone()], &[channels.clone(), Dim::ONE], context)?;
                kernel.clone()
            }
            Some(dims) => return Err(TypeError::Rank { operand: 1, expected: "3".to_string(), found: dims.len() }),
        };
        if kernel.as_known() == Some(0) {
            return Err(no_kernel());
        }
        let state = vec![batch.clone(), channels.clone(), kernel - 1];
        for (operand, wanted) in [(2, vec![channels.clone()]), (3, state.clone())] {
            if let Some(found) = dims(operand) {
                require_dims(operand, found, &wanted, context)?;
            }
        }
        Ok(vec![Fact::tensor(dtype, data), Fact::tensor(dtype, state)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
        let dtype = check_types(&facts)?;
        let (data, weight) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let misfit = |found: &[usize]| -> ReferenceError {
            TypeError::Unsupported(format!("causal convolution over {:?} with an operand {found:?}", data.shape()))
                .into()
        };
        let &[batch, channels, length] = data.shape() else { return Err(misfit(data.shape())) };
        let &[rows, 1, kernel] = weight.shape() else { return Err(misfit(weight.shape())) };
        let past = kernel.checked_sub(1).ok_or_else(no_kernel)?;
        let state_shape = [batch, channels, past];
        let bias = optional_tensor(inputs, 2)?;
        let state = optional_tensor(inputs, 3)?;
        if rows != channels {
            return Err(misfit(weight.shape()));
        }
        if let Some(found) = bias.filter(|bias| bias.shape() != [channels]) {
            return Err(misfit(found.shape()));
        }
        if let Some(found) = state.filter(|state| state.shape() != state_shape) {
            return Err(misfit(found.shape()));
        }
        let bias = bias.map(widened).transpose()?;
        let state = state.map(widened).transpose()?;
        let (values, weight) = (widened(data)?, widened(weight)?);
        let (mut output, mut present) = (Vec::with_capacity(values.len()), Vec::new());
        for line in 0..crate::ops::normalization::reduce::volume(&[batch, channels]) {
            let channel = line % channels;
            let mut seen = match &state {
                Some(state) => state[line * past..(line + 1) * past].to_vec(),
                None => filled(0.0, past)?,
            };
            seen.extend_from_slice(&values[line * length..(line + 1) * length]);
            for position in 0..length {
                let mut sum = bias.as_ref().map_or(0.0, |bias| bias[channel]);
                for tap in 0..kernel {
                    sum += seen[position + tap] * weight[channel * kernel + tap];
                    context.macs += 1;
                }
                let sum = rounded_step(dtype, sum);
                output.push(if self.silu { sum / (1.0 + (-sum).exp()) } else { sum });
            }
            present.extend_from_slice(&seen[length..]);
        }
        Ok(vec![narrowed(dtype, data.shape(), &output)?.into(), narrowed(dtype, &state_shape, &present)?.into()])
    }
}

impl Computes for CausalConvolution {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        causal_spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let bias = i64::from(facts.operand(2).is_some());
        let silu = i64::from(self.silu);
        let costs = [
            (VectorClass::Arithmetic, bias + 2 * silu),
            (VectorClass::Divide, silu),
            (VectorClass::Transcendental, silu),
        ];
        each(&facts.result_elements(0), &costs)
    }
}

impl Product for CausalConvolution {
    fn weight(&self, _operand: usize, _shape: &[u64]) -> Option<WeightMatrix> {
        None
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::default()
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        None
    }

    fn sums(&self, _facts: &StepFacts<'_>) -> Option<DType> {
        None
    }
}

/// Loops over batch and channels, then positions and taps. What lies before the data is the state.
fn causal_spaces(facts: &StepFacts<'_>) -> Vec<Space> {
    let (Some([batch, channels, length]), Some([_, _, kernel])) = (facts.result(0), facts.dims(1)) else {
        return loops::unknown(facts, 1);
    };
    let batched = [loops::operand(0, 0), loops::operand(3, 0), loops::result(0, 0), loops::result(1, 0)];
    let channelled = [loops::operand(0, 1), loops::operand(3, 1), loops::result(0, 1), loops::result(1, 1)];
    let nest = loops::Loops::new(facts)
        .parallel(batch, batched)
        .parallel(channels, channelled.into_iter().chain([loops::operand(1, 0), loops::operand(2, 0)]))
        .serial(length)
        .serial(kernel);
    vec![nest.products(1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::fact::Shape;
    use crate::ops::NoBlocks;
    use crate::ops::testing::run_all;
    use crate::tensor::Tensor;

    fn floats(shape: &[usize], values: &[f32]) -> Option<Tensor> {
        Some(Tensor::from_elements(shape, values).unwrap())
    }

    #[test]
    fn looks_back_and_carries_what_it_saw() {
        let operator = CausalConvolution { silu: false };
        let mut inputs = vec![
            floats(&[1, 1, 2], &[1.0, 2.0]),
            floats(&[1, 1, 4], &[1000.0, 100.0, 10.0, 1.0]),
            floats(&[1], &[0.5]),
        ];
        let results = run_all(&operator, &inputs).unwrap();
        assert_eq!(results[0].elements::<f32>().unwrap(), [1.5, 12.5]);
        assert_eq!(results[1].elements::<f32>().unwrap(), [0.0, 1.0, 2.0]);
        inputs.push(floats(&[1, 1, 3], &[7.0, 8.0, 9.0]));
        let results = run_all(&operator, &inputs).unwrap();
        assert_eq!(results[0].elements::<f32>().unwrap(), [7891.5, 8912.5]);
        assert_eq!(results[1].elements::<f32>().unwrap(), [9.0, 1.0, 2.0]);
    }

    #[test]
    fn shapes_follow_the_kernel() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("c", &ranges, &mut blocks);
        let fact = |dims: &[usize]| Some(Fact::tensor(DType::F32, Shape::known(dims)));
        let operator = CausalConvolution { silu: true };
        let facts = operator.infer(&[fact(&[2, 3, 5]), fact(&[3, 1, 4])], &mut context).unwrap();
        assert_eq!(facts[1].kind.to_string(), "f32[2, 3, 3]");
        assert_eq!(
            operator.infer(&[fact(&[2, 3, 5]), fact(&[2, 1, 4])], &mut context).unwrap_err().to_string(),
            "extent of operand 1: 2 does not fit 3"
        );
        assert_eq!(
            operator.infer(&[fact(&[2, 3, 5]), fact(&[3, 1, 0])], &mut context).unwrap_err().to_string(),
            "kernel length is 0, expected at least 1"
        );
    }
}
