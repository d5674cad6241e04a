//! `NonMaxSuppression` (10, 11).

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::ops::NonMaxSuppression;

/// Choosing boxes.
pub const ROWS: &[Row] = &[row("NonMaxSuppression", 10, non_max_suppression)];

fn non_max_suppression(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let centers = node.flag("center_point_box", false)?;
    node.emit(NonMaxSuppression { centers }, node.inputs())
}
