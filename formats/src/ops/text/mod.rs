//! Strings.

pub(crate) mod murmur_hash;
mod pattern;
pub(crate) mod regex;
pub(crate) mod repeat_block;
pub(crate) mod string_concat;
pub(crate) mod string_normalize;
pub(crate) mod string_split;
pub(crate) mod tfidf;
pub(crate) mod tokenize;

pub use murmur_hash::MurmurHash;
pub use regex::RegexFullMatch;
pub use repeat_block::RepeatBlock;
pub use string_concat::StringConcat;
pub use string_normalize::{StringNormalize, TextCase};
pub use string_split::StringSplit;
pub use tfidf::{TfIdf, Weighting};
pub use tokenize::Tokenize;
