//! Load balancer in front of a collector, which can drop its connection table.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Load balancer on a loopback port. It runs on the runtime of its test and stops on drop.
pub struct Balancer {
    address: SocketAddr,
    table: Arc<Table>,
    _accepting: JoinSet<()>,
}

/// Connection table.
#[derive(Default)]
struct Table {
    /// Generation. Connections of an older generation are unusable.
    age: AtomicU64,
    /// Whether unusable connections are silent. Otherwise they are reset.
    swallows: AtomicBool,
}

impl Balancer {
    /// Starts a load balancer in front of `collector`, `127.0.0.1:PORT`.
    pub async fn start(collector: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let table = Arc::<Table>::default();
        let known = Arc::clone(&table);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, collector.clone(), Arc::clone(&known)));
            }
        });
        Self {
            address,
            table,
            _accepting: accepting,
        }
    }

    /// Returns its address, `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Drops all current connections: the next bytes on one of them are answered with a reset.
    pub fn forget(&self) {
        self.table.age.fetch_add(1, Relaxed);
    }

    /// Like [`forget`](Self::forget), but the next bytes are acknowledged, and there is no response.
    pub fn swallow(&self) {
        self.table.swallows.store(true, Relaxed);
        self.forget();
    }
}

async fn serve(client: TcpStream, collector: String, table: Arc<Table>) {
    let born = table.age.load(Relaxed);
    let Ok(server) = TcpStream::connect(collector).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = async { copy(&mut from_server, &mut to_client).await.map(drop) };
    let forth = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            if table.age.load(Relaxed) != born && table.swallows.load(Relaxed) {
                continue;
            }
            if table.age.load(Relaxed) != born {
                // The drop that follows sends a reset.
                from_client.as_ref().set_zero_linger()?;
                return Ok(());
            }
            to_server.write_all(&buffer[..read]).await?;
        }
    };
    let _: std::io::Result<()> = tokio::select! {
        ended = back => ended,
        ended = forth => ended,
    };
}
