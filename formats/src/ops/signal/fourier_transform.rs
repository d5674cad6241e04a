//! Discrete Fourier transforms: ONNX `DFT` (opsets 17, 20).
//!
//! Computed in f64 by the sum that defines it. A kernel may transform complex signals of f32 in f32, as the reference of ONNX
//! (NumPy) does.

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::single::{FLOATS, INDICES, check_single, from_f64, single_dim, single_integer, to_f64};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, normalize_axis, tensor, tensor_operand,
};
use crate::tensor::{Tensor, element_count};
use crate::value::Value;

attributes! {
    /// Operands: signal `[.., 1]` (real) or `[.., 2]` (real and imaginary part), length (i32 or i64) or absent, axis
    /// (i64, absent: -2). The signal is cut or filled with zeros to the length; absent means the axis as it is, or
    /// twice the axis less one for a one-sided inverse.
    pub struct FourierTransform revision 1 {
        /// From frequencies to time, divided by the length.
        1 since 1 => inverse: bool,
        /// The half of the frequencies that determines a real signal: the result of a forward transform `[.., 2]`,
        /// the operand of an inverse one, whose result is then real `[.., 1]`.
        2 since 1 => onesided: bool,
    }
}

/// A complex number as (real, imaginary).
pub(super) type Complex = (f64, f64);

/// `e^(2*pi*i*k/n)` for every k below n.
pub(super) fn roots(length: usize) -> Vec<Complex> {
    let angle = |index: usize| std::f64::consts::TAU * index as f64 / length as f64;
    (0..length).map(|index| (angle(index).cos(), angle(index).sin())).collect()
}

/// The first `count` sums over the signal times `e^(∓2*pi*i*k*t/n)`, where n is the number of roots.
pub(super) fn transform(signal: &[Complex], roots: &[Complex], inverse: bool, count: usize) -> Vec<Complex> {
    let length = roots.len();
    let mut spectrum = Vec::with_capacity(count);
    for frequency in 0..count {
        let (mut real, mut imaginary, mut at) = (0f64, 0f64, 0usize);
        for &(x, y) in signal {
            let (cosine, sine) = (roots[at].0, if inverse { roots[at].1 } else { -roots[at].1 });
            real += x * cosine - y * sine;
            imaginary += x * sine + y * cosine;
            at += frequency;
            if at >= length {
                at -= length;
            }
        }
        spectrum.push((real, imaginary));
    }
    spectrum
}

/// The spectrum of a real signal of this length from its first half.
fn mirrored(half: &[Complex], length: usize) -> Vec<Complex> {
    let bin = |index: usize| half.get(index).copied().unwrap_or((0.0, 0.0));
    let conjugate = |(real, imaginary): Complex| (real, -imaginary);
    let full = (0..length).map(|index| if index <= length / 2 { bin(index) } else { conjugate(bin(length - index)) });
    full.collect()
}

/// How the lines of a [`FourierTransform`] lie in its operand `[outer, extent, inner, parts]` and in its result
/// `[outer, bins, inner, result_parts]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FourierLines {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Extent of the axis in the operand.
    pub extent: usize,
    /// Product of the extents after the axis, without the last.
    pub inner: usize,
    /// 1 for a real operand, 2 for a complex one.
    pub parts: usize,
    /// Points of the transform.
    pub length: usize,
    /// Extent of the axis in the result.
    pub bins: usize,
    /// 1 for a real result, 2 for a complex one.
    pub result_parts: usize,
    /// Shape of the result.
    pub shape: Vec<usize>,
}

impl FourierTransform {
    /// How the lines lie, for these operands.
    ///
    /// # Errors
    /// [`ReferenceError`] where the operands do not fit.
    pub fn lines(&self, inputs: &[Option<Value>]) -> Result<FourierLines, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let rank = input.rank();
        let axis = signal_axis(single_integer(inputs, 2)?.unwrap_or(-2), rank)?;
        let parts = self.parts(input.shape()[rank - 1] as i64)?;
        let extent = input.shape()[axis];
        let default = if self.onesided && self.inverse { 2 * (extent as i64 - 1) } else { extent as i64 };
        let length = transform_length(single_integer(inputs, 1)?.unwrap_or(default))?;
        let bins = if self.onesided && !self.inverse { length / 2 + 1 } else { length };
        let result_parts = if self.onesided && self.inverse { 1 } else { 2 };
        let mut shape = input.shape().to_vec();
        (shape[axis], shape[rank - 1]) = (bins, result_parts);
        let outer = element_count(&shape[..axis]).unwrap_or(0);
        let inner = element_count(&shape[axis + 1..rank - 1]).unwrap_or(0);
        Ok(FourierLines { outer, extent, inner, parts, length, bins, result_parts, shape })
    }

    /// Extent of the transformed axis and of the last axis of the result.
    fn result_extents(&self, length: &Dim) -> (Dim, Dim) {
        match (self.onesided, self.inverse) {
            (true, false) => (length.floor_div(&Dim::known(2)) + 1, Dim::known(2)),
            (true, true) => (length.clone(), Dim::ONE),
            (false, _) => (length.clone(), Dim::known(2)),
        }
    }

    /// One line along the axis.
    fn line(&self, signal: &[Complex], roots: &[Complex]) -> Vec<Complex> {
        let length = roots.len();
        let scale = if self.inverse { 1.0 / length as f64 } else { 1.0 };
        let signal = &signal[..signal.len().min(length)];
        let spectrum = match (self.onesided, self.inverse) {
            (true, true) => transform(&mirrored(signal, length), roots, true, length),
            (true, false) => transform(signal, roots, false, length / 2 + 1),
            (false, inverse) => transform(signal, roots, inverse, length),
        };
        spectrum.into_iter().map(|(real, imaginary)| (real * scale, imaginary * scale)).collect()
    }

    /// Parts of the last axis of the signal (1 or 2), checked.
    fn parts(&self, parts: i64) -> Result<usize, TypeError> {
        let expected = match (self.onesided, self.inverse) {
            (true, false) => "1, a real signal",
            (true, true) => "2, a complex one-sided spectrum",
            (false, _) => "1 or 2",
        };
        match (parts, self.onesided, self.inverse) {
            (1, true, false) | (1, false, _) => Ok(1),
            (2, true, true) | (2, false, _) => Ok(2),
            _ => Err(TypeError::Value {
                subject: "last extent of the signal".to_string(),
                found: parts.to_string(),
                expected: expected.to_string(),
            }),
        }
    }
}

/// The axis, which is not the last.
fn signal_axis(axis: i64, rank: usize) -> Result<usize, TypeError> {
    let normalized = normalize_axis(axis, rank)?;
    if normalized + 1 == rank { Err(TypeError::Axis { axis, rank }) } else { Ok(normalized) }
}

impl Operator for FourierTransform {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if !FLOATS.contains(&dtype) {
            let expected = "a floating-point type of 16 bits or more".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        check_single(inputs, 1, INDICES)?;
        check_single(inputs, 2, INDICES)?;
        let Shape::Ranked(dims) = shape else { return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]) };
        let last = match dims.as_slice() {
            [_, .., last] => last,
            _ => {
                let expected = "2 or more".to_string();
                return Err(TypeError::Rank { operand: 0, expected, found: dims.len() });
            }
        };
        if let Some(parts) = last.as_known() {
            self.parts(parts)?;
        }
        let mut dims = dims.clone();
        let last = dims.len() - 1;
        let axis = match inputs.get(2).and_then(Option::as_ref) {
            None => Some(-2),
            Some(_) => single_dim(inputs, 2).and_then(|axis| axis.as_known()),
        };
        let Some(axis) = axis else {
            for (index, dim) in dims.iter_mut().enumerate().take(last) {
                *dim = context.fresh(&format!("axis{index}"));
            }
            dims[last] = self.result_extents(&Dim::ONE).1;
            return Ok(vec![Fact::tensor(dtype, dims)]);
        };
        let axis = signal_axis(axis, dims.len())?;
        let length = match inputs.get(1).and_then(Option::as_ref) {
            Some(_) => single_dim(inputs, 1).unwrap_or_else(|| context.fresh("length")),
            None if self.onesided && self.inverse => (dims[axis].clone() - 1) * 2,
            None => dims[axis].clone(),
        };
        (dims[axis], dims[last]) = self.result_extents(&length);
        Ok(vec![Fact::tensor(dtype, dims)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let FourierLines { outer, extent, inner, parts, length, bins, result_parts, shape } = self.lines(inputs)?;
        // Refuses sizes that cannot be, before anything of that size is computed.
        let empty = Tensor::zeros(input.dtype(), &shape)?;
        if input.count() == 0 {
            return Ok(vec![empty.into()]);
        }
        let elements = to_f64(input, 0)?;
        let roots = roots(length);
        let mut results = vec![0f64; empty.count()];
        for (block, offset) in (0..outer).flat_map(|block| (0..inner).map(move |offset| (block, offset))) {
            let value = |position: usize| {
                let start = ((block * extent + position) * inner + offset) * parts;
                (elements[start], if parts == 2 { elements[start + 1] } else { 0.0 })
            };
            let signal: Vec<Complex> = (0..extent).map(value).collect();
            for (bin, (real, imaginary)) in self.line(&signal, &roots).into_iter().enumerate() {
                let start = ((block * bins + bin) * inner + offset) * result_parts;
                results[start] = real;
                if result_parts == 2 {
                    results[start + 1] = imaginary;
                }
            }
        }
        Ok(vec![from_f64(input.dtype(), &shape, &results)?.into()])
    }
}

impl Computes for FourierTransform {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::serial(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        // Each stage of a fast transform combines all elements; how many there are depends on the length.
        let stages = facts.integers(1).and_then(|length| length.first().copied()).map_or_else(
            || facts.fresh("stages"),
            |length| Dim::known(i64::from(u64::try_from(length).unwrap_or(1).next_power_of_two().trailing_zeros())),
        );
        each(&(facts.result_elements(0) * stages), &[(VectorClass::Arithmetic, 5)])
    }
}

/// The number of points of a transform.
pub(super) fn transform_length(length: i64) -> Result<usize, ReferenceError> {
    usize::try_from(length).ok().filter(|&length| length > 0).ok_or_else(|| ReferenceError::OutOfRange {
        subject: "length of the transform".to_string(),
        found: length,
        range: "1 and above".to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::dtype::DType;
    use crate::ops::NoBlocks;

    const FORWARD: FourierTransform = FourierTransform { inverse: false, onesided: false };
    const INVERSE: FourierTransform = FourierTransform { inverse: true, onesided: false };

    fn run(operator: &FourierTransform, input: &Tensor, length: Option<i64>, axis: i64) -> Tensor {
        let mut blocks = NoBlocks;
        let inputs = [
            Some(input.clone().into()),
            length.map(|length| Tensor::scalar(length).into()),
            Some(Tensor::scalar(axis).into()),
        ];
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
        results[0].as_tensor().unwrap().clone()
    }

    fn assert_near(found: &Tensor, expected: &[f64]) {
        let found = to_f64(found, 0).unwrap();
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {expected:?}");
    }

    #[test]
    fn four_points_by_hand() {
        let signal = Tensor::from_elements(&[1, 4, 1], &[1.0f64, 2.0, 3.0, 5.0]).unwrap();
        let full = run(&FORWARD, &signal, None, 1);
        assert_near(&full, &[11.0, 0.0, -2.0, 3.0, -3.0, 0.0, -2.0, -3.0]);
        let half = run(&FourierTransform { onesided: true, ..FORWARD }, &signal, None, -2);
        assert_eq!(half.shape(), [1, 3, 2]);
        assert_near(&half, &[11.0, 0.0, -2.0, 3.0, -3.0, 0.0]);
        let back = run(&FourierTransform { onesided: true, ..INVERSE }, &half, None, 1);
        assert_eq!(back.shape(), [1, 4, 1]);
        assert_near(&back, &[1.0, 2.0, 3.0, 5.0]);
        assert_near(&run(&INVERSE, &full, None, 1), &[1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 5.0, 0.0]);
    }

    #[test]
    fn signals_are_cut_or_filled() {
        let signal = Tensor::from_elements(&[3, 1], &[1.0f32, 2.0, 7.0]).unwrap();
        assert_near(&run(&FORWARD, &signal, Some(2), 0), &[3.0, 0.0, -1.0, 0.0]);
        assert_near(&run(&FORWARD, &signal, Some(4), 0), &[10.0, 0.0, -6.0, -2.0, 6.0, 0.0, -6.0, 2.0]);
        let odd = run(&FourierTransform { onesided: true, ..FORWARD }, &signal, None, 0);
        assert_near(&run(&FourierTransform { onesided: true, ..INVERSE }, &odd, Some(3), 0), &[1.0, 2.0, 7.0]);
    }

    #[test]
    fn any_axis_but_the_last() {
        let signal = Tensor::from_elements(&[2, 2, 1], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        assert_near(&run(&FORWARD, &signal, None, 0), &[4.0, 0.0, 6.0, 0.0, -2.0, 0.0, -2.0, 0.0]);
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("dft", &ranges, &mut blocks);
        let fact = |dims: Vec<Dim>| Some(Fact::tensor(DType::F32, dims));
        let (n, axis) = (Dim::symbol("n"), |axis: i64| Some(Fact::constant(Tensor::scalar(axis))));
        let signal = fact(vec![Dim::known(2), n.clone(), Dim::ONE]);
        let half = FourierTransform { onesided: true, ..FORWARD };
        let facts = half.infer(&[signal.clone(), None, axis(1)], &mut context).unwrap();
        assert_eq!(facts[0], fact(vec![Dim::known(2), n.floor_div(&Dim::known(2)) + 1, Dim::known(2)]).unwrap());
        assert_eq!(
            half.infer(&[signal.clone(), None, axis(2)], &mut context).unwrap_err().to_string(),
            "axis 2 is outside a tensor of rank 3"
        );
        let complex = fact(vec![Dim::known(2), n, Dim::known(2)]);
        assert_eq!(
            half.infer(&[complex, None, axis(1)], &mut context).unwrap_err().to_string(),
            "last extent of the signal is 2, expected 1, a real signal"
        );
        let unknown =
            FORWARD.infer(&[signal, None, fact(vec![]).map(|_| Fact::tensor(DType::I64, vec![]))], &mut context);
        assert_eq!(unknown.unwrap()[0].kind.to_string(), "f32[dft.axis0, dft.axis1, 2]");
    }
}
