//! Zeros among the elements of a weight, as a compiler found them.

/// What was found of zeros among the stored elements of a weight (of codes: those that stand for 0). -0 is a zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Zeros {
    /// Elements that were looked at: all, or evenly spread ones of a large weight; 0 where it was not measured.
    pub elements: u64,
    /// How many of these are zero.
    pub zeros: u64,
    /// How many of these are NaN or infinite.
    pub not_finite: u64,
    /// Groups of four consecutive inputs of an output by how many of these are not zero: `[0, 1, 2, 3, 4]`. Empty where no
    /// product reads the weight as a matrix.
    pub groups: Vec<u64>,
    /// Blocks of several shapes; empty where no product reads the weight as a matrix.
    pub blocks: Vec<ZeroBlocks>,
    /// The most elements that are not zero in 16 outputs by 256 inputs; 0 where no product reads the weight as a matrix.
    pub record_elements: u64,
    /// Why the weight is stored with its zeros or without them, in words.
    pub reason: String,
}

/// Blocks of 16 outputs by some inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZeroBlocks {
    /// Inputs of a block.
    pub inputs: u64,
    /// How many blocks were looked at.
    pub count: u64,
    /// How many of these have zeros only.
    pub zeros: u64,
}

impl Zeros {
    /// Classes of [`Zeros::groups`].
    pub const GROUP_CLASSES: usize = 5;

    /// The share of zeros among what was looked at, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.zeros as f64 / self.elements.max(1) as f64
    }

    /// The share of groups of four inputs with at most two elements that are not zero, from 0 to 1: 1 is the pattern 2:4.
    pub fn two_of_four_share(&self) -> f64 {
        let all: u64 = self.groups.iter().sum();
        self.groups.iter().take(3).sum::<u64>() as f64 / all.max(1) as f64
    }
}
