//! Compares the control plane in memory with a real one: `differential [REQUESTS [SEED [CRD.yaml]]]`. Without a CRD, it
//! compares the CRD with every keyword, and then other CRDs, most of them invalid.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program whose user reads what it prints, and which fails by panicking"
)]

use std::env;

use operator_testkit::{
    cluster::{Cluster, Options as Parts},
    differential::{Options, compare, compare_definitions, invalid, torture},
};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize, default| {
        arguments
            .get(at)
            .map_or(default, |text| text.parse().unwrap())
    };
    let (crd, good) = match arguments.get(2) {
        Some(path) => {
            let text = std::fs::read_to_string(path).unwrap();
            (serde_saphyr::from_str(&text).unwrap(), Vec::new())
        }
        None => (torture::crd(), torture::good()),
    };
    let cluster = Cluster::start(Parts::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let requests = usize::try_from(number(0, 10_000)).unwrap();
    let options = Options {
        requests,
        seed: number(1, 1),
        good,
        ..Options::default()
    };
    let reports = runtime.block_on(async {
        let client = cluster.client().await;
        let objects = compare(&client, &crd, &options).await.unwrap();
        [
            objects,
            compare_definitions(&client, &invalid::definitions())
                .await
                .unwrap(),
        ]
    });
    for report in reports {
        println!("{report}");
    }
}
