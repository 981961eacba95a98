//! The two text formats of Prometheus: its own, version 0.0.4, and `OpenMetrics` 1.0.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    time::UNIX_EPOCH,
};

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, Metric, MetricData, ResourceMetrics, ScopeMetrics,
};

use super::{
    table::Kind,
    timer::{BOUNDS, Exemplar, Timer, number},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// Returns `OpenMetrics` if the `Accept` header names it, otherwise Prometheus' own format, which every scraper reads.
    pub(super) fn asked_for(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All series of one name.
struct Family {
    kind: Kind,
    help: String,
    /// By their labels.
    series: BTreeMap<String, Series>,
}

enum Series {
    Number(f64),
    Histogram {
        /// Upper bound of each bucket, and the number of values above the bound before it. The last bound is infinite.
        buckets: Vec<(f64, u64)>,
        sum: f64,
        exemplars: Vec<Option<Exemplar>>,
    },
}

/// Writes `metrics`, and from `timers` the data that the SDK lacks: series without a record, and exemplars.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(super) fn write(metrics: &ResourceMetrics, timers: &[Timer], format: Format) -> String {
    let mut families = BTreeMap::new();
    for metric in metrics.scope_metrics().flat_map(ScopeMetrics::metrics) {
        match metric.data() {
            AggregatedMetrics::F64(data) => take(&mut families, metric, data, |value| value),
            AggregatedMetrics::I64(data) => take(&mut families, metric, data, |value| value as f64),
            AggregatedMetrics::U64(data) => take(&mut families, metric, data, number),
        }
    }
    for timer in timers {
        let family = families
            .entry(timer.name.to_string())
            .or_insert_with(|| Family::new(Kind::Histogram, timer.metric.help));
        let series = family
            .series
            .entry(timer.labels.to_string())
            .or_insert_with(|| Series::histogram(BOUNDS, [0; BOUNDS.len() + 1], 0.));
        if let Series::Histogram { exemplars, .. } = series {
            *exemplars = timer.exemplars.lock().to_vec();
        }
    }
    let mut text = String::new();
    for (name, family) in &families {
        // Writing to a `String` cannot fail.
        let _ = family.write(name, format, &mut text);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// Adds the SDK's data of one metric to `families`.
fn take<T: Copy>(
    families: &mut BTreeMap<String, Family>,
    metric: &Metric,
    data: &MetricData<T>,
    float: impl Fn(T) -> f64,
) {
    let series: Vec<(String, Series)>;
    let kind = match data {
        MetricData::Sum(sum) => {
            let points = sum.data_points();
            series = points
                .map(|point| {
                    (
                        labels(point.attributes()),
                        Series::Number(float(point.value())),
                    )
                })
                .collect();
            if sum.is_monotonic() {
                Kind::Counter
            } else {
                Kind::Gauge
            }
        }
        MetricData::Gauge(gauge) => {
            let points = gauge.data_points();
            series = points
                .map(|point| {
                    (
                        labels(point.attributes()),
                        Series::Number(float(point.value())),
                    )
                })
                .collect();
            Kind::Gauge
        }
        MetricData::Histogram(histogram) => {
            let points = histogram.data_points();
            series = points
                .map(|point| {
                    let sum = float(point.sum());
                    let histogram = Series::histogram(point.bounds(), point.bucket_counts(), sum);
                    (labels(point.attributes()), histogram)
                })
                .collect();
            Kind::Histogram
        }
        // No instrument here produces one.
        MetricData::ExponentialHistogram(_) => return,
    };
    families
        .entry(name(metric, kind))
        .or_insert_with(|| Family::new(kind, metric.description()))
        .series
        .extend(series);
}

/// Returns the Prometheus name of a metric. The names in the table need no change. The SDK's own names (`otel.sdk.…`) are
/// converted by the OpenTelemetry specification, "Prometheus and `OpenMetrics` Compatibility".
fn name(metric: &Metric, kind: Kind) -> String {
    let mut name = legal(metric.name());
    let unit = match metric.unit() {
        "s" => "_seconds",
        "By" => "_bytes",
        _ => "",
    };
    if !name.contains(unit) {
        name.push_str(unit);
    }
    if kind == Kind::Counter && !name.ends_with("_total") {
        name.push_str("_total");
    }
    name
}

fn legal(name: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.replace(|c| !legal(c), "_")
}

/// Formats labels as they appear between the braces.
pub(super) fn labels<'a>(labels: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut labels: Vec<String> = labels
        .map(|label| {
            let value = label.value.as_str().replace('\\', r"\\");
            let value = value.replace('"', r#"\""#).replace('\n', r"\n");
            format!(r#"{}="{value}""#, legal(label.key.as_str()))
        })
        .collect();
    labels.sort_unstable();
    labels.join(",")
}

impl Series {
    fn histogram(
        bounds: impl IntoIterator<Item = f64>,
        counts: impl IntoIterator<Item = u64>,
        sum: f64,
    ) -> Self {
        let bounds = bounds.into_iter().chain([f64::INFINITY]);
        Self::Histogram {
            buckets: bounds.zip(counts).collect(),
            sum,
            exemplars: Vec::new(),
        }
    }
}

impl Family {
    fn new(kind: Kind, help: &str) -> Self {
        Self {
            kind,
            // Replaced instead of escaped, because each format escapes different characters.
            help: help.replace(['\\', '\n', '"'], " "),
            series: BTreeMap::new(),
        }
    }

    fn write(&self, name: &str, format: Format, text: &mut String) -> fmt::Result {
        let family = match format {
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
            Format::Prometheus => name,
        };
        writeln!(text, "# HELP {family} {}", self.help)?;
        writeln!(text, "# TYPE {family} {}", self.kind.name())?;
        for (labels, series) in &self.series {
            let (braced, comma) = if labels.is_empty() {
                (String::new(), "")
            } else {
                (format!("{{{labels}}}"), ",")
            };
            match series {
                Series::Number(value) => writeln!(text, "{name}{braced} {value}")?,
                Series::Histogram {
                    buckets,
                    sum,
                    exemplars,
                } => {
                    let mut count = 0;
                    for (bucket, (bound, values)) in buckets.iter().enumerate() {
                        count += values;
                        let bound = if bound.is_finite() {
                            format!("{bound:?}")
                        } else {
                            "+Inf".to_owned()
                        };
                        write!(
                            text,
                            r#"{name}_bucket{{{labels}{comma}le="{bound}"}} {count}"#
                        )?;
                        if let Some(Some(exemplar)) = exemplars.get(bucket)
                            && format == Format::OpenMetrics
                        {
                            exemplar.write(text)?;
                        }
                        text.push('\n');
                    }
                    writeln!(text, "{name}_sum{braced} {sum}")?;
                    writeln!(text, "{name}_count{braced} {count}")?;
                }
            }
        }
        Ok(())
    }
}

impl Exemplar {
    fn write(&self, text: &mut String) -> fmt::Result {
        let Self {
            value,
            trace,
            span,
            time,
        } = self;
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        write!(
            text,
            r#" # {{trace_id="{trace}",span_id="{span}"}} {value} {}.{:03}"#,
            time.as_secs(),
            time.subsec_millis()
        )
    }
}
