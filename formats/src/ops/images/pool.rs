//! Pools: ONNX `AveragePool` (opsets 7 to 22), `MaxPool` (8 to 22), `LpPool` (2 to 22), and `GlobalAveragePool`,
//! `GlobalMaxPool`, `GlobalLpPool`, whose window is the whole image.
//!
//! A rounded-up count of windows never includes one that would start in the padding after the end, in any opset: the
//! operator pages say so since opset 22, implementations always did. NaN in a window is its maximum.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::products::convolution::require_float;
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::windows::{
    AutoPad, WindowAxis, Windows, at, check_list, for_each_index, for_each_tap, listed, value_error, volume,
};
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Combines the elements of each window: `x: [n, c, d..]` to `[n, c, o..]`; with `indices` also where each maximum
    /// is, as i64 `[n, c, o..]` over the flat `x`.
    pub struct Pool revision 1 {
        /// How elements are combined.
        1 since 1 => function: PoolFunction,
        /// Extent of a window along each spatial axis; the whole image where empty.
        2 since 1 => kernel: Vec<i64>,
        /// Padding that follows from the extents; explicit where absent.
        3 since 1 => auto_pad: Option<AutoPad>,
        /// Distance of windows along each spatial axis; 1 where empty.
        4 since 1 => strides: Vec<i64>,
        /// Distance of taps along each spatial axis; 1 where empty.
        5 since 1 => dilations: Vec<i64>,
        /// Padding before each spatial axis, then after each; 0 where empty.
        6 since 1 => pads: Vec<i64>,
        /// The number of windows is rounded up.
        7 since 1 => ceil_mode: bool,
        /// An average counts padding as zeros.
        8 since 1 => count_include_pad: bool,
        /// Exponent of the norm; 2 where absent.
        9 since 1 => exponent: Option<i64>,
        /// A second result says where the maxima are.
        10 since 1 => indices: bool,
        /// Indices count spatial positions first axis fastest.
        11 since 1 => column_major: bool,
    }
}

/// Functions of [`Pool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum PoolFunction {
    /// Arithmetic mean of the elements on the image (and of padding, with `count_include_pad`).
    Average,
    /// Largest.
    Max,
    /// The p-th root of the sum of p-th powers of magnitudes.
    Norm,
}
impl Keyword for PoolFunction {}

impl Pool {
    /// A pool over the whole image.
    pub fn global(function: PoolFunction) -> Pool {
        Pool {
            function,
            kernel: Vec::new(),
            auto_pad: None,
            strides: Vec::new(),
            dilations: Vec::new(),
            pads: Vec::new(),
            ceil_mode: false,
            count_include_pad: false,
            exponent: None,
            indices: false,
            column_major: false,
        }
    }

    fn windows(&self) -> Windows<'_> {
        Windows {
            auto_pad: self.auto_pad,
            strides: &self.strides,
            dilations: &self.dilations,
            pads: &self.pads,
            ceil_mode: self.ceil_mode,
        }
    }

    fn check(&self, dtype: DType, rank: Option<usize>) -> Result<(), TypeError> {
        if !(self.function == PoolFunction::Max && matches!(dtype, DType::I8 | DType::U8)) {
            require_float(dtype, 0)?;
        }
        if self.indices && self.function != PoolFunction::Max {
            return Err(TypeError::Unsupported("indices of a pool that takes no maximum".to_string()));
        }
        if self.exponent.is_some_and(|exponent| exponent < 1) {
            return Err(value_error("`exponent`", self.exponent.unwrap_or(0), "at least 1"));
        }
        if let Some(found) = rank.filter(|&rank| rank < 2) {
            return Err(TypeError::Rank { operand: 0, expected: "at least 2".to_string(), found });
        }
        let spatial = rank.map(|rank| rank - 2);
        check_list("kernel", &self.kernel, spatial, 1)?;
        let windows = self.windows();
        if self.kernel.is_empty() {
            if windows.auto_pad.is_some()
                || [&self.strides, &self.dilations, &self.pads].iter().any(|list| !list.is_empty())
            {
                return Err(TypeError::Unsupported("a pool over the whole image with window attributes".to_string()));
            }
            return Ok(());
        }
        windows.check(spatial)?;
        for (axis, &kernel) in self.kernel.iter().enumerate() {
            let span = (kernel - 1) * at(&self.dilations, axis, 1) + 1;
            let widest = at(&self.pads, axis, 0).max(at(&self.pads, self.pads.len() / 2 + axis, 0));
            if widest >= span {
                return Err(value_error("a value of `pads`", widest, format!("less than the window's extent {span}")));
            }
        }
        Ok(())
    }

    fn shape(&self, shape: &Shape, context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
        let Shape::Ranked(dims) = shape else {
            if self.kernel.is_empty() {
                return Ok(Shape::Unranked);
            }
            let names = ["batch", "channels"].map(str::to_string).into_iter();
            let spatial = (0..self.kernel.len()).map(|axis| format!("extent.{axis}"));
            return Ok(Shape::Ranked(names.chain(spatial).map(|name| context.fresh(&name)).collect()));
        };
        let mut result = dims[..2].to_vec();
        if self.kernel.is_empty() {
            result.resize(dims.len(), Dim::ONE);
        } else {
            let kernel: Vec<Dim> = self.kernel.iter().map(|&extent| Dim::known(extent)).collect();
            result.extend(self.windows().extents(&dims[2..], &kernel)?);
        }
        Ok(Shape::Ranked(result))
    }

    /// All windows over an image of these spatial extents.
    ///
    /// # Errors
    /// [`TypeError`] where they do not fit.
    pub fn resolve(&self, image: &[usize]) -> Result<Vec<WindowAxis>, TypeError> {
        if self.kernel.is_empty() {
            let whole = |&extent: &usize| WindowAxis {
                input: extent,
                output: 1,
                kernel: extent,
                stride: 1,
                dilation: 1,
                pad_begin: 0,
                pad_end: 0,
            };
            return Ok(image.iter().map(whole).collect());
        }
        let kernel: Vec<usize> = self.kernel.iter().map(|&extent| usize::try_from(extent).unwrap_or(0)).collect();
        self.windows().resolve(image, &kernel)
    }
}

impl Operator for Pool {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        self.check(dtype, shape.rank())?;
        let shape = self.shape(shape, context)?;
        let mut results = vec![Fact::tensor(dtype, shape.clone())];
        if self.indices {
            results.push(Fact::tensor(DType::I64, shape));
        }
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        self.check(x.dtype(), Some(x.rank()))?;
        let axes = self.resolve(&x.shape()[2..])?;
        let mut shape = x.shape()[..2].to_vec();
        shape.extend(axes.iter().map(|axis| axis.output));
        let elements = scalars(x)?;
        let volume = volume(x.shape()[2..].iter().copied());
        let mut pooled = listed(x.dtype(), &shape)?;
        let mut indices: Vec<i64> = listed(DType::I64, &shape)?;
        for_each_index(&shape, |index| {
            let image = (index[0] * shape[1] + index[1]) * volume;
            match self.function {
                PoolFunction::Max => {
                    let (value, position) = maximum(x.dtype(), &axes, &index[2..], &elements[image..image + volume]);
                    pooled.push(value);
                    indices.push((image + self.flat(&axes, position)) as i64);
                }
                PoolFunction::Average | PoolFunction::Norm => {
                    let mut values = Vec::new();
                    for_each_tap(&axes, &index[2..], |_, position| values.push(elements[image + position].to_f64()));
                    pooled.push(Scalar::Float(self.combine(&axes, &index[2..], &values)));
                }
            }
        });
        let mut results = vec![from_scalars(x.dtype(), &shape, &pooled)?.into()];
        if self.indices {
            results.push(Tensor::from_elements(&shape, &indices)?.into());
        }
        Ok(results)
    }
}

impl Computes for Pool {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let (Some([batch, channels, image @ ..]), Some([_, _, output @ ..])) = (facts.dims(0), facts.result(0)) else {
            return loops::serial(facts);
        };
        let everywhere = |axis: usize| [loops::operand(0, axis), loops::result(0, axis), loops::result(1, axis)];
        let mut nest = loops::Loops::new(facts).parallel(batch, everywhere(0)).parallel(channels, everywhere(1));
        let windows = self.windows();
        for (axis, extent) in output.iter().enumerate() {
            let results = [loops::result(0, axis + 2), loops::result(1, axis + 2)];
            let place = self
                .kernel
                .get(axis)
                .and_then(|&kernel| windows.place(axis, &image[axis], &Dim::known(kernel), extent));
            let from = place.map(|(stride, _, offset)| loops::operand(0, axis + 2).stride(stride).offset(offset));
            nest = nest.parallel(extent, results.into_iter().chain(from));
        }
        for (axis, extent) in image.iter().enumerate() {
            let Some(&kernel) = self.kernel.get(axis) else {
                nest = nest.reduced(extent, [loops::operand(0, axis + 2)]);
                continue;
            };
            let kernel = Dim::known(kernel);
            let place = windows.place(axis, extent, &kernel, &output[axis]);
            let from = place.map(|(_, dilation, _)| loops::operand(0, axis + 2).stride(dilation));
            nest = nest.reduced(&kernel, from);
        }
        vec![nest.space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let taps: Vec<Dim> = match facts.dims(0) {
            Some([_, _, image @ ..]) if self.kernel.is_empty() => image.to_vec(),
            _ => self.kernel.iter().map(|&extent| Dim::known(extent)).collect(),
        };
        let results = facts.result_elements(0);
        let terms = &results * Dim::product(&taps);
        match self.function {
            PoolFunction::Max => each(&terms, &[(VectorClass::Arithmetic, 1)]),
            PoolFunction::Average => {
                [each(&terms, &[(VectorClass::Arithmetic, 1)]), each(&results, &[(VectorClass::Divide, 1)])].concat()
            }
            PoolFunction::Norm => [
                each(&terms, &[(VectorClass::Arithmetic, 1), (VectorClass::Transcendental, 1)]),
                each(&results, &[(VectorClass::Transcendental, 1)]),
            ]
            .concat(),
        }
    }
}

impl Pool {
    fn combine(&self, axes: &[WindowAxis], output: &[usize], values: &[f64]) -> f64 {
        if self.function == PoolFunction::Norm {
            let exponent = self.exponent.unwrap_or(2) as f64;
            return values.iter().map(|value| value.abs().powf(exponent)).sum::<f64>().powf(1.0 / exponent);
        }
        let count: usize = if self.count_include_pad {
            axes.iter().zip(output).map(|(axis, &output)| axis.padded_taps(output)).product()
        } else {
            values.len()
        };
        values.iter().sum::<f64>() / count as f64
    }

    /// The index of a spatial position in the order asked for.
    fn flat(&self, axes: &[WindowAxis], position: usize) -> usize {
        if !self.column_major {
            return position;
        }
        let (mut rest, mut index) = (position, 0);
        let mut weight: usize = axes.iter().map(|axis| axis.input).product();
        for axis in axes.iter().rev() {
            weight /= axis.input;
            index += rest % axis.input * weight;
            rest /= axis.input;
        }
        index
    }
}

/// The first largest element of a window and its position in the image; the least value where no tap is on the image.
fn maximum(dtype: DType, axes: &[WindowAxis], output: &[usize], image: &[Scalar]) -> (Scalar, usize) {
    let least = match dtype {
        DType::I8 => Scalar::Integer(i8::MIN.into()),
        DType::U8 => Scalar::Integer(0),
        _ => Scalar::Float(f64::NEG_INFINITY),
    };
    let mut best: Option<(Scalar, usize)> = None;
    for_each_tap(axes, output, |_, position| {
        let value = image[position];
        let better = match best {
            None => true,
            Some((found, _)) if found.to_f64().is_nan() => false,
            Some((found, _)) => value.to_f64().is_nan() || value.to_f64() > found.to_f64(),
        };
        if better {
            best = Some((value, position));
        }
    });
    best.unwrap_or((least, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::{run, run_all};

    fn plain(function: PoolFunction, kernel: &[i64]) -> Pool {
        Pool { kernel: kernel.to_vec(), ..Pool::global(function) }
    }

    fn counted(shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        Tensor::from_elements(shape, &(1..=count).map(|index| index as f32).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn an_average_counts_padding_only_when_told() {
        let x = counted(&[1, 1, 5, 5]);
        let padded = Pool { pads: vec![2; 4], ..plain(PoolFunction::Average, &[5, 5]) };
        let result = run(&padded, std::slice::from_ref(&x)).unwrap();
        assert_eq!(result.elements::<f32>().unwrap()[..5], [7.0, 7.5, 8.0, 8.5, 9.0]);
        let counting = run(&Pool { count_include_pad: true, ..padded }, &[x]).unwrap();
        assert_eq!(counting.elements::<f32>().unwrap()[..3], [2.52, 3.6, 4.8]);
    }

    #[test]
    fn a_last_window_over_the_end_divides_by_what_it_covers() {
        let pool = Pool {
            strides: vec![2],
            ceil_mode: true,
            pads: vec![0, 1],
            count_include_pad: true,
            ..plain(PoolFunction::Average, &[3])
        };
        // Windows at 0 and 2 cover three; the one at 4 reaches one element over the padded end at 6.
        let result = run(&pool, &[counted(&[1, 1, 5])]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [2.0, 4.0, 2.5]);
    }

    #[test]
    fn indices_are_flat_over_the_whole_tensor() {
        let x = counted(&[1, 2, 2, 3]);
        let pool = Pool { indices: true, ..plain(PoolFunction::Max, &[2, 2]) };
        let results = run_all(&pool, &[Some(x.clone())]).unwrap();
        assert_eq!(results[0].elements::<f32>().unwrap(), [5.0, 6.0, 11.0, 12.0]);
        assert_eq!(results[1].elements::<i64>().unwrap(), [4, 5, 10, 11]);
        let results = run_all(&Pool { column_major: true, ..pool }, &[Some(x)]).unwrap();
        assert_eq!(results[1].elements::<i64>().unwrap(), [3, 5, 9, 11]);
    }

    #[test]
    fn nan_is_the_maximum_and_ties_go_to_the_first() {
        let x = Tensor::from_elements(&[1, 1, 4], &[3.0f32, f32::NAN, 7.0, 7.0]).unwrap();
        let pool = Pool { indices: true, strides: vec![2], ..plain(PoolFunction::Max, &[2]) };
        let results = run_all(&pool, &[Some(x)]).unwrap();
        assert!(results[0].elements::<f32>().unwrap()[0].is_nan());
        assert_eq!(results[1].elements::<i64>().unwrap(), [1, 2]);
    }

    #[test]
    fn norms_and_whole_images() {
        let x = Tensor::from_elements(&[1, 1, 2], &[3.0f32, -4.0]).unwrap();
        let norm = Pool::global(PoolFunction::Norm);
        assert_eq!(run(&norm, std::slice::from_ref(&x)).unwrap().elements::<f32>().unwrap(), [5.0]);
        let sum = Pool { exponent: Some(1), ..norm };
        assert_eq!(run(&sum, &[x]).unwrap().elements::<f32>().unwrap(), [7.0]);
        let bytes = Tensor::from_elements(&[1, 1, 3], &[-5i8, -2, -9]).unwrap();
        assert_eq!(run(&Pool::global(PoolFunction::Max), &[bytes]).unwrap().elements::<i8>().unwrap(), [-2]);
    }

    #[test]
    fn extents_stay_symbolic() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("pool", &ranges, &mut blocks);
        let x = Fact::tensor(DType::F32, vec![Dim::known(1), Dim::known(8), Dim::symbol("h"), Dim::symbol("w")]);
        let pool = Pool { strides: vec![2, 2], ..plain(PoolFunction::Max, &[2, 2]) };
        let result = pool.infer(&[Some(x.clone())], &mut context).unwrap().remove(0);
        let half = |name: &str| (Dim::symbol(name) - 2).floor_div(&Dim::known(2)) + 1;
        assert_eq!(result.dims().unwrap()[2..], [half("h"), half("w")]);
        let bad = Pool { pads: vec![2, 0, 0, 0], ..pool };
        assert_eq!(
            bad.infer(&[Some(x)], &mut context).unwrap_err().to_string(),
            "a value of `pads` is 2, expected less than the window's extent 2"
        );
    }
}
