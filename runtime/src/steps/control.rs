//! Control flow, sequences, text, selection, windows.

use crate::steps::Kernel;
use ipuc_formats::ops::{
    If, LabelEncode, Loop, MelWeights, NonMaxSuppression, OptionalConstruct, OptionalGet, OptionalHas, RegexFullMatch,
    Scan, ScoreTransform, SequenceAt, SequenceConcat, SequenceConstruct, SequenceErase, SequenceInsert, SequenceLength,
    SequenceMap, SequenceSplit, StringConcat, StringNormalize, StringSplit, TfIdf, TreeEnsemble, Window, ZipMap,
};

impl Kernel for If {}
impl Kernel for Loop {}
impl Kernel for Scan {}
impl Kernel for SequenceMap {}
impl Kernel for SequenceConstruct {}
impl Kernel for SequenceAt {}
impl Kernel for SequenceInsert {}
impl Kernel for SequenceErase {}
impl Kernel for SequenceLength {}
impl Kernel for SequenceSplit {}
impl Kernel for SequenceConcat {}
impl Kernel for OptionalConstruct {}
impl Kernel for OptionalGet {}
impl Kernel for OptionalHas {}
impl Kernel for StringConcat {}
impl Kernel for StringNormalize {}
impl Kernel for StringSplit {}
impl Kernel for RegexFullMatch {}
impl Kernel for TfIdf {}
impl Kernel for NonMaxSuppression {}
impl Kernel for Window {}
impl Kernel for MelWeights {}
impl Kernel for LabelEncode {}
impl Kernel for TreeEnsemble {}
impl Kernel for ScoreTransform {}
impl Kernel for ZipMap {}
