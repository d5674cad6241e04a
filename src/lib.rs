//! ipuc.

pub mod files;
