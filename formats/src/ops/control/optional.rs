//! Values that may be missing: ONNX `Optional` (opsets 15, 28), `OptionalGetElement` and `OptionalHasElement` (opsets
//! 15, 18, 28). The last two on something that is no optional are decided at import.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape, Type};
use crate::ops::control::join::without_shapes;
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    required,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// An optional that holds the operand, or holds nothing where it is absent.
    pub struct OptionalConstruct revision 1 {
        /// Element type of the tensor, or of the tensors of the sequence; needed where the operand is absent.
        1 since 1 => dtype: Option<DType>,
        /// An absent operand would be a sequence.
        2 since 1 => sequence: bool,
    }
}

attributes! {
    /// The value that an optional holds.
    pub struct OptionalGet revision 1 {}
}

attributes! {
    /// Whether an optional holds a value: `bool []`.
    pub struct OptionalHas revision 1 {}
}

impl OptionalConstruct {
    fn empty_type(&self) -> Result<Type, TypeError> {
        let dtype = self.dtype.ok_or_else(|| TypeError::Value {
            subject: "dtype".to_string(),
            found: "absent".to_string(),
            expected: "the element type of an empty optional".to_string(),
        })?;
        let tensor = Type::tensor(dtype, Shape::Unranked);
        Ok(if self.sequence { Type::Sequence(Box::new(tensor)) } else { tensor })
    }
}

impl Operator for OptionalConstruct {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let element = match inputs {
            [Some(fact)] => fact.kind.clone(),
            [None] | [] => self.empty_type()?,
            more => return Err(TypeError::OperandCount { expected: "0 or 1".to_string(), found: more.len() }),
        };
        Ok(vec![Fact::of(Type::Optional(Box::new(element)))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        Ok(vec![match inputs.first().and_then(Option::as_ref) {
            Some(value) => {
                Value::Optional { element: without_shapes(&value.kind()), value: Some(Box::new(value.clone())) }
            }
            None => Value::Optional { element: self.empty_type()?, value: None },
        }])
    }
}

impl Serial for OptionalConstruct {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, _facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&Dim::ONE, &[(VectorClass::Arithmetic, 1)])
    }
}

fn kind_error(found: &Type) -> TypeError {
    TypeError::Kind { operand: 0, expected: "an optional", found: found.to_string() }
}

impl Operator for OptionalGet {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        match &required(inputs, 0)?.kind {
            Type::Optional(element) => Ok(vec![Fact::of((**element).clone())]),
            other @ (Type::Tensor { .. } | Type::Sequence(_) | Type::Map { .. }) => Err(kind_error(other)),
        }
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        match inputs.first().and_then(Option::as_ref) {
            Some(Value::Optional { value: Some(value), .. }) => Ok(vec![(**value).clone()]),
            Some(Value::Optional { value: None, .. }) => Err(TypeError::Value {
                subject: "optional".to_string(),
                found: "empty".to_string(),
                expected: "a value".to_string(),
            }
            .into()),
            Some(other) => Err(kind_error(&other.kind()).into()),
            None => Err(TypeError::MissingOperand { operand: 0 }.into()),
        }
    }
}

impl Serial for OptionalGet {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, _facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&Dim::ONE, &[(VectorClass::Arithmetic, 1)])
    }
}

impl Operator for OptionalHas {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        match &required(inputs, 0)?.kind {
            Type::Optional(_) => Ok(vec![Fact::tensor(DType::Bool, Vec::new())]),
            other @ (Type::Tensor { .. } | Type::Sequence(_) | Type::Map { .. }) => Err(kind_error(other)),
        }
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        match inputs.first().and_then(Option::as_ref) {
            Some(Value::Optional { value, .. }) => Ok(vec![Tensor::scalar_bool(value.is_some()).into()]),
            Some(other) => Err(kind_error(&other.kind()).into()),
            None => Err(TypeError::MissingOperand { operand: 0 }.into()),
        }
    }
}

impl Serial for OptionalHas {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, _facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&Dim::ONE, &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    fn run(operator: &dyn Operator, input: Option<Value>) -> Result<Value, ReferenceError> {
        let mut blocks = NoBlocks;
        let results = operator.reference(&[input], &mut ReferenceContext::new(&mut blocks))?;
        Ok(results.into_iter().next().unwrap())
    }

    #[test]
    fn a_value_comes_out_as_it_went_in() {
        let value: Value = Tensor::vector_i64(&[1, 2]).into();
        let operator = OptionalConstruct { dtype: Some(DType::I64), sequence: true };
        let full = run(&operator, Some(value.clone())).unwrap();
        let empty = run(&operator, None).unwrap();
        assert_eq!(run(&OptionalGet {}, Some(full.clone())).unwrap(), value);
        assert_eq!(
            run(&OptionalGet {}, Some(empty.clone())).unwrap_err().to_string(),
            "optional is empty, expected a value"
        );
        assert_eq!(run(&OptionalHas {}, Some(full)).unwrap(), Tensor::scalar_bool(true).into());
        assert_eq!(run(&OptionalHas {}, Some(empty)).unwrap(), Tensor::scalar_bool(false).into());
        assert_eq!(
            run(&OptionalHas {}, Some(value)).unwrap_err().to_string(),
            "operand 0 must be an optional, found i64[2]"
        );
    }

    #[test]
    fn an_empty_one_knows_its_type() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("step", &ranges, &mut blocks);
        let operator = OptionalConstruct { dtype: Some(DType::I64), sequence: true };
        let facts = operator.infer(&[None], &mut context).unwrap();
        assert_eq!(facts[0].kind.to_string(), "optional(sequence(i64[..]))");
        let unknown = OptionalConstruct { dtype: None, sequence: false };
        assert_eq!(
            unknown.infer(&[None], &mut context).unwrap_err().to_string(),
            "dtype is absent, expected the element type of an empty optional"
        );
        let got = OptionalGet {}.infer(&[Some(facts[0].clone())], &mut context).unwrap();
        assert_eq!(got[0].kind.to_string(), "sequence(i64[..])");
    }
}
