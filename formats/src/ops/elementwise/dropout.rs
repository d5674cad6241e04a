//! Random zeros while training: ONNX `Dropout` (opset 12 to 22). At inference it passes its operand on.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::elementwise::random::Generator;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// `data: [..], ratio: [] or absent, training_mode: bool [] or absent` to `output: [..], mask: bool [..]`.
    ///
    /// While training an element is dropped with probability `ratio` (0.5 where absent) and else divided by `1 - ratio`;
    /// otherwise the output is the data, and the mask holds everywhere.
    pub struct Dropout revision 1 {
        /// Seed; each run drops the same elements with it.
        1 since 1 => seed: Option<i64>,
    }
}

fn check_float(operand: usize, dtype: DType) -> Result<(), TypeError> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(TypeError::ElementType { operand, expected: "a floating-point type".to_string(), found: dtype })
}

fn check_bool(operand: usize, dtype: DType) -> Result<(), TypeError> {
    if dtype == DType::Bool {
        return Ok(());
    }
    Err(TypeError::ElementType { operand, expected: "bool".to_string(), found: dtype })
}

fn check_single(operand: usize, shape: &Shape) -> Result<(), TypeError> {
    match shape.rank() {
        Some(found) if found > 1 => Err(TypeError::Rank { operand, expected: "0".to_string(), found }),
        Some(_) | None => Ok(()),
    }
}

impl Operator for Dropout {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        check_float(0, dtype)?;
        if optional(inputs, 1).is_some() {
            let (dtype, ratio) = tensor_operand(inputs, 1)?;
            check_float(1, dtype)?;
            check_single(1, ratio)?;
        }
        if optional(inputs, 2).is_some() {
            let (dtype, training) = tensor_operand(inputs, 2)?;
            check_bool(2, dtype)?;
            check_single(2, training)?;
        }
        Ok(vec![Fact::tensor(dtype, shape.clone()), Fact::tensor(DType::Bool, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        check_float(0, data.dtype())?;
        let training = match optional_tensor(inputs, 2)? {
            Some(training) => {
                check_bool(2, training.dtype())?;
                single(training, 2)?.is_true()
            }
            None => false,
        };
        let ratio = match optional_tensor(inputs, 1)? {
            Some(ratio) => single(ratio, 1)?.to_f64(),
            None => 0.5,
        };
        if !training || ratio == 0.0 {
            let mask = Tensor::from_bools(data.shape(), &vec![true; data.count()])?;
            return Ok(vec![data.clone().into(), mask.into()]);
        }
        if !(0.0..1.0).contains(&ratio) {
            return Err(TypeError::Value {
                subject: "the ratio of a dropout".to_string(),
                found: ratio.to_string(),
                expected: "from 0 to below 1".to_string(),
            }
            .into());
        }
        let mut generator = Generator::new(self.seed.map(|seed| seed as u64), context);
        let kept: Vec<bool> = (0..data.count()).map(|_| generator.uniform() >= ratio).collect();
        let scaled =
            |(value, &kept): (Scalar, &bool)| Scalar::Float(if kept { value.to_f64() / (1.0 - ratio) } else { 0.0 });
        let values: Vec<Scalar> = scalars(data)?.into_iter().zip(&kept).map(scaled).collect();
        let output = from_scalars(data.dtype(), data.shape(), &values)?;
        Ok(vec![output.into(), Tensor::from_bools(data.shape(), &kept)?.into()])
    }
}

impl Serial for Dropout {
    fn effect(&self) -> Effect {
        Effect::Random
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 3)])
    }
}

fn single(tensor: &Tensor, operand: usize) -> Result<Scalar, ReferenceError> {
    match scalars(tensor)?.as_slice() {
        [value] => Ok(*value),
        values => Err(TypeError::Value {
            subject: format!("the number of elements of operand {operand}"),
            found: values.len().to_string(),
            expected: "1".to_string(),
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run_all;

    #[test]
    fn inference_passes_on() {
        let data = Tensor::from_elements(&[2], &[1.0f32, 2.0]).unwrap();
        let results = run_all(&Dropout { seed: None }, &[Some(data.clone()), Some(Tensor::scalar(0.9f32))]).unwrap();
        assert_eq!(results[0], data);
        assert_eq!(results[1].bools().unwrap(), [true, true]);
    }

    #[test]
    fn training_drops_and_scales() {
        let data = Tensor::from_elements(&[10_000], &[3.0f32; 10_000]).unwrap();
        let ratio = Some(Tensor::scalar(0.25f32));
        let training = Some(Tensor::scalar_bool(true));
        let operands = [Some(data.clone()), ratio, training.clone()];
        let results = run_all(&Dropout { seed: Some(1) }, &operands).unwrap();
        let mask = results[1].bools().unwrap();
        let kept = mask.iter().filter(|&&kept| kept).count();
        assert!((7_300..7_700).contains(&kept), "{kept}");
        for (&element, kept) in results[0].elements::<f32>().unwrap().iter().zip(mask) {
            assert_eq!(element, if kept { 4.0 } else { 0.0 });
        }
        let whole = [Some(data), Some(Tensor::scalar(1.0f32)), training];
        assert_eq!(
            run_all(&Dropout { seed: None }, &whole).unwrap_err().to_string(),
            "the ratio of a dropout is 1, expected from 0 to below 1"
        );
    }
}
