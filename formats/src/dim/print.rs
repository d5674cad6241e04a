//! The printed form: `8*floordiv(h + 31, 32)`, `batch*seq`, `max(a, 3)`.
//!
//! Names that are not `[A-Za-z_][A-Za-z0-9_.]*` stand between backticks with `` \` ``, `\\` and `\u{…}`
//! for what is not printable, so that any name round-trips within one line. Refused dimensions print as
//! `!overflow` and `!too_large`.

use std::fmt::{self, Display, Formatter, Write};

use super::polynomial::Atom;
use super::{Dim, Refusal, Repr};

/// Longest expression in an error message, in characters.
const SHORT_CHARACTERS: usize = 200;

impl Display for Dim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let polynomial = match &self.0 {
            Repr::Known(value) => return write!(f, "{value}"),
            Repr::Refused(refusal) => return write!(f, "!{refusal}"),
            Repr::Expression(polynomial) => polynomial,
        };
        for (index, term) in polynomial.terms.iter().enumerate() {
            // The magnitude of the least integer is no integer, hence it keeps its sign.
            let (sign, magnitude) = match term.coefficient.checked_abs() {
                Some(magnitude) => (term.coefficient.signum(), magnitude),
                None => (1, term.coefficient),
            };
            f.write_str(match (index, sign) {
                (0, -1) => "-",
                (0, _) => "",
                (_, -1) => " - ",
                _ => " + ",
            })?;
            let atoms = &term.monomial.0;
            if magnitude != 1 || atoms.is_empty() {
                write!(f, "{magnitude}")?;
            }
            for (position, atom) in atoms.iter().enumerate() {
                if magnitude != 1 || position > 0 {
                    f.write_char('*')?;
                }
                write!(f, "{atom}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Dim({self})")
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Overflow => "overflow",
            Refusal::TooLarge => "too_large",
        })
    }
}

impl Display for Atom {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Atom::Symbol(name) => return write_name(name, f),
            Atom::FloorDivide(..) => "floordiv(",
            Atom::Modulo(..) => "mod(",
            Atom::Minimum(_) => "min(",
            Atom::Maximum(_) => "max(",
        })?;
        for (index, operand) in self.operands().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            write!(f, "{operand}")?;
        }
        f.write_char(')')
    }
}

pub(super) fn is_plain_start(character: char) -> bool {
    character.is_ascii_alphabetic() || character == '_'
}

pub(super) fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '.'
}

fn write_name(name: &str, f: &mut Formatter<'_>) -> fmt::Result {
    if name.starts_with(is_plain_start) && name.chars().all(is_plain) {
        return f.write_str(name);
    }
    f.write_char('`')?;
    for character in name.chars() {
        match character {
            '`' | '\\' => write!(f, "\\{character}")?,
            // Line and paragraph separators would break a line in some readers.
            _ if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') => {
                write!(f, "\\u{{{:x}}}", u32::from(character))?;
            }
            _ => f.write_char(character)?,
        }
    }
    f.write_char('`')
}

impl Dim {
    /// The printed form, cut for use in messages.
    pub(super) fn shortened(&self) -> String {
        let text = self.to_string();
        match text.char_indices().nth(SHORT_CHARACTERS) {
            Some((cut, _)) => format!("{}…", &text[..cut]),
            None => text,
        }
    }
}
