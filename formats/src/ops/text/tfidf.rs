//! Counting n-grams: ONNX `TfIdfVectorizer` (opset 9).
//!
//! Where several n-grams share a column, their counts (times weights) are added; with `idf` the weight of the last that
//! is found counts, as in ONNX Runtime.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    integers, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::filled;
use crate::value::Value;
use std::collections::HashMap;
use std::hash::Hash;

attributes! {
    /// Counts n-grams of a pool in each row of `x: [c]` or `[n, c]`: `f32 [columns]` or `[n, columns]`. Tokens are
    /// i32, i64 or string.
    pub struct TfIdf revision 1 {
        /// What becomes of the counts.
        1 since 1 => weighting: Weighting,
        /// Length of the shortest n-grams counted.
        2 since 1 => minimum_length: i64,
        /// Length of the longest n-grams counted.
        3 since 1 => maximum_length: i64,
        /// Most tokens left out between two tokens of an n-gram.
        4 since 1 => maximum_skips: i64,
        /// Where the n-grams of length 1, 2, .. begin in the pool.
        5 since 1 => starts: Vec<i64>,
        /// Column of each n-gram of the pool.
        6 since 1 => columns: Vec<i64>,
        /// One weight an n-gram; none: all 1.
        7 since 1 => weights: Vec<f32>,
        /// Tokens of all n-grams one after the other, where tokens are integers.
        8 since 1 => integer_pool: Vec<i64>,
        /// Tokens of all n-grams one after the other, where tokens are texts.
        9 since 1 => text_pool: Vec<String>,
    }
}

/// What [`TfIdf`] makes of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Weighting {
    /// The count.
    Tf,
    /// The weight where there is any.
    Idf,
    /// Count times weight.
    Tfidf,
}
impl Keyword for Weighting {}

fn invalid(subject: &str, found: impl std::fmt::Display, expected: &str) -> TypeError {
    TypeError::Value { subject: subject.to_string(), found: found.to_string(), expected: expected.to_string() }
}

/// N-grams with column and weight.
type Vocabulary<'pool, T> = HashMap<&'pool [T], (usize, f32)>;

impl TfIdf {
    /// Number of columns, after checking what the attributes say.
    fn width(&self) -> Result<usize, TypeError> {
        if self.minimum_length < 1 || self.maximum_length < self.minimum_length {
            let found = format!("{} to {}", self.minimum_length, self.maximum_length);
            return Err(invalid("length of n-grams", found, "at least 1, shortest to longest"));
        }
        if self.maximum_skips < 0 {
            return Err(invalid("maximum_skips", self.maximum_skips, "at least 0"));
        }
        if self.integer_pool.is_empty() == self.text_pool.is_empty() {
            return Err(invalid("pool", "absent or twice", "one of integers or texts"));
        }
        let widest = self.columns.iter().copied().max().unwrap_or(-1);
        let width = usize::try_from(widest).ok().and_then(|widest| widest.checked_add(1));
        let width = width.ok_or_else(|| invalid("columns", format!("{:?}", self.columns), "at least one column"))?;
        if self.columns.iter().any(|&column| column < 0) {
            return Err(invalid("columns", "negative", "columns from 0"));
        }
        if !self.weights.is_empty() && self.weights.len() != self.columns.len() {
            return Err(invalid("number of weights", self.weights.len(), "one an n-gram"));
        }
        Ok(width)
    }

    /// The n-grams of the pool that are counted, each with its column and weight.
    fn vocabulary<'pool, T: Eq + Hash>(&self, pool: &'pool [T]) -> Result<Vocabulary<'pool, T>, TypeError> {
        let mut vocabulary = HashMap::new();
        let mut gram = 0usize;
        for (index, &start) in self.starts.iter().enumerate() {
            let length = index + 1;
            let end = self.starts.get(index + 1).copied();
            let range = usize::try_from(start).ok().zip(end.map_or(Some(pool.len()), |end| usize::try_from(end).ok()));
            let tokens = range.and_then(|(start, end)| pool.get(start..end));
            let tokens = tokens.ok_or_else(|| invalid("starts", format!("{:?}", self.starts), "ranges in the pool"))?;
            if tokens.len() % length != 0 {
                return Err(invalid("number of tokens", tokens.len(), "a multiple of the length of n-grams"));
            }
            let counted = (self.minimum_length..=self.maximum_length).contains(&(length as i64));
            for tokens in tokens.chunks_exact(length) {
                let column = self.columns.get(gram).and_then(|&column| usize::try_from(column).ok());
                let column = column.ok_or_else(|| invalid("columns", self.columns.len(), "one an n-gram"))?;
                if counted {
                    vocabulary.insert(tokens, (column, self.weights.get(gram).copied().unwrap_or(1.0)));
                }
                gram += 1;
            }
        }
        Ok(vocabulary)
    }

    /// Counts of one row.
    fn count<T: Eq + Hash + Clone>(&self, row: &[T], vocabulary: &Vocabulary<'_, T>, counts: &mut [f32]) {
        let longest = usize::try_from(self.maximum_length).unwrap_or(usize::MAX).min(row.len());
        let shortest = usize::try_from(self.minimum_length).unwrap_or(1);
        let skips = usize::try_from(self.maximum_skips).unwrap_or(usize::MAX).min(row.len());
        let mut gram = Vec::new();
        for distance in 1..=skips + 1 {
            for start in 0..row.len() {
                gram.clear();
                for token in row[start..].iter().step_by(distance).take(longest) {
                    gram.push(token.clone());
                    // A single token has no gaps: it counts once, whatever the number of skips.
                    if gram.len() < shortest || (gram.len() == 1 && distance > 1) {
                        continue;
                    }
                    if let Some(&(column, weight)) = vocabulary.get(gram.as_slice()) {
                        match self.weighting {
                            Weighting::Tf => counts[column] += 1.0,
                            Weighting::Idf => counts[column] = weight,
                            Weighting::Tfidf => counts[column] += weight,
                        }
                    }
                }
            }
        }
    }

    fn counts<T: Eq + Hash + Clone>(
        &self,
        tokens: &[T],
        pool: &[T],
        rows: usize,
        width: usize,
    ) -> Result<Vec<f32>, ReferenceError> {
        let vocabulary = self.vocabulary(pool)?;
        let total = rows.checked_mul(width).filter(|&total| total <= isize::MAX as usize / 4);
        let total = total.ok_or_else(|| invalid("columns", width, "a result that fits in memory"))?;
        let mut counts = filled(0f32, total)?;
        let row_length = tokens.len() / rows.max(1);
        if row_length == 0 {
            return Ok(counts);
        }
        for (row, counts) in tokens.chunks_exact(row_length).zip(counts.chunks_exact_mut(width)) {
            self.count(row, &vocabulary, counts);
        }
        Ok(counts)
    }
}

impl Operator for TfIdf {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let fits = match dtype {
            DType::String => self.integer_pool.is_empty(),
            DType::I32 | DType::I64 => self.text_pool.is_empty(),
            _ => false,
        };
        if !fits {
            let expected = if self.text_pool.is_empty() { "i32 or i64" } else { "string" }.to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        let width = Dim::from(self.width()?);
        match shape.dims() {
            None => Ok(vec![Fact::tensor(DType::F32, Shape::Unranked)]),
            Some([] | [_]) => Ok(vec![Fact::tensor(DType::F32, vec![width])]),
            Some([rows, _]) => Ok(vec![Fact::tensor(DType::F32, vec![rows.clone(), width])]),
            Some(dims) => Err(TypeError::Rank { operand: 0, expected: "0, 1 or 2".to_string(), found: dims.len() }),
        }
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let width = self.width()?;
        let (rows, shape) = match input.shape() {
            [] | [_] => (1, vec![width]),
            &[rows, _] => (rows, vec![rows, width]),
            shape => {
                let expected = "0, 1 or 2".to_string();
                return Err(TypeError::Rank { operand: 0, expected, found: shape.len() }.into());
            }
        };
        let counts = if input.dtype() == DType::String {
            self.counts(input.strings()?, &self.text_pool, rows, width)?
        } else {
            self.counts(&integers(inputs, 0)?, &self.integer_pool, rows, width)?
        };
        Ok(vec![Tensor::from_elements(&shape, &counts)?.into()])
    }
}

impl Serial for TfIdf {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, self.maximum_length.saturating_mul(2))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;

    /// The pool of the node tests of ONNX: four unigrams, three bigrams.
    fn operator(minimum_length: i64, maximum_skips: i64) -> TfIdf {
        TfIdf {
            weighting: Weighting::Tf,
            minimum_length,
            maximum_length: 2,
            maximum_skips,
            starts: vec![0, 4],
            columns: vec![0, 1, 2, 3, 4, 5, 6],
            weights: vec![],
            integer_pool: vec![2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
            text_pool: vec![],
        }
    }

    fn run(operator: &TfIdf, input: Tensor) -> Result<Tensor, ReferenceError> {
        let mut blocks = NoBlocks;
        let results = operator.reference(&[Some(input.into())], &mut ReferenceContext::new(&mut blocks))?;
        Ok(results[0].as_tensor().unwrap().clone())
    }

    #[test]
    fn the_examples_of_the_onnx_page() {
        let row = Tensor::from_elements(&[12], &[1i32, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8]).unwrap();
        let batch = row.reshaped(&[2, 6]).unwrap();
        let floats = |tensor: Tensor| tensor.elements::<f32>().unwrap().to_vec();
        let unigrams_too = floats(run(&operator(1, 5), row.clone()).unwrap());
        assert_eq!(unigrams_too, [0.0, 3.0, 1.0, 0.0, 1.0, 3.0, 1.0]);
        assert_eq!(floats(run(&operator(2, 0), row.clone()).unwrap()), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let rows = floats(run(&operator(2, 5), batch).unwrap());
        assert_eq!(rows, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let idf = TfIdf { weighting: Weighting::Idf, weights: vec![2.0; 7], ..operator(1, 0) };
        assert_eq!(floats(run(&idf, row.clone()).unwrap()), [0.0, 2.0, 2.0, 0.0, 2.0, 2.0, 2.0]);
        let weights: Vec<f32> = (1..8).map(|weight| weight as f32).collect();
        let tfidf = TfIdf { weighting: Weighting::Tfidf, weights: weights.clone(), ..operator(1, 0) };
        assert_eq!(floats(run(&tfidf, row.clone()).unwrap()), [0.0, 6.0, 3.0, 0.0, 5.0, 6.0, 7.0]);
        let reversed = TfIdf { columns: vec![6, 5, 4, 3, 2, 1, 0], ..tfidf };
        assert_eq!(floats(run(&reversed, row).unwrap()), [7.0, 6.0, 5.0, 0.0, 3.0, 6.0, 0.0]);
    }

    #[test]
    fn attributes_are_checked() {
        let row = Tensor::vector_i64(&[1, 2]);
        for wrong in [
            TfIdf { starts: vec![0, 11], ..operator(1, 0) },
            TfIdf { starts: vec![0, 3], ..operator(1, 0) },
            TfIdf { columns: vec![0], ..operator(1, 0) },
            TfIdf { columns: vec![-1; 7], ..operator(1, 0) },
            TfIdf { columns: vec![i64::MAX; 7], ..operator(1, 0) },
            TfIdf { weights: vec![1.0], ..operator(1, 0) },
            TfIdf { maximum_length: 0, ..operator(1, 0) },
            TfIdf { text_pool: vec![String::new()], ..operator(1, 0) },
        ] {
            assert!(run(&wrong, row.clone()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn texts_are_tokens_too() {
        let operator = TfIdf {
            integer_pool: vec![],
            text_pool: ["a", "b", "a", "b"].map(str::to_string).to_vec(),
            starts: vec![0, 2],
            columns: vec![2, 0, 1],
            ..operator(1, 0)
        };
        let row = Tensor::from_strings(&[3], ["a", "b", "a"].map(str::to_string).to_vec()).unwrap();
        assert_eq!(run(&operator, row).unwrap().elements::<f32>().unwrap(), [1.0, 1.0, 2.0]);
    }
}
