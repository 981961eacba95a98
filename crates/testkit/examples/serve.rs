//! Serves a control plane in memory, with the CRDs of the files in the arguments, until Ctrl-C: `serve deploy/crd.yaml`. Prints the
//! kubeconfig of the user `admin`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program for trials"
)]

use std::{env, fs, future};

use operator_testkit::{ADMIN, ControlPlane};
use serde_json::Value;

#[tokio::main]
async fn main() {
    let plane = ControlPlane::new();
    for file in env::args().skip(1) {
        let crds: Vec<Value> =
            serde_saphyr::from_multiple(&fs::read_to_string(file).unwrap()).unwrap();
        for crd in crds {
            plane.install(&crd).unwrap();
        }
    }
    plane.run_pods();
    let served = plane.serve().await.unwrap();
    println!("{}", served.kubeconfig(ADMIN));
    future::pending::<()>().await;
}
