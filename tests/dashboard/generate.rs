//! Prints what is made of the list of metrics: `dashboard`, or the `list` for people. `make generate` keeps both.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

#[path = "mod.rs"]
mod generated;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("list") => print!("{}", generated::list()),
        _ => print!("{}", generated::dashboard()),
    }
}
