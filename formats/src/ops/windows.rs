//! Where windows lie: output extents, padding and taps of convolutions and pools.
//!
//! The formulas are those of ONNX `Conv` (opset 22) and `MaxPool` (opset 22, with its rule that a window which would
//! start in the padding after the end is left out); they are written once, over symbolic extents, and the
//! references use the same with known ones. Leaves alone: transposed convolution, which has formulas of its own.

use crate::attribute::Keyword;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::ops::TypeError;
use crate::tensor::{TensorError, element_count};
use std::ops::Range;

/// Padding that follows from the extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum AutoPad {
    /// As much as gives `ceil(input / stride)`; an odd rest goes to the end.
    SameUpper,
    /// As much as gives `ceil(input / stride)`; an odd rest goes to the beginning.
    SameLower,
    /// None.
    Valid,
}
impl Keyword for AutoPad {}

/// Largest stride, dilation, padding or kernel extent in an attribute: products of two fit into 64 bits.
const MAXIMUM_ATTRIBUTE: i64 = i32::MAX as i64;

/// The window attributes of an operator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows<'a> {
    pub(crate) auto_pad: Option<AutoPad>,
    /// One an axis, or none: all 1.
    pub(crate) strides: &'a [i64],
    /// One an axis, or none: all 1.
    pub(crate) dilations: &'a [i64],
    /// All beginnings, then all ends, or none: all 0.
    pub(crate) pads: &'a [i64],
    /// Round the number of windows up.
    pub(crate) ceil_mode: bool,
}

/// All windows along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowAxis {
    /// Extent of the operand.
    pub input: usize,
    /// Number of windows.
    pub output: usize,
    /// Taps of a window.
    pub kernel: usize,
    /// Distance of windows.
    pub stride: usize,
    /// Distance of taps.
    pub dilation: usize,
    /// Padding before the operand.
    pub pad_begin: usize,
    /// Padding after the operand.
    pub pad_end: usize,
}

impl WindowAxis {
    /// Input position of the first tap of window `output`; negative in the padding.
    pub(crate) fn start(&self, output: usize) -> i64 {
        output as i64 * self.stride as i64 - self.pad_begin as i64
    }

    /// The taps of window `output` that lie on the input.
    pub(crate) fn taps(&self, output: usize) -> Range<usize> {
        let start = self.start(output);
        taps_below(start, self.dilation as i64, self.kernel, 0)..self.taps_before(start, self.input as i64)
    }

    /// How many taps of window `output` lie on the input or its padding.
    pub(crate) fn padded_taps(&self, output: usize) -> usize {
        self.taps_before(self.start(output), self.input as i64 + self.pad_end as i64)
    }

    /// Input position of a tap in [`WindowAxis::taps`].
    pub(crate) fn position(&self, output: usize, tap: usize) -> usize {
        output * self.stride + tap * self.dilation - self.pad_begin
    }

    fn taps_before(&self, start: i64, end: i64) -> usize {
        taps_below(start, self.dilation as i64, self.kernel, end)
    }
}

/// How many of the positions `start + tap * dilation`, for taps under `kernel`, lie before `end`.
fn taps_below(start: i64, dilation: i64, kernel: usize, end: i64) -> usize {
    let taps = (end - start + dilation - 1).div_euclid(dilation).max(0);
    usize::try_from(taps).unwrap_or(usize::MAX).min(kernel)
}

/// One value an axis, or none for the default.
pub(crate) fn at(values: &[i64], axis: usize, default: i64) -> i64 {
    values.get(axis).copied().unwrap_or(default)
}

/// An attribute or a size that is not allowed.
pub(crate) fn value_error(subject: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> TypeError {
    TypeError::Value { subject: subject.into(), found: found.to_string(), expected: expected.into() }
}

/// Check a list attribute: empty or `count` values within `minimum` and what arithmetic on them can hold.
pub(crate) fn check_list(name: &str, values: &[i64], count: Option<usize>, minimum: i64) -> Result<(), TypeError> {
    if let Some(count) = count
        && !values.is_empty()
        && values.len() != count
    {
        return Err(value_error(format!("`{name}`"), format!("{values:?}"), format!("a list of {count}")));
    }
    match values.iter().find(|&&value| value < minimum || value > MAXIMUM_ATTRIBUTE) {
        None => Ok(()),
        Some(value) => {
            Err(value_error(format!("a value of `{name}`"), value, format!("{minimum} to {MAXIMUM_ATTRIBUTE}")))
        }
    }
}

impl Windows<'_> {
    /// Check the attributes against the number of spatial axes, where it is known.
    pub(crate) fn check(&self, rank: Option<usize>) -> Result<(), TypeError> {
        check_list("strides", self.strides, rank, 1)?;
        check_list("dilations", self.dilations, rank, 1)?;
        check_list("pads", self.pads, rank.map(|rank| 2 * rank), 0)?;
        if self.auto_pad.is_some() && self.pads.iter().any(|&pad| pad != 0) {
            return Err(value_error("`pads`", format!("{:?}", self.pads), "none beside `auto_pad`"));
        }
        Ok(())
    }

    fn stride(&self, axis: usize) -> i64 {
        at(self.strides, axis, 1)
    }

    fn dilation(&self, axis: usize) -> i64 {
        at(self.dilations, axis, 1)
    }

    /// Distance from the first tap of a window to after the last.
    fn span(&self, axis: usize, kernel: &Dim) -> Dim {
        (kernel - 1) * self.dilation(axis) + 1
    }

    /// The output extent of axis `axis` of `rank` spatial axes.
    pub(crate) fn extent(&self, axis: usize, rank: usize, input: &Dim, kernel: &Dim) -> Dim {
        let stride = Dim::known(self.stride(axis));
        let begin = at(self.pads, axis, 0);
        let room = match self.auto_pad {
            Some(AutoPad::SameUpper | AutoPad::SameLower) => return input.ceil_div(&stride),
            Some(AutoPad::Valid) => input - self.span(axis, kernel),
            None => input + begin + at(self.pads, rank + axis, 0) - self.span(axis, kernel),
        };
        if self.ceil_mode && self.auto_pad.is_none() {
            // The rounded-up count, less the windows that would start after the input's end.
            return Dim::min(&(room.ceil_div(&stride) + 1), &(input + begin).ceil_div(&stride));
        }
        room.floor_div(&stride) + 1
    }

    /// The output extents of all spatial axes.
    ///
    /// # Errors
    /// [`TypeError::Dimension`] where a window is known not to fit.
    pub(crate) fn extents(&self, input: &[Dim], kernel: &[Dim]) -> Result<Vec<Dim>, TypeError> {
        let rank = input.len();
        let extent = |axis: usize| {
            let extent = self.extent(axis, rank, &input[axis], &kernel[axis]);
            if extent.as_known().is_some_and(|extent| extent < 0) || extent.is_refused() {
                return Err(TypeError::Dimension {
                    subject: format!("window along spatial axis {axis}"),
                    left: format!("kernel extent {}", kernel[axis]),
                    right: format!("input extent {}", input[axis]),
                });
            }
            Ok(extent)
        };
        (0..rank).map(extent).collect()
    }

    /// All windows over known extents.
    ///
    /// # Errors
    /// [`TypeError`] where the attributes do not fit or a window does not fit its input.
    pub(crate) fn resolve(&self, input: &[usize], kernel: &[usize]) -> Result<Vec<WindowAxis>, TypeError> {
        let rank = input.len();
        self.check(Some(rank))?;
        let dims = |extents: &[usize]| -> Vec<Dim> { extents.iter().map(|&extent| Dim::from(extent)).collect() };
        let outputs = self.extents(&dims(input), &dims(kernel))?;
        (0..rank)
            .map(|axis| {
                let too_large = || value_error("window", format!("{kernel:?} over {input:?}"), "one of 63-bit sizes");
                let output = outputs[axis].as_known().ok_or_else(too_large)?;
                let (pad_begin, pad_end) =
                    self.padding(axis, input[axis], kernel[axis], output).ok_or_else(too_large)?;
                let size = |value: i64| usize::try_from(value).map_err(|_| too_large());
                // Positions are computed in 64 bits: the last one must fit.
                output.checked_mul(self.stride(axis)).ok_or_else(too_large)?;
                Ok(WindowAxis {
                    input: input[axis],
                    output: size(output)?,
                    kernel: kernel[axis],
                    stride: size(self.stride(axis))?,
                    dilation: size(self.dilation(axis))?,
                    pad_begin: size(pad_begin)?,
                    pad_end: size(pad_end)?,
                })
            })
            .collect()
    }

    /// Distance of windows, distance of taps, and position of the first tap of the first window along an axis; `None`
    /// where padding depends on extents that are not known.
    pub(crate) fn place(&self, axis: usize, input: &Dim, kernel: &Dim, output: &Dim) -> Option<(i64, i64, i64)> {
        let begin = match self.auto_pad {
            None => at(self.pads, axis, 0),
            Some(AutoPad::Valid) => 0,
            Some(AutoPad::SameUpper | AutoPad::SameLower) => {
                let extent = |dim: &Dim| usize::try_from(dim.as_known()?).ok();
                self.padding(axis, extent(input)?, extent(kernel)?, output.as_known()?)?.0
            }
        };
        Some((self.stride(axis), self.dilation(axis), -begin))
    }

    /// Padding before and after axis `axis`; `None` on overflow.
    fn padding(&self, axis: usize, input: usize, kernel: usize, output: i64) -> Option<(i64, i64)> {
        let same = |extra_at_end: bool| {
            let span = self.span(axis, &Dim::from(kernel)).as_known()?;
            let covered = (output - 1).checked_mul(self.stride(axis))?.checked_add(span)?;
            let total = covered.checked_sub(i64::try_from(input).ok()?)?.max(0);
            let small = total / 2;
            Some(if extra_at_end { (small, total - small) } else { (total - small, small) })
        };
        match self.auto_pad {
            None => Some((at(self.pads, axis, 0), at(self.pads, self.pads.len() / 2 + axis, 0))),
            Some(AutoPad::Valid) => Some((0, 0)),
            Some(AutoPad::SameUpper) => same(true),
            Some(AutoPad::SameLower) => same(false),
        }
    }
}

/// Number of positions in these extents; saturates, since a tensor without elements may have any other extents.
pub(crate) fn volume(extents: impl IntoIterator<Item = usize>) -> usize {
    extents.into_iter().fold(1, usize::saturating_mul)
}

/// An empty list with room for the elements of a tensor: results grow in it, so that one which no memory can hold is
/// refused before it is computed.
///
/// # Errors
/// [`TensorError::TooLarge`] where there are too many.
pub(crate) fn listed<T>(dtype: DType, shape: &[usize]) -> Result<Vec<T>, TensorError> {
    let too_large = || TensorError::TooLarge { dtype, shape: shape.to_vec() };
    let mut list = Vec::new();
    list.try_reserve_exact(element_count(shape).ok_or_else(too_large)?).map_err(|_| too_large())?;
    Ok(list)
}

/// Calls `visit` with every index below `extents`, in row-major order.
pub(crate) fn for_each_index(extents: &[usize], mut visit: impl FnMut(&[usize])) {
    if extents.contains(&0) {
        return;
    }
    let mut index = vec![0usize; extents.len()];
    loop {
        visit(&index);
        let mut axis = extents.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < extents[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// Calls `visit` with (flat tap, flat input position) of every tap of the window at `output` that lies on the input,
/// in row-major order of the taps.
pub(crate) fn for_each_tap(axes: &[WindowAxis], output: &[usize], mut visit: impl FnMut(usize, usize)) {
    let ranges: Vec<Range<usize>> = axes.iter().zip(output).map(|(axis, &output)| axis.taps(output)).collect();
    let extents: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
    for_each_index(&extents, |index| {
        let (mut tap, mut position) = (0, 0);
        for (axis, window) in axes.iter().enumerate() {
            let own = ranges[axis].start + index[axis];
            tap = tap * window.kernel + own;
            position = position * window.input + window.position(output[axis], own);
        }
        visit(tap, position);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(
        auto_pad: Option<AutoPad>,
        strides: &'static [i64],
        pads: &'static [i64],
        ceil_mode: bool,
    ) -> Windows<'static> {
        Windows { auto_pad, strides, dilations: &[], pads, ceil_mode }
    }

    #[test]
    fn symbolic_extents_follow_the_formulas() {
        let height = Dim::symbol("h");
        let three = Dim::known(3);
        let same = windows(Some(AutoPad::SameUpper), &[2], &[], false);
        assert_eq!(same.extent(0, 1, &height, &three), height.ceil_div(&Dim::known(2)));
        let padded = windows(None, &[1], &[1, 1], false);
        assert_eq!(padded.extent(0, 1, &height, &three), height);
        let halved = windows(None, &[2], &[1, 1], false);
        assert_eq!(halved.extent(0, 1, &height, &three), (&height - 1).floor_div(&Dim::known(2)) + 1);
    }

    #[test]
    fn windows_that_start_after_the_end_are_left_out() {
        // ceil((2 + 2 - 1) / 2) + 1 = 3 windows at -1, 1, 3; the last starts in the padding.
        let ceil = windows(None, &[2], &[1, 1], true);
        assert_eq!(ceil.resolve(&[2], &[1]).unwrap()[0].output, 2);
        // ceil((4 - 3) / 2) + 1 = 2, the last window reaches over the end.
        let plain = windows(None, &[2], &[], true);
        let axis = plain.resolve(&[4], &[3]).unwrap()[0];
        assert_eq!((axis.output, axis.taps(1), axis.padded_taps(1)), (2, 0..2, 2));
    }

    #[test]
    fn an_odd_rest_goes_where_the_keyword_says() {
        let pads = |auto_pad| {
            let axis = windows(Some(auto_pad), &[2], &[], false).resolve(&[4], &[3]).unwrap()[0];
            (axis.output, axis.pad_begin, axis.pad_end)
        };
        assert_eq!(pads(AutoPad::SameUpper), (2, 0, 1));
        assert_eq!(pads(AutoPad::SameLower), (2, 1, 0));
        assert_eq!(pads(AutoPad::Valid), (1, 0, 0));
    }

    #[test]
    fn taps_are_clipped_to_the_input() {
        let padded = Windows { auto_pad: None, strides: &[1], dilations: &[2], pads: &[3, 1], ceil_mode: false };
        let axis = padded.resolve(&[4], &[3]).unwrap()[0];
        assert_eq!(axis.output, 4);
        assert_eq!((axis.taps(0), axis.taps(3), axis.padded_taps(3)), (2..3, 0..2, 3));
        assert_eq!(axis.position(0, 2), 1);
        let mut visited = Vec::new();
        for_each_tap(&[axis, axis], &[0, 3], |tap, position| visited.push((tap, position)));
        assert_eq!(visited, [(6, 4), (7, 6)]);
    }

    #[test]
    fn bad_attributes_are_refused() {
        assert_eq!(
            windows(None, &[0], &[], false).check(Some(1)).unwrap_err().to_string(),
            "a value of `strides` is 0, expected 1 to 2147483647"
        );
        assert_eq!(
            windows(None, &[1, 1], &[], false).check(Some(1)).unwrap_err().to_string(),
            "`strides` is [1, 1], expected a list of 1"
        );
        assert_eq!(
            windows(None, &[], &[-1, 0], false).check(Some(1)).unwrap_err().to_string(),
            "a value of `pads` is -1, expected 0 to 2147483647"
        );
        assert_eq!(
            windows(Some(AutoPad::Valid), &[], &[1, 0], false).check(Some(1)).unwrap_err().to_string(),
            "`pads` is [1, 0], expected none beside `auto_pad`"
        );
        assert_eq!(
            windows(None, &[i64::MAX], &[], false).check(None).unwrap_err().to_string(),
            "a value of `strides` is 9223372036854775807, expected 1 to 2147483647"
        );
        assert_eq!(
            windows(None, &[], &[], false).resolve(&[2], &[5]).unwrap_err().to_string(),
            "window along spatial axis 0: kernel extent 5 does not fit input extent 2"
        );
    }
}
