//! Resource types that may not be installed.

use k8s_openapi::{
    api::authorization::v1::ResourceAttributes,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};

use super::{
    subject::Doctor,
    verdict::{Verdict, failed, ok, skipped},
};
use crate::{
    api::kind::Kind,
    cache::{
        presence::{LONGEST_PAUSE, definition_of},
        readiness::{
            access_review::{Answer, is_allowed},
            namespace::Permission,
        },
    },
};

/// Reports whether the API server serves the type, by the discovery API, which all users may read.
pub(super) async fn examine(doctor: &Doctor, kind: &Kind) -> Verdict {
    let version = kind.api_version();
    let found = doctor.client.list_api_group_resources(&version).await;
    let is_served = match found {
        Ok(list) => list.resources.iter().any(|it| it.name == kind.plural),
        Err(kube::Error::Api(status)) if status.code == 404 => false,
        Err(error) => return failed(&format!("list what {version} has"), &error),
    };
    if is_served {
        return ok("installed");
    }
    let late = match watch_of(kind) {
        Some(watch) => match is_allowed(&doctor.client, watch).await {
            Ok(Answer::Allowed) => String::new(),
            _ => format!(
                ": its installation is noticed within {} minutes, or without delay with the permission to watch \
                 customresourcedefinitions/{}",
                LONGEST_PAUSE.as_secs() / 60,
                definition_of(kind)
            ),
        },
        None => String::new(),
    };
    skipped(format!("not installed{late}"))
}

/// Returns the watch of the CRD, if a CRD may define the type.
fn watch_of(kind: &Kind) -> Option<ResourceAttributes> {
    let mut watch = Permission::to(&["watch"], Kind::of::<CustomResourceDefinition>());
    let watch = watch.next().filter(|_| !kind.is_built_in())?;
    Some(ResourceAttributes {
        name: Some(definition_of(kind)),
        ..watch.attributes(None)
    })
}
