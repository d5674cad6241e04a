//! One block over every item of sequences: ONNX `SequenceMap` (opset 17).

use crate::attribute::BlockIndex;
use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Type};
use crate::ops::control::if_::{present, present_values};
use crate::ops::control::join::{item_type, outside, symbols_of, without_shapes};
use crate::ops::control::sequence::sequence_value;
use crate::ops::{
    Body, Control, InferContext, Op, Operator, Read, ReferenceContext, ReferenceError, Runs, StepFacts, TypeError,
};
use crate::value::Value;

attributes! {
    /// Runs `body` once an item. Operands: at least one sequence, then sequences of the same length and tensors, then
    /// captures. Parameters of the body: an item of each sequence, the tensors and captures as they are. Results: a
    /// sequence of each result of the body.
    pub struct SequenceMap revision 1 {
        /// Block that is repeated.
        1 since 1 => body: BlockIndex,
        /// Number of operands before the captures.
        2 since 1 => mapped: i64,
    }
}

impl SequenceMap {
    fn mapped(&self, count: usize) -> Result<usize, TypeError> {
        match usize::try_from(self.mapped) {
            Ok(mapped) if (1..=count).contains(&mapped) => Ok(mapped),
            _ => Err(TypeError::OperandCount { expected: format!("at least {}", self.mapped.max(1)), found: count }),
        }
    }
}

impl Operator for SequenceMap {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let mapped = self.mapped(inputs.len())?;
        crate::ops::control::sequence::sequence_operand(inputs, 0)?;
        let mut parameters = present(inputs, 0..inputs.len())?;
        let outer = symbols_of(&parameters);
        for (index, parameter) in parameters.iter_mut().enumerate().take(mapped) {
            if let Type::Sequence(element) = &parameter.kind {
                let mut fresh = |axis: usize| context.fresh(&format!("item{index}.{axis}"));
                *parameter = Fact::of(item_type(element, &mut fresh));
            }
        }
        let results = context.blocks.infer_block(self.body, &parameters)?;
        // A dimension that only the body knows may differ from item to item.
        let sequence = |fact: Fact| {
            let of_items = Type::Sequence(Box::new(fact.kind));
            Fact::of(outside(&of_items, &outer, &mut |axis| context.fresh(&format!("unused.{axis}"))))
        };
        Ok(results.into_iter().map(sequence).collect())
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let mapped = self.mapped(inputs.len())?;
        let length = sequence_value(inputs, 0)?.1.len();
        let operands = present_values(inputs, 0..inputs.len())?;
        let types = context.blocks.result_types(self.body)?;
        let mut collected: Vec<Vec<Value>> = vec![Vec::new(); types.len()];
        for position in 0..length {
            let mut arguments = Vec::with_capacity(operands.len());
            for (index, operand) in operands.iter().enumerate() {
                arguments.push(match operand {
                    Value::Sequence { items, .. } if index < mapped => item_at(items, position, length)?,
                    Value::Tensor(_) | Value::Sequence { .. } | Value::Optional { .. } | Value::Map { .. } => {
                        operand.clone()
                    }
                });
            }
            let results = context.blocks.run_block(self.body, arguments)?;
            if results.len() != collected.len() {
                let counts = format!("{} results, {} expected", results.len(), collected.len());
                return Err(TypeError::Block(counts).into());
            }
            for (items, value) in collected.iter_mut().zip(results) {
                items.push(value);
            }
        }
        let sequences = types.iter().zip(collected);
        Ok(sequences.map(|(kind, items)| Value::Sequence { element: without_shapes(kind), items }).collect())
    }
}

impl Control for SequenceMap {
    fn bodies(&self) -> Vec<Body> {
        vec![Body { block: self.body, runs: Runs::Repeated }]
    }

    fn with_bodies(&self, blocks: &[BlockIndex]) -> Option<Op> {
        let &[body] = blocks else { return None };
        Some(Op::SequenceMap(SequenceMap { body, mapped: self.mapped }))
    }

    fn read(&self, operand: usize) -> Read {
        if usize::try_from(self.mapped).is_ok_and(|mapped| operand >= mapped) { Read::Repeated } else { Read::Once }
    }

    fn iterations(&self, facts: &StepFacts<'_>) -> Dim {
        facts.fresh("items")
    }
}

fn item_at(items: &[Value], position: usize, length: usize) -> Result<Value, ReferenceError> {
    let lengths = || TypeError::Dimension {
        subject: "lengths of two sequences".to_string(),
        left: length.to_string(),
        right: items.len().to_string(),
    };
    if items.len() != length {
        return Err(lengths().into());
    }
    Ok(items.get(position).ok_or_else(lengths)?.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::{Dim, Ranges};
    use crate::dtype::DType;
    use crate::ops::control::sequence::tensors;
    use crate::ops::test_blocks::{TestBlock, TestBlocks};
    use crate::tensor::Tensor;

    const OPERATOR: SequenceMap = SequenceMap { body: BlockIndex(0), mapped: 2 };

    fn identity() -> TestBlocks {
        let types = vec![Type::tensor(DType::I64, vec![]); 3];
        TestBlocks::new(vec![TestBlock::identity().with_types(types)])
    }

    #[test]
    fn items_of_sequences_and_whole_tensors_are_passed() {
        let numbers = |items: &[i64]| tensors(DType::I64, items.iter().map(|&item| Tensor::scalar(item)).collect());
        let mut blocks = identity();
        let mut context = ReferenceContext::new(&mut blocks);
        let inputs = [numbers(&[1, 2]), Tensor::scalar(7i64).into(), numbers(&[3])].map(Some);
        let results = OPERATOR.reference(&inputs, &mut context).unwrap();
        assert_eq!(results[..2], [numbers(&[1, 2]), numbers(&[7, 7])]);
        let inputs = [numbers(&[1, 2]), numbers(&[3])].map(Some);
        assert_eq!(
            OPERATOR.reference(&inputs, &mut context).unwrap_err().to_string(),
            "lengths of two sequences: 2 does not fit 1"
        );
        let inputs = [numbers(&[]), numbers(&[])].map(Some);
        assert_eq!(OPERATOR.reference(&inputs, &mut context).unwrap()[0], numbers(&[]));
    }

    #[test]
    fn extents_that_differ_stay_so() {
        let (ranges, mut blocks) = (Ranges::default(), identity());
        let mut context = InferContext::new("map", &ranges, &mut blocks);
        let varying = Type::tensor(DType::F32, vec![Dim::symbol("?"), Dim::symbol("n")]);
        let inputs = [Fact::of(Type::Sequence(Box::new(varying.clone()))), Fact::tensor(DType::F32, vec![])];
        let facts = OPERATOR.infer(&inputs.clone().map(Some), &mut context).unwrap();
        assert_eq!(facts[0], inputs[0]);
        assert_eq!(facts[1].kind, Type::Sequence(Box::new(Type::tensor(DType::F32, vec![]))));
    }
}
