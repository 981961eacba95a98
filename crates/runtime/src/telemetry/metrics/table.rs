//! The table of metrics: source of the instruments, the dashboard and the list of metrics (`make generate`).
//!
//! Names, labels and meanings follow controller-runtime, client-go and the Prometheus client libraries if they have such a
//! metric. All other names begin with the application's name, written as `{app}` here.

use opentelemetry::KeyValue;

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

    /// Checks that a metric without labels gets none. Such a metric has only one series (`one_series`).
    pub(super) fn check(&self, labels: &[KeyValue]) {
        debug_assert!(
            !self.labels.is_empty() || labels.is_empty(),
            "{} has no labels",
            self.template
        );
    }
}

macro_rules! metrics {
    ($($section:literal { $($id:ident: $kind:ident $name:literal $unit:literal $labels:tt $help:literal;)+ })+) => {
        $($(
            #[doc = concat!("`", $name, "`")]
            pub(crate) const $id: Metric = Metric {
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
            "Reconciles by result: success; error; requeue, which is no error (a conflict, the end of the term, a terminating namespace, a postponed status).";
        RECONCILE_ERRORS: Counter "controller_runtime_reconcile_errors_total" "" ["controller"]
            "Reconciles that failed.";
        RECONCILE_PANICS: Counter "controller_runtime_reconcile_panics_total" "" ["controller"]
            "Reconciles that panicked; they also count as failed.";
        RECONCILE_TIME: Histogram "controller_runtime_reconcile_time_seconds" "s" ["controller"]
            "How long a reconcile took.";
        ACTIVE_WORKERS: Gauge "controller_runtime_active_workers" "" ["controller"]
            "Reconciles that are running.";
        MAX_CONCURRENT_RECONCILES: Gauge "controller_runtime_max_concurrent_reconciles" "" ["controller"]
            "Configured maximum of concurrent reconciles; namespaces where requests hang have as many more.";
    }
    "Queue" {
        QUEUE_DEPTH: Gauge "workqueue_depth" "" ["controller", "name"]
            "Objects that wait for a worker.";
        QUEUE_ADDS: Counter "workqueue_adds_total" "" ["controller", "name"]
            "Objects that started to wait for a worker; an add of an object that already waits is not counted.";
        QUEUE_WAIT: Histogram "workqueue_queue_duration_seconds" "s" ["controller", "name"]
            "How long an object waited for a worker.";
        QUEUE_WORK: Histogram "workqueue_work_duration_seconds" "s" ["controller", "name"]
            "How long a worker processed an object.";
        QUEUE_RETRIES: Counter "workqueue_retries_total" "" ["controller", "name"]
            "Scheduled retries.";
        QUEUE_UNFINISHED: Gauge "workqueue_unfinished_work_seconds" "s" ["controller", "name"]
            "Sum of the running times of all reconciles in progress.";
        QUEUE_LONGEST: Gauge "workqueue_longest_running_processor_seconds" "s" ["controller", "name"]
            "Running time of the oldest reconcile in progress.";
    }
    "Leadership" {
        LEADING: Gauge "leader_election_master_status" "" ["installation", "name"]
            "Whether this replica leads (1) or stands by (0). `installation` is the setting, empty by default; `name` is the name of the Lease.";
        LEADER_TRANSITIONS: Counter "{app}_leader_transitions_total" "" []
            "Terms of leadership that this replica began.";
        TERM_START: Gauge "{app}_term_start_time_seconds" "s" []
            "Start of the last term of leadership of this replica, in seconds since 1970; 0 if it had none.";
        LEASE_RENEW: Histogram "{app}_lease_renew_seconds" "s" []
            "How long the leader's attempts to renew the Lease took, including failed ones.";
        FENCE_REFUSALS: Counter "{app}_fence_refusals_total" "" []
            "Writes that this replica or the API server's fencing policy rejected because this replica did not lead.";
        FENCING_REJECTS_LEADER: Gauge "{app}_fencing_rejects_leader" "" []
            "Whether the API server's fencing policy has rejected the writes of this replica for over 10 s although it leads (1).";
        FENCING_RECORD_MISSING: Gauge "{app}_fencing_record_missing" "" []
            "Whether this replica leads with a Lease that requires server-side fencing, and found no fencing record (1).";
    }
    "Objects" {
        SCOPE_SERVED: Gauge "{app}_scope_served" "" ["reason", "scope"]
            "Whether this replica can serve a configured namespace, or all namespaces (*): 1, or 0 with the reason: syncing; forbidden; unauthorized; missing (the CRD); failing.";
        EVENTS_DROPPED: Counter "{app}_events_dropped_total" "" ["reason"]
            "Kubernetes events that were not written, by reason: refused (by the API server); late (it failed for a minute); full (too many waited).";
        CACHE_OBJECTS: Gauge "{app}_cache_objects" "" ["kind"]
            "Objects in the cache.";
        KIND_INSTALLED: Gauge "{app}_kind_installed" "" ["kind"]
            "Whether an optional kind is installed (1) or missing (0): this replica has listed its objects, and the API server has served it since.";
        PAUSED_OBJECTS: Gauge "{app}_paused_objects" "" ["kind"]
            "Reconciled objects with the annotation paused: true.";
        LIVE_READS: Counter "{app}_live_reads_total" "" ["kind", "result"]
            "Live reads of objects without a watch, by result: found; missing; forbidden; failed (no response, or another error).";
        CACHE_AGE: Gauge "{app}_cache_age_seconds" "s" ["kind", "scope"]
            "Time since the watch of a kind, in a namespace or in all namespaces (*), last received anything: an event, a part of a list, or a bookmark, which the API server sends about once a minute.";
        WATCH_RESTARTS: Counter "{app}_watch_restarts_total" "" ["kind"]
            "Reopenings of a watch after an error, or after an end within 5 s of its opening; cuts of idle watches are not counted.";
    }
    "Conversion" {
        CONVERSIONS: Counter "{app}_conversions_total" "" ["kind", "result", "version"]
            "Objects that the conversion webhook was to convert into a version, by result: converted; failed; refused (a review without an answer, such as one of another form). The kind and the version are other if the program does not have them.";
        CONVERSION_TIME: Histogram "{app}_conversion_seconds" "s" []
            "How long the conversion of the objects of one review took.";
    }
    "API requests" {
        REQUESTS: Counter "rest_client_requests_total" "" ["code", "host", "method"]
            "Requests to the API server by status code; <error> if there was no response.";
        REQUEST_TIME: Histogram "rest_client_request_duration_seconds" "s" ["host", "verb"]
            "How long the API server took to begin its response.";
    }
    "Process" {
        PROCESS_CPU: Counter "process_cpu_seconds_total" "s" []
            "User and system CPU time.";
        PROCESS_RESIDENT: Gauge "process_resident_memory_bytes" "By" []
            "Resident memory.";
        MEMORY_LIMIT: Gauge "{app}_memory_limit_bytes" "By" []
            "Memory limit of the container; without a limit, the memory of the machine.";
        PROCESS_VIRTUAL: Gauge "process_virtual_memory_bytes" "By" []
            "Virtual memory.";
        PROCESS_FDS: Gauge "process_open_fds" "" []
            "Open file descriptors.";
        PROCESS_MAX_FDS: Gauge "process_max_fds" "" []
            "Maximum number of open file descriptors.";
        PROCESS_THREADS: Gauge "process_threads" "" []
            "Threads.";
        TOKIO_TASKS: Gauge "tokio_alive_tasks" "" []
            "Tasks of the asynchronous runtime that have not ended.";
        PROCESS_START: Gauge "process_start_time_seconds" "s" []
            "When the process started, in seconds since 1970.";
        LOG_LINES_LOST: Counter "{app}_log_lines_lost_total" "" []
            "Log lines that were lost because standard error did not accept them: its reader is too slow or gone, or the disk is full.";
        BUILD_INFO: Gauge "{app}_build_info" "" ["revision", "version"]
            "Always 1; the labels contain the version and the commit of the build, or unknown.";
    }
    // From the SDK, except the last two. Attributes such as `error.type` become labels by the rules of the OpenTelemetry
    // specification.
    "Telemetry export" {
        LOGS_CREATED: Counter "otel_sdk_log_created_total" "" []
            "Log records created for export.";
        LOGS_PROCESSED: Counter "otel_sdk_processor_log_processed_total" "" ["error_type", "otel_component_name", "otel_component_type"]
            "Log records passed to the exporter or, with an error type, dropped because the collector is too slow or unreachable.";
        LOG_QUEUE: Gauge "otel_sdk_processor_log_queue_capacity" "" ["otel_component_name", "otel_component_type"]
            "Maximum number of log records that wait for export.";
        SPANS_PROCESSED: Counter "otel_sdk_processor_span_processed_total" "" ["error_type", "otel_component_name", "otel_component_type"]
            "Spans passed to the exporter or, with an error type, dropped because the collector is too slow or unreachable.";
        LOST: Counter "{app}_telemetry_lost_total" "" ["signal"]
            "Failed exports by signal: traces; logs; metrics. Each is one batch of spans or log records, or all metrics.";
        REJECTED: Counter "{app}_telemetry_rejected_total" "" ["signal"]
            "Spans, log records and data points that the collector rejected from exports that it accepted, by signal: traces; logs; metrics.";
    }
}
