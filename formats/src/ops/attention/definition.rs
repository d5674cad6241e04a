//! What attention can do: the attributes of ONNX `Attention` (opsets 23, 24, 25), and those of its relatives.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dtype::DType;
use crate::ops::{Arithmetic, Program};

attributes! {
    /// Attention of queries to keys and values, in groups where there are more query heads than key heads.
    ///
    /// Operands: `q: [b, hq, s, d]`, `k: [b, hk, t, d]`, `v: [b, hk, t, e]` (or `[b, s, hq*d]`, `[b, t, hk*d]`,
    /// `[b, t, hk*e]`), optional `mask: [.., s, p+t]` (bool or number), `past_k: [b, hk, p, d]`, `past_v: [b, hk, p, e]`,
    /// `valid: [b]` (i64, tokens of each cache that are no padding), `first: [b]` (i64, position of the first query;
    /// absent: that which leaves the last query at the last valid token, or behind the past), `sink: [hq]` (a score of
    /// each head whose value is 0), then operands of the program.
    /// Results: `y: [b, hq, s, e]` (or `[b, s, hq*e]`), with `present` the keys `[b, hk, p+t, d]` and values
    /// `[b, hk, p+t, e]`, with `scores` the scores `[b, hq, s, p+t]`.
    pub struct Attention revision 1 {
        /// Factor of the products; absent: `1 / sqrt(d)`.
        1 since 1 => scale: Option<f32>,
        /// A query sees keys up to its own position.
        2 since 1 => causal: bool,
        /// Scores become `softcap * tanh(score / softcap)`; 0: they stay.
        3 since 1 => softcap: f32,
        /// Type of the softmax; absent: that of the queries.
        4 since 1 => softmax_precision: Option<DType>,
        /// `hq`; needed for operands of three axes.
        5 since 1 => query_heads: Option<i64>,
        /// `hk`; needed for operands of three axes.
        6 since 1 => key_heads: Option<i64>,
        /// A query sees at most so many keys before its own position.
        7 since 1 => left_window: Option<i64>,
        /// A query sees at most so many keys behind its own position.
        8 since 1 => right_window: Option<i64>,
        /// A mask that is shorter than the keys masks the rest (opset 24); else its last axis broadcasts.
        9 since 1 => pad_mask: bool,
        /// Keys and values, with those of the past, are results.
        10 since 1 => present: bool,
        /// Scores are a result, at this stage.
        11 since 1 => scores: Option<ScoreStage>,
        /// Arithmetic of both products.
        12 since 1 => arithmetic: Arithmetic,
        /// Scalar operations on `y`.
        13 since 1 => program: Program,
    }
}

impl Attention {
    /// Attention without any option, which gives `y` only.
    #[must_use]
    pub fn plain() -> Attention {
        Attention {
            scale: None,
            causal: false,
            softcap: 0.0,
            softmax_precision: None,
            query_heads: None,
            key_heads: None,
            left_window: None,
            right_window: None,
            pad_mask: false,
            present: false,
            scores: None,
            arithmetic: Arithmetic::default(),
            program: Program::default(),
        }
    }
}

/// Index of the first operand that only the program reads.
pub const ATTENTION_OPERANDS: usize = 9;

/// Stages of the scores that [`Attention`] can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ScoreStage {
    /// The scaled product of queries and keys.
    Product,
    /// After the softcap.
    Softcap,
    /// After the bias.
    Bias,
    /// After the softmax.
    Softmax,
}
impl Keyword for ScoreStage {}
