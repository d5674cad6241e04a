//! Spectra of overlapping frames: ONNX `STFT` (opset 17).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::signal::fourier_transform::{Complex, roots, transform, transform_length};
use crate::ops::single::{FLOATS, INDICES, check_single, from_f64, single_dim, single_integer, to_f64};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, optional, optional_tensor, required, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::filled;
use crate::value::Value;

attributes! {
    /// Operands: signal `[batch, n, 1]` (real) or `[batch, n, 2]` (complex), step between frames, window `[f]` or
    /// absent, length of a frame or absent (that of the window, else of the signal). Result: `[batch, frames, bins, 2]`.
    pub struct ShortTimeFourierTransform revision 1 {
        /// Only the half of the bins that determines a real signal.
        1 since 1 => onesided: bool,
    }
}

/// How the frames of a [`ShortTimeFourierTransform`] lie in its signal.
#[derive(Debug, Clone, PartialEq)]
pub struct Frames {
    /// Number of signals.
    pub batch: usize,
    /// Points of each signal.
    pub extent: usize,
    /// 1 for a real signal, 2 for a complex one.
    pub parts: usize,
    /// Points of a frame.
    pub length: usize,
    /// Points from the beginning of one frame to that of the next.
    pub step: usize,
    /// Frames of each signal.
    pub frames: usize,
    /// Bins of each spectrum.
    pub bins: usize,
    /// Weight of each point of a frame; none where all are 1.
    pub window: Option<Vec<f64>>,
}

impl ShortTimeFourierTransform {
    /// How the frames lie, for these operands.
    ///
    /// # Errors
    /// [`ReferenceError`] where the operands do not fit.
    pub fn frames(&self, inputs: &[Option<Value>]) -> Result<Frames, ReferenceError> {
        let signal = tensor(inputs, 0)?;
        let &[batch, extent, parts] = signal.shape() else {
            return Err(TypeError::Rank { operand: 0, expected: "3".to_string(), found: signal.rank() }.into());
        };
        let parts = self.check_parts(parts as i64)?;
        let window = optional_tensor(inputs, 2)?;
        let window = window.map(|window| to_f64(window, 2)).transpose()?;
        let fallback = window.as_ref().map_or(extent, Vec::len) as i64;
        let length = transform_length(single_integer(inputs, 3)?.unwrap_or(fallback))?;
        let step = single_integer(inputs, 1)?.ok_or(TypeError::MissingOperand { operand: 1 })?;
        let step = positive_step(step)?;
        let weights = window.as_ref().map_or(length, Vec::len);
        if length > extent || weights != length {
            return Err(TypeError::Dimension {
                subject: "length of a frame, against the signal's and the window's".to_string(),
                left: length.to_string(),
                right: format!("{extent} and {weights}"),
            }
            .into());
        }
        let frames = (extent - length) / step + 1;
        let bins = if self.onesided { length / 2 + 1 } else { length };
        Ok(Frames { batch, extent, parts, length, step, frames, bins, window })
    }

    fn check_parts(&self, parts: i64) -> Result<usize, TypeError> {
        match parts {
            1 => Ok(1),
            2 if !self.onesided => Ok(2),
            found => Err(TypeError::Value {
                subject: "last extent of the signal".to_string(),
                found: found.to_string(),
                expected: if self.onesided { "1, a real signal" } else { "1 or 2" }.to_string(),
            }),
        }
    }
}

impl Operator for ShortTimeFourierTransform {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if !FLOATS.contains(&dtype) {
            let expected = "a floating-point type of 16 bits or more".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        required(inputs, 1)?;
        check_single(inputs, 1, INDICES)?;
        check_single(inputs, 3, INDICES)?;
        let (batch, extent) = match shape {
            Shape::Unranked => (context.fresh("batch"), context.fresh("signal")),
            Shape::Ranked(dims) => match dims.as_slice() {
                [batch, extent, parts] => {
                    parts.as_known().map(|parts| self.check_parts(parts)).transpose()?;
                    (batch.clone(), extent.clone())
                }
                _ => return Err(TypeError::Rank { operand: 0, expected: "3".to_string(), found: dims.len() }),
            },
        };
        let window = match optional(inputs, 2) {
            None => None,
            Some(_) => {
                let (found, shape) = tensor_operand(inputs, 2)?;
                if found != dtype {
                    return Err(TypeError::ElementType { operand: 2, expected: dtype.to_string(), found });
                }
                match shape.dims() {
                    None => Some(context.fresh("frame")),
                    Some([extent]) => Some(extent.clone()),
                    Some(dims) => {
                        return Err(TypeError::Rank { operand: 2, expected: "1".to_string(), found: dims.len() });
                    }
                }
            }
        };
        let stated = optional(inputs, 3).map(|_| single_dim(inputs, 3).unwrap_or_else(|| context.fresh("frame")));
        let length = match (stated, window) {
            (Some(stated), Some(window)) => context.require_equal(&stated, &window, "length of frame and window")?,
            (Some(length), None) | (None, Some(length)) => length,
            (None, None) => extent.clone(),
        };
        let frames = match single_dim(inputs, 1) {
            Some(step) => (extent - &length).floor_div(&step) + 1,
            None => context.fresh("frames"),
        };
        let bins = if self.onesided { length.floor_div(&Dim::known(2)) + 1 } else { length };
        Ok(vec![Fact::tensor(dtype, vec![batch, frames, bins, Dim::known(2)])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let signal = tensor(inputs, 0)?;
        let Frames { batch, extent, parts, length, step, frames, bins, window } = self.frames(inputs)?;
        let shape = [batch, frames, bins, 2];
        let mut results = filled(0f64, Tensor::zeros(signal.dtype(), &shape)?.count())?;
        let elements = to_f64(signal, 0)?;
        let window = match window {
            Some(window) => window,
            None => filled(1.0, length)?,
        };
        let roots = roots(length);
        let mut spectra = results.chunks_exact_mut(2 * bins);
        for start in (0..batch).flat_map(|batch| (0..frames).map(move |frame| batch * extent + frame * step)) {
            let weighted: Vec<Complex> = (0..length)
                .map(|offset| {
                    let at = (start + offset) * parts;
                    let imaginary = if parts == 2 { elements[at + 1] } else { 0.0 };
                    (elements[at] * window[offset], imaginary * window[offset])
                })
                .collect();
            let spectrum = transform(&weighted, &roots, false, bins);
            if let Some(target) = spectra.next() {
                for (target, (real, imaginary)) in target.as_chunks_mut::<2>().0.iter_mut().zip(spectrum) {
                    *target = [real, imaginary];
                }
            }
        }
        Ok(vec![from_f64(signal.dtype(), &shape, &results)?.into()])
    }
}

impl Computes for ShortTimeFourierTransform {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let rest = facts.dims(0).map_or(Dim::ZERO, |dims| Dim::product(dims.get(1..).unwrap_or(&[])));
        loops::leading(facts, 1, &rest)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let length = match (facts.integers(3), facts.dims(2)) {
            (Some(length), _) => length.first().copied(),
            (None, Some([length])) => length.as_known(),
            (None, Some(_) | None) => None,
        };
        // Each stage of a fast transform combines all elements; how many there are depends on the length.
        let stages = length.map_or_else(
            || facts.fresh("stages"),
            |length| Dim::known(i64::from(u64::try_from(length).unwrap_or(1).next_power_of_two().trailing_zeros())),
        );
        each(&(facts.result_elements(0) * stages), &[(VectorClass::Arithmetic, 5)])
    }
}

fn positive_step(step: i64) -> Result<usize, ReferenceError> {
    usize::try_from(step).ok().filter(|&step| step > 0).ok_or_else(|| ReferenceError::OutOfRange {
        subject: "step between frames".to_string(),
        found: step,
        range: "1 and above".to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::dtype::DType;
    use crate::ops::NoBlocks;

    fn run(onesided: bool, inputs: [Option<Tensor>; 4]) -> Result<Tensor, ReferenceError> {
        let mut blocks = NoBlocks;
        let inputs = inputs.map(|input| input.map(Value::from));
        let operator = ShortTimeFourierTransform { onesided };
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks))?;
        Ok(results[0].as_tensor().unwrap().clone())
    }

    #[test]
    fn frames_are_weighted_and_transformed() {
        let signal = Tensor::from_elements(&[1, 4, 1], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let window = Tensor::from_elements(&[2], &[1.0f32, 0.5]).unwrap();
        let step = Some(Tensor::scalar(2i64));
        let result = run(true, [Some(signal.clone()), step.clone(), Some(window.clone()), None]).unwrap();
        assert_eq!(result.shape(), [1, 2, 2, 2]);
        let found = to_f64(&result, 0).unwrap();
        let expected = [2.0, 0.0, 0.0, 0.0, 5.0, 0.0, 1.0, 0.0];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
        let plain = run(false, [Some(signal.clone()), step.clone(), None, Some(Tensor::scalar(3i64))]).unwrap();
        assert_eq!(plain.shape(), [1, 1, 3, 2]);
        let long = Some(Tensor::scalar(3i64));
        assert_eq!(
            run(false, [Some(signal.clone()), step.clone(), Some(window), long]).unwrap_err().to_string(),
            "length of a frame, against the signal's and the window's: 3 does not fit 4 and 2"
        );
        assert_eq!(
            run(false, [Some(signal.clone()), step, None, Some(Tensor::scalar(5i64))]).unwrap_err().to_string(),
            "length of a frame, against the signal's and the window's: 5 does not fit 4 and 5"
        );
        assert_eq!(
            run(false, [Some(signal), Some(Tensor::scalar(0i64)), None, None]).unwrap_err().to_string(),
            "step between frames is 0, outside 1 and above"
        );
    }

    #[test]
    fn frames_are_counted() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("stft", &ranges, &mut blocks);
        let signal = Fact::tensor(DType::F32, vec![Dim::ONE, Dim::symbol("n"), Dim::ONE]);
        let step = Fact::constant(Tensor::scalar(160i64));
        let window = Fact::tensor(DType::F32, vec![Dim::known(400)]);
        let operator = ShortTimeFourierTransform { onesided: true };
        let facts = operator.infer(&[Some(signal), Some(step), Some(window), None], &mut context).unwrap();
        let frames = (Dim::symbol("n") - 400).floor_div(&Dim::known(160)) + 1;
        assert_eq!(facts[0], Fact::tensor(DType::F32, vec![Dim::ONE, frames, Dim::known(201), Dim::known(2)]));
    }
}
