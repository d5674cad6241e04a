//! Files and folders that must not outlive the program unfinished.
//!
//! Each is removed when its owner is dropped; a program that is interrupted drops nothing, and calls [`remove_all`]
//! instead. What a killed program has left is found by a later one: its owner held a lock, which went with it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static PATHS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Names of unfinished files and folders begin with this, ..
pub const PREFIX: &str = ".ipuc-";
/// .. and end with this.
pub const SUFFIX: &str = ".partial";

/// A path that is remembered for as long as this lives.
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
    _locked: Option<File>,
}

impl Unfinished {
    /// Remember a folder, and lock it against those who remove what is left over; where the system opens no folders
    /// (Windows), nobody removes them either.
    ///
    /// # Errors
    /// `NotFound` where somebody has removed it before it was locked.
    pub fn remember(folder: &Path) -> io::Result<Self> {
        Unfinished::locked(folder, File::open(folder).ok())
    }

    /// The same of a file, by the handle that it is written through: on Windows a lock keeps all other handles from writing.
    ///
    /// # Errors
    /// `NotFound` where somebody has removed it before it was locked; what the system reports.
    pub fn remember_file(path: &Path, file: &File) -> io::Result<Self> {
        Unfinished::locked(path, Some(file.try_clone()?))
    }

    fn locked(path: &Path, file: Option<File>) -> io::Result<Self> {
        PATHS.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
        let locked = file.filter(|file| file.try_lock().is_ok());
        let unfinished = Unfinished { path: path.to_owned(), _locked: locked };
        if path.exists() { Ok(unfinished) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        PATHS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

/// Remove everything that is remembered; for a program that is about to end.
pub fn remove_all() {
    PATHS.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|path| remove(path));
}

/// Remove what programs that were killed have left in a folder.
pub fn remove_left_over(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let unfinished = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        // A link may lead anywhere.
        let followed = entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir());
        if !unfinished || !followed {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            remove(&entry.path());
        }
    }
}

fn remove(path: &Path) {
    // Nothing can be done about a file that cannot be removed, nor told to anybody.
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_remembered_until_they_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "").unwrap();
        let remembered = || PATHS.lock().unwrap().contains(&path);
        let unfinished = Unfinished::remember_file(&path, &File::open(&path).unwrap()).unwrap();
        assert!(remembered());
        drop(unfinished);
        assert!(!remembered());
        let error = Unfinished::remember(&folder.path().join("missing")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_nobody_holds_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in [".ipuc-held.partial", ".ipuc-left.partial", "model.ipu", ".ipuc-other"] {
            std::fs::write(path(name), "").unwrap();
        }
        std::fs::create_dir(path(".ipuc-folder.partial")).unwrap();
        std::fs::write(path(".ipuc-folder.partial").join("model.ipu"), "").unwrap();
        let held = path(".ipuc-held.partial");
        let held = Unfinished::remember_file(&held, &File::open(&held).unwrap()).unwrap();
        remove_left_over(folder.path());
        let names = || {
            let entries = std::fs::read_dir(folder.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        let expected = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        assert_eq!(names(), expected(&[".ipuc-held.partial", ".ipuc-other", "model.ipu"]));
        drop(held);
        remove_left_over(folder.path());
        assert_eq!(names(), expected(&[".ipuc-other", "model.ipu"]));
    }
}
