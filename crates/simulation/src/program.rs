//! Operators under simulation.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator_runtime::{App, Builder, Kind, internals::Declared};
use operator_testkit::api_server::{Fencing, Now, Others, Store};
use parking_lot::Mutex;

use super::{
    invariants::Work,
    judge::{Case, Violation},
    outside::Place,
    plan::{Action, Plan},
    record,
    scripts::Script,
    seeds,
    trace::Time,
};

/// Namespace of the users' objects. Not `default`, which cannot be deleted.
pub const NAMESPACE: &str = "objects";

/// An operator, its users, and the judges of its own.
///
/// Most operators are an [`Operator`](crate::Operator), which needs less.
pub trait Program: fmt::Debug + Send + Sync {
    fn app(&self) -> &'static App;

    fn crds(&self) -> Vec<CustomResourceDefinition>;

    /// Declares the controllers of a replica.
    fn build(&self, builder: &mut Builder, place: &Place<'_>);

    /// Adds the actions of users: from the beginning to the heal, and a few after it.
    fn users(&self, plan: &mut Plan, heal: Time);

    /// Judges everything except leadership and the end of processes.
    fn judge(&self, case: &Case<'_>, found: &mut Vec<Violation>);

    /// Checks the program before all runs.
    fn check(&'static self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the scripts, for faults at every place.
    fn scripts(&'static self) -> Vec<Script> {
        Vec::new()
    }

    /// Returns a change that the operator reacts to, for the scripts.
    fn change(&self) -> Option<Action> {
        None
    }

    /// Returns the names of the installations. The default installation has an empty name.
    fn installations(&self) -> &'static [&'static str] {
        &[""]
    }

    /// Returns the namespaces that neither the objects nor the controller use.
    fn namespaces(&self) -> &'static [&'static str] {
        &[]
    }

    /// Prepares the cluster, before the CRDs are installed.
    fn prepare(&self, _: &mut Store, _: Now) {}

    /// Returns the namespace of the users' objects.
    fn namespace(&self) -> &'static str {
        NAMESPACE
    }

    /// Returns the namespace of the replicas, their Lease and their `ServiceAccount`.
    fn system(&self) -> &'static str {
        "operator-system"
    }

    /// Returns the name of the Lease of an installation.
    fn lease(&self, installation: &str) -> String {
        let hyphen = if installation.is_empty() { "" } else { "-" };
        format!("{}{hyphen}{installation}", self.app().name)
    }

    /// Returns the user of the replicas.
    fn user(&self) -> String {
        format!(
            "system:serviceaccount:{}:{}",
            self.system(),
            self.app().name
        )
    }

    /// Returns the types to print in a regression case: each is a text in front of a name, and the type of that name. `None`: its
    /// plans are not kept as regression cases.
    fn types(&self) -> Option<&'static [(&'static str, &'static str)]> {
        Some(&[])
    }

    /// Returns the fencing component, if it may be installed.
    fn fencing(&self) -> Option<Fencing> {
        None
    }

    /// Returns the faults that seeds draw. By default, faults that need no knowledge of the operator.
    fn faults(&self) -> Vec<&'static seeds::Kind> {
        seeds::FAULTS.iter().collect()
    }

    /// Returns the installation of the replicas in this place.
    fn installation(&self, place: usize) -> &'static str {
        let all = self.installations();
        all[place % all.len()]
    }

    /// Returns the declarations of `build`. The first call runs it.
    fn declared(&self) -> &'static Declarations {
        declared(self.app(), |builder| {
            self.build(builder, &Place::nowhere());
        })
    }

    /// Returns the policies of others that faults install. By default, policies that only reject.
    fn policies(&self) -> &'static [Others] {
        let writes = |call: &(&str, &str)| *call == ("patch", "deployments");
        if self.declared().calls.iter().any(writes) {
            REJECTIONS
        } else {
            &[Others::NoStatus]
        }
    }
}

/// Policies that change objects would make each Deployment contested.
const REJECTIONS: &[Others] = &[
    Others::NoChange,
    Others::NoDeletion,
    Others::NoStatus,
    Others::Busy,
    Others::Tickets,
];

/// Verb and resource of a request, such as `("update", "shops/status")`.
pub type Request = (&'static str, &'static str);

/// Resource types and requests of an operator.
#[derive(Debug)]
pub struct Declarations {
    /// The reconciled resource types.
    pub primaries: Vec<Kind>,
    /// The resource types that it creates.
    pub owned: Vec<Kind>,
    /// Permissions that faults revoke.
    pub rights: Vec<Request>,
    /// Requests that faults affect.
    pub calls: Vec<Request>,
    /// The rules for the checker of audit logs.
    pub works: Vec<Work>,
}

/// Requests of each replica, besides those for the objects.
const RIGHTS_OF_ALL: &[Request] = &[
    ("get", "leases"),
    ("patch", "leases"),
    ("create", "leases"),
    ("watch", "leases"),
    ("create", "events"),
    ("patch", "events"),
    ("get", "serviceaccounts"),
    ("patch", "serviceaccounts"),
];

const CALLS_OF_ALL: &[Request] = &[
    ("get", "leases"),
    ("create", "leases"),
    ("patch", "leases"),
    ("list", "leases"),
    ("watch", "leases"),
    ("create", "events"),
    ("patch", "events"),
    ("get", "serviceaccounts"),
    ("patch", "serviceaccounts"),
];

impl Declarations {
    fn of(app: &App, declared: Declared) -> Self {
        let Declared {
            primaries,
            watched,
            watches_crds,
            permissions,
        } = declared;
        let is_primary = |kind: &Kind| primaries.iter().any(|it| it == kind);
        let has = |verb: &str, kind: &Kind| {
            let mut all = permissions.iter();
            all.any(|(its, of, part)| *its == verb && of == kind && part.is_empty())
        };
        let (mut rights, mut calls) = (Vec::new(), Vec::new());
        for kind in &watched {
            rights.extend(["list", "watch"].map(|verb| (verb, kind.plural)));
            calls.extend(["list", "stream", "watch"].map(|verb| (verb, kind.plural)));
        }
        let crds = watches_crds.then_some(("watch", "customresourcedefinitions"));
        let mut kinds: Vec<_> = watched.clone();
        for (_, kind, _) in &permissions {
            if !kinds.contains(kind) {
                kinds.push(*kind);
            }
        }
        // The objects of a reconciled type are written last.
        kinds.sort_by_key(is_primary);
        let writes = kinds.iter().flat_map(|kind| {
            let verbs = ["get", "create", "patch", "delete"].into_iter();
            let its = verbs.filter(|verb| has(verb, kind));
            let its = its.map(|verb| (verb, kind.plural));
            let status = is_primary(kind).then(|| ("update", status_of(kind)));
            its.chain(status)
        });
        let both: Vec<Request> = crds.into_iter().chain(writes).collect();
        rights.extend(&both);
        calls.extend(&both);
        rights.extend(RIGHTS_OF_ALL);
        calls.extend(CALLS_OF_ALL);
        let owned: Vec<Kind> = (kinds.iter().copied())
            .filter(|kind| has("create", kind))
            .collect();
        let plurals: Vec<_> = owned.iter().map(|kind| kind.plural).collect();
        let plurals: &'static [&'static str] = plurals.leak();
        let works = primaries.iter().map(|kind| Work {
            kind: kind.kind,
            primary: kind.plural,
            owned: plurals,
            status: true,
            finalizers: has("patch", kind),
            fencing_holder: format!("{}/lease-holder", app.group).leak(),
        });
        Self {
            works: works.collect(),
            owned,
            primaries,
            rights,
            calls,
        }
    }
}

/// Strings that live as long as the process: as many as there are operators and kinds.
fn status_of(kind: &Kind) -> &'static str {
    format!("{}/status", kind.plural).leak()
}

fn declared(app: &'static App, build: impl FnOnce(&mut Builder)) -> &'static Declarations {
    static KNOWN: Mutex<BTreeMap<&str, &Declarations>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock();
    known.entry(app.name).or_insert_with(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime without I/O");
        let _entered = runtime.enter();
        let (declared, _) = record::during(|| Declared::by(app, build));
        Box::leak(Box::new(Declarations::of(app, declared)))
    })
}
