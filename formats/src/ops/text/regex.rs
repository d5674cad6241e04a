//! Regular expressions over whole texts: ONNX `RegexFullMatch` (opset 20), in the syntax of RE2.
//!
//! The engine is the `regex` crate, whose syntax descends from RE2's. Where the same text means something else there
//! (`\d`, `\w`, `\s`, `\b` know only ASCII in RE2; classes nest and subtract here), the pattern is rewritten; what RE2
//! has and the engine has not is an error.

use crate::attributes;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::text::string_concat::string_operand;
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, TypeError, VectorClass, tensor,
};
use crate::tensor::Tensor;
use crate::value::Value;
use ::regex::{Regex, RegexBuilder};
use std::iter::Peekable;
use std::str::Chars;

attributes! {
    /// Whether each text of `x: [..]` matches the pattern from its beginning to its end: `bool [..]`.
    pub struct RegexFullMatch revision 1 {
        /// In the syntax of RE2.
        1 since 1 => pattern: String,
    }
}

/// Memory that a compiled pattern may take.
const PATTERN_LIMIT_BYTES: usize = 4 << 20;

impl RegexFullMatch {
    fn compile(&self) -> Result<Regex, TypeError> {
        let refuse = |why: String| TypeError::Unsupported(format!("pattern `{}` ({why})", self.pattern));
        let translated = translate(&self.pattern).map_err(|what| refuse(what.to_string()))?;
        // Alone first: `a)(b` must not become right between the parentheses of the whole.
        let mut compiled = None;
        for pattern in [translated.clone(), format!(r"\A(?:{translated})\z")] {
            let built = RegexBuilder::new(&pattern)
                .size_limit(PATTERN_LIMIT_BYTES)
                .dfa_size_limit(PATTERN_LIMIT_BYTES)
                .build()
                .map_err(|error| refuse(error.to_string().lines().last().unwrap_or("syntax").trim().to_string()))?;
            compiled = Some(built);
        }
        compiled.ok_or_else(|| refuse("syntax".to_string()))
    }
}

/// A pattern of RE2 in the syntax of the engine; the error says what cannot be said there.
fn translate(pattern: &str) -> Result<String, &'static str> {
    let mut output = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\\' => translate_escape(&mut rest, false, &mut output)?,
            '[' => translate_class(&mut rest, &mut output)?,
            '{' if !is_repetition(rest.clone()) => output.push_str(r"\{"),
            '(' => {
                output.push('(');
                translate_group(&mut rest, &mut output)?;
            }
            other => output.push(other),
        }
    }
    Ok(output)
}

/// `n}`, `n,}` or `n,m}` follows; anything else after `{` is plain text in RE2.
fn is_repetition(rest: Peekable<Chars<'_>>) -> bool {
    let inside: String = rest.take_while(|&character| character != '}').take(16).collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match inside.split_once(',') {
        None => is_number(&inside),
        Some((least, most)) => is_number(least) && (most.is_empty() || is_number(most)),
    }
}

/// After `(`: of flags only those of RE2.
fn translate_group(rest: &mut Peekable<Chars<'_>>, output: &mut String) -> Result<(), &'static str> {
    if rest.peek() != Some(&'?') {
        return Ok(());
    }
    let flags: String =
        rest.clone().skip(1).take_while(|character| character.is_alphabetic() || *character == '-').collect();
    let is_name = flags == "P" || flags.is_empty();
    if !is_name && !flags.chars().all(|flag| matches!(flag, 'i' | 'm' | 's' | 'U' | '-')) {
        return Err("a flag that RE2 does not have");
    }
    output.extend(rest.by_ref().take(1));
    Ok(())
}

/// After `\`.
fn translate_escape(rest: &mut Peekable<Chars<'_>>, in_class: bool, output: &mut String) -> Result<(), &'static str> {
    let Some(escaped) = rest.next() else { return Err("a backslash at the end") };
    let class = match escaped {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => r"[\t\n\f\r ]",
        'S' => r"[^\t\n\f\r ]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        'b' if !in_class => r"(?-u:\b)",
        'B' if !in_class => r"(?-u:\B)",
        'A' | 'z' if !in_class => {
            output.extend(['\\', escaped]);
            return Ok(());
        }
        'Q' => return translate_quoted(rest, in_class, output),
        'a' | 'f' | 't' | 'n' | 'r' | 'v' | 'x' | 'p' | 'P' => {
            output.extend(['\\', escaped]);
            return Ok(());
        }
        '0'..='7' => return translate_octal(escaped, rest, output),
        other if other.is_ascii_alphanumeric() => return Err("an escape that is not supported"),
        other => {
            push_literal(other, output);
            return Ok(());
        }
    };
    output.push_str(class);
    Ok(())
}

/// `\123`, or `\0` with up to two digits; a single other digit would refer back, which RE2 has not.
fn translate_octal(first: char, rest: &mut Peekable<Chars<'_>>, output: &mut String) -> Result<(), &'static str> {
    let mut digits = String::from(first);
    while let Some(digit) = rest.next_if(|next| digits.len() < 3 && matches!(next, '0'..='7')) {
        digits.push(digit);
    }
    if first != '0' && digits.len() < 2 {
        return Err("a back reference");
    }
    let code = u32::from_str_radix(&digits, 8).map_err(|_| "an octal number")?;
    output.push_str(&format!(r"\x{{{code:x}}}"));
    Ok(())
}

/// After `\Q`: plain text up to `\E` or the end.
fn translate_quoted(rest: &mut Peekable<Chars<'_>>, in_class: bool, output: &mut String) -> Result<(), &'static str> {
    if in_class {
        return Err("quoted text in a class");
    }
    while let Some(character) = rest.next() {
        if character == '\\' && rest.next_if_eq(&'E').is_some() {
            break;
        }
        push_literal(character, output);
    }
    Ok(())
}

fn push_literal(character: char, output: &mut String) {
    if character.is_ascii_punctuation() && !matches!(character, '<' | '>') {
        output.push('\\');
    }
    output.push(character);
}

/// After `[`: up to the closing bracket, with what only this engine gives a meaning made plain.
fn translate_class(rest: &mut Peekable<Chars<'_>>, output: &mut String) -> Result<(), &'static str> {
    output.push('[');
    output.extend(rest.next_if_eq(&'^'));
    let mut is_first = true;
    loop {
        let Some(character) = rest.next() else { return Err("a class without end") };
        match character {
            ']' if !is_first => {
                output.push(']');
                return Ok(());
            }
            '[' if rest.peek() == Some(&':') => {
                output.push('[');
                loop {
                    let Some(named) = rest.next() else { return Err("a class without end") };
                    output.push(named);
                    if named == ']' {
                        break;
                    }
                }
            }
            '\\' => translate_escape(rest, true, output)?,
            '-' if rest.peek() == Some(&'-') => return Err("`--` in a class"),
            '-' => output.push('-'),
            other => push_literal(other, output),
        }
        is_first = false;
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
    fn per_element(&self) -> Vec<(VectorClass, i64)> {
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
