//! A Foo that moves from state to state in its own namespace, and the expectations for each state.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use foo_controller::api;
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Event},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use operator_testkit::cluster::{Cluster, eventually};
use serde_json::{Value, json};

use super::{
    actor::Stores,
    states::{
        self, DEADLINE_EXCEEDED, LAX, LEAVING, Put, SLOW, STUCK, State, TOO_MANY,
        assert_names_field,
    },
    values::Case,
};

use crate::support::foos::DEADLINE;

/// Second Foo in the namespace. It must make progress in every state of the first one.
const BESIDE: &str = "beside";
/// Deployment name that a terminating Foo specifies.
const AGAIN: &str = "again";

pub struct Walker<'a> {
    client: &'a Client,
    stores: &'a Stores,
    pub namespace: String,
    name: &'a str,
    strict: Api<DynamicObject>,
    lax: Api<DynamicObject>,
    /// The Foo as last written; `None` after its deletion.
    foo: Option<DynamicObject>,
    deleting: bool,
    known: Option<Known>,
    turns: i32,
    pub steps: Vec<Step>,
    /// Expected Warning events: the Foo's UID, the reason, and a part of the message.
    warned: BTreeSet<(String, &'static str, String)>,
}

/// Known Deployments of the Foo. `None` in the walker if a burst made them unpredictable.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Replicas by Deployment name.
    owned: BTreeMap<String, i64>,
    /// Value of `status.deploymentName`.
    serving: Option<String>,
}

/// A single step, or a burst of steps.
pub struct Step {
    pub what: String,
    pub updates: usize,
    pub from: Timestamp,
    pub to: Timestamp,
    pub took: Duration,
}

impl<'a> Walker<'a> {
    pub async fn new(
        cluster: &Cluster,
        client: &'a Client,
        stores: &'a Stores,
        name: &'a str,
    ) -> Self {
        let namespace = cluster.namespace("walk").await;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let params = PostParams::default();
        deployments.create(&params, &states::taken()).await.unwrap();
        let strict = states::api(client, &namespace, api::VERSION);
        let beside = json!({ "deploymentName": BESIDE, "replicas": 1 });
        strict
            .create(
                &PostParams::default(),
                &states::foo(api::VERSION, BESIDE, &beside),
            )
            .await
            .unwrap();
        Self {
            client,
            stores,
            strict,
            lax: states::api(client, &namespace, LAX),
            namespace,
            name,
            foo: None,
            deleting: false,
            known: Some(Known::default()),
            turns: 0,
            steps: Vec::new(),
            warned: BTreeSet::new(),
        }
    }

    /// Moves to this state and waits for its outcome.
    pub async fn go(&mut self, state: &State) {
        let step = (Timestamp::now(), Instant::now());
        self.put(state).await;
        self.settle(state).await;
        self.end(step, 1, format!("{:?}", state.put));
    }

    /// Moves through these states without a wait and expects the outcome of the last one.
    pub async fn hurry(&mut self, burst: &[&State]) {
        let step = (Timestamp::now(), Instant::now());
        self.known = None;
        for state in burst {
            self.put(state).await;
        }
        self.settle(burst[burst.len() - 1]).await;
        let what: Vec<_> = burst.iter().map(|state| &state.put).collect();
        self.end(step, burst.len(), format!("{what:?}"));
    }

    fn end(&mut self, (from, begun): (Timestamp, Instant), updates: usize, what: String) {
        let (to, took) = (Timestamp::now(), begun.elapsed());
        self.steps.push(Step {
            what,
            updates,
            from,
            to,
            took,
        });
    }

    /// Asserts that the API server rejects each case with an error that names the field.
    pub async fn refuses(&self, cases: &[Case]) {
        let Some(foo) = &self.foo else { return };
        let stored = without_nulls(&foo.data["spec"]);
        for case in cases
            .iter()
            .filter(|case| without_nulls(&case.spec) != stored)
        {
            match self.patch(&self.strict, &case.spec).await {
                Err(error) => assert_names_field(&error, case),
                Ok(taken) => panic!(
                    "after {:?}: {case:?} is taken: {:?}",
                    foo.data["spec"], taken.data
                ),
            }
        }
        let now = self.strict.get(self.name).await.unwrap();
        assert_eq!(without_nulls(&now.data["spec"]), stored);
        assert_eq!(now.metadata.generation, foo.metadata.generation);
    }

    async fn patch(&self, api: &Api<DynamicObject>, spec: &Value) -> kube::Result<DynamicObject> {
        let mut patch = json!([{ "op": "add", "path": "/spec", "value": spec }]);
        if spec.is_null() {
            patch = json!([{ "op": "add", "path": "/spec", "value": {} }, { "op": "remove", "path": "/spec" }]);
        }
        let patch = Patch::Json::<()>(serde_json::from_value(patch).unwrap());
        api.patch(self.name, &PatchParams::default(), &patch).await
    }

    async fn put(&mut self, state: &State) {
        let (version, spec) = match &state.put {
            Put::Spec(spec) => (api::VERSION, spec),
            Put::Stored(spec) => (LAX, spec),
            Put::Deleting if self.foo.is_some() && !self.deleting => {
                return self.delete_held().await;
            }
            Put::Deleting => return,
            Put::Gone => return self.clear().await,
        };
        let api = if version == LAX {
            self.lax.clone()
        } else {
            self.strict.clone()
        };
        if self.deleting {
            self.clear().await;
        }
        let put = match &self.foo {
            Some(_) => self.patch(&api, spec).await,
            None => {
                api.create(
                    &PostParams::default(),
                    &states::foo(version, self.name, spec),
                )
                .await
            }
        };
        self.foo = Some(put.unwrap_or_else(|error| panic!("{:?}: {error}", state.put)));
    }

    /// Deletes the Foo with a finalizer and then changes its spec. Its Deployments are deleted first, as in foreground
    /// deletion.
    async fn delete_held(&mut self) {
        let hold = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
        let params = PatchParams::default();
        self.lax
            .patch(self.name, &params, &Patch::Merge(hold))
            .await
            .unwrap();
        self.strict
            .delete(self.name, &DeleteParams::default())
            .await
            .unwrap();
        self.deleting = true;
        for deployment in self.owned() {
            let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
            _ = api
                .delete(&deployment.name_any(), &DeleteParams::default())
                .await;
        }
        let again = json!({ "deploymentName": AGAIN, "replicas": 3 });
        let foo = self.patch(&self.lax, &again).await.unwrap();
        self.foo = Some(foo);
    }

    /// Deletes the Foo and waits until the Foo and its Deployments no longer exist.
    async fn clear(&mut self) {
        let Some(foo) = self.foo.take() else { return };
        if self.deleting {
            let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            self.lax
                .patch(self.name, &PatchParams::default(), &release)
                .await
                .unwrap();
        } else {
            self.strict
                .delete(self.name, &DeleteParams::default())
                .await
                .unwrap();
        }
        self.deleting = false;
        let uid = foo.uid().unwrap();
        eventually(DEADLINE, "nothing is left of the Foo", async || {
            let left: Vec<_> = self
                .stores
                .owned(&uid)
                .iter()
                .map(|d| d.name_any())
                .collect();
            if left.is_empty() && self.stores.foo(&uid).is_none() {
                Ok(())
            } else {
                Err(left)
            }
        })
        .await;
        self.known = self.known.take().map(|_| Known::default());
    }

    fn owned(&self) -> Vec<std::sync::Arc<Deployment>> {
        self.foo
            .as_ref()
            .map_or_else(Vec::new, |foo| self.stores.owned(&foo.uid().unwrap()))
    }

    async fn settle(&mut self, state: &State) {
        if self.foo.is_none() {
            return;
        }
        if self.deleting || !state.reportable {
            self.beside().await;
        }
        if self.deleting {
            return self.has_none_while_deleting();
        }
        let Some(outcome) = state.outcome else { return };
        let expected = self.known.as_ref().map(|known| known.after(state));
        if state.reportable {
            let what = format!(
                "{}: {:?} after {:?}",
                self.namespace,
                state.put,
                self.steps.last().map(|step| &step.what)
            );
            eventually(DEADLINE, &what, async || {
                self.is_as_said(state, expected.as_ref())
            })
            .await;
        }
        self.known = expected;
        if outcome.warns {
            let uid = self.foo.as_ref().unwrap().uid().unwrap();
            self.warned
                .insert((uid, outcome.ready.1, state.words.clone()));
            if !state.reportable {
                // Wait for the events now: after many changes, the Foo is reconciled only once per second. The second Foo does
                // not wait for that.
                self.assert_warned().await;
            }
        }
        if self.known.is_none() && state.is_ready() {
            self.known = Some(self.seen());
        }
    }

    /// A terminating Foo gets no Deployment. After a burst, only [`AGAIN`] is checked: a create may have been in flight at the
    /// deletion.
    fn has_none_while_deleting(&self) {
        let owned = self.owned();
        let stays = owned
            .iter()
            .filter(|d| d.metadata.deletion_timestamp.is_none());
        let mut names = stays.map(|d| d.name_any());
        let found = names.find(|name| self.known.is_some() || name == AGAIN);
        assert_eq!(
            found, None,
            "{}: for a Foo that is being deleted",
            self.namespace
        );
    }

    /// Returns the known Deployments of a Foo that is Ready.
    fn seen(&self) -> Known {
        let owned = self.owned();
        let owned = owned.iter().map(|d| {
            (
                d.name_any(),
                i64::from(d.spec.as_ref().unwrap().replicas.unwrap()),
            )
        });
        let foo = self
            .stores
            .foo(&self.foo.as_ref().unwrap().uid().unwrap())
            .unwrap();
        Known {
            owned: owned.filter(|(name, _)| name != LEAVING).collect(),
            serving: foo.data["status"]["deploymentName"]
                .as_str()
                .map(str::to_owned),
        }
    }

    /// Waits for the Warning events that explain why the Foo did not match its spec. Events may be late.
    pub async fn assert_warned(&self) {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually(
            DEADLINE,
            &format!("{}: events", self.namespace),
            async || {
                let events = api.list(&ListParams::default()).await.unwrap().items;
                let is_there = |(uid, reason, words): &&(String, &str, String)| {
                    events.iter().any(|event| {
                        event.type_.as_deref() == Some("Warning")
                            && event.involved_object.uid.as_deref() == Some(uid.as_str())
                            && event.reason.as_deref() == Some(*reason)
                            && event
                                .message
                                .as_ref()
                                .is_some_and(|text| text.contains(words))
                    })
                };
                match self.warned.iter().find(|warned| !is_there(warned)) {
                    None => Ok(()),
                    missing => Err(format!("{missing:?}")),
                }
            },
        )
        .await;
    }

    /// Changes the second Foo and waits until its status matches.
    async fn beside(&mut self) {
        self.turns += 1;
        let replicas = 1 + self.turns % 2;
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        let put = self
            .strict
            .patch(BESIDE, &PatchParams::default(), &patch)
            .await
            .unwrap();
        let (uid, generation) = (put.uid().unwrap(), put.metadata.generation);
        eventually(
            DEADLINE,
            &format!("{}: the Foo beside it", self.namespace),
            async || {
                let status = self
                    .stores
                    .foo(&uid)
                    .map(|foo| foo.data["status"].clone())
                    .unwrap_or_default();
                let is = status["observedGeneration"].as_i64() == generation
                    && status["availableReplicas"] == replicas;
                is.then_some(()).ok_or(status)
            },
        )
        .await;
    }

    /// Returns the first difference between the Foo and the expected outcome.
    fn is_as_said(&self, state: &State, expected: Option<&Known>) -> Result<(), String> {
        let (put, outcome) = (self.foo.as_ref().unwrap(), state.outcome.unwrap());
        let foo = self.stores.foo(&put.uid().unwrap()).ok_or("no Foo")?;
        let (status, generation) = (&foo.data["status"], put.metadata.generation);
        let said = |is: bool| {
            if is {
                Ok(())
            } else {
                Err(format!("{generation:?}, {expected:?}: {status}"))
            }
        };
        said(foo.metadata.generation == generation)?;
        said(status["observedGeneration"].as_i64() == generation)?;
        for (type_, (value, reason)) in [
            ("Ready", outcome.ready),
            ("Progressing", outcome.progressing),
        ] {
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let condition = conditions.find(|condition| condition["type"] == type_);
            let condition = condition.ok_or_else(|| status.to_string())?;
            said(condition["status"] == value && condition["reason"] == reason)?;
            said(condition["observedGeneration"].as_i64() == generation)?;
            said(
                condition["message"]
                    .as_str()
                    .unwrap_or_default()
                    .contains(&state.words),
            )?;
        }
        if let Some(known) = expected {
            let there: BTreeMap<_, _> = self.seen().owned;
            let wanted = &known.owned;
            if there != *wanted {
                return Err(format!("there are {there:?}, not {wanted:?}"));
            }
            said(status["deploymentName"].as_str() == known.serving.as_deref())?;
            said(status["availableReplicas"] == known.available())?;
        }
        if state.is_ready() {
            self.has_deployment(&state.spec, status)
        } else {
            Ok(())
        }
    }

    /// Returns an error unless the Foo has exactly one Deployment, and it matches the spec.
    fn has_deployment(&self, spec: &Value, status: &Value) -> Result<(), String> {
        let mut owned = self.owned();
        owned.retain(|deployment| deployment.name_any() != LEAVING);
        let [deployment] = &owned[..] else {
            return Err(format!(
                "{:?}",
                owned.iter().map(|d| d.name_any()).collect::<Vec<_>>()
            ));
        };
        let there = serde_json::to_value(deployment).unwrap();
        let labels = json!({ "app": "nginx", "controller": self.name });
        let template = &there["spec"]["template"];
        let wanted = spec["replicas"]
            .as_i64()
            .or(there["spec"]["replicas"].as_i64());
        let is = there["metadata"]["name"] == spec["deploymentName"]
            && there["metadata"]["labels"] == labels
            && template["metadata"]["labels"] == labels
            && template["spec"]["containers"][0]["image"] == "nginx:latest"
            && there["spec"]["replicas"].as_i64() == wanted
            && status["availableReplicas"].as_i64() == wanted;
        if is { Ok(()) } else { Err(there.to_string()) }
    }
}

impl Known {
    /// Returns the expected Deployments in this state.
    fn after(&self, state: &State) -> Self {
        let mut known = self.clone();
        let spec = &state.spec;
        let reason = state.outcome.map_or("", |outcome| outcome.ready.1);
        // The serving Deployment is scaled, too, if the spec is valid and the policy accepts it.
        let scaled = spec["replicas"]
            .as_i64()
            .filter(|replicas| reason != "InvalidSpec" && *replicas != TOO_MANY);
        let serving = known.serving.as_ref();
        let has = serving.and_then(|serving| known.owned.get_mut(serving));
        if let (Some(has), Some(replicas)) = (has, scaled) {
            *has = replicas;
        }
        if state.outcome.is_some_and(|outcome| outcome.warns) && reason != DEADLINE_EXCEEDED {
            return known;
        }
        let name = spec["deploymentName"].as_str().unwrap().to_owned();
        // Keep the replicas of this Deployment or of the previous one.
        let had = self
            .owned
            .get(&name)
            .or_else(|| self.owned.get(self.serving.as_ref()?));
        let replicas = spec["replicas"].as_i64().or(had.copied()).unwrap_or(1);
        if state.is_ready() {
            return Self {
                owned: [(name.clone(), replicas)].into(),
                serving: Some(name),
            };
        }
        if name != LEAVING {
            known.owned.insert(name.clone(), replicas);
        }
        known.serving.get_or_insert(name);
        known
    }

    /// Returns the available replicas of the serving Deployment.
    fn available(&self) -> i64 {
        let name = self.serving.as_deref().unwrap_or_default();
        if [STUCK, SLOW].contains(&name) {
            0
        } else {
            self.owned.get(name).copied().unwrap_or(0)
        }
    }
}

/// Removes nulls: the API server drops a null that the schema does not allow, and accepts an unchanged invalid field.
fn without_nulls(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    spec
}
