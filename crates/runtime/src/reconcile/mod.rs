//! The interface of a reconciler: `Reconciler`, `Plan`, `Context`, `Writer` and `ApiError`.

pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod live;
pub(crate) mod plan;
pub(crate) mod reconciler;
pub(crate) mod writer;
