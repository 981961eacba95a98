//! Enqueues the objects that a change affects.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::sync::watch as channel;
use tracing::warn;

use crate::{
    api::{
        control::Control,
        key::Key,
        object::{Cached, Primary, asks_for},
        panic::catch,
    },
    cache::{
        readiness::Scopes,
        store::{Change, Snapshot, Store},
    },
    controller::{queue::lane::Lane, work_queue::WorkQueue},
};

/// Delay of a reconcile after a change of rollout counters. One reconcile then covers the changes of several pods. The end of a
/// rollout is enqueued without delay.
const ROLLOUT_DEBOUNCE: Duration = Duration::from_secs(1);

/// Enqueues the objects that a change affects.
#[derive(Clone)]
pub(crate) struct EventHandler<P> {
    /// Position of the controller in the program.
    pub controller: usize,
    pub work_queue: channel::Receiver<Option<WorkQueue>>,
    pub primaries: Arc<Store<P>>,
}

impl<P: Primary> EventHandler<P> {
    /// Enqueues the changed object, unless its own reconcile made the change. Changes before the scope is in sync are ignored,
    /// because its initial sync covers them, and so are changes of objects of other installations.
    ///
    /// An object that joins this installation, or leaves it, is enqueued without regard to its backoff. The reconcile of an
    /// object that has left only removes it from the queue.
    pub(super) fn primary_changed(
        &self,
        scopes: &Scopes,
        change: &Change<P>,
        author: Option<&Key>,
    ) {
        if author == Some(&change.key) {
            return;
        }
        if let Some(work_queue) = &*self.work_queue.borrow()
            && scopes.is_in_sync(self.controller, &change.key)
        {
            let key = change.key.clone();
            let is_served = |object: &Option<Snapshot<P>>| object.as_ref().map(Snapshot::is_served);
            let served = [&change.old, &change.new].map(is_served);
            if !served.contains(&Some(true)) {
                return;
            }
            let has_moved = served.contains(&Some(false));
            if has_moved || has_request(change) {
                work_queue.queue.reset(&key);
            }
            if change.is_touch {
                work_queue.touched(key, P::KIND.kind);
            } else if !has_moved && !has_other_control(change) && asks_for_the_same(change) {
                work_queue.enqueue_status_change(key, P::KIND.kind);
            } else {
                work_queue.changed(key, P::KIND.kind);
            }
        }
    }

    /// Enqueues the current owner, the previous owner, and the objects that reference the changed object and may read it, except
    /// the author of the change. For example, an object may wait until another client's object with the referenced name is
    /// deleted.
    pub(super) fn dependent_changed<V: Cached>(
        &self,
        scopes: &Scopes,
        change: &Change<V>,
        author: Option<&Key>,
    ) {
        let work_queue = self.work_queue.borrow();
        let Some(work_queue) = work_queue.as_ref().filter(|_| !change.is_touch) else {
            return;
        };
        let objects = [&change.old, &change.new].into_iter().flatten();
        let owners = objects.filter_map(|object| object.owner.as_ref());
        let owners = owners.filter(|owner| owner.kind.is_same(&P::KIND));
        let referrers = self.primaries.referrers(&V::KIND, &change.key);
        let owners = owners.map(|owner| owner.key.clone());
        // A cluster-scoped object may have referrers in any namespace, and a cluster-scoped owner waits for all namespaces.
        let may_see = |from: &Key| change.may_be_seen_by(from);
        let keys = owners.chain(referrers.into_iter().filter(may_see));
        let keys = keys.filter(|key| author != Some(key));
        let keys = keys.filter(|key| scopes.is_in_sync(self.controller, key));
        let keys = keys.filter(|key| self.primaries.is_served(key));
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return;
        }
        let is_rollout_update = match (&change.old, &change.new) {
            (Some(old), Some(new)) => {
                let is_same = old.owner == new.owner && old.control == new.control;
                is_same && is_rollout_update(&change.key, &**old, &**new)
            }
            _ => false,
        };
        for key in keys {
            if is_rollout_update {
                work_queue.triggers.note(&key, Lane::Event, V::KIND.kind);
                work_queue
                    .queue
                    .add_after(key, Lane::Event, ROLLOUT_DEBOUNCE);
            } else {
                work_queue.changed(key, V::KIND.kind);
            }
        }
    }

    /// Enqueues the objects that `map` returns for the old and for the new content of the changed object.
    pub(super) fn mapped_changed<V: Cached>(
        &self,
        scopes: &Scopes,
        change: &Change<V>,
        map: impl Fn(&Key, &V) -> Vec<Key>,
    ) {
        let work_queue = self.work_queue.borrow();
        let Some(work_queue) = work_queue.as_ref().filter(|_| !change.is_touch) else {
            return;
        };
        let objects = [&change.old, &change.new].into_iter().flatten();
        let keys = objects.flat_map(|object| {
            let keys = catch(&V::KIND, "ControllerBuilder::maps", || {
                map(&change.key, object)
            });
            keys.unwrap_or_else(|panicked| {
                warn!(object = %change.key, "{panicked}; this content enqueues no object");
                Vec::new()
            })
        });
        let keys: BTreeSet<_> = keys.collect();
        for key in keys {
            if scopes.is_in_sync(self.controller, &key) && self.primaries.is_served(&key) {
                work_queue.changed(key, V::KIND.kind);
            }
        }
    }
}

/// Whether a user has requested a reconcile with a new token.
fn has_request<P>(change: &Change<P>) -> bool {
    let [old, new] = [&change.old, &change.new].map(|it| it.as_ref()?.requested_at());
    new.is_some() && new != old
}

/// Whether a user has paused or resumed the object, or requested a reconcile. The user waits for the effect.
fn has_other_control<P>(change: &Change<P>) -> bool {
    let none = Control::default();
    let control = |object: &Option<Snapshot<P>>| object.as_ref()?.control.clone();
    let [old, new] = [&change.old, &change.new].map(control);
    let [old, new] = [&old, &new].map(|it| it.as_deref().unwrap_or(&none));
    !old.is_same_for_reconciles(new)
}

/// Whether the spec is unchanged: only the status, metadata or unread fields differ. After a panic, the spec counts as unchanged.
/// Otherwise an object that always panics would be retried without delay.
fn asks_for_the_same<P: Primary>(change: &Change<P>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return false;
    };
    let is_same = || asks_for(&*old.view) == asks_for(&*new.view);
    catch(&P::KIND, "Cached::content", is_same).unwrap_or(true)
}

fn is_rollout_update<V: Cached>(key: &Key, old: &V, new: &V) -> bool {
    let method = "Cached::is_rollout_update";
    catch(&V::KIND, method, || V::is_rollout_update(old, new)).unwrap_or_else(|panicked| {
        warn!(object = %key, "{panicked}; treating the change as no rollout progress");
        false
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        cache::{
            readiness::{
                namespace::{ControllerAccess, RequiredAccess},
                refusals::Refusals,
            },
            store::Owners,
        },
        config::app::tests::APP,
        config::settings::Config,
        controller::queue::Queue,
        testing::fixtures::{Child, Parent, ParentStatus, object},
    };

    /// Returns the names of the Parents that each change of a Child enqueues. They refer to the Child `other/c`: `a` and `b` from
    /// their namespaces, `o` from its own. The Parents `p` and `q` of its namespace do not. Each Child is a grant and the name of
    /// its owner, if any, or `None` if it is deleted.
    async fn enqueued(children: &[Option<(&str, &str)>]) -> Vec<Vec<String>> {
        let owners = Owners::new(APP.group);
        owners.add::<Parent>();
        let primaries = Arc::new(Store::<Parent>::new(&[None], owners.clone()));
        for (namespace, name, child) in [
            ("a", "a", "other/c"),
            ("b", "b", "other/c"),
            ("other", "o", "other/c"),
            ("other", "p", "p"),
            ("other", "q", "q"),
        ] {
            primaries.apply(0, object(&format!(
                "{{metadata: {{name: {name}, namespace: {namespace}, uid: {name}, resourceVersion: '1'}}, spec: {{child: {child}}}}}"
            )));
        }
        let needs = RequiredAccess {
            controllers: vec![ControllerAccess {
                name: "parent",
                primary: &Parent::KIND,
                watched: vec![0],
                rights: Vec::new(),
            }],
            watched: vec![Parent::KIND],
            optional: Vec::new(),
            unreviewed: Vec::new(),
        };
        let scopes = Scopes::new(
            needs,
            &[None],
            vec![Refusals::new(&[None])],
            Duration::from_secs(15),
        );
        scopes.informer(0, 0).synced();
        scopes.assume_rights(0, 0);
        let (sender, work_queue) = channel::channel(None);
        let handler = EventHandler {
            controller: 0,
            work_queue,
            primaries,
        };
        let store = Store::<Child>::new(&[None], owners);
        let mut all = Vec::new();
        for (version, grant) in (2..).zip(children) {
            let queue = Queue::new(&Config::shipped(&APP).backoff, 9, Key::namespace);
            sender.send_replace(Some(WorkQueue::new(queue.clone())));
            let change = match grant {
                Some((grant, owner)) => {
                    let owner = match *owner {
                        "" => String::new(),
                        name => format!(
                            "{{apiVersion: example.com/v1, kind: Parent, name: {name}, uid: {name}, controller: true}}"
                        ),
                    };
                    store.apply(0, object(&format!(
                        "metadata: {{name: c, namespace: other, uid: c, resourceVersion: '{version}', annotations: \
                         {{example.com/grant-to: '{grant}'}}, ownerReferences: [{owner}]}}"
                    )))
                }
                None => store.delete(0, &Key::new("other", "c"), version),
            };
            handler.dependent_changed(&scopes, &change.unwrap(), None);
            let mut names = Vec::new();
            while queue.stats().depth[0] > 0 {
                names.push(queue.get().await.unwrap().key().name().to_owned());
            }
            names.sort();
            all.push(names);
        }
        all
    }

    /// An object that may not read another one is not even enqueued by its changes. The grant enqueues it, and so does the end of
    /// the grant.
    #[tokio::test(start_paused = true)]
    async fn only_a_grant_makes_changes_visible() {
        for (children, expected) in [
            (&[Some(""), None][..], &[&["o"][..], &["o"]][..]),
            (&[Some("a"), None], &[&["a", "o"], &["a", "o"]]),
            (
                &[Some("a"), Some("b"), Some("")],
                &[&["a", "o"], &["a", "b", "o"], &["b", "o"]],
            ),
            (&[Some(""), Some("*")], &[&["o"], &["a", "b", "o"]]),
        ] {
            let children: Vec<_> = children.iter().map(|it| it.map(|it| (it, ""))).collect();
            assert_eq!(enqueued(&children).await, expected, "{children:?}");
        }
    }

    /// The old owner makes another object, and the new owner may use this one.
    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_owner_enqueues_both_owners() {
        let children = [Some(("", "p")), Some(("", "q")), Some(("", "")), None];
        let expected = [&["o", "p"][..], &["o", "p", "q"], &["o", "q"], &["o"]];
        assert_eq!(enqueued(&children).await, expected);
    }

    /// A grant is no pause and no request.
    #[test]
    fn a_grant_of_a_reconciled_object_does_not_control_it() {
        let owners = Owners::new(APP.group);
        owners.add::<Parent>();
        let parents = Store::<Parent>::new(&[None], owners);
        let parent = |version: u64, name: &str, value: &str| {
            let change = parents.apply(0, object(&format!(
                "metadata: {{name: a, namespace: n, uid: u, resourceVersion: '{version}', annotations: {{{name}: '{value}'}}}}"
            )));
            has_other_control(&change.unwrap())
        };
        assert!(!parent(1, "example.com/grant-to", "a"));
        assert!(!parent(2, "example.com/grant-to", "b"));
        assert!(parent(3, "example.com/paused", "true"));
        assert!(parent(4, "example.com/reconcile-requested-at", "t"));
        assert!(!parent(5, "example.com/reconcile-requested-at", "t"));
    }

    /// A new generation or another object changes the desired state; a new status does not.
    #[test]
    fn q3c_status_change_keeps_the_desired_state() {
        let parent = |uid: &str, generation, observed_generation| {
            let parent = Parent {
                uid: uid.into(),
                generation,
                child: None,
                status: ParentStatus {
                    observed_generation,
                },
            };
            Some(Snapshot {
                version: 1,
                owner: None,
                control: None,
                view: Arc::new(parent),
            })
        };
        for (old, new, expected) in [
            (parent("u", 1, 0), parent("u", 1, 1), true),
            (parent("u", 1, 0), parent("u", 2, 1), false),
            (parent("u", 1, 0), parent("v", 1, 1), false),
            (parent("u", 1, 1), parent("u", 1, 1), true),
            (None, parent("u", 1, 1), false),
            (parent("u", 1, 1), None, false),
        ] {
            let change = Change {
                key: Key::new("n", "a"),
                old,
                new,
                is_touch: false,
                awaited: None,
            };
            assert_eq!(asks_for_the_same(&change), expected, "{change:?}");
        }
    }
}
