//! Compiled files that are kept for later: a model that is run as `.onnx` again is not compiled again.
//!
//! What is kept lies in a folder of the user (see [`Cache::of_user`]), under a name that is a hash of all that it is made from:
//! the program, the options, what each model is without its large tensors, and each file that these lie in: one of up to
//! 16 MiB by its contents, a larger one by length, times and identity on its disk. So a model is found wherever it lies, and
//! one that has changed is another. A record beside each file says for people which models it was made from.
//!
//! What calibration showed is kept in the same way (`results`).

mod key;
mod results;

use crate::compile::{Calibration, CompileOptions, Compiled, Source};
use crate::files::SourceFile;
use crate::files::unfinished::remove_left_over;
use ipuc_formats::model::{Manifest, read_manifest};
use key::Key;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Names the folder in place of the system's; there is no cache where it is empty.
pub const FOLDER_VARIABLE: &str = "IPUC_CACHE";
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

/// What a file was made from.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Names of the models, for people.
    models: Vec<PathBuf>,
    /// BLAKE3 of the manifest of a compiled file, or of what is in another.
    root_hash: [u8; 32],
    /// Real paths of all files.
    inputs: Vec<PathBuf>,
}

/// Where a compiled file is written to be kept.
#[derive(Debug)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    key: Key,
    options: CompileOptions,
    /// Before any input was read.
    begun: SystemTime,
}

/// What models are calibrated with.
#[derive(Debug, Clone, Default)]
pub struct Examples {
    /// Files, and folders of them.
    pub paths: Vec<PathBuf>,
    /// What else decides what is run, as text.
    pub choices: String,
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
        let Key { name, inputs } = key::key(sources, options, &[], "").ok()?;
        let path = self.compiled(&name);
        let record = read_record(&path.with_extension("json")).ok()?;
        let (superblock, manifest) = read_manifest(&SourceFile::open(&path).ok()?).ok()?;
        if superblock.root_hash != record.root_hash {
            return None;
        }
        note_use(&path);
        Some(Kept { path, manifest, inputs: inputs.into_iter().collect() })
    }

    /// Where the compiled file of these models is to be written, before they are read; the folder is made.
    ///
    /// # Errors
    /// Where a model is not there, or the folder cannot be made.
    pub fn place(&self, sources: &[Source], options: &CompileOptions) -> io::Result<Place> {
        let begun = SystemTime::now();
        let key = key::key(sources, options, &[], "")?;
        std::fs::create_dir_all(&self.folder)?;
        remove_left_over(&self.folder);
        Ok(Place { path: self.compiled(&key.name), key, options: options.clone(), begun })
    }

    /// Keep the file at a place, which these models were compiled into; what was used least recently leaves.
    ///
    /// Where an input was changed less than two seconds before it was read, or since, the file is not found later: whether
    /// it holds that change cannot be told.
    ///
    /// # Errors
    /// Where the record cannot be written.
    pub fn keep(&self, place: &Place, sources: &[Source], compiled: &Compiled) -> io::Result<()> {
        let inputs = compiled.inputs.iter().map(|path| path.canonicalize()).collect::<io::Result<Vec<_>>>()?;
        let known = inputs.iter().all(|path| place.key.inputs.contains(path));
        let unchanged = known && key::key(sources, &place.options, &[], "")? == place.key;
        if !unchanged || !are_settled(&inputs, place.begun, SETTLED)? {
            return Ok(());
        }
        let models = sources.iter().map(|source| source.path.canonicalize()).collect::<io::Result<_>>()?;
        self.write_record(&place.path, &Record { models, root_hash: compiled.emitted.root_hash, inputs })?;
        self.remove_beyond(MOST_BYTES, Some(&place.path)).map(|_| ())
    }

    fn write_record(&self, path: &Path, record: &Record) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.persist(path.with_extension("json")).map_err(|error| error.error)?;
        Ok(())
    }

    /// What calibration of these models with these examples showed, where nothing of it has changed.
    #[must_use]
    pub fn find_calibration(
        &self,
        sources: &[Source],
        options: &CompileOptions,
        examples: &Examples,
    ) -> Option<Calibration> {
        let path = self.place_calibration(sources, options, examples).ok()?.path;
        let calibration = results::read(&path)?;
        note_use(&path);
        Some(calibration)
    }

    /// Where what calibration shows is kept, before examples are read.
    ///
    /// # Errors
    /// Where a model or an example is not there, or the folder cannot be made.
    pub fn place_calibration(
        &self,
        sources: &[Source],
        options: &CompileOptions,
        examples: &Examples,
    ) -> io::Result<Place> {
        let begun = SystemTime::now();
        let mut paths = examples.paths.clone();
        // A text is read by the tokenizer that lies beside the model.
        let beside = sources.iter().filter_map(|source| Some(source.path.parent()?.join("tokenizer.json")));
        paths.extend(beside.filter(|path| path.is_file()));
        let key = key::key(sources, options, &paths, &format!("calibration {}", examples.choices))?;
        std::fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(&key.name).with_extension(results::EXTENSION);
        Ok(Place { path, key, options: options.clone(), begun })
    }

    /// Keep what calibration showed; what was used least recently leaves. As with compiled files, nothing is kept where an input
    /// was changed shortly before, or since.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn keep_calibration(
        &self,
        place: &Place,
        sources: &[Source],
        examples: &Examples,
        calibration: &Calibration,
    ) -> io::Result<()> {
        let unchanged = self.place_calibration(sources, &place.options, examples)?.key == place.key;
        if !unchanged || !are_settled(&place.key.inputs, place.begun, SETTLED)? {
            return Ok(());
        }
        let Some(root_hash) = results::write(&self.folder, &place.path, calibration)? else { return Ok(()) };
        let models = sources.iter().map(|source| source.path.canonicalize()).collect::<io::Result<_>>()?;
        let record = Record { models, root_hash, inputs: place.key.inputs.iter().cloned().collect() };
        self.write_record(&place.path, &record)?;
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
            if path.extension().is_none_or(|extension| extension != "ipu" && extension != results::EXTENSION) {
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

    fn compiled(&self, name: &str) -> PathBuf {
        self.folder.join(name).with_extension("ipu")
    }
}

/// Whether all files were changed this long before: what was changed later may have changed again without its time telling.
fn are_settled<'a>(
    files: impl IntoIterator<Item = &'a PathBuf>,
    begun: SystemTime,
    settled: Duration,
) -> io::Result<bool> {
    for path in files {
        let modified = std::fs::metadata(path)?.modified()?;
        if begun.duration_since(modified).is_ok_and(|age| age > settled) {
            continue;
        }
        return Ok(false);
    }
    Ok(true)
}

/// The time of the record tells when a file was used last; where it cannot be set, the file leaves earlier.
fn note_use(path: &Path) {
    let record = File::options().write(true).open(path.with_extension("json"));
    let _ = record.and_then(|file| file.set_modified(SystemTime::now()));
}

fn read_record(path: &Path) -> io::Result<Record> {
    let mut bytes = Vec::new();
    File::open(path)?.take(RECORD_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
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
        let elsewhere = folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::copy(&model, elsewhere.join("model.onnx")).unwrap();
        let found = cache.find(&sources(&elsewhere.join("model.onnx")), &options).unwrap();
        assert_eq!(
            (found.path, found.inputs),
            (kept.path.clone(), vec![elsewhere.canonicalize().unwrap().join("model.onnx")])
        );
        std::fs::copy(&model, elsewhere.join("other.onnx")).unwrap();
        assert!(cache.find(&sources(&elsewhere.join("other.onnx")), &options).is_none(), "the name is recorded");
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
            let record = cache.place(&sources(model), &options).unwrap().path.with_extension("json");
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
