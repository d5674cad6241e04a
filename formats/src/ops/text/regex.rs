//! Regular expressions over whole texts: ONNX `RegexFullMatch` (opset 20), in the syntax of RE2.

use crate::attributes;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::text::pattern::compiled;
use crate::ops::text::string_concat::string_operand;
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError, VectorClass, tensor,
};
use crate::tensor::Tensor;
use crate::value::Value;
use regex_automata::meta::Regex;

attributes! {
    /// Whether each text of `x: [..]` matches the pattern from its beginning to its end: `bool [..]`.
    pub struct RegexFullMatch revision 1 {
        /// In the syntax of RE2.
        1 since 1 => pattern: String,
    }
}

impl RegexFullMatch {
    fn compile(&self) -> Result<Regex, TypeError> {
        // Alone first: `a)(b` must not become right between the parentheses of the whole.
        compiled(&self.pattern, ["", ""])?;
        compiled(&self.pattern, [r"\A(?:", r")\z"])
    }
}

impl Operator for RegexFullMatch {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let shape = string_operand(inputs, 0)?;
        self.compile()?;
        Ok(vec![Fact::tensor(DType::Bool, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let pattern = self.compile()?;
        let matches: Vec<bool> = input.strings()?.iter().map(|text| pattern.is_match(text)).collect();
        Ok(vec![Tensor::from_bools(input.shape(), &matches)?.into()])
    }
}

impl Elementwise for RegexFullMatch {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        vec![(VectorClass::Arithmetic, 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        RegexFullMatch { pattern: pattern.to_string() }.compile().unwrap().is_match(text)
    }

    #[test]
    fn the_whole_text_must_match() {
        assert!(matches("www\\.[\\w.-]+\\.\\bcom\\b", "www.google.com"));
        assert!(!matches("www\\.[\\w.-]+\\.\\bcom\\b", "www.facebook.comx"));
        assert!(matches(r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)", "account@gmail.com"));
        assert!(matches("a|ab", "ab"));
        assert!(matches("", ""));
        assert!(!matches("a", "a\n"));
        assert!(!matches(".", "\n"));
        assert!(matches("(?s).", "\n"));
    }

    #[test]
    fn perl_classes_are_ascii() {
        assert!(!matches(r"\d", "٣") && matches(r"\D", "٣"));
        assert!(!matches(r"[\w]", "é") && matches(r"[^\w]", "é"));
        assert!(!matches(r"\s", "\u{b}") && matches(r"[\s]+", "\t\n\u{c}\r "));
        assert!(matches(r"é\b.", "éa"));
        assert!(matches(".", "é") && matches("(?i)É", "é") && matches(r"\pL", "é"));
    }

    #[test]
    fn what_only_the_engine_knows_is_plain_text() {
        assert!(matches("[a[&~]+", "a[&~"));
        assert!(matches("[a&&b]+", "&ab"));
        assert!(matches("[]x]+", "]x"));
        assert!(matches("a{,2}", "a{,2}"));
        assert!(matches("a{2,}", "aaa") && matches("x{1}", "x"));
        assert!(matches(r"\Qa.b\E+", "a.bb"));
        assert!(matches(r"\<a\>\101\x{42}", "<a>AB"));
        assert!(matches("[[:alpha:]_]+", "a_b"));
        assert!(matches(r"a\b{start}", "a{start}"));
        assert!(matches("(?P<word>a)(?:b)(?i)C", "abc"));
        for refused in [r"\C", r"(a)\1", r"\u0041", "(?x)a", "(?u:a)", "[a--b]", "(?=a)", "a)(b", "(", "[a", "\\"] {
            let operator = RegexFullMatch { pattern: refused.to_string() };
            assert!(matches!(operator.compile(), Err(TypeError::Unsupported(_))), "{refused}");
        }
    }
}
