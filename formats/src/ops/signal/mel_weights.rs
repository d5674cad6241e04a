//! From linear to mel frequencies: ONNX `MelWeightMatrix` (opset 17).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::signal::window::{check_result_type, size};
use crate::ops::single::{FLOATS, INDICES, check_single, from_f64, single_dim, single_float};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, required,
};
use crate::tensor::Tensor;
use crate::tensor::room;
use crate::value::Value;

attributes! {
    /// A bank of triangular filters `[floor(n/2) + 1, bands]`. Operands, one element each: bands, length n of the
    /// transform, sample rate, lower edge and upper edge in hertz.
    pub struct MelWeights revision 1 {
        /// Element type of the result.
        1 since 1 => dtype: DType,
    }
}

fn mel_of_hertz(hertz: f64) -> f64 {
    2595.0 * (hertz / 700.0).ln_1p() / std::f64::consts::LN_10
}

fn hertz_of_mel(mel: f64) -> f64 {
    700.0 * (mel / 2595.0 * std::f64::consts::LN_10).exp_m1()
}

/// The spectrogram bins where filters begin, peak and end: one list, filter b takes entries b, b + 1 and b + 2.
fn corner_bins(bands: usize, length: usize, sample_rate: f64, edges: (f64, f64)) -> Result<Vec<usize>, ReferenceError> {
    let (low, high) = (mel_of_hertz(edges.0), mel_of_hertz(edges.1));
    let corners = bands + 2;
    let step = (high - low) / corners as f64;
    let bins = length / 2 + 1;
    let mut found = room(corners)?;
    for index in 0..corners {
        let hertz = hertz_of_mel(low + step * index as f64);
        let bin = ((length as f64 + 1.0) * hertz / sample_rate).floor();
        // The last corner ends a filter without belonging to it.
        let limit = if index + 1 == corners { bins } else { bins - 1 };
        if !(bin >= 0.0 && bin <= limit as f64) {
            return Err(TypeError::Value {
                subject: "bin of a mel frequency".to_string(),
                found: bin.to_string(),
                expected: format!("0 to {limit}"),
            }
            .into());
        }
        found.push(bin as usize);
    }
    Ok(found)
}

/// The weight of spectrogram bin `bin` in the filter with these corners.
fn weight(bin: usize, corners: &[usize; 3]) -> f64 {
    let &[left, center, right] = corners;
    if bin >= center && bin < right {
        return (right - bin) as f64 / (right - center) as f64;
    }
    match left < center {
        true if (left..=center).contains(&bin) => (bin - left) as f64 / (center - left) as f64,
        false if bin == center => 1.0,
        _ => 0.0,
    }
}

impl Operator for MelWeights {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        check_result_type(self.dtype)?;
        for operand in 0..5 {
            required(inputs, operand)?;
            check_single(inputs, operand, if operand < 3 { INDICES } else { FLOATS })?;
        }
        let bands = single_dim(inputs, 0).unwrap_or_else(|| context.fresh("bands"));
        let bins = single_dim(inputs, 1).map(|length| length.floor_div(&Dim::known(2)) + 1);
        Ok(vec![Fact::tensor(self.dtype, vec![bins.unwrap_or_else(|| context.fresh("bins")), bands])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        check_result_type(self.dtype)?;
        let (bands, length, sample_rate) = (size(inputs, 0)?, size(inputs, 1)?, size(inputs, 2)?);
        let hertz = |operand: usize| single_float(inputs, operand)?.ok_or(TypeError::MissingOperand { operand }.into());
        let edges: Result<(f64, f64), ReferenceError> = hertz(3).and_then(|low| Ok((low, hertz(4)?)));
        let shape = [length / 2 + 1, bands];
        // Refuses sizes that cannot be, before anything of that size is computed.
        let count = Tensor::zeros(self.dtype, &shape)?.count();
        let corners = corner_bins(bands, length, sample_rate as f64, edges?)?;
        let mut elements = room(count)?;
        for bin in (0..shape[0]).take_while(|_| count > 0) {
            elements.extend(corners.array_windows::<3>().map(|corners| weight(bin, corners)));
        }
        Ok(vec![from_f64(self.dtype, &shape, &elements)?.into()])
    }
}

impl Computes for MelWeights {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |_| None)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 3), (VectorClass::Divide, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NoBlocks;

    fn run(bands: i64, length: i64, sample_rate: i64, edges: (f32, f32)) -> Result<Tensor, ReferenceError> {
        let mut blocks = NoBlocks;
        let integers = [bands, length, sample_rate].map(|number| Some(Tensor::scalar(number).into()));
        let floats = [edges.0, edges.1].map(|number| Some(Tensor::scalar(number).into()));
        let inputs: Vec<Option<Value>> = integers.into_iter().chain(floats).collect();
        let operator = MelWeights { dtype: DType::F32 };
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks))?;
        Ok(results[0].as_tensor().unwrap().clone())
    }

    #[test]
    fn the_example_of_the_onnx_page() {
        let matrix = run(8, 16, 8192, (0.0, 4096.0)).unwrap();
        assert_eq!(matrix.shape(), [9, 8]);
        let elements = matrix.elements::<f32>().unwrap();
        assert_eq!(elements[..8], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(elements[8..16], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(elements.iter().all(|weight| (0.0..=1.0).contains(weight)));
    }

    #[test]
    fn filters_stay_inside_the_spectrum() {
        assert_eq!(
            run(8, 16, 8192, (0.0, 40960.0)).unwrap_err().to_string(),
            "bin of a mel frequency is 9, expected 0 to 8"
        );
        assert_eq!(
            run(8, 16, 0, (0.0, 4096.0)).unwrap_err().to_string(),
            "bin of a mel frequency is NaN, expected 0 to 8"
        );
        assert_eq!(
            run(-1, 16, 8192, (0.0, 4096.0)).unwrap_err().to_string(),
            "size in operand 0 is -1, outside 0 and above"
        );
        assert_eq!(
            run(8, 16, 8192, (f32::NAN, 4096.0)).unwrap_err().to_string(),
            "bin of a mel frequency is NaN, expected 0 to 8"
        );
        assert_eq!(run(0, 16, 8192, (0.0, 4096.0)).unwrap().shape(), [9, 0]);
    }
}
