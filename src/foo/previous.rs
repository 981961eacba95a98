//! The Deployments of earlier names, and the choice of the Deployment that serves.

use operator_runtime::{Key, Snapshot};

use super::{
    cached::{Deployment, Foo},
    error::Error,
    reconcile::FooReconciler,
    status::Serving,
};

impl FooReconciler {
    /// Returns the Deployment that the status describes (see [`Serving`]). `deployed` takes precedence over the cache, which
    /// may be older.
    pub(super) fn serving(
        &self,
        key: &Key,
        foo: &Foo,
        deployed: Option<&Snapshot<Deployment>>,
        error: Option<&Error>,
    ) -> Option<Serving> {
        let wanted = wanted(key, foo);
        let actual = match deployed {
            Some(deployed) => Some(deployed.clone()),
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

    /// Returns the `wanted` Deployment if the Foo controls it.
    pub(super) fn deployed(&self, wanted: &Key, foo: &Foo) -> Option<Snapshot<Deployment>> {
        let actual = self.deployments.store().get(wanted);
        actual.filter(|actual| actual.is_controlled_by(foo))
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
        let served = |old: &Key| foo.served_by().as_deref() == Some(old.name());
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
}

/// Returns the key of the specified Deployment. Its name is empty if the spec cannot be decoded.
pub(super) fn wanted(key: &Key, foo: &Foo) -> Key {
    let name = foo.spec.as_ref().map(|spec| &*spec.deployment_name);
    key.sibling(name.unwrap_or_default())
}
