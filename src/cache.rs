//! Compiled files that are kept for later: a model that is run as `.onnx` again is not compiled again.
//!
//! What is kept lies in a folder of the user (see [`Cache::of_user`]), under a name that tells the program, the models'
//! paths and the options apart. A record beside each file says what it was made from: a file of up to 16 MiB by its
//! contents, a larger one by length, times and identity on its disk. Where any of it has changed, the model is compiled
//! anew in its place.

use crate::compile::{CompileOptions, Compiled, Source};
use crate::files::SourceFile;
use crate::files::unfinished::remove_left_over;
use ipuc_formats::model::{Manifest, read_manifest};
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names the folder in place of the system's; there is no cache where it is empty.
pub const FOLDER_VARIABLE: &str = "IPUC_CACHE";
/// Files up to this length are known by their contents.
const CONTENT_BYTES: u64 = 16 << 20;
/// What was changed so shortly before a compilation may change again without its time telling.
const SETTLED: Duration = Duration::from_secs(2);
/// The longest record that is read.
const RECORD_BYTES: u64 = 16 << 20;
/// Most bytes that are kept, the least recently used leave; [`Cache::shrink`] takes another number.
pub const MOST_BYTES: u64 = 32 << 30;

/// A folder of compiled files.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

/// What a compiled file was made from.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Names of the models, for people.
    models: Vec<PathBuf>,
    /// BLAKE3 of the manifest of the compiled file.
    root_hash: [u8; 32],
    inputs: Vec<Input>,
}

/// A file that a compiled file was made from.
#[derive(Debug, Serialize, Deserialize)]
struct Input {
    path: PathBuf,
    fingerprint: Fingerprint,
}

/// What tells that a file is still the same.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
enum Fingerprint {
    /// BLAKE3 of all bytes.
    Content([u8; 32]),
    /// Of a large file.
    Identity {
        length: u64,
        /// Time since 1970 of the last change of its contents, where the system has it.
        modified: Option<Duration>,
        /// Device, number on it, and the last change of anything about it, where the system has them.
        inode: Option<(u64, u64, i64, i64)>,
    },
}

/// Where a compiled file is written to be kept.
#[derive(Debug)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// Before any input was read.
    begun: SystemTime,
}

/// A compiled file that is kept.
#[derive(Debug)]
pub struct Kept {
    /// The file.
    pub path: PathBuf,
    /// What is in it.
    pub manifest: Manifest,
    /// Files that it was made from.
    pub inputs: Vec<PathBuf>,
}

/// What [`Cache::list`] tells of a compiled file.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The file.
    pub path: PathBuf,
    /// The models that it was made from.
    pub models: Vec<PathBuf>,
    /// Its length.
    pub bytes: u64,
    /// Time since it was made or used.
    pub unused: Duration,
}

impl Cache {
    /// The folder that the environment variable `IPUC_CACHE` names, else `ipuc` in the user's folder for such files
    /// (`$XDG_CACHE_HOME` or `~/.cache`, on macOS `~/Library/Caches`, on Windows `%LOCALAPPDATA%`); `None` where there is
    /// none, or the variable is empty.
    #[must_use]
    pub fn of_user() -> Option<Cache> {
        if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
            return (!folder.is_empty()).then(|| Cache::at(folder));
        }
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || variable("HOME");
        let folder = if cfg!(windows) {
            variable("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            home().map(|home| home.join("Library/Caches"))
        } else {
            variable("XDG_CACHE_HOME").or_else(|| home().map(|home| home.join(".cache")))
        };
        folder.map(|folder| Cache::at(folder.join("ipuc")))
    }

    /// A cache in this folder, which need not be there yet.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: folder.into() }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file that these models were compiled into with these options, where nothing of it has changed.
    #[must_use]
    pub fn find(&self, sources: &[Source], options: &CompileOptions) -> Option<Kept> {
        let path = self.path(sources, options).ok()?;
        let record = read_record(&path.with_extension("json")).ok()?;
        let unchanged = |input: &Input| fingerprint(&input.path).is_ok_and(|found| found == input.fingerprint);
        if !record.inputs.iter().all(unchanged) {
            return None;
        }
        let (superblock, manifest) = read_manifest(&SourceFile::open(&path).ok()?).ok()?;
        if superblock.root_hash != record.root_hash {
            return None;
        }
        // The time of the record tells when the file was used last; where it cannot be set, the file leaves earlier.
        let _ = File::options()
            .write(true)
            .open(path.with_extension("json"))
            .and_then(|file| file.set_modified(SystemTime::now()));
        Some(Kept { path, manifest, inputs: record.inputs.into_iter().map(|input| input.path).collect() })
    }

    /// Where the compiled file of these models is to be written, before they are read; the folder is made.
    ///
    /// # Errors
    /// Where a model is not there, or the folder cannot be made.
    pub fn place(&self, sources: &[Source], options: &CompileOptions) -> io::Result<Place> {
        let begun = SystemTime::now();
        let path = self.path(sources, options)?;
        std::fs::create_dir_all(&self.folder)?;
        remove_left_over(&self.folder);
        Ok(Place { path, begun })
    }

    /// Keep the file at a place, which these models were compiled into; what was used least recently leaves.
    ///
    /// Where an input was changed less than two seconds before it was read, or since, the file is not found later: whether
    /// it holds that change cannot be told.
    ///
    /// # Errors
    /// Where the record cannot be written.
    pub fn keep(&self, place: &Place, sources: &[Source], compiled: &Compiled) -> io::Result<()> {
        let mut inputs = Vec::with_capacity(compiled.inputs.len());
        for path in &compiled.inputs {
            let path = path.canonicalize()?;
            let fingerprint = fingerprint(&path)?;
            let modified = std::fs::metadata(&path)?.modified()?;
            if place.begun.duration_since(modified).is_ok_and(|age| age > SETTLED) {
                inputs.push(Input { path, fingerprint });
            } else {
                return Ok(());
            }
        }
        let models = sources.iter().map(|source| source.path.canonicalize()).collect::<io::Result<_>>()?;
        let record = Record { models, root_hash: compiled.emitted.root_hash, inputs };
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&serde_json::to_vec(&record)?)?;
        file.persist(place.path.with_extension("json")).map_err(|error| error.error)?;
        self.remove_beyond(MOST_BYTES, Some(&place.path)).map(|_| ())
    }

    /// All files that are kept, what was used last first.
    ///
    /// # Errors
    /// Where the folder cannot be read; one that is not there holds nothing.
    pub fn list(&self) -> io::Result<Vec<Listed>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut listed = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "ipu") {
                continue;
            }
            // Another program may remove it meanwhile.
            let Ok(metadata) = std::fs::metadata(&path) else { continue };
            let record = path.with_extension("json");
            let used = std::fs::metadata(&record).and_then(|record| record.modified()).or_else(|_| metadata.modified());
            let unused = used.ok().and_then(|used| used.elapsed().ok()).unwrap_or_default();
            let models = read_record(&record).map_or_else(|_| Vec::new(), |record| record.models);
            listed.push(Listed { path, models, bytes: metadata.len(), unused });
        }
        listed.sort_by(|one, other| one.unused.cmp(&other.unused).then_with(|| one.path.cmp(&other.path)));
        Ok(listed)
    }

    /// Remove what was used least recently until at most so many bytes are left; gives what is gone.
    ///
    /// # Errors
    /// Where the folder cannot be read or a file cannot be removed.
    pub fn shrink(&self, most_bytes: u64) -> io::Result<Vec<Listed>> {
        self.remove_beyond(most_bytes, None)
    }

    fn remove_beyond(&self, most_bytes: u64, except: Option<&Path>) -> io::Result<Vec<Listed>> {
        remove_left_over(&self.folder);
        let mut kept_bytes = 0u64;
        let mut removed = Vec::new();
        for file in self.list()? {
            kept_bytes = kept_bytes.saturating_add(file.bytes);
            if kept_bytes <= most_bytes || except.is_some_and(|except| except == file.path) {
                continue;
            }
            kept_bytes -= file.bytes;
            for path in [file.path.with_extension("json"), file.path.clone()] {
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
            removed.push(file);
        }
        Ok(removed)
    }

    /// The file for these models and options, as this very program compiles them.
    fn path(&self, sources: &[Source], options: &CompileOptions) -> io::Result<PathBuf> {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        add(env!("CARGO_PKG_VERSION"));
        // Programs of the same version may differ while they are developed.
        add(&format!("{:?}", identity(&std::fs::metadata(std::env::current_exe()?)?)));
        add(&format!("{options:?}"));
        for source in sources {
            add(&source.entry);
            add(&format!("{:?}", source.path.canonicalize()?));
        }
        let name: String = hasher.finalize().to_hex().chars().take(32).collect();
        Ok(self.folder.join(name).with_extension("ipu"))
    }
}

fn read_record(path: &Path) -> io::Result<Record> {
    let mut bytes = Vec::new();
    File::open(path)?.take(RECORD_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn fingerprint(path: &Path) -> io::Result<Fingerprint> {
    let metadata = std::fs::metadata(path)?;
    if metadata.len() > CONTENT_BYTES {
        return Ok(identity(&metadata));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?.take(CONTENT_BYTES + 1))?;
    Ok(Fingerprint::Content(*hasher.finalize().as_bytes()))
}

fn identity(metadata: &Metadata) -> Fingerprint {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    #[cfg(unix)]
    let inode = {
        use std::os::unix::fs::MetadataExt as _;
        Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
    };
    #[cfg(not(unix))]
    let inode = None;
    Fingerprint::Identity { length: metadata.len(), modified, inode }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(path: &Path) -> Vec<Source> {
        vec![Source { entry: "main".to_string(), path: path.to_owned() }]
    }

    /// A model of one step, last changed a minute ago.
    fn write_model(path: &Path, operator: &str) {
        use ipuc_formats::onnx::schema::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
        use ipuc_formats::onnx::schema::{TensorShapeProto, TypeProto, ValueInfoProto, type_proto};
        use prost::Message as _;
        let port = |name: &str| ValueInfoProto {
            name: Some(name.to_string()),
            r#type: Some(TypeProto {
                denotation: None,
                value: Some(type_proto::Value::TensorType(type_proto::Tensor {
                    elem_type: Some(1),
                    shape: Some(TensorShapeProto::default()),
                })),
            }),
            ..ValueInfoProto::default()
        };
        let node = NodeProto {
            op_type: Some(operator.to_string()),
            input: vec!["x".to_string()],
            output: vec!["y".to_string()],
            ..NodeProto::default()
        };
        let graph = GraphProto {
            name: Some("graph".to_string()),
            node: vec![node],
            input: vec![port("x")],
            output: vec![port("y")],
            ..GraphProto::default()
        };
        let model = ModelProto {
            ir_version: Some(8),
            opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
            graph: Some(graph),
            ..ModelProto::default()
        };
        std::fs::write(path, model.encode_to_vec()).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    }

    fn compile_and_keep(cache: &Cache, model: &Path, options: &CompileOptions) {
        let place = cache.place(&sources(model), options).unwrap();
        let compiled = crate::compile(&sources(model), &place.path, options).unwrap();
        cache.keep(&place, &sources(model), &compiled).unwrap();
    }

    #[test]
    fn a_file_is_found_until_what_it_was_made_from_changes() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        let model = folder.path().join("model.onnx");
        write_model(&model, "Relu");
        let options = CompileOptions::default();
        assert!(cache.find(&sources(&model), &options).is_none());
        compile_and_keep(&cache, &model, &options);
        let kept = cache.find(&sources(&model), &options).unwrap();
        assert_eq!(kept.inputs, [model.canonicalize().unwrap()]);
        assert_eq!(kept.manifest.entries.len(), 1);
        let others = CompileOptions { unfused: true, ..CompileOptions::default() };
        assert!(cache.find(&sources(&model), &others).is_none(), "other options are another file");
        write_model(&model, "Neg");
        assert!(cache.find(&sources(&model), &options).is_none(), "another model of the same length");
        write_model(&model, "Relu");
        assert!(cache.find(&sources(&model), &options).is_some(), "contents count");
        let mut bytes = std::fs::read(&kept.path).unwrap();
        bytes[5000] ^= 1;
        std::fs::write(&kept.path, bytes).unwrap();
        assert!(cache.find(&sources(&model), &options).is_none(), "damaged");
    }

    #[test]
    fn what_changes_while_it_is_read_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        let model = folder.path().join("model.onnx");
        let options = CompileOptions::default();
        write_model(&model, "Relu");
        File::options().write(true).open(&model).unwrap().set_modified(SystemTime::now()).unwrap();
        compile_and_keep(&cache, &model, &options);
        assert!(cache.find(&sources(&model), &options).is_none());
    }

    #[test]
    fn what_was_used_least_recently_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        let options = CompileOptions::default();
        let models = ["a", "b", "c"].map(|name| folder.path().join(name).with_extension("onnx"));
        for (index, model) in models.iter().enumerate() {
            write_model(model, "Relu");
            compile_and_keep(&cache, model, &options);
            let record = cache.path(&sources(model), &options).unwrap().with_extension("json");
            let used = SystemTime::now() - Duration::from_secs(100 - 10 * index as u64);
            File::options().write(true).open(record).unwrap().set_modified(used).unwrap();
        }
        cache.find(&sources(&models[0]), &options).unwrap();
        let named = |listed: &[Listed]| listed.iter().map(|one| one.models[0].clone()).collect::<Vec<_>>();
        let real = models.each_ref().map(|model| model.canonicalize().unwrap());
        let listed = cache.list().unwrap();
        assert_eq!(named(&listed), [real[0].clone(), real[2].clone(), real[1].clone()]);
        let removed = cache.shrink(listed[0].bytes * 2).unwrap();
        assert_eq!(named(&removed), [real[1].clone()]);
        assert_eq!(cache.shrink(0).unwrap().len(), 2);
        assert_eq!(std::fs::read_dir(cache.folder()).unwrap().count(), 0);
    }
}
