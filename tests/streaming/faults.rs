//! Reads that fail or lie end a run with a reason, and not the session.

use super::models::{bits, chain, chain_bits, chain_inputs, manifest, session, stream_bytes};
use super::watched::Watched;
use ipuc_runtime::{Model, ModelOptions, RunError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn faults_end_a_run_with_a_reason_and_the_session_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = chain(folder.path(), 8);
    let expected = chain_bits(&path);
    for (readers, file) in [(1, Watched::new(&path)), (4, Watched::new(&path)), (4, Watched::queued(&path))] {
        let file = Arc::new(file);
        let options = ModelOptions {
            memory_bytes: Some(stream_bytes(&path) / 2 + (128 << 10)),
            readers,
            ..ModelOptions::default()
        };
        let model = Model::open_with(file.clone(), options).unwrap();
        let mut session = session(&model, 2);
        let mut run = || session.run(None, chain_inputs());
        let mut fails = |break_it: &dyn Fn(), mend: &dyn Fn(), reason: &str| {
            break_it();
            // What was read ahead may serve one more pass.
            let error = (0..3).find_map(|_| run().err()).expect("a fault goes unnoticed");
            let RunError::Step { error, .. } = &error else { panic!("{error}") };
            let text = error.to_string();
            assert!(text.contains(reason) && text.contains("offset"), "{text}");
            mend();
            for _ in 0..3 {
                assert!(bits(&run().unwrap()) == expected, "after {reason}");
            }
        };
        for read in [1, 3, 7] {
            let next = || file.failing.store(file.count.load(Ordering::SeqCst) + read, Ordering::SeqCst);
            fails(&next, &|| (), "Input/output error");
        }
        let set = |place: &AtomicU64, value: u64| place.store(value, Ordering::SeqCst);
        let streamed = model.residency().unwrap().pinned.iter().position(|pinned| !pinned).unwrap();
        let offset = manifest(&path).chunks[streamed].offset;
        fails(&|| set(&file.end, offset), &|| set(&file.end, 0), "end of file");
        let inside = offset + 100;
        fails(&|| set(&file.flipped, inside), &|| set(&file.flipped, 0), "checksum");
    }
}
