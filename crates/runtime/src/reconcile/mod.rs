//! The interface of a reconciler: `Reconciler`, `Context`, `Writer` and `ApiError`.

pub mod error;
pub mod reconciler;
pub mod writer;
