//! Kubernetes vocabulary: names, resource types, cached forms and errors. No I/O, no clock.

pub(crate) mod applied;
pub(crate) mod control;
pub(crate) mod conversion;
pub(crate) mod crd;
pub(crate) mod difference;
pub(crate) mod exists;
pub(crate) mod failure;
pub(crate) mod key;
pub(crate) mod kind;
pub(crate) mod managed_fields;
#[rustfmt::skip] // generated
mod merge_keys;
pub mod names;
pub(crate) mod object;
pub(crate) mod panic;
pub(crate) mod plain;
pub(crate) mod reference;
pub(crate) mod reported;
pub(crate) mod select;
pub(crate) mod status;
