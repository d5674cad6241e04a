//! Damaged `.ipu` files: whatever happens to the bytes, reading and using them gives a value or an error.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

#[path = "../fuzz/fuzz_targets/exercise_ipu.rs"]
mod exercise_ipu;

use crate::ipu_sample::{self, SMALL_CHUNKS, everything, example, with_other_file};
use ipuc_formats::model::{SUPERBLOCK_BYTES, read_manifest};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// Manifest and stream of a sample.
fn split(sample: &ipu_sample::Sample) -> (Vec<u8>, Vec<u8>) {
    let (bytes, _) = sample.write(SMALL_CHUNKS);
    let superblock = read_manifest(&bytes).unwrap().0;
    let end = SUPERBLOCK_BYTES + superblock.manifest_length as usize;
    (bytes[SUPERBLOCK_BYTES..end].to_vec(), bytes[superblock.stream_offset as usize..].to_vec())
}

#[test]
fn sound_files_are_used_whole() {
    for sample in [example(), everything(), with_other_file()] {
        let (manifest, stream) = split(&sample);
        exercise_ipu::file(&exercise_ipu::sealed(&manifest, &stream)).unwrap();
    }
}

#[test]
fn every_damaged_byte_of_a_sealed_manifest_is_survived() {
    let (manifest, stream) = split(&with_other_file());
    let mut accepted = 0;
    for index in 0..manifest.len() {
        for mask in [0x01, 0x88] {
            let mut damaged = manifest.clone();
            damaged[index] ^= mask;
            accepted += usize::from(exercise_ipu::file(&exercise_ipu::sealed(&damaged, &stream)).is_ok());
        }
    }
    // Names, numbers of values and the like may be anything; most bytes may not.
    assert!(accepted < manifest.len(), "{accepted} of {}", manifest.len() * 2);
}

#[test]
fn every_truncated_manifest_is_refused() {
    let (manifest, stream) = split(&example());
    for length in 0..manifest.len() {
        assert!(exercise_ipu::file(&exercise_ipu::sealed(&manifest[..length], &stream)).is_err(), "{length}");
    }
}

#[test]
fn damaged_streams_are_survived() {
    let (bytes, manifest) = everything().write(SMALL_CHUNKS);
    let mut damaged = bytes.clone();
    for chunk in &manifest.chunks {
        for at in (chunk.offset..chunk.offset + chunk.length).step_by(1021) {
            damaged[at as usize] ^= 0x40;
        }
    }
    exercise_ipu::file(&damaged).unwrap();
}

/// One change to a manifest: bytes put, taken out, or copied elsewhere.
#[derive(Clone, Debug)]
enum Damage {
    Put(prop::sample::Index, Vec<u8>),
    TakeOut(prop::sample::Index, usize),
    Copy(prop::sample::Index, prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let bytes = prop::collection::vec(prop_oneof![any::<u8>(), Just(0xff), Just(0x80), Just(0)], 1..12);
    prop_oneof![
        (index(), bytes).prop_map(|(at, bytes)| Damage::Put(at, bytes)),
        (index(), 1usize..40).prop_map(|(at, count)| Damage::TakeOut(at, count)),
        (index(), index(), 1usize..200).prop_map(|(from, to, count)| Damage::Copy(from, to, count)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let cut = |start: usize, count: usize| start..bytes.len().min(start + count);
    match damage {
        Damage::Put(at, new) => {
            let range = cut(at.index(bytes.len()), new.len());
            let length = range.len();
            bytes[range].copy_from_slice(&new[..length]);
        }
        Damage::TakeOut(at, count) => {
            let range = cut(at.index(bytes.len()), *count);
            bytes.drain(range);
        }
        Damage::Copy(from, to, count) => {
            let part = bytes[cut(from.index(bytes.len()), *count)].to_vec();
            let target = to.index(bytes.len());
            bytes.splice(target..target, part);
        }
    }
}

#[test]
fn combined_damage_is_survived() {
    let (manifest, stream) = split(&everything());
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    // The same damage at every run.
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&prop::collection::vec(damage(), 1..4), |damages| {
        let mut damaged = manifest.clone();
        damages.iter().for_each(|damage| apply(&mut damaged, damage));
        let _ = exercise_ipu::file(&exercise_ipu::sealed(&damaged, &stream));
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
}
