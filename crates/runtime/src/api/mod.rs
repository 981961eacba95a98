//! Kubernetes vocabulary: names, resource types, cached forms and errors. No I/O, no clock.

pub mod applied;
pub mod control;
pub mod conversion;
pub mod crd;
pub mod difference;
pub mod exists;
pub mod failure;
pub mod key;
pub mod kind;
pub mod managed_fields;
#[rustfmt::skip] // generated
mod merge_keys;
pub mod names;
pub mod object;
pub mod panic;
pub mod plain;
pub mod reference;
pub mod reported;
pub mod select;
pub mod status;
