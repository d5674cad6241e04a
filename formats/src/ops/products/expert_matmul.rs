//! Products with matrices that an index chooses: the layers of `MoE` and `QMoE` of `com.microsoft`.
//!
//! Each row is multiplied by its own matrix (an expert). Only chosen matrices are read, each once for all rows that chose it.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::loops::{self, Loops};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::products::convolution::require_float;
use crate::ops::products::matmul::dynamic_values;
use crate::ops::windows::listed;
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Space,
    StepFacts, TypeError, VectorClass, WeightMatrix, each, integers, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// `a: [t, k, i]` or `[t, 1, i]`, `b: [e, o, i]`, `index: [t, k]` (i64, from 0) to `[t, k, o]`: row `[t, k]` of `a` by the
    /// transposed matrix `index[t, k]` of `b`.
    pub struct ExpertMatmul revision 1 {
        /// How it computes.
        1 since 1 => arithmetic: Arithmetic,
    }
}

/// Extents of a product with chosen matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertPlan {
    /// Tokens: t.
    pub tokens: usize,
    /// Matrices that each chooses: k.
    pub chosen: usize,
    /// Matrices: e.
    pub experts: usize,
    /// Inputs of a matrix: i.
    pub inputs: usize,
    /// Outputs of a matrix: o.
    pub outputs: usize,
    /// A token has one row for all its matrices.
    pub one_row: bool,
}

impl ExpertPlan {
    /// The place of the row of `a` that choice `choice` (of t·k) multiplies.
    pub fn row(&self, choice: usize) -> usize {
        if self.one_row { choice / self.chosen } else { choice }
    }
}

impl ExpertMatmul {
    /// The extents of operands of these shapes.
    ///
    /// # Errors
    /// [`TypeError`] where they do not fit.
    pub fn resolve(&self, a: &[usize], b: &[usize], index: &[usize]) -> Result<ExpertPlan, TypeError> {
        let rank = |operand, expected: &str, found: &[usize]| TypeError::Rank {
            operand,
            expected: expected.to_string(),
            found: found.len(),
        };
        let &[a_tokens, a_rows, a_inputs] = a else { return Err(rank(0, "3", a)) };
        let &[experts, outputs, inputs] = b else { return Err(rank(1, "3", b)) };
        let &[tokens, chosen] = index else { return Err(rank(2, "2", index)) };
        if (a_tokens, a_inputs) != (tokens, inputs) || !(a_rows == chosen || a_rows == 1) {
            let (left, right) = (format!("{a:?}"), format!("[{tokens}, {chosen} or 1, {inputs}]"));
            return Err(TypeError::Dimension { subject: "rows by experts".to_string(), left, right });
        }
        Ok(ExpertPlan { tokens, chosen, experts, inputs, outputs, one_row: a_rows != chosen })
    }

    /// The matrix of each choice.
    ///
    /// # Errors
    /// [`TypeError::Dimension`] where there is no such matrix.
    pub fn choices(&self, index: &[i64], experts: usize) -> Result<Vec<usize>, TypeError> {
        let choice = |&index: &i64| {
            usize::try_from(index).ok().filter(|&index| index < experts).ok_or_else(|| TypeError::Dimension {
                subject: "the index of an expert".to_string(),
                left: index.to_string(),
                right: format!("{experts} experts"),
            })
        };
        index.iter().map(choice).collect()
    }
}

impl Operator for ExpertMatmul {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, a) = tensor_operand(inputs, 0)?;
        let (found, b) = tensor_operand(inputs, 1)?;
        let (index_dtype, index) = tensor_operand(inputs, 2)?;
        require_float(dtype, 0)?;
        require_same_type(1, found, dtype)?;
        if index_dtype != DType::I64 {
            return Err(TypeError::ElementType { operand: 2, expected: "i64".to_string(), found: index_dtype });
        }
        if self.arithmetic.dynamic_block().is_some() && dtype == DType::F64 {
            return Err(TypeError::Unsupported(format!("quantization of rows of {dtype}")));
        }
        for (operand, (shape, rank)) in [(a, 3), (b, 3), (index, 2)].into_iter().enumerate() {
            if let Some(found) = shape.rank().filter(|&found| found != rank) {
                return Err(TypeError::Rank { operand, expected: rank.to_string(), found });
            }
        }
        let (Some([tokens, rows, inputs]), Some([_, outputs, summed]), Some([index_tokens, chosen])) =
            (a.dims(), b.dims(), index.dims())
        else {
            return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]);
        };
        context.require_equal(inputs, summed, "inputs of experts")?;
        let tokens = context.require_equal(tokens, index_tokens, "tokens that choose experts")?;
        if *rows != Dim::ONE {
            context.require_equal(rows, chosen, "rows of the experts of a token")?;
        }
        Ok(vec![Fact::tensor(dtype, vec![tokens, chosen.clone(), outputs.clone()])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (a, b, index): (&Tensor, &Tensor, &Tensor) = (tensor(inputs, 0)?, tensor(inputs, 1)?, tensor(inputs, 2)?);
        require_float(a.dtype(), 0)?;
        require_same_type(1, b.dtype(), a.dtype())?;
        let plan = self.resolve(a.shape(), b.shape(), index.shape())?;
        let choices = self.choices(&integers(inputs, 2)?, plan.experts)?;
        let block = self.arithmetic.dynamic_block();
        let quantized = block.map(|block| dynamic_values(a, plan.inputs, block as usize)).transpose()?;
        let left = accumulators::<f64>(quantized.as_ref().unwrap_or(a), &self.arithmetic)?;
        let right = accumulators::<f64>(b, &self.arithmetic)?;
        let shape = [plan.tokens, plan.chosen, plan.outputs];
        let mut sums = listed(a.dtype(), &shape)?;
        for (choice, expert) in choices.into_iter().enumerate() {
            let row = &left[plan.row(choice) * plan.inputs..][..plan.inputs];
            for output in 0..plan.outputs {
                let column = &right[(expert * plan.outputs + output) * plan.inputs..][..plan.inputs];
                let products = row.iter().zip(column).map(|(left, right)| left.times(*right));
                sums.push(products.fold(f64::ZERO, |sum, product| sum.plus(product, &self.arithmetic)).scalar());
                context.macs += plan.inputs as u64;
            }
        }
        let accumulator = self.arithmetic.accumulator_of(a.dtype());
        Ok(vec![Program::default().finish(a.dtype(), accumulator, &sums, &shape, inputs)?.into()])
    }
}

impl Computes for ExpertMatmul {
    /// Matrices are on no axis: the points of a tile pick theirs.
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let (Some([tokens, rows, inputs]), Some([_, outputs, _]), Some([_, chosen])) =
            (facts.dims(0), facts.dims(1), facts.dims(2))
        else {
            return loops::unknown(facts, 1);
        };
        let row = (rows == chosen).then(|| loops::operand(0, 1));
        let nest = Loops::new(facts)
            .parallel(tokens, [loops::operand(0, 0), loops::operand(2, 0), loops::result(0, 0)])
            .parallel(chosen, row.into_iter().chain([loops::operand(2, 1), loops::result(0, 1)]))
            .parallel(outputs, [loops::operand(1, 1), loops::result(0, 2)])
            .reduced(inputs, [loops::operand(0, 2), loops::operand(1, 2)]);
        let rounding = self.arithmetic.dynamic_block().and_then(|block| {
            let inputs = facts.dims(0)?.len().checked_sub(1)?;
            loops::statistics(facts, |axis| axis == inputs && block == 0)
        });
        rounding.into_iter().chain([nest.products(1)]).collect()
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        match self.arithmetic.dynamic_block() {
            Some(_) => each(&facts.elements(0), &[(VectorClass::Arithmetic, 2), (VectorClass::Convert, 1)]),
            None => Vec::new(),
        }
    }
}

impl Product for ExpertMatmul {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        match (operand, shape) {
            (1, &[groups, outputs, inputs]) => Some(WeightMatrix { groups, inputs, outputs, output_axis: 0 }),
            _ => None,
        }
    }

    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn program(&self) -> Option<&Program> {
        None
    }

    fn sums(&self, _facts: &StepFacts<'_>) -> Option<DType> {
        None
    }

    fn picked(&self) -> Option<Picked> {
        Some(Picked { operand: 1, index: 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{macs, run_optional};
    use crate::ops::{Activations, Stored};

    fn operator() -> ExpertMatmul {
        ExpertMatmul { arithmetic: Arithmetic::default() }
    }

    fn floats(shape: &[usize], elements: &[f32]) -> Option<Tensor> {
        Some(Tensor::from_elements(shape, elements).unwrap())
    }

    fn index(shape: &[usize], elements: &[i64]) -> Option<Tensor> {
        Some(Tensor::from_elements(shape, elements).unwrap())
    }

    /// Three experts of two inputs and two outputs: the identity, the exchange, ten times the sum and the difference.
    fn experts() -> Option<Tensor> {
        floats(&[3, 2, 2], &[1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 10.0, 10.0, 10.0, -10.0])
    }

    #[test]
    fn each_row_has_its_own_matrix() {
        let one_row = [floats(&[2, 1, 2], &[1.0, 2.0, 3.0, 5.0]), experts(), index(&[2, 2], &[0, 2, 1, 1])];
        let found = run_optional(&operator(), &one_row).unwrap();
        assert_eq!(found.shape(), [2, 2, 2]);
        assert_eq!(found.elements::<f32>().unwrap(), [1.0, 2.0, 30.0, -10.0, 5.0, 3.0, 5.0, 3.0]);
        let own_rows = [floats(&[1, 2, 2], &[1.0, 2.0, 3.0, 5.0]), experts(), index(&[1, 2], &[2, 0])];
        let found = run_optional(&operator(), &own_rows).unwrap();
        assert_eq!(found.elements::<f32>().unwrap(), [30.0, -10.0, 3.0, 5.0]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let error = |a, index| run_optional(&operator(), &[a, experts(), index]).unwrap_err().to_string();
        let row = || floats(&[1, 1, 2], &[1.0, 2.0]);
        assert_eq!(error(row(), index(&[1, 1], &[3])), "the index of an expert: 3 does not fit 3 experts");
        assert_eq!(error(row(), index(&[1, 1], &[-1])), "the index of an expert: -1 does not fit 3 experts");
        let wide = floats(&[1, 1, 3], &[1.0, 2.0, 3.0]);
        assert_eq!(error(wide, index(&[1, 1], &[0])), "rows by experts: [1, 1, 3] does not fit [1, 1 or 1, 2]");
    }

    #[test]
    fn only_chosen_matrices_are_read() {
        let dims = |extents: &[i64]| extents.iter().map(|&extent| Dim::known(extent)).collect::<Vec<_>>();
        let stored = [None, Some(Stored { bytes: Dim::known(8 * 1000), dtype: DType::I4 }), None];
        // Many tokens read no matrix twice.
        for (tokens, matrices) in [(3, 6), (5, 8)] {
            let facts = [
                Some(Fact::tensor(DType::F32, dims(&[tokens, 1, 64]))),
                Some(Fact::tensor(DType::F32, dims(&[8, 32, 64]))),
                Some(Fact::tensor(DType::I64, dims(&[tokens, 2]))),
            ];
            let outputs = [Fact::tensor(DType::F32, dims(&[tokens, 2, 32]))];
            assert_eq!(macs(&operator(), &facts, &outputs), Dim::known(tokens * 2 * 32 * 64));
            let step = StepFacts { stored: &stored, ..StepFacts::new("experts", &facts, &outputs) };
            let work = crate::ops::Op::from(operator()).work(&step);
            assert_eq!(work.stored, Dim::ZERO);
            let gathered = work.gathered.unwrap();
            assert_eq!((gathered.parts, gathered.part_bytes), (Dim::known(matrices), Dim::known(1000)));
            let activation = Activations::Dynamic { dtype: DType::I8, block: 0 };
            let dynamic = ExpertMatmul { arithmetic: Arithmetic { activation, ..Arithmetic::default() } };
            assert_eq!(dynamic.spaces(&step).len(), 2);
        }
    }
}
