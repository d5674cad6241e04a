//! Moving elements, indexing.
