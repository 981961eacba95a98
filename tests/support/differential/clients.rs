//! Comparison of requests that clients in other languages send.

use operator_testkit::api_server::{Kind, Method};
use serde_json::Value;

use super::{
    CLUSTER,
    side::{ADMIN, path},
    special::{both, same_of},
};

/// client-go sends the timeout of a watch in Go's format, such as `8m17s`.
#[tokio::test]
async fn simulated_timeouts_match_the_real_ones() {
    let cluster = &*CLUSTER;
    super::install(cluster).await;
    let namespace = format!("o-{}", uuid::Uuid::new_v4().simple());
    let mut sides = both(cluster, &namespace).await;
    let configs = path(Kind::ConfigMap, &namespace);
    for timeout in [
        "8m17s",
        "1h0m0.5s",
        "1.5h",
        ".5s",
        "100ms",
        "10000000us",
        "5000000%C2%B5s",
        "0",
        "%2B9s",
        "5",
        "5m5",
        "1x",
        "1s1x",
        ".s",
        "s",
        "1.2.3s",
        "-",
        "",
    ] {
        let list = format!("{configs}?timeout={timeout}");
        let (code, _) = same_of(&mut sides, Method::GET, &list, "", &Value::Null).await;
        println!("{timeout}: {code}");
        let mut accepted = Vec::new();
        for run in &mut sides {
            let watch = format!("{configs}?watch=true&timeoutSeconds=1&timeout={timeout}");
            let watch = run.side.watch(&super::side::get(&watch), ADMIN).await;
            accepted.push(watch.map(drop));
        }
        assert_eq!(accepted, [Ok(()), Ok(())], "a watch with {timeout}");
    }
}
