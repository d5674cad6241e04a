//! Sums of integer products as codes of 8 bits, or as floats.

use super::integer_rows::ByteType;
use crate::simd::{Instructions, LANES, Routine, Simd};

/// What makes codes of sums: `clamp(round(sum * scale + offset) + zero)` with halves to even, each step in f32 before it is
/// rounded; NaN counts as 0.
#[derive(Clone, Copy, Debug)]
pub struct Requantize<'a> {
    /// What a sum is multiplied by, and what is added.
    pub by: SumScale<'a>,
    /// The zero point of the codes, which has their type.
    pub zero: i32,
    /// The type of the codes, to which they are limited.
    pub kind: ByteType,
}

/// `sum * scale + offset`, each step rounded to f32.
#[derive(Clone, Copy, Debug)]
pub struct SumScale<'a> {
    /// The factor of a sum.
    pub scale: Parameter<'a>,
    /// What is added to the product, where something is.
    pub offset: Option<Parameter<'a>>,
}

impl SumScale<'_> {
    /// Whether there are values for each of `count` sums, or one for all.
    fn is_of(&self, count: usize) -> bool {
        self.scale.is_of(count) && self.offset.is_none_or(|offset| offset.is_of(count))
    }

    /// Those of 16 sums, the first of which is that of parameter `first`.
    #[inline(always)]
    fn of<S: Simd>(&self, simd: S, first: usize, sums: S::Integers) -> S::Vector {
        let value = simd.multiply(simd.convert(sums), self.scale.load(simd, first));
        match self.offset {
            Some(offset) => simd.add(value, offset.load(simd, first)),
            None => value,
        }
    }
}

/// The parameters of some vectors of sums.
pub(crate) struct VectorParameters<const COUNT: usize> {
    scale: [[f32; LANES]; COUNT],
    offset: [[f32; LANES]; COUNT],
}

/// The largest offset of a quarter of an i32 that another holds.
const LARGEST_OFFSET: f32 = (1 << 30) as f32;

/// One value for all sums, or one for each.
#[derive(Clone, Copy, Debug)]
pub enum Parameter<'a> {
    /// The same for all.
    All(f32),
    /// As many as sums.
    Each(&'a [f32]),
}

impl Parameter<'_> {
    /// The value of sums from `first` on; 0 where there are no more.
    #[inline(always)]
    fn load<S: Simd>(self, simd: S, first: usize) -> S::Vector {
        match self {
            Parameter::All(value) => simd.splat(value),
            Parameter::Each(values) => match values[first..].first_chunk::<LANES>() {
                Some(own) => simd.load(own),
                None => {
                    let mut own = [0.0; LANES];
                    own[..values.len() - first].copy_from_slice(&values[first..]);
                    simd.load(&own)
                }
            },
        }
    }

    /// The values of some vectors of sums from `first` on; 0 where there are no more.
    fn of_vectors<const COUNT: usize>(self, first: usize) -> [[f32; LANES]; COUNT] {
        match self {
            Parameter::All(value) => [[value; LANES]; COUNT],
            Parameter::Each(values) => {
                let mut own = [[0.0; LANES]; COUNT];
                own.as_flattened_mut().iter_mut().zip(&values[first..]).for_each(|(own, value)| *own = *value);
                own
            }
        }
    }

    /// Whether there is one for each of `count` sums.
    fn is_of(self, count: usize) -> bool {
        match self {
            Parameter::All(_) => true,
            Parameter::Each(values) => values.len() == count,
        }
    }
}

/// Codes of sums.
///
/// # Panics
/// If there are not as many codes, or values, as sums.
pub fn requantize(instructions: Instructions, sums: &[i32], by: Requantize<'_>, codes: &mut [u8]) {
    assert_eq!(sums.len(), codes.len(), "codes of sums");
    assert!(by.by.is_of(sums.len()), "values of sums");
    instructions.run(Requantizing { sums, by, codes });
}

/// Sums as floats.
///
/// # Panics
/// If there are not as many results, or values, as sums.
pub fn scale_sums(instructions: Instructions, sums: &[i32], by: SumScale<'_>, out: &mut [f32]) {
    assert_eq!(sums.len(), out.len(), "results of sums");
    assert!(by.is_of(sums.len()), "values of sums");
    instructions.run(Scaling { sums, by, out });
}

struct Scaling<'a> {
    sums: &'a [i32],
    by: SumScale<'a>,
    out: &'a mut [f32],
}

impl Routine for Scaling<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (vectors, rest) = self.sums.as_chunks::<LANES>();
        let mut last = [0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        for (index, out) in self.out.chunks_mut(LANES).enumerate() {
            let sums = simd.load_integers(vectors.get(index).unwrap_or(&last));
            simd.store_partial(self.by.of(simd, index * LANES, sums), out);
        }
    }
}

struct Requantizing<'a> {
    sums: &'a [i32],
    by: Requantize<'a>,
    codes: &'a mut [u8],
}

impl Routine for Requantizing<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.by.are_near() { self.write::<S, true>(simd) } else { self.write::<S, false>(simd) }
    }
}

impl Requantizing<'_> {
    #[inline(always)]
    fn write<S: Simd, const NEAR: bool>(self, simd: S) {
        let Self { sums, by, codes } = self;
        let (vectors, rest) = sums.as_chunks::<LANES>();
        let (blocks, last) = codes.as_chunks_mut::<LANES>();
        let (fours, others) = vectors.as_chunks::<4>();
        for (index, (block, sums)) in blocks.as_chunks_mut::<4>().0.iter_mut().zip(fours).enumerate() {
            let mut own = [simd.splat_integer(0); 4];
            for (own, sums) in own.iter_mut().zip(sums) {
                *own = simd.load_integers(sums);
            }
            *block = bytemuck::cast(by.of_vectors::<S, NEAR, 4>(simd, index * 4 * LANES, own));
        }
        let four = fours.len() * 4;
        for (index, (block, sums)) in blocks[four..].iter_mut().zip(others).enumerate() {
            *block = by.of::<S, NEAR>(simd, (four + index) * LANES, simd.load_integers(sums));
        }
        let mut lanes = [0; LANES];
        lanes[..rest.len()].copy_from_slice(rest);
        let block = by.of::<S, NEAR>(simd, vectors.len() * LANES, simd.load_integers(&lanes));
        last.copy_from_slice(&block[..rest.len()]);
    }
}

impl Requantize<'_> {
    /// Whether an i32 holds the nearest integer of every sum, as that of all scales and offsets is known to be.
    #[inline(always)]
    pub(crate) fn are_near(&self) -> bool {
        let offset = self.by.offset.unwrap_or(Parameter::All(0.0));
        let (Parameter::All(scale), Parameter::All(offset)) = (self.by.scale, offset) else { return false };
        scale.abs() <= 0.25 && offset.abs() <= LARGEST_OFFSET
    }

    /// As [`Self::are_near`], after a look at each scale and offset.
    pub(crate) fn are_all_near(&self) -> bool {
        let within = |parameter: Parameter<'_>, most: f32| match parameter {
            Parameter::All(value) => value.abs() <= most,
            Parameter::Each(values) => values.iter().all(|value| value.abs() <= most),
        };
        within(self.by.scale, 0.25) && self.by.offset.is_none_or(|offset| within(offset, LARGEST_OFFSET))
    }

    /// The nearest integers of 16 sums, the first of which is that of parameter `first`; `NEAR` where they [are](Self::are_near).
    #[inline(always)]
    fn nearest<S: Simd, const NEAR: bool>(&self, simd: S, first: usize, sums: S::Integers) -> S::Integers {
        let value = self.by.of(simd, first, sums);
        if NEAR { simd.nearest_of_near(value) } else { simd.nearest_integers(value) }
    }

    /// The codes of up to four times 16 sums, the first of which is that of parameter `first`; those behind them are anything.
    #[inline(always)]
    pub(crate) fn of_vectors<S: Simd, const NEAR: bool, const COUNT: usize>(
        &self,
        simd: S,
        first: usize,
        sums: [S::Integers; COUNT],
    ) -> [u8; 4 * LANES] {
        let mut nearest = [simd.splat_integer(0); 4];
        for index in 0..COUNT {
            nearest[index] = self.nearest::<S, NEAR>(simd, first + index * LANES, sums[index]);
        }
        simd.narrow(nearest, self.zero, self.kind.signed)
    }

    /// The parameters of some vectors of sums, the first of which is that of parameter `first`.
    pub(crate) fn parameters<const COUNT: usize>(&self, first: usize) -> VectorParameters<COUNT> {
        let offset = self.by.offset.unwrap_or(Parameter::All(0.0));
        VectorParameters { scale: self.by.scale.of_vectors(first), offset: offset.of_vectors(first) }
    }

    /// As [`Self::of_vectors`], with the parameters of these vectors.
    #[inline(always)]
    pub(crate) fn of_parameters<S: Simd, const NEAR: bool, const COUNT: usize>(
        &self,
        simd: S,
        own: &VectorParameters<COUNT>,
        sums: [S::Integers; COUNT],
    ) -> [u8; 4 * LANES] {
        let mut nearest = [simd.splat_integer(0); 4];
        for index in 0..COUNT {
            let value = simd.multiply(simd.convert(sums[index]), simd.load(&own.scale[index]));
            // An offset of 0 changes the sign of 0, and no integer.
            let value = simd.add(value, simd.load(&own.offset[index]));
            nearest[index] = if NEAR { simd.nearest_of_near(value) } else { simd.nearest_integers(value) };
        }
        simd.narrow(nearest, self.zero, self.kind.signed)
    }

    /// The codes of 16 sums, the first of which is that of parameter `first`.
    #[inline(always)]
    pub(crate) fn of<S: Simd, const NEAR: bool>(&self, simd: S, first: usize, sums: S::Integers) -> [u8; LANES] {
        let none = simd.splat_integer(0);
        let nearest = [self.nearest::<S, NEAR>(simd, first, sums), none, none, none];
        let codes: [[u8; LANES]; 4] = bytemuck::cast(simd.narrow(nearest, self.zero, self.kind.signed));
        codes[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sum_has_its_own_scale_and_offset() {
        let sums: Vec<i32> = (0..37).map(|sum| sum - 18).collect();
        let scales: Vec<f32> = (0..37u8).map(|sum| f32::from(sum) * 0.25).collect();
        let offsets: Vec<f32> = (0..37u8).map(|sum| f32::from(sum % 5)).collect();
        let expected: Vec<u8> = (0..37)
            .map(|sum| (sums[sum] as f32 * scales[sum] + offsets[sum]).round_ties_even() as i32)
            .map(|code| (code + 7).clamp(0, 255) as u8)
            .collect();
        let kind = ByteType { signed: false };
        let by = SumScale { scale: Parameter::Each(&scales), offset: Some(Parameter::Each(&offsets)) };
        let by = Requantize { by, zero: 7, kind };
        for instructions in Instructions::available() {
            let mut codes = vec![0; 37];
            requantize(instructions, &sums, by, &mut codes);
            assert_eq!(codes, expected, "{instructions:?}");
        }
    }

    #[test]
    fn sums_are_scaled_as_the_formula_says_on_every_instruction_set() {
        let sums: Vec<i32> = (0..37).map(|sum| (sum - 18) * 0x0123_4567).collect();
        let scales: Vec<f32> = (0..37u8).map(|sum| f32::from(sum) * 0.3).collect();
        let offsets: Vec<f32> = (0..37u8).map(|sum| f32::from(sum % 5) * 1e7).collect();
        let both: Vec<f32> = (0..37).map(|sum| sums[sum] as f32 * scales[sum] + offsets[sum]).collect();
        let one: Vec<f32> = sums.iter().map(|&sum| sum as f32 * 0.7).collect();
        for instructions in Instructions::available() {
            let mut out = vec![f32::NAN; 37];
            let offset = Some(Parameter::Each(&offsets));
            scale_sums(instructions, &sums, SumScale { scale: Parameter::Each(&scales), offset }, &mut out);
            assert_eq!(out, both, "{instructions:?}");
            scale_sums(instructions, &sums, SumScale { scale: Parameter::All(0.7), offset: None }, &mut out);
            assert_eq!(out, one, "{instructions:?}");
        }
    }

    #[test]
    fn codes_are_those_of_the_formula_on_every_instruction_set() {
        let sums: Vec<i32> =
            [i32::MIN, -1, 0, 1, 2, 3, i32::MAX].into_iter().chain((-40..40).map(|x| x * 57)).collect();
        let kinds = [ByteType { signed: true }, ByteType { signed: false }];
        for instructions in Instructions::available() {
            for (kind, zero) in [(kinds[0], -128), (kinds[0], 127), (kinds[1], 0), (kinds[1], 255), (kinds[1], 3)] {
                for (scale, offset) in [
                    (0.5, None),
                    (0.25, Some(0.5)),
                    (-0.25, Some(LARGEST_OFFSET)),
                    (0.01, Some(2.0 * LARGEST_OFFSET)),
                    (0.125, Some(f32::NAN)),
                    (f32::NAN, None),
                    (1e30, Some(-1.0)),
                ] {
                    for count in [0, 1, 15, 16, 17, sums.len()] {
                        let mut codes = vec![0; count];
                        let all = Requantize {
                            by: SumScale { scale: Parameter::All(scale), offset: offset.map(Parameter::All) },
                            zero,
                            kind,
                        };
                        requantize(instructions, &sums[..count], all, &mut codes);
                        let expected = sums[..count].iter().map(|&sum| {
                            let value = (sum as f32 * scale) + offset.unwrap_or(0.0);
                            let code = i64::from(value.round_ties_even() as i32) + i64::from(zero);
                            if kind.signed { code.clamp(-128, 127) as u8 } else { code.clamp(0, 255) as u8 }
                        });
                        assert_eq!(codes, expected.collect::<Vec<u8>>(), "{scale} {offset:?} {zero} {kind:?}");
                        let (scales, offsets) = (vec![scale; count], offset.map(|offset| vec![offset; count]));
                        let by = SumScale {
                            scale: Parameter::Each(&scales),
                            offset: offsets.as_deref().map(Parameter::Each),
                        };
                        let each = Requantize { by, ..all };
                        let mut of_each = vec![0; count];
                        requantize(instructions, &sums[..count], each, &mut of_each);
                        assert_eq!(of_each, codes, "{scale} {offset:?} for each");
                    }
                }
            }
        }
    }
}
