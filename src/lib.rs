//! ipuc.
