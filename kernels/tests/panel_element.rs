//! Types of elements that panels are packed with.

use half::{bf16, f16};
use ipuc_kernels::product::pack_panels;

pub trait PanelElement: Sized {
    /// As [`pack_panels`].
    fn pack(inputs: usize, outputs: usize, element: impl Fn(usize, usize) -> f32) -> Vec<Self>;
}

macro_rules! panel_elements {
    ($($element:ty),*) => {$(
        impl PanelElement for $element {
            fn pack(inputs: usize, outputs: usize, element: impl Fn(usize, usize) -> f32) -> Vec<Self> {
                pack_panels(inputs, outputs, element)
            }
        }
    )*};
}

panel_elements!(f32, f16, bf16);
