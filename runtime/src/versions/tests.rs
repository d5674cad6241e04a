//! The law of versions: appending is concatenating, and no version is changed by what happens to others.

use super::*;
use aligned_vec::AVec;
use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::Tensor;
use proptest::prelude::*;
use std::cell::Cell;

/// Heap memory for so many pages.
struct Heap {
    left: Cell<usize>,
}

impl Heap {
    fn new(pages: usize) -> Heap {
        Heap { left: Cell::new(pages) }
    }
}

impl PageMemory for Heap {
    fn page(&self, bytes: usize) -> Result<Box<dyn Storage>, VersionError> {
        let left = self.left.get().checked_sub(1).ok_or(VersionError::Memory { bytes })?;
        self.left.set(left);
        let mut memory: AVec<u8, aligned_vec::ConstAlign<64>> = AVec::new(64);
        memory.resize(bytes, 0xee);
        Ok(Box::new(memory))
    }
}

/// `[2, count, 3]` of bytes that follow `seed`.
fn tensor(count: usize, seed: u8) -> Tensor {
    let elements: Vec<u8> = (0..2 * count * 3).map(|at| seed.wrapping_mul(31).wrapping_add(at as u8)).collect();
    Tensor::from_elements(&[2, count, 3], &elements).unwrap()
}

fn contents(version: &Version) -> Vec<Vec<u8>> {
    let copy = Tensor::zeros(version.dtype(), version.shape()).unwrap();
    let copy = version.copied_into(copy, &Heap::new(100)).unwrap();
    let bytes = copy.bytes();
    let length = version.length() * 3;
    let rows: Vec<Vec<u8>> = (0..2).map(|row| bytes[row * length..][..length].to_vec()).collect();
    // What attention reads is the same.
    let held = version.held(&Heap::new(100)).unwrap();
    let pages = held.rows::<u8>().unwrap();
    let joined: Vec<Vec<u8>> =
        (0..2).map(|row| pages.iter().flat_map(|page| page[row].iter().copied()).collect()).collect();
    assert_eq!(joined, rows);
    rows
}

#[derive(Debug, Clone)]
enum Action {
    Append {
        version: usize,
        count: usize,
        seed: u8,
    },
    /// An append for which there is no memory, or a part of it only.
    Fail {
        version: usize,
        count: usize,
        pages: usize,
    },
    Spill {
        version: usize,
        bytes: u64,
    },
    Drop {
        version: usize,
    },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (any::<usize>(), 0usize..9, any::<u8>())
            .prop_map(|(version, count, seed)| Action::Append { version, count, seed }),
        1 => (any::<usize>(), 5usize..20, 0usize..2)
            .prop_map(|(version, count, pages)| Action::Fail { version, count, pages }),
        1 => (any::<usize>(), 1u64..200).prop_map(|(version, bytes)| Action::Spill { version, bytes }),
        1 => any::<usize>().prop_map(|version| Action::Drop { version }),
    ]
}

proptest! {
    #[test]
    fn appending_concatenates_and_old_versions_stay(actions in prop::collection::vec(action(), 1..40)) {
        let folder = SpillFolder::new(None);
        let empty = Version::empty(DType::U8, &[2, 0, 3], 1, 4).unwrap();
        let mut versions: Vec<(Version, Vec<Vec<u8>>)> = vec![(empty, vec![Vec::new(); 2])];
        for action in actions {
            match action {
                Action::Append { version, count, seed } => {
                    let (version, expected) = &versions[version % versions.len()];
                    let new = tensor(count, seed);
                    let next = version.append(&new, &Heap::new(100)).unwrap();
                    let mut expected = expected.clone();
                    for (row, expected) in expected.iter_mut().enumerate() {
                        expected.extend(&new.bytes()[row * count * 3..][..count * 3]);
                    }
                    versions.push((next, expected));
                }
                Action::Fail { version, count, pages } => {
                    let (version, _) = &versions[version % versions.len()];
                    let needed = (version.length() + count).div_ceil(4) - version.length().div_ceil(4);
                    let result = version.append(&tensor(count, 1), &Heap::new(pages.min(needed - 1)));
                    let short = matches!(result, Err(VersionError::Memory { bytes: 24 }));
                    prop_assert!(short);
                }
                Action::Spill { version, bytes } => {
                    let (version, _) = &versions[version % versions.len()];
                    let before = version.spilled_bytes() as u64;
                    let moved = version.spill(bytes, &folder).unwrap();
                    prop_assert_eq!(version.spilled_bytes() as u64, before + moved);
                    // As many pages as it takes, or all that are full.
                    prop_assert!(moved < bytes + 24);
                    prop_assert!(moved >= bytes || version.spill(1, &folder).unwrap() == 0);
                }
                Action::Drop { version } => {
                    if versions.len() > 1 {
                        versions.swap_remove(version % versions.len());
                    }
                }
            }
            for (version, expected) in &versions {
                prop_assert_eq!(&contents(version), expected);
            }
        }
        drop(versions);
        prop_assert_eq!(folder.spilled_bytes(), 0);
    }
}

#[test]
fn a_fork_copies_only_the_last_page() {
    let memory = Heap::new(100);
    let start = Version::empty(DType::U8, &[2, 0, 3], 1, 4).unwrap().append(&tensor(10, 1), &memory).unwrap();
    assert_eq!(memory.left.get(), 97);
    let first = start.append(&tensor(1, 2), &memory).unwrap();
    assert_eq!(memory.left.get(), 97, "the first appends in place");
    let second = start.append(&tensor(1, 3), &memory).unwrap();
    assert_eq!(memory.left.get(), 96, "the second copies the last page");
    assert_eq!((first.length(), second.length(), start.length()), (11, 11, 10));
}

#[test]
fn what_does_not_fit_is_refused() {
    let memory = Heap::new(1);
    let version = Version::empty(DType::U8, &[2, 0, 3], 1, 4).unwrap();
    let other = Tensor::from_elements(&[2, 1, 4], &[0u8; 8]).unwrap();
    let Err(VersionError::Mismatch { expected, found }) = version.append(&other, &memory) else { panic!() };
    assert_eq!((expected.as_str(), found.as_str()), ("u8[2, 0, 3]", "u8[2, 1, 4]"));
    for (dtype, axis, positions) in [(DType::U8, 3, 4), (DType::U8, 1, 0), (DType::I4, 1, 4), (DType::String, 1, 4)] {
        let refused = Version::empty(dtype, &[2, 0, 3], axis, positions).err();
        assert!(matches!(refused, Some(VersionError::Mismatch { .. })), "{dtype} {axis} {positions}");
    }
}

#[test]
fn a_folder_that_does_not_exist_is_named() {
    let folder = SpillFolder::new(Some("/nonexistent/folder".into()));
    let version = Version::empty(DType::U8, &[2, 0, 3], 1, 4).unwrap().append(&tensor(4, 1), &Heap::new(1)).unwrap();
    let error = version.spill(1, &folder).unwrap_err().to_string();
    assert!(error.starts_with("cannot make the file of spilled state in /nonexistent/folder: "), "{error}");
}
