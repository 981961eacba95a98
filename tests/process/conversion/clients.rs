//! Many and slow clients of the webhook.

use std::{
    fmt::Write as _,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use futures::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, crypto,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use super::*;

const MIB: usize = 1 << 20;

/// Slow clients of one address, more than the webhook serves.
const SLOW: usize = 1500;

/// The time limit of a slow client, and some more for this machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Clients {
    connector: TlsConnector,
    server: SocketAddr,
}

impl Clients {
    fn new(world: &World) -> Self {
        let authority = CertificateDer::from_pem_slice(world.authority.pem().as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            connector: Arc::new(config).into(),
            server: world.addresses[0],
        }
    }

    /// Connects from an address of this machine.
    async fn connect(&self, from: Ipv4Addr) -> io::Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(self.server).await?;
        let name = ServerName::try_from("localhost").unwrap();
        self.connector.connect(name, stream).await
    }

    /// Connects from the address of the slow clients, announces a large review, and sends a part of it.
    async fn stall(&self, part: usize) -> Option<TlsStream<TcpStream>> {
        let mut client = self.connect(Ipv4Addr::new(127, 0, 0, 2)).await.ok()?;
        client.write_all(head(4 * MIB).as_bytes()).await.ok()?;
        let part = vec![b' '; part];
        let sent = client.write_all(&part);
        // The webhook reads no more than it has memory for.
        let _ = timeout(Duration::from_secs(3), sent).await;
        Some(client)
    }
}

fn head(length: usize) -> String {
    format!("POST /convert HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n")
}

/// Converts an object.
async fn convert(client: &mut TlsStream<TcpStream>) {
    convert_with(client, "").await.unwrap();
}

/// Converts an object with some more members. Fails if a time limit of the webhook ends it. Panics if the webhook refuses the
/// review for another reason.
async fn convert_with(client: &mut TlsStream<TcpStream>, members: &str) -> io::Result<()> {
    let object = greeting("a", FORMER, &json!({ "text": "Hi" }));
    let request = json!({ "uid": "u", "desiredAPIVersion": "example.com/v1", "objects": [object] });
    let review = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request });
    let place = r#""objects":[{"#;
    let review = review
        .to_string()
        .replace(place, &format!("{place}{members}"));
    let request = head(review.len()) + &review;
    client.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\"Success\"}}}") {
        answer.push(client.read_u8().await?);
        if answer.ends_with(b"\r\n") && !answer.starts_with(b"HTTP/1.1 200 ") {
            let refused = String::from_utf8(answer).unwrap();
            let is_late = ["HTTP/1.1 408 ", "HTTP/1.1 503 "]
                .iter()
                .any(|it| refused.starts_with(it));
            assert!(is_late, "{refused}");
            return Err(io::Error::other(refused));
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains(r#""texts":{"en":"Hi"}"#), "{answer}");
    Ok(())
}

/// Slow clients neither exclude a good one, nor let the webhook use more memory than its container has.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_bounded() {
    let mut world = World::start().await;
    world.start_webhook().await;
    let clients = Arc::new(Clients::new(&world));
    let mut good = clients.connect(Ipv4Addr::LOCALHOST).await.unwrap();
    convert(&mut good).await;

    let mut stalled = join_all([4 * MIB - 1; 6].map(|part| clients.stall(part))).await;
    timeout(PATIENCE, convert(&mut good)).await.unwrap();
    for _ in 0..SLOW {
        stalled.push(clients.stall(16 << 10).await);
    }
    timeout(PATIENCE, convert(&mut good)).await.unwrap();
    let mut new = clients.connect(Ipv4Addr::LOCALHOST).await.unwrap();
    timeout(PATIENCE, convert(&mut new)).await.unwrap();

    // Many small members take the most memory for their size.
    let mut members = String::new();
    for member in 0.. {
        write!(members, "\"{member:x}\":0,").unwrap();
        if members.len() > 4 * MIB - (4 << 10) {
            break;
        }
    }
    // A review that exceeds a time limit of the webhook on a busy machine is sent again.
    let large = (0..3).map(async |_| {
        eventually(3 * PATIENCE, "a large review is converted", async || {
            let mut client = clients.connect(Ipv4Addr::LOCALHOST).await?;
            convert_with(&mut client, &members).await
        })
        .await;
    });
    join_all(large).await;

    let pid = world.webhooks[0].pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: usize = peak
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    let manifest = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/deploy/conversion/deployment.yaml"
    );
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let (_, limit) = manifest
        .split_once("limits:\n            memory: ")
        .unwrap();
    let limit: usize = limit.split_once("Mi").unwrap().0.parse().unwrap();
    assert!(peak < limit * 1024, "{peak} KiB of {limit} MiB");
}
