//! Failures of the API server, the clocks, the disk and the network.

mod environment;
mod faults;
