//! Matrix products: weights in panels part by part, other operands as they come.

use super::floats::{Changes, after_sums, computes_in_f32, produce, widened};
use super::fused::{self, Fused};
use super::general::{self, Term};
use super::panels::{PanelWeight, Run, run_pieces, with_panels, with_zeros, within};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Arithmetic, Matmul, ProductPlan, TypeError};
use ipuc_formats::tensor::{Tensor, filled};
use ipuc_formats::value::Value;
use ipuc_kernels::change::{Change, RowChange};
use ipuc_kernels::matrix::{Matrix, MatrixMut};
use ipuc_kernels::product::{
    Batch, CodedLayout, DynamicRows, Epilogue, InputMajorLayout, InputMajorProduct, OpenPanels, PANEL_OUTPUTS,
    PlainElements, PlainLayout, PlainMatrix, RunInputs, RunRows, Skipped, Start, batched_product, coded_product,
    dynamic_product, panels_product, sparse_dynamic_product, sparse_product,
};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::each;
use std::borrow::Cow;
use std::ops::{Add, Range};

/// Rows up to which a product leaves inputs out: of more, few inputs are zero in all.
const MOST_SKIPPING_ROWS: usize = 4;

/// Inputs that are zero, of 4 KiB each, that are read along with those around them.
const MOST_BETWEEN: u64 = 4;

/// Operands of the product itself; further ones are the program's.
const OWN_OPERANDS: usize = 2;

impl Kernel for Matmul {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let panels = operands.get(1).and_then(Operand::as_weight).and_then(PanelWeight::of_product);
        let dynamic = self.arithmetic.dynamic_block();
        let known = self.arithmetic.is_default() || (dynamic.is_some() && sums_codes(panels.as_ref()));
        if !known || self.program.operands().any(|operand| operand < OWN_OPERANDS) {
            return run_reference(self, operands, context);
        }
        let further = fused::operands(&mut operands, OWN_OPERANDS)?;
        let a = tensor_operand(&mut operands, 0)?;
        let mut skipped = Skipped::default();
        let result = match operands.get_mut(1).map(std::mem::take) {
            Some(Operand::Weight(weight)) if computes_in_f32(a.dtype()) && weight.dtype() == a.dtype() => {
                match panels {
                    Some(weight) => {
                        let b_shape = weight.weight.shape()?;
                        let plan = context.prepared(&[a.shape(), b_shape], || self.resolve(a.shape(), b_shape))?;
                        InF32 { operator: self, plan: &plan, further: &further }.with(
                            context,
                            &a,
                            |product, x, out, post| {
                                skipped = product.panels(x, &weight, out, post)?;
                                Ok(())
                            },
                        )?
                    }
                    None => plain(self, &a, &weight.tensor()?, &further, context)?,
                }
            }
            Some(operand) => {
                let b = tensor_operand(&mut [operand], 0).map_err(|_| TypeError::MissingOperand { operand: 1 })?;
                plain(self, &a, &b, &further, context)?
            }
            None => return Err(TypeError::MissingOperand { operand: 1 }.into()),
        };
        context.skipped += skipped;
        Ok(vec![result.into()])
    }

    fn independent_rows(&self, operands: &[Operand]) -> Option<Vec<usize>> {
        let [Operand::Value(Value::Tensor(a)), Operand::Weight(weight), further @ ..] = operands else { return None };
        let (Some((_, rows)), [weight_rows, weight_columns]) = (a.shape().split_last(), weight.shape().ok()?) else {
            return None;
        };
        if self.transpose_a || rows.is_empty() || !computes_in_f32(a.dtype()) {
            return None;
        }
        let outputs = if self.transpose_b { *weight_rows } else { *weight_columns };
        let result: Vec<usize> = rows.iter().copied().chain([outputs]).collect();
        let mut stacked = vec![0];
        for (at, operand) in (OWN_OPERANDS..).zip(further) {
            match operand {
                Operand::Absent | Operand::Weight(_) => {}
                Operand::Value(Value::Tensor(tensor)) if tensor.shape() == result => stacked.push(at),
                Operand::Value(_) | Operand::Version(_) => return None,
            }
        }
        Some(stacked)
    }
}

/// Whether a weight is one of codes, products of which are summed as integers.
pub(super) fn sums_codes(weight: Option<&PanelWeight>) -> bool {
    weight.and_then(|weight| weight.codes.as_ref()).is_some_and(CodedLayout::sums_exactly)
}

/// Runs `$body` with `$T` bound to the element type of a general product.
macro_rules! with_term {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $T = f64;
                $body
            }
            DType::I32 => {
                type $T = i32;
                $body
            }
            DType::U32 => {
                type $T = u32;
                $body
            }
            DType::I64 => {
                type $T = i64;
                $body
            }
            DType::U64 => {
                type $T = u64;
                $body
            }
            found => {
                let expected = "f16, bf16, f32, f64, i32, i64, u32 or u64".to_string();
                return Err(TypeError::ElementType { operand: 0, expected, found }.into());
            }
        }
    };
}

/// The product of two tensors as they come.
fn plain(
    operator: &Matmul,
    a: &Tensor,
    b: &Tensor,
    further: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    if a.dtype() != b.dtype() {
        let expected = a.dtype().to_string();
        return Err(TypeError::ElementType { operand: 1, expected, found: b.dtype() }.into());
    }
    let plan = context.prepared(&[a.shape(), b.shape()], || operator.resolve(a.shape(), b.shape()))?;
    if computes_in_f32(a.dtype()) {
        let product = InF32 { operator, plan: &plan, further };
        return product.with(context, a, |product, x, out, post| product.plain(x, b, out, post));
    }
    let result = with_term!(a.dtype(), T => in_general::<T>(&plan, a, b, context)?);
    Ok(operator.program.apply_to(result, further)?)
}

fn in_general<T: Term>(
    plan: &ProductPlan,
    a: &Tensor,
    b: &Tensor,
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    let mut result = context.allocate(0, a.dtype(), &plan.shape)?;
    general::multiply::<T>(plan, a.elements()?, b.elements()?, result.elements_mut()?)?;
    Ok(result)
}

/// A product in f32.
struct InF32<'a> {
    operator: &'a Matmul,
    plan: &'a ProductPlan,
    further: &'a [Option<Value>],
}

impl InF32<'_> {
    /// Widens the left operand, multiplies, and does what of the program the kernel has not done.
    fn with(
        &self,
        context: &mut Context<'_>,
        a: &Tensor,
        multiply: impl FnOnce(&Self, &[f32], &mut [f32], Epilogue<'_>) -> Result<(), KernelError>,
    ) -> Result<Tensor, KernelError> {
        let columns = self.plan.b.columns;
        // A vector on the right leaves no axis of columns that a bias could lie along.
        let fits = |operand: usize| {
            let value = self.further.get(operand).and_then(Option::as_ref);
            !self.plan.b.vector && a.dtype() == DType::F32 && fused::is_per_channel(value, 1, columns)
        };
        let program = &self.operator.program;
        let known = program.is_empty() || a.dtype() == DType::F32;
        let fused = if known { Fused::new(program, fits) } else { None };
        let bias = fused::tensor(self.further, fused.and_then(|fused| fused.added));
        let bias = bias.map(|tensor| tensor.elements::<f32>()).transpose()?;
        let post = Epilogue { bias, clamp: fused.and_then(|fused| fused.clamp), change: None };
        let left = self.left(a)?;
        let shape = &self.plan.shape;
        let fill = |out: &mut [f32], change: Option<Change<'_>>| match out {
            [] => Ok(()),
            out => {
                let change = change.map(|change| RowChange { change, start: 0, columns });
                multiply(self, &left, out, Epilogue { change, ..post })
            }
        };
        match fused {
            Some(_) => produce(context, a.dtype(), shape, |out| fill(out, None)),
            None => after_sums(program, a.dtype(), (shape, Changes::OfFewOrMany), self.further, context, fill),
        }
    }

    /// The left operand with rows one behind the other.
    fn left<'a>(&self, a: &'a Tensor) -> Result<Cow<'a, [f32]>, KernelError> {
        let values = widened(a)?;
        if !self.plan.a.transposed {
            return Ok(values);
        }
        let (rows, columns) = (self.plan.a.rows, self.plan.a.columns);
        let mut across = vec![0.0; values.len()];
        if !across.is_empty() {
            let transpose = |(from, to): (&[f32], &mut [f32])| {
                for (row, to) in to.chunks_mut(columns).enumerate() {
                    to.iter_mut().zip(from[row..].iter().step_by(rows)).for_each(|(to, &from)| *to = from);
                }
            };
            each(values.chunks(rows * columns).zip(across.chunks_mut(rows * columns)).collect(), transpose);
        }
        Ok(Cow::Owned(across))
    }

    /// By a weight in panels; gives what was left out.
    fn panels(
        &self,
        left: &[f32],
        weight: &PanelWeight,
        out: &mut [f32],
        post: Epilogue<'_>,
    ) -> Result<Skipped, KernelError> {
        let (rows, inputs, outputs) = (self.plan.a.rows, self.plan.a.columns, self.plan.b.columns);
        if weight.panels.groups == 1 {
            // One matrix for all rows: they follow each other.
            let rows = rows * self.plan.batches.len();
            let mut product = self.product(weight, Matrix::new(left, rows, inputs));
            if product.add_read_apart(&mut MatrixMut::new(out, rows, outputs), post)? {
                return Ok(product.skipped());
            }
            weight.for_each_stored_run(|runs| product.add(runs, MatrixMut::new(out, rows, outputs), post))?;
            return Ok(product.skipped());
        }
        let group_units = weight.units();
        let left_of = |&(place, _): &(usize, usize)| Matrix::new(&left[place..], rows, inputs);
        let mut products: Vec<PanelProduct<'_>> =
            self.plan.batches.iter().map(|places| self.product(weight, left_of(places))).collect();
        weight.for_each_stored_run(|runs| {
            let products = products.iter_mut().zip(&self.plan.batches).zip(out.chunks_mut(rows * outputs));
            for (index, ((product, &(_, right_place)), out)) in products.enumerate() {
                let group = right_place / (inputs * outputs);
                let runs = within(runs, &(group * group_units..(group + 1) * group_units));
                if !runs.is_empty() {
                    product.add(&runs, MatrixMut::new(out, rows, outputs), post.rows_further(index * rows))?;
                }
            }
            Ok(())
        })?;
        Ok(products.iter().map(PanelProduct::skipped).fold(Skipped::default(), Add::add))
    }

    /// A product of these rows that has not begun.
    fn product<'a>(&self, weight: &'a PanelWeight, x: Matrix<'a>) -> PanelProduct<'a> {
        PanelProduct::new(weight, x, &self.operator.arithmetic)
    }

    /// By a tensor as it comes.
    fn plain(&self, left: &[f32], b: &Tensor, out: &mut [f32], post: Epilogue<'_>) -> Result<(), KernelError> {
        let right = &self.plan.b;
        let (rows, inputs) = (self.plan.a.rows, right.rows);
        let elements = match b.dtype() {
            DType::F16 => PlainElements::F16(b.elements()?),
            DType::BF16 => PlainElements::Bf16(b.elements()?),
            _ => PlainElements::F32(b.elements()?),
        };
        let inputs_inner = right.transposed || right.vector;
        let layout = if inputs_inner { PlainLayout::InputsInner } else { PlainLayout::OutputsInner };
        let matrix = PlainMatrix::new(elements, layout, inputs, right.columns);
        // With one matrix on the right, the rows of all follow each other.
        let is_one = right.batch.iter().all(|&extent| extent == 1);
        let batches = if is_one { &[(0, 0)][..] } else { &self.plan.batches };
        let rows = if is_one { rows * self.plan.batches.len() } else { rows };
        let (left_places, right_places): (Vec<usize>, Vec<usize>) = batches.iter().copied().unzip();
        let batch = Batch {
            rows,
            left,
            left_stride: inputs,
            left_places: &left_places,
            right: matrix,
            right_places: &right_places,
        };
        batched_product(Instructions::best(), &batch, out, post);
        Ok(())
    }
}

/// Runs of inputs, in order, that are read together: reading a few in between takes less time than another read.
fn together(inputs: &[usize]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &input in inputs {
        let input = input as u64;
        match runs.last_mut() {
            Some(last) if input - last.end <= MOST_BETWEEN => last.end = input + 1,
            _ => runs.push(input..input + 1),
        }
    }
    runs
}

/// A product with one matrix in panels, whose runs come one after another.
pub(super) struct PanelProduct<'a> {
    instructions: Instructions,
    weight: &'a PanelWeight,
    x: Matrix<'a>,
    /// The rows as codes, where activations are quantized.
    codes: Option<DynamicRows>,
    open: OpenPanels,
    /// What leaves inputs out, where the weight lies input by input and rows are few.
    by_input: Option<InputMajorProduct<'a>>,
}

impl<'a> PanelProduct<'a> {
    /// A product that has not begun.
    pub(super) fn new(weight: &'a PanelWeight, x: Matrix<'a>, arithmetic: &Arithmetic) -> PanelProduct<'a> {
        let instructions = Instructions::best();
        let codes = arithmetic.dynamic_block().map(|block| DynamicRows::new(instructions, x, block as usize));
        let skips = |layout: &&InputMajorLayout| {
            x.rows() <= MOST_SKIPPING_ROWS
                && layout.skips(codes.is_some())
                && arithmetic.dynamic_block().is_none_or(|block| block == 0)
        };
        let by_input = weight.by_input.as_deref().filter(skips);
        let by_input = by_input.map(|layout| InputMajorProduct::new(instructions, layout));
        PanelProduct { instructions, weight, x, codes, open: OpenPanels::default(), by_input }
    }
}

impl PanelProduct<'_> {
    /// What has been left out so far.
    pub(super) fn skipped(&self) -> Skipped {
        self.by_input.as_ref().map_or(Skipped::default(), InputMajorProduct::skipped)
    }

    /// The whole product, where inputs of the weight are read one by one; gives whether they are.
    ///
    /// # Errors
    /// [`KernelError`] where an input cannot be read.
    fn add_read_apart(&mut self, out: &mut MatrixMut<'_>, post: Epilogue<'_>) -> Result<bool, KernelError> {
        let Some(product) = self.by_input.as_mut().filter(|_| self.weight.is_read_apart()) else { return Ok(false) };
        let rows = self.codes.as_ref().map_or(RunRows::Floats(self.x), RunRows::Codes);
        let (active, inputs) = (product.inputs(rows), self.x.columns());
        // As many inputs at a time as may be held, whatever is read of them.
        let at_once = self.weight.inputs_at_once();
        for run in 0..self.weight.units() {
            for first in (0..inputs).step_by(at_once) {
                let end = inputs.min(first + at_once);
                let own = active.partition_point(|&input| input < first)..active.partition_point(|&input| input < end);
                let Some(read) = self.weight.inputs_of(run, first == 0, &together(&active[own]))? else {
                    return Ok(false);
                };
                let mut piece = RunInputs { run, first, planes: &[], inputs: filled(&[][..], end - first)? };
                for (range, bytes) in &read {
                    if range.is_empty() {
                        piece.planes = bytes;
                        continue;
                    }
                    for (input, row) in range.clone().zip(bytes.chunks(bytes.len() / range.len())) {
                        piece.inputs[input - first] = row;
                    }
                }
                product.add_inputs(rows, &[piece], out.reborrow(), post);
            }
        }
        Ok(true)
    }

    /// Adds what the next runs give.
    pub(super) fn add(&mut self, runs: &[Run<'_>], out: MatrixMut<'_>, post: Epilogue<'_>) -> Result<(), KernelError> {
        if let Some(product) = &mut self.by_input {
            let rows = self.codes.as_ref().map_or(RunRows::Floats(self.x), RunRows::Codes);
            product.add(rows, &run_pieces(runs), out, post);
            return Ok(());
        }
        let mut open = std::mem::take(&mut self.open);
        if let Some(layout) = &self.weight.by_input {
            let mut out = out;
            let most = out.columns().div_ceil(PANEL_OUTPUTS);
            let added =
                with_panels(layout, most, runs, &mut |runs| self.add_dense(runs, &mut open, out.reborrow(), post));
            self.open = open;
            return added;
        }
        let codes = self.codes.as_ref().filter(|_| self.weight.codes.is_some());
        let added = match (&self.weight.sparse, codes) {
            (None, _) => self.add_dense(runs, &mut open, out, post),
            // A panel in several parts is large: it is spread out as a whole, and its sums go on.
            (Some(layout), _) if runs.iter().any(|run| run.inputs != (0..self.x.columns())) => {
                let mut out = Some(out);
                with_zeros(layout, runs, &mut |runs| match out.take() {
                    Some(out) => self.add_dense(runs, &mut open, out, post),
                    None => Ok(()),
                })
            }
            (Some(layout), Some(rows)) => {
                sparse_dynamic_product(self.instructions, rows, layout, runs, out, post);
                Ok(())
            }
            (Some(layout), None) => {
                let multiply = |run: &Run<'_>, out: MatrixMut<'_>, post: Epilogue<'_>| {
                    self.add_dense(std::slice::from_ref(run), &mut OpenPanels::default(), out, post)
                };
                sparse_product(self.instructions, layout, runs, out, post, &multiply)
            }
        };
        self.open = open;
        added
    }

    /// Adds what runs of panels with zeros give.
    fn add_dense(
        &self,
        runs: &[Run<'_>],
        open: &mut OpenPanels,
        out: MatrixMut<'_>,
        post: Epilogue<'_>,
    ) -> Result<(), KernelError> {
        let PanelProduct { instructions, weight, x, codes, open: _, by_input: _ } = self;
        match (&weight.codes, codes) {
            (None, _) => panels_product(*instructions, *x, &weight.values(runs)?, out, Start::Zero, post),
            (Some(layout), None) => {
                coded_product(*instructions, *x, layout, runs, open, out, Start::Zero, post);
            }
            (Some(layout), Some(rows)) => {
                dynamic_product(*instructions, rows, layout, runs, open, out, post);
            }
        }
        Ok(())
    }
}
