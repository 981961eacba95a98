//! Recorder of logs and reconcile spans of the replica that runs on this thread.

use std::{
    cell::{Cell, RefCell},
    fmt::{Debug, Write as _},
    sync::LazyLock,
};

use tokio::time::Instant;
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{self, Attributes, Id},
    subscriber::Interest,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
    registry::{LookupSpan, Registry},
};

/// A log line of a replica, or the start, failure or end of a reconcile.
pub enum Record {
    Log {
        level: Level,
        text: String,
    },
    Begins {
        span: u64,
        key: String,
        trigger: String,
        attempt: u32,
    },
    Fails {
        span: u64,
    },
    Ends {
        span: u64,
    },
}

thread_local! {
    static HERE: RefCell<Option<Vec<(Instant, Record)>>> = const { RefCell::new(None) };
    static SPANS: Cell<u64> = const { Cell::new(0) };
}

/// Runs `turn`. Returns its result and its records.
///
/// All code of a replica runs in it, even if its records are dropped. With a single dispatcher, the dispatcher of the current
/// thread decides whether a new callsite is enabled. A line that is first logged outside would be disabled in all later runs of
/// the process.
pub fn during<T>(turn: impl FnOnce() -> T) -> (T, Vec<(Instant, Record)>) {
    /// Shared by all threads: each new dispatcher makes tracing evaluate every callsite again.
    static HERE_BY_THREAD: LazyLock<Dispatch> =
        LazyLock::new(|| Dispatch::new(Registry::default().with(Recorder)));
    HERE.set(Some(Vec::new()));
    let result = tracing::dispatcher::with_default(&HERE_BY_THREAD, turn);
    (result, HERE.take().unwrap_or_default())
}

fn record(record: Record) {
    HERE.with_borrow_mut(|here| {
        if let Some(here) = here {
            here.push((Instant::now(), record));
        }
    });
}

struct Recorder;

fn is_wanted(metadata: &Metadata<'_>) -> bool {
    let important = *metadata.level() <= Level::INFO;
    let ours = !metadata.target().starts_with("opentelemetry");
    important && ours && (metadata.is_event() || metadata.name() == "reconcile")
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_wanted(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_wanted(metadata)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = *event.metadata().level();
        let text = text.fields + &text.message;
        record(Record::Log { level, text });
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut reconcile = Fields::default();
        attributes.record(&mut reconcile);
        let Fields {
            namespace,
            name,
            trigger,
            attempt,
        } = reconcile;
        let number = SPANS.get() + 1;
        SPANS.set(number);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(number);
        }
        let key = format!("{namespace}/{name}");
        record(Record::Begins {
            span: number,
            key,
            trigger,
            attempt,
        });
    }

    fn on_record(&self, id: &Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let mut failed = Failed(false);
        values.record(&mut failed);
        let number = context
            .span(id)
            .and_then(|span| span.extensions().get::<u64>().copied());
        if let (Failed(true), Some(span)) = (failed, number) {
            record(Record::Fails { span });
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let number = context
            .span(&id)
            .and_then(|span| span.extensions().get::<u64>().copied());
        if let Some(span) = number {
            record(Record::Ends { span });
        }
    }
}

#[derive(Default)]
struct Text {
    fields: String,
    message: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, "{}={value:?} ", field.name())
        };
    }
}

/// Whether the span has recorded an `error.type`.
struct Failed(bool);

impl Visit for Failed {
    fn record_debug(&mut self, field: &Field, _: &dyn Debug) {
        self.0 |= field.name() == "error.type";
    }
}

#[derive(Default)]
struct Fields {
    namespace: String,
    name: String,
    trigger: String,
    attempt: u32,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let to = match field.name() {
            "object.namespace" => &mut self.namespace,
            "object.name" => &mut self.name,
            "reconcile.trigger" => &mut self.trigger,
            _ => return,
        };
        value.clone_into(to);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "reconcile.attempt" {
            self.attempt = u32::try_from(value).unwrap_or_default();
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
