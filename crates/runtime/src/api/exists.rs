//! Cached form that keeps no field of an object.

use std::{fmt::Debug, hash::Hasher, marker::PhantomData};

use serde::Deserialize;

use crate::api::{
    kind::{Kind, Scope},
    object::{Cached, Meta, Metadata},
};

/// Existence of an object of the built-in type `K`, for a reference to it. The API server sends its metadata only
/// (`PartialObjectMetadata`), and the store keeps the name and the UID.
///
/// A change of the object enqueues no referrer, because the store keeps no field. Its creation, deletion and replacement do.
#[derive(Clone, Debug, PartialEq)]
pub struct Exists<K> {
    uid: Box<str>,
    kind: PhantomData<fn() -> K>,
}

/// The JSON of an [`Exists`].
#[derive(Deserialize)]
pub struct ExistsWire {
    metadata: Metadata,
}

impl ExistsWire {
    pub(crate) fn into_meta(self) -> Meta {
        self.metadata.into_meta()
    }
}

impl<K> Cached for Exists<K>
where
    K: k8s_openapi::Resource<Scope: Scope> + Clone + Debug + PartialEq + 'static,
{
    type Wire = ExistsWire;
    const KIND: Kind = Kind::of::<K>();
    const METADATA_ONLY: bool = true;

    fn decode(mut wire: ExistsWire) -> (Meta, Self) {
        let exists = Self {
            uid: std::mem::take(&mut wire.metadata.uid),
            kind: PhantomData,
        };
        (wire.metadata.into_meta(), exists)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn content(&self, _: &mut impl Hasher) {}
}
