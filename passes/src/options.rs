//! What a compilation may be told.

use crate::moments::Calibration;
use ipuc_formats::dim::Bindings;
use ipuc_formats::ops::RowScheme;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// How activations that meet quantized weights are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// As the model says: codes of activations and weights as integers, floats as floats, and `MatMulNBits` as its
    /// `accuracy_level` asks.
    #[default]
    Model,
    /// As floats, wherever the model itself has no sums of integers.
    Keep,
    /// Those of matrix products with quantized weights are rounded to i8 as they are computed, with a scale a row.
    I8,
    /// Those of products and convolutions with weights of 8 bits are codes of 8 bits with a scale and a zero point that
    /// calibration chooses, and sums are integers; those of other matrix products with quantized weights as with [`Activations::I8`].
    I8Static,
}

/// What the weights of products and gathers are rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Floats of 16 bits with 11 bits of precision.
    F16,
    /// Floats of 16 bits with the range of f32.
    Bf16,
    /// Integers with scales.
    Codes {
        /// Bits of a code: 8, 4 or 2.
        bits: u32,
        /// Inputs that share a scale: a power of two from 16 to 256; 0 for all inputs of an output (a channel).
        block: u64,
    },
    /// Floats of 8 bits with scales.
    Fp8 {
        /// The type of the codes.
        code: Fp8,
        /// Inputs that share a scale: a power of two from 16 to 256; 0 for all inputs of an output (a channel).
        block: u64,
    },
    /// Floats of 4 bits with a power of two for each 32 inputs (OCP MX v1.0).
    Mxfp4,
    /// Floats of 4 bits with a float of 8 bits for each 16 inputs, and one of f32 for each output.
    Nvfp4,
    /// Integers of 4 bits with the same scales.
    I4E4m3,
}

/// Floats of 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp8 {
    /// f8e4m3fn: 4 bits of precision.
    E4m3,
    /// f8e5m2: 3 bits of precision, and a wider range.
    E5m2,
}

impl Precision {
    /// Inputs that share a scale; 0 for all of an output, or where there are no scales.
    pub fn block(self) -> u64 {
        match self {
            Precision::F16 | Precision::Bf16 => 0,
            Precision::Codes { block, .. } | Precision::Fp8 { block, .. } => block,
            Precision::Mxfp4 => 32,
            Precision::Nvfp4 | Precision::I4E4m3 => 16,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Precision::F16 => return formatter.write_str("f16"),
            Precision::Bf16 => return formatter.write_str("bf16"),
            Precision::Mxfp4 => return formatter.write_str("mxfp4"),
            Precision::Nvfp4 => return formatter.write_str("nvfp4"),
            Precision::I4E4m3 => return formatter.write_str("i4_e4m3"),
            Precision::Codes { bits, .. } => write!(formatter, "i{bits}")?,
            Precision::Fp8 { code: Fp8::E4m3, .. } => formatter.write_str("fp8")?,
            Precision::Fp8 { code: Fp8::E5m2, .. } => formatter.write_str("fp8_e5m2")?,
        }
        match self.block() {
            0 => formatter.write_str(":channel"),
            block => write!(formatter, ":{block}"),
        }
    }
}

impl FromStr for Precision {
    type Err = String;

    /// `f16`, `bf16`, `mxfp4`, `nvfp4`, `i4_e4m3`, or `i8`, `i4`, `i2`, `fp8` (f8e4m3fn) and `fp8_e5m2` with the size of a
    /// block, as `i4:64` or `i8:channel`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, block) = text.split_once(':').map_or((text, None), |(kind, block)| (kind, Some(block)));
        let usual = match (kind, block) {
            ("f16", None) => return Ok(Precision::F16),
            ("bf16", None) => return Ok(Precision::Bf16),
            ("mxfp4", None) => return Ok(Precision::Mxfp4),
            ("nvfp4", None) => return Ok(Precision::Nvfp4),
            ("i4_e4m3", None) => return Ok(Precision::I4E4m3),
            ("mxfp4" | "nvfp4" | "i4_e4m3", Some(_)) => {
                return Err(format!("the blocks of {kind} have one size, which is not named"));
            }
            ("i8" | "fp8" | "fp8_e5m2", _) => 0,
            ("i4" | "i2", _) => 32,
            _ => {
                let kinds = "f16, bf16, i8, i4, i4_e4m3, i2, fp8, fp8_e5m2, mxfp4 or nvfp4";
                return Err(format!("expected {kinds}; blocks of codes may have a size, as i4:64"));
            }
        };
        let block = match block {
            None => usual,
            Some("channel") => 0,
            Some(size) => {
                let size = size.parse().ok().filter(|size: &u64| size.is_power_of_two() && (16..=256).contains(size));
                size.ok_or("blocks have 16, 32, 64, 128 or 256 inputs, or are a channel")?
            }
        };
        Ok(match kind {
            "i8" => Precision::Codes { bits: 8, block },
            "i4" => Precision::Codes { bits: 4, block },
            "fp8" => Precision::Fp8 { code: Fp8::E4m3, block },
            "fp8_e5m2" => Precision::Fp8 { code: Fp8::E5m2, block },
            _ => Precision::Codes { bits: 2, block },
        })
    }
}

/// What decides the precision of each weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Bytes that all weights of the file may take.
    Size(u64),
    /// The most that rounding one weight may change results of its products: the root mean square of the change beside
    /// that of the results.
    Error(f64),
}

impl fmt::Display for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Size(bytes) => write!(formatter, "--size {bytes}"),
            Budget::Error(most) => write!(formatter, "--max-error {most}"),
        }
    }
}

/// How weights are rounded. Without a precision and without exceptions they stay as the model has them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WeightOptions {
    /// All that the policy of the pass `round_weights` rounds.
    pub precision: Option<Precision>,
    /// What chooses the precision of each weight where none is given for all.
    pub budget: Option<Budget>,
    /// Patterns of names that stay as they are.
    pub keep: Vec<String>,
    /// Patterns of names with a precision of their own; of several that match the last counts.
    pub each: Vec<(String, Precision)>,
}

impl WeightOptions {
    /// Whether any weight may be rounded.
    pub fn is_rounding(&self) -> bool {
        self.precision.is_some() || self.budget.is_some() || !self.each.is_empty()
    }
}

/// Whether the zeros of weights are left out of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sparsity {
    /// Where that takes fewer bytes and no more time, by the break-even of the pass `annotate_sparsity`.
    #[default]
    Measured,
    /// Wherever that takes fewer bytes.
    Always,
    /// Nowhere.
    Never,
}

/// Whether products leave out inputs whose activations are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActivationSparsity {
    /// Where that takes less time, by the break-even of the pass `annotate_sparsity`.
    #[default]
    Measured,
    /// Wherever activations are known to have zeros.
    Always,
    /// Nowhere.
    Never,
}

/// An entry that is made of others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joined {
    /// Its name.
    pub entry: String,
    /// What it is made of, in the order in which they run.
    pub parts: Vec<Part>,
}

/// An entry that becomes a part of another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub entry: String,
    /// Names that its outputs have for others: the one of the model, the other.
    pub renamed: Vec<(String, String)>,
}

/// What a compilation may be told.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Sizes at which memory is weighed where dimensions are open.
    pub dimensions: Bindings,
    /// Inputs and outputs that are state, as `IN=OUT` patterns.
    pub states: Vec<String>,
    /// Entries that are made of others.
    pub joined: Vec<Joined>,
    /// Inputs and outputs that entries do without, by entry and name: nothing reads these inputs once the model is folded.
    pub left_out: Vec<(String, String)>,
    /// How rows of f32 of growing state are stored; `None` where they stay as they are.
    pub cache: Option<RowScheme>,
    /// The output `[batch, positions, vocabulary]` of a language model for which an entry `prefill` is added, which computes
    /// it for the last position only.
    pub prefill: Option<String>,
    /// How activations that meet quantized weights are computed.
    pub activations: Activations,
    /// How weights are rounded.
    pub weights: WeightOptions,
    /// Whether the zeros of weights are left out.
    pub sparsity: Sparsity,
    /// Whether products leave inputs out.
    pub activation_sparsity: ActivationSparsity,
    /// Activations of products that leave inputs out are zero where their magnitude lies below this share of the root mean
    /// square that calibration has seen of them; exact zeros alone where `None`.
    pub sparse_threshold: Option<f64>,
    /// What products read in runs of the model on examples; empty where there were none.
    pub calibration: Arc<Calibration>,
    /// Only sizes are asked for: no pass reads a weight, whose files may be missing.
    pub sizes_only: bool,
    /// Bytes of a size that weights are to take which are kept for constants that passes after `round_weights` add.
    pub reserved_bytes: u64,
    /// Leave every step as it is, so that each value is computed and can be observed.
    pub unfused: bool,
    /// Channels of convolutions are in no blocks, which are for the vectors of processors.
    pub plain_channels: bool,
    /// Verify after every pass in release builds too.
    pub verify: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: &str = "expected f16, bf16, i8, i4, i4_e4m3, i2, fp8, fp8_e5m2, mxfp4 or nvfp4; blocks of codes may have a \
                         size, as i4:64";

    #[test]
    fn precisions_are_texts() {
        for (text, precision) in [
            ("f16", Precision::F16),
            ("bf16", Precision::Bf16),
            ("i8:channel", Precision::Codes { bits: 8, block: 0 }),
            ("i4:32", Precision::Codes { bits: 4, block: 32 }),
            ("i2:256", Precision::Codes { bits: 2, block: 256 }),
            ("fp8:channel", Precision::Fp8 { code: Fp8::E4m3, block: 0 }),
            ("fp8_e5m2:64", Precision::Fp8 { code: Fp8::E5m2, block: 64 }),
            ("mxfp4", Precision::Mxfp4),
            ("nvfp4", Precision::Nvfp4),
            ("i4_e4m3", Precision::I4E4m3),
        ] {
            assert_eq!((text.parse(), precision.to_string()), (Ok(precision), text.to_string()));
        }
        assert_eq!("i8".parse(), "i8:channel".parse::<Precision>());
        assert_eq!("i4".parse(), "i4:32".parse::<Precision>());
        for (wrong, message) in [
            ("mxfp4:16", "the blocks of mxfp4 have one size, which is not named"),
            ("i3", KINDS),
            ("f16:32", KINDS),
            ("i4:24", "blocks have 16, 32, 64, 128 or 256 inputs, or are a channel"),
            ("i4:", "blocks have 16, 32, 64, 128 or 256 inputs, or are a channel"),
        ] {
            assert_eq!(wrong.parse::<Precision>(), Err(message.to_string()));
        }
    }
}
