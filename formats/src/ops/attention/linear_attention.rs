//! Attention by a recurrent state: ONNX `LinearAttention` (opset 27).
//!
//! For each step: the state decays (`gated`), the value is corrected by what the state already gives for the key
//! (`delta`), the outer product of key and value is added, and the query reads. The state is never rounded between
//! steps.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::attention::faults::uneven;
use crate::ops::attention::rotary_embedding::require_dims;
use crate::ops::floats::{narrowed, require_computing_float, widened};
use crate::ops::loops;
use crate::ops::normalization::reduce::volume;
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Relation,
    Space, StepFacts, TypeError, VectorClass, WeightMatrix, each, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::filled;
use crate::value::Value;

attributes! {
    /// Operands: `query: [b, t, hq*k]`, `key: [b, t, h*k]`, `value: [b, t, h*v]`, optional `state: [b, h, k, v]`, where
    /// the rule decays `decay: [b, t, h]` or `[b, t, h*k]` (logarithms), where it corrects `rate: [b, t, h]` or
    /// `[b, t, 1]`. Results: `[b, t, hq*v]` and the state `[b, h, k, v]`.
    pub struct LinearAttention revision 1 {
        /// How the state changes.
        1 since 1 => rule: UpdateRule,
        /// `hq`, a multiple of `h`.
        2 since 1 => query_heads: i64,
        /// `h`.
        3 since 1 => key_heads: i64,
        /// Factor of what is read; absent: `1 / sqrt(k)`.
        4 since 1 => scale: Option<f32>,
    }
}

/// Rules of [`LinearAttention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum UpdateRule {
    /// The outer product is added.
    Linear,
    /// The state decays first.
    Gated,
    /// The value is corrected.
    Delta,
    /// Both.
    GatedDelta,
}
impl Keyword for UpdateRule {}

impl UpdateRule {
    fn decays(self) -> bool {
        matches!(self, UpdateRule::Gated | UpdateRule::GatedDelta)
    }

    fn corrects(self) -> bool {
        matches!(self, UpdateRule::Delta | UpdateRule::GatedDelta)
    }
}

impl LinearAttention {
    fn check(&self, inputs: &[Option<Fact>]) -> Result<(DType, DType), TypeError> {
        let (query, key) = (self.query_heads, self.key_heads);
        if query < 1 || key < 1 {
            let (subject, found) = ("number of query and of key heads".to_string(), format!("{query} and {key}"));
            return Err(TypeError::Value { subject, found, expected: "at least 1".to_string() });
        }
        if query % key != 0 {
            return Err(uneven("number of query heads", &query.to_string(), &key.to_string()));
        }
        let (dtype, _) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        for (operand, wanted) in [(1, true), (2, true), (4, self.rule.decays()), (5, self.rule.corrects())] {
            if !wanted {
                if optional(inputs, operand).is_some() {
                    return Err(TypeError::Unsupported(format!("operand {operand} with update rule {:?}", self.rule)));
                }
                continue;
            }
            let (found, _) = tensor_operand(inputs, operand)?;
            if found != dtype {
                return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found });
            }
        }
        if optional(inputs, 3).is_none() {
            return Ok((dtype, dtype));
        }
        let (state, _) = tensor_operand(inputs, 3)?;
        require_computing_float(state, 3)?;
        Ok((dtype, state))
    }
}

/// The part of one head in a packed axis.
fn head_size(packed: &Dim, heads: i64, context: &mut InferContext<'_>) -> Result<Dim, TypeError> {
    let heads = Dim::known(heads);
    match packed.modulo(&heads).as_known() {
        Some(0) => {}
        Some(_) => return Err(uneven("packed extent", &packed.to_string(), &heads.to_string())),
        None => context.oblige(Relation::Multiple, packed, &heads, "packed extent in heads"),
    }
    Ok(packed.divide_exact(&heads).unwrap_or_else(|| packed.floor_div(&heads)))
}

impl Operator for LinearAttention {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, state_type) = self.check(inputs)?;
        let dims = |operand: usize| match optional(inputs, operand).and_then(Fact::dims) {
            Some(dims) if dims.len() != 3 => {
                Err(TypeError::Rank { operand, expected: "3".to_string(), found: dims.len() })
            }
            found => Ok(found),
        };
        let (Some(query), Some(key), Some(value)) = (dims(0)?, dims(1)?, dims(2)?) else {
            return Ok(vec![Fact::tensor(dtype, Shape::Unranked), Fact::tensor(state_type, Shape::Unranked)]);
        };
        let (batch, steps) = (&query[0], &query[1]);
        let key_size = head_size(&query[2], self.query_heads, context)?;
        let value_size = head_size(&value[2], self.key_heads, context)?;
        let packed = &key_size * self.key_heads;
        require_dims(1, key, &[batch.clone(), steps.clone(), packed.clone()], context)?;
        require_dims(2, value, &[batch.clone(), steps.clone(), value[2].clone()], context)?;
        for operand in [4, 5] {
            let Some(found) = dims(operand)? else { continue };
            require_dims(operand, found, &[batch.clone(), steps.clone(), found[2].clone()], context)?;
            let other = if operand == 4 { packed.as_known() } else { Some(1) };
            if let (Some(extent), Some(other)) = (found[2].as_known(), other)
                && extent != self.key_heads
                && extent != other
            {
                let expected = format!("{} or {other}", self.key_heads);
                let subject = format!("last extent of operand {operand}");
                return Err(TypeError::Value { subject, found: extent.to_string(), expected });
            }
        }
        let state = vec![batch.clone(), Dim::known(self.key_heads), key_size, value_size.clone()];
        if let Some(found) = optional(inputs, 3).and_then(Fact::dims) {
            require_dims(3, found, &state, context)?;
        }
        let output = vec![batch.clone(), steps.clone(), value_size * self.query_heads];
        Ok(vec![Fact::tensor(dtype, output), Fact::tensor(state_type, state)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (dtype, state_type) = self.types(inputs)?;
        let sizes = self.sizes(inputs)?;
        let LinearAttentionSizes { batch, steps, query_heads, heads, key, value } = sizes;
        let operands = Operands {
            query: widened(tensor(inputs, 0)?)?,
            key: widened(tensor(inputs, 1)?)?,
            value: widened(tensor(inputs, 2)?)?,
            decay: optional_tensor(inputs, 4)?.map(widened).transpose()?,
            rate: optional_tensor(inputs, 5)?.map(widened).transpose()?,
        };
        let state_shape = [batch, heads, key, value];
        let mut state = match optional_tensor(inputs, 3)? {
            Some(state) => widened(state)?,
            None => filled(0.0, volume(&state_shape))?,
        };
        let mut output = filled(0.0, volume(&[batch, steps, query_heads, value]))?;
        let scale = self.scale.map_or(1.0 / (key as f64).sqrt(), f64::from);
        for batch_index in 0..batch {
            for head in 0..heads {
                let at = (batch_index * heads + head) * key * value;
                let state = &mut state[at..at + key * value];
                for step in 0..steps {
                    let row = batch_index * steps + step;
                    self.update(state, &operands, sizes, row, head, context);
                    for query_head in head * (query_heads / heads)..(head + 1) * (query_heads / heads) {
                        let query = &operands.query[(row * query_heads + query_head) * key..][..key];
                        for column in 0..value {
                            let read: f64 = (0..key).map(|k| query[k] * state[k * value + column]).sum();
                            context.macs += key as u64;
                            output[(row * query_heads + query_head) * value + column] = scale * read;
                        }
                    }
                }
            }
        }
        let output_shape = [batch, steps, query_heads * value];
        Ok(vec![narrowed(dtype, &output_shape, &output)?.into(), narrowed(state_type, &state_shape, &state)?.into()])
    }
}

impl Computes for LinearAttention {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.state_spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

impl Product for LinearAttention {
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

/// Extents of a [`LinearAttention`].
#[derive(Clone, Copy, Debug)]
pub struct LinearAttentionSizes {
    /// Sequences.
    pub batch: usize,
    /// Steps of each.
    pub steps: usize,
    /// Heads of queries.
    pub query_heads: usize,
    /// Heads of keys, values and states.
    pub heads: usize,
    /// Elements of a key.
    pub key: usize,
    /// Elements of a value.
    pub value: usize,
}

struct Operands {
    query: Vec<f64>,
    key: Vec<f64>,
    value: Vec<f64>,
    decay: Option<Vec<f64>>,
    rate: Option<Vec<f64>>,
}

impl LinearAttention {
    /// Element types of the output and of the state.
    ///
    /// # Errors
    /// [`TypeError`] where operands do not fit the rule.
    pub fn types(&self, inputs: &[Option<Value>]) -> Result<(DType, DType), TypeError> {
        let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
        self.check(&facts)
    }

    /// Extents of these operands.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not fit.
    pub fn sizes(&self, inputs: &[Option<Value>]) -> Result<LinearAttentionSizes, ReferenceError> {
        let shape = |operand: usize| tensor(inputs, operand).map(|tensor| tensor.shape().to_vec());
        let heads = |heads: i64| usize::try_from(heads).unwrap_or(usize::MAX);
        let (query_heads, key_heads) = (heads(self.query_heads), heads(self.key_heads));
        let misfit = |found: &[usize]| -> ReferenceError {
            TypeError::Unsupported(format!("linear attention over an operand of shape {found:?} in these heads")).into()
        };
        let (query, value) = (shape(0)?, shape(2)?);
        let &[batch, steps, packed] = &query[..] else { return Err(misfit(&query)) };
        let &[_, _, packed_value] = &value[..] else { return Err(misfit(&value)) };
        if packed % query_heads != 0 || packed_value % key_heads != 0 {
            return Err(misfit(if packed % query_heads != 0 { &query } else { &value }));
        }
        let sizes = LinearAttentionSizes {
            batch,
            steps,
            query_heads,
            heads: key_heads,
            key: packed / query_heads,
            value: packed_value / key_heads,
        };
        let state = vec![batch, key_heads, sizes.key, sizes.value];
        let rows = |last: usize| vec![batch, steps, last];
        let packed_key = sizes.key * key_heads;
        let choices = [
            (1, vec![rows(packed_key)]),
            (2, vec![rows(packed_value)]),
            (3, vec![state]),
            (4, vec![rows(key_heads), rows(packed_key)]),
            (5, vec![rows(key_heads), rows(1)]),
        ];
        for (operand, allowed) in choices {
            match optional_tensor(inputs, operand)? {
                Some(found) if allowed.iter().all(|allowed| allowed != found.shape()) => {
                    return Err(misfit(found.shape()));
                }
                Some(_) | None => {}
            }
        }
        Ok(sizes)
    }

    /// One step of one head's state `[k, v]`.
    fn update(
        &self,
        state: &mut [f64],
        operands: &Operands,
        sizes: LinearAttentionSizes,
        row: usize,
        head: usize,
        context: &mut ReferenceContext<'_>,
    ) {
        let LinearAttentionSizes { heads, key: key_size, value: value_size, .. } = sizes;
        if let Some(decay) = &operands.decay {
            // One for each head, or one for each row of the state.
            let per_head = decay.len() == sizes.batch * sizes.steps * heads;
            for k in 0..key_size {
                let at = if per_head { row * heads + head } else { (row * heads + head) * key_size + k };
                state[k * value_size..(k + 1) * value_size].iter_mut().for_each(|state| *state *= decay[at].exp());
            }
        }
        let key = &operands.key[(row * heads + head) * key_size..][..key_size];
        let mut value = operands.value[(row * heads + head) * value_size..][..value_size].to_vec();
        if let Some(rate) = &operands.rate {
            let shared = rate.len() == sizes.batch * sizes.steps;
            let rate = rate[if shared { row } else { row * heads + head }];
            for (column, value) in value.iter_mut().enumerate() {
                let known: f64 = (0..key_size).map(|k| state[k * value_size + column] * key[k]).sum();
                context.macs += key_size as u64;
                *value = rate * (*value - known);
            }
        }
        for (k, key) in key.iter().enumerate() {
            for (column, value) in value.iter().enumerate() {
                state[k * value_size + column] += key * value;
                context.macs += 1;
            }
        }
    }
}

impl LinearAttention {
    /// Each state element is read once a query head, written once, and read once to correct, step after step.
    fn state_spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let group = self.query_heads.checked_div(self.key_heads).unwrap_or(0);
        let uses = group.saturating_add(1 + i64::from(self.rule.corrects()));
        let (Some([batch, heads, key, value]), Some([_, steps, _])) = (facts.result(1), facts.dims(0)) else {
            return loops::unknown(facts, uses);
        };
        let batched = (0..6).map(|operand| loops::operand(operand, 0));
        let nest = loops::Loops::new(facts)
            .parallel(batch, batched.chain([loops::result(0, 0), loops::result(1, 0)]))
            .serial(heads)
            .serial(steps)
            .serial(key)
            .serial(value);
        vec![nest.products(uses)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::macs;
    use crate::ops::testing::run_all;
    use crate::tensor::Tensor;

    fn floats(shape: &[usize], values: &[f32]) -> Option<Tensor> {
        Some(Tensor::from_elements(shape, values).unwrap())
    }

    fn operator(rule: UpdateRule) -> LinearAttention {
        LinearAttention { rule, query_heads: 2, key_heads: 1, scale: Some(1.0) }
    }

    /// Keys and values of one element each; queries 1 and 10.
    fn inputs(decay: bool, rate: bool) -> Vec<Option<Tensor>> {
        vec![
            floats(&[1, 2, 2], &[1.0, 10.0, 1.0, 10.0]),
            floats(&[1, 2, 1], &[2.0, 3.0]),
            floats(&[1, 2, 1], &[5.0, 7.0]),
            floats(&[1, 1, 1, 1], &[1.0]),
            decay.then(|| Tensor::from_elements(&[1, 2, 1], &[0.0f32, f32::NEG_INFINITY]).unwrap()),
            rate.then(|| Tensor::from_elements(&[1, 2, 1], &[0.5f32, 1.0]).unwrap()),
        ]
    }

    #[test]
    fn rules_by_hand() {
        let states = |rule: UpdateRule| {
            let results = run_all(&operator(rule), &inputs(rule.decays(), rule.corrects())).unwrap();
            let output = results[0].elements::<f32>().unwrap().to_vec();
            assert_eq!([output[0] * 10.0, output[2] * 10.0], [output[1], output[3]], "groups share a state");
            assert_eq!(results[1].elements::<f32>().unwrap(), [output[2]]);
            [output[0], output[2]]
        };
        assert_eq!(states(UpdateRule::Linear), [11.0, 32.0]);
        assert_eq!(states(UpdateRule::Gated), [11.0, 21.0]);
        // 1 + 2 * 0.5 * (5 - 2) = 4; 4 + 3 * (7 - 12) = -11.
        assert_eq!(states(UpdateRule::Delta), [4.0, -11.0]);
        assert_eq!(states(UpdateRule::GatedDelta), [4.0, 21.0]);
    }

    #[test]
    fn shapes_and_operands_are_checked() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("l", &ranges, &mut blocks);
        let fact =
            |dims: &[i64]| Some(Fact::tensor(DType::F32, dims.iter().map(|&dim| Dim::known(dim)).collect::<Vec<_>>()));
        let good = [fact(&[1, 3, 8]), fact(&[1, 3, 4]), fact(&[1, 3, 5])];
        let facts = operator(UpdateRule::Linear).infer(&good, &mut context).unwrap();
        assert_eq!(facts[0].kind.to_string(), "f32[1, 3, 10]");
        assert_eq!(facts[1].kind.to_string(), "f32[1, 1, 4, 5]");
        assert_eq!(macs(&operator(UpdateRule::Linear), &good, &facts), Dim::known(4 * 5 * 3 * 3));
        assert_eq!(
            operator(UpdateRule::Gated).infer(&good, &mut context).unwrap_err().to_string(),
            "operand 4 is missing"
        );
        let mut decayed = good.to_vec();
        decayed.extend([None, fact(&[1, 3, 2])]);
        assert_eq!(
            operator(UpdateRule::Gated).infer(&decayed, &mut context).unwrap_err().to_string(),
            "last extent of operand 4 is 2, expected 1 or 4"
        );
        assert_eq!(
            operator(UpdateRule::Linear).infer(&decayed, &mut context).unwrap_err().to_string(),
            "operand 4 with update rule Linear is not supported"
        );
        assert_eq!(
            LinearAttention { key_heads: 0, ..operator(UpdateRule::Linear) }
                .infer(&good, &mut context)
                .unwrap_err()
                .to_string(),
            "number of query and of key heads is 2 and 0, expected at least 1"
        );
    }
}
