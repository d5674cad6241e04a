//! Reductions, normalizations, recurrences, attention.

use crate::steps::Kernel;
use ipuc_formats::ops::{
    ArgReduce, BatchNormalization, Cumulative, GroupNormalization, Gru, LayerNormalization, LocalResponseNormalization,
    Lstm, Reduce, Rnn, Softmax,
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
