//! Functions of elements, casts, quantization, random draws.

use crate::steps::Kernel;
use ipuc_formats::ops::{
    Activation, Binary, BitCast, Cast, Clamp, Compare, Dequantize, Dropout, DynamicQuantize, Multinomial, Quantize,
    Random, Select, Unary,
};

impl Kernel for Unary {}
impl Kernel for Activation {}
impl Kernel for Binary {}
impl Kernel for Compare {}
impl Kernel for Select {}
impl Kernel for Clamp {}
impl Kernel for Cast {}
impl Kernel for BitCast {}
impl Kernel for Quantize {}
impl Kernel for Dequantize {}
impl Kernel for DynamicQuantize {}
impl Kernel for Random {}
impl Kernel for Multinomial {}
impl Kernel for Dropout {}
