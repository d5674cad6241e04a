//! Values of a map as a tensor: `CastMap` and `DictVectorizer` (1) of `ai.onnx.ml`.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Type};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
};
use crate::tensor::Tensor;
use crate::value::Value;
use std::collections::BTreeMap;

attributes! {
    /// The values of a map for the keys, `[1, n]`, 0 or an empty text for those that it lacks; without keys all of its
    /// values, in ascending order of the map's keys.
    pub struct MapValues revision 1 {
        /// The keys, where they are integers.
        1 since 1 => integer_keys: Vec<i64>,
        /// The keys, where they are texts.
        2 since 1 => text_keys: Vec<String>,
    }
}

/// A key of a map, integers before texts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Integer(i64),
    Text(String),
}

impl Key {
    fn of(tensor: &Tensor) -> Option<Key> {
        if let Ok([integer]) = tensor.elements::<i64>() {
            return Some(Key::Integer(*integer));
        }
        let text = tensor.strings().ok()?.first()?;
        Some(Key::Text(text.clone()))
    }
}

impl MapValues {
    /// The keys that are asked for, and their type where there are any.
    fn keys(&self) -> Result<(Option<DType>, Vec<Key>), TypeError> {
        match (self.integer_keys.as_slice(), self.text_keys.as_slice()) {
            ([], []) => Ok((None, Vec::new())),
            (keys, []) => Ok((Some(DType::I64), keys.iter().map(|&key| Key::Integer(key)).collect())),
            ([], keys) => Ok((Some(DType::String), keys.iter().map(|key| Key::Text(key.clone())).collect())),
            _ => Err(TypeError::Unsupported("a map with integers and texts as keys".to_string())),
        }
    }

    /// Element type of the values of a map that has such keys.
    fn check(&self, kind: &Type) -> Result<DType, TypeError> {
        let fault = |expected: &'static str| TypeError::Kind { operand: 0, expected, found: kind.to_string() };
        let Type::Map { key, element } = kind else { return Err(fault("a map")) };
        let (expected, _) = self.keys()?;
        if expected.is_some_and(|expected| expected != *key) {
            return Err(fault("a map with keys of the type of those that are asked for"));
        }
        let found = element.as_tensor().map(|(dtype, _)| dtype);
        let fits = |dtype: &DType| matches!(dtype, DType::I64 | DType::F32 | DType::F64 | DType::String);
        found.filter(fits).ok_or_else(|| fault("a map of i64, f32, f64 or texts"))
    }
}

impl Operator for MapValues {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let input = inputs.first().and_then(Option::as_ref).ok_or(TypeError::MissingOperand { operand: 0 })?;
        let dtype = self.check(&input.kind)?;
        let (asked, keys) = self.keys()?;
        let count = if asked.is_some() { Dim::from(keys.len()) } else { context.fresh("values") };
        Ok(vec![Fact::tensor(dtype, vec![Dim::known(1), count])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = inputs.first().and_then(Option::as_ref).ok_or(TypeError::MissingOperand { operand: 0 })?;
        let dtype = self.check(&input.kind())?;
        let Value::Map { entries, .. } = input else {
            return Err(TypeError::MissingOperand { operand: 0 }.into());
        };
        let found = entries.iter().filter_map(|(key, value)| Some((Key::of(key)?, value.as_tensor()?)));
        let found: BTreeMap<Key, &Tensor> = found.collect();
        let (asked, keys) = self.keys()?;
        let values: Vec<Option<&Tensor>> = match asked {
            Some(_) => keys.iter().map(|key| found.get(key).copied()).collect(),
            None => found.values().map(|&value| Some(value)).collect(),
        };
        let shape = [1, values.len()];
        if dtype == DType::String {
            let text = |value: &Option<&Tensor>| value.and_then(|value| value.strings().ok()?.first().cloned());
            let texts = values.iter().map(|value| text(value).unwrap_or_default()).collect();
            return Ok(vec![Tensor::from_strings(&shape, texts)?.into()]);
        }
        let zero = Tensor::zeros(dtype, &[])?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.unwrap_or(&zero).bytes().iter().copied()).collect();
        Ok(vec![Tensor::from_bytes(dtype, &shape, &bytes)?.into()])
    }
}

impl Serial for MapValues {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;

    #[test]
    fn values_are_looked_up_or_in_order() {
        let entry = |key: i64, value: f32| (Tensor::scalar(key), Value::from(Tensor::scalar(value)));
        let element = Type::tensor(DType::F32, Vec::new());
        let map = Value::Map { key: DType::I64, element, entries: vec![entry(7, 0.5), entry(-2, 1.0)] };
        let values = |integer_keys: Vec<i64>, text_keys: Vec<String>| {
            let mut blocks = NoBlocks;
            let operator = MapValues { integer_keys, text_keys };
            let found = operator.reference(&[Some(map.clone())], &mut ReferenceContext::new(&mut blocks))?;
            let tensor = found[0].as_tensor().unwrap();
            Ok::<_, ReferenceError>((tensor.shape().to_vec(), tensor.elements::<f32>().unwrap().to_vec()))
        };
        assert_eq!(values(vec![], vec![]).unwrap(), (vec![1, 2], vec![1.0, 0.5]));
        assert_eq!(values(vec![7, 3], vec![]).unwrap(), (vec![1, 2], vec![0.5, 0.0]));
        let error = values(vec![], vec!["a".to_string()]).unwrap_err().to_string();
        assert!(error.contains("a map with keys of the type of those that are asked for"), "{error}");
    }
}
