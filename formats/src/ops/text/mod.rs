//! Strings.

pub(crate) mod regex;
pub(crate) mod string_concat;
pub(crate) mod string_normalize;
pub(crate) mod string_split;
pub(crate) mod tfidf;

pub use regex::RegexFullMatch;
pub use string_concat::StringConcat;
pub use string_normalize::{StringNormalize, TextCase};
pub use string_split::StringSplit;
pub use tfidf::{TfIdf, Weighting};
