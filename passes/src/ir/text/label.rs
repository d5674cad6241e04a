//! How values and constants are called in text: `%12`, `%hidden`, `%"/layer/Add_output_0"`, `@"w"`.
//!
//! What has a name of its own is called by it. Others are called by their number; a name that several share stands
//! behind the number where they are defined: `%12 "x"`.

use crate::ir::text::scan::{Parsed, quoted};
use ipuc_formats::attribute_text::quote;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

/// How a value or constant is called.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Label {
    /// By a number; one that is read only tells values apart.
    Number(u32),
    /// By its name.
    Name(String),
}

impl Label {
    /// Read a label after its sigil, `%` or `@`; gives it and what follows.
    pub(super) fn read(input: &str, sigil: char) -> Parsed<(Label, &str)> {
        let rest = input.strip_prefix(sigil).ok_or_else(|| format!("expected `{sigil}` at `{input}`"))?;
        if rest.starts_with('"') {
            let (name, rest) = quoted(rest)?;
            return Ok((Label::Name(name), rest));
        }
        let end = rest.find(|character| !is_plain(character)).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        if word.is_empty() {
            return Err(format!("expected a name or number at `{input}`"));
        }
        let label = if is_number(word) {
            Label::Number(word.parse().map_err(|_| format!("the number `{word}` is too large"))?)
        } else {
            Label::Name(word.to_string())
        };
        Ok((label, rest.trim_start()))
    }

    /// Read a label where it is defined: with it comes the name that it stands for, if any.
    pub(super) fn read_defined(input: &str, sigil: char) -> Parsed<(Label, Option<String>, &str)> {
        let (label, rest) = Label::read(input, sigil)?;
        match &label {
            Label::Name(name) => {
                let name = name.clone();
                Ok((label, Some(name), rest))
            }
            Label::Number(_) if rest.starts_with('"') => {
                let (name, rest) = quoted(rest)?;
                Ok((label, Some(name), rest))
            }
            Label::Number(_) => Ok((label, None, rest)),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Number(number) => write!(formatter, "{number}"),
            // A name that is all digits would read as a number.
            Label::Name(name) if name.chars().all(is_plain) && !is_number(name) => formatter.write_str(name),
            Label::Name(name) => formatter.write_str(&quote(name)),
        }
    }
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '.')
}

/// Also of the empty name, which has to be quoted too.
fn is_number(word: &str) -> bool {
    word.chars().all(|digit| digit.is_ascii_digit())
}

/// What all values, or all constants, that are printed are called.
pub struct Labels<Id> {
    sigil: char,
    labels: HashMap<Id, String>,
    shared: HashMap<Id, String>,
}

impl<Id: Copy + Eq + Hash> Labels<Id> {
    /// Labels for these ids, each with its number and name.
    pub fn new<'a>(sigil: char, all: impl Iterator<Item = (Id, u32, Option<&'a str>)> + Clone) -> Self {
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for name in all.clone().filter_map(|(_, _, name)| name) {
            *uses.entry(name).or_default() += 1;
        }
        let mut labels = Labels { sigil, labels: HashMap::new(), shared: HashMap::new() };
        for (id, number, name) in all {
            let label = match name {
                Some(name) if uses[name] == 1 => Label::Name(name.to_string()),
                Some(name) => {
                    labels.shared.insert(id, quote(name));
                    Label::Number(number)
                }
                None => Label::Number(number),
            };
            labels.labels.insert(id, format!("{sigil}{label}"));
        }
        labels
    }

    /// The label where the id is read. One that nothing defines (in a graph that the verifier refuses) has `?`.
    pub fn used(&self, id: Id) -> String {
        self.labels.get(&id).cloned().unwrap_or_else(|| format!("{}?", self.sigil))
    }

    /// The label where the id is defined.
    pub fn defined(&self, id: Id) -> String {
        match self.shared.get(&id) {
            Some(name) => format!("{} {name}", self.used(id)),
            None => self.used(id),
        }
    }
}
