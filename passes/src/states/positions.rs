//! Caches that exporters write at positions: turned so that the positions come first, written by `ScatterND`, and turned back.
//!
//! torch's exporter makes `cache[:, :, positions] = new` of it. Where the positions are one, or follow one another by what the
//! graph says (a `range` in steps of 1), it is a `tensor_scatter` along the axis of the positions: a state of a capacity.
//! Positions from the back (negative ones) are refused by that operator when it runs.

use crate::error::PassError;
use crate::ir::{Block, Constant, Graph, Operand, Step, ValueId};
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{
    CacheMode, Cast, Expand, Gather, Op, Reshape, ScatterNd, ScatterReduction, ShapeOf, TensorScatter, Transpose,
};
use ipuc_formats::tensor::Tensor;

/// Write the caches of an entry along their own axis.
///
/// # Errors
/// [`PassError::Constant`] where the step of a range cannot be read.
pub(super) fn write_along_axes(graph: &mut Graph, entry: usize) -> Result<(), PassError> {
    let index = graph.entries[entry].block;
    let ports: Vec<(usize, usize)> =
        graph.entries[entry].states.iter().filter_map(|used| used.input.zip(used.output)).collect();
    for (input, output) in ports {
        let block = graph.block(index);
        let found = written(graph, block, Operand::Value(block.parameters[input]), block.results[output])?;
        if let Some(write) = found {
            let steps = write.steps(graph);
            graph.block_mut(index).steps.splice(write.place..=write.place, steps);
        }
    }
    Ok(())
}

/// A cache that is written at positions.
struct Write {
    /// The step that gives the cache as it is now.
    place: usize,
    result: Step,
    past: Operand,
    /// `[positions, 1]`.
    indices: Operand,
    /// With the axis of the positions first.
    update: Operand,
    axis: usize,
    /// What turns the update back.
    permutation: Vec<i64>,
}

fn maker(block: &Block, operand: Operand) -> Option<(usize, &Step)> {
    let Operand::Value(value) = operand else { return None };
    block.steps.iter().enumerate().find(|(_, step)| step.results == [value])
}

fn written(graph: &Graph, block: &Block, past: Operand, next: Operand) -> Result<Option<Write>, PassError> {
    let Some((place, back)) = maker(block, next) else { return Ok(None) };
    let Op::Transpose(Transpose { permutation }) = &back.op else { return Ok(None) };
    let Some((_, scatter)) = back.operands.first().and_then(|&operand| maker(block, operand)) else { return Ok(None) };
    let is_write = matches!(&scatter.op, Op::ScatterNd(ScatterNd { reduction: ScatterReduction::None }));
    let (true, &[turned, indices, update]) = (is_write, scatter.operands.as_slice()) else { return Ok(None) };
    let Some((_, turning)) = maker(block, turned) else { return Ok(None) };
    let Op::Transpose(Transpose { permutation: first }) = &turning.op else { return Ok(None) };
    let axis = first.first().and_then(|&axis| usize::try_from(axis).ok()).filter(|&axis| axis > 0);
    let is_inverse = permutation.len() == first.len()
        && permutation.iter().enumerate().all(|(axis, &from)| {
            usize::try_from(from).ok().and_then(|from| first.get(from)).is_some_and(|&own| own == axis as i64)
        });
    let (Some(axis), true, true) = (axis, is_inverse, turning.operands == [past]) else { return Ok(None) };
    if !are_consecutive(graph, block, indices)? {
        return Ok(None);
    }
    let (result, permutation) = (back.clone(), permutation.clone());
    Ok(Some(Write { place, result, past, indices, update, axis, permutation }))
}

/// Whether indices `[positions, 1]` are a single one, or follow one another.
fn are_consecutive(graph: &Graph, block: &Block, indices: Operand) -> Result<bool, PassError> {
    let Some(fact) = graph.fact(indices) else { return Ok(false) };
    let Some([count, width]) = fact.dims() else { return Ok(false) };
    if *width != Dim::ONE || *count == Dim::ONE {
        return Ok(*width == Dim::ONE);
    }
    let mut of = indices;
    while let Some((_, step)) = maker(block, of) {
        let reshapes = matches!(step.op, Op::Reshape(_) | Op::Unsqueeze(_) | Op::Squeeze(_) | Op::Cast(_));
        match (&step.op, step.operands.as_slice()) {
            (Op::Range(_), &[_, _, Operand::Constant(delta)]) => {
                let delta = graph.load_constant(delta)?;
                return Ok(delta.elements::<i64>().is_ok_and(|delta| delta == [1]));
            }
            (_, &[operand, ..]) if reshapes => of = operand,
            _ => return Ok(false),
        }
    }
    Ok(false)
}

impl Write {
    /// The write along the axis of the positions, in place of the step that turns the cache back.
    fn steps(&self, graph: &mut Graph) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut add = |graph: &mut Graph, op: Op, operands: Vec<Operand>, fact: Fact| {
            let value: ValueId = graph.add_value(fact, None);
            steps.push(Step { op, operands, results: vec![value], name: self.result.name.clone() });
            Operand::Value(value)
        };
        let integers =
            |graph: &mut Graph, values: &[i64]| graph.add_constant(Constant::of(Tensor::vector_i64(values), None));
        let (zero, one) = (integers(graph, &[0]), integers(graph, &[1]));
        let facts = [self.indices, self.update, self.past].map(|operand| graph.fact(operand));
        let dims = |fact: &Option<Fact>| fact.as_ref().and_then(Fact::dims).map(<[Dim]>::to_vec).unwrap_or_default();
        let dtype = |fact: &Option<Fact>| Some(fact.as_ref()?.kind.as_tensor()?.0);
        let own = dtype(&facts[0]).unwrap_or(DType::I64);
        let first = vec![Dim::ONE, Dim::ONE];
        let gather = Gather { axis: 0 }.into();
        let start = add(graph, gather, vec![self.indices, Operand::Constant(zero)], Fact::tensor(own, first));
        let reshape = Reshape { allow_zero: false }.into();
        let start = add(graph, reshape, vec![start, Operand::Constant(one)], Fact::tensor(own, vec![Dim::ONE]));
        let cast = Cast { to: DType::I64, overflow: false, round: None }.into();
        let start = add(graph, cast, vec![start], Fact::tensor(DType::I64, vec![Dim::ONE]));
        let batch = dims(&facts[2]).first().cloned().unwrap_or(Dim::ONE);
        let shape = ShapeOf { start: 0, end: Some(1) }.into();
        let shape = add(graph, shape, vec![self.past], Fact::tensor(DType::I64, vec![Dim::ONE]));
        let starts = add(graph, Expand {}.into(), vec![start, shape], Fact::tensor(DType::I64, vec![batch]));
        let turned = dims(&facts[1]);
        let extents = self.permutation.iter().filter_map(|&axis| turned.get(usize::try_from(axis).ok()?).cloned());
        let fact = Fact::tensor(dtype(&facts[1]).unwrap_or(own), extents.collect::<Vec<_>>());
        let turn = Transpose { permutation: self.permutation.clone() }.into();
        let update = add(graph, turn, vec![self.update], fact);
        let op = TensorScatter { axis: self.axis as i64, mode: CacheMode::Linear }.into();
        steps.push(Step { op, operands: vec![self.past, update, starts], ..self.result.clone() });
        steps
    }
}
