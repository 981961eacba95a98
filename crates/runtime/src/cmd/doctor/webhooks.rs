//! Admission webhooks and policies for the controller's writes: unavailable webhooks, slow webhooks, and webhooks that can
//! stop the renewal of the Lease.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use futures::stream::{StreamExt as _, iter};
use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration,
    },
    coordination::v1::Lease,
    core::v1::{Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    events::v1::Event,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    cluster::{all, few, items, namespaces, primaries, text, unreadable},
    matching::{self, Judges, Labels, Write},
    places::{EVENTS, Judged, Place, are_broad, judged, served},
    subject::{Doctor, Hook},
    verdict::{Verdict, error, ok, warning, worst},
};
use crate::{
    api::kind::Kind, cache::readiness::namespace::Permission,
    client::fence::permit::limit as write_limit, config::settings::MUTATION_TIMEOUT,
};

/// Default of `timeoutSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Concurrent requests for the Services of webhooks.
const AT_ONCE: usize = 8;

/// The label with the namespace's own name, which each namespace has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl Hook {
    fn timeout(&self) -> Duration {
        let seconds = self.spec["timeoutSeconds"].as_u64();
        seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs)
    }

    /// Whether a write fails if the webhook fails. The API server fills in the default, `Fail`.
    fn fails(&self) -> bool {
        self.spec["failurePolicy"] != "Ignore"
    }

    /// Returns the id, the failure policy and the timeout.
    fn described(&self) -> String {
        let policy = if self.fails() { "Fail" } else { "Ignore" };
        format!("{} ({policy}, {:?})", self.id, self.timeout())
    }
}

/// Returns all webhooks.
///
/// # Errors
/// A list failed or is forbidden.
async fn hooks(doctor: &Doctor) -> Result<&[Hook], Verdict> {
    let read = doctor.hooks.get_or_init(async || {
        let client = &doctor.client;
        let mut hooks = of_kind::<ValidatingWebhookConfiguration>(client, false).await?;
        hooks.extend(of_kind::<MutatingWebhookConfiguration>(client, true).await?);
        Ok(hooks)
    });
    read.await.as_deref().map_err(Clone::clone)
}

async fn of_kind<K: Resource<DynamicType = ()>>(
    client: &Client,
    is_mutating: bool,
) -> Result<Vec<Hook>, Verdict> {
    let found = all::<K>(client, &ListParams::default()).await;
    let found = found.map_err(|error| unreadable(&K::plural(&()), &error))?;
    let hooks = found.iter().flat_map(|configuration| {
        let name = configuration.name_any();
        items(&configuration.data["webhooks"]).map(move |spec| Hook {
            id: format!("webhook {} of {} {name}", text(&spec["name"]), K::kind(&())),
            spec: spec.clone(),
            is_mutating,
            down: None,
        })
    });
    let hooks = iter(hooks).map(async |mut hook| {
        let down = down(client, &hook.spec["clientConfig"]).await;
        hook.down = down.map(|down| down.to_string());
        hook
    });
    Ok(hooks.buffered(AT_ONCE).collect().await)
}

/// Why a webhook cannot be called.
#[derive(Debug)]
pub(super) enum Down {
    /// The state of its Service.
    Service(String),
    NoCaBundle,
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(state) => f.write_str(state),
            Self::NoCaBundle => f.write_str("its clientConfig has no caBundle"),
        }
    }
}

/// Returns why a webhook cannot be called. `None` means that it can be called, or that this is unknown: URLs are not checked.
pub(super) async fn down(client: &Client, config: &Value) -> Option<Down> {
    let service = config["service"].as_object()?;
    let [namespace, name] = ["namespace", "name"].map(|key| service.get(key).map_or("", text));
    let place = format!("its Service {namespace}/{name}");
    let resource = ApiResource::erase::<Service>(&());
    let services: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let Some(found) = services.get_opt(name).await.ok()? else {
        return Some(Down::Service(format!("{place} does not exist")));
    };
    let spec = &found.data["spec"];
    if spec["type"] == "ExternalName" {
        return None;
    }
    let port = service.get("port").and_then(Value::as_u64).unwrap_or(443);
    if !items(&spec["ports"]).any(|it| it["port"] == port) {
        return Some(Down::Service(format!("{place} has no port {port}")));
    }
    let resource = ApiResource::erase::<EndpointSlice>(&());
    let slices: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
    let slices = slices.list(&of_service).await.ok()?;
    let mut endpoints = slices
        .iter()
        .flat_map(|slice| items(&slice.data["endpoints"]));
    // An unknown state counts as ready.
    if !endpoints.any(|it| it["conditions"]["ready"] != false) {
        return Some(Down::Service(format!("{place} has no ready endpoint")));
    }
    let ca = config["caBundle"].as_str();
    ca.is_none_or(str::is_empty).then_some(Down::NoCaBundle)
}

/// A write to the Lease or to the fencing record.
fn to(kind: Kind, operation: &'static str, name: &str, labels: Labels) -> Write {
    Write {
        name: Some(name.to_owned()),
        labels: Some(labels),
        ..written(kind, operation, "", &[])
    }
}

fn written(
    kind: Kind,
    operation: &'static str,
    subresource: &str,
    equivalents: &[(&str, &str)],
) -> Write {
    let equivalents = equivalents.iter();
    Write {
        operation,
        group: kind.group.to_owned(),
        version: kind.version.to_owned(),
        plural: kind.plural.to_owned(),
        subresource: subresource.to_owned(),
        is_cluster_scoped: kind.is_cluster_scoped(),
        equivalents: equivalents
            .map(|(group, version)| ((*group).to_owned(), (*version).to_owned()))
            .collect(),
        name: None,
        labels: None,
    }
}

/// Checks the webhooks that match writes to the Lease and to the fencing record, if that exists.
pub(super) async fn on_lease(doctor: &Doctor) -> Verdict {
    match lease_findings(doctor).await {
        Ok(verdict) | Err(verdict) => verdict,
    }
}

async fn lease_findings(doctor: &Doctor) -> Result<Verdict, Verdict> {
    let (namespace, name) = doctor.lease()?;
    let hooks = hooks(doctor).await?;
    let known = namespaces(doctor).await?;
    let Some(at) = known.iter().find(|it| it.name == namespace) else {
        return Ok(error(format!("there is no namespace {namespace}")));
    };
    let at = [Place::of(at)];
    let writes = lease_writes(doctor, namespace, name).await?;
    let renewal = doctor.config.leader_election.call_timeout();
    let exclude = |text: &str, selector: &str| {
        format!(
            "{text}: exclude the namespace in {selector}, by matchExpressions: [{{key: {NAME_LABEL}, operator: NotIn, values: \
             [{namespace}]}}]"
        )
    };
    let mut found = Vec::new();
    let mut well = Vec::new();
    for hook in hooks {
        let by = |write: &Write, labels: &Labels| matching::webhook(&hook.spec, write, labels);
        let Some(judged) = judged(&writes, &at, by) else {
            continue;
        };
        match on_renewals(hook, &judged, renewal) {
            Some((grade, text)) => found.push((grade, exclude(&text, "its namespaceSelector"))),
            None => well.push(hook.described()),
        }
    }
    for (take, judged) in together(hooks, &writes, &at, renewal) {
        let text = format!(
            "{take} for a write to {}: while they do not respond, {}",
            judged.within(renewal),
            judged.effect()
        );
        found.push(warning(exclude(&text, "each namespaceSelector")));
    }
    Ok(worst(found, || match well.len() {
        0 => ok("no webhook matches"),
        _ => ok(format!("matched by {}", few(&well))),
    }))
}

/// Returns the writes of an election.
async fn lease_writes(doctor: &Doctor, namespace: &str, name: &str) -> Result<Vec<Write>, Verdict> {
    let leases: Api<Lease> = Api::namespaced(doctor.client.clone(), namespace);
    let lease = leases.get_metadata_opt(name).await;
    let lease = lease.map_err(|error| unreadable("leases", &error))?;
    // A new Lease has no labels.
    let labels = lease.and_then(|lease| lease.metadata.labels);
    let labels = labels.unwrap_or_default();
    let mut writes: Vec<_> = ["CREATE", "UPDATE"]
        .map(|operation| to(Kind::of::<Lease>(), operation, name, labels.clone()))
        .into();
    let records: Api<ServiceAccount> = Api::namespaced(doctor.client.clone(), namespace);
    let record = doctor.config.leader_election.record_name();
    if let Ok(Some(found)) = records.get_metadata_opt(&record).await {
        let labels = found.metadata.labels.unwrap_or_default();
        let kind = Kind::of::<ServiceAccount>();
        writes.push(to(kind, "UPDATE", &record, labels));
    }
    Ok(writes)
}

/// Returns the possible effect of a webhook on renewals.
fn on_renewals(hook: &Hook, judged: &Judged, renewal: Duration) -> Option<Verdict> {
    let Hook { id, down, .. } = hook;
    let limit = hook.timeout();
    let (resources, effect) = (judged.resources(), judged.effect());
    match down {
        Some(why) if hook.fails() && judged.judges == Judges::Yes => Some(error(format!(
            "{id} blocks writes to {resources}, and {effect}: {why}, and its failurePolicy is Fail"
        ))),
        Some(why) if hook.fails() => Some(warning(format!(
            "{id} may block writes to {resources}, and then {effect}: {why}, and its failurePolicy is Fail"
        ))),
        _ if limit >= renewal => Some(warning(format!(
            "{id} may take {limit:?} (timeoutSeconds) for a write to {}: while the webhook does not respond, {effect}",
            judged.within(renewal)
        ))),
        _ if hook.fails() => Some(warning(format!(
            "while {id} does not respond, {effect}: it matches writes to {resources}, and its failurePolicy is Fail"
        ))),
        _ => None,
    }
}

/// Checks the webhooks that match the other writes.
pub(super) async fn on_writes(doctor: &Doctor) -> Verdict {
    match write_findings(doctor).await {
        Ok(verdict) | Err(verdict) => verdict,
    }
}

async fn write_findings(doctor: &Doctor) -> Result<Verdict, Verdict> {
    let hooks = hooks(doctor).await?;
    let served = served(doctor).await?;
    let populated = primaries(doctor).await;
    let writes = writes(doctor).await;
    let election = &doctor.config.leader_election;
    let limit = if election.enabled {
        // The worst case: just before a renewal, at the end of a retry period.
        let room = election.renew_deadline + election.overtime();
        write_limit(room.saturating_sub(election.retry_period))
    } else {
        MUTATION_TIMEOUT
    };
    let mut found = Vec::new();
    let mut well = Vec::new();
    for hook in hooks {
        let judged = judged(&writes, &served, |write, labels| {
            matching::webhook(&hook.spec, write, labels)
        });
        let Some(judged) = judged else { continue };
        let is_populated = populated.as_ref().is_ok_and(|populated| {
            let mut places = judged.places.iter();
            places.any(|it| Place::is_in(it, populated))
        });
        let is_broad = is_populated || are_broad(&judged.places, &served);
        match in_the_way(hook, &judged, is_broad, limit) {
            Some(verdict) => found.push(verdict),
            None => well.push(hook.described()),
        }
    }
    for (take, judged) in together(hooks, &writes, &served, limit) {
        found.push(warning(format!(
            "{take} for writes to {} in {}, and each write times out after {limit:?}: while they do not respond, nothing is \
             written there, whatever their failurePolicy: set shorter timeoutSeconds, or a longer lease_duration and \
             renew_deadline",
            judged.resources(),
            few(&judged.places)
        )));
    }
    Ok(worst(found, || match well.len() {
        0 => ok("no webhook matches"),
        _ => ok(format!("matched by {}", few(&well))),
    }))
}

/// Returns the effect of a webhook on the controller's writes, if any.
///
/// `is_broad`: an affected place has an object, or all served namespaces or the cluster are affected.
fn in_the_way(hook: &Hook, judged: &Judged, is_broad: bool, limit: Duration) -> Option<Verdict> {
    let Hook { id, down, .. } = hook;
    let resources = judged.resources();
    let places = few(&judged.places);
    let takes = hook.timeout();
    match down {
        Some(why) if hook.fails() => {
            let refuses = judged.judges == Judges::Yes;
            let verb = if refuses { "blocks" } else { "may block" };
            let verdict = if refuses && judged.is_work && is_broad {
                error
            } else {
                warning
            };
            Some(verdict(format!(
                "{id} {verb} writes to {resources} in {places}: {why}, and its failurePolicy is Fail: check that it runs, \
                 or delete the configuration if the webhook is no longer installed"
            )))
        }
        _ if takes >= limit && judged.is_work => Some(warning(format!(
            "{id} may take {takes:?} for writes to {resources} in {places}, and each write times out after {limit:?}: while \
             the webhook does not respond, nothing is written there, whatever its failurePolicy: set a shorter \
             timeoutSeconds, or a longer lease_duration and renew_deadline"
        ))),
        _ => None,
    }
}

/// Returns the groups of webhooks whose timeouts add up to the time limit of a write, while each timeout is shorter. A group
/// contains all mutating webhooks of the write and its slowest validating webhook. Writes of events are ignored.
fn together<'a>(
    hooks: &[Hook],
    writes: &[Write],
    served: &[Place<'a>],
    limit: Duration,
) -> Vec<(String, Judged<'a>)> {
    let mut found = BTreeMap::<String, Judged>::new();
    for place in served {
        let work = writes.iter().filter(|write| write.plural != EVENTS);
        for write in work.filter(|write| place.has(write)) {
            let matched = |hook: &&Hook| matching::webhook(&hook.spec, write, place.labels);
            let called = hooks.iter().filter(|hook| matched(hook) > Judges::No);
            let (mut waited, validating): (Vec<_>, Vec<_>) =
                called.partition(|hook| hook.is_mutating);
            waited.extend(validating.into_iter().max_by_key(|hook| hook.timeout()));
            let all: Duration = waited.iter().map(|hook| hook.timeout()).sum();
            if all < limit || waited.iter().any(|hook| hook.timeout() >= limit) {
                continue;
            }
            let names = few(waited.iter().map(|hook| hook.described()));
            let take = format!("{names} may take {all:?} one after another");
            let judged = found.entry(take).or_insert_with(Judged::none);
            judged.resources.insert(write.resource());
            if judged.places.last() != Some(&place.name) {
                judged.places.push(place.name);
            }
        }
    }
    found.into_iter().collect()
}

/// Returns the writes to owned objects, to primary objects and to events.
async fn writes(doctor: &Doctor) -> Vec<Write> {
    let primary = doctor.needs.primary();
    let versions = versions(&doctor.client, primary.group).await;
    let mut all = Vec::new();
    for Permission {
        verb,
        kind,
        subresource,
    } in doctor.needs.rights()
    {
        let others = versions.iter().map(|version| (kind.group, &**version));
        let others =
            others.filter(|(group, version)| *group == primary.group && *version != kind.version);
        let others: Vec<_> = others.collect();
        let mut add = |operation| all.push(written(kind, operation, subresource, &others));
        match verb {
            // The reconciler may also delete the objects that it creates.
            "create" => ["CREATE", "DELETE"].into_iter().for_each(add),
            "patch" | "update" => add("UPDATE"),
            _ => {}
        }
    }
    // The API server stores the events of both groups in the same place.
    let core = [("", "v1")];
    let events = ["CREATE", "UPDATE"];
    all.extend(events.map(|operation| written(Kind::of::<Event>(), operation, "", &core)));
    all
}

/// Returns the served versions of a group.
async fn versions(client: &Client, group: &str) -> Vec<String> {
    let groups = client.list_api_groups().await;
    let groups = groups.into_iter().flat_map(|all| all.groups);
    let versions = groups.filter(|it| it.name == group);
    let versions = versions.flat_map(|group| group.versions);
    versions.map(|version| version.version).collect()
}

/// Lists the policies that can reject or change a write. They run in the API server, so they are always available.
pub(super) async fn policies(doctor: &Doctor) -> Verdict {
    match policy_findings(doctor).await {
        Ok(verdict) | Err(verdict) => verdict,
    }
}

async fn policy_findings(doctor: &Doctor) -> Result<Verdict, Verdict> {
    let known = namespaces(doctor).await?;
    let served = served(doctor).await?;
    let writes = writes(doctor).await;
    let of_lease = match doctor.lease() {
        Ok((namespace, name)) => {
            let at = known.iter().filter(|it| it.name == namespace);
            (
                at.map(Place::of).collect(),
                lease_writes(doctor, namespace, name).await?,
            )
        }
        Err(_) => (Vec::new(), Vec::new()),
    };
    let client = &doctor.client;
    let refusing = bound::<ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding>(client);
    let changing = bound::<MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding>(client);
    let refusing = refusing.await?.into_iter().map(|it| ("refuse", it));
    let changing = changing.await?.into_iter().map(|it| ("change", it));
    let fencing = format!("{}-fencing", doctor.app.name);
    let mut texts = BTreeSet::new();
    for (does, (name, policy, binding)) in refusing.chain(changing) {
        let is_audit =
            does == "refuse" && !items(&binding["validationActions"]).any(|it| it == "Deny");
        if is_audit || name.contains(&fencing) {
            continue;
        }
        let by =
            |write: &Write, labels: &Labels| matching::policy(&policy, &binding, write, labels);
        let of_work = judged(&writes, &served, by);
        let of_lease = judged(&of_lease.1, &of_lease.0, by);
        let judged = of_work.iter().chain(&of_lease);
        let resources: BTreeSet<_> = judged.flat_map(|it| it.resources.clone()).collect();
        if !resources.is_empty() {
            let resources = resources.into_iter().collect::<Vec<_>>().join(", ");
            texts.insert(format!("{name} can {does} writes to {resources}"));
        }
    }
    Ok(match texts.len() {
        0 => ok("none matches the controller's writes, apart from the fencing policy"),
        _ => ok(few(&texts)),
    })
}

/// Returns the name and the spec of each bound policy, with the spec of its binding.
///
/// # Errors
/// A list failed or is forbidden.
async fn bound<P, B>(client: &Client) -> Result<Vec<(String, Value, Value)>, Verdict>
where
    P: Resource<DynamicType = ()>,
    B: Resource<DynamicType = ()>,
{
    let policies = optional::<P>(client).await?;
    let bindings = optional::<B>(client).await?;
    let mut all = Vec::new();
    for policy in policies {
        let name = policy.name_any();
        let specs = bindings.iter().map(|binding| &binding.data["spec"]);
        let specs = specs.filter(|spec| spec["policyName"] == *name);
        all.extend(specs.map(|it| (name.clone(), policy.data["spec"].clone(), it.clone())));
    }
    Ok(all)
}

/// Returns all objects of a resource type that some supported API servers do not have.
async fn optional<K: Resource<DynamicType = ()>>(
    client: &Client,
) -> Result<Vec<DynamicObject>, Verdict> {
    match all::<K>(client, &ListParams::default()).await {
        Ok(found) => Ok(found),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(unreadable(&K::plural(&()), &error)),
    }
}
