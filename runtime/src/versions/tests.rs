//! The law of versions: appending is concatenating, and no version is changed by what happens to others.

use super::*;
use ipuc_codes::aligned::{AlignedBytes, Line};
use ipuc_formats::dtype::DType;
use ipuc_formats::model::Growth;
use ipuc_formats::ops::RowScheme;
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
        let memory = AlignedBytes::<Line>::copied(&vec![0xee; bytes]).unwrap();
        Ok(Box::new(memory))
    }
}

/// `[2, count, 3]` of bytes that follow `seed`.
fn tensor(count: usize, seed: u8) -> Tensor {
    let elements: Vec<u8> = (0..2 * count * 3).map(|at| seed.wrapping_mul(31).wrapping_add(at as u8)).collect();
    Tensor::from_elements(&[2, count, 3], &elements).unwrap()
}

fn empty_version() -> Version {
    Version::empty(DType::U8, &[2, 0, 3], Growth { axis: 1, page: 4, rows: None, overwritten: false }).unwrap()
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
        let empty = empty_version();
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
    let start = empty_version().append(&tensor(10, 1), &memory).unwrap();
    assert_eq!(memory.left.get(), 97);
    let first = start.append(&tensor(1, 2), &memory).unwrap();
    assert_eq!(memory.left.get(), 97, "the first appends in place");
    let second = start.append(&tensor(1, 3), &memory).unwrap();
    assert_eq!(memory.left.get(), 96, "the second copies the last page");
    assert_eq!((first.length(), second.length(), start.length()), (11, 11, 10));
}

#[test]
fn what_is_forgotten_cannot_be_read_and_the_rest_keeps_its_places() {
    let (memory, folder) = (Heap::new(100), SpillFolder::new(None));
    let new = tensor(10, 1);
    let whole = empty_version().append(&new, &memory).unwrap();
    let mut version = whole.clone();
    version.forget_before(3);
    assert_eq!((version.first(), version.held_bytes()), (0, 72), "no page is behind");
    version.forget_before(9);
    assert_eq!((version.first(), version.length(), version.held_bytes()), (8, 10, 24));
    version.forget_before(5);
    assert_eq!(version.first(), 8, "it stays forgotten");
    let copied = Tensor::zeros(DType::U8, &[2, 10, 3]).unwrap();
    let refused = version.copied_into(copied, &memory).unwrap_err();
    assert!(matches!(refused, VersionError::Forgotten { wanted: 0, first: 8 }), "{refused}");
    assert!(matches!(version.require(7), Err(VersionError::Forgotten { wanted: 7, first: 8 })));
    version.require(8).unwrap();
    assert_eq!(contents(&whole), [&new.bytes()[..30], &new.bytes()[30..]], "other versions keep their pages");
    // What is appended stands where it stands without forgetting.
    let longer = version.append(&tensor(3, 2), &memory).unwrap();
    let expected = whole.append(&tensor(3, 2), &memory).unwrap();
    let held = [longer.held(&memory).unwrap(), expected.held(&memory).unwrap()];
    let pages = held.each_ref().map(|held| held.rows::<u8>().unwrap());
    assert_eq!(pages[0][..2], [Vec::<&[u8]>::new(), Vec::new()]);
    assert_eq!(pages[0][2..], pages[1][2..]);
    assert_eq!(longer.spill(1000, &folder).unwrap(), 24, "of the full pages one is there");
    assert_eq!(longer.truncated(7).map(|shorter| shorter.length()), None);
    let shorter = longer.truncated(9).unwrap();
    assert_eq!((shorter.length(), shorter.first(), shorter.held_bytes()), (9, 8, 24));
    let nothing = longer.truncated(0).unwrap();
    assert_eq!((nothing.length(), nothing.first(), nothing.held_bytes()), (0, 0, 0));
    // What is stored of it goes on at the same place.
    let mut again = empty_version().behind_forgotten(2).unwrap();
    for (piece, positions) in longer.pieces(&memory).zip([4, 1]) {
        again = again.append_stored(&piece.unwrap(), positions, &memory).unwrap();
    }
    assert_eq!((again.length(), again.first()), (13, 8));
    assert_eq!(again.held(&memory).unwrap().rows::<u8>().unwrap(), pages[0]);
    let refused = empty_version().behind_forgotten(usize::MAX).err();
    assert!(matches!(refused, Some(VersionError::Mismatch { .. })), "{refused:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let memory = Heap::new(1);
    let version = empty_version();
    let other = Tensor::from_elements(&[2, 1, 4], &[0u8; 8]).unwrap();
    let Err(VersionError::Mismatch { expected, found }) = version.append(&other, &memory) else { panic!() };
    assert_eq!((expected.as_str(), found.as_str()), ("u8[2, 0, 3]", "u8[2, 1, 4]"));
    for (dtype, axis, positions) in [(DType::U8, 3, 4), (DType::U8, 1, 0), (DType::I4, 1, 4), (DType::String, 1, 4)] {
        let refused =
            Version::empty(dtype, &[2, 0, 3], Growth { axis, page: positions, rows: None, overwritten: false }).err();
        assert!(matches!(refused, Some(VersionError::Mismatch { .. })), "{dtype} {axis} {positions}");
    }
    let rounded = Growth { axis: 1, page: 4, rows: Some(RowScheme::I8), overwritten: false };
    let Some(VersionError::Mismatch { expected, .. }) = Version::empty(DType::U8, &[2, 0, 3], rounded).err() else {
        panic!("u8 is rounded")
    };
    assert_eq!(expected, "rows of f32, which can be rounded");
}

#[test]
fn a_folder_that_does_not_exist_is_named() {
    let folder = SpillFolder::new(Some("/nonexistent/folder".into()));
    let version = empty_version().append(&tensor(4, 1), &Heap::new(1)).unwrap();
    let error = version.spill(1, &folder).unwrap_err().to_string();
    assert!(error.starts_with("cannot make the file of spilled state in /nonexistent/folder: "), "{error}");
}

/// Rows are rounded once, when they are appended; a copy, a spilled page and what is appended as it was stored have the same bits.
#[test]
fn rounded_rows_are_the_concatenation_of_rounded_parts() {
    for (scheme, row_bytes) in [(RowScheme::F16, 10), (RowScheme::I8, 9)] {
        let (heap, folder) = (Heap::new(100), SpillFolder::new(None));
        let growth = Growth { axis: 1, page: 4, rows: Some(scheme), overwritten: false };
        let empty = version_of(growth);
        assert_eq!(empty.page_bytes(), 2 * 4 * row_bytes, "{scheme:?}");
        let (mut version, mut expected) = (empty.clone(), vec![Vec::new(); 2]);
        for count in [3, 1, 6, 0, 2] {
            let elements: Vec<f32> =
                (0..2 * count * 5).map(|at| (at as f32 * 1.37 + count as f32).sin() * 9.0).collect();
            version = version.append(&Tensor::from_elements(&[2, count, 5], &elements).unwrap(), &heap).unwrap();
            let mut rounded = elements.clone();
            scheme.round(&mut rounded, 5);
            assert!(count == 0 || rounded != elements, "{scheme:?} rounds nothing");
            for (row, expected) in expected.iter_mut().enumerate() {
                expected.extend_from_slice(&rounded[row * count * 5..][..count * 5]);
            }
        }
        version.spill(1, &folder).unwrap();
        let mut again = empty;
        for (piece, positions) in version.pieces(&heap).zip([4, 4, 4]) {
            again = again.append_stored(&piece.unwrap(), positions, &heap).unwrap();
        }
        for version in [version, again] {
            let copy = version.copied_into(Tensor::zeros(DType::F32, &[2, 12, 5]).unwrap(), &heap).unwrap();
            assert_eq!(copy.elements::<f32>().unwrap(), expected.concat(), "{scheme:?}");
        }
        let Err(VersionError::Mismatch { expected, found }) = version_of(growth).append_stored(&[0; 7], 1, &heap)
        else {
            panic!("{scheme:?}")
        };
        assert_eq!((expected, found.as_str()), (format!("1 positions of {} bytes", 2 * row_bytes), "7 bytes"));
    }
}

fn version_of(growth: Growth) -> Version {
    Version::empty(DType::F32, &[2, 0, 5], growth).unwrap()
}

#[test]
fn overwriting_copies_only_the_pages_that_it_touches() {
    let growth = Growth { axis: 1, page: 4, rows: None, overwritten: true };
    let heap = Heap::new(100);
    let start = Version::zeros(DType::U8, &[2, 10, 3], growth, &heap).unwrap();
    assert_eq!((start.length(), heap.left.get()), (10, 99), "all pages are one of zeros");
    let mut expected = vec![vec![0u8; 30]; 2];
    assert_eq!(contents(&start), expected);
    // The rows have places of their own; the last one is in the page that is not full.
    let (new, places) = (tensor(2, 7), [1, 9, 0, 2]);
    let next = start.overwrite(&new, &places, &heap).unwrap();
    assert_eq!(heap.left.get(), 97, "the first and the last page");
    for (at, &place) in places.iter().enumerate() {
        expected[at / 2][place * 3..][..3].copy_from_slice(&new.bytes()[at * 3..][..3]);
    }
    assert_eq!(contents(&next), expected);
    assert_eq!(contents(&start), vec![vec![0u8; 30]; 2], "the version before stays");
    let folder = SpillFolder::new(None);
    assert_eq!(next.spill(1000, &folder).unwrap(), 48, "two full pages");
    assert_eq!((next.spilled_bytes(), start.spilled_bytes()), (48, 24), "they share the page of zeros");
    assert_eq!(contents(&next.overwrite(&new, &places, &heap).unwrap()), expected);
    let Err(VersionError::Mismatch { expected, found }) = next.overwrite(&new, &[1, 10, 0, 2], &heap) else { panic!() };
    assert_eq!((expected.as_str(), found.as_str()), ("places of 4 positions below 10", "4 places"));
    let Err(VersionError::Memory { bytes: 24 }) = next.overwrite(&new, &places, &Heap::new(1)) else { panic!() };
}
