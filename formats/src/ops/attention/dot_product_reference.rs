//! The meaning of attention: naive loops over batch, heads, queries and keys.

use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::attention::faults::{heads_needed, rank, uneven};
use crate::ops::broadcast::{broadcast_strides, strided_indices};
use crate::ops::floats::{narrowed, rounded_step, rounded_sum, widened};
use crate::ops::{
    Attention, ReferenceContext, ReferenceError, ScoreStage, SoftmaxFunction, TypeError, integers, optional_tensor,
    tensor,
};
use crate::tensor::Tensor;
use crate::value::Value;

/// An operand as `[batch, heads, length, size]`.
struct Heads {
    values: Vec<f64>,
    batch: usize,
    heads: usize,
    length: usize,
    size: usize,
}

impl Heads {
    fn of(tensor: &Tensor, stated: Option<i64>, operand: usize) -> Result<Heads, ReferenceError> {
        let values = widened(tensor)?;
        let stated = stated.map(|heads| usize::try_from(heads).unwrap_or(usize::MAX));
        match *tensor.shape() {
            [batch, heads, length, size] => match stated {
                Some(stated) if stated != heads => Err(TypeError::Dimension {
                    subject: "number of heads".to_string(),
                    left: heads.to_string(),
                    right: stated.to_string(),
                }
                .into()),
                Some(_) | None => Ok(Heads { values, batch, heads, length, size }),
            },
            [batch, length, hidden] => {
                let heads = stated.filter(|heads| *heads > 0).ok_or_else(|| heads_needed(operand))?;
                if hidden % heads != 0 {
                    return Err(uneven("hidden size", &hidden.to_string(), &heads.to_string()).into());
                }
                let size = hidden / heads;
                let at = |index: usize| {
                    let (rest, inside) = (index / size, index % size);
                    let (rest, time) = (rest / length, rest % length);
                    let (batch, head) = (rest / heads, rest % heads);
                    values[(batch * length + time) * hidden + head * size + inside]
                };
                Ok(Heads { values: (0..values.len()).map(at).collect(), batch, heads, length, size })
            }
            _ => Err(TypeError::Rank { operand, expected: "3 or 4".to_string(), found: tensor.rank() }.into()),
        }
    }

    /// Keys of the past before these.
    fn behind(self, past: Option<&Tensor>, operand: usize) -> Result<Heads, ReferenceError> {
        let Some(past) = past else { return Ok(self) };
        if past.rank() != 4 {
            return Err(rank(operand, 4, past.rank()).into());
        }
        let before = Heads::of(past, None, operand)?;
        if (before.batch, before.heads, before.size) != (self.batch, self.heads, self.size) {
            return Err(TypeError::Dimension {
                subject: "past keys or values of attention".to_string(),
                left: format!("{:?}", past.shape()),
                right: format!("[{}, {}, _, {}]", self.batch, self.heads, self.size),
            }
            .into());
        }
        let length = before.length + self.length;
        let mut values = Vec::with_capacity(before.values.len() + self.values.len());
        for head in 0..self.batch * self.heads {
            for part in [&before, &self] {
                let extent = part.length * part.size;
                values.extend_from_slice(&part.values[head * extent..(head + 1) * extent]);
            }
        }
        Ok(Heads { values, length, ..self })
    }

    fn row(&self, batch: usize, head: usize, time: usize) -> &[f64] {
        let start = ((batch * self.heads + head) * self.length + time) * self.size;
        &self.values[start..start + self.size]
    }

    fn shape(&self) -> [usize; 4] {
        [self.batch, self.heads, self.length, self.size]
    }
}

/// What is added to the scores: 0, minus infinity, or the elements of a numeric mask.
struct Bias {
    /// For `[batch, heads, queries, mask length]`.
    mask: Option<Vec<f64>>,
    mask_length: usize,
    /// Position of the first query, for each of the batch.
    offsets: Vec<i64>,
    /// Keys that are no padding, for each of the batch.
    valid: Option<Vec<i64>>,
}

/// The integers of an optional operand `[count]`.
fn counted(inputs: &[Option<Value>], operand: usize, count: usize) -> Result<Option<Vec<i64>>, ReferenceError> {
    if optional_tensor(inputs, operand)?.is_none() {
        return Ok(None);
    }
    let found = integers(inputs, operand)?;
    if found.len() == count {
        return Ok(Some(found));
    }
    let (left, right) = (found.len().to_string(), count.to_string());
    Err(TypeError::Dimension { subject: "batch of attention".to_string(), left, right }.into())
}

/// The score of each query head that has no value.
fn sinks(inputs: &[Option<Value>], heads: usize) -> Result<Option<Vec<f64>>, ReferenceError> {
    let Some(sinks) = optional_tensor(inputs, 8)? else { return Ok(None) };
    if sinks.shape() == [heads] {
        return Ok(Some(widened(sinks)?));
    }
    let (left, right) = (format!("{:?}", sinks.shape()), format!("[{heads}]"));
    Err(TypeError::Dimension { subject: "sinks of attention".to_string(), left, right }.into())
}

impl Bias {
    fn of(
        operator: &Attention,
        inputs: &[Option<Value>],
        q: &Heads,
        k: &Heads,
        past: usize,
    ) -> Result<Bias, ReferenceError> {
        let valid = counted(inputs, 6, q.batch)?;
        let first = counted(inputs, 7, q.batch)?;
        let offsets = match (first, &valid) {
            (Some(first), _) => first,
            (None, Some(valid)) => valid.iter().map(|valid| valid.saturating_sub(q.length as i64)).collect(),
            (None, None) => vec![past as i64; q.batch],
        };
        let Some(mask) = optional_tensor(inputs, 3)? else {
            return Ok(Bias { mask: None, mask_length: k.length, offsets, valid });
        };
        let mask_length = match mask.shape().last() {
            Some(&length) if operator.pad_mask && length <= k.length => length,
            _ => k.length,
        };
        let target = [q.batch, q.heads, q.length, mask_length];
        let own = mask.shape();
        if own.len() > 4 || own.iter().rev().zip(target.iter().rev()).any(|(own, wanted)| own != wanted && *own != 1) {
            let (left, right) = (format!("{own:?}"), format!("{target:?}"));
            return Err(TypeError::Dimension { subject: "attention mask".to_string(), left, right }.into());
        }
        let values = match mask.dtype() {
            DType::Bool => mask.bools()?.iter().map(|&seen| if seen { 0.0 } else { f64::NEG_INFINITY }).collect(),
            _ => widened(mask)?,
        };
        let strides = broadcast_strides(own, &target);
        let spread = strided_indices(&target, &strides).map(|index| values[index]).collect();
        Ok(Bias { mask: Some(spread), mask_length, offsets, valid })
    }

    fn row(&self, operator: &Attention, q: &Heads, keys: usize, [batch, head, query]: [usize; 3]) -> Vec<f64> {
        let position = self.offsets[batch].saturating_add(query as i64);
        let start = ((batch * q.heads + head) * q.length + query) * self.mask_length;
        let one = |key: usize| {
            let distance = (key as i64).saturating_sub(position);
            let hidden = (operator.causal && distance > 0)
                || operator.left_window.is_some_and(|window| distance.saturating_neg() > window)
                || operator.right_window.is_some_and(|window| distance > window)
                || self.valid.as_ref().is_some_and(|valid| key as i64 >= valid[batch])
                || key >= self.mask_length;
            let mask = self.mask.as_ref().and_then(|mask| mask.get(start + key)).copied().unwrap_or(0.0);
            if hidden { f64::NEG_INFINITY } else { mask }
        };
        (0..keys).map(one).collect()
    }
}

/// Results of [`Attention`].
pub(crate) fn attend(
    operator: &Attention,
    inputs: &[Option<Value>],
    context: &mut ReferenceContext<'_>,
) -> Result<Vec<Value>, ReferenceError> {
    let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
    let (dtype, value_type) = operator.check_types(&facts)?;
    let flat = tensor(inputs, 0)?.rank() == 3;
    let q = Heads::of(tensor(inputs, 0)?, operator.query_heads, 0)?;
    let k = Heads::of(tensor(inputs, 1)?, operator.key_heads, 1)?;
    let v = Heads::of(tensor(inputs, 2)?, operator.key_heads, 2)?;
    let now = k.length;
    let k = k.behind(optional_tensor(inputs, 4)?, 4)?;
    let v = v.behind(optional_tensor(inputs, 5)?, 5)?;
    let fits = k.batch == q.batch && k.size == q.size && v.shape()[..3] == k.shape()[..3];
    if !fits || k.heads == 0 && q.heads > 0 || q.heads.checked_rem(k.heads).is_some_and(|rest| rest != 0) {
        return Err(TypeError::Dimension {
            subject: "attention".to_string(),
            left: format!("queries {:?}", q.shape()),
            right: format!("keys {:?}, values {:?}", k.shape(), v.shape()),
        }
        .into());
    }
    let bias = Bias::of(operator, inputs, &q, &k, k.length - now)?;
    let sinks = sinks(inputs, q.heads)?;
    let group = q.heads.checked_div(k.heads).unwrap_or(1);
    let mut output = Vec::with_capacity(q.values.len());
    let mut scores = Vec::new();
    let mut rows = Rows { operator, dtype, macs: 0 };
    for (batch, head, query) in positions(&q) {
        let bias = bias.row(operator, &q, k.length, [batch, head, query]);
        let keys = (0..k.length).map(|key| k.row(batch, head / group, key));
        let sink = sinks.as_ref().map(|sinks| sinks[head]);
        let (weights, shown) = rows.weights(q.row(batch, head, query), keys, &bias, sink);
        scores.extend(shown);
        let values: Vec<&[f64]> = (0..k.length).map(|key| v.row(batch, head / group, key)).collect();
        output.extend(rows.combine(&weights, &values, v.size));
    }
    context.macs += rows.macs;
    let shape = [q.batch, q.heads, q.length, v.size];
    let y = if flat { merged(&output, shape, dtype)? } else { narrowed(dtype, &shape, &output)? };
    let mut results: Vec<Value> = vec![operator.program.apply_to(y, inputs)?.into()];
    if operator.present {
        results.push(narrowed(dtype, &k.shape(), &k.values)?.into());
        results.push(narrowed(value_type, &v.shape(), &v.values)?.into());
    }
    if operator.scores.is_some() {
        results.push(narrowed(dtype, &[q.batch, q.heads, q.length, k.length], &scores)?.into());
    }
    Ok(results)
}

/// Batch, head and query of every row of scores, in order.
fn positions(q: &Heads) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
    let (batch, heads, length) = (q.batch, q.heads, q.length);
    (0..batch)
        .flat_map(move |batch| (0..heads).flat_map(move |head| (0..length).map(move |query| (batch, head, query))))
}

/// `[b, h, s, e]` as `[b, s, h*e]`.
fn merged(values: &[f64], [batch, heads, length, size]: [usize; 4], dtype: DType) -> Result<Tensor, ReferenceError> {
    let at = |index: usize| {
        let (rest, inside) = (index / size, index % size);
        let (rest, head) = (rest / heads, rest % heads);
        let (batch, time) = (rest / length, rest % length);
        values[((batch * heads + head) * length + time) * size + inside]
    };
    let moved: Vec<f64> = (0..values.len()).map(at).collect();
    narrowed(dtype, &[batch, length, heads.saturating_mul(size)], &moved)
}

/// The arithmetic of one row of scores.
struct Rows<'a> {
    operator: &'a Attention,
    dtype: DType,
    macs: u64,
}

impl Rows<'_> {
    /// Weights of the values, and the scores to show.
    fn weights<'k>(
        &mut self,
        query: &[f64],
        keys: impl Iterator<Item = &'k [f64]>,
        bias: &[f64],
        sink: Option<f64>,
    ) -> (Vec<f64>, Vec<f64>) {
        let (operator, dtype) = (self.operator, self.dtype);
        let scale = operator.scale.map_or(1.0 / (query.len() as f64).sqrt(), f64::from);
        // Each side takes the root of the scale, as the specification says; a negative scale keeps its sign.
        let root = rounded_step(dtype, scale.abs().sqrt());
        let arithmetic = operator.arithmetic;
        let scaled = |value: f64, root: f64| arithmetic.activation(rounded_step(dtype, value * root));
        let mut scores = Vec::with_capacity(bias.len());
        for key in keys {
            let mut sum = 0.0;
            for (q, k) in query.iter().zip(key) {
                sum = arithmetic.accumulator(sum + scaled(*q, root * scale.signum()) * scaled(*k, root));
                self.macs += 1;
            }
            scores.push(rounded_step(dtype, sum));
        }
        let softcap = f64::from(operator.softcap);
        let capped: Vec<f64> = match softcap > 0.0 {
            false => scores.clone(),
            true => {
                let tanh = |score: &f64| rounded_step(dtype, rounded_step(dtype, score / softcap).tanh());
                scores.iter().map(|score| rounded_step(dtype, tanh(score) * softcap)).collect()
            }
        };
        let biased = |(score, bias): (&f64, &f64)| rounded_step(dtype, score + rounded_step(dtype, *bias));
        let biased: Vec<f64> = capped.iter().zip(bias).map(biased).collect();
        let weights = if bias.iter().all(|bias| *bias == f64::NEG_INFINITY) {
            vec![0.0; bias.len()]
        } else {
            let precision = operator.softmax_precision.unwrap_or(dtype);
            let cast: Vec<f64> = biased.iter().chain(&sink).map(|score| rounded_step(precision, *score)).collect();
            let round = |step| rounded_step(precision, step);
            let weights = SoftmaxFunction::Softmax.row(&cast, round, |sum| rounded_sum(precision, sum));
            weights[..bias.len()].iter().map(|weight| rounded_step(dtype, round(*weight))).collect()
        };
        let shown = match operator.scores {
            None => Vec::new(),
            Some(ScoreStage::Product) => scores,
            Some(ScoreStage::Softcap) => capped,
            Some(ScoreStage::Bias) => biased,
            Some(ScoreStage::Softmax) => weights.clone(),
        };
        (weights, shown)
    }

    /// The weighted sum of the values.
    fn combine(&mut self, weights: &[f64], values: &[&[f64]], size: usize) -> Vec<f64> {
        let arithmetic = self.operator.arithmetic;
        let mut sums = vec![0.0; size];
        for (weight, value) in weights.iter().zip(values) {
            for (sum, value) in sums.iter_mut().zip(*value) {
                *sum = arithmetic.accumulator(*sum + arithmetic.activation(*weight) * arithmetic.activation(*value));
                self.macs += 1;
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run_all;

    /// Scores are the products of these with 1 query element of 1; value `j` is `10^j`.
    fn run(operator: &Attention, queries: usize, keys: &[f32], rest: &[Option<Tensor>]) -> Vec<Vec<f32>> {
        let values: Vec<f32> = (0..keys.len()).map(|key| 10f32.powi(key as i32)).collect();
        let shape = [1, 1, keys.len(), 1];
        let mut inputs = vec![
            Some(Tensor::from_elements(&[1, 1, queries, 1], &vec![1.0f32; queries]).unwrap()),
            Some(Tensor::from_elements(&shape, keys).unwrap()),
            Some(Tensor::from_elements(&shape, &values).unwrap()),
        ];
        inputs.extend_from_slice(rest);
        let results = run_all(operator, &inputs).unwrap();
        results.iter().map(|result| result.elements::<f32>().unwrap().to_vec()).collect()
    }

    #[test]
    fn equal_scores_average_what_is_seen() {
        let causal = Attention { causal: true, ..Attention::plain() };
        assert_eq!(run(&Attention::plain(), 1, &[0.0; 2], &[])[0], [5.5]);
        assert_eq!(run(&causal, 3, &[0.0; 3], &[])[0], [1.0, 5.5, 37.0]);
        let window = Attention { causal: true, left_window: Some(1), ..Attention::plain() };
        assert_eq!(run(&window, 3, &[0.0; 3], &[])[0], [1.0, 5.5, 55.0]);
        let around = Attention { left_window: Some(0), right_window: Some(1), ..Attention::plain() };
        assert_eq!(run(&around, 3, &[0.0; 3], &[])[0], [5.5, 55.0, 100.0]);
    }

    #[test]
    fn hidden_rows_are_zero_even_with_poison() {
        let mask = Tensor::from_bools(&[2, 2], &[false, false, true, false]).unwrap();
        let operator = Attention { scores: Some(ScoreStage::Softmax), ..Attention::plain() };
        let results = run(&operator, 2, &[0.0, 0.0], &[Some(mask.clone())]);
        assert_eq!(results, [vec![0.0, 1.0], vec![0.0, 0.0, 1.0, 0.0]]);
        assert_eq!(run(&operator, 2, &[0.0, f32::INFINITY], &[Some(mask)])[0][0], 0.0);
    }

    #[test]
    fn valid_keys_bound_each_batch() {
        let operator = Attention { causal: true, ..Attention::plain() };
        let valid = |count: i64| vec![None, None, None, Some(Tensor::vector_i64(&[count]))];
        assert_eq!(run(&operator, 2, &[0.0; 4], &valid(3))[0], [5.5, 37.0]);
        assert_eq!(run(&operator, 2, &[0.0; 4], &valid(1))[0], [0.0, 1.0]);
        assert_eq!(run(&operator, 1, &[0.0; 2], &valid(i64::MIN))[0], [0.0]);
    }

    #[test]
    fn the_first_position_and_sinks() {
        let operator = Attention { causal: true, ..Attention::plain() };
        let vector = |count: i64| Some(Tensor::vector_i64(&[count]));
        let first = |first: i64| vec![None, None, None, vector(3), vector(first)];
        assert_eq!(run(&operator, 2, &[0.0; 4], &first(0))[0], [1.0, 5.5]);
        assert_eq!(run(&operator, 2, &[0.0; 4], &first(2))[0], [37.0, 37.0]);
        let sink = |sink: f32| vec![None, None, None, None, None, Some(Tensor::from_elements(&[1], &[sink]).unwrap())];
        assert_eq!(run(&Attention::plain(), 1, &[0.0; 3], &sink(0.0))[0], [27.75]);
        assert_eq!(run(&Attention::plain(), 1, &[0.0; 3], &sink(f32::NEG_INFINITY))[0], [37.0]);
    }

    #[test]
    fn stages_of_scores_and_softcap() {
        let mask = Some(Tensor::from_elements(&[1, 2], &[0.0f32, 7.0]).unwrap());
        let stage = |scores| Attention { scores: Some(scores), softcap: 2.0, scale: Some(0.5), ..Attention::plain() };
        let shown = |scores| run(&stage(scores), 1, &[4.0, 0.0], std::slice::from_ref(&mask))[1].clone();
        assert_eq!(shown(ScoreStage::Product), [2.0, 0.0]);
        assert_eq!(shown(ScoreStage::Softcap), [(2.0 * 1f64.tanh()) as f32, 0.0]);
        assert_eq!(shown(ScoreStage::Bias)[1], 7.0);
        assert!((shown(ScoreStage::Softmax).iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn groups_share_keys_and_past_comes_first() {
        let operator = Attention { query_heads: Some(2), key_heads: Some(1), present: true, ..Attention::plain() };
        let flat = |shape: &[usize], values: &[f32]| Some(Tensor::from_elements(shape, values).unwrap());
        let past = || flat(&[1, 1, 1, 1], &[0.0]);
        let inputs = [flat(&[1, 1, 2], &[0.0, 0.0]), flat(&[1, 1, 1], &[3.0]), flat(&[1, 1, 1], &[4.0]), None];
        let inputs: Vec<Option<Tensor>> = inputs.into_iter().chain([past(), past()]).collect();
        let results = run_all(&operator, &inputs).unwrap();
        assert_eq!(results[0].shape(), [1, 1, 2]);
        assert_eq!(results[0].elements::<f32>().unwrap(), [2.0, 2.0]);
        assert_eq!(results[1].shape(), [1, 1, 2, 1]);
        assert_eq!(results[2].elements::<f32>().unwrap(), [0.0, 4.0]);
    }

    #[test]
    fn a_short_mask_hides_the_rest() {
        let mask = Some(Tensor::from_elements(&[1, 1], &[0.0f32]).unwrap());
        let padded = Attention { pad_mask: true, ..Attention::plain() };
        assert_eq!(run(&padded, 1, &[0.0; 2], std::slice::from_ref(&mask))[0], [1.0]);
        assert_eq!(run(&Attention::plain(), 1, &[0.0; 2], &[mask])[0], [5.5]);
    }
}
