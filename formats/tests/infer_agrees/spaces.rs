//! The laws of spaces, for the random cases of every family.
//!
//! - The multiply-accumulates of all spaces are those that the reference counts.
//! - A part of the parallel axes needs only what its footprint says, and that of the spaces before it that write no result,
//!   split along linked axes: whatever lies outside of them, the elements of the results within the footprint stay as they
//!   are. Parts of a split have results of their own, and together all.
//! - Parts of a reduced axis of a sum add up to the whole, exactly.

use super::Case;
use super::random::Random;
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::{Fact, Shape};
use ipuc_formats::ops::{AxisKind, NoBlocks, Op, ReduceFunction, ReferenceContext, Space, StepFacts};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use std::collections::BTreeSet;
use std::ops::Range;

/// A case with its results and what is known of them.
struct Known<'a> {
    case: &'a Case,
    inputs: Vec<Option<Fact>>,
    outputs: Vec<Fact>,
    results: Vec<Tensor>,
}

/// A range of points on each axis.
type Tile = Vec<Range<i64>>;

/// The positions that are touched on each axis of a tensor.
type Touched = Vec<BTreeSet<i64>>;

/// Check all laws; false for operands that the reference refuses.
pub fn hold(case: &Case, random: &mut Random) -> bool {
    let Some((results, macs)) = reference(case, &case.operands) else { return false };
    let inputs: Vec<Option<Fact>> = case.operands.iter().map(|operand| operand.clone().map(Fact::constant)).collect();
    let outputs = results.iter().map(|result| Fact::tensor(result.dtype(), Shape::known(result.shape()))).collect();
    let known = Known { case, inputs, outputs, results };
    let facts = StepFacts::new("step", &known.inputs, &known.outputs);
    let work = case.op.work(&facts);
    assert_eq!(work.total_macs(), Dim::known(macs as i64), "{}", known.about());
    let spaces = case.op.spaces(&facts);
    assert!(!spaces.is_empty(), "{}", known.about());
    known.covered(&spaces);
    for (index, space) in spaces.iter().enumerate() {
        known.check_parallel(&spaces[..=index], random);
        if adds_up(case) {
            known.check_reduced(space, random);
        }
    }
    true
}

/// A sum over products or elements, of operands that are all factors: an empty part is 0.
fn adds_up(case: &Case) -> bool {
    let sums = match &case.op {
        Op::Reduce(reduce) => reduce.function == ReduceFunction::Sum,
        Op::Matmul(_)
        | Op::Convolution(_)
        | Op::BlockedConvolution(_)
        | Op::ConvolutionTranspose(_)
        | Op::Einsum(_) => true,
        _ => false,
    };
    sums && (matches!(case.op, Op::Reduce(_) | Op::Einsum(_)) || case.operands.iter().skip(2).all(Option::is_none))
}

fn reference(case: &Case, operands: &[Option<Tensor>]) -> Option<(Vec<Tensor>, u64)> {
    let values: Vec<Option<Value>> = operands.iter().map(|operand| operand.clone().map(Value::from)).collect();
    let mut blocks = NoBlocks;
    let mut context = ReferenceContext::new(&mut blocks);
    let results = case.op.operator().reference(&values, &mut context).ok()?;
    Some((results.iter().map(|result| result.as_tensor().unwrap().clone()).collect(), context.macs))
}

fn extents(tensor: &Tensor) -> Vec<i64> {
    tensor.shape().iter().map(|&extent| extent as i64).collect()
}

/// All points of a space.
fn whole(space: &Space) -> Tile {
    space.axes.iter().map(|axis| 0..axis.extent.as_known().unwrap()).collect()
}

fn inside(at: &[usize], touched: &[BTreeSet<i64>]) -> bool {
    at.iter().zip(touched).all(|(&at, positions)| positions.contains(&(at as i64)))
}

/// Every index of a shape in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let count: usize = shape.iter().product();
    let mut index = vec![0; shape.len()];
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(index.clone());
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    all
}

impl Known<'_> {
    fn about(&self) -> String {
        let facts = StepFacts::new("step", &self.inputs, &self.outputs);
        format!("`{}` of {:?}\nspaces: {:?}", self.case.op, self.case.operands, self.case.op.spaces(&facts))
    }

    /// Whether any axis of the space is at this tensor.
    fn touches(&self, space: &Space, tensor: usize) -> bool {
        space.axes.iter().any(|axis| axis.at[tensor].is_some())
    }

    /// What a tile touches: the footprint, without what steps of several elements leave out between.
    fn touched(&self, space: &Space, tile: &[Range<i64>], tensor: usize, of: &Tensor) -> Touched {
        let extents = extents(of);
        let footprint = space.footprint(tile, tensor, &extents).unwrap_or_else(|| panic!("{}", self.about()));
        let mut touched: Vec<Option<BTreeSet<i64>>> = vec![None; extents.len()];
        for (axis, points) in space.axes.iter().zip(tile) {
            let Some(index) = axis.at[tensor] else { continue };
            let before = touched[index.axis as usize].take().unwrap_or_else(|| BTreeSet::from([0]));
            let steps = points.clone().map(|point| point * index.stride + index.offset);
            let all = steps.flat_map(|step| before.iter().map(move |at| at + step));
            touched[index.axis as usize] = Some(all.collect());
        }
        let touched: Touched = touched
            .into_iter()
            .zip(extents)
            .map(|(positions, extent)| positions.unwrap_or_else(|| (0..extent).collect()))
            .collect();
        for (positions, range) in touched.iter().zip(footprint) {
            let ends = positions.first().zip(positions.last()).map(|(&first, &last)| first..last + 1);
            assert_eq!(ends.unwrap_or(range.clone()), range, "{}", self.about());
        }
        touched
    }

    /// What a whole space touches of a result; where sums are scattered, what no term reaches is 0.
    fn reached(&self, space: &Space, tensor: usize, result: &Tensor) -> Touched {
        let mut touched = self.touched(space, &whole(space), tensor, result);
        let scattered = space.axes.iter().filter(|axis| axis.kind == AxisKind::Reduced);
        for index in scattered.filter_map(|axis| axis.at[tensor]) {
            touched[index.axis as usize] = (0..result.shape()[index.axis as usize] as i64).collect();
        }
        touched
    }

    /// All spaces together reach every element of every result.
    fn covered(&self, spaces: &[Space]) {
        for (position, result) in self.results.iter().enumerate() {
            let tensor = self.inputs.len() + position;
            let any = spaces.iter().any(|space| self.touches(space, tensor));
            let boxes: Vec<Touched> = spaces
                .iter()
                .filter(|space| (self.touches(space, tensor) || !any) && space.points() != Dim::ZERO)
                .map(|space| self.reached(space, tensor, result))
                .collect();
            for at in indices(result.shape()) {
                // A sum of nothing has no points and gives zeros.
                let empty = boxes.is_empty() && spaces.iter().any(|space| space.points() == Dim::ZERO);
                assert!(
                    empty || boxes.iter().any(|own| inside(&at, own)),
                    "{at:?} of result {position}\n{}",
                    self.about()
                );
            }
        }
    }

    /// Cut one parallel axis in two; each part must depend on its footprint only, and write results of its own.
    fn check_parallel(&self, spaces: &[Space], random: &mut Random) {
        let Some(space) = spaces.last() else { return };
        let whole = whole(space);
        if whole.iter().any(Range::is_empty) {
            return;
        }
        for (axis, points) in whole.iter().enumerate() {
            if space.axes[axis].kind != AxisKind::Parallel || points.end < 2 {
                continue;
            }
            let cut = random.between(1, points.end - 1);
            let mut parts = [whole.clone(), whole.clone()];
            (parts[0][axis], parts[1][axis]) = (0..cut, cut..points.end);
            for (position, result) in self.results.iter().enumerate() {
                let tensor = self.inputs.len() + position;
                if !self.touches(space, tensor) {
                    continue;
                }
                let boxes = parts.clone().map(|part| self.touched(space, &part, tensor, result));
                if space.axes[axis].at[tensor].is_some() {
                    let apart = boxes[0].iter().zip(&boxes[1]).any(|(a, b)| a.is_disjoint(b));
                    assert!(apart, "axis {axis} cut at {cut}: results {boxes:?}\n{}", self.about());
                }
            }
            let written =
                (0..self.results.len()).any(|result| space.axes[axis].at[self.inputs.len() + result].is_some());
            let any = (0..self.results.len()).any(|result| self.touches(space, self.inputs.len() + result));
            assert!(written || !any, "axis {axis} is parallel and in no result\n{}", self.about());
            for part in &parts {
                self.check_part(spaces, part, random);
            }
        }
    }

    /// Spaces that the last one of these needs, with the points of each that belong to a part of the last one.
    fn needed<'b>(&self, spaces: &'b [Space], part: &[Range<i64>]) -> Vec<(&'b Space, Tile)> {
        let Some((last, before)) = spaces.split_last() else { return Vec::new() };
        let before = before.iter().filter(|space| !space.writes(self.inputs.len()));
        let mut needed: Vec<(&Space, Tile)> = before
            .map(|space| {
                let mut own = whole(space);
                for (axis, points) in own.iter_mut().enumerate() {
                    let linked = space.linked(axis, last).filter(|_| space.axes[axis].kind == AxisKind::Parallel);
                    *points = linked.map_or(points.clone(), |linked| part[linked].clone());
                }
                (space, own)
            })
            .collect();
        needed.push((last, part.to_vec()));
        needed
    }

    /// Elements outside of the footprint of a part are others; what the part computes is the same.
    fn check_part(&self, spaces: &[Space], part: &[Range<i64>], random: &mut Random) {
        let Some(space) = spaces.last() else { return };
        let needed = self.needed(spaces, part);
        let operands: Vec<Option<Tensor>> = (self.case.operands.iter().enumerate())
            .map(|(tensor, operand)| {
                let operand = operand.as_ref()?;
                let reading = needed.iter().filter(|(space, _)| self.touches(space, tensor));
                let kept: Vec<Touched> =
                    reading.map(|(space, part)| self.touched(space, part, tensor, operand)).collect();
                let at = indices(operand.shape());
                let source = |(flat, at): (usize, &Vec<usize>)| {
                    let read = kept.is_empty() || kept.iter().any(|kept| inside(at, kept));
                    Some(if read { flat } else { random.below(operand.count()) })
                };
                let sources: Vec<Option<usize>> = at.iter().enumerate().map(source).collect();
                Some(operand.select(operand.shape(), sources.into_iter()).unwrap())
            })
            .collect();
        // Indices that stand in other places may be out of range there.
        let Some((results, _)) = reference(self.case, &operands) else { return };
        for (position, (result, changed)) in self.results.iter().zip(&results).enumerate() {
            let tensor = self.inputs.len() + position;
            if !self.touches(space, tensor) {
                continue;
            }
            let own = self.touched(space, part, tensor, result);
            let at = indices(result.shape());
            let kept: Vec<Option<usize>> =
                at.iter().enumerate().filter(|(_, at)| inside(at, &own)).map(|(flat, _)| Some(flat)).collect();
            let [before, after] =
                [result, changed].map(|tensor| tensor.select(&[kept.len()], kept.iter().copied()).unwrap());
            assert_eq!(before, after, "part {part:?} of result {position}, operands {operands:?}\n{}", self.about());
        }
    }

    /// Cut one reduced axis in two: results of the parts, of which the rest is 0, add up.
    fn check_reduced(&self, space: &Space, random: &mut Random) {
        let whole = whole(space);
        for (axis, points) in whole.iter().enumerate() {
            if space.axes[axis].kind != AxisKind::Reduced || points.end < 2 || whole.iter().any(Range::is_empty) {
                continue;
            }
            let cut = random.between(1, points.end - 1);
            let mut sum: Option<Vec<f64>> = None;
            for own in [0..cut, cut..points.end] {
                let mut part = whole.clone();
                part[axis] = own;
                let operands: Vec<Option<Tensor>> = (self.case.operands.iter().enumerate())
                    .map(|(tensor, operand)| {
                        let operand = operand.as_ref()?;
                        if space.axes[axis].at[tensor].is_none() {
                            return Some(operand.clone());
                        }
                        let kept = self.touched(space, &part, tensor, operand);
                        let at = indices(operand.shape());
                        let sources = at.iter().enumerate().map(|(flat, at)| inside(at, &kept).then_some(flat));
                        Some(operand.select(operand.shape(), sources).unwrap())
                    })
                    .collect();
                let (results, _) = reference(self.case, &operands).unwrap_or_else(|| panic!("{}", self.about()));
                let elements = numbers(&results[0]);
                sum = Some(match sum {
                    None => elements,
                    Some(sum) => sum.iter().zip(&elements).map(|(a, b)| a + b).collect(),
                });
            }
            assert_eq!(sum.unwrap(), numbers(&self.results[0]), "axis {axis} cut at {cut}\n{}", self.about());
        }
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let scalars = ipuc_formats::ops::scalar::scalars(tensor).unwrap();
    scalars.into_iter().map(|scalar| scalar.to_f64()).collect()
}
