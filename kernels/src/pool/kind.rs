//! How the elements of a window become one.

/// How the elements of a window are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PoolKind {
    /// The largest; NaN if there is one; the least value without elements.
    Max,
    /// The sum over the number of elements that are not padding.
    Average,
    /// The sum over the number of elements, padding included.
    PaddedAverage,
    /// The root of this degree of the sum of these powers of magnitudes.
    Norm(f32),
}

impl PoolKind {
    pub(super) fn start(self) -> f32 {
        if self == PoolKind::Max { f32::NEG_INFINITY } else { 0.0 }
    }

    /// One element more.
    #[inline(always)]
    pub(super) fn add(self, total: f32, value: f32) -> f32 {
        match self {
            PoolKind::Max if value > total || value.is_nan() => value,
            PoolKind::Max => total,
            PoolKind::Average | PoolKind::PaddedAverage => total + value,
            PoolKind::Norm(1.0) => total + value.abs(),
            PoolKind::Norm(2.0) => value.mul_add(value, total),
            PoolKind::Norm(exponent) => total + value.abs().powf(exponent),
        }
    }

    /// Two parts of a window together.
    pub(super) fn join(self, left: f32, right: f32) -> f32 {
        if self == PoolKind::Max { self.add(left, right) } else { left + right }
    }

    /// What comes out of a window of `count` elements.
    #[inline(always)]
    pub(super) fn finish(self, total: f32, count: f32) -> f32 {
        match self {
            PoolKind::Max => total,
            PoolKind::Average | PoolKind::PaddedAverage => total / count,
            PoolKind::Norm(2.0) => total.sqrt(),
            PoolKind::Norm(exponent) => total.powf(1.0 / exponent),
        }
    }
}
