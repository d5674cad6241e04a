//! Operators that keep keys and values of earlier runs.

use crate::steps::normalization::reduction::loaded;
use crate::steps::{Contents, Context, Kernel, KernelError, Operand, run_over_copies, without_versions};
use ipuc_formats::ops::{Append, CacheScatter, optional_tensor, tensor};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

impl Kernel for CacheScatter {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let plan = self.plan(&inputs)?;
        let new = tensor(&inputs, 1)?;
        let past = optional_tensor(&inputs, 0)?.map_or(&[][..], Tensor::bytes);
        let [_, heads, length, size] = plan.shape;
        let row = size * new.dtype().bits() / 8;
        let mut result = context.allocate(0, new.dtype(), &plan.shape)?;
        if length * row > 0 {
            for (index, out) in result.bytes_mut().chunks_mut(length * row).enumerate() {
                let stays = plan.first[index / heads] * row;
                let (before, behind) = out.split_at_mut(stays);
                let (own, rest) = behind.split_at_mut(plan.new * row);
                before.copy_from_slice(&past[index * plan.past * row..][..stays]);
                own.copy_from_slice(&new.bytes()[index * own.len()..][..own.len()]);
                rest.fill(0);
            }
        }
        Ok(vec![result.into()])
    }
}

impl Kernel for Append {
    fn compute(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Contents>, KernelError> {
        let past = match operands.first() {
            Some(Operand::Version(past)) if i64::try_from(past.axis()) == Ok(self.axis) && past.rows() == self.rows => {
                past.clone()
            }
            // What is no state of this axis is joined as `Concat` does it.
            Some(_) | None => return run_over_copies(self, operands, context),
        };
        operands[0] = Operand::Absent;
        let inputs = loaded(without_versions(operands, context)?)?;
        let new = tensor(&inputs, 1)?;
        let count = new.shape().get(past.axis()).copied().unwrap_or(0);
        self.check_places(&inputs, past.length(), count)?;
        Ok(vec![Contents::Version(past.append(new, context.memory.pages())?)])
    }

    fn reads_pages(&self) -> bool {
        true
    }
}
