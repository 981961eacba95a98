//! The table of metrics: source of the instruments, the dashboard and the list of metrics (`make generate`).
//!
//! Names, labels and meanings follow controller-runtime, client-go and the Prometheus client libraries if they have such a
//! metric. All other names begin with the application's name, written as `{app}` here.

use crate::config::app::App;

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The [name](Self::name), with `{app}` in place of the application's name.
    pub template: &'static str,
    /// The type of the metric.
    pub kind: Kind,
    /// Unit in UCUM: `s`, `By`, or empty for a count.
    pub unit: &'static str,
    /// Label keys. No label value is the name of an object.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Counts of values by size.
    Histogram,
}

impl Kind {
    /// Returns the type's name in both text formats.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Metric {
    /// Returns the name in the application `app`, equal in Prometheus and OTLP.
    #[must_use]
    pub fn name(&self, app: &App) -> String {
        self.template.replace("{app}", &app.snake_case())
    }
}

macro_rules! metrics {
    ($($section:literal { $($id:ident: $kind:ident $name:literal $unit:literal $labels:tt $help:literal;)+ })+) => {
        $($(
            #[doc = concat!("`", $name, "`")]
            pub const $id: Metric = Metric {
                template: $name,
                kind: Kind::$kind,
                unit: $unit,
                labels: &$labels,
                help: $help,
            };
        )+)+

        /// All metrics, by section.
        pub const SECTIONS: &[(&str, &[Metric])] = &[$(($section, &[$($id),+])),+];
    };
}

metrics! {
    "Reconcile" {
        RECONCILES: Counter "controller_runtime_reconcile_total" "" ["controller", "result"]
            "Reconciles by result: success; error; requeue for what comes again without being an error (a conflict, a term that ended, a namespace on its way out, a status that is reported later).";
        RECONCILE_ERRORS: Counter "controller_runtime_reconcile_errors_total" "" ["controller"]
            "Reconciles that failed.";
        RECONCILE_PANICS: Counter "controller_runtime_reconcile_panics_total" "" ["controller"]
            "Reconciles that panicked; they also count as failed.";
        RECONCILE_TIME: Histogram "controller_runtime_reconcile_time_seconds" "s" ["controller"]
            "How long a reconcile took.";
        ACTIVE_WORKERS: Gauge "controller_runtime_active_workers" "" ["controller"]
            "Reconciles that are running.";
        MAX_CONCURRENT_RECONCILES: Gauge "controller_runtime_max_concurrent_reconciles" "" ["controller"]
            "Reconciles that can run at once: the configured workers; as many more may be with namespaces where requests hang.";
    }
    "Queue" {
        QUEUE_DEPTH: Gauge "workqueue_depth" "" ["controller", "name"]
            "Objects that wait for a worker.";
        QUEUE_ADDS: Counter "workqueue_adds_total" "" ["controller", "name"]
            "Times that an object came to wait for a worker; adds that collapsed are not counted.";
        QUEUE_WAIT: Histogram "workqueue_queue_duration_seconds" "s" ["controller", "name"]
            "How long an object waited for a worker.";
        QUEUE_WORK: Histogram "workqueue_work_duration_seconds" "s" ["controller", "name"]
            "How long a worker had an object.";
        QUEUE_RETRIES: Counter "workqueue_retries_total" "" ["controller", "name"]
            "Retries asked for.";
        QUEUE_UNFINISHED: Gauge "workqueue_unfinished_work_seconds" "s" ["controller", "name"]
            "The sum of how long each work in progress has been going on.";
        QUEUE_LONGEST: Gauge "workqueue_longest_running_processor_seconds" "s" ["controller", "name"]
            "How long the oldest work in progress has been going on.";
    }
    "Leadership" {
        LEADING: Gauge "leader_election_master_status" "" ["name"]
            "Whether this replica leads (1) or stands by (0); the name is the Lease's.";
        LEADER_TRANSITIONS: Counter "{app}_leader_transitions_total" "" []
            "Terms of leadership that this replica began.";
        TERM_START: Gauge "{app}_term_start_time_seconds" "s" []
            "When the last term of leadership that this replica had began, in seconds since 1970; 0 if it had none.";
        LEASE_RENEW: Histogram "{app}_lease_renew_seconds" "s" []
            "How long the leader's attempts to renew the Lease took, those that failed included.";
        FENCE_REFUSALS: Counter "{app}_fence_refusals_total" "" []
            "Writes that were refused, here or by the API server's fencing policy, because this replica did not lead.";
        FENCING_REJECTS_LEADER: Gauge "{app}_fencing_rejects_leader" "" []
            "Whether the API server's fencing policy has rejected the writes of this replica for over 10 s although it leads (1).";
    }
    "Objects" {
        SCOPE_SERVED: Gauge "{app}_scope_served" "" ["reason", "scope"]
            "Whether this replica can serve a configured namespace, or all of them (*): 1; or 0, with the reason: syncing; forbidden; unauthorized; missing (the CRD); failing.";
        EVENTS_DROPPED: Counter "{app}_events_dropped_total" "" ["reason"]
            "Kubernetes events about objects that were not written: refused (the API server does not take them); late (it failed for a minute); full (too many wait).";
        CACHE_OBJECTS: Gauge "{app}_cache_objects" "" ["kind"]
            "Objects in the cache.";
        CACHE_AGE: Gauge "{app}_cache_age_seconds" "s" ["kind", "scope"]
            "How long ago the API server last told the watch of a kind, in a namespace or all of them (*), anything: an event, a part of a list, or a bookmark, which comes about once a minute.";
        WATCH_RESTARTS: Counter "{app}_watch_restarts_total" "" ["kind"]
            "Times that a watch was opened again after an error, except the cut of an idle one, or an end within 5 s of its opening.";
    }
    "API requests" {
        REQUESTS: Counter "rest_client_requests_total" "" ["code", "host", "method"]
            "Requests to the API server by the status of its answer; <error>: there was none.";
        REQUEST_TIME: Histogram "rest_client_request_duration_seconds" "s" ["host", "verb"]
            "How long the API server took to begin its answer.";
    }
    "Process" {
        PROCESS_CPU: Counter "process_cpu_seconds_total" "s" []
            "User and system CPU time.";
        PROCESS_RESIDENT: Gauge "process_resident_memory_bytes" "By" []
            "Resident memory.";
        MEMORY_LIMIT: Gauge "{app}_memory_limit_bytes" "By" []
            "What the container's memory is limited to; without a limit, the machine's memory.";
        PROCESS_VIRTUAL: Gauge "process_virtual_memory_bytes" "By" []
            "Virtual memory.";
        PROCESS_FDS: Gauge "process_open_fds" "" []
            "Open file descriptors.";
        PROCESS_MAX_FDS: Gauge "process_max_fds" "" []
            "File descriptors that may be open at once.";
        PROCESS_THREADS: Gauge "process_threads" "" []
            "Threads.";
        TOKIO_TASKS: Gauge "tokio_alive_tasks" "" []
            "Tasks of the asynchronous runtime that have not ended.";
        PROCESS_START: Gauge "process_start_time_seconds" "s" []
            "When the process started, in seconds since 1970.";
        LOG_LINES_LOST: Counter "{app}_log_lines_lost_total" "" []
            "Log lines that standard error did not take: its reader is too slow or gone, or the disk is full.";
        BUILD_INFO: Gauge "{app}_build_info" "" ["revision", "version"]
            "Always 1; the labels say the version, and the commit that it was built from, or unknown.";
    }
    // From the SDK, except the last two. Attributes such as `error.type` become labels by the rules of the OpenTelemetry
    // specification.
    "Telemetry, where it is exported" {
        LOGS_CREATED: Counter "otel_sdk_log_created_total" "" []
            "Log records to be exported.";
        LOGS_PROCESSED: Counter "otel_sdk_processor_log_processed_total" "" ["error_type", "otel_component_name", "otel_component_type"]
            "Log records that were handed to the exporter or, with an error type, dropped because the collector is too slow, or away.";
        LOG_QUEUE: Gauge "otel_sdk_processor_log_queue_capacity" "" ["otel_component_name", "otel_component_type"]
            "Log records that can wait for their export.";
        SPANS_PROCESSED: Counter "otel_sdk_processor_span_processed_total" "" ["error_type", "otel_component_name", "otel_component_type"]
            "Spans that were handed to the exporter or, with an error type, dropped because the collector is too slow, or away.";
        LOST: Counter "{app}_telemetry_lost_total" "" ["signal"]
            "Exports that failed, each of one batch of spans or log records, or of the metrics, by signal: traces; logs; metrics.";
        REJECTED: Counter "{app}_telemetry_rejected_total" "" ["signal"]
            "Spans, log records and data points that the collector refused of exports that it took, by signal: traces; logs; metrics.";
    }
}
