//! Kubernetes vocabulary: names, resource types, cached forms and errors. No I/O, no clock.

#[cfg(feature = "operator")]
pub(crate) mod applied;
#[cfg(feature = "operator")]
pub(crate) mod control;
#[cfg(feature = "operator")]
pub(crate) mod conversion;
#[cfg(feature = "operator")]
pub(crate) mod crd;
#[cfg(feature = "operator")]
pub(crate) mod difference;
#[cfg(feature = "operator")]
pub(crate) mod exists;
#[cfg_attr(not(feature = "operator"), allow(dead_code, reason = "vocabulary"))]
pub(crate) mod failure;
#[cfg_attr(not(feature = "operator"), allow(dead_code, reason = "vocabulary"))]
pub(crate) mod key;
#[cfg_attr(not(feature = "operator"), allow(dead_code, reason = "vocabulary"))]
pub(crate) mod kind;
#[cfg(feature = "operator")]
pub(crate) mod managed_fields;
#[cfg(feature = "operator")]
#[rustfmt::skip] // generated
mod merge_keys;
#[cfg_attr(not(feature = "operator"), allow(dead_code, reason = "vocabulary"))]
pub mod names;
#[cfg(feature = "operator")]
pub(crate) mod object;
#[cfg(feature = "operator")]
pub(crate) mod panic;
#[cfg(feature = "operator")]
pub(crate) mod plain;
#[cfg(feature = "operator")]
pub(crate) mod reference;
#[cfg(feature = "operator")]
pub(crate) mod reported;
#[cfg(feature = "operator")]
pub(crate) mod select;
#[cfg_attr(not(feature = "operator"), allow(dead_code, reason = "vocabulary"))]
pub(crate) mod status;
