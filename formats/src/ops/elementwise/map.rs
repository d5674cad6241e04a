//! Several functions of elements in one pass: a scalar program over operands that broadcast.

use crate::attributes;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::{broadcast_extents, broadcast_shapes};
use crate::ops::{
    Elementwise, InferContext, Operator, Program, ProgramError, ReferenceContext, ReferenceError, StepFacts, TypeError,
    VectorClass, operand_type, optional, optional_tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Runs a program for each element: operands `[..]` of any types to results of their broadcast shape, one for each of the
    /// program's, of the types that it rounds them to.
    pub struct Map revision 1 {
        /// The program; it has no accumulator.
        1 since 1 => program: Program,
    }
}

impl Map {
    fn types(&self, operand: impl Fn(usize) -> Option<DType>) -> Result<Vec<DType>, TypeError> {
        let types = self.program.check(None, operand)?;
        if types.is_empty() {
            return Err(ProgramError::Results { found: 0, expected: "1 or more" }.into());
        }
        Ok(types)
    }
}

impl Operator for Map {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let types = self.types(|operand| operand_type(inputs, operand))?;
        let given = (0..inputs.len()).filter(|&operand| optional(inputs, operand).is_some());
        let shapes = given.map(|operand| tensor_operand(inputs, operand).map(|(_, shape)| shape));
        let shape: Shape = broadcast_shapes(&shapes.collect::<Result<Vec<_>, _>>()?, context)?;
        Ok(types.into_iter().map(|dtype| Fact::tensor(dtype, shape.clone())).collect())
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let operands = (0..inputs.len()).map(|operand| optional_tensor(inputs, operand));
        let operands: Vec<Option<&Tensor>> = operands.collect::<Result<_, _>>()?;
        let types = self.types(|operand| Some(operands.get(operand).copied().flatten()?.dtype()))?;
        let shapes: Vec<&[usize]> = operands.iter().flatten().map(|tensor| tensor.shape()).collect();
        let extents = broadcast_extents(&shapes)?;
        // The size is checked before anything of that size is made.
        for dtype in types {
            Tensor::zeros(dtype, &extents)?;
        }
        Ok(self.program.evaluate(None, &extents, inputs)?.into_iter().map(Value::from).collect())
    }
}

impl Elementwise for Map {
    fn per_element(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        self.program.per_element(None, facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Dim;
    use crate::ops::NoBlocks;
    use crate::ops::testing::run;
    use crate::ops::{Argument, BinaryFunction, Function};

    fn map() -> Map {
        let mut program = Program::default();
        let add = Function::Binary(BinaryFunction::Add);
        let sum = program.push(add.clone(), vec![Argument::Operand(0), Argument::Operand(1)], DType::F32);
        let code = program.push(add, vec![sum, Argument::f32(0.5)], DType::U8);
        program.results = vec![code, sum];
        Map { program }
    }

    #[test]
    fn what_is_the_same_for_all_elements_is_computed_once() {
        let mut program = Program::default();
        let zero = program.push(Function::Cast, vec![Argument::Operand(1)], DType::I32);
        let code = program.push(Function::Cast, vec![Argument::Operand(0)], DType::I32);
        let sub = Function::Binary(BinaryFunction::Sub);
        let less = program.push(sub, vec![code, zero], DType::I32);
        let same = program.push(Function::Cast, vec![less], DType::I32);
        program.results = vec![same];
        let fact = |dtype, extent| Fact::tensor(dtype, Shape::Ranked(vec![Dim::known(extent)]));
        let inputs = [Some(fact(DType::U8, 6)), Some(fact(DType::U8, 1))];
        let outputs = [fact(DType::I32, 6)];
        let costs = Map { program }.per_element(&StepFacts::new("map", &inputs, &outputs));
        assert_eq!(costs, [(VectorClass::Convert, 1), (VectorClass::Arithmetic, 1)]);
    }

    #[test]
    fn operands_broadcast_to_several_results() {
        let x = Tensor::from_elements(&[2, 1], &[1.0f32, 300.0]).unwrap();
        let y = Tensor::from_elements(&[2], &[1.0f32, -4.0]).unwrap();
        let mut blocks = NoBlocks;
        let inputs = [Some(Value::from(x.clone())), Some(Value::from(y.clone()))];
        let results = map().reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
        let tensors: Vec<&Tensor> = results.iter().map(|value| value.as_tensor().unwrap()).collect();
        assert_eq!((tensors[0].shape(), tensors[0].elements::<u8>().unwrap()), (&[2, 2][..], &[2, 0, 255, 255][..]));
        assert_eq!(tensors[1].elements::<f32>().unwrap(), [2.0, -3.0, 301.0, 296.0]);
        let ranges = crate::dim::Ranges::default();
        let facts: Vec<Option<Fact>> = inputs.iter().flatten().map(|value| Some(Fact::of(value.kind()))).collect();
        let inferred = map().infer(&facts, &mut InferContext::new("map", &ranges, &mut NoBlocks)).unwrap();
        assert_eq!(inferred.iter().map(|fact| fact.dtype()).collect::<Vec<_>>(), [Some(DType::U8), Some(DType::F32)]);
        assert_eq!(inferred[0].kind, results[0].kind());
    }

    #[test]
    fn programs_that_give_nothing_are_refused() {
        let x = Tensor::scalar(1.0f32);
        let found = run(&Map { program: Program::default() }, std::slice::from_ref(&x)).unwrap_err();
        assert!(found.to_string().contains("0 results, expected 1 or more"), "{found}");
        let input = Program { steps: Vec::new(), results: vec![Argument::Input] };
        let found = run(&Map { program: input }, &[x]).unwrap_err();
        assert!(found.to_string().contains("accumulator"), "{found}");
    }
}
