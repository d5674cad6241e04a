//! What programs compute with: blocks of elements, and where they come from.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::ReferenceError;
use ipuc_formats::ops::broadcast::broadcast_strides;
use ipuc_formats::ops::scalar::{Scalar, from_scalars, scalar_of_bits, scalars};
use ipuc_formats::tensor::Tensor;
use ipuc_kernels::elements::{Runs, map_block};
use ipuc_kernels::simd::HALF;
use std::ops::Range;

/// Elements of a block.
pub(in crate::steps) const BLOCK: usize = 1024;

/// How elements of a type are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// f32, f16 and bf16, as f32.
    Float,
    /// Truths, and integers that an i32 holds.
    Integer,
    /// All others.
    General,
}

impl Class {
    pub(super) fn of(dtype: DType) -> Class {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Class::Float,
            DType::Bool => Class::Integer,
            other if other.is_signed_integer() && other.bits() <= 32 => Class::Integer,
            other if other.is_unsigned_integer() && other.bits() <= 16 => Class::Integer,
            _ => Class::General,
        }
    }
}

/// Whether results of a type are written block by block.
pub(super) fn is_written(dtype: DType) -> bool {
    dtype.bits() >= 8 && scalar_of_bits(dtype, 0).is_some()
}

/// A block of elements.
#[derive(Debug, Clone)]
pub(super) enum Register {
    Float(Vec<f32>),
    Integer(Vec<i32>),
    General(Vec<Scalar>),
}

impl Register {
    /// For elements of a type.
    pub(super) fn of(dtype: DType) -> Register {
        match Class::of(dtype) {
            Class::Float => Register::Float(Vec::new()),
            Class::Integer => Register::Integer(Vec::new()),
            Class::General => Register::General(Vec::new()),
        }
    }

    /// One value.
    pub(super) fn of_value(dtype: DType, value: Scalar) -> Register {
        match Class::of(dtype) {
            Class::Float => Register::Float(vec![float(value)]),
            Class::Integer => Register::Integer(vec![integer(value)]),
            Class::General => Register::General(vec![value]),
        }
    }

    /// The first element, `count` times.
    pub(super) fn repeated(&self, count: usize) -> Register {
        match self {
            Register::Float(values) => Register::Float(values[..1].repeat(count)),
            Register::Integer(values) => Register::Integer(values[..1].repeat(count)),
            Register::General(values) => Register::General(values[..1].repeat(count)),
        }
    }

    /// The first `count` elements.
    pub(super) fn to_scalars(&self, count: usize) -> Vec<Scalar> {
        match self {
            Register::Float(values) => values[..count].iter().map(|&value| Scalar::Float(value.into())).collect(),
            Register::Integer(values) => values[..count].iter().map(|&value| Scalar::Integer(value.into())).collect(),
            Register::General(values) => values[..count].to_vec(),
        }
    }

    /// Holds these values, each of which its type holds.
    pub(super) fn assign(&mut self, values: &[Scalar]) {
        match self {
            Register::Float(own) => {
                own.clear();
                own.extend(values.iter().map(|&value| float(value)));
            }
            Register::Integer(own) => {
                own.clear();
                own.extend(values.iter().map(|&value| integer(value)));
            }
            Register::General(own) => {
                own.clear();
                own.extend_from_slice(values);
            }
        }
    }

    /// Writes the first elements as elements of `dtype`.
    pub(super) fn write(&self, dtype: DType, bytes: &mut [u8]) -> Result<(), ReferenceError> {
        let count = bytes.len() / (dtype.bits() / 8).max(1);
        match (self, dtype) {
            (Register::Float(values), DType::F32) => bytes.copy_from_slice(bytemuck::cast_slice(&values[..count])),
            (Register::Integer(values), DType::I32) => bytes.copy_from_slice(bytemuck::cast_slice(&values[..count])),
            // The low byte of an integer is what its type stores.
            (Register::Integer(values), DType::I8 | DType::U8 | DType::Bool) => {
                map_block(|value: i32| value as u8)(bytes, &values[..count]);
            }
            (Register::Integer(values), DType::I16 | DType::U16) => {
                let pairs = bytes.as_chunks_mut::<2>().0.iter_mut();
                pairs.zip(values).for_each(|(pair, &value)| *pair = (value as u16).to_ne_bytes());
            }
            (Register::Float(values), DType::F16) => {
                let pairs = bytes.as_chunks_mut::<2>().0.iter_mut();
                pairs.zip(values).for_each(|(pair, &value)| *pair = f16::from_f32(value).to_ne_bytes());
            }
            (Register::Float(values), DType::BF16) => {
                let pairs = bytes.as_chunks_mut::<2>().0.iter_mut();
                pairs.zip(values).for_each(|(pair, &value)| *pair = bf16::from_f32(value).to_ne_bytes());
            }
            (register, dtype) => {
                let tensor = from_scalars(dtype, &[count], &register.to_scalars(count))?;
                bytes.copy_from_slice(tensor.bytes());
            }
        }
        Ok(())
    }
}

fn float(value: Scalar) -> f32 {
    value.to_f64() as f32
}

fn integer(value: Scalar) -> i32 {
    match value {
        Scalar::Integer(integer) => integer as i32,
        Scalar::Float(float) => float as i32,
    }
}

/// The registers of one thread: those of operands and steps are written for each block, those of constants are kept.
pub(in crate::steps) struct Registers(pub(super) Vec<Register>);

/// What a program begins with.
#[derive(Debug, Clone, Copy)]
pub(in crate::steps) enum Accumulators<'a> {
    /// Nothing: it belongs to no product.
    None,
    /// Sums in f32.
    Float(&'a [f32]),
    /// Sums in i32.
    Integer(&'a [i32]),
}

impl<'a> Accumulators<'a> {
    pub(super) fn dtype(&self) -> Option<DType> {
        match self {
            Accumulators::None => None,
            Accumulators::Float(_) => Some(DType::F32),
            Accumulators::Integer(_) => Some(DType::I32),
        }
    }

    pub(super) fn scalars(&self) -> Option<(DType, Vec<Scalar>)> {
        Some(match self {
            Accumulators::None => return None,
            Accumulators::Float(values) => {
                (DType::F32, values.iter().map(|&value| Scalar::Float(value.into())).collect())
            }
            Accumulators::Integer(values) => {
                (DType::I32, values.iter().map(|&value| Scalar::Integer(value.into())).collect())
            }
        })
    }

    /// Those of some elements.
    pub(super) fn at(&self, range: Range<usize>) -> Accumulators<'a> {
        match self {
            Accumulators::None => Accumulators::None,
            Accumulators::Float(values) => Accumulators::Float(&values[range]),
            Accumulators::Integer(values) => Accumulators::Integer(&values[range]),
        }
    }
}

/// An operand and how it is read for the elements of the result.
pub(super) struct Source<'a> {
    elements: Elements<'a>,
    runs: Runs<1>,
    /// Lines of [`HALF`] elements, where one is repeated: those of channels in blocks.
    lines: Option<Runs<1>>,
}

/// Elements of an operand where they lie, and whether there is one for each element of the result, or one for all.
pub(super) enum Direct<'a> {
    /// As many for each line of elements.
    Line(&'a [f32; HALF]),
    Floats(&'a [f32], bool),
    Integers(&'a [i32], bool),
    Unsigned(&'a [u8], bool),
    Signed(&'a [i8], bool),
}

enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
    I32(&'a [i32]),
    I16(&'a [i16]),
    U16(&'a [u16]),
    I8(&'a [i8]),
    U8(&'a [u8]),
    General(Vec<Scalar>),
}

impl<'a> Source<'a> {
    /// # Errors
    /// [`ReferenceError`] for elements that are no numbers.
    pub(super) fn new(tensor: &'a Tensor, shape: &[usize]) -> Result<Source<'a>, ReferenceError> {
        let elements = match tensor.dtype() {
            DType::F32 => Elements::F32(tensor.elements()?),
            DType::F16 => Elements::F16(tensor.elements()?),
            DType::BF16 => Elements::Bf16(tensor.elements()?),
            DType::I32 => Elements::I32(tensor.elements()?),
            DType::I16 => Elements::I16(tensor.elements()?),
            DType::U16 => Elements::U16(tensor.elements()?),
            DType::I8 => Elements::I8(tensor.elements()?),
            DType::U8 => Elements::U8(tensor.elements()?),
            // A byte that is 0 or 1.
            DType::Bool => Elements::U8(tensor.bytes()),
            _ => Elements::General(scalars(tensor)?),
        };
        let strides = broadcast_strides(tensor.shape(), shape);
        let runs = Runs::new(shape, [&strides]);
        let lines = match (shape, strides.as_slice()) {
            ([outer @ .., HALF], [outer_strides @ .., 1]) => Some(Runs::new(outer, [outer_strides])),
            _ => None,
        };
        let lines = lines.filter(|lines| lines.length() > 1 && !lines.moves());
        Ok(Source { elements, runs, lines })
    }

    /// The line of elements that is repeated for those of a block.
    fn line(&self, range: &Range<usize>) -> Option<&'a [f32; HALF]> {
        let (Some(lines), Elements::F32(values)) = (&self.lines, &self.elements) else { return None };
        let ([start], _) = lines.single(&(range.start / HALF..range.end.div_ceil(HALF)))?;
        values[start..].first_chunk().filter(|_| range.start.is_multiple_of(HALF))
    }

    /// The elements of a block where they lie, if they lie side by side or are one; `None` for types that are read into
    /// registers always.
    pub(super) fn direct(&self, range: &Range<usize>) -> Option<Direct<'_>> {
        if let Some(line) = self.line(range) {
            return Some(Direct::Line(line));
        }
        let ([start], [moves]) = self.runs.single(range)?;
        let own = start..start + if moves { range.len() } else { 1 };
        match &self.elements {
            Elements::F32(values) => Some(Direct::Floats(&values[own], moves)),
            Elements::I32(values) => Some(Direct::Integers(&values[own], moves)),
            Elements::U8(values) => Some(Direct::Unsigned(&values[own], moves)),
            Elements::I8(values) => Some(Direct::Signed(&values[own], moves)),
            Elements::F16(_) | Elements::Bf16(_) | Elements::I16(_) | Elements::U16(_) | Elements::General(_) => None,
        }
    }

    /// Between multiples of so many elements of the result, [`Source::direct`] gives the elements; `None` where it never does.
    pub(super) fn direct_run(&self) -> Option<usize> {
        if let (Some(lines), Elements::F32(_)) = (&self.lines, &self.elements) {
            return Some(lines.length() * HALF);
        }
        match &self.elements {
            Elements::F32(_) | Elements::I32(_) | Elements::U8(_) | Elements::I8(_) => Some(self.runs.length()),
            Elements::F16(_) | Elements::Bf16(_) | Elements::I16(_) | Elements::U16(_) | Elements::General(_) => None,
        }
    }

    /// Reads the elements of a block.
    pub(super) fn load(&self, range: Range<usize>, register: &mut Register) {
        match (register, &self.elements) {
            (Register::Float(own), Elements::F32(values)) => self.copy(range, own, values, <[f32]>::copy_from_slice),
            (Register::Float(own), Elements::F16(values)) => {
                self.copy(range, own, values, |out, x| x.convert_to_f32_slice(out));
            }
            (Register::Float(own), Elements::Bf16(values)) => {
                self.copy(range, own, values, |out, x| x.convert_to_f32_slice(out));
            }
            (Register::Integer(own), Elements::I32(values)) => self.copy(range, own, values, <[i32]>::copy_from_slice),
            (Register::Integer(own), Elements::I16(values)) => self.copy(range, own, values, map_block(i32::from)),
            (Register::Integer(own), Elements::U16(values)) => self.copy(range, own, values, map_block(i32::from)),
            (Register::Integer(own), Elements::I8(values)) => self.copy(range, own, values, map_block(i32::from)),
            (Register::Integer(own), Elements::U8(values)) => self.copy(range, own, values, map_block(i32::from)),
            (register, Elements::General(values)) => {
                let mut own = Vec::with_capacity(range.len());
                self.runs.visit_runs(range, |count, [start], [moves]| {
                    (0..count).for_each(|index| own.push(values[if moves { start + index } else { start }]));
                });
                register.assign(&own);
            }
            // Registers have the class of the operand's type.
            (Register::General(_) | Register::Float(_) | Register::Integer(_), _) => {}
        }
    }

    /// Writes the elements of a block as `widen` gives them.
    fn copy<T, R: Copy + Default>(
        &self,
        range: Range<usize>,
        own: &mut Vec<R>,
        values: &[T],
        widen: impl Fn(&mut [R], &[T]),
    ) {
        own.resize(range.len(), R::default());
        let mut rest = own.as_mut_slice();
        self.runs.visit_runs(range, |count, [start], [moves]| {
            let (run, behind) = std::mem::take(&mut rest).split_at_mut(count);
            rest = behind;
            let mut one = [R::default()];
            if !moves {
                widen(&mut one, &values[start..=start]);
            }
            // Of short runs there are many: of this length they are a vector.
            match (run.first_chunk_mut::<HALF>().filter(|_| count == HALF), moves) {
                (Some(run), true) => widen(run, &values[start..start + HALF]),
                (Some(run), false) => run.fill(one[0]),
                (None, true) => widen(run, &values[start..start + count]),
                (None, false) => run.fill(one[0]),
            }
        });
    }
}
