//! The quantized cache of `GroupQueryAttention`: codes of 8 or 4 bits with one scale, or one for each channel of a head.
//!
//! New keys and values become codes before they are stored, and every query sees the codes: so ONNX Runtime computes it on a
//! processor.

use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BinaryFunction, Clamp, Concat, Unary, UnaryFunction};
use ipuc_formats::tensor::Tensor;

/// The inputs with the scales of keys and values.
const SCALES: [(usize, &str); 2] = [(12, "k_scale"), (13, "v_scale")];

/// How keys, or values, are stored.
pub(super) struct CacheCodes {
    /// `[]`, or `[1, heads, 1, size]`, in f32.
    scale: Operand,
    /// 8, or 4 for two codes a byte, of which the lower is that of the element before.
    bits: i64,
    size: i64,
}

impl CacheCodes {
    /// How the cache of a node stores keys and values, of this number of heads and size of a head; `None` where it stores
    /// them as they are.
    pub(super) fn of(
        node: &mut Lowering<'_, '_>,
        [heads, size]: [i64; 2],
    ) -> Result<[Option<CacheCodes>; 2], LowerError> {
        let bits = node.int("kv_cache_bit_width")?.filter(|bits| *bits != 0);
        let mut codes = [None, None];
        for (index, name) in ["k_quant_type", "v_quant_type"].into_iter().enumerate() {
            let (operand, scale_name) = SCALES[index];
            let kind = node.text(name)?;
            let shape: &[i64] = match kind.as_deref().unwrap_or("NONE") {
                "NONE" => {
                    node.refuse_inputs(&[(operand, scale_name)])?;
                    continue;
                }
                "PER_TENSOR" => &[],
                "PER_CHANNEL" => &[1, heads, 1, size],
                other => return Err(node.refuse(format!("attribute `{name}` = \"{other}\""))),
            };
            let bits = match bits.unwrap_or(8) {
                bits @ (4 | 8) => bits,
                other => return Err(node.refuse(format!("attribute `kv_cache_bit_width` = {other}"))),
            };
            if bits == 4 && size % 2 != 0 {
                return Err(node.refuse(format!("a cache of codes of 4 bits with {size} channels of a head")));
            }
            let scale = node.input(operand);
            if scale == Operand::Absent {
                return Err(node.refuse(format!("attribute `{name}` without the input `{scale_name}`")));
            }
            let scale = node.cast(scale, DType::F32)?;
            codes[index] = Some(CacheCodes { scale: node.reshaped(scale, shape)?, bits, size });
        }
        if bits.is_some() && codes.iter().all(Option::is_none) {
            return Err(node.refuse("attribute `kv_cache_bit_width` without `k_quant_type` and `v_quant_type`"));
        }
        Ok(codes)
    }

    /// The codes of new rows `[b, heads, s, size]`.
    pub(super) fn stored(&self, node: &mut Lowering<'_, '_>, rows: Operand) -> Result<Operand, LowerError> {
        let rows = node.cast(rows, DType::F32)?;
        let scaled = node.binary(BinaryFunction::Div, rows, self.scale)?;
        let rounded = node.emit_one(Unary { function: UnaryFunction::Round }, vec![scaled])?;
        let most = if self.bits == 4 { 7f32 } else { 127.0 };
        let [least, most] = [-most - 1.0, most].map(|bound| node.constant(Tensor::scalar(bound)));
        let codes = node.emit_one(Clamp {}, vec![rounded, least, most])?;
        if self.bits == 8 {
            return node.cast(codes, DType::I8);
        }
        let offset = node.constant(Tensor::scalar(8f32));
        let codes = node.plus(codes, offset)?;
        let codes = node.cast(codes, DType::U8)?;
        let last = [0, self.size, 2];
        let (lower, upper) = (node.sliced(codes, 3, last)?, node.sliced(codes, 3, [1, self.size, 2])?);
        let sixteen = node.constant(Tensor::scalar(16u8));
        let upper = node.binary(BinaryFunction::Mul, upper, sixteen)?;
        node.plus(lower, upper)
    }

    /// The rows of stored codes, in f32.
    pub(super) fn decoded(&self, node: &mut Lowering<'_, '_>, codes: Operand) -> Result<Operand, LowerError> {
        let mut rows = node.cast(codes, DType::F32)?;
        if self.bits == 4 {
            let [fifteen, four] = [15u8, 4].map(|number| node.constant(Tensor::scalar(number)));
            let lower = node.binary(BinaryFunction::BitAnd, codes, fifteen)?;
            let upper = node.binary(BinaryFunction::ShiftRight, codes, four)?;
            let (lower, upper) = (node.unsqueezed(lower, &[4])?, node.unsqueezed(upper, &[4])?);
            let pairs = node.emit_one(Concat { axis: 4 }, vec![lower, upper])?;
            let flat = node.reshaped(pairs, &[0, 0, 0, self.size])?;
            let flat = node.cast(flat, DType::F32)?;
            let offset = node.constant(Tensor::scalar(8f32));
            rows = node.binary(BinaryFunction::Sub, flat, offset)?;
        }
        node.binary(BinaryFunction::Mul, rows, self.scale)
    }
}
