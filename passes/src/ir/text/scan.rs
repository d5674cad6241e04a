//! Reading text from the left: each function takes what is left of a line and gives what it read and what follows, or
//! what is wrong in words.

use ipuc_formats::attribute::AttributeValue;
use ipuc_formats::attribute_text::{parse as parse_attribute, unquote};
use ipuc_formats::ops::Op;
use std::str::FromStr;

pub(super) type Parsed<T> = Result<T, String>;

/// A fixed text; gives what follows it and its spaces.
pub(super) fn expect<'a>(input: &'a str, token: &str) -> Parsed<&'a str> {
    let rest = input.strip_prefix(token).ok_or_else(|| format!("expected `{token}` at `{input}`"))?;
    Ok(rest.trim_start())
}

/// A word of letters, digits and `_`.
pub(super) fn word(input: &str) -> (&str, &str) {
    let end = input.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(input.len());
    let (word, rest) = input.split_at(end);
    (word, rest.trim_start())
}

/// A whole number.
pub(super) fn integer<T: FromStr>(input: &str) -> Parsed<(T, &str)> {
    let end = input.find(|character: char| !character.is_ascii_digit() && character != '-').unwrap_or(input.len());
    let (digits, rest) = input.split_at(end);
    Ok((digits.parse().map_err(|_| format!("expected a number at `{input}`"))?, rest.trim_start()))
}

/// Text in double quotes.
pub(super) fn quoted(input: &str) -> Parsed<(String, &str)> {
    let (text, rest) = unquote(input).ok_or_else(|| format!("expected a quoted name at `{input}`"))?;
    Ok((text, rest.trim_start()))
}

/// `("a", "b")`
pub(super) fn quoted_list(input: &str) -> Parsed<(Vec<String>, &str)> {
    let mut rest = expect(input, "(")?;
    let mut names = Vec::new();
    while !rest.starts_with(')') {
        let (name, after) = quoted(rest)?;
        names.push(name);
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    Ok((names, expect(rest, ")")?))
}

/// `name attribute=value ..`; gives the operator and what follows its attributes.
pub(super) fn operator(input: &str) -> Parsed<(Op, &str)> {
    let (name, attributes, rest) = named(input)?;
    Ok((Op::build(name, &attributes).map_err(|error| error.to_string())?, rest))
}

/// A name, and the attributes behind it.
#[expect(clippy::type_complexity, reason = "what a line begins with")]
pub(super) fn named(input: &str) -> Parsed<(&str, Vec<(String, AttributeValue)>, &str)> {
    let (name, mut rest) = word(input);
    let mut attributes = Vec::new();
    loop {
        let (key, after) = word(rest);
        let Some(after) = after.strip_prefix('=').filter(|_| !key.is_empty()) else { break };
        let (value, after) = parse_attribute(after).ok_or_else(|| format!("attribute `{key}` has no value"))?;
        attributes.push((key.to_string(), value));
        rest = after.trim_start();
    }
    Ok((name, attributes, rest))
}

/// Nothing more on the line.
pub(super) fn end(input: &str) -> Parsed<()> {
    if input.is_empty() { Ok(()) } else { Err(format!("expected the end of the line at `{input}`")) }
}
