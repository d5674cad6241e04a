//! Products with chosen matrices: one product for each matrix that is chosen, of all rows that chose it.

use super::floats::{computes_in_f32, produce, widened};
use super::matmul::{PanelProduct, sums_codes};
use super::panels::PanelWeight;
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{ExpertMatmul, ExpertPlan, TypeError};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::matrix::{Matrix, MatrixMut};
use ipuc_kernels::product::{Batch, Epilogue, PlainElements, PlainLayout, PlainMatrix, batched_product};
use ipuc_kernels::simd::Instructions;
use std::collections::BTreeMap;
use std::ops::Range;

/// Which rows chose each matrix.
struct Choices {
    plan: ExpertPlan,
    /// By matrix, the choices (of t·k) in order.
    of_matrices: BTreeMap<u64, Vec<usize>>,
}

impl Choices {
    fn new(operator: &ExpertMatmul, plan: ExpertPlan, index: &Tensor) -> Result<Choices, KernelError> {
        let mut of_matrices: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (choice, matrix) in operator.choices(index.elements()?, plan.experts)?.into_iter().enumerate() {
            of_matrices.entry(matrix as u64).or_default().push(choice);
        }
        Ok(Choices { plan, of_matrices })
    }

    fn matrices(&self) -> Vec<u64> {
        self.of_matrices.keys().copied().collect()
    }

    /// The result, which `fill` computes from the rows of `a`.
    fn produce(
        &self,
        a: &Tensor,
        context: &mut Context<'_>,
        fill: impl FnOnce(&[f32], &mut [f32]) -> Result<(), KernelError>,
    ) -> Result<Vec<Value>, KernelError> {
        let rows = widened(a)?;
        let shape = [self.plan.tokens, self.plan.chosen, self.plan.outputs];
        let result = produce(context, a.dtype(), &shape, |out| match (out.is_empty(), self.plan.inputs) {
            (true, _) => Ok(()),
            (false, 0) => {
                out.fill(0.0);
                Ok(())
            }
            (false, _) => fill(&rows, out),
        })?;
        Ok(vec![result.into()])
    }

    /// Calls `multiply` with the rows that chose a matrix, one behind the other, and the place of their outputs.
    fn with_rows(
        &self,
        matrix: u64,
        rows: &[f32],
        out: &mut [f32],
        multiply: impl FnOnce(&[f32], &mut [f32]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let ExpertPlan { inputs, outputs, .. } = self.plan;
        let row = |choice: usize| &rows[self.plan.row(choice) * inputs..][..inputs];
        match self.of_matrices.get(&matrix).map_or(&[][..], Vec::as_slice) {
            &[] => Ok(()),
            &[choice] => multiply(row(choice), &mut out[choice * outputs..][..outputs]),
            choices => {
                let near: Vec<f32> = choices.iter().flat_map(|&choice| row(choice)).copied().collect();
                let mut products = vec![0.0; choices.len() * outputs];
                multiply(&near, &mut products)?;
                for (&choice, product) in choices.iter().zip(products.chunks(outputs)) {
                    out[choice * outputs..][..outputs].copy_from_slice(product);
                }
                Ok(())
            }
        }
    }
}

impl Kernel for ExpertMatmul {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let panels = operands.get(1).and_then(Operand::as_weight).and_then(PanelWeight::of);
        let dynamic = self.arithmetic.dynamic_block();
        let known = self.arithmetic.is_default() || (dynamic.is_some() && sums_codes(panels.as_ref()));
        // Rows may be stored, too.
        let a = tensor_operand(&mut operands, 0)?;
        if !known || !computes_in_f32(a.dtype()) {
            operands[0] = Operand::Value(a.into());
            return run_reference(self, operands, context);
        }
        let index = tensor_operand(&mut operands, 2)?;
        let weight = std::mem::take(&mut operands[1]);
        if let Operand::Weight(weight) = &weight
            && weight.dtype() == a.dtype()
            && let Some(weight) = panels
        {
            let plan = self.resolve(a.shape(), &weight.weight.shape()?, index.shape())?;
            let choices = Choices::new(self, plan, &index)?;
            return choices.produce(&a, context, |rows, out| {
                weight.for_each_matrix(&choices.matrices(), |matrix, runs| {
                    choices.with_rows(matrix, rows, out, |x, out| {
                        let x = Matrix::new(x, x.len() / plan.inputs, plan.inputs);
                        let mut product = PanelProduct::new(&weight, x, &self.arithmetic);
                        // Runs of one panel follow each other: one call each.
                        for run in runs {
                            let out = MatrixMut::new(out, x.rows(), plan.outputs);
                            product.add(std::slice::from_ref(run), out, Epilogue::default())?;
                        }
                        Ok(())
                    })
                })
            });
        }
        let b = tensor_operand(&mut [weight], 0).map_err(|_| TypeError::MissingOperand { operand: 1 })?;
        if b.dtype() != a.dtype() {
            let expected = a.dtype().to_string();
            return Err(TypeError::ElementType { operand: 1, expected, found: b.dtype() }.into());
        }
        let plan = self.resolve(a.shape(), b.shape(), index.shape())?;
        let choices = Choices::new(self, plan, &index)?;
        choices.produce(&a, context, |rows, out| {
            for matrix in choices.matrices() {
                let size = plan.inputs * plan.outputs;
                let elements = elements(&b, matrix as usize * size..(matrix as usize + 1) * size)?;
                let right = PlainMatrix::new(elements, PlainLayout::InputsInner, plan.inputs, plan.outputs);
                choices.with_rows(matrix, rows, out, |x, out| {
                    let batch = Batch {
                        rows: x.len() / plan.inputs,
                        left: x,
                        left_stride: plan.inputs,
                        left_places: &[0],
                        right,
                        right_places: &[0],
                    };
                    batched_product(Instructions::best(), &batch, out, Epilogue::default());
                    Ok(())
                })?;
            }
            Ok(())
        })
    }
}

/// Elements of a tensor.
fn elements(tensor: &Tensor, range: Range<usize>) -> Result<PlainElements<'_>, KernelError> {
    Ok(match tensor.dtype() {
        DType::F16 => PlainElements::F16(&tensor.elements::<f16>()?[range]),
        DType::BF16 => PlainElements::Bf16(&tensor.elements::<bf16>()?[range]),
        _ => PlainElements::F32(&tensor.elements::<f32>()?[range]),
    })
}
