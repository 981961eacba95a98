//! What the stores keep of a Foo and of a Deployment. A Foo whose spec or status has another shape is kept with the
//! error, so that it can be reported on it and the others are not held up.

mod deployment;
mod foo;
#[cfg(test)]
mod tests;

pub use self::{
    deployment::{
        CONTAINER, Deployment, GENERATION_ANNOTATION, Labels, MADE_FOR_ANNOTATION, Progress,
        made_for,
    },
    foo::Foo,
};
