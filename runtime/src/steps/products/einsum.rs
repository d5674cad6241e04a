//! Sums of products over named axes, operand by operand as matrix products.
//!
//! What is multiplied so far and the next operand become batches of matrices: axes that both have and that are needed further
//! are the batch, those that both have and nobody needs are summed over, the others are rows and columns. An axis that only one
//! of them has and nobody needs is summed before. Operands that lie so already are not copied.

use super::floats::{computes_in_f32, produce, widened};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::ops::{Einsum, EinsumPlan};
use ipuc_formats::tensor::filled;
use ipuc_formats::tensor::{Tensor, TensorError, element_count, strides};
use ipuc_formats::value::Value;
use ipuc_kernels::product::{Batch, Epilogue, PlainElements, PlainLayout, PlainMatrix, batched_product};
use ipuc_kernels::reduce::{Fold, fold_rows};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::strided::Strided;
use ipuc_kernels::threads::{chunks, parts};
use std::borrow::Cow;

impl Kernel for Einsum {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let count = operands.len();
        let tensors = (0..count).map(|at| tensor_operand(&mut operands, at)).collect::<Result<Vec<Tensor>, _>>()?;
        let dtype = tensors.first().map(Tensor::dtype).filter(|dtype| computes_in_f32(*dtype));
        let Some(dtype) = dtype.filter(|dtype| tensors.iter().all(|tensor| tensor.dtype() == *dtype)) else {
            let operands = tensors.into_iter().map(|tensor| Operand::Value(tensor.into())).collect();
            return run_reference(self, operands, context);
        };
        let shapes: Vec<&[usize]> = tensors.iter().map(Tensor::shape).collect();
        let plan = self.resolve(&shapes)?;
        let values = tensors.iter().map(widened).collect::<Result<Vec<_>, _>>()?;
        let result = produce(context, dtype, &plan.shape, |out| contract(&plan, values, out))?;
        Ok(vec![result.into()])
    }
}

/// Multiplications of a product of a batch for which a task would cost more than it does.
const SMALL_PRODUCT: usize = 512;

/// A factor: elements, and the step along each label.
struct Factor<'a> {
    values: Cow<'a, [f32]>,
    steps: Vec<usize>,
}

/// Multiplies all operands and sums; `out` has the labels of the result in order.
fn contract(plan: &EinsumPlan, values: Vec<Cow<'_, [f32]>>, out: &mut [f32]) -> Result<(), KernelError> {
    if plan.extents.contains(&0) {
        out.fill(0.0);
        return Ok(());
    }
    let mut factors =
        values.into_iter().zip(&plan.steps).map(|(values, steps)| Factor { values, steps: steps.clone() });
    let Some(mut product) = factors.next() else { return Ok(()) };
    for (at, factor) in factors.enumerate() {
        let later = &plan.steps[at + 2..];
        let needed = |label: usize| label < plan.shape.len() || later.iter().any(|steps| steps[label] != 0);
        let target = later.is_empty().then_some(&mut *out);
        let pair = Pair { extents: &plan.extents, left: product, right: factor };
        let Some(next) = pair.multiply(needed, target)? else { return Ok(()) };
        product = next;
    }
    let labels: Vec<usize> = (0..plan.shape.len()).collect();
    let product = product.summed(&plan.extents, |label| label < plan.shape.len())?;
    out.copy_from_slice(&product.ordered(&plan.extents, &labels)?);
    Ok(())
}

fn extents_of(extents: &[usize], labels: &[usize]) -> Vec<usize> {
    labels.iter().map(|&label| extents[label]).collect()
}

fn count_of(extents: &[usize], labels: &[usize]) -> Result<usize, KernelError> {
    let shape = extents_of(extents, labels);
    let too_large = || TensorError::TooLarge { dtype: ipuc_formats::dtype::DType::F32, shape: shape.clone() };
    Ok(element_count(&shape).ok_or_else(too_large)?)
}

impl<'a> Factor<'a> {
    /// Labels along which it has more than one element, and that `keep` names.
    fn labels(&self, keep: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..self.steps.len()).filter(|&label| self.steps[label] != 0 && keep(label)).collect()
    }

    /// Row-major elements with these labels, each of which it has or repeats; without a copy where they lie so.
    fn ordered(&self, extents: &[usize], labels: &[usize]) -> Result<Cow<'_, [f32]>, KernelError> {
        let shape = extents_of(extents, labels);
        let steps: Vec<usize> = labels.iter().map(|&label| self.steps[label]).collect();
        let count = count_of(extents, labels)?;
        let dense = strides(&shape);
        let lies_so = (0..shape.len()).all(|axis| shape[axis] == 1 || steps[axis] == dense[axis]);
        if lies_so && self.values.len() == count {
            return Ok(Cow::Borrowed(&self.values));
        }
        let mut ordered = filled(0.0, count)?;
        let steps: Vec<isize> = steps.into_iter().map(|step| step as isize).collect();
        Strided::new(&shape, &steps, 0).copy(&self.values, &mut ordered);
        Ok(Cow::Owned(ordered))
    }

    /// With the sums over the labels that are not needed.
    fn summed(self, extents: &[usize], needed: impl Fn(usize) -> bool) -> Result<Factor<'a>, KernelError> {
        let (mut labels, gone) = (self.labels(&needed), self.labels(|label| !needed(label)));
        if gone.is_empty() {
            return Ok(self);
        }
        let mut sums = filled(0.0, count_of(extents, &labels)?)?;
        let kept = labels.clone();
        labels.extend(gone);
        fold_rows(Instructions::best(), Fold::Sum, &self.ordered(extents, &labels)?, &mut sums);
        Ok(Factor::dense(sums, extents, &kept))
    }

    /// Row-major elements with these labels.
    fn dense(values: Vec<f32>, extents: &[usize], labels: &[usize]) -> Factor<'a> {
        let mut steps = vec![0; extents.len()];
        for (&label, step) in labels.iter().zip(strides(&extents_of(extents, labels))) {
            steps[label] = if extents[label] == 1 { 0 } else { step };
        }
        Factor { values: Cow::Owned(values), steps }
    }
}

/// Two factors.
struct Pair<'a, 'b> {
    extents: &'b [usize],
    left: Factor<'a>,
    right: Factor<'a>,
}

impl<'a> Pair<'a, '_> {
    /// Their product, summed over the labels that are not needed; `None` where it went to the target, because its labels come out
    /// in order.
    fn multiply(
        self,
        needed: impl Fn(usize) -> bool,
        target: Option<&mut [f32]>,
    ) -> Result<Option<Factor<'a>>, KernelError> {
        let Pair { extents, left, right } = self;
        let has = |factor: &Factor<'_>| -> Vec<bool> { factor.steps.iter().map(|&step| step != 0).collect() };
        let (in_left, in_right) = (has(&left), has(&right));
        let left = left.summed(extents, |label| needed(label) || in_right[label])?;
        let right = right.summed(extents, |label| needed(label) || in_left[label])?;
        let both = |label: usize| in_left[label] && in_right[label];
        let batch = left.labels(|label| both(label) && needed(label));
        let inputs = left.labels(|label| both(label) && !needed(label));
        let rows = left.labels(|label| !in_right[label]);
        let columns = right.labels(|label| !in_left[label]);
        let count = |labels: &[usize]| count_of(extents, labels);
        let (batches, row_count, input_count, column_count) =
            (count(&batch)?, count(&rows)?, count(&inputs)?, count(&columns)?);
        let left = left.ordered(extents, &[&batch[..], &rows, &inputs].concat())?;
        let labels = [&batch[..], &rows, &columns].concat();
        let size = count(&labels)?;
        let target = target.filter(|target| labels.is_sorted() && target.len() == size);
        let is_own = target.is_none();
        let mut own = filled(0.0, if is_own { size } else { 0 })?;
        let out = target.unwrap_or(&mut own);
        if row_count * column_count * input_count <= SMALL_PRODUCT {
            let right = right.ordered(extents, &[batch, inputs, columns].concat())?;
            small_products(&left, &right, [row_count, input_count, column_count], out);
            return Ok(is_own.then(|| Factor::dense(own, extents, &labels)));
        }
        let (right, layout) = right.matrices(extents, &batch, &inputs, &columns)?;
        let places = |size: usize| -> Vec<usize> { (0..batches).map(|batch| batch * size).collect() };
        let product = Batch {
            rows: row_count,
            left: &left,
            left_stride: input_count,
            left_places: &places(row_count * input_count),
            right: PlainMatrix::new(PlainElements::F32(&right), layout, input_count, column_count),
            right_places: &places(input_count * column_count),
        };
        batched_product(Instructions::best(), &product, out, Epilogue::default());
        Ok(is_own.then(|| Factor::dense(own, extents, &labels)))
    }
}

/// Products of many small matrices `[rows, inputs]` and `[inputs, columns]`, one behind the other.
fn small_products(left: &[f32], right: &[f32], [rows, inputs, columns]: [usize; 3], out: &mut [f32]) {
    let batches = out.len() / (rows * columns);
    let each = batches.div_ceil(parts(batches * rows * inputs * columns, batches)).max(1);
    chunks(out, each * rows * columns, |index, out| {
        for (at, out) in out.chunks_exact_mut(rows * columns).enumerate() {
            let batch = index * each + at;
            let left = &left[batch * rows * inputs..][..rows * inputs];
            let right = &right[batch * inputs * columns..][..inputs * columns];
            for (left, out) in left.chunks_exact(inputs).zip(out.chunks_exact_mut(columns)) {
                out.fill(0.0);
                for (left, right) in left.iter().zip(right.chunks_exact(columns)) {
                    out.iter_mut().zip(right).for_each(|(out, right)| *out += left * right);
                }
            }
        }
    });
}

impl Factor<'_> {
    /// Matrices of inputs and columns, in the order in which they lie where that is one of the two.
    fn matrices(
        &self,
        extents: &[usize],
        batch: &[usize],
        inputs: &[usize],
        columns: &[usize],
    ) -> Result<(Cow<'_, [f32]>, PlainLayout), KernelError> {
        let inputs_inner = self.ordered(extents, &[batch, columns, inputs].concat())?;
        if matches!(inputs_inner, Cow::Borrowed(_)) {
            return Ok((inputs_inner, PlainLayout::InputsInner));
        }
        Ok((self.ordered(extents, &[batch, inputs, columns].concat())?, PlainLayout::OutputsInner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use ipuc_formats::dtype::DType;

    #[test]
    fn equations_of_all_kinds() {
        let cases: &[(&str, &[&[usize]])] = &[
            ("ij,jk->ik", &[&[5, 70], &[70, 33]]),
            ("ij,kj->ik", &[&[5, 70], &[33, 70]]),
            ("ij,jk", &[&[3, 2], &[2, 3]]),
            ("bhid,bhjd->bhij", &[&[2, 3, 9, 16], &[2, 3, 11, 16]]),
            ("bhwc,hkc->bhwk", &[&[2, 7, 5, 8], &[7, 6, 8]]),
            ("bsnh,nhe->bse", &[&[2, 5, 3, 8], &[3, 8, 20]]),
            ("i,i->i", &[&[3000], &[3000]]),
            ("i,i->", &[&[3000], &[3000]]),
            ("i,j->ij", &[&[30], &[40]]),
            ("ij,k->", &[&[30, 2], &[40]]),
            ("ij,jk,kl->il", &[&[9, 8], &[8, 70], &[70, 5]]),
            ("ij,ij,jk->k", &[&[9, 8], &[9, 8], &[8, 70]]),
            ("bi,bj,ijk->bk", &[&[3, 4], &[3, 5], &[4, 5, 6]]),
            ("...ij,...jk", &[&[4, 1, 2, 3], &[5, 3, 2]]),
            ("i...,i...->...", &[&[2, 2], &[2, 1]]),
            ("b...,b->b...", &[&[2, 3], &[1]]),
            ("...ii->...i", &[&[2, 3, 3]]),
            ("ii,i->", &[&[4, 4], &[4]]),
            ("ijk->kji", &[&[3, 4, 5]]),
            ("ijk->j", &[&[3, 4, 5]]),
            ("ij->", &[&[3, 4]]),
            ("->", &[&[]]),
            (",ij->ij", &[&[], &[2, 3]]),
            ("ij,jk->ik", &[&[0, 4], &[4, 3]]),
            ("ij,jk->ik", &[&[3, 0], &[0, 4]]),
            ("ij,jk->ik", &[&[1, 1], &[1, 1]]),
        ];
        for (equation, shapes) in cases {
            for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 2e-3)] {
                let operands: Vec<_> = (1..).zip(*shapes).map(|(seed, shape)| random(dtype, shape, seed)).collect();
                check(&Einsum { equation: (*equation).to_string() }, &operands, tolerance);
            }
        }
        let integers = Tensor::from_elements(&[2, 2], &[1i64, 2, 3, 4]).unwrap();
        check(&Einsum { equation: "ij,jk->ik".to_string() }, &[Some(integers.clone()), Some(integers)], 0.0);
    }
}
