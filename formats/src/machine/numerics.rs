//! Types that a machine holds and computes floats in, where they are narrower than those of the program.

use crate::dtype::DType;
use crate::ops::Precision;

/// Types of floats; those of the program where `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numerics {
    /// Values are held and computed in it.
    pub held: Option<DType>,
    /// Products take their operands in it, and weights are stored in it: values are converted where they are multiplied.
    pub products: Option<DType>,
}

impl Numerics {
    /// What a product takes.
    pub(super) fn precision(self, precision: Precision) -> Precision {
        let narrowed = |dtype: DType| self.of_products().filter(|own| wider(dtype, *own)).unwrap_or(dtype);
        Precision { activation: narrowed(precision.activation), weight: narrowed(precision.weight), ..precision }
    }

    /// Whether products take values of this type in a narrower one.
    pub(super) fn converts(self, dtype: DType) -> bool {
        let held = self.held.filter(|held| wider(dtype, *held)).unwrap_or(dtype);
        self.products.is_some_and(|products| wider(held, products))
    }

    /// What the bytes of values of this type are multiplied by.
    pub(super) fn of_values(self, dtype: DType) -> f64 {
        narrowing(dtype, self.held)
    }

    /// What the bytes of weights of this type are multiplied by.
    pub(super) fn of_weights(self, dtype: DType) -> f64 {
        narrowing(dtype, self.of_products())
    }

    fn of_products(self) -> Option<DType> {
        self.products.or(self.held)
    }
}

fn wider(dtype: DType, than: DType) -> bool {
    dtype.is_float() && dtype.bits() > than.bits()
}

fn narrowing(dtype: DType, to: Option<DType>) -> f64 {
    to.filter(|to| wider(dtype, *to)).map_or(1.0, |to| to.bits() as f64 / dtype.bits() as f64)
}
