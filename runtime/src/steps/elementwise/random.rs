//! Random numbers of f32, drawn side by side: the generator begins at any element.

use super::load;
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Random, optional_tensor};
use ipuc_formats::value::Value;
use ipuc_kernels::elements::in_parts;

/// About how many operations a number costs.
const COST: usize = 16;

/// Numbers that are drawn at once.
const BLOCK: usize = 512;

impl Kernel for Random {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let extents: Option<Vec<usize>> = match optional_tensor(&inputs, 0)? {
            Some(like) => Some(like.shape().to_vec()),
            None => self.shape.iter().map(|&extent| usize::try_from(extent).ok()).collect(),
        };
        let (Some(extents), DType::F32) = (extents, self.to) else {
            let operands = inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value));
            return run_reference(self, operands.collect(), context);
        };
        let mut result = context.allocate(0, DType::F32, &extents)?;
        let draws = self.draws(&mut context.random_state);
        in_parts(result.elements_mut::<f32>()?, COST, &|first, out| {
            let mut drawn = [0.0; BLOCK];
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let drawn = &mut drawn[..out.len()];
                draws.fill(first + block * BLOCK, drawn);
                out.iter_mut().zip(drawn).for_each(|(out, drawn)| *out = *drawn as f32);
            }
        });
        Ok(vec![result.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::check;
    use ipuc_formats::ops::Distribution;
    use strum::VariantArray;

    #[test]
    fn draws_are_those_of_the_reference() {
        for &distribution in Distribution::VARIANTS {
            for to in [DType::F32, DType::F16] {
                for (seed, shape) in [(Some(3.5), vec![70, 1000]), (None, vec![5]), (Some(0.0), vec![0, 4])] {
                    check(&Random { distribution, to, low: -1.0, high: 2.5, shape, seed }, &[], 0.0);
                }
            }
        }
    }
}
