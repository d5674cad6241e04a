//! State of a session: contents that entries are given, and whose next contents they give.
//!
//! A state begins as zeros, a growing one without positions. Its other extents are those of the entry's inputs; one that no
//! input tells is 0.

use crate::error::RunError;
use crate::steps::Contents;
use crate::versions::{PageMemory, SpillFolder, Version, VersionError};
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::StateRecord;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Contents of the states that a run or the caller has set, by their numbers.
pub(crate) type States = BTreeMap<u32, Contents>;

/// The states of one session, which the others of its model may spill.
#[derive(Clone)]
pub(crate) struct SessionStates(Arc<Mutex<States>>);

impl SessionStates {
    pub(crate) fn lock(&self) -> MutexGuard<'_, States> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The states of all sessions of a model, for as long as these live.
#[derive(Default)]
pub(crate) struct AllStates {
    sessions: Mutex<Vec<Weak<Mutex<States>>>>,
}

impl AllStates {
    /// Nobody who holds this locks the states of a session, or is made to wait for disks.
    fn sessions(&self) -> MutexGuard<'_, Vec<Weak<Mutex<States>>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of another session.
    pub(crate) fn add(&self, states: States) -> SessionStates {
        let states = Arc::new(Mutex::new(states));
        let mut sessions = self.sessions();
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&states));
        SessionStates(states)
    }

    /// Moves full pages to the spill file as [`spill`] does: of the sessions that do not run first, then of those that do.
    ///
    /// # Errors
    /// [`VersionError::Spill`] where the file cannot be made or written.
    pub(crate) fn spill(
        &self,
        running: &[&SessionStates],
        wanted: u64,
        folder: &SpillFolder,
    ) -> Result<u64, VersionError> {
        let sessions: Vec<Arc<_>> = self.sessions().iter().filter_map(Weak::upgrade).collect();
        let sessions: Vec<SessionStates> = sessions.into_iter().map(SessionStates).collect();
        let runs = |session: &SessionStates| running.iter().any(|running| Arc::ptr_eq(&session.0, &running.0));
        let mut moved = 0;
        for session in sessions.iter().filter(|session| !runs(session)).chain(running.iter().copied()) {
            moved += spill(&session.lock(), wanted.saturating_sub(moved), folder)?;
        }
        Ok(moved)
    }
}

/// The first contents of a state that an entry takes as this type, at the dimensions that the given inputs bind.
///
/// # Errors
/// [`RunError::State`] where there is no memory for it, or its rank is not known.
pub(crate) fn initial(
    state: &StateRecord,
    kind: &Type,
    bindings: &Bindings,
    memory: &dyn PageMemory,
) -> Result<Contents, RunError> {
    let failure = |reason: String| RunError::State { name: state.name.clone(), reason };
    let value: Value = match kind {
        Type::Tensor { dtype, shape: Shape::Ranked(dims) } => {
            let extents = dims.iter().enumerate().map(|(axis, dim)| {
                if state.growth.is_some_and(|growth| growth.axis as usize == axis && !growth.overwritten) {
                    return 0;
                }
                // What no input tells follows from earlier runs.
                extent(dim, bindings).unwrap_or(0)
            });
            let shape: Vec<usize> = extents.collect();
            if let Some(growth) = state.growth {
                let version = match growth.overwritten {
                    true => Version::zeros(*dtype, &shape, growth, memory),
                    false => Version::empty(*dtype, &shape, growth),
                };
                return version.map(Contents::Version).map_err(|error| failure(error.to_string()));
            }
            Tensor::zeros(*dtype, &shape).map_err(|error| failure(error.to_string()))?.into()
        }
        Type::Tensor { shape: Shape::Unranked, .. } => return Err(failure("its rank is unknown".to_string())),
        Type::Sequence(element) => Value::Sequence { element: (**element).clone(), items: Vec::new() },
        Type::Optional(element) => Value::Optional { element: (**element).clone(), value: None },
        Type::Map { key, element } => Value::Map { key: *key, element: (**element).clone(), entries: Vec::new() },
    };
    Ok(Contents::Value(value))
}

fn extent(dim: &Dim, bindings: &Bindings) -> Option<usize> {
    usize::try_from(dim.evaluate(bindings).ok()?).ok()
}

/// Contents for a state, in pages of `memory` where it grows and in memory of its own where it does not.
///
/// # Errors
/// [`RunError::State`] where the value does not have the type of the state, or there is no memory for it.
pub(crate) fn contents(state: &StateRecord, value: Value, memory: &dyn PageMemory) -> Result<Contents, RunError> {
    let failure = |reason: String| RunError::State { name: state.name.clone(), reason };
    let kind = value.kind();
    let fits = match (kind.as_tensor(), state.kind.as_tensor()) {
        (Some((found, shape)), Some((expected, state_shape))) => {
            found == expected && state_shape.rank().is_none_or(|rank| Some(rank) == shape.rank())
        }
        (None, None) => kind == state.kind,
        (Some(_), None) | (None, Some(_)) => false,
    };
    if !fits {
        return Err(failure(format!("{kind} is no {}", state.kind)));
    }
    let (Some(growth), Value::Tensor(tensor)) = (state.growth, &value) else { return Ok(Contents::Value(value)) };
    let start = Version::empty(tensor.dtype(), tensor.shape(), growth);
    let version = start.and_then(|start| start.append(tensor, memory));
    version.map(Contents::Version).map_err(|error| failure(error.to_string()))
}

/// Moves full pages of state to the spill file, from the first of each state on, until `wanted` bytes are moved or none is
/// left; gives how many bytes were.
///
/// # Errors
/// [`VersionError::Spill`] where the file cannot be made or written.
pub(crate) fn spill(states: &States, wanted: u64, folder: &SpillFolder) -> Result<u64, VersionError> {
    let versions: Vec<&Version> = versions(states).collect();
    let mut moved = 0;
    while moved < wanted {
        // A page of each state in turn, so that all of them are spilled as far.
        let before = moved;
        for version in &versions {
            if moved < wanted {
                moved += version.spill(1, folder)?;
            }
        }
        if moved == before {
            break;
        }
    }
    Ok(moved)
}

/// Bytes that steps read back from the spill file at a time: as much as the keys and the values of one attention have there.
pub(crate) fn read_back_bytes(states: &States) -> u64 {
    2 * versions(states).map(|version| version.spilled_bytes() as u64).max().unwrap_or(0)
}

fn versions(states: &States) -> impl Iterator<Item = &Version> {
    states.values().filter_map(|contents| match contents {
        Contents::Version(version) => Some(version),
        Contents::Value(_) => None,
    })
}

/// The value in memory that is charged to the budget, where it is a tensor of numbers.
///
/// # Errors
/// [`RunError::Memory`] where the budget has no room.
pub(crate) fn charged(value: Value, pages: &dyn PageMemory) -> Result<Value, RunError> {
    let Value::Tensor(tensor) = &value else { return Ok(value) };
    if tensor.dtype() == DType::String || tensor.count() == 0 {
        return Ok(value);
    }
    let bytes = tensor.bytes();
    let no_room = || RunError::Memory { bytes: bytes.len() as u64 };
    let mut buffer = pages.page(bytes.len()).map_err(|_| no_room())?;
    buffer.bytes_mut().ok_or_else(no_room)?[..bytes.len()].copy_from_slice(bytes);
    let copy = Tensor::over(tensor.dtype(), tensor.shape(), Arc::from(buffer)).map_err(|_| no_room())?;
    Ok(copy.into())
}
