//! Which files a model may take its weights from.
//!
//! A model names external data by a path, and a model may come from anywhere: without care, compiling one
//! would copy any readable file into the output. So the *real* path of the data, with every symbolic link
//! followed, must lie in the real folder of the model, or in the folder that the user named the model by.
//! Both are needed for caches that keep models as links to files of other names: there the data is a link
//! beside the link to the model, and its real file lies beside the real model.
//!
//! Absolute paths, paths with `..` and files with several hard links (the second name of a file that lies
//! elsewhere) are refused, as is everything outside, unless the real path lies under a root that the user
//! names for the purpose.
//!
//! Source: <https://github.com/onnx/onnx/blob/main/docs/ExternalData.md>

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ipuc_formats::onnx::{TensorData, TensorSource};
use ipuc_formats::read_at::ReadAt;
use sha1::{Digest, Sha1};

use super::source::{SourceFile, SourceFileError};

/// The files that hold external data of one model, opened as they are asked for.
#[derive(Debug)]
pub struct ExternalFiles {
    /// Folders in which locations are looked up, in order: as named, real, then the roots.
    folders: Vec<PathBuf>,
    /// Real folders whose files the model may use.
    allowed: Vec<PathBuf>,
    /// Real folders that the user named for external data.
    roots: Vec<PathBuf>,
    state: Mutex<State>,
}

/// Files that are kept open: some exporters give every weight a file, and the number of open files is limited.
const KEPT_OPEN: usize = 64;

#[derive(Debug, Default)]
struct State {
    /// By location as written in the model.
    open: BTreeMap<String, Arc<SourceFile>>,
    /// All files that were opened; who reads them holds them.
    opened: Vec<Weak<SourceFile>>,
    /// Real paths of all files that were opened.
    paths: BTreeSet<PathBuf>,
    /// Real paths whose SHA-1 is known to be this.
    verified: BTreeSet<(PathBuf, [u8; 20])>,
}

/// Why external data cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalFileError {
    /// The folder of the model, or a root, cannot be resolved.
    #[error("cannot resolve `{}`: {error}", path.display())]
    Folder {
        /// The path.
        path: PathBuf,
        /// What the system reports.
        error: io::Error,
    },
    /// No such file.
    #[error("tensor `{tensor}` has its data in `{location}`, which is not in {}", list(folders))]
    Missing {
        /// Name of the tensor.
        tensor: String,
        /// Path as written in the model.
        location: String,
        /// Folders in which it was looked up.
        folders: Vec<PathBuf>,
    },
    /// A path that leaves the folder of the model by its words.
    #[error("tensor `{tensor}` has its data in `{location}`, {reason}")]
    Path {
        /// Name of the tensor.
        tensor: String,
        /// Path as written in the model.
        location: String,
        /// What about the path.
        reason: &'static str,
    },
    /// A path that leaves the folder of the model by its links.
    #[error("tensor `{tensor}` has its data in `{location}`, which is really `{}`, outside of the model's folder", real.display())]
    Outside {
        /// Name of the tensor.
        tensor: String,
        /// Path as written in the model.
        location: String,
        /// The real path.
        real: PathBuf,
    },
    /// A file that is also somewhere else.
    #[error(
        "tensor `{tensor}` has its data in `{location}`, a file with {links} hard links, which may really belong elsewhere"
    )]
    HardLinks {
        /// Name of the tensor.
        tensor: String,
        /// Path as written in the model.
        location: String,
        /// Number of names that the file has.
        links: u64,
    },
    /// The system refused.
    #[error("tensor `{tensor}` has its data in `{location}`, which cannot be opened: {error}")]
    Open {
        /// Name of the tensor.
        tensor: String,
        /// Path as written in the model.
        location: String,
        /// What is wrong.
        error: SourceFileError,
    },
    /// Data beyond the end of the file.
    #[error("tensor `{tensor}` has its data in bytes {offset} to {end} of `{location}`, which has {file_bytes}")]
    Range {
        /// Name of the tensor.
        tensor: String,
        /// Path as written in the model.
        location: String,
        /// Where the data begins.
        offset: u64,
        /// Where it ends.
        end: u128,
        /// Length of the file.
        file_bytes: u64,
    },
    /// Another file than the model was made with.
    #[error("tensor `{tensor}` has its data in `{location}`, whose SHA-1 is {found}, not {expected} as the model says")]
    Checksum {
        /// Name of the tensor.
        tensor: String,
        /// Path as written in the model.
        location: String,
        /// SHA-1 by the model.
        expected: String,
        /// SHA-1 of the file.
        found: String,
    },
    /// The file cannot be read.
    #[error("tensor `{tensor}` has its data in `{location}`, which cannot be read: {error}")]
    Read {
        /// Name of the tensor.
        tensor: String,
        /// Path as written in the model.
        location: String,
        /// What the system reports.
        error: io::Error,
    },
    /// A tensor whose data is not external.
    #[error("tensor `{tensor}` has no external data")]
    NotExternal {
        /// Name of the tensor.
        tensor: String,
    },
}

impl ExternalFileError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Missing { .. } => {
                Some("put the data file beside the model, or name its folder by --external-data-root")
            }
            Self::Path { .. } | Self::Outside { .. } | Self::HardLinks { .. } => {
                Some("if the file is meant to be used, name its folder by --external-data-root")
            }
            _ => None,
        }
    }
}

impl ExternalFiles {
    /// For the model at a path; `roots` are further folders that the user trusts with external data.
    ///
    /// # Errors
    /// [`ExternalFileError::Folder`] when the model or a root does not exist.
    pub fn of_model(model: &Path, roots: &[PathBuf]) -> Result<Self, ExternalFileError> {
        let real_path = |path: &Path| {
            path.canonicalize().map_err(|error| ExternalFileError::Folder { path: path.to_owned(), error })
        };
        let parent = |path: &Path| match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let named = real_path(&parent(model))?;
        let real = parent(&real_path(model)?);
        let roots: Vec<PathBuf> = roots.iter().map(|root| real_path(root)).collect::<Result<_, _>>()?;
        let mut allowed = vec![named, real];
        allowed.dedup();
        let mut folders = allowed.clone();
        folders.extend(roots.iter().filter(|root| !allowed.contains(root)).cloned());
        Ok(Self { folders, allowed, roots, state: Mutex::default() })
    }

    /// The file that holds the elements of a tensor with external data; they lie inside it.
    ///
    /// # Errors
    /// [`ExternalFileError`] when the file is missing, must not be used, or does not hold the data.
    pub fn open(&self, tensor: &TensorSource) -> Result<Arc<SourceFile>, ExternalFileError> {
        let name = || tensor.name().to_owned();
        let TensorData::External(data) = tensor.data() else {
            return Err(ExternalFileError::NotExternal { tensor: name() });
        };
        let request = Request { tensor: tensor.name(), location: &data.location };
        let file = self.opened(request)?;
        let end = u128::from(data.offset) + u128::from(tensor.length_bytes());
        if end > u128::from(file.length()) {
            let (location, file_bytes) = (data.location.clone(), file.length());
            return Err(ExternalFileError::Range { tensor: name(), location, offset: data.offset, end, file_bytes });
        }
        if let Some(expected) = data.sha1 {
            self.verify(request, &file, expected)?;
        }
        Ok(file)
    }

    /// Real paths of the files that were opened, in order.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<PathBuf> {
        self.state().paths.clone()
    }

    /// Whether all files that are still held are what they were when they were opened.
    ///
    /// # Errors
    /// [`SourceFileError::Changed`] for the first that is not.
    pub fn check_unchanged(&self) -> Result<(), SourceFileError> {
        let held: Vec<Arc<SourceFile>> = self.state().opened.iter().filter_map(Weak::upgrade).collect();
        held.iter().try_for_each(|file| file.check_unchanged())
    }

    /// A thread that panicked has left nothing half-written here.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self, request: Request<'_>) -> Result<Arc<SourceFile>, ExternalFileError> {
        if let Some(file) = self.state().open.get(request.location) {
            return Ok(Arc::clone(file));
        }
        let real = self.resolve(request)?;
        let file = SourceFile::open(&real).map_err(|error| request.open_error(error))?;
        if !self.under_root(&real) {
            let links = hard_links(file.file()).map_err(|error| request.read_error(error))?;
            if links != 1 {
                let (tensor, location) = request.names();
                return Err(ExternalFileError::HardLinks { tensor, location, links });
            }
        }
        let file = Arc::new(file);
        let mut state = self.state();
        if state.open.len() >= KEPT_OPEN {
            state.open.pop_first();
        }
        state.opened.push(Arc::downgrade(&file));
        state.paths.insert(real);
        state.open.insert(request.location.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    /// The real path of a location, if the model may use it.
    fn resolve(&self, request: Request<'_>) -> Result<PathBuf, ExternalFileError> {
        let location = Path::new(request.location);
        let suspicious = suspicious(location);
        if let Some(reason) = suspicious
            && self.roots.is_empty()
        {
            let (tensor, location) = request.names();
            return Err(ExternalFileError::Path { tensor, location, reason });
        }
        for folder in &self.folders {
            // An absolute location replaces the folder.
            let real = match folder.join(location).canonicalize() {
                Ok(real) => real,
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    continue;
                }
                Err(error) => {
                    let path = folder.join(location);
                    return Err(request.open_error(SourceFileError::Open { path, error }));
                }
            };
            let (tensor, location) = request.names();
            return match suspicious {
                _ if self.under_root(&real) => Ok(real),
                Some(reason) => Err(ExternalFileError::Path { tensor, location, reason }),
                None if inside(&real, &self.allowed) => Ok(real),
                None => Err(ExternalFileError::Outside { tensor, location, real }),
            };
        }
        let (tensor, location) = request.names();
        Err(ExternalFileError::Missing { tensor, location, folders: self.folders.clone() })
    }

    fn under_root(&self, real: &Path) -> bool {
        inside(real, &self.roots)
    }

    /// Compares the SHA-1 of the whole file, once a file.
    fn verify(&self, request: Request<'_>, file: &SourceFile, expected: [u8; 20]) -> Result<(), ExternalFileError> {
        let key = (file.path().to_owned(), expected);
        if self.state().verified.contains(&key) {
            return Ok(());
        }
        let found = sha1(file).map_err(|error| request.read_error(error))?;
        if found != expected {
            let (tensor, location) = request.names();
            let (expected, found) = (hexadecimal(&expected), hexadecimal(&found));
            return Err(ExternalFileError::Checksum { tensor, location, expected, found });
        }
        self.state().verified.insert(key);
        Ok(())
    }
}

/// What is asked for, to be named in errors.
#[derive(Clone, Copy)]
struct Request<'a> {
    tensor: &'a str,
    location: &'a str,
}

impl Request<'_> {
    fn names(self) -> (String, String) {
        (self.tensor.to_owned(), self.location.to_owned())
    }

    fn open_error(self, error: SourceFileError) -> ExternalFileError {
        let (tensor, location) = self.names();
        ExternalFileError::Open { tensor, location, error }
    }

    fn read_error(self, error: io::Error) -> ExternalFileError {
        let (tensor, location) = self.names();
        ExternalFileError::Read { tensor, location, error }
    }
}

/// What about a path lets it leave the folder it is relative to.
fn suspicious(path: &Path) -> Option<&'static str> {
    path.components().find_map(|component| match component {
        Component::Normal(_) | Component::CurDir => None,
        Component::ParentDir => Some("which leads through `..`"),
        Component::RootDir | Component::Prefix(_) => Some("which is an absolute path"),
    })
}

/// Whether a real path lies in one of the real folders.
fn inside(real: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| real.starts_with(folder))
}

/// Number of names that a file has.
#[cfg(unix)]
fn hard_links(file: &File) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(file.metadata()?.nlink())
}

/// Number of names that a file has, where the standard library does not tell.
#[cfg(not(unix))]
fn hard_links(_: &File) -> io::Result<u64> {
    Ok(1)
}

fn sha1(file: &SourceFile) -> io::Result<[u8; 20]> {
    let mut digest = Sha1::new();
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < file.length() {
        let left = usize::try_from(file.length() - offset).unwrap_or(usize::MAX);
        let part = &mut buffer[..left.min(1 << 20)];
        file.read_exact_at(offset, part)?;
        digest.update(&*part);
        offset += part.len() as u64;
    }
    Ok(digest.finalize().into())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
    names.join(" or ")
}

#[cfg(test)]
mod tests {
    use ipuc_formats::onnx::schema::{StringStringEntryProto, TensorProto};
    use tempfile::TempDir;

    use super::*;

    /// A tensor of four bytes with external data.
    fn tensor(entries: &[(&str, &str)]) -> TensorSource {
        let entry = |(key, value): &(&str, &str)| StringStringEntryProto {
            key: Some((*key).into()),
            value: Some((*value).into()),
        };
        let proto = TensorProto {
            name: Some("w".into()),
            data_type: Some(2),
            dims: vec![4],
            data_location: Some(1),
            external_data: entries.iter().map(entry).collect(),
            ..TensorProto::default()
        };
        TensorSource::of(&proto).unwrap()
    }

    fn at(location: &str) -> TensorSource {
        tensor(&[("location", location)])
    }

    /// A folder with `model/model.onnx`, `model/w.bin` and `outside.bin`.
    fn folders() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("model/sub")).unwrap();
        std::fs::write(root.join("model/model.onnx"), b"").unwrap();
        std::fs::write(root.join("model/w.bin"), b"abcd").unwrap();
        std::fs::write(root.join("model/sub/w.bin"), b"efgh").unwrap();
        std::fs::write(root.join("outside.bin"), b"secret").unwrap();
        folder
    }

    fn files(folder: &TempDir) -> ExternalFiles {
        ExternalFiles::of_model(&folder.path().join("model/model.onnx"), &[]).unwrap()
    }

    fn with_root(folder: &TempDir, root: &str) -> ExternalFiles {
        let roots = [folder.path().join(root)];
        ExternalFiles::of_model(&folder.path().join("model/model.onnx"), &roots).unwrap()
    }

    fn content(files: &ExternalFiles, tensor: &TensorSource) -> Result<Vec<u8>, ExternalFileError> {
        let file = files.open(tensor)?;
        Ok(tensor.load(&*file).unwrap().bytes().to_vec())
    }

    #[test]
    fn files_beside_the_model_are_used() {
        let folder = folders();
        let files = files(&folder);
        assert_eq!(content(&files, &at("w.bin")).unwrap(), b"abcd");
        assert_eq!(content(&files, &at("./w.bin")).unwrap(), b"abcd");
        assert_eq!(content(&files, &at("sub/w.bin")).unwrap(), b"efgh");
        let model = folder.path().canonicalize().unwrap().join("model");
        assert_eq!(Vec::from_iter(files.paths()), [model.join("sub/w.bin"), model.join("w.bin")]);
    }

    #[test]
    fn any_number_of_files_can_be_used() {
        let folder = folders();
        let files = files(&folder);
        for round in 0..2 {
            for index in 0..3 * KEPT_OPEN {
                let name = format!("weight {index}");
                if round == 0 {
                    std::fs::write(folder.path().join("model").join(&name), b"abcd").unwrap();
                }
                assert_eq!(content(&files, &at(&name)).unwrap(), b"abcd");
            }
        }
        assert_eq!(files.state().open.len(), KEPT_OPEN);
        assert_eq!(files.paths().len(), 3 * KEPT_OPEN);
    }

    #[test]
    fn a_model_in_the_working_folder_has_a_folder() {
        let missing = ExternalFiles::of_model(Path::new("no such model.onnx"), &[]).unwrap_err();
        assert!(missing.to_string().contains("`no such model.onnx`"), "{missing}");
        assert!(ExternalFiles::of_model(Path::new("Cargo.toml"), &[]).is_ok());
    }

    #[test]
    fn missing_files_are_named() {
        let folder = folders();
        let error = content(&files(&folder), &at("v.bin")).unwrap_err();
        let model = folder.path().canonicalize().unwrap().join("model");
        let expected = format!("tensor `w` has its data in `v.bin`, which is not in `{}`", model.display());
        assert_eq!(error.to_string(), expected);
        let below_a_file = content(&files(&folder), &at("w.bin/x")).unwrap_err().to_string();
        assert_eq!(below_a_file, expected.replace("v.bin", "w.bin/x"));
        let folder_as_file = content(&files(&folder), &at("sub")).unwrap_err().to_string();
        assert!(folder_as_file.ends_with("is not a regular file"), "{folder_as_file}");
    }

    #[test]
    fn paths_that_lead_out_are_refused_before_they_are_looked_up() {
        let folder = folders();
        let absolute = folder.path().join("model/w.bin");
        let cases = [
            ("../outside.bin", "which leads through `..`"),
            ("sub/../w.bin", "which leads through `..`"),
            ("../no such file", "which leads through `..`"),
            (absolute.to_str().unwrap(), "which is an absolute path"),
            ("/etc/passwd", "which is an absolute path"),
        ];
        for (location, reason) in cases {
            let error = content(&files(&folder), &at(location)).unwrap_err();
            assert_eq!(error.to_string(), format!("tensor `w` has its data in `{location}`, {reason}"));
            assert!(error.hint().unwrap().contains("--external-data-root"));
        }
    }

    #[test]
    fn a_root_lets_its_files_be_used() {
        let folder = folders();
        let files = with_root(&folder, ".");
        assert_eq!(content(&files, &at("outside.bin")).unwrap(), b"secr");
        assert_eq!(content(&files, &at("../outside.bin")).unwrap(), b"secr");
        assert_eq!(content(&files, &at("sub/../w.bin")).unwrap(), b"abcd");
        let absolute = folder.path().join("outside.bin");
        assert_eq!(content(&files, &at(absolute.to_str().unwrap())).unwrap(), b"secr");
        // Another root does not.
        let files = with_root(&folder, "model/sub");
        assert!(matches!(content(&files, &at("../outside.bin")), Err(ExternalFileError::Path { .. })));
        assert!(matches!(content(&files, &at("/etc/passwd")), Err(ExternalFileError::Path { .. })));
        // Files beside the model come first.
        assert_eq!(content(&files, &at("w.bin")).unwrap(), b"abcd");
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_out_are_refused() {
        use std::os::unix::fs::symlink;
        let folder = folders();
        let model = folder.path().join("model");
        symlink("../outside.bin", model.join("link.bin")).unwrap();
        symlink("..", model.join("up")).unwrap();
        symlink("w.bin", model.join("inside.bin")).unwrap();
        symlink("gone.bin", model.join("dangling.bin")).unwrap();
        symlink("loop.bin", model.join("loop.bin")).unwrap();
        let files = files(&folder);
        for location in ["link.bin", "up/outside.bin"] {
            let error = content(&files, &at(location)).unwrap_err();
            assert!(matches!(error, ExternalFileError::Outside { .. }), "{error}");
            assert!(error.to_string().ends_with("outside.bin`, outside of the model's folder"), "{error}");
        }
        assert_eq!(content(&files, &at("inside.bin")).unwrap(), b"abcd");
        assert!(matches!(content(&files, &at("dangling.bin")), Err(ExternalFileError::Missing { .. })));
        assert!(matches!(content(&files, &at("loop.bin")), Err(ExternalFileError::Open { .. })));
        assert_eq!(content(&with_root(&folder, "."), &at("link.bin")).unwrap(), b"secr");
    }

    #[cfg(unix)]
    #[test]
    fn several_hard_links_are_refused_outside_of_a_root() {
        let folder = folders();
        std::fs::hard_link(folder.path().join("outside.bin"), folder.path().join("model/hard.bin")).unwrap();
        let error = content(&files(&folder), &at("hard.bin")).unwrap_err();
        assert!(matches!(error, ExternalFileError::HardLinks { links: 2, .. }), "{error}");
        assert_eq!(content(&with_root(&folder, "model"), &at("hard.bin")).unwrap(), b"secr");
    }

    /// `snapshots/1/model.onnx` and its data are links to files of other names in `blobs`.
    #[cfg(unix)]
    #[test]
    fn a_linked_model_uses_data_beside_its_link_and_beside_itself() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("blobs")).unwrap();
        std::fs::create_dir_all(root.join("snapshots/1")).unwrap();
        std::fs::write(root.join("blobs/0a1b"), b"").unwrap();
        std::fs::write(root.join("blobs/2c3d"), b"abcd").unwrap();
        std::fs::write(root.join("secret"), b"secr").unwrap();
        let snapshot = root.join("snapshots/1");
        symlink("../../blobs/0a1b", snapshot.join("model.onnx")).unwrap();
        symlink("../../blobs/2c3d", snapshot.join("model.onnx_data")).unwrap();
        symlink("../../secret", snapshot.join("escape")).unwrap();
        std::fs::write(snapshot.join("copied.bin"), b"efgh").unwrap();
        let files = ExternalFiles::of_model(&snapshot.join("model.onnx"), &[]).unwrap();
        assert_eq!(content(&files, &at("model.onnx_data")).unwrap(), b"abcd");
        assert_eq!(content(&files, &at("2c3d")).unwrap(), b"abcd");
        assert_eq!(content(&files, &at("copied.bin")).unwrap(), b"efgh");
        assert!(matches!(content(&files, &at("escape")), Err(ExternalFileError::Outside { .. })));
    }

    #[test]
    fn data_must_lie_inside_the_file() {
        let folder = folders();
        let files = files(&folder);
        let at_offset = |offset| tensor(&[("location", "w.bin"), ("offset", offset)]);
        assert!(files.open(&at_offset("0")).is_ok());
        let error = files.open(&at_offset("1")).unwrap_err();
        assert_eq!(error.to_string(), "tensor `w` has its data in bytes 1 to 5 of `w.bin`, which has 4");
        let error = files.open(&at_offset("18446744073709551615")).unwrap_err();
        assert!(error.to_string().contains("to 18446744073709551619 of"), "{error}");
    }

    #[test]
    fn checksums_are_compared() {
        let folder = folders();
        let files = files(&folder);
        let with_checksum = |sum| tensor(&[("location", "w.bin"), ("checksum", sum)]);
        // SHA-1 of "abcd".
        let right = with_checksum("81FE8BFE87576C3ECB22426F8E57847382917ACF");
        assert_eq!(content(&files, &right).unwrap(), b"abcd");
        assert_eq!(content(&files, &right).unwrap(), b"abcd");
        let error = files.open(&with_checksum(&"00".repeat(20))).unwrap_err();
        assert!(matches!(error, ExternalFileError::Checksum { .. }), "{error}");
    }
}
