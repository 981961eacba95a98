//! The Deployments of earlier names. Decides which Deployment serves, which one is scaled, and which ones are deleted.

use std::sync::Arc;

use operator_runtime::{ApiError, Key, Snapshot};

use super::{
    cached::{Deployment, Foo},
    error::Error,
    plan::Desired,
    reconcile::{Correction, FooReconciler},
    status::{DeploymentState, Serving},
};

/// The writes of earlier Deployments, after the write of the specified Deployment.
pub enum FollowUp<'a> {
    /// Scale the Deployment that serves in place of the specified one.
    Scale(Correction<'a>),
    /// Delete the superseded Deployments, if there are any.
    Delete(Vec<(Key, Snapshot<Deployment>)>),
}

impl FooReconciler {
    /// Plans the writes of earlier Deployments. `deployed` is the result for the specified Deployment.
    pub(super) fn follow_up<'a>(
        &'a self,
        key: &'a Key,
        foo: &'a Foo,
        deployed: Result<&DeploymentState, &Error>,
    ) -> FollowUp<'a> {
        if let Some(correction) = self.unscaled(key, foo, deployed) {
            return FollowUp::Scale(correction);
        }
        FollowUp::Delete(deployed.map_or_else(|_| Vec::new(), |new| self.superseded(key, foo, new)))
    }

    /// Returns the Deployment that the status describes (see [`Serving`]). `deployed` takes precedence over the cache, which
    /// may be older.
    pub(super) fn serving(
        &self,
        key: &Key,
        foo: &Foo,
        deployed: Option<&DeploymentState>,
        error: Option<&Error>,
    ) -> Option<Serving> {
        let name = foo.spec.as_ref().map(|spec| &*spec.deployment_name);
        let wanted = key.sibling(name.unwrap_or_default());
        let view = match deployed {
            Some(deployed) => Some(Arc::clone(&deployed.view)),
            None => self.deployments.store().get(&wanted).map(|it| it.view),
        };
        let view = view.filter(|view| is_controlled_by(view, foo));
        if let Some(view) = view
            .as_ref()
            .filter(|view| error.is_none() && view.is_complete())
        {
            let view = Arc::clone(view);
            return Some(Serving { key: wanted, view });
        }
        let earlier = self.earlier(key, foo, &wanted).into_iter().next();
        let earlier = earlier.map(|(key, old)| Serving {
            key,
            view: old.view,
        });
        let specified = view.map(|view| Serving { key: wanted, view });
        Serving::of(foo, specified, earlier, error)
    }

    /// Returns the scale of the Deployment of an earlier name that still serves, if its number of replicas differs from the
    /// Foo's.
    ///
    /// It is scaled while the specified Deployment is not complete or not controlled by the Foo, or while writes to it are
    /// rejected, disputed or timed out.
    fn unscaled<'a>(
        &'a self,
        key: &'a Key,
        foo: &'a Foo,
        deployed: Result<&DeploymentState, &Error>,
    ) -> Option<Correction<'a>> {
        use ApiError::{Contested, Denied, Rejected, TimedOut};
        let is_to_come = match deployed {
            Ok(new) => !new.view.is_complete(),
            Err(error) => matches!(
                error,
                Error::ResourceExists(..)
                    | Error::Api(Rejected(_) | Denied(..) | Contested(..) | TimedOut(_))
            ),
        };
        let served = foo
            .status
            .deployment_name
            .as_deref()
            .filter(|_| is_to_come)?;
        let desired = Desired::of(key, foo, &self.image).ok()?;
        let earlier = self.earlier(key, foo, &desired.key).into_iter();
        let (old, actual) = earlier.take(1).find(|(old, _)| old.name() == served)?;
        let desired = desired.of_earlier(old);
        let patch = desired.scale(&actual.view)?;
        let is_needed = self.deployments.is_needed(&desired.key, &actual, &patch);
        is_needed.then_some(Correction {
            desired,
            actual,
            patch,
        })
    }

    /// Returns the Foo's Deployments of earlier names. `wanted` is the specified Deployment.
    ///
    /// The Deployment that the status names comes first. The others are Deployments that the controller created but that never
    /// became available. A Deployment that another client created is not included, even if it is a copy that names the Foo as its
    /// controller.
    pub(super) fn earlier(
        &self,
        key: &Key,
        foo: &Foo,
        wanted: &Key,
    ) -> Vec<(Key, Snapshot<Deployment>)> {
        let deployments = self.deployments.store();
        let served = |old: &Key| foo.status.deployment_name.as_deref() == Some(old.name());
        let others = deployments.referrers(key).into_iter();
        let others = others.filter(|old| old != wanted);
        let there = others.filter_map(|old| deployments.get(&old).map(|actual| (old, actual)));
        let mut earlier: Vec<_> = there
            .filter(|(old, actual)| {
                is_controlled_by(&actual.view, foo)
                    && (actual.view.foo_generation.is_some() || served(old))
            })
            .collect();
        earlier.sort_by_key(|(old, actual)| (!served(old), actual.view.foo_generation));
        earlier
    }

    /// Returns the Deployments of earlier names to delete. The list is empty until the new Deployment is complete.
    pub(super) fn superseded(
        &self,
        key: &Key,
        foo: &Foo,
        new: &DeploymentState,
    ) -> Vec<(Key, Snapshot<Deployment>)> {
        if !new.view.is_complete() {
            return Vec::new();
        }
        let mut earlier = self.earlier(key, foo, &new.key);
        earlier.retain(|(key, old)| {
            !old.view.deleting && !self.deployments.is_deletion_pending(key, old)
        });
        earlier
    }
}

/// Whether the Foo controls the Deployment.
#[must_use]
pub fn is_controlled_by(deployment: &Deployment, foo: &Foo) -> bool {
    let owner = deployment.owner.as_ref();
    owner.is_some_and(|owner| owner.uid == foo.uid)
}
