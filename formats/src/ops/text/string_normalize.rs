//! Dropping stop words and changing case: ONNX `StringNormalizer` (opset 10).
//!
//! Case follows Unicode, whatever the locale: the import refuses the languages where that would differ.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::text::string_concat::string_operand;
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor,
};
use crate::tensor::Tensor;
use crate::value::Value;
use std::collections::HashSet;

attributes! {
    /// `x: [n]` or `[1, n]` without the stop words, in another case: `[m]` or `[1, m]`. Where nothing is left, one
    /// empty text.
    pub struct StringNormalize revision 1 {
        /// What happens to letters.
        1 since 1 => case: TextCase,
        /// Stop words match only in the same case.
        2 since 1 => case_sensitive: bool,
        /// Words that are dropped.
        3 since 1 => stopwords: Vec<String>,
    }
}

/// What [`StringNormalize`] does to letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum TextCase {
    /// They stay as they are.
    Keep,
    /// Lower case.
    Lower,
    /// Upper case.
    Upper,
}
impl Keyword for TextCase {}

impl TextCase {
    fn apply(self, text: &str) -> String {
        match self {
            TextCase::Keep => text.to_string(),
            TextCase::Lower => text.to_lowercase(),
            TextCase::Upper => text.to_uppercase(),
        }
    }
}

impl Operator for StringNormalize {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let shape = match string_operand(inputs, 0)? {
            Shape::Unranked => return Ok(vec![Fact::tensor(DType::String, Shape::Unranked)]),
            Shape::Ranked(dims) => dims,
        };
        let (rank, words) = (shape.len(), shape.last());
        let kept = match words {
            Some(words) if self.stopwords.is_empty() => Dim::max(words, &Dim::ONE).simplify(context.ranges),
            Some(_) | None => context.fresh("kept"),
        };
        let dims = match rank {
            1 => vec![kept],
            2 => vec![context.require_equal(&shape[0], &Dim::ONE, "first extent of words")?, kept],
            found => return Err(TypeError::Rank { operand: 0, expected: "1 or 2".to_string(), found }),
        };
        Ok(vec![Fact::tensor(DType::String, dims)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        if !matches!(input.shape(), [_] | [1, _]) {
            return Err(TypeError::Value {
                subject: "shape of words".to_string(),
                found: format!("{:?}", input.shape()),
                expected: "[n] or [1, n]".to_string(),
            }
            .into());
        }
        // Without regard to case words are compared in the case of the result, or in lower case.
        let compared = match (self.case_sensitive, self.case) {
            (true, _) => TextCase::Keep,
            (false, TextCase::Upper) => TextCase::Upper,
            (false, TextCase::Keep | TextCase::Lower) => TextCase::Lower,
        };
        let stopwords: HashSet<String> = self.stopwords.iter().map(|word| compared.apply(word)).collect();
        let is_kept = |word: &&String| stopwords.is_empty() || !stopwords.contains(&compared.apply(word));
        let mut words: Vec<String> =
            input.strings()?.iter().filter(is_kept).map(|word| self.case.apply(word)).collect();
        if words.is_empty() {
            words.push(String::new());
        }
        let mut shape = vec![1; input.rank()];
        shape[input.rank() - 1] = words.len();
        Ok(vec![Tensor::from_strings(&shape, words)?.into()])
    }
}

impl Serial for StringNormalize {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 2)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;

    const WEEK: [&str; 5] = ["Monday", "tuesday", "wednesday", "MONDAY", "thursday"];

    fn run(operator: &StringNormalize, shape: &[usize], words: &[&str]) -> Result<Tensor, ReferenceError> {
        let mut blocks = NoBlocks;
        let input = Tensor::from_strings(shape, words.iter().map(|word| word.to_string()).collect()).unwrap();
        let results = operator.reference(&[Some(input.into())], &mut ReferenceContext::new(&mut blocks))?;
        Ok(results[0].as_tensor().unwrap().clone())
    }

    fn operator(case: TextCase, case_sensitive: bool) -> StringNormalize {
        StringNormalize { case, case_sensitive, stopwords: vec!["monday".to_string()] }
    }

    #[test]
    fn stop_words_are_dropped_with_or_without_case() {
        let insensitive = run(&operator(TextCase::Upper, false), &[1, 5], &WEEK).unwrap();
        assert_eq!(insensitive.strings().unwrap(), ["TUESDAY", "WEDNESDAY", "THURSDAY"]);
        assert_eq!(insensitive.shape(), [1, 3]);
        let sensitive = run(&operator(TextCase::Lower, true), &[5], &WEEK).unwrap();
        assert_eq!(sensitive.strings().unwrap(), ["monday", "tuesday", "wednesday", "monday", "thursday"]);
        let kept = run(&operator(TextCase::Keep, false), &[2], &["Zürich", "MONDAY"]).unwrap();
        assert_eq!(kept.strings().unwrap(), ["Zürich"]);
    }

    #[test]
    fn nothing_left_is_one_empty_text() {
        let empty = run(&operator(TextCase::Keep, false), &[1, 2], &["monday", "Monday"]).unwrap();
        assert_eq!((empty.shape(), empty.strings().unwrap()), ([1, 1].as_slice(), [String::new()].as_slice()));
        assert_eq!(
            run(&operator(TextCase::Keep, false), &[2, 1], &["a", "b"]).unwrap_err().to_string(),
            "shape of words is [2, 1], expected [n] or [1, n]"
        );
    }
}
