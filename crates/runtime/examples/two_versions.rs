//! An operator whose API has two versions with different schemas, and the conversion between them.
//!
//! A `Greeting` gets a `ConfigMap` of its name with its texts. Version v1 has a text for each language. The former version,
//! v1alpha1, has the English text only.

use std::{collections::BTreeMap, process::ExitCode};

use k8s_openapi::api::core::v1 as core;
use kube::{CustomResource, CustomResourceExt as _};
use operator_runtime::{
    ApiError, App, Builder, Custom, Dependent, Fields, Key, Kind, Plan, Reconciler, Snapshot, Spec,
    Status, View, Writer,
    crd::{self, Definition, Version, Versioned},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

static APP: App = App {
    about: "Each Greeting gets a ConfigMap",
    crates: &["two_versions"],
    ..App::new("greeter", "0.1.0", "example.com")
};

fn main() -> ExitCode {
    operator_runtime::main(&APP, || vec![greetings()], build)
}

/// This program has no settings of its own.
#[derive(Deserialize)]
struct NoSettings {}

fn build(program: &mut Builder, _: NoSettings) {
    program.controller("greeting", |builder| GreetingReconciler {
        config_maps: builder.owns(),
    });
}

/// Texts by language.
type Texts = BTreeMap<String, String>;

/// The version that is stored, and that the controller reads.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Greeting")]
#[kube(namespaced, root = "Manifest", status = "Status")]
pub(crate) struct GreetingSpec {
    /// Texts by language.
    pub(crate) texts: Texts,
}

pub(crate) mod v1alpha1 {
    use super::{CustomResource, Deserialize, JsonSchema, Serialize, Status};

    /// The former version.
    #[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1alpha1", kind = "Greeting")]
    #[kube(namespaced, root = "Manifest", status = "Status")]
    pub(crate) struct GreetingSpec {
        /// The English text. Empty: none.
        #[serde(default)]
        pub(crate) text: String,
    }
}

/// The language that v1alpha1 has.
const ENGLISH: &str = "en";

/// Annotation in v1alpha1 with the texts that this version has no field for.
const OTHER_TEXTS: &str = "example.com/v1-texts";

pub(crate) fn greetings() -> Definition {
    let service = Key::new("greeter-system", "greeter-conversion");
    let former = Version {
        crd: v1alpha1::Manifest::crd(),
        to_stored,
        from_stored,
    };
    crd::converted(Manifest::crd(), &service, [former])
}

fn to_stored(greeting: &mut Versioned) -> Result<(), String> {
    // A write of the status has no spec, and the API server converts it as well.
    let Some(former) = greeting.get::<Option<v1alpha1::GreetingSpec>>("spec")? else {
        return Ok(());
    };
    let mut texts: Texts = greeting.take(OTHER_TEXTS).unwrap_or_default();
    if !former.text.is_empty() {
        texts.insert(ENGLISH.to_owned(), former.text);
    }
    greeting.set("spec", &GreetingSpec { texts })
}

fn from_stored(greeting: &mut Versioned) -> Result<(), String> {
    let Some(GreetingSpec { mut texts }) = greeting.get("spec")? else {
        return Ok(());
    };
    // Always the same text. Otherwise an unchanged manifest, applied again, would replace another text than before.
    let text = texts.get(ENGLISH).cloned().unwrap_or_default();
    if !text.is_empty() {
        texts.remove(ENGLISH);
    }
    greeting.keep(OTHER_TEXTS, &(!texts.is_empty()).then_some(texts))?;
    greeting.set("spec", &v1alpha1::GreetingSpec { text })
}

type Greeting = Custom<GreetingSpec>;

impl Spec for GreetingSpec {
    const KIND: Kind = Kind::custom("example.com", "v1", "Greeting", "greetings");
    type Status = Status;
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Data {
    data: Texts,
}

impl Fields for Data {
    const KIND: Kind = Kind::of::<core::ConfigMap>();
}

struct GreetingReconciler {
    config_maps: Writer<Dependent<Data>>,
}

impl Reconciler for GreetingReconciler {
    type Primary = Greeting;
    type Error = ApiError;

    fn plan(
        &self,
        cx: &View<'_, Greeting>,
        greeting: &Snapshot<Greeting>,
    ) -> Result<Plan<Greeting>, ApiError> {
        let mut plan = Plan::new();
        if greeting.view.deleting {
            return Ok(plan); // The garbage collector deletes the ConfigMap.
        }
        let data = greeting.view.spec()?.texts.clone();
        plan.apply(&self.config_maps, cx.key(), &Data { data });
        Ok(plan)
    }
}
