//! More or fewer positions at the ends of axes, row by row: the middle of a row is one copy.

use super::{count, load, refer, tensor, with_words, words, words_mut};
use crate::steps::{Context, Kernel, KernelError, Operand};
use bytemuck::Pod;
use ipuc_formats::ops::{AxisPads, Pad, PadMode};
use ipuc_formats::value::Value;
use ipuc_kernels::threads::{chunks, parts};
use std::ops::Range;

impl Kernel for Pad {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        if let (Some(data), Some(padding)) = (tensor(&inputs, 0), Padding::of(self.mode, &inputs)) {
            let value = tensor(&inputs, 2);
            with_words!(
                data.dtype(),
                T => {
                    let value = value.map_or(T::default(), |value| words::<T>(value)[0]);
                    let mut target = context.allocate(0, data.dtype(), &padding.shape)?;
                    if target.count() > 0 {
                        padding.fill(words::<T>(data), value, words_mut::<T>(&mut target));
                    }
                    return Ok(vec![target.into()]);
                },
                otherwise {}
            );
        }
        refer(self, inputs, context)
    }
}

/// Where the positions of a result come from.
struct Padding {
    shape: Vec<usize>,
    /// For each axis before the rows: its extent in the operand, and the operand's position behind each one.
    outer: Vec<(usize, Vec<Option<usize>>)>,
    /// The innermost padded axis: positions behind those of a row, which part of it is one copy, and its extent in the
    /// operand.
    row: Vec<Option<usize>>,
    middle: Range<usize>,
    row_total: usize,
    /// Elements of a position of the row.
    block: usize,
}

impl Padding {
    /// `None` where the operands do not fit.
    fn of(mode: PadMode, inputs: &[Option<Value>]) -> Option<Padding> {
        let data = tensor(inputs, 0)?;
        if let Some(Some(value)) = inputs.get(2) {
            value.as_tensor().filter(|value| value.dtype() == data.dtype() && value.count() == 1)?;
        }
        let pads = Pad::operand_pads(inputs).ok()?;
        let extents = pads.iter().zip(data.shape()).map(|(pads, &total)| pads.extent(total).ok());
        let shape: Vec<usize> = extents.collect::<Option<_>>()?;
        // A scalar, or nothing padded, is a row of one position.
        let innermost = pads.iter().rposition(|pads| *pads != AxisPads::default()).unwrap_or(0);
        if data.rank() == 0 || count(&shape) == 0 {
            return None;
        }
        // The reference says that a result is too large.
        let positions = |axis: usize| -> Option<Vec<Option<usize>>> {
            let mut positions = Vec::new();
            positions.try_reserve_exact(shape[axis]).ok()?;
            positions.extend((0..shape[axis]).map(|at| pads[axis].position(mode, data.shape()[axis], at)));
            Some(positions)
        };
        let outer = (0..innermost).map(|axis| Some((data.shape()[axis], positions(axis)?)));
        let outer: Vec<_> = outer.collect::<Option<_>>()?;
        let row = positions(innermost)?;
        let lost = |positions: &[Option<usize>]| positions.contains(&None);
        if mode != PadMode::Constant && (lost(&row) || outer.iter().any(|(_, positions)| lost(positions))) {
            return None;
        }
        let begin = usize::try_from(pads[innermost].begin).unwrap_or(0).min(row.len());
        let total = data.shape()[innermost] as i128 + i128::from(pads[innermost].begin);
        let end = usize::try_from(total).unwrap_or(0).clamp(begin, row.len());
        let block = count(&shape[innermost + 1..]);
        Some(Padding { outer, row, middle: begin..end, row_total: data.shape()[innermost], block, shape })
    }

    fn fill<T: Pod + Send + Sync>(&self, source: &[T], value: T, target: &mut [T]) {
        let length = self.row.len() * self.block;
        let rows = target.len() / length;
        let rows_per_part = rows.div_ceil(parts(target.len(), rows));
        chunks(target, rows_per_part * length, |part, target| {
            for (row, target) in target.chunks_exact_mut(length).enumerate() {
                match self.row_start(part * rows_per_part + row) {
                    Some(start) => self.fill_row(&source[start..][..self.row_total * self.block], value, target),
                    None => target.fill(value),
                }
            }
        });
    }

    /// Where the row of the operand behind a row of the result begins.
    fn row_start(&self, mut row: usize) -> Option<usize> {
        let mut start = 0;
        let mut stride = self.row_total * self.block;
        for (total, positions) in self.outer.iter().rev() {
            start += positions[row % positions.len()]? * stride;
            row /= positions.len();
            stride *= total;
        }
        Some(start)
    }

    fn fill_row<T: Copy>(&self, source: &[T], value: T, target: &mut [T]) {
        let block = self.block;
        let mut copy = |positions: Range<usize>| {
            for at in positions {
                let target = &mut target[at * block..(at + 1) * block];
                match self.row[at] {
                    Some(position) => target.copy_from_slice(&source[position * block..(position + 1) * block]),
                    None => target.fill(value),
                }
            }
        };
        copy(0..self.middle.start);
        copy(self.middle.end..self.row.len());
        if let Some(&Some(position)) = self.row[self.middle.clone()].first() {
            let length = self.middle.len() * block;
            let source = &source[position * block..position * block + length];
            target[self.middle.start * block..][..length].copy_from_slice(source);
        }
    }
}
