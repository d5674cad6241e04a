//! Finds speech in a recording with the Silero voice activity model.
//!
//! `cargo run --release --example find_speech [-- MODEL.onnx RECORDING.wav]`: compiles the model with its recurrent state
//! kept by the session, runs it over the recording 32 ms at a time, and prints where somebody speaks.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use anyhow::{Context, Result, bail};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::{Session, SessionOptions, Tensor, Value};

const SAMPLES_PER_SECOND: usize = 16_000;
/// The model looks at a window of new samples behind some of the window before.
const WINDOW_SAMPLES: usize = 512;
const CONTEXT_SAMPLES: usize = 64;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let root = env!("CARGO_MANIFEST_DIR");
    let model = arguments.next().unwrap_or_else(|| format!("{root}/fixtures/silero_vad_16k_op15/model.onnx"));
    let recording = arguments.next().unwrap_or_else(|| format!("{root}/fixtures/recording.wav"));
    let folder = tempfile::tempdir()?;
    let compiled = folder.path().join("silero.ipu");
    let options = CompileOptions { states: vec!["state=stateN".to_string()], ..CompileOptions::default() };
    let source = Source { entry: "main".to_string(), path: model.into() };
    let report = compile(&[source], &compiled, &options)?;
    println!("compiled to {} bytes", report.emitted.file_bytes);

    let samples = read_recording(&recording)?;
    let model = ipuc::open(&compiled)?;
    let mut session = Session::new(&model, &SessionOptions::default())?;
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for start in (0..samples.len().saturating_sub(WINDOW_SAMPLES - 1)).step_by(WINDOW_SAMPLES) {
        if speech_probability(&mut session, &samples, start)? >= 0.5 {
            match spans.last_mut() {
                Some((_, end)) if *end == start => *end = start + WINDOW_SAMPLES,
                _ => spans.push((start, start + WINDOW_SAMPLES)),
            }
        }
    }
    let seconds = |sample: usize| sample as f64 / SAMPLES_PER_SECOND as f64;
    println!("the recording has {:.2} s", seconds(samples.len()));
    for (start, end) in spans {
        println!("speech from {:.2} s to {:.2} s", seconds(start), seconds(end));
    }
    Ok(())
}

/// Probability that somebody speaks in the window at `start`.
fn speech_probability(session: &mut Session, samples: &[f32], start: usize) -> Result<f32> {
    let mut window = vec![0.0; CONTEXT_SAMPLES.saturating_sub(start)];
    window.extend_from_slice(&samples[start.saturating_sub(CONTEXT_SAMPLES)..start + WINDOW_SAMPLES]);
    let input = Tensor::from_elements(&[1, window.len()], &window)?;
    let rate = Tensor::scalar(SAMPLES_PER_SECOND as i64);
    let inputs: Vec<(String, Value)> = vec![("input".to_string(), input.into()), ("sr".to_string(), rate.into())];
    let outputs = session.run(None, inputs)?;
    let (_, output) = outputs.first().context("the model has no output")?;
    let output = output.as_tensor().context("the output is no tensor")?;
    Ok(output.elements::<f32>()?[0])
}

/// Samples of a mono 16-bit PCM file at 16 kHz, from -1 to 1.
fn read_recording(path: &str) -> Result<Vec<f32>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
    let at = bytes.windows(4).position(|word| word == b"data").context("no data in the recording")? + 8;
    if !bytes.starts_with(b"RIFF") || bytes.len() < at {
        bail!("{path} is no WAV file");
    }
    let samples = bytes[at..].chunks_exact(2);
    Ok(samples.map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32768.0).collect())
}
