//! Server-side fencing (`deploy/components/fencing`): whether its policy is in force, and uses the record of this program's
//! Lease.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    coordination::v1::Lease,
    core::v1::{Pod, ServiceAccount},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, PostParams},
};
use serde_json::Value;

use super::{
    cluster::{all, api_of, text},
    subject::Doctor,
    verdict::{Grade, Verdict, error, failed, is_forbidden, ok, skipped, warning},
};
use crate::{
    api::{failure::brief, kind::Kind},
    config::{
        app::App,
        settings::{LeaderElection, SAFE_MARGIN},
    },
    election::fencing_record::{account_key, holder_key, lease_of, term_key},
};

const APPLY: &str = "install the fencing component";

/// The prefix of a service account's user name.
const ACCOUNT: &str = "system:serviceaccount:";

/// The state of the election that the policy must follow.
struct Election {
    namespace: String,
    /// The name of the fencing record.
    record: String,
    /// Whether the settings name it.
    is_configured: bool,
    /// Whether it exists.
    exists: bool,
    /// The annotation of the record with the leader's identity.
    key: String,
    /// The identity in that annotation.
    recorded: String,
    /// The namespaces and names of records that bindings use and that do not exist.
    missing: Vec<[String; 2]>,
    /// The annotation of the record with the controller's service account, and the user name of that account.
    account: (String, String),
    /// The holder of the Lease.
    holder: String,
    /// The user name of the holder, if its pod exists.
    user: Option<String>,
}

pub(super) async fn examine(doctor: &Doctor) -> Verdict {
    match found(doctor).await {
        Ok(verdict) => verdict,
        Err(error) if is_forbidden(&error) => {
            skipped("not allowed to get it: this requires the permissions of an administrator")
        }
        // Kubernetes before 1.30 has no such API.
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let text = "this API server does not support the policy, which requires Kubernetes 1.30 or later";
            match doctor.config.leader_election.fencing_reason() {
                Some(why) => warning(format!(
                    "{text}, and {why}; set lease_duration to at least {SAFE_MARGIN:?} more than renew_deadline"
                )),
                None => skipped(text),
            }
        }
        Err(error) => failed("get it", &error),
    }
}

async fn found(doctor: &Doctor) -> kube::Result<Verdict> {
    let client = &doctor.client;
    let settings = &doctor.config.leader_election;
    let part = format!("{}-fencing", doctor.app.name);
    let mut policies = all::<ValidatingAdmissionPolicy>(client, &ListParams::default()).await?;
    // The fence recognizes the policy's rejections by the same part of the name.
    policies.retain(|it| it.name_any().contains(&part));
    let bindings = all::<ValidatingAdmissionPolicyBinding>(client, &ListParams::default()).await?;
    let Some(namespace) = doctor.namespace.as_deref() else {
        return Ok(nowhere(&policies, &bindings));
    };
    let [key, account] = [holder_key(doctor.app), account_key(doctor.app)];
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    // Replicas without an election do not use the Lease.
    let lease = if settings.enabled {
        leases.get_opt(&settings.lease_name).await?
    } else {
        None
    };
    let uid = lease.as_ref().and_then(ResourceExt::uid);
    let holder = lease.and_then(|lease| lease.spec?.holder_identity);
    let holder = holder.unwrap_or_default();
    let holders = user_of(doctor, namespace, &holder).await?;
    let is_configured = settings.fencing_record.is_some();
    let mut record = settings.record_name();
    let mut found = record_in(client, namespace, &record).await?;
    if found.is_none() && !is_configured {
        let lease = (uid.unwrap_or_default(), holders.as_deref());
        let used = used_record(doctor, namespace, lease, &policies, &bindings).await?;
        if let Some((name, annotations)) = used {
            record = name;
            found = Some(annotations);
        }
    }
    let exists = found.is_some();
    let found = found.unwrap_or_default();
    let recorded = found.get(&key).cloned().unwrap_or_default();
    let named = found.get(&account);
    let named = named.map_or(doctor.app.name, String::as_str);
    let user = format!("{ACCOUNT}{namespace}:{named}");
    let mut election = Election {
        namespace: namespace.to_owned(),
        record,
        is_configured,
        exists,
        key,
        recorded,
        missing: Vec::new(),
        account: (account, user),
        user: holders,
        holder,
    };
    let mut elsewhere = Vec::new();
    let mut also = None;
    for binding in &bindings {
        let spec = &binding.data["spec"];
        let is_one = policies
            .iter()
            .any(|it| spec["policyName"] == it.name_any());
        let [at, of] = record_of(spec);
        if !is_one || of.is_empty() {
            continue;
        }
        let policy = text(&spec["policyName"]);
        match record_in(client, at, of).await? {
            None => election.missing.push([at, of].map(str::to_owned)),
            Some(_) if at != namespace => elsewhere.push((policy.to_owned(), at.to_owned())),
            Some(other) if of != election.record => {
                let account = other.get(&election.account.0);
                let is_same = account.map_or(doctor.app.name, String::as_str) == named;
                also = also.or(is_same.then(|| judged_by_another(&election, policy, of)));
            }
            Some(_) => {}
        }
    }
    // Policies of other installations, which have a record of their own.
    policies.retain(|it| !elsewhere.iter().any(|(name, _)| *name == it.name_any()));
    if policies.is_empty()
        && let Some((name, at)) = elsewhere.first()
    {
        let text = format!(
            "not installed for this installation: {name} protects the installation in {at}"
        );
        return Ok(not_installed(&text, settings));
    }
    let verdict = judge(doctor.app, &election, &policies, &bindings);
    let verdict = verdict.unwrap_or_else(|| not_installed("not installed", settings));
    let verdict = also.filter(|_| verdict.0 == Grade::Ok).unwrap_or(verdict);
    if verdict.0 != Grade::Ok {
        return Ok(verdict);
    }
    Ok(has_an_account(client, &election).await?.unwrap_or(verdict))
}

/// Returns the verdict if no policy is installed.
fn not_installed(text: &str, settings: &LeaderElection) -> Verdict {
    match settings.fencing_reason() {
        Some(why) => warning(format!(
            "{text}, and {why}; {APPLY}, or set lease_duration to at least {SAFE_MARGIN:?} more than renew_deadline"
        )),
        None => skipped(format!("{text}; the fencing component has it")),
    }
}

/// The error about a policy that judges the service account of this installation by the record of another Lease.
fn judged_by_another(election: &Election, policy: &str, record: &str) -> Verdict {
    let Election {
        namespace,
        account: (_, user),
        ..
    } = election;
    error(format!(
        "{policy} judges {user} by serviceaccount/{record} in {namespace}, the record of another Lease, and rejects each leader: \
         give each installation a service account of its own"
    ))
}

/// Judges the policies if the election is disabled and the namespace is unknown. No fencing record can name such a replica, so a
/// bound policy rejects all its writes.
fn nowhere(policies: &[DynamicObject], bindings: &[DynamicObject]) -> Verdict {
    let names = policies.iter().map(ResourceExt::name_any);
    let mut bound = names.filter(|name| {
        let mut bindings = bindings.iter();
        bindings.any(|it| it.data["spec"]["policyName"] == **name)
    });
    match bound.next() {
        None => skipped("not installed; the fencing component has it"),
        Some(name) => error(format!(
            "leader_election.enabled is false, and {name} rejects the writes of its service account unless the fencing \
             record names the replica: set leader_election.lease_namespace, enable the election, or remove \
             the fencing component"
        )),
    }
}

/// Returns the name and the annotations of the record that a policy uses for this Lease, for a `doctor` without the settings of
/// the replicas. The last leader named in it held the Lease with this UID. Without a last leader, the record names the service
/// account of the Lease's holder.
async fn used_record(
    doctor: &Doctor,
    namespace: &str,
    (uid, user): (String, Option<&str>),
    policies: &[DynamicObject],
    bindings: &[DynamicObject],
) -> kube::Result<Option<(String, BTreeMap<String, String>)>> {
    let [account, term] = [account_key(doctor.app), term_key(doctor.app)];
    for binding in bindings {
        let spec = &binding.data["spec"];
        let mut policies = policies.iter();
        let [at, of] = record_of(spec);
        if at != namespace
            || of.is_empty()
            || !policies.any(|it| spec["policyName"] == it.name_any())
        {
            continue;
        }
        let Some(annotations) = record_in(&doctor.client, at, of).await? else {
            continue;
        };
        let named = annotations.get(&account);
        let named = named.map_or(doctor.app.name, String::as_str);
        let is_ours = match annotations.get(&term) {
            Some(term) => lease_of(term) == uid,
            None => user.is_some_and(|user| *user == format!("{ACCOUNT}{at}:{named}")),
        };
        if is_ours {
            return Ok(Some((of.to_owned(), annotations)));
        }
    }
    Ok(None)
}

/// Returns the annotations of a fencing record, if it exists.
async fn record_in(
    client: &Client,
    namespace: &str,
    name: &str,
) -> kube::Result<Option<BTreeMap<String, String>>> {
    let records: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let found = records.get_metadata_opt(name).await?;
    Ok(found.map(|it| it.metadata.annotations.unwrap_or_default()))
}

/// Returns an error unless the service account that the record names exists and may write the record.
async fn has_an_account(client: &Client, election: &Election) -> kube::Result<Option<Verdict>> {
    let Election {
        namespace,
        record,
        account: (key, user),
        ..
    } = election;
    let Some(account) = user.rsplit(':').next() else {
        return Ok(None);
    };
    if record_in(client, namespace, account).await?.is_none() {
        return Ok(Some(error(format!(
            "the fencing policy is not in force: it applies to {user}, and there is no such service account; specify the \
             controller's in the annotation {key} of serviceaccount/{record} in {namespace}"
        ))));
    }
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.clone()),
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.clone()),
                verb: Some("patch".to_owned()),
                resource: Some("serviceaccounts".to_owned()),
                name: Some(record.clone()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    // Without the permission to create a review, the result is unknown.
    let answer = reviews.create(&PostParams::default(), &review).await;
    let status = answer.ok().and_then(|it| it.status);
    let is_refused = status.is_some_and(|it| !it.allowed && it.evaluation_error.is_none());
    Ok(is_refused.then(|| {
        error(format!(
            "{user} has no permission to patch serviceaccount/{record} in {namespace}, so the policy rejects each leader: {APPLY}"
        ))
    }))
}

/// Returns the user name of the Lease's holder. The pod must be in the namespace of the Lease.
async fn user_of(doctor: &Doctor, namespace: &str, holder: &str) -> kube::Result<Option<String>> {
    let Some((pod, uid)) = holder.rsplit_once('_').filter(|(pod, _)| !pod.is_empty()) else {
        return Ok(None);
    };
    let pods = api_of(&doctor.client, &Kind::of::<Pod>(), Some(namespace));
    let pod = match pods.get_opt(pod).await {
        Err(error) if is_forbidden(&error) => None,
        pod => pod?,
    };
    let pod = pod.filter(|pod| pod.uid().as_deref() == Some(uid));
    let account = pod
        .as_ref()
        .and_then(|pod| pod.data["spec"]["serviceAccountName"].as_str());
    Ok(account.map(|account| format!("{ACCOUNT}{namespace}:{account}")))
}

/// Returns the verdict on the installed policies, or `None` if none is installed.
fn judge(
    app: &App,
    election: &Election,
    policies: &[DynamicObject],
    bindings: &[DynamicObject],
) -> Option<Verdict> {
    let part = format!("{}-fencing", app.name);
    let all: Vec<_> = policies.iter().collect();
    // A policy without its record may reject the writes of all installations.
    let blocking = bindings.iter().map(|binding| &binding.data["spec"]);
    let mut blocking =
        blocking.filter(|spec| spec["paramRef"]["parameterNotFoundAction"] == "Deny");
    if let Some(lacking) = blocking.find_map(|spec| has_its_record(election, spec).err()) {
        return Some(lacking);
    }
    // The other policies may belong to other installations.
    let goes_by_ours = |policy: &&&DynamicObject| {
        bindings.iter().any(|binding| {
            let spec = &binding.data["spec"];
            spec["policyName"] == policy.name_any()
                && record_of(spec) == [&*election.namespace, &*election.record]
        })
    };
    let ours: Vec<_> = all.iter().filter(goes_by_ours).collect();
    let by_name = || all.iter().find(|it| it.name_any() == part);
    let policy = ours.first().copied().or_else(by_name).or(all.first())?;
    let name = policy.name_any();
    if let Some(other) = ours.get(1) {
        return Some(warning(format!(
            "{name} is not the only policy that uses this record: there is {}, too; delete the old policies",
            brief(&other.name_any())
        )));
    }
    let verdict = follows(election, policy)
        .and_then(|()| is_bound(election, &name, bindings))
        .and_then(|()| judges_the_leader(election, policy))
        .and_then(|()| names_the_leader(election, &name));
    Some(verdict.err().unwrap_or_else(|| {
        let Election {
            namespace, record, ..
        } = election;
        ok(format!(
            "{name} uses the record serviceaccount/{record} in {namespace}"
        ))
    }))
}

/// Returns the namespace and the name of the record in a binding.
fn record_of(binding: &Value) -> [&str; 2] {
    ["namespace", "name"].map(|field| text(&binding["paramRef"][field]))
}

/// Checks that the policy reads the leader's identity from a record.
fn follows(election: &Election, policy: &DynamicObject) -> Result<(), Verdict> {
    let name = policy.name_any();
    let spec = &policy.data["spec"];
    let [version, kind] = ["apiVersion", "kind"].map(|field| text(&spec["paramKind"][field]));
    if (version, kind) != ("v1", "ServiceAccount") {
        return Err(error(format!(
            "{name} uses {} as the record, not a ServiceAccount: {APPLY} of this version",
            brief(format!("{version} {kind}").trim())
        )));
    }
    let expressions = ["variables", "validations"].map(|field| spec[field].as_array());
    let mut expressions = expressions.into_iter().flatten().flatten();
    if !expressions.any(|it| text(&it["expression"]).contains(&election.key)) {
        return Err(error(format!(
            "{name} does not read the annotation {}, which names the leader: {APPLY} of this version",
            election.key
        )));
    }
    Ok(())
}

/// Checks that the policy is bound, and that all its bindings deny writes by the record of this Lease.
fn is_bound(election: &Election, name: &str, bindings: &[DynamicObject]) -> Result<(), Verdict> {
    let Election {
        namespace, record, ..
    } = election;
    let specs = bindings.iter().map(|binding| &binding.data["spec"]);
    let mut bound = specs.filter(|spec| spec["policyName"] == name).peekable();
    if bound.peek().is_none() {
        return Err(error(format!(
            "{name} has no binding, and is not in force: {APPLY}"
        )));
    }
    for spec in bound {
        let actions = spec["validationActions"].as_array();
        let mut actions = actions.into_iter().flatten();
        if !actions.any(|action| action == "Deny") {
            return Err(error(format!(
                "{name} rejects nothing: its binding's validationActions lack Deny; {APPLY}"
            )));
        }
        has_its_record(election, spec)?;
        let [at, of] = record_of(spec);
        if (of, at) != (record, namespace) {
            return Err(error(format!(
                "{name} uses the record serviceaccount/{of} in {at}, but the Lease's is {record} in {namespace}: {}",
                mend(election, [at, of])
            )));
        }
    }
    Ok(())
}

/// Returns how to mend a binding with another record than the Lease's. A binding to a missing record disables fencing. And without
/// the setting, the replicas may use the record of the binding.
fn mend(election: &Election, [at, of]: [&str; 2]) -> String {
    let mend = if election.exists {
        format!("specify {} in the binding's paramRef", election.record)
    } else {
        APPLY.to_owned()
    };
    if election.is_configured || at != election.namespace {
        mend
    } else {
        format!(
            "if the controller uses {of}, run doctor with --fencing-record={of}; otherwise {mend}"
        )
    }
}

/// Checks that the record of a binding exists.
fn has_its_record(election: &Election, binding: &Value) -> Result<(), Verdict> {
    let Election {
        namespace, record, ..
    } = election;
    let [at, of] = record_of(binding);
    if !election.missing.iter().any(|it| *it == [at, of]) {
        return Ok(());
    }
    let effect = match &binding["paramRef"]["parameterNotFoundAction"] {
        action if action == "Deny" => "rejects all matching writes, also those of other users",
        _ => "is not in force",
    };
    let mend = if [at, of] == [namespace, record] {
        APPLY.to_owned()
    } else {
        format!(
            "the Lease's is {record} in {namespace}: {}",
            mend(election, [at, of])
        )
    };
    Err(error(format!(
        "{} {effect}: its record serviceaccount/{of} in {at} is missing; {mend}",
        text(&binding["policyName"])
    )))
}

/// Checks that the policy applies to the leader's writes, and rejects writes that it cannot evaluate.
fn judges_the_leader(election: &Election, policy: &DynamicObject) -> Result<(), Verdict> {
    let name = policy.name_any();
    let spec = &policy.data["spec"];
    let conditions = spec["matchConditions"].as_array().into_iter().flatten();
    let mut accounts = conditions
        .map(|it| text(&it["expression"]))
        .filter(|it| it.contains(ACCOUNT))
        .peekable();
    if let Some(user) = &election.user
        && accounts.peek().is_some()
        && !accounts.any(|it| judges(election, it, user))
    {
        return Err(error(format!(
            "{name} does not apply to {}, which holds the Lease: specify its service account in the annotation {} of \
             serviceaccount/{} in {}",
            brief(user),
            election.account.0,
            election.record,
            election.namespace,
        )));
    }
    if spec["failurePolicy"] == "Ignore" {
        return Err(warning(format!(
            "{name} admits writes that it cannot evaluate: failurePolicy is Ignore, not Fail; {APPLY}"
        )));
    }
    Ok(())
}

/// Returns whether a condition selects the writes of this user: by the record's annotation, or by a literal.
fn judges(election: &Election, condition: &str, user: &str) -> bool {
    let (key, annotated) = &election.account;
    let mut literals = condition.split(['\'', '"']);
    literals.any(|literal| literal == user || (literal == key && annotated == user))
}

/// Checks that the record names the holder of the Lease.
fn names_the_leader(election: &Election, name: &str) -> Result<(), Verdict> {
    let Election {
        namespace,
        record,
        recorded,
        holder,
        ..
    } = election;
    // A new leader writes only after the record names it.
    if !holder.is_empty() && recorded != holder {
        let [recorded, holder] = [recorded, holder].map(|name| brief(name));
        return Err(warning(format!(
            "{name}: the record serviceaccount/{record} in {namespace} names {recorded:?}, but the Lease's holder is \
             {holder:?}: if this lasts, check the holder's log and its permission to patch the record"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
