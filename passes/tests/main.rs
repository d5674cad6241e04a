//! The tests of this crate as its users see it, one program. `cargo test -p ipuc-passes --test all emission` runs those of
//! `emission`.

mod cross_check;
mod emission;
mod rounding;
mod text_form;
