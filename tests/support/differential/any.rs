//! Comparison for a CRD with every keyword, and for CRDs that are invalid.

use operator_testkit::differential::{Options, compare, compare_definitions, invalid, torture};

use super::CLUSTER;

/// Number of requests, which take some seconds.
const REQUESTS: usize = 600;

#[tokio::test]
async fn any_crd_is_served_like_by_the_real_api_server() {
    let options = Options {
        requests: REQUESTS,
        seed: 3,
        good: torture::good(),
        ..Options::default()
    };
    let client = super::client(&CLUSTER).await;
    let report = compare(&client, &torture::crd(), &options).await.unwrap();
    assert!(report.differences.is_empty(), "{report}");
    assert!(report.not_modelled.is_empty(), "{report}");
    assert!(report.accepted > REQUESTS / 10, "{report}");
}

#[tokio::test]
async fn invalid_crds_are_rejected_alike() {
    let client = super::client(&CLUSTER).await;
    let report = compare_definitions(&client, &invalid::definitions())
        .await
        .unwrap();
    assert!(report.differences.is_empty(), "{report}");
}

/// A comparison deletes the CRD at its end.
#[tokio::test]
async fn a_crd_that_exists_is_not_compared() {
    super::install(&CLUSTER).await;
    let client = super::client(&CLUSTER).await;
    let refused = compare(&client, &super::definition(), &Options::default()).await;
    assert!(refused.unwrap_err().contains("already"));
}
