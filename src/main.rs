//! bin
#![allow(clippy::print_stdout)]
fn main() { println!("{}", serde_json::to_string_pretty(&foo_controller::api::crd()).unwrap()) }
