//! Times runs of an ONNX model by tract: `peer-tract MODEL.onnx SECONDS TYPE:SHAPE:FILE..` prints a JSON list of seconds.
//!
//! Inputs are in the order of the model's, as little-endian elements (`f32:1x3x224x224:image.raw`); their shapes are those that
//! the model is optimized for. Loading and two runs are not counted.

use std::error::Error;
use std::time::{Duration, Instant};
use tract_onnx::prelude::*;

/// Runs before the timed ones.
const WARM_RUNS: usize = 2;
/// Timed runs, however long they take.
const LEAST_RUNS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, seconds, inputs @ ..] = arguments.as_slice() else {
        return Err("usage: peer-tract MODEL.onnx SECONDS TYPE:SHAPE:FILE..".into());
    };
    let seconds = Duration::from_secs_f64(seconds.parse()?);
    let tensors: Vec<Tensor> = inputs.iter().map(|input| tensor(input)).collect::<Result<_, _>>()?;
    let mut graph = tract_onnx::onnx().model_for_path(model)?;
    for (index, tensor) in tensors.iter().enumerate() {
        graph.set_input_fact(index, InferenceFact::dt_shape(tensor.datum_type(), tensor.shape()))?;
    }
    let plan = graph.into_optimized()?.into_runnable()?;
    let run = || plan.run(tensors.iter().map(|tensor| tensor.clone().into_tvalue()).collect());
    for _ in 0..WARM_RUNS {
        run()?;
    }
    let mut times = Vec::new();
    let end = Instant::now() + seconds;
    while times.len() < LEAST_RUNS || Instant::now() < end {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    println!("{times:?}");
    Ok(())
}

/// The tensor that an argument describes.
fn tensor(input: &str) -> Result<Tensor, Box<dyn Error>> {
    let [dtype, shape, file] = input.splitn(3, ':').collect::<Vec<_>>()[..] else {
        return Err(format!("`{input}` is not TYPE:SHAPE:FILE").into());
    };
    let shape: Vec<usize> =
        shape.split('x').filter(|extent| !extent.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
    let bytes = std::fs::read(file)?;
    macro_rules! array {
        ($T:ty) => {{
            let elements = bytes.chunks_exact(size_of::<$T>());
            let elements = elements.map(|bytes| <$T>::from_le_bytes(bytes.try_into().unwrap_or_default()));
            tract_ndarray::ArrayD::from_shape_vec(shape, elements.collect::<Vec<$T>>())?.into_tensor()
        }};
    }
    Ok(match dtype {
        "f32" => array!(f32),
        "i64" => array!(i64),
        "i32" => array!(i32),
        "u8" => array!(u8),
        other => return Err(format!("inputs of type `{other}` are not read").into()),
    })
}
