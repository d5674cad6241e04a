//! Tensors of f32, f16 and bf16 as slices of f32, in both directions.

pub(in crate::steps) use crate::steps::floats::widened;
use crate::steps::program::{self, Accumulators, WithinTasks};
use crate::steps::{Context, KernelError};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Program, ProgramError, TypeError};
use ipuc_formats::tensor::filled;
use ipuc_formats::tensor::{Tensor, TensorError, element_count};
use ipuc_formats::value::Value;
use ipuc_kernels::change::Change;
use ipuc_kernels::elements::map;
use ipuc_kernels::narrow::narrow;
use ipuc_kernels::simd::LANES;
use ipuc_kernels::threads::{chunks, parts};

/// Sums that the second-level cache holds.
const NEAR_SUMS: usize = 1 << 18;

/// Rows of a product that are few.
const FEW_ROWS: usize = 4;

/// Types that are computed in f32.
pub(in crate::steps) fn computes_in_f32(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// When a program changes the sums of a product: to change them afterwards, threads are called a second time; within tasks, short pieces
/// of them cost more to begin than to change.
#[derive(Clone, Copy)]
pub(in crate::steps) enum Changes {
    /// Within the tasks that compute them: pieces are long.
    WithinTasks,
    /// Within tasks where rows are few, or sums so many that they would leave the cache; else afterwards.
    OfFewOrMany,
}

impl Changes {
    /// Whether tasks change their sums, where the result has this shape.
    fn are_within_tasks(self, shape: &[usize]) -> bool {
        let rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
        match self {
            Changes::WithinTasks => true,
            Changes::OfFewOrMany => rows <= FEW_ROWS || shape.iter().product::<usize>() > NEAR_SUMS,
        }
    }
}

/// Result 0 of this type and shape, filled by `fill` in f32 and rounded once. `fill` finds unspecified values.
///
/// # Errors
/// [`KernelError`] of `fill`, and where memory is short.
pub(in crate::steps) fn produce(
    context: &mut Context<'_>,
    dtype: DType,
    shape: &[usize],
    fill: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
) -> Result<Tensor, KernelError> {
    let mut result = context.allocate(0, dtype, shape)?;
    let mut wide = match dtype {
        DType::F32 => {
            fill(result.elements_mut::<f32>()?)?;
            return Ok(result);
        }
        _ => Tensor::zeros(DType::F32, shape)?,
    };
    fill(wide.elements_mut()?)?;
    let wide = wide.elements::<f32>()?;
    match dtype {
        DType::F16 => map(result.elements_mut::<f16>()?, wide, 1, &|out, x| narrow(x, out)),
        _ => map(result.elements_mut::<bf16>()?, wide, 1, &|out, x| narrow(x, out)),
    }
    Ok(result)
}

/// The result of a program over sums in f32 of this shape, or of type `dtype` without one. `fill` computes the sums, over
/// unspecified values, and changes those that are complete as it is told: then they still lie in a cache. A program whose result
/// is no float that f32 holds runs afterwards.
///
/// # Errors
/// [`KernelError`] of `fill`, and of the program.
pub(in crate::steps) fn after_sums(
    program: &Program,
    dtype: DType,
    (shape, changes): (&[usize], Changes),
    further: &[Option<Value>],
    context: &mut Context<'_>,
    fill: impl FnOnce(&mut [f32], Option<Change<'_>>) -> Result<(), KernelError>,
) -> Result<Tensor, KernelError> {
    if program.is_empty() {
        return produce(context, dtype, shape, |out| fill(out, None));
    }
    let within = WithinTasks::new(program, DType::F32, shape, further)?;
    if let Some(within) = within.filter(|within| computes_in_f32(within.dtype())) {
        let change = |place: usize, sums: &mut [f32]| within.change(place, sums);
        let result = produce(context, within.dtype(), shape, |out| {
            if changes.are_within_tasks(shape) {
                return fill(out, Some(Change(&change)));
            }
            fill(out, None)?;
            let size = out.len().div_ceil(parts(out.len() * within.cost(), usize::MAX)).next_multiple_of(LANES).max(1);
            chunks(out, size, |part, sums| change(part * size, sums));
            Ok(())
        })?;
        within.finish()?;
        return Ok(result);
    }
    let too_large = || TensorError::TooLarge { dtype: DType::F32, shape: shape.to_vec() };
    let mut sums = filled(0.0, element_count(shape).ok_or_else(too_large)?)?;
    fill(&mut sums, None)?;
    single(program::apply(program, Accumulators::Float(&sums), shape, further, context)?)
}

/// The only result of a product's program.
///
/// # Errors
/// [`KernelError`] where there is another number of results.
pub(super) fn single(mut results: Vec<Tensor>) -> Result<Tensor, KernelError> {
    let found = results.len();
    match (results.pop(), found) {
        (Some(result), 1) => Ok(result),
        (_, found) => Err(TypeError::from(ProgramError::Results { found, expected: "1" }).into()),
    }
}
