//! Whole `.ipu` files: what is written is read, and what is not whole is refused.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use crate::ipu_sample::{LARGE_CHUNKS, SMALL_CHUNKS, Sample, everything, example, with_other_file};
use ipuc_formats::encodings::EncodingError;
use ipuc_formats::model::{FormatError, Manifest, Superblock, read_manifest, read_manifest_from};

fn samples() -> Vec<(Sample, u64)> {
    vec![
        (example(), LARGE_CHUNKS),
        (everything(), LARGE_CHUNKS),
        (everything(), SMALL_CHUNKS),
        (with_other_file(), SMALL_CHUNKS),
    ]
}

#[test]
fn what_is_written_is_read() {
    for (sample, chunk_bytes) in samples() {
        let (bytes, manifest) = sample.write(chunk_bytes);
        let (superblock, found) = read_manifest(&bytes).unwrap();
        assert_eq!(found, manifest);
        assert_eq!(superblock.total_length(), bytes.len() as u64);
        let mut pipe = bytes.as_slice();
        assert_eq!(read_manifest_from(&mut pipe).unwrap(), (superblock, manifest));
        assert_eq!(pipe.len() as u64, superblock.stream_length);
    }
}

#[test]
fn chunks_and_extents_check_and_unpack() {
    for (sample, chunk_bytes) in samples() {
        let (bytes, manifest) = sample.write(chunk_bytes);
        for (number, chunk) in manifest.chunks.iter().enumerate() {
            let content = &bytes[chunk.offset as usize..][..chunk.length as usize];
            manifest.check_chunk(number as u32, content).unwrap();
            for at in (0..content.len()).step_by(997) {
                let mut damaged = content.to_vec();
                damaged[at] ^= 0x10;
                manifest.check_chunk(number as u32, &damaged).unwrap_err();
            }
        }
        for (index, stored) in sample.extents.iter().enumerate() {
            let extent = &manifest.extents[index];
            let content = &bytes[extent.offset as usize..][..extent.length as usize];
            assert_eq!(content, stored);
            extent.check(index as u32, content).unwrap();
            let (first, range) = extent.blocks_around(extent.length / 2..extent.length / 2 + 1);
            let block = &content[range.start as usize..range.end as usize];
            extent.check_blocks(index as u32, first, block).unwrap();
            let mut damaged = block.to_vec();
            damaged[0] ^= 1;
            let error = extent.check_blocks(index as u32, first, &damaged).unwrap_err();
            assert!(matches!(error, FormatError::Checksum { offset, .. } if offset == extent.offset + range.start));
        }
        for weight in manifest.weights.iter().filter(|weight| weight.name.as_deref() != Some("elsewhere")) {
            let part = |extent: u32| sample.extents[extent as usize].as_slice();
            let tensor = weight.decode(|index| Ok::<_, EncodingError>(part(weight.parts[index].extent))).unwrap();
            let shape: Vec<u64> = tensor.shape().iter().map(|&extent| extent as u64).collect();
            assert_eq!((tensor.dtype(), &shape), (weight.dtype, &weight.shape));
        }
    }
}

#[test]
fn pooled_extents_come_first_and_chunks_are_of_about_the_wanted_size() {
    let (_, manifest) = everything().write(SMALL_CHUNKS);
    let pooled = manifest.extents.iter().take_while(|extent| extent.pooled).count();
    assert_eq!(pooled, 3);
    assert!(manifest.extents[pooled..].iter().all(|extent| !extent.pooled && extent.chunk > 0));
    assert!(manifest.chunks.len() >= 4);
    let longest = |chunk: u32| manifest.extents_of_chunk(chunk).map(|index| manifest.extents[index].length).max();
    for (number, chunk) in manifest.chunks.iter().enumerate() {
        assert!(chunk.length <= SMALL_CHUNKS || longest(number as u32) > Some(SMALL_CHUNKS), "chunk {number}");
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let (bytes, _) = everything().write(LARGE_CHUNKS);
    let stream_offset = read_manifest(&bytes).unwrap().0.stream_offset as usize;
    for bit in 0..stream_offset * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(read_manifest(&damaged).is_err(), "bit {bit}");
    }
}

#[test]
fn every_truncation_is_found() {
    let (bytes, _) = example().write(LARGE_CHUNKS);
    for length in 0..bytes.len() {
        let error = read_manifest(&bytes[..length].to_vec()).unwrap_err();
        let short = length < 4096;
        let expected = matches!(error, FormatError::TooShort { .. }) == short
            && matches!(error, FormatError::Truncated { .. }) != short;
        assert!(expected, "{length}: {error}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(matches!(read_manifest(&longer), Err(FormatError::Excess { .. })));
    let stream_offset = read_manifest(&bytes).unwrap().0.stream_offset as usize;
    for length in 0..stream_offset {
        assert!(read_manifest_from(&mut &bytes[..length]).is_err(), "{length}");
    }
}

/// The file with its superblock changed and sealed again.
fn resealed(bytes: &[u8], at: usize, field: &[u8]) -> Result<(Superblock, Manifest), FormatError> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + field.len()].copy_from_slice(field);
    let checksum = crc_fast::crc32_iscsi(&bytes[..4092]);
    bytes[4092..4096].copy_from_slice(&checksum.to_le_bytes());
    read_manifest(&bytes)
}

#[test]
fn superblocks_of_other_files_are_refused_by_name() {
    let (bytes, _) = example().write(LARGE_CHUNKS);
    let message = |at: usize, field: &[u8]| resealed(&bytes, at, field).unwrap_err().to_string();
    assert_eq!(message(12, &[9]), "the file has format version 0.9, this program reads 0.2 only");
    assert_eq!(message(16, &[7]), "the file uses checksum algorithm 7, this program knows 1 (CRC32C) only");
    assert_eq!(message(20, &[7]), "the file uses hash algorithm 7, this program knows 1 (BLAKE3) only");
    assert_eq!(message(28, &[2]), "the file needs feature 33, which this program does not know");
    assert_eq!(message(200, &[1]), "byte 200 must be zero");
    assert_eq!(message(80, &[1, 2, 3]), "the manifest is damaged: its hash is not the one in the superblock");
    assert_eq!(message(4, b"\n"), "the file was damaged by a transfer as text: its signature has other line ends");
    assert_eq!(message(0, b"PK"), "the file is no .ipu file: it does not begin with its signature");
    for (at, name) in [(40, "manifest offset"), (56, "stream offset"), (64, "stream length")] {
        let error = message(at, &[0, 0x40]);
        assert!(error.starts_with(&format!("the superblock states a {name} of 16384, expected ")), "{error}");
    }
    assert!(message(48, &u64::MAX.to_le_bytes()).contains("the limit is 268435456"));
    // Optional features are ignored.
    assert_eq!(resealed(&bytes, 32, &[5]).unwrap().0.optional_features, 5);
}
