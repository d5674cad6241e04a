//! Runs a compiled file: a program that needs the feature `run` alone, and holds no compiler.
//!
//! `cargo run --release --no-default-features --features run --example run_file -- MODEL.ipu [NAME=SIZE ..]`: gives the first
//! entry zeros, at the sizes of its open dimensions (1 where none is given), and prints the types of its outputs.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use ipuc::{Bindings, Session, SessionOptions, Shape, Tensor, Type, Value};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: run_file MODEL.ipu [NAME=SIZE ..]")?;
    let mut sizes = Bindings::new();
    for argument in arguments {
        let (name, size) = argument.split_once('=').ok_or("a size is NAME=SIZE")?;
        sizes.insert(name, size.parse()?);
    }
    let model = ipuc::open(&path)?;
    let entry = model.entry(None)?;
    let mut inputs: Vec<(String, Value)> = Vec::new();
    for port in model.inputs(entry) {
        let Type::Tensor { dtype, shape: Shape::Ranked(dims) } = &port.kind else {
            return Err(format!("input `{}` is no tensor of known rank", port.name).into());
        };
        for symbol in port.kind.symbols() {
            if sizes.get(&symbol).is_none() {
                sizes.insert(symbol, 1);
            }
        }
        let extents: Result<Vec<usize>, Box<dyn Error>> =
            dims.iter().map(|dim| Ok(usize::try_from(dim.evaluate(&sizes)?)?)).collect();
        inputs.push((port.name, Tensor::zeros(*dtype, &extents?)?.into()));
    }
    let mut session = Session::new(&model, &SessionOptions::default())?;
    for (name, value) in session.run(None, inputs)? {
        println!("{name}: {}", value.kind());
    }
    Ok(())
}
