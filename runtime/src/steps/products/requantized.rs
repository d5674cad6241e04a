//! What becomes of complete integer sums within the tasks of a product: a program, or what of it a kernel knows.

use crate::steps::KernelError;
use crate::steps::program::WithinTasks;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Argument, BinaryFunction, Function, Program, ReferenceError, ScalarStep, UnaryFunction};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::product::{ByteType, Parameter, Requantize, SumScale, requantize, scale_sums};
use ipuc_kernels::simd::Instructions;
use std::borrow::Cow;

/// Which sums are completed together: those of one index of axis 1 of a result, or those of consecutive indices of its last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Along {
    /// Positions of a channel of a convolution: `[batch, channels, positions..]`.
    Channels,
    /// Outputs of a row of a matrix: `[.., outputs]`.
    Outputs,
}

/// What makes results of sums.
pub(super) enum Finish<'a> {
    /// The sums themselves.
    Sums,
    /// Codes, by a scale for all or for each channel.
    Codes(Codes<'a>),
    /// Floats, by the same, and what the program makes of them.
    Floats(Scales<'a>, Option<Box<WithinTasks<'a>>>),
    /// A program.
    Program(Box<WithinTasks<'a>>),
}

impl<'a> Finish<'a> {
    /// The program over sums of this shape; `None` where it has no single result of whole bytes.
    ///
    /// # Errors
    /// [`KernelError`] where the program is wrong for its operands.
    pub(super) fn new(
        program: &'a Program,
        shape: &[usize],
        along: Along,
        further: &'a [Option<Value>],
    ) -> Result<Option<Finish<'a>>, KernelError> {
        if program.is_empty() {
            return Ok(Some(Finish::Sums));
        }
        if let Some(codes) = Codes::new(program, shape, along, further) {
            return Ok(Some(Finish::Codes(codes)));
        }
        if let Some((scales, rest)) = Scales::leading(program, shape, along, further) {
            let Some(first) = rest else { return Ok(Some(Finish::Floats(scales, None))) };
            if let Some(rest) = WithinTasks::after(program, first, DType::I32, shape, further)? {
                return Ok(Some(Finish::Floats(scales, Some(Box::new(rest)))));
            }
        }
        Ok(WithinTasks::new(program, DType::I32, shape, further)?.map(|program| Finish::Program(Box::new(program))))
    }

    /// The type of results.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Finish::Sums => DType::I32,
            Finish::Codes(codes) => codes.dtype,
            Finish::Floats(..) => DType::F32,
            Finish::Program(program) => program.dtype(),
        }
    }

    /// Writes the results of sums of a channel, or of outputs from `channel` on, the first of which lies at `place` of the
    /// whole result.
    pub(super) fn write(&self, channel: usize, place: usize, sums: &[i32], results: &mut [u8]) {
        self.write_rows(channel, sums.len(), [(place, sums, results)]);
    }

    /// Writes the results of `count` sums in each row, all of a channel or of outputs from `channel` on: where the first of a row
    /// lies in the whole result, its sums, and its results. What is the same for all rows is looked up once: the memory that it lies
    /// in may share cache lines with what another thread writes.
    pub(super) fn write_rows<'r>(
        &self,
        channel: usize,
        count: usize,
        rows: impl IntoIterator<Item = (usize, &'r [i32], &'r mut [u8])>,
    ) {
        let instructions = Instructions::best();
        match self {
            Finish::Sums => {
                rows.into_iter().for_each(|(_, sums, results)| results.copy_from_slice(bytemuck::cast_slice(sums)));
            }
            Finish::Codes(codes) => {
                let by = codes.of(channel, count);
                rows.into_iter().for_each(|(_, sums, results)| requantize(instructions, sums, by, results));
            }
            Finish::Floats(scales, rest) => {
                let by = scales.of(channel, count);
                let scaled = rows.into_iter().map(|(place, sums, results)| {
                    let results: &mut [f32] = bytemuck::cast_slice_mut(results);
                    scale_sums(instructions, sums, by, results);
                    (place, results)
                });
                match rest {
                    None => scaled.for_each(drop),
                    Some(rest) => rest.on_this_thread(|own| {
                        scaled.for_each(|(place, results)| own.change(place, results));
                    }),
                }
            }
            Finish::Program(program) => program.on_this_thread(|own| {
                rows.into_iter().for_each(|(place, sums, results)| own.write(place, sums, results));
            }),
        }
    }

    /// What went wrong in any task.
    ///
    /// # Errors
    /// [`ReferenceError`] for a division of integers by zero.
    pub(super) fn finish(self) -> Result<(), ReferenceError> {
        match self {
            Finish::Sums | Finish::Codes(_) | Finish::Floats(_, None) => Ok(()),
            Finish::Floats(_, Some(rest)) => rest.finish(),
            Finish::Program(program) => program.finish(),
        }
    }
}

/// `sum * scale + offset` with a scale and an offset for all, or for each channel or output.
pub(super) struct Scales<'a> {
    along: Along,
    scales: Cow<'a, [f32]>,
    offsets: Option<&'a [f32]>,
}

impl<'a> Scales<'a> {
    /// What the next steps of a program are.
    fn take(steps: &mut Steps<'_>, shape: &[usize], along: Along, further: &'a [Option<Value>]) -> Option<Scales<'a>> {
        steps.take(|function| matches!(function, Function::Cast), DType::F32, 1)?;
        let values = |argument: Argument| parameters(operand(further, argument)?, shape, along);
        let scales = match steps.product_of_operands() {
            Some((own, [one, other])) => {
                (steps.binary(BinaryFunction::Mul, DType::F32)? == own).then_some(())?;
                Cow::Owned(products(values(one)?, values(other)?))
            }
            None => Cow::Borrowed(values(steps.binary(BinaryFunction::Mul, DType::F32)?)?),
        };
        let (next, value) = (steps.next, steps.value);
        let offsets = steps.binary(BinaryFunction::Add, DType::F32).and_then(values);
        if offsets.is_none() {
            // What has other values for each sum is a step of its own.
            (steps.next, steps.value) = (next, value);
        }
        Some(Scales { along, scales, offsets })
    }

    /// What a program whose only result is f32 begins with, and the step after it, where that is not all; the others read the last of
    /// these steps and none before it.
    fn leading(
        program: &Program,
        shape: &[usize],
        along: Along,
        further: &'a [Option<Value>],
    ) -> Option<(Scales<'a>, Option<usize>)> {
        let mut steps = Steps { program, next: 0, value: Argument::Input };
        let scales = Scales::take(&mut steps, shape, along, further)?;
        let is_later = |argument: &Argument| match (argument, steps.value) {
            (Argument::Step(step), Argument::Step(value)) => *step >= value,
            (Argument::Operand(_) | Argument::Constant(..), _) => true,
            (Argument::Input | Argument::Step(_), _) => false,
        };
        let mut read = program.steps[steps.next..].iter().flat_map(|step| &step.arguments).chain(&program.results);
        read.all(is_later).then_some(())?;
        if steps.end() {
            return Some((scales, None));
        }
        let &[Argument::Step(result)] = program.results.as_slice() else { return None };
        (program.steps.get(usize::from(result))?.to == DType::F32).then_some((scales, Some(steps.next)))
    }

    /// For `count` sums of a channel, or of outputs from `channel` on.
    fn of(&self, channel: usize, count: usize) -> SumScale<'_> {
        let offset = self.offsets.map(|offsets| self.values(offsets, channel, count));
        SumScale { scale: self.values(&self.scales, channel, count), offset }
    }

    fn values<'v>(&self, values: &'v [f32], channel: usize, count: usize) -> Parameter<'v> {
        match (values, self.along) {
            (&[value], _) => Parameter::All(value),
            (values, Along::Channels) => Parameter::All(values[channel]),
            (values, Along::Outputs) => Parameter::Each(&values[channel..channel + count]),
        }
    }
}

/// `round(sum * scale + offset) + zero`.
pub(super) struct Codes<'a> {
    scales: Scales<'a>,
    zero: i32,
    dtype: DType,
}

impl<'a> Codes<'a> {
    fn new(program: &Program, shape: &[usize], along: Along, further: &'a [Option<Value>]) -> Option<Codes<'a>> {
        let mut steps = Steps { program, next: 0, value: Argument::Input };
        let scales = Scales::take(&mut steps, shape, along, further)?;
        let is_code = |dtype: DType| matches!(dtype, DType::U8 | DType::I8);
        let round = |function: &Function| matches!(function, Function::Unary(UnaryFunction::Round));
        let last = program.steps.last()?.to;
        let zero = if steps.take(round, DType::I32, 1).is_some() {
            let widened = steps.widened();
            match steps.binary(BinaryFunction::Add, last)? {
                Argument::Constant(DType::I32, bits) => bits as u32 as i32,
                argument if widened.is_some_and(|(own, _)| own == argument) => code(operand(further, widened?.1)?)?,
                _ => return None,
            }
        } else {
            steps.take(round, last, 1)?;
            0
        };
        let kind = ByteType { signed: last == DType::I8 };
        let holds = if kind.signed { (-128..=127).contains(&zero) } else { (0..=255).contains(&zero) };
        (is_code(last) && holds && steps.end()).then_some(Codes { scales, zero, dtype: last })
    }

    /// For `count` sums of a channel, or of outputs from `channel` on.
    pub(super) fn of(&self, channel: usize, count: usize) -> Requantize<'_> {
        let kind = ByteType { signed: self.dtype == DType::I8 };
        Requantize { by: self.scales.of(channel, count), zero: self.zero, kind }
    }
}

/// The steps of a program that go on with the value of the last one.
struct Steps<'a> {
    program: &'a Program,
    next: usize,
    value: Argument,
}

impl Steps<'_> {
    /// Whether the value is the only result, and there is no further step.
    fn end(&self) -> bool {
        self.next == self.program.steps.len() && self.program.results == [self.value]
    }

    fn peek(&self) -> Option<&ScalarStep> {
        self.program.steps.get(self.next)
    }

    fn advance(&mut self) -> Option<()> {
        self.value = Argument::Step(u16::try_from(self.next).ok()?);
        self.next += 1;
        Some(())
    }

    /// The next step, where it is such a function of the value alone.
    fn take(&mut self, is: impl Fn(&Function) -> bool, to: DType, arity: usize) -> Option<()> {
        let step = self.peek()?;
        let fits = is(&step.function) && step.to == to && step.arguments.len() == arity;
        (fits && step.arguments[0] == self.value).then_some(())?;
        self.advance()
    }

    /// The other argument of the next step, where that is this function of the value and another.
    fn binary(&mut self, function: BinaryFunction, to: DType) -> Option<Argument> {
        let step = self.peek()?;
        let &[one, other] = step.arguments.as_slice() else { return None };
        let argument = match self.value {
            value if value == one => other,
            value if value == other => one,
            _ => return None,
        };
        (step.function == Function::Binary(function) && step.to == to && argument != self.value).then_some(())?;
        self.advance()?;
        Some(argument)
    }

    /// A step that multiplies two operands: its result and the operands. The value stays what it is.
    fn product_of_operands(&mut self) -> Option<(Argument, [Argument; 2])> {
        let step = self.peek()?;
        let &[one @ Argument::Operand(_), other @ Argument::Operand(_)] = step.arguments.as_slice() else {
            return None;
        };
        (step.function == Function::Binary(BinaryFunction::Mul) && step.to == DType::F32).then_some(())?;
        let own = Argument::Step(u16::try_from(self.next).ok()?);
        self.next += 1;
        Some((own, [one, other]))
    }

    /// A step that widens another operand: its result and the operand. The value stays what it is.
    fn widened(&mut self) -> Option<(Argument, Argument)> {
        let step = self.peek()?;
        let &[operand @ Argument::Operand(_)] = step.arguments.as_slice() else { return None };
        (step.function == Function::Cast && step.to == DType::I32).then_some(())?;
        let own = Argument::Step(u16::try_from(self.next).ok()?);
        self.next += 1;
        Some((own, operand))
    }
}

fn operand(further: &[Option<Value>], argument: Argument) -> Option<&Tensor> {
    match argument {
        Argument::Operand(operand) => further.get(usize::from(operand))?.as_ref()?.as_tensor(),
        Argument::Input | Argument::Step(_) | Argument::Constant(..) => None,
    }
}

/// The elements of an operand that has one for all, or one for each index of an axis of a result of this shape.
fn parameters<'a>(tensor: &'a Tensor, shape: &[usize], along: Along) -> Option<&'a [f32]> {
    let values = tensor.elements::<f32>().ok().filter(|values| !values.is_empty())?;
    let behind = match along {
        Along::Channels => shape.len().checked_sub(1)?,
        Along::Outputs => 1,
    };
    let extent = |shape: &[usize]| shape.len().checked_sub(behind).map(|axis| shape[axis]);
    let own = Some(values.len());
    let fits = values.len() == 1 || (extent(tensor.shape()) == own && extent(shape) == own);
    fits.then_some(values)
}

/// Products of the values of two operands, of which one may have a single value.
fn products(one: &[f32], other: &[f32]) -> Vec<f32> {
    let (few, many) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    many.iter().zip(few.iter().cycle()).map(|(many, few)| many * few).collect()
}

/// The only element of a tensor of codes of 8 bits.
fn code(tensor: &Tensor) -> Option<i32> {
    match (tensor.dtype(), tensor.bytes()) {
        (DType::U8, &[code]) => Some(code.into()),
        (DType::I8, &[code]) => Some((code as i8).into()),
        _ => None,
    }
}
