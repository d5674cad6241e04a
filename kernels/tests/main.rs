//! The tests of the kernels that steps call, one program: what is public is tested here, so that the kernels are compiled once.
//! `cargo test -p ipuc-kernels --test all product` runs those of `product`. What is private is tested under its code.

mod attention;
mod convolution;
mod product;
