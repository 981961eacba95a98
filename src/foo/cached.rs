//! The cached forms of Foos and Deployments.
//!
//! A Foo with an undecodable spec is cached with the error. The error is reported in its status, and other Foos are not
//! affected.

mod deployment;
mod foo;
mod pool;
mod status;
#[cfg(test)]
mod tests;

pub use self::{
    deployment::{
        CONTAINER, Deployment, GENERATION_ANNOTATION, Labels, MADE_FOR_ANNOTATION, Progress,
        made_for,
    },
    foo::Foo,
};
