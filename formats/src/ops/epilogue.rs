//! What a product step does to each element of its result before it is stored.
//!
//! An attribute of matmul, convolution and attention: scalar operations in order, over the accumulator and further
//! operands of the step, which broadcast to the result. Stored as one text an operation: `unary tanh`,
//! `activation leaky_relu 0.1`, `binary add 2`, `binary sub 2 swapped`, `clamp 0.0 6.0`; left out where empty.

use crate::attribute::{Attribute, AttributeValue};
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::{broadcast_shapes, broadcast_strides, strided_indices};
use crate::ops::scalar::{Scalar, from_scalars, round_to, scalars};
use crate::ops::{
    Activation, ActivationFunction, BinaryFunction, InferContext, ReferenceError, TypeError, UnaryFunction, tensor,
    tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

/// Scalar operations on each result element, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Epilogue(pub Vec<ScalarOperation>);

/// One operation of an [`Epilogue`].
#[derive(Debug, Clone, PartialEq)]
pub enum ScalarOperation {
    /// A function of the element; tests are refused, since they would change its type.
    Unary(UnaryFunction),
    /// A function of the element, with parameters.
    Activation(Activation),
    /// A function of the element and an element of an operand.
    Binary {
        /// The function.
        function: BinaryFunction,
        /// Index of the operand among the step's operands.
        operand: usize,
        /// The operand is the function's first argument.
        swapped: bool,
    },
    /// Between two bounds; NaN stays. Where they cross, the greater bound wins as in ONNX `Clip`.
    Clamp {
        /// Least value.
        minimum: f32,
        /// Greatest value.
        maximum: f32,
    },
}

impl ScalarOperation {
    /// The operation on one value; `operand` gives the element of an operand that belongs to it.
    pub fn apply(&self, value: f64, operand: impl Fn(usize) -> f64) -> f64 {
        match self {
            ScalarOperation::Unary(function) => function.apply(value),
            ScalarOperation::Activation(activation) => activation.apply(value),
            ScalarOperation::Binary { function, operand: index, swapped: false } => {
                function.apply(value, operand(*index))
            }
            ScalarOperation::Binary { function, operand: index, swapped: true } => {
                function.apply(operand(*index), value)
            }
            ScalarOperation::Clamp { minimum, maximum } => clamp(value, (*minimum).into(), (*maximum).into()),
        }
    }

    /// The operation on one f32, rounded once.
    pub fn apply_f32(&self, value: f32, operand: impl Fn(usize) -> f32) -> f32 {
        self.apply(f64::from(value), |index| f64::from(operand(index))) as f32
    }
}

/// `min(maximum, max(minimum, value))`; NaN stays.
pub(crate) fn clamp(value: f64, minimum: f64, maximum: f64) -> f64 {
    BinaryFunction::Min.apply(BinaryFunction::Max.apply(value, minimum), maximum)
}

impl Epilogue {
    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Indices of the operands that it reads, in order, repeated where read repeatedly.
    pub fn operands(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(|operation| match operation {
            ScalarOperation::Binary { operand, .. } => Some(*operand),
            ScalarOperation::Unary(_) | ScalarOperation::Activation(_) | ScalarOperation::Clamp { .. } => None,
        })
    }

    /// All operations on one f32, each rounded.
    pub fn apply_f32(&self, value: f32, operand: impl Fn(usize) -> f32) -> f32 {
        self.0.iter().fold(value, |value, operation| operation.apply_f32(value, &operand))
    }

    /// Check it against the operands of a step whose result has this type and shape.
    ///
    /// # Errors
    /// [`TypeError`] where the result is no float, or an operand has another type or does not broadcast to it.
    pub fn infer(
        &self,
        dtype: DType,
        shape: &Shape,
        inputs: &[Option<Fact>],
        context: &mut InferContext<'_>,
    ) -> Result<(), TypeError> {
        self.check(dtype)?;
        for operand in self.operands() {
            let (found, operand_shape) = tensor_operand(inputs, operand)?;
            if found != dtype {
                return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found });
            }
            if let (Some(expected), Some(found)) = (shape.rank(), operand_shape.rank())
                && found > expected
            {
                return Err(TypeError::Rank { operand, expected: format!("at most {expected}"), found });
            }
            broadcasts_into(operand_shape, shape, context)?;
        }
        Ok(())
    }

    fn check(&self, dtype: DType) -> Result<(), TypeError> {
        if !self.is_empty() && !dtype.is_float() {
            return Err(TypeError::Unsupported(format!("an epilogue over {dtype}")));
        }
        for operation in &self.0 {
            match operation {
                ScalarOperation::Unary(function) if function.is_test() => {
                    let name: &'static str = function.into();
                    return Err(TypeError::Unsupported(format!("`{name}` in an epilogue")));
                }
                ScalarOperation::Activation(activation) => activation.check_parameters()?,
                ScalarOperation::Unary(_) | ScalarOperation::Binary { .. } | ScalarOperation::Clamp { .. } => {}
            }
        }
        Ok(())
    }

    /// The result of a step after its epilogue: each operation over all elements, rounded to the element type.
    ///
    /// # Errors
    /// [`ReferenceError`] where the result is no float, or an operand is absent or does not broadcast to it.
    pub fn apply_to(&self, result: Tensor, inputs: &[Option<Value>]) -> Result<Tensor, ReferenceError> {
        if self.is_empty() {
            return Ok(result);
        }
        let dtype = result.dtype();
        self.check(dtype)?;
        let mut values: Vec<f64> = scalars(&result)?.into_iter().map(Scalar::to_f64).collect();
        for operation in &self.0 {
            let elements = match operation {
                ScalarOperation::Binary { operand, .. } => Some(broadcast_operand(inputs, *operand, result.shape())?),
                ScalarOperation::Unary(_) | ScalarOperation::Activation(_) | ScalarOperation::Clamp { .. } => None,
            };
            for (index, value) in values.iter_mut().enumerate() {
                let element = |_| elements.as_ref().map_or(0.0, |elements: &Vec<f64>| elements[index]);
                *value = round_to(dtype, operation.apply(*value, element));
            }
        }
        let values: Vec<Scalar> = values.into_iter().map(Scalar::Float).collect();
        from_scalars(dtype, result.shape(), &values)
    }
}

/// Broadcasting that leaves `shape` as it is.
fn broadcasts_into(operand: &Shape, shape: &Shape, context: &mut InferContext<'_>) -> Result<(), TypeError> {
    if let (Shape::Ranked(from), Shape::Ranked(into)) = (operand, shape) {
        let offset = into.len().saturating_sub(from.len());
        for (from, into) in from.iter().zip(&into[offset..]) {
            if from.as_known().is_some_and(|extent| extent != 1) {
                context.require_equal(into, from, "operand of the epilogue")?;
            }
        }
    }
    broadcast_shapes(&[shape, operand], context).map(|_| ())
}

fn broadcast_operand(inputs: &[Option<Value>], operand: usize, shape: &[usize]) -> Result<Vec<f64>, ReferenceError> {
    let tensor = tensor(inputs, operand)?;
    let offset = shape.len().checked_sub(tensor.rank());
    let fits = offset.is_some_and(|offset| {
        tensor.shape().iter().zip(&shape[offset..]).all(|(&from, &into)| from == 1 || from == into)
    });
    if !fits {
        return Err(TypeError::Dimension {
            subject: "operand of the epilogue".to_string(),
            left: format!("{:?}", tensor.shape()),
            right: format!("{shape:?}"),
        }
        .into());
    }
    let elements = scalars(tensor)?;
    let indices = strided_indices(shape, &broadcast_strides(tensor.shape(), shape));
    Ok(indices.map(|index| elements[index].to_f64()).collect())
}

impl Attribute for Epilogue {
    fn to_value(&self) -> Option<AttributeValue> {
        (!self.is_empty()).then(|| AttributeValue::Texts(self.0.iter().map(print).collect()))
    }

    fn from_value(value: &AttributeValue) -> Option<Self> {
        let AttributeValue::Texts(texts) = value else { return None };
        texts.iter().map(|text| parse(text)).collect::<Option<_>>().map(Epilogue)
    }

    fn absent() -> Option<Self> {
        Some(Epilogue::default())
    }
}

fn print(operation: &ScalarOperation) -> String {
    match operation {
        ScalarOperation::Unary(function) => format!("unary {}", <&'static str>::from(function)),
        ScalarOperation::Activation(activation) => {
            let mut text = format!("activation {}", <&'static str>::from(activation.function));
            for (name, parameter) in [("alpha", activation.alpha), ("beta", activation.beta)] {
                if let Some(value) = parameter {
                    text.push_str(&format!(" {name}={value:?}"));
                }
            }
            text
        }
        ScalarOperation::Binary { function, operand, swapped } => {
            let order = if *swapped { " swapped" } else { "" };
            format!("binary {} {operand}{order}", <&'static str>::from(function))
        }
        ScalarOperation::Clamp { minimum, maximum } => format!("clamp {minimum:?} {maximum:?}"),
    }
}

fn parse(text: &str) -> Option<ScalarOperation> {
    let words: Vec<&str> = text.split(' ').collect();
    match words.as_slice() {
        ["unary", function] => function.parse().ok().map(ScalarOperation::Unary),
        ["activation", function, parameters @ ..] => {
            let mut activation = Activation::new(function.parse::<ActivationFunction>().ok()?);
            for parameter in parameters {
                let (name, value) = parameter.split_once('=')?;
                let slot = match name {
                    "alpha" => &mut activation.alpha,
                    "beta" => &mut activation.beta,
                    _ => return None,
                };
                if slot.replace(value.parse().ok()?).is_some() {
                    return None;
                }
            }
            Some(ScalarOperation::Activation(activation))
        }
        ["binary", function, operand, order @ ..] => {
            let swapped = match order {
                [] => false,
                ["swapped"] => true,
                _ => return None,
            };
            let (function, operand) = (function.parse().ok()?, operand.parse::<u32>().ok()? as usize);
            Some(ScalarOperation::Binary { function, operand, swapped })
        }
        ["clamp", minimum, maximum] => {
            Some(ScalarOperation::Clamp { minimum: minimum.parse().ok()?, maximum: maximum.parse().ok()? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operations() -> Vec<ScalarOperation> {
        vec![
            ScalarOperation::Binary { function: BinaryFunction::Sub, operand: 2, swapped: true },
            ScalarOperation::Binary { function: BinaryFunction::Add, operand: 3, swapped: false },
            ScalarOperation::Activation(Activation {
                function: ActivationFunction::LeakyRelu,
                alpha: Some(0.1),
                beta: None,
            }),
            ScalarOperation::Unary(UnaryFunction::Tanh),
            ScalarOperation::Clamp { minimum: f32::NEG_INFINITY, maximum: 6.0 },
        ]
    }

    #[test]
    fn texts_round_trip() {
        let epilogue = Epilogue(operations());
        let value = epilogue.to_value().unwrap();
        assert_eq!(
            value,
            AttributeValue::Texts(
                [
                    "binary sub 2 swapped",
                    "binary add 3",
                    "activation leaky_relu alpha=0.1",
                    "unary tanh",
                    "clamp -inf 6.0"
                ]
                .map(str::to_string)
                .to_vec()
            )
        );
        assert_eq!(Epilogue::from_value(&value), Some(epilogue));
        assert_eq!(Epilogue::default().to_value(), None);
        for text in ["unary", "unary nothing", "binary add", "binary add -1", "clamp 0.0", "activation elu gamma=1.0"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn operands_broadcast_and_order_holds() {
        let result = Tensor::from_elements(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let bias = Tensor::from_elements(&[2], &[10.0f32, -10.0]).unwrap();
        let inputs = [None, None, Some(Value::from(bias))];
        let epilogue = Epilogue(vec![
            ScalarOperation::Binary { function: BinaryFunction::Sub, operand: 2, swapped: true },
            ScalarOperation::Clamp { minimum: -12.5, maximum: 8.0 },
        ]);
        let applied = epilogue.apply_to(result.clone(), &inputs).unwrap();
        assert_eq!(applied.elements::<f32>().unwrap(), [8.0, -12.0, 7.0, -12.5]);
        assert_eq!(epilogue.apply_f32(3.0, |_| 10.0), 7.0);
        let missing =
            Epilogue(vec![ScalarOperation::Binary { function: BinaryFunction::Add, operand: 1, swapped: false }]);
        assert!(missing.apply_to(result, &inputs).is_err());
    }

    #[test]
    fn operands_may_not_enlarge_the_result() {
        let ranges = crate::dim::Ranges::default();
        let mut blocks = crate::ops::NoBlocks;
        let mut context = InferContext::new("matmul", &ranges, &mut blocks);
        let epilogue = Epilogue(operations()[..1].to_vec());
        let facts = |extents: &[usize]| [None, None, Some(Fact::tensor(DType::F32, Shape::known(extents)))];
        let shape = Shape::known(&[1, 4]);
        assert!(epilogue.infer(DType::F32, &shape, &facts(&[4]), &mut context).is_ok());
        assert!(epilogue.infer(DType::F32, &shape, &facts(&[3, 4]), &mut context).is_err());
        assert!(epilogue.infer(DType::F32, &shape, &facts(&[1, 1, 4]), &mut context).is_err());
        assert!(epilogue.infer(DType::I32, &shape, &facts(&[4]), &mut context).is_err());
    }
}
