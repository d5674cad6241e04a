//! Attention and its relatives.

use crate::steps::Kernel;
use ipuc_formats::ops::{Attention, CausalConvolution, LinearAttention, RotaryEmbedding};

impl Kernel for Attention {}
impl Kernel for RotaryEmbedding {}
impl Kernel for LinearAttention {}
impl Kernel for CausalConvolution {}
