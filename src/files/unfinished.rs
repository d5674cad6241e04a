//! Files and folders that must not outlive the program unfinished.
//!
//! Each is removed when its owner is dropped; a program that is interrupted drops nothing, and calls [`remove_all`]
//! instead.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static PATHS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A path that is remembered for as long as this lives.
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// Remember a file or folder.
    #[must_use]
    pub fn remember(path: &Path) -> Self {
        PATHS.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
        Unfinished { path: path.to_owned() }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        PATHS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.path);
    }
}

/// Remove everything that is remembered; for a program that is about to end.
pub fn remove_all() {
    remove(&PATHS.lock().unwrap_or_else(PoisonError::into_inner));
}

fn remove(paths: &BTreeSet<PathBuf>) {
    for path in paths {
        // Nothing can be done about a file that cannot be removed, nor told to anybody.
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_remembered_until_they_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let remembered = || PATHS.lock().unwrap().contains(&path);
        let unfinished = Unfinished::remember(&path);
        assert!(remembered());
        drop(unfinished);
        assert!(!remembered());
    }

    #[test]
    fn files_and_folders_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, inner) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("c"), "").unwrap();
        remove(&BTreeSet::from([file.clone(), inner.clone(), folder.path().join("missing")]));
        assert!(!file.exists() && !inner.exists());
    }
}
