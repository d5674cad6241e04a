//! Sums of products over matrices and windows.

pub(crate) mod accumulate;
pub(crate) mod blocked_convolution;
pub(crate) mod convolution;
pub(crate) mod convolution_transpose;
pub(crate) mod deformable_convolution;
pub(crate) mod determinant;
pub(crate) mod einsum;
pub(crate) mod expert_matmul;
pub(crate) mod integer_convolution;
pub(crate) mod integer_matmul;
pub(crate) mod inverse;
pub(crate) mod matmul;
mod square;

pub use blocked_convolution::{BlockedConvolution, CHANNEL_BLOCK};
pub use convolution::{Convolution, ConvolutionPlan};
pub use convolution_transpose::ConvolutionTranspose;
pub use deformable_convolution::DeformableConvolution;
pub use determinant::Determinant;
pub use einsum::{Einsum, EinsumPlan};
pub use expert_matmul::{ExpertMatmul, ExpertPlan};
pub use integer_convolution::IntegerConvolution;
pub use integer_matmul::IntegerMatmul;
pub use inverse::Inverse;
pub use matmul::{Matmul, MatrixOperand, ProductPlan};
