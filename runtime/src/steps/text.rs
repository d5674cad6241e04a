//! Strings.

use crate::steps::Kernel;
use ipuc_formats::ops::{
    MurmurHash, RegexFullMatch, RepeatBlock, StringConcat, StringNormalize, StringSplit, TfIdf, Tokenize,
};

impl Kernel for MurmurHash {}
impl Kernel for RepeatBlock {}
impl Kernel for StringConcat {}
impl Kernel for StringNormalize {}
impl Kernel for StringSplit {}
impl Kernel for RegexFullMatch {}
impl Kernel for TfIdf {}
impl Kernel for Tokenize {}
