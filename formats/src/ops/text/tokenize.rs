//! Texts in tokens: `Tokenizer` of `com.microsoft`.
//!
//! Patterns have the syntax of RE2 (`pattern.rs`), and of several matches at a place the longest counts.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::text::pattern::LongestMatch;
use crate::ops::text::string_concat::string_operand;
use crate::ops::windows::listed;
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// The tokens of each text of `x: [n]` or `[m, n]`: `[.., most]`, shorter lists filled. Where neither pattern nor
    /// separators are given, every character is a token.
    pub struct Tokenize revision 1 {
        /// What lies between tokens: patterns that divide one after the other.
        1 since 1 => separators: Vec<String>,
        /// What a token is; empty: what lies between separators.
        2 since 1 => expression: String,
        /// Characters that a token has at least.
        3 since 1 => least: i64,
        /// Tokens are between U+0002 and U+0003, where some text has tokens.
        4 since 1 => mark: bool,
        /// What lists are filled with.
        5 since 1 => padding: String,
    }
}

/// What tokens follow from.
enum Rule {
    Characters,
    Expression(LongestMatch),
    Separators(Vec<LongestMatch>),
}

impl Tokenize {
    fn rule(&self) -> Result<Rule, TypeError> {
        if self.least < 1 {
            let (subject, found) = ("characters of a token".to_string(), self.least.to_string());
            return Err(TypeError::Value { subject, found, expected: "1 or more".to_string() });
        }
        match (self.separators.is_empty(), self.expression.is_empty()) {
            (true, true) => Ok(Rule::Characters),
            (true, false) => LongestMatch::new(&self.expression).map(Rule::Expression),
            (false, true) => {
                let patterns = self.separators.iter().map(|pattern| LongestMatch::new(pattern));
                patterns.collect::<Result<_, _>>().map(Rule::Separators)
            }
            (false, false) => Err(TypeError::Unsupported("tokens by separators and by a pattern".to_string())),
        }
    }

    fn tokens<'text>(&self, rule: &Rule, text: &'text str) -> Vec<&'text str> {
        let mut tokens = match rule {
            Rule::Characters => text.split_inclusive(|_: char| true).collect(),
            Rule::Expression(pattern) => matches(pattern, text, |token| self.is_long_enough(token)),
            Rule::Separators(patterns) => {
                let divided = |texts: Vec<&'text str>, pattern: &LongestMatch| {
                    texts.into_iter().flat_map(|text| between(pattern, text)).collect()
                };
                patterns.iter().fold(vec![text], divided)
            }
        };
        tokens.retain(|token| self.is_long_enough(token));
        tokens
    }

    fn is_long_enough(&self, token: &str) -> bool {
        usize::try_from(self.least).is_ok_and(|least| token.chars().count() >= least)
    }
}

/// Where a search goes on behind a match; behind an empty one a character is passed over.
fn behind(text: &str, (start, end): (usize, usize)) -> usize {
    if start == end { next_character(text, start) } else { end }
}

/// Where the character behind the one at `place` begins; outside of the text where there is none at `place`.
fn next_character(text: &str, place: usize) -> usize {
    place + text[place..].chars().next().map_or(1, char::len_utf8)
}

/// The matches that are tokens. The search goes on behind a token, and at the second character of a match that is none.
fn matches<'text>(pattern: &LongestMatch, text: &'text str, is_token: impl Fn(&'text str) -> bool) -> Vec<&'text str> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some((start, end)) = pattern.find(text, from) {
        let token = &text[start..end];
        if is_token(token) {
            found.push(token);
            from = behind(text, (start, end));
        } else {
            from = next_character(text, start);
        }
    }
    found
}

fn between<'text>(pattern: &LongestMatch, text: &'text str) -> Vec<&'text str> {
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some((start, end)) = pattern.find(text, from) {
        found.push(&text[from..start]);
        from = behind(text, (start, end));
    }
    found.extend(text.get(from..));
    found
}

impl Operator for Tokenize {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        self.rule()?;
        let shape = match string_operand(inputs, 0)?.dims() {
            Some(dims @ ([_] | [_, _])) => {
                dims.iter().cloned().chain([context.fresh("most")]).collect::<Vec<_>>().into()
            }
            Some(dims) => {
                return Err(TypeError::Rank { operand: 0, expected: "1 or 2".to_string(), found: dims.len() });
            }
            None => Shape::Unranked,
        };
        Ok(vec![Fact::tensor(DType::String, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        if !(1..=2).contains(&input.rank()) {
            let expected = "1 or 2".to_string();
            return Err(TypeError::Rank { operand: 0, expected, found: input.rank() }.into());
        }
        let rule = self.rule()?;
        let lists: Vec<Vec<&str>> = input.strings()?.iter().map(|text| self.tokens(&rule, text)).collect();
        let mut most = lists.iter().map(Vec::len).max().unwrap_or(0);
        let marks = self.mark && most > 0;
        most += if marks { 2 } else { 0 };
        let mut shape = input.shape().to_vec();
        shape.push(most);
        // Padding can make the result far larger than the texts.
        let mut tokens = listed(DType::String, &shape)?;
        for list in lists {
            let (begin, end) = if marks { (Some("\u{2}"), Some("\u{3}")) } else { (None, None) };
            let given = begin.into_iter().chain(list).chain(end);
            let filled = given.chain(std::iter::repeat(self.padding.as_str()));
            tokens.extend(filled.take(most).map(str::to_string));
        }
        Ok(vec![Tensor::from_strings(&shape, tokens)?.into()])
    }
}

impl Serial for Tokenize {
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

    fn operator(separators: &[&str], expression: &str) -> Tokenize {
        let separators = separators.iter().map(|pattern| (*pattern).to_string()).collect();
        Tokenize { separators, expression: expression.to_string(), least: 1, mark: false, padding: "#".to_string() }
    }

    fn tokens(separators: &[&str], expression: &str, text: &'static str) -> Vec<&'static str> {
        let operator = operator(separators, expression);
        operator.tokens(&operator.rule().unwrap(), text)
    }

    /// Expectations are those of ONNX Runtime.
    #[test]
    fn separators_expressions_and_characters() {
        assert_eq!(tokens(&[" "], "", "e  fg "), ["e", "fg"]);
        assert_eq!(tokens(&["X|XY"], "", "aXYb"), ["a", "b"]);
        assert_eq!(tokens(&["X", "XY"], "", "aXYb"), ["a", "Yb"]);
        assert_eq!(tokens(&["^a"], "", "aab"), ["ab"]);
        assert!(tokens(&["b*"], "", "abc").is_empty());
        assert!(tokens(&["\u{e4}*"], "", "a\u{e4}b").is_empty());
        assert_eq!(tokens(&[], "a|ab|abc", "ab cd"), ["ab"]);
        assert_eq!(tokens(&[], "b*|\u{e4}", "ab\u{e4}c"), ["b", "\u{e4}"]);
        assert_eq!(tokens(&[], r"\bb?", "foo bar"), ["b"]);
        assert_eq!(tokens(&[], "(a)(a)?", "aaa"), ["aa", "a"]);
        assert_eq!(tokens(&[], "", "\u{e4} b"), ["\u{e4}", " ", "b"]);
        let longer = Tokenize { least: 3, ..operator(&[], "ab|babc|\u{e4}|b*") };
        assert_eq!(longer.tokens(&longer.rule().unwrap(), "ababc \u{e4}bbb"), ["babc", "bbb"]);
        assert!(matches!(operator(&["("], "").rule(), Err(TypeError::Unsupported(_))));
        assert!(matches!(operator(&[" "], "a").rule(), Err(TypeError::Unsupported(_))));
    }

    #[test]
    fn lists_are_filled_and_marked() {
        let run = |operator: &Tokenize, texts: &[&str]| {
            let texts = texts.iter().map(|text| (*text).to_string()).collect::<Vec<_>>();
            let input = Tensor::from_strings(&[texts.len()], texts).unwrap();
            let mut blocks = NoBlocks;
            let results = operator.reference(&[Some(input.into())], &mut ReferenceContext::new(&mut blocks)).unwrap();
            let found = results[0].as_tensor().unwrap();
            (found.shape().to_vec(), found.strings().unwrap().join(","))
        };
        let mut operator = operator(&[" "], "");
        assert_eq!(run(&operator, &["a b", "c"]), (vec![2, 2], "a,b,c,#".to_string()));
        operator.mark = true;
        assert_eq!(run(&operator, &["a b", ""]), (vec![2, 4], "\u{2},a,b,\u{3},\u{2},\u{3},#,#".to_string()));
        assert_eq!(run(&operator, &["", " "]), (vec![2, 0], String::new()));
    }

    #[test]
    fn padding_that_no_memory_holds_is_refused() {
        let mut texts = vec![String::new(); 3_000_000];
        texts[0] = "a".repeat(texts.len());
        let input = Tensor::from_strings(&[texts.len()], texts).unwrap();
        let operator = operator(&[], "");
        let refused = operator.reference(&[Some(input.into())], &mut ReferenceContext::new(&mut NoBlocks)).unwrap_err();
        assert_eq!(refused.to_string(), "string[3000000, 3000000] is too large to address");
    }
}
