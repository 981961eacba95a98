//! The Deployments of earlier names. Decides which Deployment serves, which one is scaled, and which ones are deleted.

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
        let actual = match deployed {
            Some(deployed) => Some(deployed.actual.clone()),
            None => self.deployments.store().get(&wanted),
        };
        let actual = actual.filter(|actual| actual.is_controlled_by(foo));
        let is_complete = |actual: &Snapshot<Deployment>| error.is_none() && actual.is_complete();
        let is_complete = actual.as_ref().is_some_and(is_complete);
        let serving = |(key, actual): (_, Snapshot<_>)| Serving {
            key,
            view: actual.view,
        };
        let specified = actual.map(|actual| serving((wanted.clone(), actual)));
        if is_complete {
            return specified;
        }
        let earlier = self.earlier(key, foo, &wanted).into_iter().next();
        let earlier = earlier.map(serving);
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
            Ok(new) => !new.actual.is_complete(),
            Err(error) => matches!(
                error,
                Error::ResourceExists(..)
                    | Error::Deleting(_)
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
        let others = deployments.controlled_by::<Foo>(key).into_iter();
        let others = others.filter(|old| old != wanted);
        let there = others.filter_map(|old| deployments.get(&old).map(|actual| (old, actual)));
        let mut earlier: Vec<_> = there
            .filter(|(old, actual)| {
                actual.is_controlled_by(foo)
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
        if !new.actual.is_complete() {
            return Vec::new();
        }
        let mut earlier = self.earlier(key, foo, &new.key);
        earlier.retain(|(key, old)| {
            !old.view.deleting && !self.deployments.is_deletion_pending(key, old)
        });
        earlier
    }
}
