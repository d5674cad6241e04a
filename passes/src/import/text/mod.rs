//! `StringConcat`, `StringSplit`, `RegexFullMatch` (20), `StringNormalizer` (10), `TfIdfVectorizer` (9); of `com.microsoft`
//! `MurmurHash3`, `NGramRepeatBlock` and `Tokenizer`, and those of runs of tokens.

mod tokens;

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::attribute::Keyword;
use ipuc_formats::ops::{
    MurmurHash, RegexFullMatch, RepeatBlock, StringConcat, StringNormalize, StringSplit, TextCase, TfIdf, Tokenize,
    Weighting,
};

/// All tables of the family.
pub const TABLES: &[&[Row]] = &[ROWS, tokens::ROWS];

/// Texts.
pub const ROWS: &[Row] = &[
    row("StringConcat", 20, |node| node.emit(StringConcat {}, node.inputs())),
    row("StringSplit", 20, split),
    row("StringNormalizer", 10, normalize),
    row("RegexFullMatch", 20, regex),
    row("TfIdfVectorizer", 9, tfidf),
    microsoft("MurmurHash3", murmur_hash),
    microsoft("NGramRepeatBlock", repeat_block),
    microsoft("Tokenizer", tokenized),
];

const fn microsoft(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError>) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

fn murmur_hash(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let (seed, positive) = (node.int("seed")?.unwrap_or(0), node.flag("positive", true)?);
    let x = node.required(0)?;
    node.emit(MurmurHash { seed, positive }, vec![x])
}

fn repeat_block(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let length = node.positive("ngram_size")?;
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(RepeatBlock { length }, operands)
}

/// A separator without characters, or any character as a token, makes every character one.
fn tokenized(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    node.at_most_inputs(1)?;
    let mut separators = node.texts("separators")?.unwrap_or_default();
    let mut expression = node.text("tokenexp")?.unwrap_or_default();
    let least = node.positive("mincharnum")?;
    let mark = match node.int("mark")?.ok_or_else(|| missing("mark"))? {
        0 => false,
        1 => true,
        other => return Err(node.refuse(format!("attribute `mark` = {other}"))),
    };
    let padding = node.text("pad_value")?.ok_or_else(|| missing("pad_value"))?;
    match (&separators[..], expression.as_str()) {
        ([], "") => return Err(missing("separators")),
        ([_, ..], "") | ([], _) => {}
        ([_, ..], _) => return Err(node.refuse("attribute `tokenexp` beside `separators`")),
    }
    if separators == [""] || expression == "." {
        if least > 1 {
            return Err(node.refuse(format!("attribute `mincharnum` = {least} with tokens of one character")));
        }
        separators.clear();
        expression.clear();
    }
    let x = node.required(0)?;
    node.emit(Tokenize { separators, expression, least, mark, padding }, vec![x])
}

fn missing(name: &str) -> LowerError {
    LowerError::MissingAttribute(name.to_string())
}

fn split(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let (delimiter, maximum_splits) = (node.text("delimiter")?, node.int("maxsplit")?);
    node.emit(StringSplit { delimiter, maximum_splits }, node.inputs())
}

/// Spellings of `case_change_action`.
#[derive(Debug, Clone, Copy, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "UPPERCASE")]
enum CaseChange {
    None,
    Lower,
    Upper,
}
impl Keyword for CaseChange {}

/// Languages whose upper and lower case differ from Unicode's default.
const OTHER_CASE: &[&str] = &["tr", "az", "lt"];

fn normalize(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let case = match node.keyword("case_change_action")?.unwrap_or(CaseChange::None) {
        CaseChange::None => TextCase::Keep,
        CaseChange::Lower => TextCase::Lower,
        CaseChange::Upper => TextCase::Upper,
    };
    let case_sensitive = node.flag("is_case_sensitive", false)?;
    let stopwords = node.texts("stopwords")?.unwrap_or_default();
    let locale = node.text("locale")?.unwrap_or_default();
    let language = locale.split(['_', '-', '.', '@']).next().unwrap_or_default().to_lowercase();
    let changes_case = case != TextCase::Keep || !(case_sensitive || stopwords.is_empty());
    if changes_case && OTHER_CASE.contains(&language.as_str()) {
        return Err(node.refuse(format!("attribute `locale` = \"{locale}\"")));
    }
    node.emit(StringNormalize { case, case_sensitive, stopwords }, node.inputs())
}

fn regex(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let pattern = node.text("pattern")?.ok_or_else(|| missing("pattern"))?;
    node.emit(RegexFullMatch { pattern }, node.inputs())
}

/// Spellings of `mode`.
#[derive(Debug, Clone, Copy, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "UPPERCASE")]
enum Mode {
    Tf,
    Idf,
    Tfidf,
}
impl Keyword for Mode {}

fn tfidf(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let weighting = match node.keyword("mode")?.ok_or_else(|| missing("mode"))? {
        Mode::Tf => Weighting::Tf,
        Mode::Idf => Weighting::Idf,
        Mode::Tfidf => Weighting::Tfidf,
    };
    let operator = TfIdf {
        weighting,
        minimum_length: node.int("min_gram_length")?.ok_or_else(|| missing("min_gram_length"))?,
        maximum_length: node.int("max_gram_length")?.ok_or_else(|| missing("max_gram_length"))?,
        maximum_skips: node.int("max_skip_count")?.ok_or_else(|| missing("max_skip_count"))?,
        starts: node.ints("ngram_counts")?.ok_or_else(|| missing("ngram_counts"))?,
        columns: node.ints("ngram_indexes")?.ok_or_else(|| missing("ngram_indexes"))?,
        weights: node.floats("weights")?.unwrap_or_default(),
        integer_pool: node.ints("pool_int64s")?.unwrap_or_default(),
        text_pool: node.texts("pool_strings")?.unwrap_or_default(),
    };
    node.emit(operator, node.inputs())
}
