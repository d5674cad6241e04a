//! The tests of attention, of convolutions of floats and of products, whose code is most of the kernels: from outside, so that it is
//! compiled once. One program: `cargo test -p ipuc-kernels --test all product` runs those of `product`. Other kernels, and what is
//! private, are tested under their code.

mod attention;
mod convolution;
mod panel_element;
mod product;
