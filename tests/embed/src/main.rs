//! Finds speech in a recording, with a model inside the program; names and types of inputs are checked by the compiler.

use ipuc::{Array, OpenOptions, SessionOptions};
use std::error::Error;

ipuc::include_model!(beside);
ipuc::include_model!(model);
ipuc::include_model!(speech);

/// The model looks at a window of new samples behind some of the window before.
const WINDOW_SAMPLES: usize = 512;
const CONTEXT_SAMPLES: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let recording = include_bytes!("../../../fixtures/recording.wav");
    let samples: Vec<f32> = recording[44..]
        .chunks_exact(2)
        .map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32768.0)
        .collect();
    let mut session = speech::Model::embedded()?.session(&SessionOptions::default())?;
    let mut heard = 0;
    for end in (WINDOW_SAMPLES..=samples.len()).step_by(WINDOW_SAMPLES) {
        let start = end.saturating_sub(WINDOW_SAMPLES + CONTEXT_SAMPLES);
        let mut window = vec![0.0; WINDOW_SAMPLES + CONTEXT_SAMPLES - (end - start)];
        window.extend_from_slice(&samples[start..end]);
        let inputs = speech::ListenInputs { input: Array::new([1, window.len()], window), sr: Array::scalar(16_000) };
        let outputs = session.listen(inputs)?;
        heard += usize::from(outputs.output.elements[0] >= 0.5);
    }
    // What a session has heard is saved, and another goes on from it.
    let mut heard_so_far = Vec::new();
    session.save(&mut heard_so_far)?;
    let silence = || speech::ListenInputs { input: Array::new([1, 576], vec![0.0; 576]), sr: Array::scalar(16_000) };
    let after = session.listen(silence())?;
    let mut other = speech::Model::embedded()?.session(&SessionOptions::default())?;
    other.restore(&mut heard_so_far.as_slice())?;
    // A fork has heard the same, and does not hear what the other session hears from now on.
    let mut fork = other.fork();
    assert_eq!(other.listen(silence())?, after);
    let further = other.listen(silence())?;
    assert_ne!(further, after, "what was heard counts");
    assert_eq!([fork.listen(silence())?, fork.listen(silence())?], [after, further]);
    assert!(other.last_pass().is_none(), "without a budget nothing is streamed");
    println!("speech in {heard} of {} windows", samples.len() / WINDOW_SAMPLES);

    // The same from a file beside the program, which stays small.
    let mut session = model::Model::open(model::PATH)?.session(&SessionOptions::default())?;
    let outputs = session.main(model::MainInputs { x: Array::new([1, 48], vec![1.0; 48]) })?;
    println!("the product begins with {:.3}", outputs.y.elements[0]);
    let program = std::env::current_exe()?;
    assert!(program.with_file_name("beside.ipu").is_file(), "there is no beside.ipu at {}", program.display());
    let mut session = beside::Model::beside()?.session(&SessionOptions::default())?;
    assert_eq!(session.main(beside::MainInputs { x: Array::new([1, 48], vec![1.0; 48]) })?.y, outputs.y);
    // Within a budget, and within one that is too small.
    let within =
        |bytes| model::Model::open_with(model::PATH, OpenOptions { memory_bytes: Some(bytes), ..Default::default() });
    let mut session = within(1 << 20)?.session(&SessionOptions::default())?;
    assert_eq!(session.main(model::MainInputs { x: Array::new([1, 48], vec![1.0; 48]) })?.y, outputs.y);
    assert!(session.last_pass().is_some(), "within a budget it is known what a pass read");
    let refused = within(1).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("a memory budget of 1 B is too small"), "{refused}");
    Ok(())
}
