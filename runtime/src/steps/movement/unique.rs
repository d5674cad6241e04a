//! What occurs among numbers, by sorting keys; slices of more than one element and other types by the reference.

use super::select::Ordered;
use super::{load, refer, tensor};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::Unique;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

impl Kernel for Unique {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let single = |data: &&Tensor| {
            let is_flat = self.axis.is_none() || (data.rank() == 1 && matches!(self.axis, Some(-1 | 0)));
            is_flat && u32::try_from(data.count()).is_ok()
        };
        if let Some(data) = tensor(&inputs, 0).filter(single) {
            let found = ipuc_formats::with_number!(
                data.dtype(),
                T => Some(unique::<T>(data, self.sorted, context)?),
                otherwise None
            );
            if let Some(found) = found {
                return Ok(found);
            }
        }
        refer(self, inputs, context)
    }
}

fn unique<T: Ordered>(data: &Tensor, sorted: bool, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
    let elements = data.elements::<T>()?;
    // Equal keys are in the order of their places: the first of them is in front.
    let keys: Vec<(u64, u32)> = elements.iter().enumerate().map(|(at, x)| (x.key(), at as u32)).collect();
    let (mut values, places) = occurrences(keys, data.dtype(), sorted, context)?;
    let [firsts, ..] = &places;
    for (value, &first) in values.elements_mut::<T>()?.iter_mut().zip(firsts.elements::<i64>()?) {
        *value = elements[first as usize];
    }
    Ok([values].into_iter().chain(places).map(Value::from).collect())
}

/// From keys of elements with their places: memory for the values that occur; then where each value occurs first, which value each
/// element is, and how often each value occurs. It knows no types of elements, so that it is compiled once.
fn occurrences(
    mut keys: Vec<(u64, u32)>,
    dtype: DType,
    sorted: bool,
    context: &mut Context<'_>,
) -> Result<(Tensor, [Tensor; 3]), KernelError> {
    keys.sort_unstable();
    let groups: Vec<&[(u64, u32)]> = keys.chunk_by(|left, right| left.0 == right.0).collect();
    let mut order: Vec<u32> = (0..groups.len() as u32).collect();
    if !sorted {
        order.sort_unstable_by_key(|&group| groups[group as usize][0].1);
    }
    let values = context.allocate(0, dtype, &[order.len()])?;
    let mut firsts = context.allocate(1, DType::I64, &[order.len()])?;
    let mut inverse = context.allocate(2, DType::I64, &[keys.len()])?;
    let mut counts = context.allocate(3, DType::I64, &[order.len()])?;
    let firsts_out = firsts.elements_mut::<i64>()?;
    let (inverse_out, counts_out) = (inverse.elements_mut::<i64>()?, counts.elements_mut::<i64>()?);
    for (place, &group) in order.iter().enumerate() {
        let group = groups[group as usize];
        firsts_out[place] = i64::from(group[0].1);
        counts_out[place] = group.len() as i64;
        group.iter().for_each(|&(_, at)| inverse_out[at as usize] = place as i64);
    }
    Ok((values, [firsts, inverse, counts]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};

    #[test]
    fn numbers_occur_as_in_the_reference() {
        let few: Vec<i64> = (0..500).map(|at| at * 7919 % 31 - 9).collect();
        let integers = Tensor::from_elements(&[5, 100], &few).unwrap();
        let bytes: Vec<u8> = few.iter().map(|&value| value as u8).collect();
        let bytes = Tensor::from_elements(&[500], &bytes).unwrap();
        let floats = [0.0f32, -0.0, f32::NAN, 1.5, -1.5, f32::NAN, 1.5, f32::INFINITY, 0.0, f32::NEG_INFINITY];
        let floats = Tensor::from_elements(&[10], &floats).unwrap();
        for sorted in [false, true] {
            for axis in [None, Some(0), Some(-1), Some(1)] {
                check(&Unique { axis, sorted }, &[Some(integers.clone())], 0.0);
            }
            for axis in [None, Some(0), Some(-1)] {
                check(&Unique { axis, sorted }, &[Some(bytes.clone())], 0.0);
                check(&Unique { axis, sorted }, &[Some(floats.clone())], 0.0);
                check(&Unique { axis, sorted }, &[random(DType::F16, &[3000], 4)], 0.0);
                check(&Unique { axis, sorted }, &[random(DType::F64, &[0], 4)], 0.0);
            }
        }
    }
}
