//! Splitting texts: ONNX `StringSplit` (opset 20).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::text::string_concat::string_operand;
use crate::ops::windows::listed;
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Splits each text of `x: [..]`: its parts `[.., most]`, shorter lists filled with empty texts, and how many parts
    /// there are, `i64 [..]`.
    pub struct StringSplit revision 1 {
        /// What lies between parts. Empty: any white space, of which runs count once and ends not at all.
        1 since 1 => delimiter: Option<String>,
        /// Most splits in a text, what follows stays whole; absent or negative: no limit.
        2 since 1 => maximum_splits: Option<i64>,
    }
}

/// White space of Python's `str.split`, which defines the operator: Unicode's and the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn split_at_spaces(text: &str, limit: Option<usize>) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if limit == Some(parts.len()) {
            parts.push(rest);
            break;
        }
        let (part, after) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
        parts.push(part);
        rest = after.trim_start_matches(is_space);
    }
    parts
}

impl StringSplit {
    fn split<'text>(&self, text: &'text str) -> Vec<&'text str> {
        let limit = self.maximum_splits.and_then(|splits| usize::try_from(splits).ok());
        match (self.delimiter.as_deref(), limit) {
            (None | Some(""), limit) => split_at_spaces(text, limit),
            (Some(delimiter), Some(limit)) => text.splitn(limit.saturating_add(1), delimiter).collect(),
            (Some(delimiter), None) => text.split(delimiter).collect(),
        }
    }
}

impl Operator for StringSplit {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let shape = string_operand(inputs, 0)?;
        let parts = match shape.dims() {
            Some(dims) => dims.iter().cloned().chain([context.fresh("most")]).collect::<Vec<_>>().into(),
            None => Shape::Unranked,
        };
        Ok(vec![Fact::tensor(DType::String, parts), Fact::tensor(DType::I64, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let lists: Vec<Vec<&str>> = input.strings()?.iter().map(|text| self.split(text)).collect();
        let most = lists.iter().map(Vec::len).max().unwrap_or(0);
        let counts: Vec<i64> = lists.iter().map(|list| list.len() as i64).collect();
        let mut shape = input.shape().to_vec();
        shape.push(most);
        // Padding can make the result far larger than the texts.
        let mut parts = listed(DType::String, &shape)?;
        for list in lists {
            let filled = list.into_iter().chain(std::iter::repeat(""));
            parts.extend(filled.take(most).map(str::to_string));
        }
        let parts = Tensor::from_strings(&shape, parts)?;
        Ok(vec![parts.into(), Tensor::from_elements(input.shape(), &counts)?.into()])
    }
}

impl Serial for StringSplit {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;

    fn split(delimiter: Option<&str>, maximum_splits: Option<i64>, text: &'static str) -> Vec<&'static str> {
        StringSplit { delimiter: delimiter.map(str::to_string), maximum_splits }.split(text)
    }

    /// Expectations are those of Python's `str.split`.
    #[test]
    fn delimiters_and_white_space() {
        assert_eq!(split(Some(","), None, "a,,b,"), ["a", "", "b", ""]);
        assert_eq!(split(Some(","), None, ""), [""]);
        assert_eq!(split(Some(","), Some(1), "a,b,c"), ["a", "b,c"]);
        assert_eq!(split(Some(","), Some(0), "a,b"), ["a,b"]);
        assert_eq!(split(Some("--"), None, "a--b---c"), ["a", "b", "-c"]);
        assert_eq!(split(None, None, " \t a  b\u{1f}c\u{3000} "), ["a", "b", "c"]);
        assert_eq!(split(Some(""), Some(1), " a  b c "), ["a", "b c "]);
        assert_eq!(split(None, Some(1), "a "), ["a"]);
        assert_eq!(split(None, Some(0), " a b "), ["a b "]);
        assert_eq!(split(None, Some(-1), "a b c"), ["a", "b", "c"]);
        assert!(split(None, None, "  ").is_empty());
    }

    #[test]
    fn short_lists_are_filled() {
        let mut blocks = NoBlocks;
        let input = Tensor::from_strings(&[2, 1], vec!["a b".to_string(), "c".to_string()]).unwrap();
        let operator = StringSplit { delimiter: None, maximum_splits: None };
        let results = operator.reference(&[Some(input.into())], &mut ReferenceContext::new(&mut blocks)).unwrap();
        let parts = results[0].as_tensor().unwrap();
        assert_eq!((parts.shape(), parts.strings().unwrap()[3].as_str()), ([2, 1, 2].as_slice(), ""));
        assert_eq!(results[1], Tensor::from_elements(&[2, 1], &[2i64, 1]).unwrap().into());
        let none = Tensor::from_strings(&[0, 3], vec![]).unwrap();
        let results = operator.reference(&[Some(none.into())], &mut ReferenceContext::new(&mut blocks)).unwrap();
        assert_eq!(results[0].as_tensor().unwrap().shape(), [0, 3, 0]);
    }

    #[test]
    fn padding_that_no_memory_holds_is_refused() {
        let mut texts = vec![String::new(); 3_000_000];
        texts[0] = ",".repeat(texts.len());
        let input = Tensor::from_strings(&[texts.len()], texts).unwrap();
        let operator = StringSplit { delimiter: Some(",".to_string()), maximum_splits: None };
        let refused = operator.reference(&[Some(input.into())], &mut ReferenceContext::new(&mut NoBlocks)).unwrap_err();
        assert_eq!(refused.to_string(), "string[3000000, 3000001] is too large to address");
    }
}
