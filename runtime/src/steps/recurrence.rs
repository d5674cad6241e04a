//! Recurrent layers.

use crate::steps::Kernel;
use ipuc_formats::ops::{Gru, Lstm, Rnn};

impl Kernel for Lstm {}
impl Kernel for Gru {}
impl Kernel for Rnn {}
