//! Declaration of resource types that may not be installed.

use std::sync::Arc;

use super::ControllerBuilder;
use crate::{
    api::object::{Cached, Primary},
    cache::store::Store,
    reconcile::writer::Writer,
};

/// Declares a resource type that may not be installed: see [`ControllerBuilder::if_installed`].
pub struct IfInstalled<'b, 'a, P> {
    builder: &'b mut ControllerBuilder<'a, P>,
}

impl<'a, P: Primary> ControllerBuilder<'a, P> {
    /// Declares the next resource type as optional: its CRD or its API service may be missing, appear and vanish.
    ///
    /// - A replica is ready and serves its objects without the type. While the type is missing, its store is empty. A plan asks
    ///   [`Writer::is_installed`] or [`Store::is_installed`]. A step that creates or changes an object of a missing type fails
    ///   with [`ApiError::NotInstalled`](crate::ApiError::NotInstalled), without a request.
    /// - The type counts as installed once the API server has listed its objects. All objects of the controllers that use it
    ///   are then reconciled, after more urgent work. Before the first reconcile, the type is listed or known to be missing.
    /// - The type has vanished when a watch of it fails with 404. Its objects are then removed from the store, and their owners
    ///   are reconciled.
    /// - While the type is missing, its list is tried again without delay when its CRD changes, else after delays that grow to 5
    ///   minutes. A watch of the CRD reports its changes. It needs the permission to watch the
    ///   `customresourcedefinitions` of the type's name. The permission is optional, and an aggregated API has no CRD.
    /// - Permissions to write the type are reviewed by `doctor` only.
    ///
    /// ```no_run
    /// # use operator_runtime::{ControllerBuilder, Custom, Dependent, Fields, Kind, Spec, Status, Writer};
    /// # #[derive(Clone, Debug, PartialEq, serde::Deserialize)] struct Widget {}
    /// # impl Spec for Widget { const KIND: Kind = Kind::custom("example.com", "v1", "Widget", "widgets"); type Status = Status; }
    /// # #[derive(Clone, Debug, Default, PartialEq, Hash, serde::Serialize, serde::Deserialize)] struct Monitor {}
    /// # impl Fields for Monitor {
    /// #     const KIND: Kind = Kind::custom("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors");
    /// # }
    /// fn monitors(builder: &mut ControllerBuilder<'_, Custom<Widget>>) -> Writer<Dependent<Monitor>> {
    ///     builder.if_installed().owns()
    /// }
    /// ```
    pub fn if_installed(&mut self) -> IfInstalled<'_, 'a, P> {
        IfInstalled { builder: self }
    }
}

impl<P: Primary> IfInstalled<'_, '_, P> {
    /// Like [`ControllerBuilder::owns`], for a type that may be missing.
    ///
    /// # Panics
    /// See [`ControllerBuilder::owns`]. Also if another controller requires the type, or if only its
    /// [referenced](crate::Select::referenced_only) objects are watched.
    #[must_use]
    pub fn owns<V: Cached>(self) -> Writer<V> {
        self.builder.own(true)
    }

    /// Like [`ControllerBuilder::watches`], for a type that may be missing.
    ///
    /// # Panics
    /// See [`ControllerBuilder::watches`], and [`owns`](Self::owns).
    #[must_use]
    pub fn watches<V: Cached>(self) -> Arc<Store<V>> {
        Arc::clone(&self.builder.dependent::<V>(true, true).store)
    }
}
