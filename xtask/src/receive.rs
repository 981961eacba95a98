//! `xtask receive FOLDER` stands in for an OpenTelemetry Collector where none is built: it writes the received traces and logs to
//! FOLDER, for `xtask trace`. Its first line is like the collector's, and has its address.

use std::{path::Path, process::ExitCode};

use operator_testkit::collector::Receiver;

#[tokio::main(flavor = "current_thread")]
pub async fn run(arguments: &[String]) -> ExitCode {
    let [folder] = arguments else {
        eprintln!("receive: want FOLDER");
        return ExitCode::FAILURE;
    };
    let receiver = match Receiver::start(Path::new(folder)).await {
        Ok(receiver) => receiver,
        Err(error) => {
            eprintln!("receive: {folder}: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!(
        "Starting GRPC server {{\"endpoint\": \"{}\"}}",
        receiver.address()
    );
    std::future::pending().await
}
