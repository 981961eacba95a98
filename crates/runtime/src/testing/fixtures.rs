//! Fixtures: a resource type `Parent`, whose reconciler creates the `Child` that a Parent names, and an address that never
//! responds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    borrow::Cow,
    hash::{Hash as _, Hasher},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::{
    api::{
        failure::{Failure, Retry},
        key::Key,
        kind::Kind,
        object::{Cached, Field, Meta, Metadata, Object, Primary},
        reference::{ObjectRef, References},
    },
    cache::store::Snapshot,
    controller::builder::ControllerBuilder,
    reconcile::{
        context::{Context, View},
        error::ApiError,
        plan::Plan,
        reconciler::{Action, Reconciler},
        writer::Writer,
    },
};

/// Decodes an object from YAML.
pub(crate) fn object<V: Cached>(yaml: &str) -> Object<V> {
    let options = serde_saphyr::options! { strict_booleans: true };
    let value: serde_json::Value = serde_saphyr::from_str_with_options(yaml, options).unwrap();
    serde_json::from_str(&value.to_string()).unwrap()
}

/// Its spec names a Child of its own namespace, or `namespace/name`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parent {
    pub uid: Box<str>,
    pub generation: i64,
    pub child: Option<String>,
    pub status: ParentStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ParentStatus {
    pub observed_generation: i64,
}

#[derive(Default, Deserialize)]
pub(crate) struct Spec {
    child: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct ParentWire {
    metadata: Metadata,
    #[serde(default)]
    spec: Field<Spec>,
    #[serde(default)]
    status: Field<ParentStatus>,
}

impl Cached for Parent {
    type Wire = ParentWire;
    const KIND: Kind = Kind::custom("example.com", "v1", "Parent", "parents");

    fn decode(mut wire: ParentWire) -> (Meta, Self) {
        let view = Self {
            uid: std::mem::take(&mut wire.metadata.uid),
            generation: std::mem::take(&mut wire.metadata.generation).or_default(),
            child: wire.spec.or_default().child,
            status: wire.status.or_default(),
        };
        (wire.metadata.into_meta(), view)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn references(&self, to: &mut References<'_>) {
        match self
            .child
            .as_deref()
            .map(|child| (child, child.split_once('/')))
        {
            Some((_, Some((namespace, name)))) => {
                to.object::<Child>(&ObjectRef::new(namespace, name));
            }
            Some((child, None)) => to.sibling::<Child>(child),
            None => {}
        }
    }

    fn content(&self, state: &mut impl Hasher) {
        self.generation.hash(state);
    }
}

impl Primary for Parent {
    type Status = ParentStatus;

    fn generation(&self) -> i64 {
        self.generation
    }

    fn is_deleting(&self) -> bool {
        false
    }

    fn status(&self) -> Cow<'_, ParentStatus> {
        Cow::Borrowed(&self.status)
    }

    fn is_observed(&self) -> bool {
        self.status.observed_generation == self.generation
    }

    fn says(status: &ParentStatus, state: &mut impl Hasher) {
        status.observed_generation.hash(state);
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Child {
    pub uid: Box<str>,
}

#[derive(Deserialize)]
pub(crate) struct ChildWire {
    metadata: Metadata,
}

impl Cached for Child {
    type Wire = ChildWire;
    const KIND: Kind = Kind::custom("example.com", "v1", "Child", "children");

    fn decode(mut wire: ChildWire) -> (Meta, Self) {
        let view = Self {
            uid: std::mem::take(&mut wire.metadata.uid),
        };
        (wire.metadata.into_meta(), view)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn content(&self, _: &mut impl Hasher) {}
}

/// Creates missing children.
pub(crate) struct Parents {
    pub children: Writer<Child>,
}

impl Parents {
    pub(crate) fn build(builder: &mut ControllerBuilder<'_, Parent>) -> Self {
        Self {
            children: builder.owns(),
        }
    }

    fn missing(&self, key: &Key, parent: &Parent) -> Option<Key> {
        let child = key.sibling(parent.child.as_ref()?);
        self.children.store().get(&child).is_none().then_some(child)
    }
}

impl Reconciler for Parents {
    type Primary = Parent;
    type Error = TestError;

    fn plan(&self, _: &View<'_, Parent>, _: &Snapshot<Parent>) -> Result<Plan<Parent>, TestError> {
        Ok(Plan::new())
    }

    async fn reconcile(
        &self,
        cx: &Context<'_, Parent>,
        seen: &Snapshot<Parent>,
    ) -> Result<Action, TestError> {
        if let Some(child) = self.missing(cx.key(), &seen.view) {
            let body = json!({ "metadata": { "name": child.name() } });
            self.children.create(cx, &child, &body).await?;
        }
        Ok(Action::Done)
    }

    fn is_up_to_date(&self, cx: &Context<'_, Parent>, seen: &Snapshot<Parent>) -> bool {
        let key = cx.key();
        self.missing(key, &seen.view).is_none()
    }
}

/// Failures with different reasons and retries.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TestError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Rejected(String),
    #[error("{0}")]
    Transient(String),
    #[error("conflict: the object changed since it was read")]
    Conflict,
    #[error("not leading")]
    NotLeading,
}

impl Failure for TestError {
    fn name(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "Invalid",
            Self::Rejected(_) => "Rejected",
            Self::Transient(_) => "Transient",
            Self::Conflict => "Conflict",
            Self::NotLeading => "NotLeading",
        }
    }

    fn reason(&self) -> Option<&'static str> {
        matches!(self, Self::Invalid(_) | Self::Rejected(_)).then(|| self.name())
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Invalid(_) => Retry::OnChange,
            Self::Conflict => Retry::Conflict,
            Self::NotLeading => Retry::Requeue,
            Self::Rejected(_) | Self::Transient(_) => Retry::Backoff(Duration::ZERO),
        }
    }
}

impl From<ApiError> for TestError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Rejected(words) | ApiError::Denied(words, _) => Self::Rejected(words),
            ApiError::Conflict => Self::Conflict,
            ApiError::NotLeading => Self::NotLeading,
            other => Self::Transient(other.to_string()),
        }
    }
}

/// Captures the log lines of this thread at `level` or above until the guard is dropped.
pub(crate) fn logged(
    level: tracing::Level,
) -> (Arc<Mutex<Vec<u8>>>, tracing::subscriber::DefaultGuard) {
    #[derive(Clone)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Arc::default();
    let writer = Lines(Arc::clone(&lines));
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(move || writer.clone())
        .finish();
    (lines, tracing::subscriber::set_default(subscriber))
}

/// Returns the number of bytes that the kernel of the client still sends to the server, or `None` if it has closed the
/// connection. The kernel gives the same port to clients of other servers.
#[cfg(target_os = "linux")]
pub(crate) fn unsent([client, server]: [SocketAddr; 2]) -> Option<u32> {
    let sockets = procfs::net::tcp().unwrap().into_iter();
    let mut of_connection =
        sockets.filter(|socket| [socket.local_address, socket.remote_address] == [client, server]);
    of_connection.next().map(|socket| socket.tx_queue)
}

/// Returns an address with this port that drops each packet. It does so until the returned sockets are dropped.
pub(crate) fn silent(port: u16) -> (SocketAddr, (Socket, Vec<TcpStream>)) {
    // With a full backlog, the kernel drops further connections.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 2], port));
    socket.bind(&address.into()).unwrap();
    socket.listen(0).unwrap();
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(100));
    let backlog = std::iter::from_fn(|| connect().ok()).collect();
    (address, (socket, backlog))
}
