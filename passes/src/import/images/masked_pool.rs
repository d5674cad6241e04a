//! `MaxpoolWithMask` of `com.microsoft`, as ONNX Runtime 1.31 computes it on a processor.
//!
//! Along the last axis a window ends before the first masked element; the very first element of a plane of several axes is never
//! masked. NaN is no maximum, and a window without elements gives the lowest f32. All planes share one mask: where a mask has several, ONNX Runtime
//! takes its elements from wrong places, and that is refused.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::products::pool;
use crate::ir::Operand;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    AutoPad, BinaryFunction, Compare, CompareRelation, Pad, PadMode, Pool, PoolFunction, Select, ShapeOf, TypeError,
};
use ipuc_formats::tensor::Tensor;

/// Pools of ONNX Runtime.
pub const ROWS: &[Row] = &[Row { domain: "com.microsoft", name: "MaxpoolWithMask", since: 1, lower: masked_max_pool }];

/// As many steps as the last extent of a window has, a handful each.
const WIDEST: i64 = 256;

fn masked_max_pool(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    node.at_most_inputs(2)?;
    let pool = pool(node, PoolFunction::Max)?;
    // Of the indices of maxima, which it does not give.
    node.flag("storage_order", false)?;
    let (x, mask) = (node.required(0)?, node.required(1)?);
    if node.dtype(&x)? != DType::F32 {
        let found = node.dtype(&x)?;
        return Err(TypeError::ElementType { operand: 0, expected: "f32".to_string(), found }.into());
    }
    let windows = Windows::of(node, &pool, x)?;
    let planes = node.dims(&mask).and_then(|dims| Some([dims.first()?.as_known()?, dims.get(1)?.as_known()?]));
    if planes != Some([1, 1]) {
        return Err(node.refuse("a mask of several planes, or of unknown shape"));
    }
    let seen = unmasked(node, mask, !windows.outer.is_empty())?;
    let [lowest, one] = [f32::MIN, 1.0].map(|value| node.constant(Tensor::scalar(value)));
    let pads = node.integers(&windows.pads);
    let x = node.emit_one(Pad { mode: PadMode::Constant }, vec![x, pads, lowest])?;
    let seen = node.emit_one(Pad { mode: PadMode::Constant }, vec![seen, pads, one])?;
    let best = along_last_axis(node, [x, seen], [windows.width, windows.stride])?;
    if windows.outer.is_empty() {
        return Ok(vec![best]);
    }
    let [kernel, strides] = [0, 1].map(|place| windows.outer.iter().map(|axis| axis[place]).chain([1]).collect());
    node.emit(Pool { kernel, strides, ..Pool::global(PoolFunction::Max) }, vec![best])
}

/// The maxima of windows along the last axis, until the first element of each that is not seen.
fn along_last_axis(
    node: &mut Lowering<'_, '_>,
    [x, seen]: [Operand; 2],
    [width, stride]: [i64; 2],
) -> Result<Operand, LowerError> {
    let [lowest, zero] = [f32::MIN, 0.0].map(|value| node.constant(Tensor::scalar(value)));
    let greater = Compare { relation: CompareRelation::Greater };
    let (mut best, mut open) = (lowest, None);
    for tap in 0..width {
        let behind = width - 1 - tap;
        let place = [tap, if behind == 0 { i64::MAX } else { -behind }, stride];
        let (element, seen) = (node.sliced(x, -1, place)?, node.sliced(seen, -1, place)?);
        let seen = node.emit_one(greater.clone(), vec![seen, zero])?;
        let still = match open {
            None => seen,
            Some(open) => node.binary(BinaryFunction::And, open, seen)?,
        };
        let better = node.emit_one(greater.clone(), vec![element, best])?;
        let better = node.binary(BinaryFunction::And, better, still)?;
        best = node.emit_one(Select {}, vec![better, element, best])?;
        open = Some(still);
    }
    Ok(best)
}

/// 1 where the mask is not 0, and where asked for at the first element: f32.
fn unmasked(node: &mut Lowering<'_, '_>, mask: Operand, first_too: bool) -> Result<Operand, LowerError> {
    let seen = node.cast(mask, DType::Bool)?;
    if !first_too {
        return node.cast(seen, DType::F32);
    }
    let flat = node.reshaped(seen, &[-1])?;
    let count = node.emit_one(ShapeOf { start: 0, end: None }, vec![flat])?;
    let places = node.counted(count)?;
    let zero = node.constant(Tensor::scalar(0i64));
    let first = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![places, zero])?;
    let seen = node.binary(BinaryFunction::Or, flat, first)?;
    let seen = node.cast(seen, DType::F32)?;
    node.reshaped_like(seen, mask)
}

/// Where windows are.
struct Windows {
    /// Kernel and stride along the spatial axes but the last.
    outer: Vec<[i64; 2]>,
    /// Kernel and stride along the last axis.
    width: i64,
    stride: i64,
    /// Padding before all axes, then behind them.
    pads: Vec<i64>,
}

impl Windows {
    fn of(node: &Lowering<'_, '_>, pool: &Pool, x: Operand) -> Result<Windows, LowerError> {
        if pool.ceil_mode || !pool.dilations.is_empty() {
            return Err(node.refuse("attribute `ceil_mode` or `dilations` of a pool with a mask"));
        }
        let axes = node.rank(&x)?.saturating_sub(2);
        let ones = vec![1; axes];
        let strides = if pool.strides.is_empty() { &ones } else { &pool.strides };
        let fits = |list: &[i64]| list.len() == axes && list.iter().all(|&extent| (1..=1 << 30).contains(&extent));
        if axes == 0 || !fits(&pool.kernel) || !fits(strides) {
            let found = format!("attribute `kernel_shape` = {:?} with strides {strides:?}", pool.kernel);
            return Err(node.refuse(found));
        }
        let mut pads = vec![0; 2 * (axes + 2)];
        for axis in 0..axes {
            let [begin, end] = match pool.auto_pad {
                None => [axis, axes + axis].map(|place| pool.pads.get(place).copied().unwrap_or(0)),
                Some(AutoPad::Valid) => [0, 0],
                Some(mode) => {
                    let input = node.extent(&x, axis as i64 + 2, "a padded axis")?;
                    same_pads(input, [pool.kernel[axis], strides[axis]], mode)
                }
            };
            if begin < 0 || end < 0 {
                return Err(node.refuse(format!("attribute `pads` = {:?}", pool.pads)));
            }
            (pads[axis + 2], pads[axes + axis + 4]) = (begin, end);
        }
        let mut outer: Vec<[i64; 2]> =
            pool.kernel.iter().zip(strides).map(|(&kernel, &stride)| [kernel, stride]).collect();
        match outer.pop() {
            Some([width, stride]) if width <= WIDEST => Ok(Windows { outer, width, stride, pads }),
            _ => Err(node.refuse(format!("attribute `kernel_shape` = {:?}", pool.kernel))),
        }
    }
}

/// As much as gives `ceil(input / stride)` windows.
fn same_pads(input: i64, [kernel, stride]: [i64; 2], mode: AutoPad) -> [i64; 2] {
    let windows = Dim::known(input).ceil_div(&Dim::known(stride)).as_known().unwrap_or(0);
    let covered = (windows - 1).saturating_mul(stride).saturating_add(kernel);
    let total = covered.saturating_sub(input).max(0);
    let half = total / 2;
    if mode == AutoPad::SameUpper { [half, total - half] } else { [total - half, half] }
}
