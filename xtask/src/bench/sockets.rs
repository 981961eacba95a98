//! Bytes that a process receives from the API server.

use std::{collections::BTreeMap, fs, process::Command, sync::Mutex, time::Duration};

use tokio::time::sleep;

/// Connections of a process to the API server, with the encrypted bytes received on each.
pub struct Sockets {
    pid: u32,
    port: String,
    received: Mutex<BTreeMap<String, u64>>,
}

impl Sockets {
    pub fn new(pid: u32, server: &str) -> Self {
        let port = server.rsplit(':').next().unwrap().to_owned();
        Self {
            pid,
            port,
            received: Mutex::default(),
        }
    }

    /// Counts every half second, so that little is missed of a connection that closes.
    pub async fn look_often(sockets: std::sync::Weak<Self>) {
        while let Some(sockets) = sockets.upgrade() {
            sockets.count();
            drop(sockets);
            sleep(Duration::from_millis(500)).await;
        }
    }

    pub fn received(&self) -> u64 {
        self.count();
        self.received.lock().unwrap().values().sum()
    }

    fn count(&self) {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{}/fd", self.pid)) else {
            return;
        };
        let links = descriptors.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        let inodes: Vec<_> = links
            .filter_map(|link| {
                Some(
                    link.to_str()?
                        .strip_prefix("socket:[")?
                        .trim_end_matches(']')
                        .to_owned(),
                )
            })
            .collect();
        let output = Command::new("ss")
            .args(["-tinHOe", "dport", "=", &format!(":{}", self.port)])
            .output();
        let output = String::from_utf8(output.expect("ss, of iproute2").stdout).unwrap();
        for line in output.lines() {
            let field = |name: &str| {
                line.split_whitespace()
                    .find_map(|field| field.strip_prefix(name))
            };
            if let (Some(inode), Some(received)) = (field("ino:"), field("bytes_received:"))
                && inodes.iter().any(|ours| ours == inode)
            {
                self.received
                    .lock()
                    .unwrap()
                    .insert(inode.to_owned(), received.parse().unwrap());
            }
        }
    }
}
