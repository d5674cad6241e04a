//! The best elements of lines, the places of what is not zero, and triangles of matrices.

use super::{count, load, refer, tensor, with_words, words, words_mut};
use crate::steps::{Context, Kernel, KernelError, Operand};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Element;
use ipuc_formats::ops::{NonZero, TopK, Trilu, normalize_axis};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::simd::{Instructions, Routine, Simd};
use ipuc_kernels::threads::{SERIAL_OPERATIONS, each};

/// Candidates that are gathered beside the k best before the worst are dropped.
const CANDIDATES: usize = 64;

/// Elements that are compared with the worst of the k best at once.
const COMPARED: usize = 64;

/// A number type with the order of `TopK`: NaN is larger than every number and equal to NaN.
pub(super) trait Ordered: Element + PartialOrd {
    /// A key that orders as the numbers do.
    fn key(self) -> u64;
}

macro_rules! ordered {
    (unsigned: $($T:ident)*) => { $(
        impl Ordered for $T {
            #[inline(always)]
            fn key(self) -> u64 { self.into() }
        }
    )* };
    (signed: $($T:ident)*) => { $(
        impl Ordered for $T {
            #[inline(always)]
            fn key(self) -> u64 { i64::from(self) as u64 ^ 1 << 63 }
        }
    )* };
    (floats: $($T:ident)*) => { $(
        impl Ordered for $T {
            #[inline(always)]
            fn key(self) -> u64 {
                let wide = f64::from(self);
                // Both zeros are one number.
                let bits = if wide == 0.0 { 0 } else { wide.to_bits() };
                match wide {
                    _ if wide.is_nan() => u64::MAX,
                    _ if bits >> 63 == 1 => !bits,
                    _ => bits | 1 << 63,
                }
            }
        }
    )* };
}
ordered! { unsigned: u8 u16 u32 u64 }
ordered! { signed: i8 i16 i32 i64 }
ordered! { floats: f16 bf16 f32 f64 }

impl Kernel for TopK {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        if let (Some(data), Some([k])) = (tensor(&inputs, 0), super::integers(&inputs, 1).as_deref()) {
            let axis = normalize_axis(self.axis, data.rank())?;
            if let Some(k) = usize::try_from(*k).ok().filter(|&k| k > 0 && k <= data.shape()[axis]) {
                let best = ipuc_formats::with_number!(
                    data.dtype(),
                    T => Some(best::<T>(self, data, axis, k, context)?),
                    otherwise None
                );
                if let Some(best) = best {
                    return Ok(best);
                }
            }
        }
        refer(self, inputs, context)
    }
}

fn best<T: Ordered>(
    top: &TopK,
    data: &Tensor,
    axis: usize,
    k: usize,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    let (total, inner) = (data.shape()[axis], count(&data.shape()[axis + 1..]));
    let mut shape = data.shape().to_vec();
    shape[axis] = k;
    let mut values = context.allocate(0, data.dtype(), &shape)?;
    let mut places = context.allocate(1, DType::I64, &shape)?;
    if values.count() == 0 {
        return Ok(vec![values.into(), places.into()]);
    }
    let source = data.elements::<T>()?;
    let targets = values.elements_mut::<T>()?.chunks_mut(k * inner);
    let targets = targets.zip(places.elements_mut::<i64>()?.chunks_mut(k * inner)).enumerate();
    let fill = |(outer, (values, places)): (usize, (&mut [T], &mut [i64]))| {
        let source = &source[outer * total * inner..][..total * inner];
        let mut best = Best::new(k, total, top.largest);
        for within in 0..inner {
            best.clear();
            if inner == 1 {
                Instructions::best().run(Offer { best: &mut best, line: source });
            } else {
                let elements = source[within..].iter().step_by(inner).enumerate();
                elements.for_each(|(place, &element)| best.offer(element, place));
            }
            keep_least(&mut best.line, k, top.sorted);
            for (at, &(_, place)) in best.line.iter().enumerate() {
                values[at * inner + within] = source[place * inner + within];
                places[at * inner + within] = place as i64;
            }
        }
    };
    if data.count() * 4 < SERIAL_OPERATIONS {
        targets.for_each(fill);
    } else {
        each(targets.collect(), fill);
    }
    Ok(vec![values.into(), places.into()])
}

/// The best elements of a line so far, and some more.
struct Best {
    k: usize,
    /// Elements that are gathered before the worst are dropped.
    held: usize,
    largest: bool,
    /// Keys of which the least are best, and places.
    line: Vec<(u64, usize)>,
    /// The greatest of k keys, and its place.
    bound: Option<(u64, usize)>,
}

impl Best {
    fn new(k: usize, total: usize, largest: bool) -> Self {
        let held = total.min(k.saturating_mul(2).max(k.saturating_add(CANDIDATES)));
        Best { k, held, largest, line: Vec::with_capacity(held), bound: None }
    }

    fn clear(&mut self) {
        self.line.clear();
        self.bound = None;
    }

    /// Takes an element that may be among the best; places come in ascending order.
    #[inline(always)]
    fn offer<T: Ordered>(&mut self, element: T, place: usize) {
        let key = if self.largest { !element.key() } else { element.key() };
        // Of equal keys the first are better.
        if self.bound.is_some_and(|(bound, _)| key >= bound) {
            return;
        }
        self.line.push((key, place));
        if self.line.len() == self.held && self.held > self.k {
            self.line.select_nth_unstable(self.k - 1);
            self.line.truncate(self.k);
            self.bound = self.line.last().copied();
        }
    }
}

/// Offers all elements of a line, whole blocks of which are left out where none is better than the bound.
struct Offer<'a, T> {
    best: &'a mut Best,
    line: &'a [T],
}

impl<T: Ordered> Routine for Offer<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Offer { best, line } = self;
        for (block, elements) in line.chunks(COMPARED).enumerate() {
            if let Some((_, place)) = best.bound {
                let bound = line[place];
                // Whatever compares with nothing is looked at, too.
                let mut may_be_better = false;
                match best.largest {
                    true => {
                        for &element in elements {
                            may_be_better |= !is_at_most(element, bound);
                        }
                    }
                    false => {
                        for &element in elements {
                            may_be_better |= !is_at_most(bound, element);
                        }
                    }
                }
                if !may_be_better {
                    continue;
                }
            }
            for (at, &element) in elements.iter().enumerate() {
                best.offer(element, block * COMPARED + at);
            }
        }
    }
}

/// Whether two elements compare, and the left one is not greater.
#[inline(always)]
fn is_at_most<T: PartialOrd>(left: T, right: T) -> bool {
    left <= right
}

/// Leaves the k least keys of a line, in order or by place; of equal keys the first.
fn keep_least(line: &mut Vec<(u64, usize)>, k: usize, sorted: bool) {
    // No two are equal, so that any way of sorting gives the same.
    if k < line.len() {
        line.select_nth_unstable(k);
        line.truncate(k);
    }
    if sorted {
        line.sort_unstable();
    } else {
        line.sort_unstable_by_key(|&(_, place)| place);
    }
}

impl Kernel for NonZero {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        if let Some(data) = tensor(&inputs, 0) {
            let found = match data.dtype() {
                DType::Bool => Some(places(data.bytes(), |&element| element != 0)),
                dtype => ipuc_formats::with_number!(
                    dtype,
                    T => Some(places(data.elements::<T>()?, |element| *element != T::default())),
                    otherwise None
                ),
            };
            if let Some(found) = found {
                return Ok(vec![coordinates(data.shape(), &found, context)?.into()]);
            }
        }
        refer(self, inputs, context)
    }
}

fn places<T>(elements: &[T], chosen: impl Fn(&T) -> bool) -> Vec<usize> {
    elements.iter().enumerate().filter(|(_, element)| chosen(element)).map(|(place, _)| place).collect()
}

/// The coordinates of flat places, one axis after the other: `[rank, places]`.
fn coordinates(shape: &[usize], places: &[usize], context: &mut Context<'_>) -> Result<Tensor, KernelError> {
    let mut target = context.allocate(0, DType::I64, &[shape.len(), places.len()])?;
    if target.count() == 0 {
        return Ok(target);
    }
    let rows = target.elements_mut::<i64>()?.chunks_exact_mut(places.len());
    for (axis, row) in rows.enumerate() {
        let (inner, extent) = (count(&shape[axis + 1..]), shape[axis]);
        row.iter_mut().zip(places).for_each(|(element, place)| *element = (place / inner % extent) as i64);
    }
    Ok(target)
}

impl Kernel for Trilu {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let k = match inputs.get(1) {
            Some(Some(_)) => super::integers(&inputs, 1),
            Some(None) | None => Some(vec![0]),
        };
        if let (Some(data), Some([k])) = (tensor(&inputs, 0), k.as_deref())
            && let [.., rows, columns] = *data.shape()
        {
            with_words!(
                data.dtype(),
                T => {
                    let mut target = context.allocate(0, data.dtype(), data.shape())?;
                    if target.count() > 0 {
                        let source = words::<T>(data).chunks_exact(columns);
                        let lines = words_mut::<T>(&mut target).chunks_exact_mut(columns).zip(source);
                        for (line, (target, source)) in lines.enumerate() {
                            // First column that is on the diagonal or right of it; one more ends the lower triangle.
                            let diagonal = (line % rows) as i128 + i128::from(*k) + i128::from(!self.upper);
                            let split = diagonal.clamp(0, columns as i128) as usize;
                            let (zero, kept) = if self.upper { (0..split, split..columns) } else { (split..columns, 0..split) };
                            target[zero].fill(T::default());
                            target[kept.clone()].copy_from_slice(&source[kept]);
                        }
                    }
                    return Ok(vec![target.into()]);
                },
                otherwise {}
            );
        }
        refer(self, inputs, context)
    }
}
