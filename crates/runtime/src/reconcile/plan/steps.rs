//! The steps of a plan that write other objects: how they are compared, sent and recorded.

use futures::{FutureExt as _, future::BoxFuture};
use serde_json::{Value, json};

use crate::{
    api::{
        applied::Applied,
        difference::{Comparison, without_nulls},
        key::Key,
        kind::Kind,
        object::{Cached, Primary, kind_of},
    },
    cache::store::Snapshot,
    reconcile::{
        context::{Context, Step},
        error::ApiError,
        plan::carried::Carried,
        writer::Writer,
    },
    telemetry::trace,
};

/// Confirms that a change took effect.
type Keep = Box<dyn FnOnce() + Send>;
type Take = Box<dyn Fn() -> Option<Keep> + Send + Sync>;
type Doubt = Box<dyn Fn(&Value) -> bool + Send + Sync>;
type Make = Box<dyn Fn() -> Value + Send + Sync>;

/// See [`Apply::limited`].
struct Slots {
    path: &'static str,
    setting: &'static str,
    take: Take,
}

/// An object to create or to change, with modifiers.
pub struct Apply<P> {
    pub(super) key: Key,
    /// `null` if it cannot be serialized.
    desired: Value,
    initially: Option<Make>,
    stamp: Option<Make>,
    comparison: Comparison,
    is_doubtful: Option<Doubt>,
    slots: Option<Slots>,
    pub(super) until: Option<Box<dyn Condition<P>>>,
    pub(super) creates: bool,
    pub(super) changes: bool,
}

/// An object to delete, with a modifier.
pub struct Delete<P> {
    pub(super) key: Key,
    once: Option<Box<dyn Condition<P>>>,
}

impl<P: Primary> Apply<P> {
    pub(super) fn new<V: Applied>(key: &Key, desired: &V::Desired) -> Self {
        Self {
            key: key.clone(),
            desired: V::manifest(desired).unwrap_or_default(),
            initially: None,
            stamp: None,
            comparison: Comparison::of(V::KIND),
            is_doubtful: None,
            slots: None,
            until: None,
            creates: true,
            changes: true,
        }
    }

    /// Adds fields for a create. They are not compared later, so other clients may change them. `fields` is called when a create
    /// is prepared, also in a dry run. It must have no side effects.
    pub fn initially(&mut self, fields: impl Fn() -> Value + Send + Sync + 'static) -> &mut Self {
        self.initially = Some(Box::new(fields));
        self
    }

    /// Adds fields that are sent with each create or change. They do not cause a change. A list in `fields` replaces the
    /// list of the change. `fields` is called when a create or change is prepared, also in a dry run. It must have no side effects.
    pub fn stamp(&mut self, fields: impl Fn() -> Value + Send + Sync + 'static) -> &mut Self {
        self.stamp = Some(Box::new(fields));
        self
    }

    /// See [`Comparison::exactly`].
    pub fn exactly(&mut self, path: &'static str) -> &mut Self {
        self.comparison = self.comparison.clone().exactly(path);
        self
    }

    /// See [`Comparison::absent`].
    pub fn absent(&mut self, path: &'static str) -> &mut Self {
        self.comparison = self.comparison.clone().absent(path);
        self
    }

    /// Changes the object only after a live read of the reconciled object has [confirmed](Writer::verify_current) the plan. Use
    /// it if the object shows that this plan may be outdated.
    pub fn verified(&mut self) -> &mut Self {
        self.verified_if(|_| true)
    }

    /// Like [`verified`](Self::verified), if `is_doubtful` returns `true` for the [stored](Applied::actual) object.
    pub fn verified_if(
        &mut self,
        is_doubtful: impl Fn(&Value) -> bool + Send + Sync + 'static,
    ) -> &mut Self {
        self.is_doubtful = Some(Box::new(is_doubtful));
        self
    }

    /// Limits the number of concurrent changes of the field at `path`, such as `spec.template`. `take` is called before such a
    /// change. If it returns `None`, the change is sent without the field ([`Carried::is_held_back`]). Otherwise, the returned
    /// function is called after the object has changed, and dropped if the change fails. A create is not limited. A dry
    /// run does not call `take`.
    ///
    /// `setting` is the name of the setting with the limit. The command `plan` reports it, with the number of such changes.
    pub fn limited(
        &mut self,
        path: &'static str,
        setting: &'static str,
        take: impl Fn() -> Option<Box<dyn FnOnce() + Send>> + Send + Sync + 'static,
    ) -> &mut Self {
        let take = Box::new(take);
        self.slots = Some(Slots {
            path,
            setting,
            take,
        });
        self
    }

    /// Skips the step if the object `key` satisfies `is_met`, and no earlier step has failed. The object must be
    /// controlled by the reconciled object. Unlike other steps, this one also runs after errors with a
    /// [reason](crate::Failure::reason).
    pub fn until<V: Cached>(
        &mut self,
        writer: &Writer<V>,
        key: &Key,
        is_met: impl Fn(&V) -> bool + Send + Sync + 'static,
    ) -> &mut Self {
        self.until = Some(condition(writer, key, is_met));
        self
    }

    /// Whether the step is [not needed any more](Self::until).
    pub(super) fn is_over(&self, cx: &Context<'_, P>, carried: &Carried) -> bool {
        let until = self.until.as_ref();
        until.is_some_and(|until| until.is_met(cx, carried))
    }

    /// Returns the object to create, which contains the desired fields.
    fn manifest(&self) -> Value {
        let mut manifest = json!({});
        if let Some(initially) = &self.initially {
            json_patch::merge(&mut manifest, &initially());
        }
        json_patch::merge(&mut manifest, &self.desired);
        if let Some(stamp) = &self.stamp {
            json_patch::merge(&mut manifest, &stamp());
        }
        if let Some(rest) = self.comparison.merge_patch(&self.desired, &manifest) {
            json_patch::merge(&mut manifest, &rest);
        }
        without_nulls(&manifest)
    }

    /// Returns the change of the object without the stamp, if one is needed.
    fn patch(&self, actual: &Value, held_back: Option<&str>) -> Option<Value> {
        if !self.changes {
            return None;
        }
        let patch = self.comparison.patch(&self.desired, actual)?;
        without(patch, held_back)
    }

    /// Returns the patch with the stamp.
    fn stamped(&self, patch: &Value) -> Value {
        let mut stamped = patch.clone();
        if let Some(stamp) = &self.stamp {
            json_patch::merge(&mut stamped, &stamp());
        }
        stamped
    }
}

impl<P: Primary> Delete<P> {
    pub(super) fn new(key: &Key) -> Self {
        Self {
            key: key.clone(),
            once: None,
        }
    }

    /// Skips the step unless the object `key` satisfies `is_met`. A live read must confirm it ([`ApiError::Conflict`]).
    /// The object must be controlled by the reconciled object.
    pub fn once<V: Cached>(
        &mut self,
        writer: &Writer<V>,
        key: &Key,
        is_met: impl Fn(&V) -> bool + Send + Sync + 'static,
    ) {
        self.once = Some(condition(writer, key, is_met));
    }
}

/// Returns the patch without the field at `path`, or `None` if nothing remains.
fn without(mut change: Value, path: Option<&str>) -> Option<Value> {
    let Some(path) = path else {
        return Some(change);
    };
    let members = change.as_object_mut()?;
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    if let Some(value) = members.remove(name).filter(|_| !rest.is_empty())
        && let Some(value) = without(value, Some(rest))
    {
        members.insert(name.to_owned(), value);
    }
    (!members.is_empty()).then_some(change)
}

/// A condition on an object that the reconciled object controls.
pub(super) trait Condition<P: Primary>: Send + Sync {
    /// Whether the object that is stored, or that an earlier step has written, satisfies it.
    fn is_met(&self, cx: &Context<'_, P>, carried: &Carried) -> bool;
    /// Fails unless a live read shows that the object satisfies it.
    fn confirm<'a>(&'a self, cx: &'a Context<'_, P>) -> BoxFuture<'a, Result<(), ApiError>>;
}

struct Other<V, F> {
    writer: Writer<V>,
    key: Key,
    is_met: F,
}

fn condition<P: Primary, V: Cached>(
    writer: &Writer<V>,
    key: &Key,
    is_met: impl Fn(&V) -> bool + Send + Sync + 'static,
) -> Box<dyn Condition<P>> {
    Box::new(Other {
        writer: writer.clone(),
        key: key.clone(),
        is_met,
    })
}

impl<V: Cached, F: Fn(&V) -> bool> Other<V, F> {
    fn is_met_by<P: Primary>(&self, cx: &Context<'_, P>, found: Option<Snapshot<V>>) -> bool {
        found.is_some_and(|it| it.is_controlled_by(&**cx.seen) && (self.is_met)(&it))
    }
}

impl<P: Primary, V: Cached, F: Fn(&V) -> bool + Send + Sync> Condition<P> for Other<V, F> {
    fn is_met(&self, cx: &Context<'_, P>, carried: &Carried) -> bool {
        self.is_met_by(cx, carried.get(self.writer.store(), &self.key))
    }

    fn confirm<'a>(&'a self, cx: &'a Context<'_, P>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let is_met = self.is_met_by(cx, self.writer.get_live(cx, &self.key).await?);
            is_met.then_some(()).ok_or(ApiError::Conflict)
        }
        .boxed()
    }
}

/// A writer of any resource type.
pub(super) trait AnyWriter<P: Primary>: Send + Sync {
    fn kind(&self) -> &'static Kind;
    fn controlled_by(&self, owner: &Key) -> Vec<Key>;
    fn apply<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        apply: &'a Apply<P>,
        carried: &'a mut Carried,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
    fn delete<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        delete: &'a Delete<P>,
        carried: &'a mut Carried,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
}

impl<P: Primary, V: Applied> AnyWriter<P> for Writer<V> {
    fn kind(&self) -> &'static Kind {
        kind_of::<V>()
    }

    fn controlled_by(&self, owner: &Key) -> Vec<Key> {
        self.store().controlled_by::<P>(owner)
    }

    fn apply<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        apply: &'a Apply<P>,
        carried: &'a mut Carried,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let key = &apply.key;
            if apply.desired.is_null() {
                let words = format!("the desired {} {key} cannot be serialized", V::KIND.kind);
                return Err(ApiError::Rejected(words));
            }
            self.check_place(cx, key)?;
            self.check_installed(key)?;
            let found = match self.store().get(key) {
                Some(found) => found,
                None if !apply.creates => return Ok(()),
                None => {
                    trace::decided("create");
                    let created = self.create_owned(cx, key, apply.manifest()).await?;
                    carried.is_changed = true;
                    carried.left(key, &created);
                    if apply.patch(&created.actual(), None).is_none() {
                        return Ok(());
                    }
                    // `None`: the object was deleted right after its creation.
                    self.store().get(key).ok_or(ApiError::Conflict)?
                }
            };
            Self::check_owner(cx, key, &found)?;
            carried.left(key, &found);
            let actual = found.actual();
            let patch = apply.patch(&actual, None);
            let Some(mut patch) = self.with_installation(patch, &found) else {
                return Ok(());
            };
            let (mut held_back, mut keep) = (None, None);
            let mut limited = None;
            if let Some(slots) = &apply.slots
                && self.is_needed(cx, key, &found, &patch)
                && let rest = without(patch.clone(), Some(slots.path))
                && rest.as_ref() != Some(&patch)
            {
                limited = Some((slots.path, slots.setting));
                if !cx.is_dry_run {
                    keep = (slots.take)();
                }
                if keep.is_none() && !cx.is_dry_run {
                    trace::decided("held back");
                    (carried.is_held_back, held_back) = (true, Some(slots.path));
                    let Some(rest) = rest else {
                        return Ok(());
                    };
                    patch = rest;
                }
            }
            if !cx.is_dry_run && self.is_needed(cx, key, &found, &patch) {
                self.may_patch(cx, key, &found, &patch)?;
                let is_doubtful = apply.is_doubtful.as_ref();
                // The next installation of the owner may have moved the object.
                let is_moved = !found.is_served();
                if is_moved || is_doubtful.is_some_and(|is_doubtful| is_doubtful(&actual)) {
                    cx.primary.verify_current(cx).await?;
                }
                trace::decided("patch");
            }
            let step = Step {
                actual,
                limited,
                compared: patch.clone(),
                ..Step::of::<V>("patch", key, apply.stamped(&patch))
            };
            let plan = |now: &Snapshot<V>| {
                self.with_installation(apply.patch(&now.actual(), held_back), now)
            };
            let patched = self.patch(cx, &found, &patch, step, plan).await?;
            carried.left(key, &patched.actual);
            if patched.changed {
                carried.is_changed = true;
                if let Some(keep) = keep {
                    keep();
                }
            }
            patched.heeded(key).map(drop)
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        cx: &'a Context<'_, P>,
        delete: &'a Delete<P>,
        carried: &'a mut Carried,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let key = &delete.key;
            self.check_place(cx, key)?;
            let found = self.store().get(key);
            let found = found.filter(|found| found.is_controlled_by(&**cx.seen));
            let Some(found) = found.filter(|found| !self.is_deletion_pending(key, found)) else {
                return Ok(());
            };
            let once = delete.once.as_ref();
            if once.is_some_and(|once| !once.is_met(cx, carried)) {
                return Ok(());
            }
            // While the list of an optional type is incomplete, its objects are in the store, but the plan takes the type for missing.
            self.check_installed(key)?;
            if !cx.is_dry_run {
                cx.primary.verify_current(cx).await?;
                if let Some(once) = once {
                    once.confirm(cx).await?;
                }
            }
            trace::decided("delete");
            self.delete(cx, key, &found).await?;
            carried.is_changed = true;
            Ok(())
        }
        .boxed()
    }
}
