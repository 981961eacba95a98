//! What was measured, and how it is reported: as JSON, and as tables of medians, spreads and ratios.

use std::{
    fmt::{self, Display, Write as _},
    iter,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;

/// When the last Deployment was written; when the last status was, too; and when the last event was, too.
pub const DEPLOYED: &str = "until the last Deployment, s";
pub const REPORTED: &str = "until the last status, s";
pub const ALL: &str = "until the last status and event, s";
pub const CPU: &str = "CPU, s";
pub const PEAK: &str = "peak memory, MiB";
pub const SPEED: &str = "of the bare writes' speed, %";
/// What is of the Foos of all pairs together.
pub const OF_ALL: &str = " of all";
pub const EXPORTING: &str = "time: of what it is without, %";

/// Who did the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The loader alone: it writes what a controller would.
    Bare,
    /// This controller.
    Ours,
    /// The one in `peer/`, with what those who know controller-runtime set.
    Tuned,
    /// The same with controller-runtime's defaults.
    Defaults,
}

/// How much of everything.
#[derive(Clone, Debug)]
pub struct Scale {
    /// By whom: those without a ratio the first time alone.
    pub sides: &'static [Side],
    /// How often everything is done.
    pub pairs: usize,
    pub some: usize,
    pub many: usize,
    pub most: usize,
    /// How long Foos are created at a rate, at least.
    pub steady: Duration,
    /// For how long those that have nothing to do are looked at.
    pub idle: Duration,
    /// How often those resync whose resync is measured.
    pub resync: Duration,
}

/// What happens, in the order of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    Create,
    Scale,
    Correct,
    /// So many Foos a second.
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
    /// What `--workload` takes.
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

    /// For people.
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

/// One number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub workload: Workload,
    pub measure: String,
    pub side: Side,
    /// Samples of one pair were taken one right after the other.
    pub pair: usize,
    pub value: f64,
}

/// A run, whole: what one run measured never stands beside what another one did.
#[derive(Serialize)]
pub struct Results {
    pub conditions: Conditions,
    pub samples: Vec<Sample>,
    #[serde(skip)]
    pub scale: Scale,
}

/// What is asked of this controller: at most a share of what the tuned one of the others needs, or a number.
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

/// A bound.
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
    /// This side's values.
    pub fn values(&self, side: Side) -> Vec<f64> {
        let samples = self.samples.iter().filter(|sample| sample.side == side);
        samples.map(|sample| sample.value).collect()
    }

    /// One side's value over another's, of each pair that has both.
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
    /// The rows, in the order of the workloads, and in that in which they were measured first.
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

    /// The tables, in Markdown: with what it was measured, what was, and the requests by kind.
    pub fn tables(&self) -> String {
        let (mut measures, mut requests) = (String::new(), String::new());
        for row in self.rows() {
            let figures = [Side::Bare, Side::Ours, Side::Tuned, Side::Defaults]
                .map(|side| spread(&row.values(side), number));
            let [bare, ours, tuned, defaults] = figures;
            let (workload, measure) = (row.workload.words(&self.scale), row.measure);
            if let Some(kind) = measure.strip_prefix("requests: ") {
                let _ = writeln!(
                    requests,
                    "| {workload} | {kind} | {ours} | {tuned} | {defaults} |"
                );
            } else {
                let ratios = spread(&row.ratios(Side::Ours, Side::Tuned), ratio);
                // What one pair says alone is no ceiling.
                let mut ceiling = row.ratios(Side::Bare, Side::Tuned);
                if !measure.contains(OF_ALL) {
                    ceiling.retain(|_| row.values(Side::Bare).len() == self.scale.pairs);
                }
                let ceiling = spread(&ceiling, ratio);
                let goal = row.goal().map_or(String::new(), |goal| goal.to_string());
                let _ = writeln!(
                    measures,
                    "| {workload} | {measure} | {bare} | {ours} | {tuned} | {defaults} | {ratios} | {goal} | {ceiling} |"
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
             | workload | measure | bare writes | foo-controller | controller-runtime, tuned | controller-runtime, defaults | ratio | goal | the bare writes' ratio |\n\
             |---|---|---|---|---|---|---|---|---|\n{measures}\n\
             | workload | requests | foo-controller | controller-runtime, tuned | controller-runtime, defaults |\n\
             |---|---|---|---|---|\n{requests}"
        )
    }
}

/// Two digits at least.
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

/// The median, and from where to where they go if they differ.
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

/// The value below which this share of them lies; of an even number's middle, the mean.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// Three digits, or all before the point.
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
