//! Extents of views as constants tell them.

use crate::ir::{Constant, ConstantId, Graph, Operand};
use ipuc_formats::dim::{Dim, Ranges};
use ipuc_formats::tensor::Tensor;
use std::collections::HashMap;

/// Constants of extents, each made once.
#[derive(Debug, Default)]
pub struct ExtentConstants(HashMap<Vec<i64>, ConstantId>);

impl ExtentConstants {
    /// The constant of these, which the graph gets when they are asked for first.
    pub fn constant(&mut self, graph: &mut Graph, extents: Vec<i64>) -> Operand {
        let add = |extents: &Vec<i64>| graph.add_constant(Constant::of(Tensor::vector_i64(extents), None));
        Operand::Constant(*self.0.entry(extents).or_insert_with_key(add))
    }
}

/// Extents that a reshape of `data` to `result` takes: 0 is that of the same axis, -1 the one that is left; `None`
/// where these do not tell all.
pub fn reshape_extents(data: &[Dim], result: &[Dim], ranges: &Ranges) -> Option<Vec<i64>> {
    let (mut left, mut may_be_empty) = (false, false);
    let extent = |(axis, dim): (usize, &Dim)| match dim.as_known() {
        // 0 would be the extent of the data.
        Some(extent) => (extent != 0).then_some(extent),
        None if data.get(axis) == Some(dim) => {
            may_be_empty |= dim.bounds(ranges).0 < 1;
            Some(0)
        }
        None => (!std::mem::replace(&mut left, true)).then_some(-1),
    };
    let extents: Vec<i64> = result.iter().enumerate().map(extent).collect::<Option<_>>()?;
    // Beside an extent of 0 the one that is left could be any.
    (!(left && may_be_empty)).then_some(extents)
}
