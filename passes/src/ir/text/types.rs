//! Types in text: `f32[batch, 64]`, `f32[..]`, `sequence(f32[..])`, `optional(..)`, `map(i64, ..)`.

use ipuc_formats::dim::{Dim, Refusal};
use ipuc_formats::dtype;
use ipuc_formats::fact::{Shape, Type};

/// Types inside types: more than a model can have, whose messages nest 100 deep.
const MAXIMUM_DEPTH: usize = 128;

/// Read a type at the start of `input`; gives the type and what follows.
pub fn parse_type(input: &str) -> Option<(Type, &str)> {
    parse_nested(input, MAXIMUM_DEPTH)
}

fn parse_nested(input: &str, depth: usize) -> Option<(Type, &str)> {
    let depth = depth.checked_sub(1)?;
    let end = input.find(|character: char| !character.is_ascii_alphanumeric()).unwrap_or(input.len());
    let (word, rest) = input.split_at(end);
    match word {
        "sequence" | "optional" => {
            let (element, rest) = parse_nested(rest.strip_prefix('(')?, depth)?;
            let element = Box::new(element);
            let kind = if word == "sequence" { Type::Sequence(element) } else { Type::Optional(element) };
            Some((kind, rest.strip_prefix(')')?))
        }
        "map" => {
            let (key, rest) = rest.strip_prefix('(')?.split_once(',')?;
            let (element, rest) = parse_nested(rest.trim_start(), depth)?;
            Some((Type::Map { key: dtype::parse(key)?, element: Box::new(element) }, rest.strip_prefix(')')?))
        }
        name => {
            let element = dtype::parse(name)?;
            let rest = rest.strip_prefix('[')?;
            if let Some(rest) = rest.strip_prefix("..]") {
                return Some((Type::Tensor { dtype: element, shape: Shape::Unranked }, rest));
            }
            let (dims, rest) = parse_dims(rest, ']')?;
            Some((Type::tensor(element, dims), rest))
        }
    }
}

/// Read dimensions up to the closing bracket; gives them and what follows the bracket.
pub(super) fn parse_dims(input: &str, close: char) -> Option<(Vec<Dim>, &str)> {
    let mut dims = Vec::new();
    let mut rest = input.trim_start();
    if let Some(after) = rest.strip_prefix(close) {
        return Some((dims, after));
    }
    loop {
        let (end, ended) = end_of_dim(rest, close)?;
        dims.push(parse_dim(rest[..end].trim())?);
        let after = &rest[end + 1..];
        if ended {
            return Some((dims, after));
        }
        rest = after.trim_start();
    }
}

fn parse_dim(text: &str) -> Option<Dim> {
    if text.starts_with('!') {
        let mut refused = [Refusal::Overflow, Refusal::TooLarge].map(Dim::from).into_iter();
        return refused.find(|dim| dim.to_string() == text);
    }
    text.parse().ok()
}

/// Where a dimension ends, and whether with the closing bracket: commas inside parentheses and quoted names belong to it.
fn end_of_dim(input: &str, close: char) -> Option<(usize, bool)> {
    let mut depth = 0usize;
    let mut quoted = false;
    let mut escaped = false;
    for (at, character) in input.char_indices() {
        if quoted {
            match character {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '`' => quoted = false,
                _ => {}
            }
            continue;
        }
        match character {
            '`' => quoted = true,
            '(' => depth += 1,
            ')' if depth > 0 => depth -= 1,
            _ if character == close && depth == 0 => return Some((at, true)),
            ',' if depth == 0 => return Some((at, false)),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_round_trip() {
        for text in [
            "f32[]",
            "f32[..]",
            "i64[batch, 8*floordiv(h + 31, 32), min(a, 3)]",
            "sequence(optional(f16[2, n]))",
            "map(i64, f32[`odd, name]`])",
            "f32[!overflow, !too_large]",
        ] {
            let (kind, rest) = parse_type(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((kind.to_string().as_str(), rest), (text, ""));
        }
        for text in ["f33[]", "f32[", "f32[a", "sequence(f32[]", &"sequence(".repeat(100)] {
            assert_eq!(parse_type(text), None, "{text}");
        }
    }
}
