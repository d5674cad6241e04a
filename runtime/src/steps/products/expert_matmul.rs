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
use ipuc_kernels::team;
use ipuc_kernels::threads::each_mut;
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

    /// Calls `multiply` with the rows that chose each of these matrices, one behind the other, the place of their outputs, and
    /// the matrix: side by side where no matrix has more rows than the share of a thread.
    fn with_rows<M: Sync>(
        &self,
        matrices: &[(u64, M)],
        rows: &[f32],
        out: &mut [f32],
        multiply: impl Fn(&[f32], &mut [f32], &M) -> Result<(), KernelError> + Sync,
    ) -> Result<(), KernelError> {
        let ExpertPlan { inputs, outputs, .. } = self.plan;
        let row = |choice: usize| &rows[self.plan.row(choice) * inputs..][..inputs];
        let mut places: Vec<Option<&mut [f32]>> = out.chunks_mut(outputs).map(Some).collect();
        let mut results: Vec<Result<(), KernelError>> = matrices.iter().map(|_| Ok(())).collect();
        let mut tasks = Vec::with_capacity(matrices.len());
        for ((number, matrix), result) in matrices.iter().zip(&mut results) {
            let choices = self.of_matrices.get(number).map_or(&[][..], Vec::as_slice);
            // Each choice is one of one matrix.
            let own: Vec<&mut [f32]> = choices.iter().filter_map(|&choice| places[choice].take()).collect();
            tasks.push(Task { choices, out: own, matrix, result });
        }
        let run = |Task { choices, out, matrix, result }: &mut Task<'_, M>| {
            if let (&[choice], [out]) = (*choices, out.as_mut_slice()) {
                **result = multiply(row(choice), out, matrix);
                return;
            }
            let near: Vec<f32> = choices.iter().flat_map(|&choice| row(choice)).copied().collect();
            let mut products = vec![0.0; choices.len() * outputs];
            **result = multiply(&near, &mut products, matrix);
            out.iter_mut().zip(products.chunks(outputs)).for_each(|(out, product)| out.copy_from_slice(product));
        };
        let most = tasks.iter().map(|task| task.choices.len()).max().unwrap_or(0);
        let all: usize = tasks.iter().map(|task| task.choices.len()).sum();
        if most * team::count() <= all {
            each_mut(tasks, run);
        } else {
            tasks.iter_mut().for_each(run);
        }
        results.into_iter().collect()
    }
}

/// The product of the rows that chose a matrix.
struct Task<'a, M> {
    choices: &'a [usize],
    /// The outputs of each choice.
    out: Vec<&'a mut [f32]>,
    matrix: &'a M,
    result: &'a mut Result<(), KernelError>,
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
            let plan = self.resolve(a.shape(), weight.weight.shape()?, index.shape())?;
            let choices = Choices::new(self, plan, &index)?;
            return choices.produce(&a, context, |rows, out| {
                weight.for_matrices(&choices.matrices(), |matrices| {
                    choices.with_rows(matrices, rows, out, |x, out, runs| {
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
            let matrices: Vec<(u64, u64)> = choices.matrices().into_iter().map(|matrix| (matrix, matrix)).collect();
            choices.with_rows(&matrices, rows, out, |x, out, &matrix| {
                let size = plan.inputs * plan.outputs;
                let elements = elements(&b, matrix as usize * size..(matrix as usize + 1) * size)?;
                let batch = Batch {
                    rows: x.len() / plan.inputs,
                    left: x,
                    left_stride: plan.inputs,
                    left_places: &[0],
                    right: PlainMatrix::new(elements, PlainLayout::InputsInner, plan.inputs, plan.outputs),
                    right_places: &[0],
                };
                batched_product(Instructions::best(), &batch, out, Epilogue::default());
                Ok(())
            })
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
