//! Fourier transforms, windows, filter banks.

pub(crate) mod fourier_transform;
pub(crate) mod mel_weights;
pub(crate) mod short_time_fourier_transform;
pub(crate) mod time_warping;
pub(crate) mod window;

pub use fourier_transform::{FourierLines, FourierTransform};
pub use mel_weights::MelWeights;
pub use short_time_fourier_transform::{Frames, ShortTimeFourierTransform};
pub use time_warping::TimeWarping;
pub use window::{Window, WindowFunction};
