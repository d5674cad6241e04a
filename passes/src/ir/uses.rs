//! How steps read constants, and how those are stored for which no pass has chosen that.

use crate::ir::{ChosenEncoding, ConstantData, ConstantId, Graph, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Coded, Panels, Strings};
use ipuc_formats::ops::{Op, Read, WeightMatrix};
use std::collections::BTreeMap;

/// How steps read one constant.
#[derive(Debug, Clone, Default)]
pub struct Uses {
    /// As the weight of a product: once for each.
    pub matrices: Vec<WeightMatrix>,
    /// How many read rows of it, chosen by an index.
    pub rows: usize,
    /// How many read it as a whole tensor.
    pub others: usize,
}

impl Uses {
    /// The matrix that all steps see that do not read rows, where they see one and the same.
    pub fn matrix(&self) -> Option<WeightMatrix> {
        let &first = self.matrices.first()?;
        (self.others == 0 && self.matrices.iter().all(|other| *other == first)).then_some(first)
    }

    /// The matrix of all products with a constant of this shape, where panels of it serve those that read rows, too: a row is one
    /// output, as in an embedding that is the last product.
    pub fn matrix_in_panels(&self, shape: &[usize]) -> Option<WeightMatrix> {
        let rows_are_outputs = |matrix: &WeightMatrix| matrix.output_axis == 0 && shape.len() == 2;
        self.matrix().filter(|matrix| self.rows == 0 || rows_are_outputs(matrix))
    }
}

impl Graph {
    /// How each constant that reachable blocks read is read.
    pub fn uses(&self) -> BTreeMap<ConstantId, Uses> {
        let mut uses: BTreeMap<ConstantId, Uses> = BTreeMap::new();
        for index in self.reachable_blocks() {
            let block = self.block(index);
            for step in &block.steps {
                for (position, operand) in step.operands.iter().enumerate() {
                    let Operand::Constant(id) = operand else { continue };
                    let shape: Vec<u64> = self.constant(*id).shape.iter().map(|&extent| extent as u64).collect();
                    let used = uses.entry(*id).or_default();
                    match step.op.weight_matrix(position, &shape) {
                        Some(matrix) => used.matrices.push(matrix),
                        None if step.op.read(position) == Read::Rows => used.rows += 1,
                        None => used.others += 1,
                    }
                }
            }
            for result in &block.results {
                if let Operand::Constant(id) = result {
                    uses.entry(*id).or_default().others += 1;
                }
            }
        }
        uses
    }

    /// The constant whose elements are stored of one without codes: a widening cast of a weight is a matter of encoding.
    pub fn stored_elements(&self, id: ConstantId) -> ConstantId {
        let constant = self.constant(id);
        if let ConstantData::Recipe { op: Op::Cast(_), operands } = &constant.data
            && let [Some(narrow)] = operands.as_slice()
            && constant.dtype == DType::F32
            && matches!(self.constant(*narrow).dtype, DType::F16 | DType::BF16)
            && !matches!(self.constant(*narrow).data, ConstantData::Recipe { .. })
        {
            return *narrow;
        }
        id
    }

    /// The encoding of a constant for which no pass has chosen one.
    pub fn default_encoding(&self, id: ConstantId, uses: &Uses) -> ChosenEncoding {
        let chosen = |encoding: Coded, reason: &str| {
            let reason = reason.to_string();
            ChosenEncoding { encoding, by_budget: false, reason }
        };
        let (constant, stored) = (self.constant(id), self.constant(self.stored_elements(id)).dtype);
        if constant.dtype == DType::String {
            return chosen(Strings {}.into(), "it is text");
        }
        match uses.matrix_in_panels(&constant.shape) {
            Some(matrix) if matches!(stored, DType::F32 | DType::F16 | DType::BF16) && constant.byte_count() > 0 => {
                let reason = match uses.rows {
                    0 => "only products read it, as the same matrix",
                    _ => "products read it, as the same matrix, and single rows",
                };
                chosen(Panels::values(stored, matrix).into(), reason)
            }
            // Sums of integers of 8 and 16 bits are exact, and read panels.
            Some(matrix)
                if matches!(stored, DType::I8 | DType::U8 | DType::I16 | DType::U16)
                    && stored == constant.dtype
                    && constant.byte_count() > 0 =>
            {
                chosen(Panels::values(stored, matrix).into(), "only integer products read it, as the same matrix")
            }
            Some(_) => chosen(Coded::plain(stored), "products of this type read it as it is"),
            None if uses.rows > 0 => chosen(Coded::plain(stored), "single rows are read"),
            None => chosen(Coded::plain(stored), "steps read it as it is"),
        }
    }
}
