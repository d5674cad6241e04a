//! A convolution whose windows lie side by side, as vision transformers begin with, is a product with a row for each window where rows
//! are what is read of it: neither windows nor results are copied but by one exchange of axes.
//!
//! ```text
//! constant @w : f32[8, 3, 2, 2] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @b : f32[8] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! constant @rows : i64[3] = i64[3]:00000000000000000800000000000000ffffffffffffffff
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 3, 4, 6]) {
//!   %c : f32[n, 8, 2, 3] = convolution strides=[2, 2] groups=1 %x, @w, @b from "patches"
//!   %f : f32[n, 8, 6] = reshape allow_zero=0 %c, @rows from "flat"
//!   %y : f32[n, 6, 8] = transpose permutation=[0, 2, 1] %f from "rows"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @3 : i64[6] = i64[6]:[0, 3, 2, 2, 3, 2]
//! constant @4 : i64[3] = i64[3]:[0, 6, 12]
//! constant @0 "w" : f32[8, 3, 2, 2] = hash 0000000000000000000000000000000000000000000000000000000000000001
//! constant @5 : i64[2] = i64[2]:[8, 12]
//! constant @6 "w" : f32[8, 12] = reshape @0, @5
//! constant @b : f32[8] = hash 0000000000000000000000000000000000000000000000000000000000000002
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 3, 4, 6]) {
//!   %4 : f32[n, 3, 2, 2, 3, 2] = reshape allow_zero=0 %x, @3 from "patches + flat + rows"
//!   %5 : f32[n, 2, 3, 3, 2, 2] = transpose permutation=[0, 2, 4, 1, 3, 5] %4 from "patches + flat + rows"
//!   %6 : f32[n, 6, 12] = reshape allow_zero=0 %5, @4 from "patches + flat + rows"
//!   %y : f32[n, 6, 8] = matmul transpose_b=1 program=["cast x : f32", "add %0 $2 : f32", "return %1"] %6, @6, @b from "patches + flat + rows"
//!   return %y
//! }
//! ```
//!
//! Results keep their bits: the terms of a sum keep their order. Leaves alone: windows of one tap, which have nothing to copy, windows
//! that overlap, leave out or are padded, extents that are not known, other types than f32, and filters that are codes or computed.

use super::matching::joined_name;
use super::readers::Steps;
use super::scaled_filters::{constant_filters, is_plain};
use crate::ir::{Constant, ConstantData, ConstantId, ExtentConstants, Graph, Operand, Step, ValueId, reshape_extents};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{Arithmetic, Binary, BinaryFunction, Convolution, Matmul, Op, Reshape, Transpose};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Make products of convolutions of a block; gives how many steps are replaced or gone.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = Steps::take(graph.block_mut(index));
    let mut shapes = ExtentConstants::default();
    let mut changed = 0;
    for at in 0..steps.len() {
        let Some(patches) = patches(graph, &steps, at) else { continue };
        changed += rewrite(graph, &mut steps, (at, patches), &mut shapes).unwrap_or(0);
    }
    steps.give_back(graph.block_mut(index));
    changed
}

/// A convolution of `[n, c, d..]` that windows of `[k..]` cover, without overlap.
struct Patches {
    input: Operand,
    weight: ConstantId,
    bias: Option<ConstantId>,
    /// Extents of the input.
    dims: Vec<Dim>,
    /// Windows along each spatial axis, and taps of a window along it.
    windows: Vec<[i64; 2]>,
    filters: i64,
    /// The convolution, and the view of its result that makes one axis of the spatial ones.
    before: BTreeSet<usize>,
}

/// The convolution whose result the exchange of axes at `at` makes rows of, where nothing else reads it.
fn patches(graph: &Graph, steps: &Steps, at: usize) -> Option<Patches> {
    let step = steps.get(at)?;
    let (Op::Transpose(Transpose { permutation }), &[Operand::Value(moved)]) = (&step.op, step.operands.as_slice())
    else {
        return None;
    };
    let mut before = BTreeSet::new();
    let mut producer = steps.only_for(at, moved)?;
    let view = steps.get(producer)?;
    let is_view = view.op.view_of().is_some();
    if is_view {
        let Operand::Value(viewed) = *view.operands.get(view.op.view_of()?)? else { return None };
        before.insert(producer);
        producer = steps.only_for(producer, viewed)?;
    }
    let convolution = steps.get(producer)?;
    before.insert(producer);
    let Op::Convolution(op) = &convolution.op else { return None };
    let (input, weight, bias) = constant_filters(convolution)?;
    let dims = graph.fact(input)?.dims()?.to_vec();
    let windows = windows(graph, op, weight, &dims)?;
    let filters = i64::try_from(*graph.constant(weight).shape.first()?).ok()?;
    // Filters come last, behind one axis of all windows or behind those that they lie along.
    let mut rows = vec![dims[0].clone()];
    match is_view {
        true => rows.push(Dim::known(windows.iter().try_fold(1i64, |all, [count, _]| all.checked_mul(*count))?)),
        false => rows.extend(windows.iter().map(|[count, _]| Dim::known(*count))),
    }
    let last = rows.len() as i64;
    let channels_last: Vec<i64> = [0].into_iter().chain(2..=last).chain([1]).collect();
    rows.push(Dim::known(filters));
    let is_rows = *permutation == channels_last && graph.value(*step.results.first()?).fact.dims()? == rows;
    is_rows.then_some(Patches { input, weight, bias, dims, windows, filters, before })
}

/// Windows along each spatial axis of `dims`, and taps, where they cover it side by side.
fn windows(graph: &Graph, op: &Convolution, weight: ConstantId, dims: &[Dim]) -> Option<Vec<[i64; 2]>> {
    let Convolution { auto_pad: None, strides, dilations, pads, groups: 1, arithmetic, program } = op else {
        return None;
    };
    // Behind a view codes would not be found to be codes.
    let is_stored = is_plain(graph, weight) && graph.constant(weight).encoding.is_none();
    let weight = graph.constant(weight);
    let (&[_, channels, ref taps @ ..], &[_, ref own_channels, ref extents @ ..]) = (weight.shape.as_slice(), dims)
    else {
        return None;
    };
    let is_usual = *arithmetic == Arithmetic::default() && program.is_empty();
    let is_dense = dilations.iter().all(|&dilation| dilation == 1) && pads.iter().all(|&pad| pad == 0);
    let has_channels = own_channels.as_known() == i64::try_from(channels).ok();
    (is_usual && is_stored && is_dense && has_channels && extents.len() == taps.len()).then_some(())?;
    let along = |((&taps, extent), &stride): ((&usize, &Dim), &i64)| {
        let (taps, extent) = (i64::try_from(taps).ok()?, extent.as_known()?);
        (stride == taps && extent > 0 && extent.checked_rem(taps)? == 0).then(|| [extent / taps, taps])
    };
    let windows: Vec<[i64; 2]> = taps.iter().zip(extents).zip(strides).map(along).collect::<Option<_>>()?;
    let is_copied = windows.len() == taps.len() && taps.iter().any(|&taps| taps > 1);
    is_copied.then_some(windows)
}

/// Puts a product of rows in the place of the exchange; gives how many steps are replaced or gone.
fn rewrite(
    graph: &mut Graph,
    steps: &mut Steps,
    (at, patches): (usize, Patches),
    shapes: &mut ExtentConstants,
) -> Option<usize> {
    let Patches { input, weight, bias, dims, windows, filters, before } = patches;
    let exchange = steps.get(at)?.clone();
    let result = graph.value(*exchange.results.first()?).fact.clone();
    let name = joined_name(before.iter().filter_map(|&before| steps.get(before)).chain([&exchange]));
    let apart: Vec<Dim> =
        dims[..2].iter().cloned().chain(windows.iter().flatten().map(|&extent| Dim::known(extent))).collect();
    // Windows come first, then what is in one: channels, and taps within.
    let windows_first = (0..windows.len()).map(|axis| 2 * axis + 2);
    let permutation: Vec<usize> =
        [0].into_iter().chain(windows_first).chain([1]).chain((0..windows.len()).map(|axis| 2 * axis + 3)).collect();
    let gathered: Vec<Dim> = permutation.iter().map(|&axis| apart[axis].clone()).collect();
    let depth = windows.iter().try_fold(dims[1].as_known()?, |depth, [_, taps]| depth.checked_mul(*taps))?;
    let mut rows = result.dims()?.to_vec();
    *rows.last_mut()? = Dim::known(depth);
    let to_apart = reshape_extents(&dims, &apart, &graph.ranges)?;
    let to_rows = reshape_extents(&gathered, &rows, &graph.ranges)?;
    let mut add = |graph: &mut Graph, op: Op, operands: Vec<Operand>, dims: &[Dim]| {
        let value: ValueId = graph.add_value(Fact::tensor(DType::F32, dims.to_vec()), None);
        steps.insert_before(at, Step { op, operands, results: vec![value], name: Arc::clone(&name) });
        Operand::Value(value)
    };
    let view: Op = Reshape { allow_zero: false }.into();
    let to_apart = shapes.constant(graph, to_apart);
    let viewed = add(graph, view.clone(), vec![input, to_apart], &apart);
    let permutation = permutation.into_iter().map(|axis| axis as i64).collect();
    let moved = add(graph, Transpose { permutation }.into(), vec![viewed], &gathered);
    let to_rows = shapes.constant(graph, to_rows);
    let rows = add(graph, view.clone(), vec![moved, to_rows], &rows);
    let shape = shapes.constant(graph, vec![filters, depth]);
    let matrix = matrix(graph, weight, shape, [filters, depth])?;
    let product = (Matmul::new(false, true).into(), vec![rows, matrix]);
    let (op, operands) = match bias {
        Some(bias) => {
            let sums = add(graph, product.0, product.1, result.dims()?);
            (Binary { function: BinaryFunction::Add }.into(), vec![sums, Operand::Constant(bias)])
        }
        None => product,
    };
    let step = Step { op, operands, results: exchange.results, name: Arc::clone(&name) };
    Some(1 + steps.replace_several(at, step, &before))
}

/// Filters as the rows of a matrix.
fn matrix(graph: &mut Graph, weight: ConstantId, shape: Operand, extents: [i64; 2]) -> Option<Operand> {
    let Operand::Constant(shape) = shape else { return None };
    let name = graph.constant(weight).name.clone();
    let [rows, columns] = extents.map(|extent| usize::try_from(extent).ok());
    let data =
        ConstantData::Recipe { op: Reshape { allow_zero: false }.into(), operands: vec![Some(weight), Some(shape)] };
    let constant = Constant {
        name,
        dtype: DType::F32,
        shape: vec![rows?, columns?],
        data,
        origin: None,
        encoding: None,
        zeros: None,
    };
    Some(Operand::Constant(graph.add_constant(constant)))
}
