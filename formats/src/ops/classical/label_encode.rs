//! Looking elements up in a list of keys: `LabelEncoder` (1, 2, 4) and `CategoryMapper` (1) of `ai.onnx.ml`.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::parts::concatenate;
use crate::ops::single::to_f64;
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;
use std::collections::HashMap;

attributes! {
    /// Replaces each element by the value that belongs to it: `x: [..]`, keys `[n]` of x's type, values `[n]`, default
    /// (one element) to `[..]` of the type of the values. NaN equals NaN; of equal keys the last counts.
    pub struct LabelEncode revision 1 {}
}

/// An element as something that can be looked up.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Text(&'a str),
    Integer(i64),
    /// Bits of an f64, one NaN and one zero of all.
    Float(u64),
}

fn keys(tensor: &Tensor, operand: usize) -> Result<Vec<Key<'_>>, ReferenceError> {
    if tensor.dtype() == DType::String {
        return Ok(tensor.strings()?.iter().map(|text| Key::Text(text)).collect());
    }
    if let Some(integers) = crate::fact::integers(tensor) {
        return Ok(integers.into_iter().map(Key::Integer).collect());
    }
    let canonical = |float: f64| if float.is_nan() { f64::NAN.to_bits() } else { (float + 0.0).to_bits() };
    Ok(to_f64(tensor, operand)?.into_iter().map(|float| Key::Float(canonical(float))).collect())
}

/// Types that ONNX lets keys and values have.
fn check_type(dtype: DType, operand: usize) -> Result<(), TypeError> {
    match dtype {
        DType::String | DType::I64 | DType::I32 | DType::I16 | DType::F32 | DType::F64 | DType::Bool => Ok(()),
        found => {
            let expected = "string, i64, i32, i16, f32 or f64".to_string();
            Err(TypeError::ElementType { operand, expected, found })
        }
    }
}

fn same_type(operand: usize, found: DType, expected: DType) -> Result<(), TypeError> {
    if found == expected {
        return Ok(());
    }
    Err(TypeError::ElementType { operand, expected: expected.to_string(), found })
}

impl Operator for LabelEncode {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        check_type(dtype, 0)?;
        let (key_type, keys) = tensor_operand(inputs, 1)?;
        let (value_type, values) = tensor_operand(inputs, 2)?;
        check_type(value_type, 2)?;
        same_type(1, key_type, dtype)?;
        same_type(3, tensor_operand(inputs, 3)?.0, value_type)?;
        for (operand, list) in [(1, keys), (2, values)] {
            if let Some(found) = list.rank().filter(|&rank| rank != 1) {
                return Err(TypeError::Rank { operand, expected: "1".to_string(), found });
            }
        }
        if let (Some([keys]), Some([values])) = (keys.dims(), values.dims()) {
            context.require_equal(keys, values, "numbers of keys and values")?;
        }
        Ok(vec![Fact::tensor(value_type, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, key_list, values, default) =
            (tensor(inputs, 0)?, tensor(inputs, 1)?, tensor(inputs, 2)?, tensor(inputs, 3)?);
        same_type(1, key_list.dtype(), x.dtype())?;
        let lengths = || TypeError::Dimension {
            subject: "keys, values and default".to_string(),
            left: format!("{:?}", key_list.shape()),
            right: format!("{:?} and {:?}", values.shape(), default.shape()),
        };
        if key_list.shape() != values.shape() || default.count() != 1 {
            return Err(lengths().into());
        }
        let table: HashMap<Key<'_>, usize> = keys(key_list, 1)?.into_iter().zip(0..).collect();
        let answers = concatenate(&[values, &default.reshaped(&[1])?], 0)?.ok_or_else(lengths)?;
        let unknown = values.count();
        let found = keys(x, 0)?.into_iter().map(|key| Some(table.get(&key).copied().unwrap_or(unknown)));
        Ok(vec![answers.select(x.shape(), found)?.into()])
    }
}

impl Computes for LabelEncode {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |axis| Some(loops::operand(0, axis)))
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    #[test]
    fn elements_are_looked_up() {
        let texts = |texts: &[&str]| {
            Tensor::from_strings(&[texts.len()], texts.iter().map(|text| text.to_string()).collect()).unwrap()
        };
        let people = texts(&["Dori", "Amy", "Sally"]);
        let inputs = [people, texts(&["Amy", "Sally"]), Tensor::vector_i64(&[5, 6]), Tensor::scalar(-1i64)];
        assert_eq!(run(&LabelEncode {}, &inputs).unwrap(), Tensor::vector_i64(&[-1, 5, 6]));
        let floats = |floats: &[f32]| Tensor::from_elements(&[floats.len()], floats).unwrap();
        let x = floats(&[f32::NAN, -0.0, 2.0, 3.0]);
        let inputs = [x, floats(&[f32::NAN, 0.0, 2.0, 2.0]), texts(&["nan", "zero", "two", "2"]), texts(&["none"])];
        let found = run(&LabelEncode {}, &inputs).unwrap();
        assert_eq!(found.strings().unwrap(), ["nan", "zero", "2", "none"]);
        let mismatch = [Tensor::scalar(1i64), floats(&[1.0]), floats(&[1.0]), floats(&[1.0])];
        assert_eq!(run(&LabelEncode {}, &mismatch).unwrap_err().to_string(), "operand 1 must be i64, found f32");
    }
}
