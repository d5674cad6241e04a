//! Reductions, normalizations, recurrences, attention.

use crate::steps::Kernel;
use ipuc_formats::ops::{
    ArgReduce, Attention, BatchNormalization, CausalConvolution, Cumulative, GroupNormalization, Gru,
    LayerNormalization, LinearAttention, LocalResponseNormalization, Lstm, NegativeLogLikelihood, Reduce, Rnn,
    RotaryEmbedding, Softmax,
};

impl Kernel for Reduce {}
impl Kernel for ArgReduce {}
impl Kernel for Cumulative {}
impl Kernel for Softmax {}
impl Kernel for LayerNormalization {}
impl Kernel for BatchNormalization {}
impl Kernel for GroupNormalization {}
impl Kernel for LocalResponseNormalization {}
impl Kernel for Lstm {}
impl Kernel for Gru {}
impl Kernel for Rnn {}
impl Kernel for Attention {}
impl Kernel for RotaryEmbedding {}
impl Kernel for LinearAttention {}
impl Kernel for CausalConvolution {}
impl Kernel for NegativeLogLikelihood {}
