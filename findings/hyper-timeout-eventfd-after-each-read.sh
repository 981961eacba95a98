#!/usr/bin/env bash
# hyper-timeout 0.5.2 with hyper 1 and tokio 1: a connection with a read timeout, on the current-thread runtime. kube-client is such
# a user if its configuration sets `read_timeout`.
# Expected: bytes that arrive are read. The timeout of 5 minutes is far away and costs nothing.
# Seen: after each read that had to wait, the timer is set to the present instead of being stopped. It is then the earliest timer of
# the runtime. tokio interrupts its own poll by a write to an eventfd, although it runs on the same thread, and the next poll ends at
# once without an event of a socket. So each response costs two system calls more (Linux: `syscw` of /proc/PID/io).
# Way out: move the timer only when it fires, to the end of the current wait.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CARGO_TARGET_DIR=$folder/target
mkdir -p "$folder/src"
cd "$folder"
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.1.0"
edition = "2024"
[workspace]
[dependencies]
hyper = "1"
hyper-timeout = "=0.5.2"
hyper-util = { version = "0.1", features = ["client-legacy", "tokio"] }
tokio = { version = "1", features = ["macros", "net", "rt", "time"] }
tower = { version = "0.5", features = ["util"] }
TOML
cat >src/main.rs <<'RUST'
use std::{future::poll_fn, io::Write, pin::Pin, thread, time::Duration};

use hyper::{Uri, rt::{Read, ReadBuf}};
use hyper_timeout::TimeoutConnector;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tower::{Service, service_fn};

/// Returns how often this process has called write(2). The sockets of tokio send by send(2).
fn writes_so_far() -> usize {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap();
    line.parse().unwrap()
}

/// Reads ten bytes that arrive one by one, and returns the number of writes meanwhile.
async fn read_ten(timeout: Option<Duration>) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let open = service_fn(move |_: Uri| async move { TcpStream::connect(address).await.map(TokioIo::new) });
    let mut connector = TimeoutConnector::new(open);
    connector.set_read_timeout(timeout);
    let mut reader = connector.call(Uri::from_static("http://host")).await.unwrap();
    let (writer, _) = listener.accept().await.unwrap();
    let mut writer = writer.into_std().unwrap();
    let (mut read, begun) = (0, writes_so_far());
    let reads = poll_fn(|context| {
        while read < 10 {
            let mut byte = [0; 1];
            let mut buffer = ReadBuf::new(&mut byte);
            if Pin::new(&mut reader).poll_read(context, buffer.unfilled()).is_pending() {
                return std::task::Poll::Pending;
            }
            read += 1;
        }
        std::task::Poll::Ready(())
    });
    // In a thread: a sleep would be a timer of the runtime, too.
    let writes = thread::spawn(move || {
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(50));
            writer.write_all(b"x").unwrap();
        }
    });
    reads.await;
    writes.join().unwrap();
    writes_so_far() - begun
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // In tasks, as hyper runs its connections: a wake-up of the main future is also a write.
    let without = tokio::spawn(read_ten(None)).await.unwrap();
    println!("without a timeout: {without} writes to the eventfd");
    let with = tokio::spawn(read_ten(Some(Duration::from_secs(300)))).await.unwrap();
    println!("with a timeout of 5 minutes: {with} writes to the eventfd");
}
RUST
cargo build --quiet
"$CARGO_TARGET_DIR/debug/finding" | tee output
grep -qx 'without a timeout: 0 writes to the eventfd' output
grep -qxE 'with a timeout of 5 minutes: (9|10|11|12) writes to the eventfd' output
