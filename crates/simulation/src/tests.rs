//! Tests of the examples. Tests of the simulation itself are in `tests/simulation`, with the operators of the repository.

/// The README contains the whole simulation of an operator. No example needs more than 150 lines.
#[test]
fn an_operator_is_simulated_in_150_lines() {
    let relay = include_str!("../examples/relay.rs");
    let bucket = include_str!("../examples/bucket/main.rs");
    assert!(include_str!("../README.md").contains(relay));
    for example in [relay, bucket] {
        assert!(example.lines().count() <= 150);
    }
}
