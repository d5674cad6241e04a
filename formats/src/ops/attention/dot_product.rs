//! Scaled dot-product attention: ONNX `Attention` (opsets 23, 24, 25).
//!
//! `softmax(softcap(q k^T) + bias) v` for each head, where the bias is the sum of the mask, the causal frontier, the
//! window and the padding of the cache, all of them 0 or minus infinity but for a numeric mask. A row whose bias is
//! minus infinity throughout gives zeros. A sink is a further score of the softmax, without a value. f16 and bf16 are rounded
//! after each operator of the function body.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::attention::definition::Attention;
use crate::ops::attention::dot_product_reference::attend;
use crate::ops::attention::faults::{heads_needed, rank, uneven};
use crate::ops::floats::{is_computing_float, require_computing_float};
use crate::ops::loops::{self, At, Loops};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Relation,
    Space, StepFacts, TypeError, VectorClass, WeightMatrix, each, optional, tensor_operand,
};
use crate::value::Value;

/// Batch, heads, length and head size of an operand.
type Heads = [Dim; 4];

impl Attention {
    pub(crate) fn check(&self) -> Result<(), TypeError> {
        let refuse = |subject: &str, found: String, expected: &str| {
            Err(TypeError::Value { subject: subject.to_string(), found, expected: expected.to_string() })
        };
        for (name, value, least) in [
            ("number of query heads", self.query_heads, 1),
            ("number of key heads", self.key_heads, 1),
            ("left window", self.left_window, 0),
            ("right window", self.right_window, 0),
        ] {
            if let Some(value) = value
                && value < least
            {
                return refuse(name, value.to_string(), &format!("at least {least}"));
            }
        }
        if let Some(dtype) = self.softmax_precision
            && !is_computing_float(dtype)
        {
            return refuse("softmax precision", dtype.to_string(), "f16, bf16, f32 or f64");
        }
        if self.softcap.is_nan() || self.softcap < 0.0 {
            return refuse("softcap", self.softcap.to_string(), "at least 0");
        }
        Ok(())
    }

    /// Check attributes and element types; gives those of the first result and of the values.
    ///
    /// # Errors
    /// [`TypeError`] where they do not fit.
    pub fn check_types(&self, inputs: &[Option<Fact>]) -> Result<(DType, DType), TypeError> {
        self.check()?;
        let (dtype, _) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        let (values, _) = tensor_operand(inputs, 2)?;
        require_computing_float(values, 2)?;
        let expected = [(1, dtype), (4, dtype), (5, values), (6, DType::I64), (7, DType::I64), (8, dtype)];
        for (operand, expected) in expected {
            if operand > 2 && optional(inputs, operand).is_none() {
                continue;
            }
            let (found, _) = tensor_operand(inputs, operand)?;
            if found != expected {
                return Err(TypeError::ElementType { operand, expected: expected.to_string(), found });
            }
        }
        if optional(inputs, 3).is_some() {
            let (found, _) = tensor_operand(inputs, 3)?;
            let number = found.bits() >= 8 && (found.is_integer() || is_computing_float(found));
            if !number && found != DType::Bool {
                return Err(TypeError::ElementType { operand: 3, expected: "bool or numbers".to_string(), found });
            }
        }
        let (past_k, past_v) = (optional(inputs, 4).is_some(), optional(inputs, 5).is_some());
        if past_k != past_v {
            return Err(TypeError::MissingOperand { operand: if past_k { 5 } else { 4 } });
        }
        for (operand, name) in [(6, "a count of valid keys"), (7, "a position of the first query")] {
            if past_k && optional(inputs, operand).is_some() {
                return Err(TypeError::Unsupported(format!("{name} beside past keys")));
            }
        }
        Ok((dtype, values))
    }

    fn heads(
        &self,
        inputs: &[Option<Fact>],
        operand: usize,
        context: &mut InferContext<'_>,
    ) -> Result<Option<Heads>, TypeError> {
        let stated = if operand == 0 { self.query_heads } else { self.key_heads };
        let Some(dims) = optional(inputs, operand).and_then(Fact::dims) else { return Ok(None) };
        match dims {
            [batch, heads, length, size] => {
                if let Some(stated) = stated {
                    context.require_equal(heads, &Dim::known(stated), "number of heads")?;
                }
                Ok(Some([batch, heads, length, size].map(Dim::clone)))
            }
            [batch, length, hidden] => {
                let Some(stated) = stated else { return Err(heads_needed(operand)) };
                let heads = Dim::known(stated);
                match hidden.modulo(&heads).as_known() {
                    Some(0) => {}
                    Some(_) => return Err(uneven("hidden size", &hidden.to_string(), &heads.to_string())),
                    None => context.oblige(Relation::Multiple, hidden, &heads, "hidden size in heads"),
                }
                let size = hidden.divide_exact(&heads).unwrap_or_else(|| hidden.floor_div(&heads));
                Ok(Some([batch.clone(), heads, length.clone(), size]))
            }
            _ => Err(TypeError::Rank { operand, expected: "3 or 4".to_string(), found: dims.len() }),
        }
    }

    /// Check keys and values against queries; gives the length of the past.
    fn relate(
        &self,
        [q, k, v]: [&Heads; 3],
        inputs: &[Option<Fact>],
        context: &mut InferContext<'_>,
    ) -> Result<Dim, TypeError> {
        context.require_equal(&k[0], &q[0], "batch of attention")?;
        context.require_equal(&v[0], &q[0], "batch of attention")?;
        context.require_equal(&k[3], &q[3], "head size of attention")?;
        context.require_equal(&v[1], &k[1], "key heads of attention")?;
        context.require_equal(&v[2], &k[2], "keys of attention")?;
        match q[1].modulo(&k[1]).as_known() {
            Some(0) => {}
            Some(_) => return Err(uneven("number of query heads", &q[1].to_string(), &k[1].to_string())),
            None if q[1] == k[1] => {}
            None => context.oblige(Relation::Multiple, &q[1], &k[1], "query heads in groups"),
        }
        for (operand, wanted, subject) in
            [(6, &q[0], "batch of attention"), (7, &q[0], "batch of attention"), (8, &q[1], "query heads of attention")]
        {
            let Some(dims) = optional(inputs, operand).and_then(Fact::dims) else { continue };
            let [extent] = dims else { return Err(rank(operand, 1, dims.len())) };
            context.require_equal(extent, wanted, subject)?;
        }
        let mut past = None;
        for (operand, now) in [(4, k), (5, v)] {
            let Some(dims) = optional(inputs, operand).and_then(Fact::dims) else { continue };
            let [batch, heads, length, size] = dims else { return Err(rank(operand, 4, dims.len())) };
            context.require_equal(batch, &now[0], "batch of attention")?;
            context.require_equal(heads, &now[1], "key heads of attention")?;
            context.require_equal(size, &now[3], "head size of attention")?;
            past = Some(match past {
                None => length.clone(),
                Some(past) => context.require_equal(&past, length, "past keys of attention")?,
            });
        }
        let unknown = optional(inputs, 4).is_some();
        Ok(past.unwrap_or_else(|| if unknown { context.fresh("past") } else { Dim::ZERO }))
    }
}

/// Require a mask to broadcast to `[batch, heads, queries, keys]`.
fn check_mask(mask: &[Dim], target: [&Dim; 4], pad: bool, context: &mut InferContext<'_>) -> Result<(), TypeError> {
    if mask.len() > 4 {
        return Err(TypeError::Rank { operand: 3, expected: "at most 4".to_string(), found: mask.len() });
    }
    for (index, (dim, wanted)) in mask.iter().rev().zip(target.iter().rev()).enumerate() {
        if index == 0 && pad {
            match (dim.as_known(), wanted.as_known()) {
                (Some(found), Some(keys)) if found > keys => {
                    return Err(TypeError::Dimension {
                        subject: "length of the mask".to_string(),
                        left: found.to_string(),
                        right: keys.to_string(),
                    });
                }
                (Some(_), Some(_)) => {}
                _ => context.oblige(Relation::AtMost, dim, wanted, "length of the mask"),
            }
            continue;
        }
        match dim.as_known() {
            Some(1) => {}
            Some(_) if wanted.is_known() => drop(context.require_equal(dim, wanted, "extent of the mask")?),
            _ if dim == *wanted => {}
            _ => context.oblige(Relation::Broadcastable, dim, wanted, "extent of the mask"),
        }
    }
    Ok(())
}

impl Operator for Attention {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, values) = self.check_types(inputs)?;
        let unranked = |dtype| Fact::tensor(dtype, Shape::Unranked);
        let [q, k, v] = [0, 1, 2].map(|operand| self.heads(inputs, operand, context));
        let (Some(q), Some(k), Some(v)) = (q?, k?, v?) else {
            let mut facts = vec![unranked(dtype)];
            facts.extend(self.present.then(|| [unranked(dtype), unranked(values)]).into_iter().flatten());
            facts.extend(self.scores.map(|_| unranked(dtype)));
            return Ok(facts);
        };
        let ranks = [0, 1, 2].map(|operand| optional(inputs, operand).and_then(Fact::rank));
        if ranks[0] != ranks[1] || ranks[0] != ranks[2] {
            return Err(TypeError::Unsupported(format!("attention over operands of ranks {ranks:?}")));
        }
        let past = self.relate([&q, &k, &v], inputs, context)?;
        let keys = past + &k[2];
        let [batch, heads, length, _] = &q;
        if let Some(mask) = optional(inputs, 3).and_then(Fact::dims) {
            check_mask(mask, [batch, heads, length, &keys], self.pad_mask, context)?;
        }
        let shape = Shape::Ranked(match ranks[0] {
            Some(3) => vec![batch.clone(), length.clone(), heads * &v[3]],
            _ => vec![batch.clone(), heads.clone(), length.clone(), v[3].clone()],
        });
        // It begins with the result as it is rounded.
        let result = self.program.infer(dtype, dtype, &shape, inputs, context)?;
        let mut facts = vec![Fact::tensor(result, shape)];
        if self.present {
            let present = |size: &Dim| vec![batch.clone(), k[1].clone(), keys.clone(), size.clone()];
            facts.push(Fact::tensor(dtype, present(&k[3])));
            facts.push(Fact::tensor(values, present(&v[3])));
        }
        if self.scores.is_some() {
            facts.push(Fact::tensor(dtype, vec![batch.clone(), heads.clone(), length.clone(), keys]));
        }
        Ok(facts)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        attend(self, inputs, context)
    }
}

impl Computes for Attention {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.head_spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        self.softmax_work(facts)
    }
}

impl Product for Attention {
    fn weight(&self, _operand: usize, _shape: &[u64]) -> Option<WeightMatrix> {
        None
    }

    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        Some(&self.program)
    }

    fn sums(&self, facts: &StepFacts<'_>) -> Option<DType> {
        facts.operand(0)?.dtype()
    }
}

impl Attention {
    /// Loops of the scores, of the softmax over them, and of the values: over the batch, key heads, the query heads of
    /// each, queries and keys. Tiles that share the keys of a query combine their maxima and the sums of the exponentials
    /// below these, then their sums of values. Only the loops of the values write.
    fn head_spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some(sizes) = self.sizes(facts) else { return loops::unknown(facts, 1) };
        let HeadSizes { q, k, v, keys } = &sizes;
        let group = q[1].divide_exact(&k[1]).unwrap_or_else(|| q[1].floor_div(&k[1]));
        let flat = facts.dims(0).is_some_and(|dims| dims.len() == 3);
        let (length, last) = if flat { (1, 2) } else { (2, 3) };
        // The grown caches lie in the same parts as the values that are summed.
        let present = |axis: usize| match self.present {
            true => vec![loops::result(1, axis), loops::result(2, axis)],
            false => Vec::new(),
        };
        let queries = |of: &'static [usize], writes: bool| {
            let read = |operand: &usize| of.contains(operand);
            let written = |at: At| writes.then_some(at);
            let grown = |axis: usize| present(axis).into_iter().filter(move |_| writes);
            let nest = Loops::new(facts);
            let batched = [0, 1, 2, 4, 5, 6, 7].into_iter().filter(read).map(|operand| loops::operand(operand, 0));
            let nest = nest.parallel(&q[0], batched.chain(written(loops::result(0, 0))).chain(grown(0)));
            let query = of.contains(&0).then(|| loops::operand(0, length));
            let walk = |nest: Loops| nest.parallel(&q[2], query.into_iter().chain(written(loops::result(0, length))));
            let stride = |head: &Dim, many: i64| head.as_known().and_then(|size| size.checked_mul(many));
            let Some(group) = group.as_known() else { return walk(nest.serial(&k[1]).serial(&q[1].floor_div(&k[1]))) };
            let heads = [(0, &q[3], group), (1, &k[3], 1), (2, &v[3], 1)];
            let axis = if flat { 2 } else { 1 };
            let heads = heads.into_iter().filter(|(operand, ..)| of.contains(operand));
            let of_heads = heads.filter_map(|(operand, size, many)| match flat {
                true => Some(loops::operand(operand, axis).stride(stride(size, many)?)),
                false => Some(loops::operand(operand, axis).stride(many)),
            });
            let caches = [4, 5].into_iter().filter(read).map(|operand| loops::operand(operand, 1));
            let sink = of.contains(&8).then(|| loops::operand(8, 0));
            let sinks = sink.map(|_| loops::operand(8, 0).stride(group));
            let result = |many: i64| match flat {
                true => stride(&v[3], many).map(|stride| loops::result(0, axis).stride(stride)).and_then(written),
                false => written(loops::result(0, axis).stride(many)),
            };
            let query = match flat {
                _ if !of.contains(&0) => None,
                true => stride(&q[3], 1).map(|stride| loops::operand(0, axis).stride(stride)),
                false => Some(loops::operand(0, axis)),
            };
            let nest = nest.parallel(&k[1], of_heads.chain(caches).chain(sinks).chain(result(group)).chain(grown(1)));
            walk(nest.parallel(&Dim::known(group), query.into_iter().chain(sink).chain(result(1))))
        };
        // Keys of the past come first; where their number is open, new ones are needed whole.
        let keys_of = |new: usize, past: usize| match facts.operand(past) {
            None => vec![loops::operand(new, length)],
            Some(_) => {
                let own = facts.dims(past).and_then(|dims| dims.get(2)?.as_known());
                let new = own.map(|past| loops::operand(new, length).offset(-past));
                new.into_iter().chain([loops::operand(past, 2)]).collect()
            }
        };
        let products = [loops::operand(0, last), loops::operand(1, last), loops::operand(4, 3)];
        let values = [loops::operand(2, last), loops::operand(5, 3), loops::result(0, last)];
        let values = values.into_iter().chain(self.present.then(|| loops::result(2, 3)));
        let summed = keys_of(2, 5).into_iter().chain(present(2));
        vec![
            queries(&[0, 1, 4, 6, 7, 8], false).parallel(keys, keys_of(1, 4)).reduced(&q[3], products).products(1),
            queries(&[], false).reduced(keys, []).numbers(2),
            queries(&[2, 5], true).reduced(keys, summed).parallel(&v[3], values).products(1),
        ]
    }

    fn sizes(&self, facts: &StepFacts<'_>) -> Option<HeadSizes> {
        let (ranges, mut blocks) = (crate::dim::Ranges::default(), crate::ops::NoBlocks);
        let mut context = InferContext::new(facts.step, &ranges, &mut blocks);
        let mut heads = |operand| self.heads(facts.inputs, operand, &mut context).ok().flatten();
        let (q, k, v) = (heads(0)?, heads(1)?, heads(2)?);
        let past = match facts.operand(4) {
            None => Dim::ZERO,
            Some(_) => facts.dims(4).and_then(|dims| dims.get(2).cloned()).unwrap_or_else(|| facts.fresh("past")),
        };
        let keys = past + &k[2];
        Some(HeadSizes { q, k, v, keys })
    }

    /// Scaling, bias and softmax of all scores.
    fn softmax_work(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let scores = match self.sizes(facts) {
            Some(HeadSizes { q, keys, .. }) => Dim::product(&q[..3]) * keys,
            None => facts.fresh("scores"),
        };
        let capped = i64::from(self.softcap > 0.0);
        let masked = i64::from(facts.operand(3).is_some());
        each(
            &scores,
            &[
                (VectorClass::Arithmetic, 4 + 2 * capped + masked),
                (VectorClass::Divide, 1),
                (VectorClass::Transcendental, 1 + capped),
            ],
        )
    }
}

/// Extents of queries, keys and values, and the length of all keys with those of the past.
struct HeadSizes {
    q: Heads,
    k: Heads,
    v: Heads,
    keys: Dim,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::attention::definition::ScoreStage;

    fn infer(operator: &Attention, inputs: &[Option<Fact>]) -> Result<Vec<String>, TypeError> {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let facts = operator.infer(inputs, &mut InferContext::new("a", &ranges, &mut blocks))?;
        Ok(facts.iter().map(|fact| fact.kind.to_string()).collect())
    }

    fn fact(dims: &[i64]) -> Option<Fact> {
        Some(Fact::tensor(DType::F32, dims.iter().map(|&dim| Dim::known(dim)).collect::<Vec<_>>()))
    }

    #[test]
    fn shapes_of_grouped_attention_with_a_cache() {
        let operator = Attention { present: true, scores: Some(ScoreStage::Bias), ..Attention::plain() };
        let past = |size| Some(Fact::tensor(DType::F32, vec![Dim::ONE, Dim::known(2), Dim::symbol("p"), size]));
        let inputs = [
            fact(&[1, 4, 3, 8]),
            fact(&[1, 2, 3, 8]),
            fact(&[1, 2, 3, 6]),
            None,
            past(Dim::known(8)),
            past(Dim::known(6)),
        ];
        let printed = infer(&operator, &inputs).unwrap();
        let expected = ["f32[1, 4, 3, 6]", "f32[1, 2, p + 3, 8]", "f32[1, 2, p + 3, 6]", "f32[1, 4, 3, p + 3]"];
        assert_eq!(printed, expected);
        assert!(matches!(infer(&operator, &inputs[..5]), Err(TypeError::MissingOperand { operand: 5 })));
        let with = |operand: usize, dims: &[i64]| {
            let mut inputs = inputs.to_vec();
            inputs.resize(9, None);
            let dtype = if operand == 8 { DType::F32 } else { DType::I64 };
            inputs[operand] = Some(Fact::tensor(dtype, dims.iter().map(|&dim| Dim::known(dim)).collect::<Vec<_>>()));
            infer(&operator, &inputs)
        };
        assert_eq!(with(8, &[4]).unwrap(), expected);
        assert!(matches!(with(8, &[2]), Err(TypeError::Dimension { .. })));
        for operand in [6, 7] {
            assert!(matches!(with(operand, &[1]), Err(TypeError::Unsupported(_))));
        }
    }

    #[test]
    fn heads_are_checked() {
        let flat = |heads| Attention { query_heads: Some(heads), key_heads: Some(1), ..Attention::plain() };
        let inputs = [fact(&[1, 3, 8]), fact(&[1, 5, 2]), fact(&[1, 5, 3])];
        assert_eq!(infer(&flat(4), &inputs).unwrap(), ["f32[1, 3, 12]"]);
        assert_eq!(infer(&flat(3), &inputs).unwrap_err().to_string(), "hidden size is 8, expected a multiple of 3");
        assert_eq!(
            infer(&flat(0), &inputs).unwrap_err().to_string(),
            "number of query heads is 0, expected at least 1"
        );
        assert_eq!(
            infer(&Attention::plain(), &inputs).unwrap_err().to_string(),
            "attention over three axes without a number of query heads is not supported"
        );
        assert_eq!(
            infer(&Attention::plain(), &[fact(&[1, 3, 2, 8]), fact(&[1, 2, 2, 8]), fact(&[1, 2, 2, 8])])
                .unwrap_err()
                .to_string(),
            "number of query heads is 3, expected a multiple of 2"
        );
        assert_eq!(
            infer(&Attention::plain(), &[fact(&[1, 2, 2, 8]), fact(&[1, 2, 2, 7]), fact(&[1, 2, 2, 8])])
                .unwrap_err()
                .to_string(),
            "head size of attention: 7 does not fit 8"
        );
    }

    #[test]
    fn masks_broadcast_or_are_padded() {
        let operator = |pad_mask| Attention { pad_mask, ..Attention::plain() };
        let inputs = |mask| [fact(&[1, 2, 3, 4]), fact(&[1, 2, 5, 4]), fact(&[1, 2, 5, 4]), mask];
        assert!(infer(&operator(false), &inputs(fact(&[3, 5]))).is_ok());
        assert!(infer(&operator(false), &inputs(fact(&[1, 1]))).is_ok());
        assert_eq!(
            infer(&operator(false), &inputs(fact(&[3, 4]))).unwrap_err().to_string(),
            "extent of the mask: 4 does not fit 5"
        );
        assert!(infer(&operator(true), &inputs(fact(&[3, 4]))).is_ok());
        assert_eq!(
            infer(&operator(true), &inputs(fact(&[3, 6]))).unwrap_err().to_string(),
            "length of the mask: 6 does not fit 5"
        );
    }
}
