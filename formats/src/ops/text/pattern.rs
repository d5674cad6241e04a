//! Patterns in the syntax of RE2.
//!
//! The engine is that of the `regex` crate, whose syntax descends from RE2's. Where the same text means something else there
//! (`\d`, `\w`, `\s`, `\b` know only ASCII in RE2; classes nest and subtract here), the pattern is rewritten; what RE2
//! has and the engine has not is an error.

use crate::ops::TypeError;
use regex_automata::meta::{BuildError, Regex};
use regex_automata::nfa::thompson::{self, pikevm};
use regex_automata::{Anchored, Input, MatchKind};
use std::iter::Peekable;
use std::str::Chars;

/// Memory that a compiled pattern may take.
const PATTERN_LIMIT_BYTES: usize = 4 << 20;

fn refused(pattern: &str, why: &str) -> TypeError {
    TypeError::Unsupported(format!("pattern `{pattern}` ({why})"))
}

/// The pattern, `around` it put around what it is in the engine's syntax.
pub(super) fn compiled(pattern: &str, around: [&str; 2]) -> Result<Regex, TypeError> {
    let translated = translate(pattern).map_err(|what| refused(pattern, what))?;
    let [before, behind] = around;
    let limits = Regex::config().nfa_size_limit(Some(PATTERN_LIMIT_BYTES)).hybrid_cache_capacity(PATTERN_LIMIT_BYTES);
    Regex::builder().configure(limits).build(&format!("{before}{translated}{behind}")).map_err(|error| {
        let reason = BuildError::syntax_error(&error).map_or_else(|| error.to_string(), ToString::to_string);
        refused(pattern, reason.lines().last().unwrap_or("syntax").trim())
    })
}

/// A pattern of whose matches at the first place the longest counts.
pub(super) struct LongestMatch {
    first: Regex,
    longest: pikevm::PikeVM,
}

impl LongestMatch {
    pub(super) fn new(pattern: &str) -> Result<LongestMatch, TypeError> {
        let first = compiled(pattern, ["", ""])?;
        let translated = translate(pattern).map_err(|what| refused(pattern, what))?;
        let longest = pikevm::PikeVM::builder()
            .configure(pikevm::PikeVM::config().match_kind(MatchKind::All))
            .thompson(thompson::Config::new().nfa_size_limit(Some(PATTERN_LIMIT_BYTES)))
            .build(&translated)
            .map_err(|error| refused(pattern, &error.to_string()))?;
        Ok(LongestMatch { first, longest })
    }

    /// Start and end of the first match that begins at `from` or behind it.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        if from > text.len() {
            return None;
        }
        let start = self.first.find(Input::new(text).range(from..))?.start();
        let input = Input::new(text).range(start..).anchored(Anchored::Yes);
        let found = self.longest.find(&mut self.longest.create_cache(), input)?;
        Some((start, found.end()))
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
