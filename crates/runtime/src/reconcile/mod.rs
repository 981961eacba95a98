//! The interface of a reconciler: `Reconciler`, `Plan`, `Context`, `Writer` and `ApiError`.

pub mod context;
pub mod error;
pub mod live;
pub mod plan;
pub mod reconciler;
pub mod writer;
