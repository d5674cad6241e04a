//! Reductions, softmax and running sums: `Reduce*` (opset 1 to 28), `ArgMax`, `ArgMin` (1 to 13), `CumSum` (11, 14),
//! `CumProd` (26), `Softmax`, `LogSoftmax`, `Hardmax` (1 to 13).
//!
//! Axes are an attribute until opset 17 (of `ReduceSum` until 12), then an operand. Before opset 13 a softmax takes all
//! axes from its own on as one.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::ops::{ArgReduce, Cumulative, CumulativeFunction, Reduce, ReduceFunction, Softmax, SoftmaxFunction};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// `"Name" versions.. => lowering;` a line becomes one row a version.
macro_rules! rows {
    ($($name:literal $($since:literal)+ => $lower:expr;)*) => { &[$($(row($name, $since, $lower),)+)*] };
}

/// Reductions, softmax, cumulative sums.
pub const ROWS: &[Row] = rows! {
    "ReduceL1" 1 11 13 18 => |node| reduce(node, ReduceFunction::L1, 18);
    "ReduceL2" 1 11 13 18 => |node| reduce(node, ReduceFunction::L2, 18);
    "ReduceLogSum" 1 11 13 18 28 => |node| reduce(node, ReduceFunction::LogSum, 18);
    "ReduceLogSumExp" 1 11 13 18 28 => |node| reduce(node, ReduceFunction::LogSumExp, 18);
    "ReduceMax" 1 11 12 13 18 20 => |node| reduce(node, ReduceFunction::Max, 18);
    "ReduceMean" 1 11 13 18 => |node| reduce(node, ReduceFunction::Mean, 18);
    "ReduceMin" 1 11 12 13 18 20 => |node| reduce(node, ReduceFunction::Min, 18);
    "ReduceProd" 1 11 13 18 => |node| reduce(node, ReduceFunction::Product, 18);
    "ReduceSum" 1 11 13 => |node| reduce(node, ReduceFunction::Sum, 13);
    "ReduceSumSquare" 1 11 13 18 => |node| reduce(node, ReduceFunction::SumSquare, 18);

    "ArgMax" 1 11 12 13 => |node| arg_reduce(node, false);
    "ArgMin" 1 11 12 13 => |node| arg_reduce(node, true);

    "CumSum" 11 14 => |node| cumulative(node, CumulativeFunction::Sum);
    "CumProd" 26 => |node| cumulative(node, CumulativeFunction::Product);

    "Softmax" 1 11 13 => |node| softmax(node, SoftmaxFunction::Softmax);
    "LogSoftmax" 1 11 13 => |node| softmax(node, SoftmaxFunction::LogSoftmax);
    "Hardmax" 1 11 13 => |node| softmax(node, SoftmaxFunction::Hardmax);
};

/// `axes_operand` is the first version whose axes are an operand.
fn reduce(node: &mut Lowering<'_, '_>, function: ReduceFunction, axes_operand: i64) -> Lowered {
    let data = node.required(0)?;
    let keep_axes = node.flag("keepdims", true)?;
    let mut keep_without_axes = false;
    let axes = if node.since() >= axes_operand {
        keep_without_axes = node.flag("noop_with_empty_axes", false)?;
        node.input(1)
    } else {
        match node.ints("axes")? {
            Some(axes) if !axes.is_empty() => node.constant(Tensor::vector_i64(&axes)),
            Some(_) | None => Operand::Absent,
        }
    };
    node.emit(Reduce { function, keep_axes, keep_without_axes }, vec![data, axes])
}

fn arg_reduce(node: &mut Lowering<'_, '_>, smallest: bool) -> Lowered {
    let data = node.required(0)?;
    let axis = node.int("axis")?.unwrap_or(0);
    let keep_axis = node.flag("keepdims", true)?;
    let last = node.since() >= 12 && node.flag("select_last_index", false)?;
    node.emit(ArgReduce { smallest, axis, keep_axis, last }, vec![data])
}

fn cumulative(node: &mut Lowering<'_, '_>, function: CumulativeFunction) -> Lowered {
    let operands = vec![node.required(0)?, node.required(1)?];
    let (exclusive, reverse) = (node.flag("exclusive", false)?, node.flag("reverse", false)?);
    node.emit(Cumulative { function, exclusive, reverse }, operands)
}

fn softmax(node: &mut Lowering<'_, '_>, function: SoftmaxFunction) -> Lowered {
    let input = node.required(0)?;
    let trailing = node.since() < 13;
    let axis = node.int("axis")?.unwrap_or(if trailing { 1 } else { -1 });
    node.emit(Softmax { function, axis, trailing }, vec![input])
}
