//! Results, and their report as JSON and as tables of medians, ranges and ratios.

use std::{
    fmt::{self, Display, Write as _},
    iter,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::conditions::Conditions;

/// Time until the last Deployment, then also the last status, then also the last event was written.
pub const DEPLOYED: &str = "until the last Deployment, s";
pub const REPORTED: &str = "until the last status, s";
pub const ALL: &str = "until the last status and event, s";
pub const CPU: &str = "CPU, s";
pub const PEAK: &str = "peak memory, MiB";
pub const SPEED: &str = "of the bare writes' speed, %";
/// Suffix of measures over the Foos of all pairs.
pub const OF_ALL: &str = " of all";
pub const EXPORTING: &str = "time: of what it is without, %";

/// Program that did the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The load generator alone, which sends the writes of a controller.
    Bare,
    /// This controller, as cargo builds it.
    Ours,
    /// This controller, as the image contains it.
    Shipped,
    /// The controller in `peer/`, with the settings that experienced controller-runtime users choose.
    Tuned,
    /// The controller in `peer/` with controller-runtime's defaults.
    Defaults,
    /// The controller in `kube-rs/`, on kube-rs' `Controller`.
    KubeRs,
}

/// Sizes and durations of the workloads.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Sides of the first pair. Later pairs have only [`Side::Ours`], [`Side::Shipped`] and [`Side::Tuned`].
    pub sides: &'static [Side],
    /// Number of repetitions.
    pub pairs: usize,
    pub some: usize,
    pub many: usize,
    pub most: usize,
    /// Minimum duration of a steady rate.
    pub steady: Duration,
    /// Duration of the idle measurement.
    pub idle: Duration,
    /// Resync interval in the resync measurement.
    pub resync: Duration,
}

/// Workloads, in the order of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    Create,
    Scale,
    Correct,
    /// Foos created per second.
    Steady(u32),
    Export,
    Many,
    Start,
    Idle,
    HandOver,
    Resync,
    Most,
}

impl Workload {
    /// Values of `--workload`.
    pub const NAMES: [&str; 11] = [
        "create",
        "scale",
        "correct",
        "steady",
        "export",
        "many",
        "start",
        "idle",
        "hand-over",
        "resync",
        "most",
    ];

    /// Returns the description in the tables.
    pub fn words(self, scale: &Scale) -> String {
        let [some, many, most] =
            [scale.some, scale.many, scale.most].map(|count| number(count as f64));
        match self {
            Self::Create => format!("create {some} Foos"),
            Self::Scale => format!("scale {some} Foos"),
            Self::Correct => format!("undo {some} edits by others"),
            Self::Steady(rate) => format!("create {rate} Foos a second"),
            Self::Export => format!("create {some} Foos, exporting"),
            Self::Many => format!("create {many} Foos"),
            Self::Start => format!("start with {many} Foos"),
            Self::Idle => format!("idle with {many} Foos"),
            Self::HandOver => format!("hand over {many} Foos"),
            Self::Resync => format!("resync {many} Foos, every {:?}", scale.resync),
            Self::Most => format!("create {most} Foos"),
        }
    }
}

/// One measured value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub workload: Workload,
    pub measure: String,
    pub side: Side,
    /// The samples of one pair were taken one directly after the other.
    pub pair: usize,
    pub value: f64,
}

/// Results of one complete run. Figures of different runs are never combined.
#[derive(Serialize)]
pub struct Results {
    pub conditions: Conditions,
    pub samples: Vec<Sample>,
    #[serde(skip)]
    pub scale: Scale,
}

/// Goals of this controller: a maximum ratio to the tuned peer, or an absolute bound.
const GOALS: &[(Workload, &str, Goal)] = {
    use Goal::{AtLeast, AtMost, Ratio};
    use Workload::{Create, Export, HandOver, Idle, Many, Most, Scale, Start, Steady};
    &[
        (Create, DEPLOYED, Ratio(0.55)),
        (Create, ALL, Ratio(0.8)),
        (Create, CPU, Ratio(0.5)),
        (Create, SPEED, AtLeast(70.0)),
        (Scale, DEPLOYED, Ratio(0.55)),
        (Scale, ALL, Ratio(0.8)),
        (Scale, CPU, Ratio(0.5)),
        (Scale, SPEED, AtLeast(70.0)),
        (Steady(20), "p99, ms", Ratio(0.9)),
        (Steady(100), "p99, ms", Ratio(0.7)),
        (Export, EXPORTING, AtMost(110.0)),
        (Many, ALL, Ratio(0.6)),
        (Many, CPU, Ratio(0.35)),
        (Many, PEAK, Ratio(0.2)),
        (Start, PEAK, Ratio(0.25)),
        (Idle, "requests", AtMost(0.0)),
        (Idle, "of a core, %", AtMost(0.08)),
        (HandOver, "Lease to first write, ms", Ratio(0.5)),
        (Most, PEAK, AtMost(1024.0)),
    ]
};

/// Goal for a measure.
#[derive(Clone, Copy)]
pub enum Goal {
    Ratio(f64),
    AtMost(f64),
    AtLeast(f64),
}

/// All samples of one workload and measure.
pub struct Row<'a> {
    pub workload: Workload,
    pub measure: &'a str,
    samples: Vec<&'a Sample>,
}

impl Row<'_> {
    /// Returns the values of one side.
    pub fn values(&self, side: Side) -> Vec<f64> {
        let samples = self.samples.iter().filter(|sample| sample.side == side);
        samples.map(|sample| sample.value).collect()
    }

    /// Returns the ratio of two sides' values for each pair that has both.
    pub fn ratios(&self, one: Side, other: Side) -> Vec<f64> {
        let its = self.samples.iter().filter(|s| s.side == one);
        let ratio = |its: &&Sample| {
            let mut others = self.samples.iter();
            let other = others.find(|s| s.side == other && s.pair == its.pair)?;
            Some(its.value / other.value).filter(|ratio| ratio.is_finite())
        };
        its.filter_map(ratio).collect()
    }

    pub fn goal(&self) -> Option<Goal> {
        let mut goals = GOALS.iter().filter(|(workload, measure, _)| {
            *workload == self.workload && *measure == self.measure
        });
        goals.next().map(|(_, _, goal)| *goal)
    }
}

impl Results {
    /// Returns the rows, ordered by workload and then by first measurement.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::<Row>::new();
        for sample in &self.samples {
            let place = rows
                .iter_mut()
                .find(|row| row.workload == sample.workload && row.measure == sample.measure);
            match place {
                Some(row) => row.samples.push(sample),
                None => rows.push(Row {
                    workload: sample.workload,
                    measure: &sample.measure,
                    samples: vec![sample],
                }),
            }
        }
        rows.sort_by_key(|row| row.workload);
        rows
    }

    /// Returns the tables in Markdown: conditions, measures and requests by kind.
    pub fn tables(&self) -> String {
        let (mut measures, mut requests) = (String::new(), String::new());
        for row in self.rows() {
            let figures = [
                Side::Bare,
                Side::Ours,
                Side::Shipped,
                Side::Tuned,
                Side::Defaults,
                Side::KubeRs,
            ]
            .map(|side| spread(&row.values(side), number));
            let [bare, ours, shipped, tuned, defaults, kube_rs] = figures;
            let (workload, measure) = (row.workload.words(&self.scale), row.measure);
            if let Some(kind) = measure.strip_prefix("requests: ") {
                let _ = writeln!(
                    requests,
                    "| {workload} | {kind} | {ours} | {shipped} | {tuned} | {defaults} | {kube_rs} |"
                );
            } else {
                let ratios = spread(&row.ratios(Side::Ours, Side::Tuned), ratio);
                let builds = spread(&row.ratios(Side::Shipped, Side::Ours), ratio);
                // A single pair is not enough for a ceiling.
                let mut ceiling = row.ratios(Side::Bare, Side::Tuned);
                if !measure.contains(OF_ALL) {
                    ceiling.retain(|_| row.values(Side::Bare).len() == self.scale.pairs);
                }
                let ceiling = spread(&ceiling, ratio);
                let goal = row.goal().map_or(String::new(), |goal| goal.to_string());
                let _ = writeln!(
                    measures,
                    "| {workload} | {measure} | {bare} | {ours} | {shipped} | {builds} | {tuned} | {defaults} | {kube_rs} | {ratios} | {goal} | {ceiling} |"
                );
            }
        }
        let Conditions {
            commit,
            date,
            kernel,
            processor,
            cores,
            versions,
        } = &self.conditions;
        let versions = versions
            .iter()
            .map(|(of, version)| format!("{of} {version}"));
        let versions = versions.collect::<Vec<_>>().join(", ");
        format!(
            "{date} UTC, commit {commit}; {cores} cores of {processor}, {kernel}; {versions}.\n\n\
             Medians; in brackets, the least and the greatest of the pairs. The ratios are to the tuned one.\n\n\
             | workload | measure | bare writes | foo-controller | image | image / foo-controller | controller-runtime, tuned | controller-runtime, defaults | kube-rs | ratio | goal | the bare writes' ratio |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n{measures}\n\
             | workload | requests | foo-controller | image | controller-runtime, tuned | controller-runtime, defaults | kube-rs |\n\
             |---|---|---|---|---|---|---|\n{requests}"
        )
    }
}

/// Formats a ratio with at least two digits.
pub fn ratio(value: f64) -> String {
    if value < 0.1 {
        format!("{value:.3}×")
    } else {
        format!("{value:.2}×")
    }
}

impl Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(most) => write!(f, "≤ {}", ratio(*most)),
            Self::AtMost(most) => write!(f, "≤ {}", number(*most)),
            Self::AtLeast(least) => write!(f, "≥ {}", number(*least)),
        }
    }
}

/// Formats the median, with the range if the values differ.
pub fn spread(values: &[f64], show: impl Fn(f64) -> String) -> String {
    let Some(median) = quantile(values, 0.5).map(&show) else {
        return String::new();
    };
    let [low, high] = [0.0, 1.0].map(|q| quantile(values, q).map_or(String::new(), &show));
    if low == high {
        median
    } else {
        format!("{median} ({low} to {high})")
    }
}

/// Returns the quantile `q`, linearly interpolated.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// Formats a number with three digits, or with all digits before the point.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        less if less < 0.1 => format!("{value:.3}"),
        less if less < 10.0 && value.fract() != 0.0 => format!("{value:.2}"),
        less if less < 100.0 && value.fract() != 0.0 => format!("{value:.1}"),
        _ => {
            let digits = format!("{value:.0}");
            let groups = digits
                .as_bytes()
                .rchunks(3)
                .rev()
                .map(String::from_utf8_lossy);
            groups
                .zip(iter::once("").chain(iter::repeat(",")))
                .fold(String::new(), |text, (group, comma)| text + comma + &group)
        }
    }
}
