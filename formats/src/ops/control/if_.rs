//! Conditional execution: ONNX `If` (all opsets).
//!
//! Each branch is a block; what it uses from outside are explicit operands, its parameters.

use crate::attribute::BlockIndex;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::control::join::{join, outside_fact, symbols_of};
use crate::ops::{
    Body, Control, InferContext, Op, Operator, Read, ReferenceContext, ReferenceError, Runs, StepFacts, TypeError,
    tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Runs one of two blocks: `condition: bool`, one element; then what `then` takes; then what `otherwise` takes.
    /// Results are those of the block that ran.
    pub struct If revision 1 {
        /// Block that runs where the condition is true.
        1 since 1 => then: BlockIndex,
        /// Block that runs where the condition is false.
        2 since 1 => otherwise: BlockIndex,
        /// How many operands after the condition are the parameters of `then`; the rest are those of `otherwise`.
        3 since 1 => then_captures: i64,
    }
}

impl If {
    /// Index of the first operand of each branch and of the end.
    fn ranges(&self, count: usize) -> Result<(std::ops::Range<usize>, std::ops::Range<usize>), TypeError> {
        let middle = usize::try_from(self.then_captures).ok().and_then(|captures| captures.checked_add(1));
        match middle {
            Some(middle) if middle <= count => Ok((1..middle, middle..count)),
            Some(_) | None => {
                let expected = format!("a condition and at least {} captures", self.then_captures);
                Err(TypeError::OperandCount { expected, found: count })
            }
        }
    }
}

/// Facts of operands that must all be there.
pub(super) fn present(inputs: &[Option<Fact>], range: std::ops::Range<usize>) -> Result<Vec<Fact>, TypeError> {
    range.map(|operand| crate::ops::required(inputs, operand).cloned()).collect()
}

/// Values of operands that must all be there; tensors share their bytes.
pub(super) fn present_values(
    inputs: &[Option<Value>],
    range: std::ops::Range<usize>,
) -> Result<Vec<Value>, ReferenceError> {
    range
        .map(|operand| {
            let value = inputs.get(operand).and_then(Option::as_ref);
            value.cloned().ok_or_else(|| TypeError::MissingOperand { operand }.into())
        })
        .collect()
}

/// Require a bool tensor of one element, as far as its shape is known.
pub(super) fn check_condition(inputs: &[Option<Fact>], operand: usize) -> Result<(), TypeError> {
    let (dtype, shape) = tensor_operand(inputs, operand)?;
    if dtype != DType::Bool {
        return Err(TypeError::ElementType { operand, expected: "bool".to_string(), found: dtype });
    }
    match shape.dims().and_then(|dims| Dim::product(dims).as_known()) {
        Some(1) | None => Ok(()),
        Some(_) => Err(TypeError::Value {
            subject: format!("shape of operand {operand}"),
            found: shape.to_string(),
            expected: "one element".to_string(),
        }),
    }
}

/// The single bool of an operand.
pub(super) fn single_bool(inputs: &[Option<Value>], operand: usize) -> Result<bool, ReferenceError> {
    let found = tensor(inputs, operand)?.bools()?;
    match found.as_slice() {
        [condition] => Ok(*condition),
        _ => Err(TypeError::Value {
            subject: format!("operand {operand}"),
            found: format!("{} elements", found.len()),
            expected: "one element".to_string(),
        }
        .into()),
    }
}

impl Operator for If {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        check_condition(inputs, 0)?;
        let (then_range, otherwise_range) = self.ranges(inputs.len())?;
        let outer = symbols_of(inputs.iter().flatten());
        let condition = inputs[0].as_ref().and_then(Fact::elements_as_integers);
        let taken = match condition.as_deref() {
            Some([0]) => Some((self.otherwise, otherwise_range.clone())),
            Some([_]) => Some((self.then, then_range.clone())),
            Some(_) | None => None,
        };
        if let Some((block, range)) = taken {
            let facts = context.blocks.infer_block(block, &present(inputs, range)?)?;
            let fresh = |index: usize, axis: usize| context.fresh(&format!("result{index}.{axis}"));
            let seen = facts.iter().enumerate();
            return Ok(seen.map(|(index, fact)| outside_fact(fact, &outer, &mut |axis| fresh(index, axis))).collect());
        }
        let then = context.blocks.infer_block(self.then, &present(inputs, then_range)?)?;
        let otherwise = context.blocks.infer_block(self.otherwise, &present(inputs, otherwise_range)?)?;
        if then.len() != otherwise.len() {
            let counts = format!("one branch has {} results, the other {}", then.len(), otherwise.len());
            return Err(TypeError::Block(counts));
        }
        let mut results = Vec::with_capacity(then.len());
        for (index, (left, right)) in then.iter().zip(&otherwise).enumerate() {
            let mut fresh = |axis: usize| context.fresh(&format!("result{index}.{axis}"));
            let kind = join(&left.kind, &right.kind, &mut fresh).ok_or_else(|| {
                TypeError::Block(format!(
                    "result {index} is {} in one branch and {} in the other",
                    left.kind, right.kind
                ))
            })?;
            let contents = if left == right { left.contents.clone() } else { None };
            results.push(outside_fact(&Fact { kind, contents }, &outer, &mut fresh));
        }
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (then_range, otherwise_range) = self.ranges(inputs.len())?;
        let (block, range) =
            if single_bool(inputs, 0)? { (self.then, then_range) } else { (self.otherwise, otherwise_range) };
        context.blocks.run_block(block, present_values(inputs, range)?)
    }
}

impl Control for If {
    fn bodies(&self) -> Vec<Body> {
        [self.then, self.otherwise].map(|block| Body { block, runs: Runs::AtMostOnce }).to_vec()
    }

    fn with_bodies(&self, blocks: &[BlockIndex]) -> Option<Op> {
        let &[then, otherwise] = blocks else { return None };
        Some(Op::If(If { then, otherwise, then_captures: self.then_captures }))
    }

    fn read(&self, _operand: usize) -> Read {
        Read::Once
    }

    fn iterations(&self, facts: &StepFacts<'_>) -> Dim {
        match facts.integers(0).as_deref() {
            Some([condition]) => Dim::known(i64::from(*condition != 0)),
            Some(_) | None => facts.fresh("then"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::fact::{Shape, Type};
    use crate::ops::test_blocks::{TestBlock, TestBlocks};
    use crate::tensor::Tensor;

    fn operator() -> If {
        If { then: BlockIndex(0), otherwise: BlockIndex(1), then_captures: 1 }
    }

    fn float(dims: Vec<Dim>) -> Fact {
        Fact::tensor(DType::F32, dims)
    }

    /// `then` passes its parameter on; `otherwise` too.
    fn passing() -> TestBlocks {
        TestBlocks::new(vec![TestBlock::identity(), TestBlock::identity()])
    }

    fn infer(condition: Fact, then: Fact, otherwise: Fact) -> Result<Vec<Fact>, TypeError> {
        let (ranges, mut blocks) = (Ranges::default(), passing());
        let mut context = InferContext::new("if", &ranges, &mut blocks);
        operator().infer(&[Some(condition), Some(then), Some(otherwise)], &mut context)
    }

    #[test]
    fn unknown_condition_joins_both_branches() {
        let unknown = Fact::tensor(DType::Bool, vec![]);
        let (n, m) = (Dim::symbol("n"), Dim::symbol("m"));
        let joined = infer(unknown.clone(), float(vec![n.clone(), Dim::ONE]), float(vec![n.clone(), m.clone()]));
        assert_eq!(joined.unwrap(), [float(vec![n.clone(), Dim::symbol("if.result0.1")])]);
        let unranked = infer(unknown.clone(), float(vec![n.clone()]), float(vec![n.clone(), m]));
        assert_eq!(unranked.unwrap(), [Fact::tensor(DType::F32, Shape::Unranked)]);
        let mixed = infer(unknown, float(vec![]), Fact::tensor(DType::F64, vec![]));
        assert!(matches!(mixed, Err(TypeError::Block(_))));
    }

    #[test]
    fn known_condition_takes_one_branch() {
        let constant = Fact::constant(Tensor::vector_i64(&[7]));
        for (condition, expected) in [(true, constant.clone()), (false, float(vec![]))] {
            let condition = Fact::constant(Tensor::scalar_bool(condition));
            assert_eq!(infer(condition, constant.clone(), float(vec![])).unwrap(), [expected]);
        }
        assert_eq!(
            infer(float(vec![]), float(vec![]), float(vec![])).unwrap_err().to_string(),
            "operand 0 must be bool, found f32"
        );
        assert_eq!(
            infer(Fact::tensor(DType::Bool, vec![Dim::known(2)]), float(vec![]), float(vec![]))
                .unwrap_err()
                .to_string(),
            "shape of operand 0 is [2], expected one element"
        );
    }

    #[test]
    fn only_the_chosen_branch_runs() {
        let mut blocks = passing();
        let mut context = ReferenceContext::new(&mut blocks);
        let inputs = [
            Some(Tensor::from_bools(&[1], &[false]).unwrap().into()),
            Some(Tensor::scalar(1.0f32).into()),
            Some(Tensor::scalar(2.0f32).into()),
        ];
        let results = operator().reference(&inputs, &mut context).unwrap();
        assert_eq!(results, [Value::Tensor(Tensor::scalar(2.0f32))]);
        assert_eq!(blocks.runs, [BlockIndex(1)]);
        assert_eq!(results[0].kind(), Type::tensor(DType::F32, vec![]));
    }
}
