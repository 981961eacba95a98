//! What is to be done.

pub mod queue;
