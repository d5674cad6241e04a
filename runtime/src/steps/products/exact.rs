//! Products of integers whose sums do not fit into 32 bits, or of codes with scales of their own: exact sums in f32, then the
//! program over them.
//!
//! Where activations have 16 bits, weights have, or weights are codes with planes. Weights come in panels, whole or in pieces of
//! their inputs; where they do not, or zero points differ from row to row, the reference computes.

use super::convolution::window;
use super::floats::single;
use super::fused;
use super::integer_operands::{reads_own, reloaded, same_types, zero_points};
use super::integer_tasks::{FEWEST_ROWS, OPERAND_BYTES};
use super::panels::{PanelWeight, Run, coded_pieces, within};
use crate::steps::program::{self, Accumulators};
use crate::steps::{Context, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::scalars;
use ipuc_formats::ops::{ConvolutionPlan, IntegerConvolution, IntegerMatmul, Program};
use ipuc_formats::tensor::{Tensor, TensorError, element_count, filled};
use ipuc_formats::value::Value;
use ipuc_kernels::product::{
    ByteType, ExactRows, ExactWeight, ExactWords, IntegerRows, OpenPanels, PANEL_OUTPUTS, Zero, exact_product,
};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::{chunks, parts};
use ipuc_kernels::window::WindowAxis;

/// Operands of a matrix product itself.
const MATMUL_OPERANDS: usize = 4;

/// Operands of a convolution itself; no bias is among them where sums are f32.
const CONVOLUTION_OPERANDS: usize = 5;

/// The bytes of activations, digit by digit from the most significant on.
struct Digits {
    signed: bool,
    zero: i32,
    bytes: Vec<Vec<u8>>,
}

impl Digits {
    /// Those of integers of 8 or 16 bits less this zero point; `None` for other types.
    fn new(tensor: &Tensor, zero: i32) -> Option<Digits> {
        let signed = tensor.dtype().is_signed_integer();
        let bytes = match tensor.dtype() {
            DType::I8 | DType::U8 => vec![tensor.bytes().to_vec()],
            DType::I16 | DType::U16 => {
                let words = tensor.bytes().as_chunks::<2>().0;
                let digit = |shift: u32| words.iter().map(|word| (u16::from_ne_bytes(*word) >> shift) as u8).collect();
                vec![digit(8), digit(0)]
            }
            _ => return None,
        };
        Some(Digits { signed, zero, bytes })
    }

    /// Rows made of the bytes of each digit, its type, and the byte of its zero point.
    fn rows(&self, make: impl Fn(&[u8], Zero) -> IntegerRows<'static>) -> ExactRows<'static> {
        let of = |digit: usize, shift: u32, signed: bool| {
            make(&self.bytes[digit], Zero { code: (self.zero >> shift) as u8, kind: ByteType { signed } })
        };
        match self.bytes.len() {
            1 => ExactRows::of_bytes(of(0, 0, self.signed), self.zero),
            _ => ExactRows::of_words([of(0, 8, self.signed), of(1, 0, false)], self.zero),
        }
    }
}

/// The only zero point of activations; `None` where there are several.
fn only_zero(zeros: Option<&Tensor>) -> Option<i32> {
    let Some(tensor) = zeros else { return Some(0) };
    match each_number(tensor)?.as_slice() {
        &[zero] => Some(zero),
        _ => None,
    }
}

fn each_number(tensor: &Tensor) -> Option<Vec<i32>> {
    let numbers = scalars(tensor).ok()?;
    Some(numbers.into_iter().map(|number| number.to_f64() as i32).collect())
}

/// A weight in panels whose products have exact sums.
struct Weights {
    panels: PanelWeight,
    /// Of integers of 16 bits: whether they have a sign, and the zero point of each output of all groups.
    words: Option<(bool, Vec<i32>)>,
}

impl Weights {
    /// The weight in operand 1; `None` where it has another form, or its zero points are not one or one for each output.
    fn new(operands: &[Operand], zeros: Option<&Tensor>, outputs: usize) -> Option<Weights> {
        let weight = operands.get(1)?.as_weight()?;
        if weight.dtype() == DType::F32 {
            let panels = PanelWeight::of(weight)?;
            panels.codes.as_ref().filter(|layout| ExactWeight::takes(layout))?;
            return Some(Weights { panels, words: None });
        }
        let panels = PanelWeight::of_words(weight)?;
        let zeros = match zeros.map(each_number) {
            None => vec![0; outputs],
            Some(numbers) => match numbers?.as_slice() {
                &[single] => vec![single; outputs],
                several if several.len() == outputs => several.to_vec(),
                _ => return None,
            },
        };
        Some(Weights { words: Some((weight.dtype().is_signed_integer(), zeros)), panels })
    }

    /// What lies in the runs of a group, which has `outputs`.
    fn of_group(&self, group: usize, inputs: usize, outputs: usize) -> ExactWeight<'_> {
        match (&self.words, &self.panels.codes) {
            (None, Some(layout)) => ExactWeight::Codes(layout),
            (words, _) => {
                let (signed, zeros) = words.as_ref().map_or((false, &[][..]), |(signed, zeros)| (*signed, &zeros[..]));
                let zeros = zeros.get(group * outputs..(group + 1) * outputs).unwrap_or_default();
                ExactWeight::Words(ExactWords { signed, zeros, inputs })
            }
        }
    }
}

/// Zeros for the exact sums of a result of this shape.
fn sums_of(shape: &[usize]) -> Result<Vec<f64>, KernelError> {
    let too_large = || TensorError::TooLarge { dtype: DType::F64, shape: shape.to_vec() };
    Ok(filled(0.0, element_count(shape).ok_or_else(too_large)?)?)
}

/// The results of a program over sums rounded to f32: `fill` gives those from a place on, all within `run` elements from a multiple
/// of it.
fn finished(
    program: &Program,
    shape: &[usize],
    further: &[Option<Value>],
    context: &mut Context<'_>,
    (run, fill): (usize, impl Fn(usize, &mut [f32]) + Sync),
) -> Result<Vec<Value>, KernelError> {
    let too_large = || TensorError::TooLarge { dtype: DType::F32, shape: shape.to_vec() };
    let mut rounded: Vec<f32> = filled(0.0, element_count(shape).ok_or_else(too_large)?)?;
    let run = run.max(1);
    let size = rounded.len().div_ceil(parts(rounded.len(), usize::MAX)).next_multiple_of(run).max(run);
    chunks(&mut rounded, size, |part, own| {
        own.chunks_mut(run).enumerate().for_each(|(index, own)| fill(part * size + index * run, own));
    });
    let results = program::apply(program, Accumulators::Float(&rounded), shape, further, context)?;
    Ok(vec![single(results)?.into()])
}

/// The product of `operator`, whose operands are not both integers of 8 bits.
pub(super) fn matmul(
    operator: &IntegerMatmul,
    mut operands: Vec<Operand>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    if reads_own(&operator.program, MATMUL_OPERANDS) || operator.program.is_empty() {
        return run_reference(operator, operands, context);
    }
    let further = fused::operands(&mut operands, MATMUL_OPERANDS)?;
    let zeros = [zero_points(&mut operands, 2)?, zero_points(&mut operands, 3)?];
    let a = tensor_operand(&mut operands, 0)?;
    let plan = match operands.get(1).and_then(Operand::as_weight) {
        Some(weight) => Some(operator.resolve(a.shape(), &weight.shape()?)?),
        None => None,
    };
    let known = plan.and_then(|plan| {
        let weights = Weights::new(&operands, zeros[1].as_ref(), plan.b.columns)?;
        let digits = Digits::new(&a, only_zero(zeros[0].as_ref())?)?;
        let of_rows = zeros[1].as_ref().is_none_or(|zero| zero.count() == 1 || zero.rank() == 1);
        let types = [a.dtype(), weights.panels.weight.dtype()];
        let fits = of_rows && !plan.b.vector && weights.panels.panels.groups == 1;
        (fits && same_types([zeros[0].as_ref(), zeros[1].as_ref()], types)).then_some((plan, weights, digits))
    });
    let Some((plan, weights, digits)) = known else {
        let b = tensor_operand(&mut operands, 1)?;
        let [a_zero, b_zero] = zeros;
        let operands = reloaded([Some(a), Some(b), a_zero, b_zero], further, MATMUL_OPERANDS);
        return run_reference(operator, operands, context);
    };
    let (rows, inputs, columns) = (plan.a.rows * plan.batches.len(), plan.a.columns, plan.b.columns);
    let mut sums = sums_of(&plan.shape)?;
    if !sums.is_empty() {
        let x = digits.rows(|bytes, zero| IntegerRows::new(bytes, rows, inputs, zero.kind));
        let (weight, mut open) = (weights.of_group(0, inputs, columns), OpenPanels::default());
        weights.panels.for_each_run(|runs| {
            exact_product(Instructions::best(), &x, weight, &coded_pieces(runs), &mut open, &mut sums, columns);
            Ok(())
        })?;
    }
    let fill = |place: usize, own: &mut [f32]| {
        own.iter_mut().zip(&sums[place..]).for_each(|(rounded, sum)| *rounded = *sum as f32);
    };
    finished(&operator.program, &plan.shape, &further, context, (columns, fill))
}

/// The convolution of `operator`, whose operands are not both integers of 8 bits.
pub(super) fn convolution(
    operator: &IntegerConvolution,
    mut operands: Vec<Operand>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    if reads_own(&operator.program, CONVOLUTION_OPERANDS) || operator.program.is_empty() {
        return run_reference(operator, operands, context);
    }
    let further = fused::operands(&mut operands, CONVOLUTION_OPERANDS)?;
    let zeros = [zero_points(&mut operands, 2)?, zero_points(&mut operands, 3)?];
    let bias = zero_points(&mut operands, 4)?;
    let x = tensor_operand(&mut operands, 0)?;
    let plan = match operands.get(1).and_then(Operand::as_weight) {
        Some(weight) => Some(operator.resolve(x.shape(), &weight.shape()?)?),
        None => None,
    };
    let known = plan.filter(|_| bias.is_none()).and_then(|plan| {
        let weights = Weights::new(&operands, zeros[1].as_ref(), plan.shape[1])?;
        let digits = Digits::new(&x, only_zero(zeros[0].as_ref())?)?;
        let types = [x.dtype(), weights.panels.weight.dtype()];
        let fits = usize::try_from(weights.panels.panels.groups) == Ok(plan.groups);
        (fits && same_types([zeros[0].as_ref(), zeros[1].as_ref()], types)).then_some((plan, weights, digits))
    });
    let Some((plan, weights, digits)) = known else {
        let w = tensor_operand(&mut operands, 1)?;
        let [x_zero, w_zero] = zeros;
        let operands = reloaded([Some(x), Some(w), x_zero, w_zero, bias], further, CONVOLUTION_OPERANDS);
        return run_reference(operator, operands, context);
    };
    let axes: Vec<WindowAxis> = plan.axes.iter().map(window).collect();
    let windows = Windows { plan: &plan, axes, digits };
    let mut sums = sums_of(&plan.shape)?;
    if !sums.is_empty() {
        let mut open: Vec<OpenPanels> = Vec::new();
        weights.panels.for_each_run(|runs| {
            windows.add(&weights, runs, &mut open, &mut sums);
            Ok(())
        })?;
    }
    let (positions, filters) = (windows.positions(), windows.filters());
    // Filters lie side by side in sums, positions in the result.
    let fill = |place: usize, own: &mut [f32]| {
        let channel = place / positions;
        let first = channel / filters * positions * filters + channel % filters;
        let sums = sums[first..].iter().step_by(filters);
        own.iter_mut().zip(sums).for_each(|(rounded, sum)| *rounded = *sum as f32);
    };
    finished(&operator.program, &plan.shape, &further, context, (positions, fill))
}

/// A convolution of which the operands are known.
struct Windows<'a> {
    plan: &'a ConvolutionPlan,
    axes: Vec<WindowAxis>,
    digits: Digits,
}

impl Windows<'_> {
    fn positions(&self) -> usize {
        self.axes.iter().map(|axis| axis.output).product()
    }

    /// Filters of a group.
    fn filters(&self) -> usize {
        self.plan.shape[1] / self.plan.groups
    }

    /// Adds what runs of filters give to sums `[images][groups][positions][filters]`; what is open is of some positions each.
    fn add(&self, weights: &Weights, runs: &[Run<'_>], open: &mut Vec<OpenPanels>, sums: &mut [f64]) {
        let (positions, filters, plan) = (self.positions(), self.filters(), self.plan);
        let inputs = plan.group_channels * self.axes.iter().map(|axis| axis.kernel).product::<usize>();
        let most = (OPERAND_BYTES / inputs.max(1)).max(FEWEST_ROWS);
        let panels = filters.div_ceil(PANEL_OUTPUTS);
        let volume = self.axes.iter().map(|axis| axis.input).product::<usize>();
        let mut opens = 0;
        for (place, sums) in sums.chunks_mut(positions * filters).enumerate() {
            let group = place % plan.groups;
            let runs = within(runs, &(group * panels..(group + 1) * panels));
            let weight = weights.of_group(group, inputs, filters);
            let image = place * plan.group_channels * volume..(place + 1) * plan.group_channels * volume;
            for (part, sums) in sums.chunks_mut(most * filters).enumerate() {
                if open.len() <= opens {
                    open.push(OpenPanels::default());
                }
                let open = &mut open[opens];
                opens += 1;
                if runs.is_empty() {
                    continue;
                }
                let own = part * most..part * most + sums.len() / filters;
                let windows = |bytes: &[u8], zero: Zero| {
                    IntegerRows::windows(&self.axes, &bytes[image.clone()], plan.group_channels, own.clone(), zero)
                };
                let rows = self.digits.rows(windows);
                exact_product(Instructions::best(), &rows, weight, &coded_pieces(&runs), open, sums, filters);
            }
        }
    }
}
