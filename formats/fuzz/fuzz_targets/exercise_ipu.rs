//! Reads bytes as an `.ipu` file and uses everything that comes out. Shared with `tests/ipu_mutations.rs`.

use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{EncodingError, Pick};
use ipuc_formats::model::{FormatError, Manifest, Superblock, WeightRecord, read_manifest, read_manifest_from};

/// Weights beyond this many bytes are not unpacked: that takes time and shows nothing new.
const UNPACKED_BYTES: u64 = 64 << 10;

/// Reads a file, its chunks and its weights.
pub fn file(bytes: &[u8]) -> Result<(Superblock, Manifest), FormatError> {
    let bytes = bytes.to_vec();
    let piped = read_manifest_from(&mut bytes.as_slice());
    let read = read_manifest(&bytes)?;
    assert_eq!(piped.expect("a pipe with the same bytes is a file too"), read);
    let (_, manifest) = &read;
    for (number, chunk) in manifest.chunks.iter().enumerate() {
        let content = &bytes[chunk.offset as usize..][..chunk.length as usize];
        let digest = manifest.digest(number as u32, content).expect("the chunk is as long as it says");
        let sound = digest.hash == chunk.hash;
        // A chunk with the right hash may still have wrong checksums, or something else than zeros as padding.
        assert!(sound || manifest.check_chunk(number as u32, content).is_err());
    }
    let extents: Vec<Option<&[u8]>> = manifest
        .extents
        .iter()
        .map(|extent| (extent.file == 0).then(|| &bytes[extent.offset as usize..][..extent.length as usize]))
        .collect();
    for weight in &manifest.weights {
        let parts: Option<Vec<&[u8]>> = weight.parts.iter().map(|part| extents[part.extent as usize]).collect();
        if let Some(parts) = parts {
            use_weight(weight, &parts);
        }
    }
    Ok(read)
}

fn use_weight(weight: &WeightRecord, parts: &[&[u8]]) {
    let stored_bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
    if stored_bytes > UNPACKED_BYTES {
        return;
    }
    let tensor = match weight.decode(|part| Ok::<_, EncodingError>(parts[part])) {
        Ok(tensor) => tensor,
        Err(error) => {
            assert_eq!(weight.dtype, DType::String, "{error}");
            return;
        }
    };
    let shape: Vec<u64> = tensor.shape().iter().map(|&extent| extent as u64).collect();
    assert_eq!((tensor.dtype(), &shape), (weight.dtype, &weight.shape));
    let rows = weight.shape.first().copied().unwrap_or(1);
    let mut canonical = vec![0; tensor.bytes().len() / usize::try_from(rows.max(1)).expect("rows have bytes")];
    for index in [0, rows / 2, rows.wrapping_sub(1), rows, u64::MAX] {
        // Whether there is such a row is not the question.
        let Ok(place) = weight.locate(Pick::Row(index)) else { continue };
        let bytes = place
            .bytes
            .iter()
            .flat_map(|piece| parts[piece.part][piece.bytes.start as usize..piece.bytes.end as usize].iter().copied());
        weight.decode_row(index, &bytes.collect::<Vec<u8>>(), &mut canonical).expect("the row was found");
        let start = index as usize * canonical.len();
        assert_eq!(canonical, tensor.bytes()[start..start + canonical.len()]);
    }
    for group in [0, 1, u64::MAX] {
        let _ = weight.locate(Pick::Group(group));
    }
}

/// A file with a sound superblock around any bytes as manifest.
pub fn sealed(manifest: &[u8], stream: &[u8]) -> Vec<u8> {
    let superblock = Superblock::new(manifest.len() as u64, stream.len() as u64, *blake3::hash(manifest).as_bytes());
    let mut file = superblock.to_bytes().to_vec();
    file.extend_from_slice(manifest);
    file.resize(superblock.stream_offset as usize, 0);
    file.extend_from_slice(stream);
    file
}
