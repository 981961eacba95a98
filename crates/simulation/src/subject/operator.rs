//! An author's operator.

use std::fmt;

use k8s_openapi::{
    api::rbac::v1::ClusterRole,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use operator_runtime::{App, Builder};
use operator_testkit::api_server::{Now, Store};
use serde_json::Value;

use super::{AnySubject, Subject, users};
use crate::{
    judge::{self, Case, Violation},
    outside::Place,
    plan::{Action, Plan},
    program::Program,
    scripts::Script,
    trace::Time,
};

type Build = dyn Fn(&mut Builder, &Place<'_>) + Send + Sync;

/// An operator under simulation.
pub struct Operator {
    app: &'static App,
    build: Box<Build>,
    crds: Vec<CustomResourceDefinition>,
    pub(crate) subjects: Vec<Box<dyn AnySubject>>,
    roles: Option<Vec<ClusterRole>>,
}

impl Operator {
    /// An operator whose `build` declares the controllers, in every replica. A system outside the cluster is
    /// [`place.outside()`](Place::outside). The settings of the program are not read: this function passes fixed ones.
    pub fn new(
        app: &'static App,
        build: impl Fn(&mut Builder, &Place<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            app,
            build: Box::new(build),
            crds: Vec::new(),
            subjects: Vec::new(),
            roles: None,
        }
    }

    /// Adds a reconciled resource type and its CRD. Users create, change and delete its objects.
    #[must_use]
    pub fn subject(mut self, crd: CustomResourceDefinition, subject: impl Subject) -> Self {
        self.crds.push(crd);
        self.subjects.push(Box::new(subject));
        self
    }

    /// Limits the permissions of the replicas to these rules, in YAML: `ClusterRole` and `Role` documents, such as the output of the
    /// command `rbac`. Without rules, they have all permissions. Permissions for Leases and Events need not be listed.
    ///
    /// # Panics
    /// If a document is not a role.
    #[must_use]
    pub fn rbac(mut self, yaml: &str) -> Self {
        let roles = serde_saphyr::from_multiple::<ClusterRole>(yaml);
        self.roles = Some(roles.unwrap_or_else(|error| panic!("RBAC rules: {error}")));
        self
    }

    /// Returns the schema of the spec of a subject, and the names of its kind.
    pub(super) fn crd(&self, plural: &str) -> &CustomResourceDefinition {
        let mut crds = self.crds.iter();
        let crd = crds.find(|crd| crd.spec.names.plural == plural);
        crd.unwrap_or_else(|| panic!("no CRD of the {plural} of a subject"))
    }

    fn allows(&self, verb: &str, resource: &str) -> bool {
        let has = |all: Option<&Vec<String>>, it: &str| {
            all.is_some_and(|all| all.iter().any(|one| one == it || one == "*"))
        };
        let always = ["leases", "events", "serviceaccounts"];
        let verb = if verb == "stream" { "watch" } else { verb };
        self.roles.as_ref().is_none_or(|roles| {
            let mut rules = roles.iter().flat_map(|role| role.rules.iter().flatten());
            always.contains(&resource)
                || rules.any(|rule| {
                    has(Some(&rule.verbs), verb) && has(rule.resources.as_ref(), resource)
                })
        })
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.app.name)
    }
}

impl Program for Operator {
    fn app(&self) -> &'static App {
        self.app
    }

    fn crds(&self) -> Vec<CustomResourceDefinition> {
        self.crds.clone()
    }

    fn build(&self, builder: &mut Builder, place: &Place<'_>) {
        (self.build)(builder, place);
    }

    fn users(&self, plan: &mut Plan, heal: Time) {
        users::act(self, plan, heal);
    }

    fn judge(&self, case: &Case<'_>, found: &mut Vec<Violation>) {
        judge::subject::judge(self, case, found);
    }

    fn check(&'static self) -> Result<(), String> {
        users::check(self)
    }

    fn types(&self) -> Option<&'static [(&'static str, &'static str)]> {
        None
    }

    fn scripts(&'static self) -> Vec<Script> {
        users::scripts(self)
    }

    fn change(&self) -> Option<Action> {
        users::change(self)
    }

    fn prepare(&self, store: &mut Store, _: Now) {
        for (verb, resource) in &self.declared().rights {
            if !self.allows(verb, resource) {
                store.revoke(&self.user(), verb, resource);
            }
        }
    }
}

/// Returns the schema of the spec.
pub(super) fn spec_of(crd: &CustomResourceDefinition) -> Value {
    let crd = serde_json::to_value(crd).unwrap_or_default();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}
