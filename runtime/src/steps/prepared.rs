//! What a step has worked out from the shapes of its operands, kept for its next run: a run has the shapes of the one before it
//! most of the time.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// The place of one step.
#[derive(Default)]
pub struct Prepared(Mutex<Option<Kept>>);

/// What was worked out from shapes.
struct Kept {
    shapes: Box<[Box<[usize]>]>,
    made: Arc<dyn Any + Send + Sync>,
}

impl Prepared {
    /// What `make` gives, which an earlier call may have left here for the same shapes.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn get<T: Any + Send + Sync, E>(
        &self,
        shapes: &[&[usize]],
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock()
            .as_ref()
            .filter(|kept| kept.shapes.iter().map(Box::as_ref).eq(shapes.iter().copied()))
            .map(|kept| kept.made.clone());
        if let Some(kept) = kept.and_then(|kept| kept.downcast::<T>().ok()) {
            return Ok(kept);
        }
        let made = Arc::new(make()?);
        *lock() = Some(Kept { shapes: shapes.iter().map(|&shape| shape.into()).collect(), made: made.clone() });
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_shapes_is_worked_out_once() {
        let prepared = Prepared::default();
        let mut made = 0;
        let mut get = |shapes: &[&[usize]]| {
            let make = || {
                made += 1;
                if shapes.is_empty() { Err("no shape") } else { Ok(made) }
            };
            prepared.get(shapes, make).map(|kept: Arc<i32>| *kept)
        };
        let (square, row): (&[usize], &[usize]) = (&[2, 2], &[2]);
        assert_eq!(get(&[square, row]), Ok(1));
        assert_eq!(get(&[square, row]), Ok(1));
        assert_eq!(get(&[row, square]), Ok(2));
        assert_eq!(get(&[]), Err("no shape"));
        assert_eq!(get(&[row, square]), Ok(2));
        assert_eq!(get(&[row]), Ok(4));
        assert_eq!(*prepared.get(&[row], || Ok::<_, ()>("another type".to_string())).unwrap(), "another type");
    }
}
