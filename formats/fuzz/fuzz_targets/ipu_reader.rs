//! Reads bytes as an `.ipu` file: as they are, and as the manifest of a file that is otherwise sound.
#![no_main]

mod exercise_ipu;

use libfuzzer_sys::fuzz_target;

/// Chunks of zeros after the manifest.
const MOST_PAGES: u8 = 8;

fuzz_target!(|bytes: &[u8]| {
    let _ = exercise_ipu::file(bytes);
    if let [pages, manifest @ ..] = bytes {
        let stream = vec![0; usize::from(pages % MOST_PAGES) * 4096];
        let _ = exercise_ipu::file(&exercise_ipu::sealed(manifest, &stream));
    }
});
