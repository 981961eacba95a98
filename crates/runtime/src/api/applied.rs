//! Cached forms that can be compared with a desired object.

use serde::Serialize;
use serde_json::{Value, json};

use crate::api::{
    object::Cached,
    plain::{Custom, Dependent, Fields, Spec},
};

/// A cached form of objects that a [`Plan`](crate::Plan) creates and changes.
///
/// Implemented for a [`Dependent`] whose fields implement `Serialize`, and for a [`Custom`] whose spec does.
pub trait Applied: Cached {
    /// The desired fields.
    type Desired: Serialize;
    /// Returns a manifest with these fields.
    ///
    /// # Errors
    /// If the fields cannot be serialized.
    fn manifest(desired: &Self::Desired) -> serde_json::Result<Value>;
    /// Returns the part of the object that the store keeps, as JSON. All fields that may be desired must be kept.
    fn actual(&self) -> Value;
}

impl<T: Fields + Serialize> Applied for Dependent<T> {
    type Desired = T;

    fn manifest(fields: &T) -> serde_json::Result<Value> {
        serde_json::to_value(fields)
    }

    fn actual(&self) -> Value {
        Self::manifest(&self.fields).unwrap_or_default()
    }
}

/// The spec only. An invalid spec counts as missing.
impl<S: Spec + Serialize> Applied for Custom<S> {
    type Desired = S;

    fn manifest(spec: &S) -> serde_json::Result<Value> {
        Ok(json!({ "spec": serde_json::to_value(spec)? }))
    }

    fn actual(&self) -> Value {
        let spec = self.spec.as_ref().ok();
        spec.and_then(|spec| Self::manifest(spec).ok())
            .unwrap_or_default()
    }
}
