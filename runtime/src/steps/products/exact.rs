//! Products of integers whose sums do not fit into 32 bits, or of codes with scales of their own: exact sums in f32, then the
//! program over them.
//!
//! Where activations have 16 bits, weights have, or weights are codes with planes. Weights come in panels, whole or in pieces of
//! their inputs; where they do not, or zero points differ from row to row, the reference computes.

use super::convolution::window;
use super::floats::single;
use super::fused;
use super::integer_operands::{each_zero, reads_own, reloaded, same_types, single_zero, zero_points};
use super::integer_tasks::{FEWEST_ROWS, OPERAND_BYTES, sums_of};
use super::panels::{PanelWeight, Run, within};
use crate::steps::program::{self, Accumulators};
use crate::steps::{Context, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::Panels;
use ipuc_formats::ops::{
    ConvolutionPlan, IntegerConvolution, IntegerMatmul, Operator, ProductPlan, Program, ReferenceError,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::product::{
    ByteType, CodedLayout, ExactRows, ExactWeight, ExactWords, IntegerRows, OpenPanels, PANEL_OUTPUTS, Zero,
    exact_product,
};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::{chunks, parts};
use ipuc_kernels::window::WindowAxis;

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

/// A weight in panels whose products have exact sums.
struct Weights {
    panels: PanelWeight,
    elements: Elements,
}

/// What lies in panels.
enum Elements {
    Codes(CodedLayout),
    /// Integers of 16 bits, and the zero point of each output of all groups.
    Words {
        signed: bool,
        zeros: Vec<i32>,
    },
}

impl Weights {
    /// The weight in operand 1; `None` where it has another form, or its zero points are not one or one for each output.
    fn new(operands: &[Operand], zeros: Option<&Tensor>, outputs: usize) -> Option<Weights> {
        let weight = operands.get(1)?.as_weight()?;
        if weight.dtype() == DType::F32 {
            let panels = PanelWeight::of(weight)?;
            let layout = panels.codes.clone().filter(ExactWeight::takes)?;
            return Some(Weights { panels, elements: Elements::Codes(layout) });
        }
        let (signed, zeros) = (weight.dtype().is_signed_integer(), each_zero(zeros, outputs)?);
        Some(Weights { panels: PanelWeight::of_words(weight)?, elements: Elements::Words { signed, zeros } })
    }

    /// What lies in the runs of a group, which has `outputs`.
    fn of_group(&self, group: usize, inputs: usize, outputs: usize) -> ExactWeight<'_> {
        match &self.elements {
            Elements::Codes(layout) => ExactWeight::Codes(layout),
            Elements::Words { signed, zeros } => {
                let zeros = &zeros[group * outputs..(group + 1) * outputs];
                ExactWeight::Words(ExactWords { signed: *signed, zeros, inputs })
            }
        }
    }
}

/// A product with exact sums, of which operands 0 and 1 are activations and weight, 2 and 3 their zero points.
trait Exact: Operator {
    /// Operands of the product itself; further ones are the program's.
    const OPERANDS: usize;
    type Plan;

    fn program(&self) -> &Program;
    fn resolve(&self, x: &[usize], weight: &[usize]) -> Result<Self::Plan, ReferenceError>;
    /// Outputs of all groups.
    fn outputs(plan: &Self::Plan) -> usize;
    /// Whether these panels and these zero points of outputs are ones of such a product.
    fn fits(plan: &Self::Plan, panels: &Panels, zeros: Option<&Tensor>) -> bool;
}

impl Exact for IntegerMatmul {
    const OPERANDS: usize = 4;
    type Plan = ProductPlan;

    fn program(&self) -> &Program {
        &self.program
    }

    fn resolve(&self, x: &[usize], weight: &[usize]) -> Result<ProductPlan, ReferenceError> {
        self.resolve(x, weight)
    }

    fn outputs(plan: &ProductPlan) -> usize {
        plan.b.columns
    }

    fn fits(plan: &ProductPlan, panels: &Panels, zeros: Option<&Tensor>) -> bool {
        zeros.is_none_or(|zero| zero.count() == 1 || zero.rank() == 1) && !plan.b.vector && panels.groups == 1
    }
}

impl Exact for IntegerConvolution {
    /// No bias is among them where sums are f32.
    const OPERANDS: usize = 5;
    type Plan = ConvolutionPlan;

    fn program(&self) -> &Program {
        &self.program
    }

    fn resolve(&self, x: &[usize], weight: &[usize]) -> Result<ConvolutionPlan, ReferenceError> {
        self.resolve(x, weight)
    }

    fn outputs(plan: &ConvolutionPlan) -> usize {
        plan.shape[1]
    }

    fn fits(plan: &ConvolutionPlan, panels: &Panels, _zeros: Option<&Tensor>) -> bool {
        usize::try_from(panels.groups) == Ok(plan.groups)
    }
}

/// A product of which the operands are known.
struct Known<P> {
    plan: P,
    weights: Weights,
    digits: Digits,
    /// Those of the program, each at its own place.
    further: Vec<Option<Value>>,
}

/// The operands of a product with exact sums.
enum Operands<P> {
    Known(Box<Known<P>>),
    /// As they came: only the reference takes them.
    Others(Vec<Operand>),
}

fn operands_of<O: Exact>(operator: &O, mut operands: Vec<Operand>) -> Result<Operands<O::Plan>, KernelError> {
    if reads_own(operator.program(), O::OPERANDS) || operator.program().is_empty() {
        return Ok(Operands::Others(operands));
    }
    let further = fused::operands(&mut operands, O::OPERANDS)?;
    let zeros = [zero_points(&mut operands, 2)?, zero_points(&mut operands, 3)?];
    let bias = if O::OPERANDS > 4 { zero_points(&mut operands, 4)? } else { None };
    let x = tensor_operand(&mut operands, 0)?;
    let plan = match operands.get(1).and_then(Operand::as_weight) {
        Some(weight) => Some(operator.resolve(x.shape(), weight.shape()?)?),
        None => None,
    };
    let known = plan.filter(|_| bias.is_none()).and_then(|plan| {
        let [of_x, of_weight] = zeros.each_ref().map(Option::as_ref);
        let weights = Weights::new(&operands, of_weight, O::outputs(&plan))?;
        let digits = Digits::new(&x, single_zero(of_x)?)?;
        let types = [x.dtype(), weights.panels.weight.dtype()];
        let fits = O::fits(&plan, &weights.panels.panels, of_weight) && same_types([of_x, of_weight], types);
        fits.then_some((plan, weights, digits))
    });
    if let Some((plan, weights, digits)) = known {
        return Ok(Operands::Known(Box::new(Known { plan, weights, digits, further })));
    }
    let weight = tensor_operand(&mut operands, 1)?;
    let [of_x, of_weight] = zeros;
    let own = [Some(x), Some(weight), of_x, of_weight, bias].into_iter().take(O::OPERANDS);
    Ok(Operands::Others(reloaded(own, further, O::OPERANDS)))
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
    let mut rounded: Vec<f32> = sums_of(shape)?;
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
    operands: Vec<Operand>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    let Known { plan, weights, digits, further } = match operands_of(operator, operands)? {
        Operands::Known(known) => *known,
        Operands::Others(operands) => return run_reference(operator, operands, context),
    };
    let (rows, inputs, columns) = (plan.a.rows * plan.batches.len(), plan.a.columns, plan.b.columns);
    let mut sums: Vec<f64> = sums_of(&plan.shape)?;
    if !sums.is_empty() {
        let x = digits.rows(|bytes, zero| IntegerRows::new(bytes, rows, inputs, zero.kind));
        let (weight, mut open) = (weights.of_group(0, inputs, columns), OpenPanels::default());
        weights.panels.for_each_run(|runs| {
            exact_product(Instructions::best(), &x, weight, runs, &mut open, &mut sums, columns);
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
    operands: Vec<Operand>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    let Known { plan, weights, digits, further } = match operands_of(operator, operands)? {
        Operands::Known(known) => *known,
        Operands::Others(operands) => return run_reference(operator, operands, context),
    };
    let axes: Vec<WindowAxis> = plan.axes.iter().map(window).collect();
    let windows = Windows { plan: &plan, axes, digits };
    let mut sums: Vec<f64> = sums_of(&plan.shape)?;
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
                exact_product(Instructions::best(), &rows, weight, &runs, open, sums, filters);
            }
        }
    }
}
