//! Rows of scores as maps from classes to scores: `ZipMap` (1) of `ai.onnx.ml`.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Type};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::room;
use crate::value::Value;

attributes! {
    /// `x: f32 [n, c]` or `[c]` to a sequence of one map a row, from each key to an f32 `[]`.
    pub struct ZipMap revision 1 {
        /// The keys, where they are integers.
        1 since 1 => integer_keys: Vec<i64>,
        /// The keys, where they are texts.
        2 since 1 => text_keys: Vec<String>,
    }
}

impl ZipMap {
    fn keys(&self) -> Result<(DType, Vec<Tensor>), TypeError> {
        match (self.integer_keys.as_slice(), self.text_keys.as_slice()) {
            (keys, []) => Ok((DType::I64, keys.iter().map(|&key| Tensor::scalar(key)).collect())),
            ([], keys) => {
                let key = |key: &String| Tensor::from_strings(&[], vec![key.clone()]);
                let keys = keys.iter().map(key).collect::<Result<_, _>>();
                Ok((DType::String, keys.map_err(|error| TypeError::Unsupported(error.to_string()))?))
            }
            _ => Err(TypeError::Unsupported("a map with integers and texts as keys".to_string())),
        }
    }
}

fn element() -> Type {
    Type::tensor(DType::F32, Vec::new())
}

impl Operator for ZipMap {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (found, shape) = tensor_operand(inputs, 0)?;
        if found != DType::F32 {
            return Err(TypeError::ElementType { operand: 0, expected: "f32".to_string(), found });
        }
        let (key, keys) = self.keys()?;
        match shape.dims() {
            None => {}
            Some([columns] | [_, columns]) => {
                context.require_equal(columns, &Dim::from(keys.len()), "columns and keys")?;
            }
            Some(dims) => {
                return Err(TypeError::Rank { operand: 0, expected: "1 or 2".to_string(), found: dims.len() });
            }
        }
        let map = Type::Map { key, element: Box::new(element()) };
        Ok(vec![Fact::of(Type::Sequence(Box::new(map)))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        let (key, keys) = self.keys()?;
        let (rows, columns) = match *x.shape() {
            [columns] => (1, columns),
            [rows, columns] => (rows, columns),
            _ => {
                return Err(TypeError::Rank { operand: 0, expected: "1 or 2".to_string(), found: x.rank() }.into());
            }
        };
        let different = || TypeError::Dimension {
            subject: "columns and keys".to_string(),
            left: columns.to_string(),
            right: keys.len().to_string(),
        };
        // Rows without columns have no bytes: their number alone must not cost memory.
        if columns != keys.len() || columns == 0 {
            return Err(different().into());
        }
        let mut items = room(rows)?;
        for scores in x.elements::<f32>()?.chunks_exact(columns) {
            let scores = scores.iter().map(|&score| Value::from(Tensor::scalar(score)));
            items.push(Value::Map { key, element: element(), entries: keys.iter().cloned().zip(scores).collect() });
        }
        let map = Type::Map { key, element: Box::new(element()) };
        Ok(vec![Value::Sequence { element: map, items }])
    }
}

impl Serial for ZipMap {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    #[test]
    fn one_map_a_row() {
        let operator = ZipMap { integer_keys: vec![7, 8], text_keys: vec![] };
        let input = Tensor::from_elements(&[2, 2], &[0.25f32, 0.75, 0.5, 0.5]).unwrap();
        let mut blocks = NoBlocks;
        let found = operator.reference(&[Some(input.into())], &mut ReferenceContext::new(&mut blocks)).unwrap();
        let Value::Sequence { items, .. } = &found[0] else { panic!("a sequence") };
        let Value::Map { entries, .. } = &items[0] else { panic!("a map") };
        assert_eq!(items.len(), 2);
        assert_eq!(entries[1], (Tensor::scalar(8i64), Tensor::scalar(0.75f32).into()));
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("zip", &ranges, &mut blocks);
        let fact = Fact::tensor(DType::F32, vec![Dim::symbol("n"), Dim::known(2)]);
        let facts = operator.infer(&[Some(fact)], &mut context).unwrap();
        assert_eq!(facts[0].kind, found[0].kind());
        let wide = Fact::tensor(DType::F32, vec![Dim::known(3)]);
        assert_eq!(
            operator.infer(&[Some(wide)], &mut context).unwrap_err().to_string(),
            "columns and keys: 3 does not fit 2"
        );
    }
}
