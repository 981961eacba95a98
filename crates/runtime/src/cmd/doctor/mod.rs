//! The command `doctor`: checks the cluster as a replica would use it, and prints one line for each check.
//!
//! It writes nothing: its client contains the fence, and never has a term.

mod cluster;
mod collector;
mod conversion;
mod crd;
mod installations;
mod lease;
mod matching;
mod namespaces;
mod object;
mod optional;
mod places;
mod policy;
pub(crate) mod replica;
mod rights;
mod server;
mod subject;
mod verdict;
mod webhooks;

use std::fmt;

use futures::future::{FutureExt as _, LocalBoxFuture, join, join_all};
use kube::ResourceExt as _;
use tokio::{
    sync::{OnceCell, watch},
    time::timeout,
};

use self::{
    subject::Doctor,
    verdict::{Grade, LIMIT, Verdict, error, ok, skipped, warning},
};
use crate::{
    api::{conversion::Definition, failure::is_hidden, key::Key, kind::Kind},
    cache::{presence::definition_of, readiness::namespace::NamespaceName},
    client::{cluster::Cluster, fence::FenceLayer},
    cmd::run,
    config::{app::App, descriptors, environment::Host, settings::Config},
    controller::{builder::Builder, scopes},
    election::{self, identity::ElectionTarget},
    telemetry::{self, metrics::Metrics, object_state::ObjectName},
};

/// An error that prevents all checks, and also the start of a replica.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    #[error(transparent)]
    Run(#[from] run::Error),
}

/// The results of all checks, for standard output.
pub(crate) struct Report(Vec<(String, Verdict)>);

impl Report {
    /// Whether no check found an error. Warnings are allowed.
    pub(crate) fn is_well(&self) -> bool {
        let mut grades = self.0.iter().map(|(_, (grade, _))| *grade);
        grades.all(|grade| grade != Grade::Error)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.0.iter().map(|(check, _)| check.len()).max();
        let width = longest.unwrap_or_default();
        for (check, (grade, text)) in &self.0 {
            // Texts of the API server and of the replica cannot break the line or control the terminal.
            let text = text.replace(is_hidden, " ");
            writeln!(f, "{:<7}  {check:<width$}  {text}", grade.word())?;
        }
        Ok(())
    }
}

/// Runs all checks. With `object`, runs only the checks that can explain why this object is not written. Must be called within a
/// Tokio runtime.
///
/// # Errors
/// See [`Error`]. An API server that does not respond is a result, not an error.
pub(crate) async fn examine(
    app: &'static App,
    host: &Host,
    mut config: Config,
    object: Option<&ObjectName>,
    crds: Vec<Definition>,
    build: impl FnOnce(&mut Builder),
) -> Result<Report, Error> {
    let ways = telemetry::ways(host, &config)?;
    let cluster = Cluster::find(app, host, &config).await;
    let mut cluster = cluster.map_err(run::Error::from)?;
    let pod_namespace = cluster.pod_namespace.take();
    let target = ElectionTarget::of(
        app,
        host,
        &config.leader_election,
        &config.installation,
        pod_namespace,
    );
    // Without the namespace of the Lease, all other checks are possible.
    let namespace = match target {
        Err(election::error::Error::Namespace(_)) => None,
        target => target.map_err(run::Error::from)?.namespace,
    };
    let metrics = Metrics::disconnected(app);
    let fence = FenceLayer::new(watch::channel(None).1, &metrics);
    let (client, address, _) = cluster.fenced(&fence, &metrics);
    let namespaces = scopes(&config.namespaces);
    let mut builder = Builder::new(host, &client, namespaces.clone(), &metrics);
    build(&mut builder);
    let mut needs = builder.needs_of_program();
    let (mut key, mut is_watched) = (None, true);
    if let Some(object) = object {
        let kinds = needs.controllers.iter().map(|it| it.primary);
        match object.choose(&kinds.collect::<Vec<_>>()) {
            Ok((chosen, named)) => {
                // The checks are about the first one.
                needs.controllers.swap(0, chosen);
                if let Some(namespace) = named.namespace_if_any() {
                    let only = vec![namespace.to_owned()];
                    let watched = std::mem::replace(&mut config.namespaces, only);
                    is_watched = watched.is_empty() || watched.contains(&config.namespaces[0]);
                }
                key = Some(named);
            }
            Err(wanted) => {
                let line = ("object".to_owned(), error(format!("{object}: {wanted}")));
                return Ok(Report(vec![line]));
            }
        }
    }
    let kinds = needs.watches();
    let shortage = descriptors::shortage(host.descriptors, &namespaces, &kinds);
    let wanted = descriptors::wanted(namespaces.len(), &kinds);
    let watches = shortage.map_or_else(|| ok(format!("enough for {wanted} watches")), warning);
    let doctor = Doctor {
        app,
        host: host.clone(),
        config,
        client,
        needs,
        namespace,
        namespaces: OnceCell::new(),
        primaries: OnceCell::new(),
        hooks: OnceCell::new(),
    };

    let answer = timeout(LIMIT, server::ask(&doctor)).await;
    let answer =
        answer.unwrap_or_else(|_| Err(format!("no answer in {LIMIT:?}; {}", server::REACHABLE)));
    let mut checks = match &key {
        Some(key) => doctor.checks_of(key, is_watched),
        None => doctor.checks(&crds),
    };
    if answer.is_err() {
        for (_, check) in &mut checks {
            *check = async { skipped("the API server does not answer") }.boxed_local();
        }
    }
    let mut found = vec![("API server".to_owned(), server::version(&address, &answer))];
    if object.is_none() {
        let collector = collector::examine(ways).boxed_local();
        checks.push(("collector".to_owned(), collector));
        found.push(("clock".to_owned(), server::clock(&answer)));
    }
    let replica = async {
        match object {
            Some(object) => object::on_replica(&doctor, object).await,
            None => replica::examine(&doctor).await,
        }
    };
    let checks = join_all(checks.into_iter().map(bounded));
    let (checks, replica) = join(checks, replica).await;
    found.extend(checks);
    if object.is_none() {
        found.push(("file descriptors".to_owned(), watches));
    }
    found.extend(replica);
    Ok(Report(found))
}

type Check<'a> = (String, LocalBoxFuture<'a, Verdict>);

async fn bounded((name, check): Check<'_>) -> (String, Verdict) {
    let verdict = timeout(LIMIT, check).await;
    let silent = |_| error(format!("no answer in {LIMIT:?}"));
    (name, verdict.unwrap_or_else(silent))
}

impl Doctor {
    /// The checks that need a working API server.
    fn checks<'a>(&'a self, crds: &'a [Definition]) -> Vec<Check<'a>> {
        let mut checks: Vec<Check<'a>> = Vec::new();
        for crd in crds.iter().map(Definition::crd) {
            let check = crd::examine(self, crd).boxed_local();
            checks.push((format!("CRD {}", crd.name_any()), check));
        }
        for kind in &self.needs.optional {
            let check = optional::examine(self, kind).boxed_local();
            checks.push((format!("optional {}", definition_of(kind)), check));
        }
        checks.extend(self.permissions());
        let others: [Check<'a>; 9] = [
            (
                "permissions for the Lease".into(),
                rights::of_lease(self).boxed_local(),
            ),
            (
                "permissions for the fencing record".into(),
                rights::of_record(self).boxed_local(),
            ),
            ("Lease".into(), lease::examine(self).boxed_local()),
            ("fencing policy".into(), policy::examine(self).boxed_local()),
            (
                "webhooks on the Lease".into(),
                webhooks::on_lease(self).boxed_local(),
            ),
            (
                "webhooks on writes".into(),
                webhooks::on_writes(self).boxed_local(),
            ),
            (
                "admission policies".into(),
                webhooks::policies(self).boxed_local(),
            ),
            (
                "other installations".into(),
                installations::examine(self).boxed_local(),
            ),
            (
                match self.needs.primary() {
                    kind if kind.is_cluster_scoped() => kind.plural.to_owned(),
                    kind => format!("namespaces with {}", kind.plural),
                },
                namespaces::examine(self).boxed_local(),
            ),
        ];
        checks.extend(others);
        checks
    }

    /// The checks of the permissions in each configured namespace, and of the permissions for cluster-scoped types.
    fn permissions(&self) -> Vec<Check<'_>> {
        let mut namespaces = scopes(&self.config.namespaces);
        let is_limited = !self.config.namespaces.is_empty();
        if is_limited && self.needs.watched.iter().any(Kind::is_cluster_scoped) {
            namespaces.push(Some(String::new()));
        }
        let checks = namespaces.into_iter().map(|namespace| {
            let place = NamespaceName(namespace.as_deref()).to_string();
            let check = async move { rights::of_scope(self, namespace.as_deref()).await };
            (format!("permissions in {place}"), check.boxed_local())
        });
        checks.collect()
    }

    /// Returns the checks of one object. For a namespaced one, the setting `namespaces` of this `Doctor` contains only its
    /// namespace.
    fn checks_of<'a>(&'a self, object: &'a Key, is_watched: bool) -> Vec<Check<'a>> {
        let mut checks: Vec<Check<'a>> = vec![(
            format!("{} {object}", self.needs.primary().kind),
            object::examine(self, object).boxed_local(),
        )];
        let namespace = object.namespace_if_any();
        if let Some(namespace) = namespace {
            checks.push((
                format!("namespace {namespace}"),
                object::namespace(&self.client, namespace, is_watched).boxed_local(),
            ));
        }
        let mut permissions = self.permissions();
        if namespace.is_some() {
            permissions[0].0 = "permissions there".into();
        }
        checks.extend(permissions);
        let others: [Check<'a>; 4] = [
            ("Lease".into(), lease::examine(self).boxed_local()),
            (
                "webhooks on writes".into(),
                webhooks::on_writes(self).boxed_local(),
            ),
            (
                "admission policies".into(),
                webhooks::policies(self).boxed_local(),
            ),
            (
                match namespace {
                    Some(_) => format!("{} there", self.needs.primary().plural),
                    None => self.needs.primary().plural.to_owned(),
                },
                namespaces::examine(self).boxed_local(),
            ),
        ];
        checks.extend(others);
        checks
    }

    /// Returns the namespace and the name of the Lease, or the skipped verdict without an election.
    fn lease(&self) -> Result<(&str, &str), Verdict> {
        let election = &self.config.leader_election;
        match &self.namespace {
            _ if !election.enabled => Err(skipped("leader_election.enabled is false")),
            Some(namespace) => Ok((namespace, &election.lease_name)),
            None => {
                let error = election::error::Error::Namespace(self.app.env_prefix());
                Err(warning(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Control characters in a text of the API server do not break the line.
    #[test]
    fn a_check_is_one_line() {
        let said = "held by \u{1b}[2Jme\r\nok\u{2028}\u{202e}     all";
        let report = Report(vec![("Lease".to_owned(), warning(said))]);
        let line = "warning  Lease  held by  [2Jme  ok       all\n";
        assert_eq!(report.to_string(), line);
    }
}
