//! The text of attribute values: `3`, `0.5`, `keyword`, `"text"`, `[1, 2]`, `[0.5]`, `["a"]`, `f32[2]:[1.0, 2.0]`.
//!
//! A float always has a point, an exponent, or is `inf` or `NaN`; a NaN other than the usual one has its bits behind it,
//! `NaN:ffc00001`. Elements of a tensor are decimal where they are integers of whole bytes, or f16, bf16, f32 or f64 without
//! NaN; else its bytes are in hexadecimal, `f8e4m3fn[2]:3840`, which is read for every type.

use crate::attribute::AttributeValue;
use crate::dtype::{self, DType};
use crate::element::{bf16, f16};
use crate::tensor::Tensor;
use std::fmt::Write as _;

/// Print a value so that [`parse`] gives it back.
pub fn print(value: &AttributeValue) -> String {
    match value {
        AttributeValue::Integer(integer) => integer.to_string(),
        AttributeValue::Float(float) => print_float(*float),
        AttributeValue::Text(text) => print_text(text),
        AttributeValue::Integers(integers) => list(integers.iter().map(i64::to_string)),
        AttributeValue::Floats(floats) => list(floats.iter().map(|&float| print_float(float))),
        AttributeValue::Texts(texts) => list(texts.iter().map(|text| quote(text))),
        AttributeValue::Tensor(tensor) => print_tensor(tensor),
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// Shortest text that gives the same float back.
fn print_float(float: f32) -> String {
    match float {
        _ if float.to_bits() == f32::NAN.to_bits() => "NaN".to_string(),
        _ if float.is_nan() => format!("NaN:{:08x}", float.to_bits()),
        f32::INFINITY => "inf".to_string(),
        f32::NEG_INFINITY => "-inf".to_string(),
        _ => format!("{float:?}"),
    }
}

fn is_keyword(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|character| character.is_ascii_alphanumeric() || character == '_')
        && !matches!(text, "inf" | "NaN")
}

fn print_text(text: &str) -> String {
    // A keyword that names an element type could be read as the start of a tensor only before `[`, which never follows.
    if is_keyword(text) { text.to_string() } else { quote(text) }
}

/// Text in double quotes, with `\\`, `\"`, `\n` and `\u{..}` escapes.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{{{:x}}}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Read a quoted text at the start of `input`; gives the text and what follows.
pub fn unquote(input: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = input.strip_prefix('"')?.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((text, &input[at + 2..])),
            '\\' => match characters.next()?.1 {
                'n' => text.push('\n'),
                'u' => text.push(escaped_code(&mut characters)?),
                literal @ ('"' | '\\') => text.push(literal),
                _ => return None,
            },
            plain => text.push(plain),
        }
    }
    None
}

fn escaped_code(characters: &mut std::str::CharIndices<'_>) -> Option<char> {
    if characters.next()?.1 != '{' {
        return None;
    }
    let mut code = 0u32;
    for (_, digit) in characters.by_ref() {
        if digit == '}' {
            return char::from_u32(code);
        }
        code = code.checked_mul(16)?.checked_add(digit.to_digit(16)?)?;
    }
    None
}

fn print_tensor(tensor: &Tensor) -> String {
    let extents: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    let mut text = format!("{}[{}]:", tensor.dtype(), extents.join(", "));
    if let Ok(strings) = tensor.strings() {
        text.push_str(&list(strings.iter().map(|string| quote(string))));
    } else if let Some(elements) = print_elements(tensor) {
        text.push_str(&list(elements.into_iter()));
    } else {
        tensor.bytes().iter().for_each(|byte| {
            let _ = write!(text, "{byte:02x}");
        });
    }
    text
}

/// Elements in decimal; `None` where the type has none that give the same bits back.
fn print_elements(tensor: &Tensor) -> Option<Vec<String>> {
    macro_rules! integers {
        ($Element:ty) => {
            tensor.elements::<$Element>().ok().map(|elements| elements.iter().map(ToString::to_string).collect())
        };
    }
    macro_rules! floats {
        ($Element:ty) => {{
            let elements = tensor.elements::<$Element>().ok()?;
            let numbers = !elements.iter().any(|element| element.is_nan());
            numbers.then(|| elements.iter().map(|element| format!("{element:?}")).collect())
        }};
    }
    match tensor.dtype() {
        DType::U8 => integers!(u8),
        DType::I8 => integers!(i8),
        DType::U16 => integers!(u16),
        DType::I16 => integers!(i16),
        DType::U32 => integers!(u32),
        DType::I32 => integers!(i32),
        DType::U64 => integers!(u64),
        DType::I64 => integers!(i64),
        DType::F16 => floats!(f16),
        DType::BF16 => floats!(bf16),
        DType::F32 => floats!(f32),
        DType::F64 => floats!(f64),
        DType::String
        | DType::Bool
        | DType::C64
        | DType::C128
        | DType::F8E4M3FN
        | DType::F8E4M3FNUZ
        | DType::F8E5M2
        | DType::F8E5M2FNUZ
        | DType::F8E8M0
        | DType::F4E2M1
        | DType::F6E2M3
        | DType::F6E3M2
        | DType::U4
        | DType::I4
        | DType::U2
        | DType::I2 => None,
    }
}

/// The tensor that [`print_elements`] gave: what is between brackets, at the start of `input`.
fn parse_elements<'a>(element: DType, shape: &[usize], input: &'a str) -> Option<(Tensor, &'a str)> {
    let (items, rest) = input.strip_prefix('[')?.split_once(']')?;
    let items: Vec<&str> = if items.is_empty() { Vec::new() } else { items.split(", ").collect() };
    macro_rules! numbers {
        ($Element:ty) => {{
            let elements = items.iter().map(|item| item.parse::<$Element>().ok()).collect::<Option<Vec<_>>>()?;
            Tensor::from_elements(shape, &elements).ok()?
        }};
    }
    let tensor = match element {
        DType::U8 => numbers!(u8),
        DType::I8 => numbers!(i8),
        DType::U16 => numbers!(u16),
        DType::I16 => numbers!(i16),
        DType::U32 => numbers!(u32),
        DType::I32 => numbers!(i32),
        DType::U64 => numbers!(u64),
        DType::I64 => numbers!(i64),
        DType::F16 => numbers!(f16),
        DType::BF16 => numbers!(bf16),
        DType::F32 => numbers!(f32),
        DType::F64 => numbers!(f64),
        DType::String
        | DType::Bool
        | DType::C64
        | DType::C128
        | DType::F8E4M3FN
        | DType::F8E4M3FNUZ
        | DType::F8E5M2
        | DType::F8E5M2FNUZ
        | DType::F8E8M0
        | DType::F4E2M1
        | DType::F6E2M3
        | DType::F6E3M2
        | DType::U4
        | DType::I4
        | DType::U2
        | DType::I2 => return None,
    };
    Some((tensor, rest))
}

/// Read a value at the start of `input`; gives the value and what follows. `None` where there is none.
pub fn parse(input: &str) -> Option<(AttributeValue, &str)> {
    if input.starts_with('"') {
        return unquote(input).map(|(text, rest)| (AttributeValue::Text(text), rest));
    }
    if input.starts_with('[') {
        return parse_list(input);
    }
    let end = input.find(|character: char| !is_word(character)).unwrap_or(input.len());
    let (word, rest) = input.split_at(end);
    if rest.starts_with('[') {
        return parse_tensor(word, rest);
    }
    if word == "NaN"
        && let Some(bits) = rest.strip_prefix(':')
    {
        return parse_nan(bits);
    }
    Some((parse_word(word)?, rest))
}

/// The bits of a NaN, 8 hexadecimal digits.
fn parse_nan(input: &str) -> Option<(AttributeValue, &str)> {
    let (digits, rest) = input.split_at_checked(8)?;
    let hexadecimal = digits.chars().all(|digit| digit.is_ascii_hexdigit());
    let float = f32::from_bits(u32::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)?);
    float.is_nan().then_some((AttributeValue::Float(float), rest))
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-' | '+')
}

fn parse_word(word: &str) -> Option<AttributeValue> {
    if let Ok(integer) = word.parse::<i64>() {
        return Some(AttributeValue::Integer(integer));
    }
    if matches!(word, "inf" | "-inf" | "NaN") || word.starts_with(|first: char| first.is_ascii_digit() || first == '-')
    {
        return word.parse::<f32>().ok().map(AttributeValue::Float);
    }
    is_keyword(word).then(|| AttributeValue::Text(word.to_string()))
}

fn parse_list(input: &str) -> Option<(AttributeValue, &str)> {
    let mut rest = input.strip_prefix('[')?.trim_start();
    let mut items = Vec::new();
    while !rest.starts_with(']') {
        let (item, after) = if rest.starts_with('[') { return None } else { parse(rest)? };
        items.push(item);
        rest = after.trim_start();
        match rest.strip_prefix(',') {
            Some(next) => rest = next.trim_start(),
            None if rest.starts_with(']') => {}
            None => return None,
        }
    }
    Some((collect_list(items)?, &rest[1..]))
}

fn collect_list(items: Vec<AttributeValue>) -> Option<AttributeValue> {
    match items.first() {
        None | Some(AttributeValue::Integer(_)) => items
            .into_iter()
            .map(|item| match item {
                AttributeValue::Integer(integer) => Some(integer),
                _ => None,
            })
            .collect::<Option<_>>()
            .map(AttributeValue::Integers),
        Some(AttributeValue::Float(_)) => items
            .into_iter()
            .map(|item| match item {
                AttributeValue::Float(float) => Some(float),
                _ => None,
            })
            .collect::<Option<_>>()
            .map(AttributeValue::Floats),
        Some(AttributeValue::Text(_)) => items
            .into_iter()
            .map(|item| match item {
                AttributeValue::Text(text) => Some(text),
                _ => None,
            })
            .collect::<Option<_>>()
            .map(AttributeValue::Texts),
        Some(_) => None,
    }
}

fn parse_tensor<'a>(word: &str, rest: &'a str) -> Option<(AttributeValue, &'a str)> {
    let element = dtype::parse(word)?;
    let (shape, rest) = parse_list(rest)?;
    let AttributeValue::Integers(extents) = shape else { return None };
    let shape: Vec<usize> = extents.into_iter().map(|extent| usize::try_from(extent).ok()).collect::<Option<_>>()?;
    let rest = rest.strip_prefix(':')?;
    if element == DType::String {
        let (strings, rest) = parse_list(rest)?;
        let strings = match strings {
            AttributeValue::Texts(strings) => strings,
            AttributeValue::Integers(none) if none.is_empty() => Vec::new(),
            _ => return None,
        };
        return Some((AttributeValue::Tensor(Tensor::from_strings(&shape, strings).ok()?), rest));
    }
    if rest.starts_with('[') {
        return parse_elements(element, &shape, rest).map(|(tensor, rest)| (AttributeValue::Tensor(tensor), rest));
    }
    let end = rest.find(|character: char| !character.is_ascii_hexdigit()).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    if digits.len() % 2 != 0 {
        return None;
    }
    let bytes: Vec<u8> = (0..digits.len() / 2)
        .map(|index| u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok())
        .collect::<Option<_>>()?;
    Some((AttributeValue::Tensor(Tensor::from_bytes(element, &shape, &bytes).ok()?), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip() {
        let values = [
            AttributeValue::Integer(-3),
            AttributeValue::Float(0.1),
            AttributeValue::Float(1.0),
            AttributeValue::Float(-1e-20),
            AttributeValue::Float(f32::NEG_INFINITY),
            AttributeValue::Text("nearest_ceil".into()),
            AttributeValue::Text("".into()),
            AttributeValue::Text("inf".into()),
            AttributeValue::Text("a \"b\"\\\n\u{7}é".into()),
            AttributeValue::Integers(vec![]),
            AttributeValue::Integers(vec![1, -2]),
            AttributeValue::Floats(vec![0.5, f32::INFINITY]),
            AttributeValue::Texts(vec!["x".into(), "]".into()]),
            AttributeValue::Tensor(Tensor::vector_i64(&[1, 2])),
            AttributeValue::Tensor(Tensor::from_elements(&[2, 1], &[-0.0f32, 1e-45]).unwrap()),
            AttributeValue::Tensor(Tensor::from_elements(&[2], &[0.1f64, -1e300]).unwrap()),
            AttributeValue::Tensor(Tensor::from_elements(&[1], &[f32::NAN]).unwrap()),
            AttributeValue::Tensor(Tensor::from_elements(&[2], &[f64::INFINITY, f64::MIN_POSITIVE]).unwrap()),
            AttributeValue::Tensor(Tensor::from_elements(&[2], &[bf16::NEG_INFINITY, bf16::MIN_POSITIVE]).unwrap()),
            AttributeValue::Tensor(Tensor::from_elements(&[2], &[i8::MIN, 7]).unwrap()),
            AttributeValue::Tensor(Tensor::from_elements(&[], &[u64::MAX]).unwrap()),
            AttributeValue::Tensor(Tensor::from_elements::<i32>(&[0, 3], &[]).unwrap()),
            AttributeValue::Tensor(Tensor::from_bools(&[2], &[true, false]).unwrap()),
            AttributeValue::Tensor(Tensor::from_strings(&[1], vec!["a, b".into()]).unwrap()),
            AttributeValue::Tensor(Tensor::from_strings(&[0], vec![]).unwrap()),
        ];
        for value in values {
            let text = print(&value) + " rest";
            assert_eq!(parse(&text), Some((value, " rest")), "{text}");
        }
    }

    #[test]
    fn floats_keep_their_bits() {
        for bits in [0x7fc0_0000u32, 0xffc0_0000, 0x7f80_0001, 0x8000_0000, 0, 1, 0xff7f_ffff] {
            let text = print(&AttributeValue::Float(f32::from_bits(bits)));
            let Some((AttributeValue::Float(float), "")) = parse(&text) else { panic!("{text}") };
            assert_eq!(float.to_bits(), bits, "{text}");
        }
    }

    #[test]
    fn elements_of_floats_are_decimal() {
        let shown = |tensor: Tensor| print(&AttributeValue::Tensor(tensor));
        let halves = [f16::from_f32(0.5), f16::from_f32(-2.0), f16::NEG_INFINITY];
        assert_eq!(shown(Tensor::from_elements(&[3], &halves).unwrap()), "f16[3]:[0.5, -2.0, -inf]");
        assert_eq!(shown(Tensor::scalar(bf16::from_f32(0.1))), "bf16[]:[0.100097656]");
        assert_eq!(shown(Tensor::scalar(0.1f32)), "f32[]:[0.1]");
        assert_eq!(shown(Tensor::scalar(f64::INFINITY)), "f64[]:[inf]");
        assert_eq!(shown(Tensor::scalar(f32::NAN)), "f32[]:0000c07f", "bits of a NaN are kept");
    }

    /// All values of f16 but NaN.
    #[test]
    fn halves_keep_their_bits() {
        let halves = (0..=u16::MAX).map(f16::from_bits).filter(|half| !half.is_nan());
        let halves: Vec<f16> = halves.collect();
        let tensor = Tensor::from_elements(&[halves.len()], &halves).unwrap();
        let text = print(&AttributeValue::Tensor(tensor.clone()));
        let Some((AttributeValue::Tensor(read), "")) = parse(&text) else { panic!("it is no value") };
        assert!(read.bytes() == tensor.bytes());
    }

    #[test]
    fn malformed_text_is_no_value() {
        for text in [
            "NaN:3f800000",
            "NaN:7fc0",
            "NaN:+fc00000",
            "",
            "[1, a]",
            "[1",
            "\"open",
            "f32[1]:00",
            "f32[1]:[1.0, 2.0]",
            "f32[1]:[1.0",
            "u8[1]:[256]",
            "bool[1]:[1]",
            "f32[1]:000",
            "1x",
            "-",
            "\"\\u{110000}\"",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
