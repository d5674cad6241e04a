//! What names a file that is kept: a hash of all that it is made from.

use crate::compile::{CompileOptions, Source};
use crate::files::SourceFile;
use ipuc_formats::onnx::{external_locations, read_model, read_skeleton};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Files up to this length are known by their contents, larger ones by length, times and identity on their disk.
const CONTENT_BYTES: u64 = 16 << 20;

/// The name of a file that is kept, and the real paths of the files that it is made from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) inputs: BTreeSet<PathBuf>,
}

struct Hasher {
    hasher: blake3::Hasher,
    inputs: BTreeSet<PathBuf>,
}

impl Hasher {
    fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(&(bytes.len() as u64).to_le_bytes());
        self.hasher.update(bytes);
    }

    fn add_file(&mut self, path: &Path) -> io::Result<()> {
        self.add(&fingerprint(path)?);
        self.inputs.insert(path.canonicalize()?);
        Ok(())
    }

    /// All files below a folder, by name; or the file.
    fn add_all(&mut self, path: &Path) -> io::Result<()> {
        if !path.is_dir() {
            return self.add_file(path);
        }
        let entries = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<BTreeSet<_>>>()?;
        for entry in entries {
            self.add(entry.file_name().unwrap_or_default().as_encoded_bytes());
            self.add_all(&entry)?;
        }
        Ok(())
    }

    /// What a model is without its large tensors, and which files these are in.
    fn add_model(&mut self, source: &Source, roots: &[PathBuf]) -> io::Result<()> {
        self.add(source.entry.as_bytes());
        // It is recorded in the compiled file.
        self.add(source.path.file_name().unwrap_or_default().as_encoded_bytes());
        let file = SourceFile::open(&source.path).map_err(io::Error::other)?;
        self.add(&read_skeleton(&file).map_err(io::Error::other)?);
        self.add_file(&source.path)?;
        let real = source.path.canonicalize()?;
        let folders: Vec<&Path> = source.path.parent().into_iter().chain(real.parent()).collect();
        let model = read_model(&file).map_err(io::Error::other)?;
        for location in external_locations(&model) {
            let places = folders.iter().copied().chain(roots.iter().map(PathBuf::as_path));
            let place = places.map(|folder| folder.join(location)).find(|path| path.is_file());
            self.add_file(&place.ok_or(io::ErrorKind::NotFound)?)?;
        }
        Ok(())
    }
}

/// The key of what is made from models with these options and other files, by this very program.
///
/// # Errors
/// Where a file is not there, or a model is none.
pub(super) fn key(sources: &[Source], options: &CompileOptions, others: &[PathBuf], also: &str) -> io::Result<Key> {
    let mut hasher = Hasher { hasher: blake3::Hasher::new(), inputs: BTreeSet::new() };
    hasher.add(env!("CARGO_PKG_VERSION").as_bytes());
    // Programs of the same version may differ while they are developed.
    hasher.add(&identity(&std::fs::metadata(std::env::current_exe()?)?));
    hasher.add(format!("{options:?}").as_bytes());
    hasher.add(also.as_bytes());
    sources.iter().try_for_each(|source| hasher.add_model(source, &options.external_data_roots))?;
    others.iter().try_for_each(|path| hasher.add_all(path))?;
    let name = hasher.hasher.finalize().to_hex().chars().take(32).collect();
    Ok(Key { name, inputs: hasher.inputs })
}

/// What tells that a file is still the same.
fn fingerprint(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if metadata.len() > CONTENT_BYTES {
        return Ok(identity(&metadata));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?.take(CONTENT_BYTES + 1))?;
    Ok(hasher.finalize().as_bytes().to_vec())
}

/// Length, time of the last change since 1970, and device, number on it and last change of anything about it, where the system
/// has them.
fn identity(metadata: &Metadata) -> Vec<u8> {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    #[cfg(unix)]
    let inode = {
        use std::os::unix::fs::MetadataExt as _;
        Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
    };
    #[cfg(not(unix))]
    let inode = None::<(u64, u64, i64, i64)>;
    format!("{} {modified:?} {inode:?}", metadata.len()).into_bytes()
}
