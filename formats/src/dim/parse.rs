//! Expressions from text: the printed form, and what ONNX exporters write as `dim_param`.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = factor (("*" | "//" | "%") factor)*
//! factor  = "-"* (integer | name | quoted | function "(" sum ("," sum)* ")" | "(" sum ")") ("**" integer)?
//! ```
//!
//! `//`, `%`, `**`, and functions in any of their exporters' spellings are understood besides the printed
//! form. Only exporters write fractions: `floor(h/2 - 1/2) + 1`, where the whole or an argument of `floor` or
//! `ceiling` may divide by a constant. The text is untrusted: its length and its nesting are limited.

use std::str::FromStr;

use super::canonical::{Extremum, extremum};
use super::fraction::Fraction;
use super::print::{is_plain, is_plain_start};
use super::{Dim, Refusal, Repr};

/// Longest text of one expression.
const MAX_TEXT_BYTES: usize = 1 << 16;
/// Most levels of parentheses.
const MAX_NESTING: u32 = 64;
/// Greatest exponent.
const MAX_EXPONENT: i64 = 16;

/// Why a text is no dimension.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimParseError {
    /// The text is longer than any expression.
    #[error("dimension text has {bytes} bytes, at most {MAX_TEXT_BYTES} are read")]
    TooLong {
        /// The text's length.
        bytes: usize,
    },
    /// Parentheses are nested too deeply.
    #[error("dimension text is nested deeper than {MAX_NESTING} levels at byte {offset}")]
    TooDeep {
        /// Where.
        offset: usize,
    },
    /// Something else belongs there.
    #[error("expected {expected} at byte {offset} of dimension text")]
    Expected {
        /// What belongs there.
        expected: &'static str,
        /// Where.
        offset: usize,
    },
    /// A number does not fit into 64 bits, or the expression exceeds the limits of dimensions.
    #[error("dimension text is too large at byte {offset}: {refusal}")]
    Refused {
        /// Where.
        offset: usize,
        /// The limit.
        refusal: Refusal,
    },
}

impl FromStr for Dim {
    type Err = DimParseError;

    /// Parses the printed form.
    fn from_str(text: &str) -> Result<Dim, DimParseError> {
        match text.trim() {
            "!overflow" => return Ok(Dim(Repr::Refused(Refusal::Overflow))),
            "!too_large" => return Ok(Dim(Repr::Refused(Refusal::TooLarge))),
            _ => {}
        }
        Parser::new(text, Dialect::Printed)?.whole()
    }
}

impl Dim {
    /// A dimension from ONNX's `dim_param`: an expression if the text is one, else a symbol of that name.
    ///
    /// Exporters write expressions as names: `past + seq`, `8*floordiv(h + 31, 32)`, `(s0//2)`, `Max(1, s0)`.
    /// What merely could be one stays a name: a hyphen between two words without spaces (`batch-size`),
    /// quotes, and a text without any name.
    pub fn from_onnx_param(text: &str) -> Dim {
        if !has_hyphenated_words(text)
            && !text.contains('`')
            && let Ok(dim) = Parser::new(text, Dialect::Exporter).and_then(|parser| parser.whole())
            && !dim.is_known()
        {
            return dim;
        }
        Dim::symbol(text)
    }
}

/// Whether a `-` stands directly between two words, as in `batch-size` but not in `h-1`.
fn has_hyphenated_words(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.windows(3).any(|window| {
        let word = |byte: u8| is_plain(char::from(byte));
        window[1] == b'-' && word(window[0]) && is_plain_start(char::from(window[2]))
    })
}

/// Who wrote the text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Printed,
    Exporter,
}

struct Parser<'a> {
    text: &'a str,
    dialect: Dialect,
    offset: usize,
    nesting: u32,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, dialect: Dialect) -> Result<Self, DimParseError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(DimParseError::TooLong { bytes: text.len() });
        }
        Ok(Parser { text, dialect, offset: 0, nesting: 0 })
    }

    fn whole(mut self) -> Result<Dim, DimParseError> {
        let sum = self.sum()?;
        self.skip_space();
        if self.offset < self.text.len() {
            return Err(self.expected("an operator or the end"));
        }
        self.integer_of(sum)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.offset..]
    }

    fn skip_space(&mut self) {
        self.offset = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.offset += token.len();
        }
        found
    }

    /// `*` that is not the beginning of `**`.
    fn take_times(&mut self) -> bool {
        self.skip_space();
        !self.rest().starts_with("**") && self.take("*")
    }

    fn expected(&self, expected: &'static str) -> DimParseError {
        DimParseError::Expected { expected, offset: self.offset }
    }

    fn require(&mut self, token: &'static str) -> Result<(), DimParseError> {
        if self.take(token) { Ok(()) } else { Err(self.expected(token)) }
    }

    /// What arithmetic made of operands, unless it left the limits.
    fn checked(&self, result: Option<Fraction>) -> Result<Fraction, DimParseError> {
        let result = result.ok_or_else(|| self.expected("a smaller fraction, or a division by a number"))?;
        match result.numerator.refusal() {
            Some(refusal) => Err(DimParseError::Refused { offset: self.offset, refusal }),
            None => Ok(result),
        }
    }

    fn integer_of(&self, fraction: Fraction) -> Result<Dim, DimParseError> {
        fraction.integer().ok_or_else(|| self.expected("an integer"))
    }

    fn sum(&mut self) -> Result<Fraction, DimParseError> {
        let mut sum = self.product()?;
        loop {
            let result = if self.take("+") {
                sum.plus(self.product()?)
            } else if self.take("-") {
                sum.minus(self.product()?)
            } else {
                return Ok(sum);
            };
            sum = self.checked(result)?;
        }
    }

    fn product(&mut self) -> Result<Fraction, DimParseError> {
        let mut product = self.factor()?;
        loop {
            let result = if self.take_times() {
                product.times(self.factor()?)
            } else if self.take("//") {
                product.floor_div(self.factor()?)
            } else if self.take("%") {
                product.modulo(self.factor()?)
            } else if self.dialect == Dialect::Exporter && self.take("/") {
                product.over(self.factor()?)
            } else {
                return Ok(product);
            };
            product = self.checked(result)?;
        }
    }

    fn factor(&mut self) -> Result<Fraction, DimParseError> {
        let mut negative = false;
        while self.take("-") {
            negative = !negative;
        }
        self.skip_space();
        let mut factor = match self.rest().chars().next() {
            Some(digit) if digit.is_ascii_digit() => {
                // The sign belongs to the digits: the least integer has no positive counterpart.
                let value = self.integer(negative)?;
                negative = false;
                Dim::known(value).into()
            }
            Some('(') => self.parenthesis()?,
            Some('`') => self.quoted()?.into(),
            Some(start) if is_plain_start(start) => self.name_or_function()?,
            _ => return Err(self.expected("a number, a name or a parenthesis")),
        };
        if self.take("**") {
            self.skip_space();
            let exponent = self.integer(false)?;
            if exponent > MAX_EXPONENT {
                return Err(self.expected("a smaller exponent"));
            }
            let base = self.integer_of(factor)?;
            factor = (0..exponent).fold(Dim::ONE, |power, _| power * &base).into();
        }
        if negative {
            factor.numerator = -factor.numerator;
        }
        self.checked(Some(factor))
    }

    fn integer(&mut self, negative: bool) -> Result<i64, DimParseError> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("a number"));
        }
        let magnitude: i128 = rest[..end].parse().unwrap_or(i128::MAX);
        let value = i64::try_from(if negative { -magnitude } else { magnitude });
        let refusal = Refusal::Overflow;
        let value = value.map_err(|_| DimParseError::Refused { offset: self.offset, refusal })?;
        self.offset += end;
        Ok(value)
    }

    fn parenthesis(&mut self) -> Result<Fraction, DimParseError> {
        self.require("(")?;
        let inner = self.nested(Self::sum)?;
        self.require(")")?;
        Ok(inner)
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, DimParseError>) -> Result<T, DimParseError> {
        if self.nesting >= MAX_NESTING {
            return Err(DimParseError::TooDeep { offset: self.offset });
        }
        self.nesting += 1;
        let result = inner(self);
        self.nesting -= 1;
        result
    }

    fn quoted(&mut self) -> Result<Dim, DimParseError> {
        self.require("`")?;
        let mut name = String::new();
        loop {
            let mut characters = self.rest().chars();
            let character = characters.next().ok_or_else(|| self.expected("a closing backtick"))?;
            let escaped = characters.next();
            self.offset += character.len_utf8();
            match (character, escaped) {
                ('`', _) => return Ok(Dim::symbol(&name)),
                ('\\', Some(plain @ ('`' | '\\'))) => {
                    self.offset += 1;
                    name.push(plain);
                }
                ('\\', _) => name.push(self.code_point()?),
                _ => name.push(character),
            }
        }
    }

    /// `u{…}` after a backslash.
    fn code_point(&mut self) -> Result<char, DimParseError> {
        let body = self.rest().strip_prefix("u{").and_then(|rest| rest.split_once('}'));
        let digits = body.map(|(digits, _)| digits).filter(|digits| digits.len() <= 6);
        let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match (digits, value.and_then(char::from_u32)) {
            (Some(digits), Some(character)) => {
                self.offset += digits.len() + "u{}".len();
                Ok(character)
            }
            _ => Err(self.expected("an escaped character")),
        }
    }

    fn name_or_function(&mut self) -> Result<Fraction, DimParseError> {
        let rest = self.rest();
        let start = self.offset;
        let end = rest.find(|c: char| !is_plain(c)).unwrap_or(rest.len());
        let name = &rest[..end];
        self.offset += end;
        if !self.take("(") {
            return Ok(Dim::symbol(name).into());
        }
        let mut arguments = self.nested(Self::arguments)?;
        let dim = match (name, arguments.len()) {
            ("floor" | "ceiling" | "ceil", 1) => {
                let argument = arguments.swap_remove(0);
                if name == "floor" { argument.floor() } else { argument.ceiling() }
            }
            _ => self.call(name, arguments, start)?,
        };
        self.checked(Some(dim.into()))
    }

    /// A function of integers, whose name is at `start`.
    fn call(&self, name: &str, arguments: Vec<Fraction>, start: usize) -> Result<Dim, DimParseError> {
        let arguments: Result<Vec<Dim>, _> = arguments.into_iter().map(|fraction| self.integer_of(fraction)).collect();
        match (name, arguments?.as_slice()) {
            ("floordiv" | "FloorDiv", [a, b]) => Ok(a.floor_div(b)),
            ("ceildiv" | "CeilDiv", [a, b]) => Ok(a.ceil_div(b)),
            ("mod" | "Mod" | "PythonMod", [a, b]) => Ok(a.modulo(b)),
            ("min" | "Min", list) => Ok(extremum(Extremum::Minimum, &list.iter().collect::<Vec<_>>())),
            ("max" | "Max", list) => Ok(extremum(Extremum::Maximum, &list.iter().collect::<Vec<_>>())),
            _ => {
                let expected = "floordiv, ceildiv or mod of two operands, floor or ceiling of one, min or max";
                Err(DimParseError::Expected { expected, offset: start })
            }
        }
    }

    /// At least one, and the closing parenthesis.
    fn arguments(&mut self) -> Result<Vec<Fraction>, DimParseError> {
        let mut arguments = vec![self.sum()?];
        while self.take(",") {
            arguments.push(self.sum()?);
        }
        self.require(")")?;
        Ok(arguments)
    }
}
