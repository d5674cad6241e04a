//! Normalization by the squares of neighbouring channels: ONNX `LRN` (opsets 1, 13).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::floats::{narrowed, require_computing_float, widened};
use crate::ops::normalization::reduce::volume;
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// `x / (bias + alpha / size * sum of squares of size channels around)^beta`: `x: [n, c, ..]` to `[n, c, ..]`.
    pub struct LocalResponseNormalization revision 1 {
        /// Channels in a neighbourhood; an even one reaches further up than down.
        1 since 1 => size: i64,
        /// Factor of the sum.
        2 since 1 => alpha: f32,
        /// Exponent.
        3 since 1 => beta: f32,
        /// Added to the sum.
        4 since 1 => bias: f32,
    }
}

impl LocalResponseNormalization {
    /// Channels below and above that belong to a neighbourhood.
    pub fn reach(&self) -> Result<(usize, usize), TypeError> {
        match usize::try_from(self.size) {
            Ok(size) if size > 0 => Ok(((size - 1) / 2, size / 2)),
            _ => Err(TypeError::Value {
                subject: "neighbourhood size".to_string(),
                found: self.size.to_string(),
                expected: "at least 1".to_string(),
            }),
        }
    }
}

fn require_channels(rank: usize) -> Result<(), TypeError> {
    if rank >= 2 {
        Ok(())
    } else {
        Err(TypeError::Rank { operand: 0, expected: "at least 2".to_string(), found: rank })
    }
}

impl Operator for LocalResponseNormalization {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        self.reach()?;
        if let Shape::Ranked(dims) = shape {
            require_channels(dims.len())?;
        }
        Ok(vec![Fact::tensor(dtype, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        require_computing_float(data.dtype(), 0)?;
        require_channels(data.rank())?;
        let (below, above) = self.reach()?;
        let channels = data.shape()[1];
        let inner = volume(&data.shape()[2..]);
        let values = widened(data)?;
        let results: Vec<f64> = (0..values.len())
            .map(|index| {
                let channel = index / inner % channels;
                let first = channel.saturating_sub(below);
                let last = channel.saturating_add(above).min(channels - 1);
                let base = index - channel * inner;
                let squares: f64 = (first..=last).map(|other| values[base + other * inner].powi(2)).sum();
                let scale = f64::from(self.bias) + f64::from(self.alpha) / self.size as f64 * squares;
                values[index] / scale.powf(f64::from(self.beta))
            })
            .collect();
        Ok(vec![narrowed(data.dtype(), data.shape(), &results)?.into()])
    }
}

impl Computes for LocalResponseNormalization {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some(dims) = facts.dims(0) else { return loops::serial(facts) };
        let before = self.size.saturating_sub(1).div_euclid(2);
        let nest = dims.iter().enumerate().fold(loops::Loops::new(facts), |nest, (axis, extent)| {
            let offset = if axis == 1 { -before } else { 0 };
            nest.parallel(extent, [loops::operand(0, axis).offset(offset), loops::result(0, axis)])
        });
        vec![nest.reduced(&Dim::known(self.size), [loops::operand(0, 1)]).space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let elements = facts.elements(0);
        [
            each(&(&elements * self.size), &[(VectorClass::Arithmetic, 2)]),
            each(&elements, &[(VectorClass::Divide, 1), (VectorClass::Transcendental, 1)]),
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;
    use crate::tensor::Tensor;

    #[test]
    fn an_even_neighbourhood_reaches_up() {
        let operator = LocalResponseNormalization { size: 2, alpha: 2.0, beta: 1.0, bias: 1.0 };
        let data = Tensor::from_elements(&[1, 3, 1], &[1.0f32, 2.0, 3.0]).unwrap();
        let mut blocks = NoBlocks;
        let results = operator.reference(&[Some(data.into())], &mut ReferenceContext::new(&mut blocks)).unwrap();
        let elements = results[0].as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
        assert_eq!(elements, [1.0 / 6.0, 2.0 / 14.0, 3.0 / 10.0]);
    }

    #[test]
    fn sizes_are_checked() {
        let operator = |size| LocalResponseNormalization { size, alpha: 1.0, beta: 1.0, bias: 1.0 };
        assert!(operator(0).reach().is_err() && operator(-3).reach().is_err());
        assert_eq!(operator(5).reach().unwrap(), (2, 2));
        assert_eq!(operator(4).reach().unwrap(), (1, 2));
    }
}
