//! Control flow over blocks; sequences and optional values.

use crate::steps::Kernel;
use ipuc_formats::ops::{
    If, Loop, OptionalConstruct, OptionalGet, OptionalHas, Scan, SequenceAt, SequenceConcat, SequenceConstruct,
    SequenceErase, SequenceInsert, SequenceLength, SequenceMap, SequenceSplit,
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
