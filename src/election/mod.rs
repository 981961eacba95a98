//! Who may act.

pub mod fence;
mod term;

pub use term::{Clock, Term};
