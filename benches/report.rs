//! What was measured, and how it is reported: as JSON, and as a table of medians, spreads and ratios.

use std::{
    fmt::{self, Display, Write as _},
    iter,
};

use serde::{Deserialize, Serialize};

/// Who did the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The loader alone: it writes what a controller would.
    Bare,
    /// This controller.
    Ours,
    /// The one in `peer/`.
    Peer,
}

/// One number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub workload: String,
    pub measure: String,
    pub side: Side,
    /// Samples of one pair were taken one right after the other.
    pub pair: usize,
    pub value: f64,
}

/// What is asked of this controller: workload, measure, and either a share of the other one's or a number, at most.
pub const GOALS: &[(&str, &str, Goal)] = &[
    ("W1", "time, s", Goal::Ratio(0.8)),
    ("W1", "CPU, s", Goal::Ratio(0.5)),
    ("W1", "of the bare writes' speed, %", Goal::AtLeast(70.0)),
    ("W2", "time, s", Goal::Ratio(0.8)),
    ("W2", "CPU, s", Goal::Ratio(0.5)),
    ("W2", "of the bare writes' speed, %", Goal::AtLeast(70.0)),
    ("W3", "time, s", Goal::Ratio(0.8)),
    ("W3", "CPU, s", Goal::Ratio(0.5)),
    ("W3", "peak memory, MiB", Goal::Ratio(0.25)),
    ("W4 20/s", "p50, ms", Goal::Ratio(0.5)),
    ("W5", "requests", Goal::AtMost(0.0)),
    ("W5", "of a core, %", Goal::AtMost(0.1)),
    ("W6", "peak memory, MiB", Goal::Ratio(0.25)),
    ("W7", "Lease to first write, ms", Goal::AtMost(100.0)),
    ("W9", "peak memory, MiB", Goal::AtMost(1024.0)),
    ("W10", "of W1's time, %", Goal::AtMost(110.0)),
];

/// A bound.
#[derive(Clone, Copy)]
pub enum Goal {
    Ratio(f64),
    AtMost(f64),
    AtLeast(f64),
}

/// All samples of one workload and measure.
pub struct Row<'a> {
    pub workload: &'a str,
    pub measure: &'a str,
    samples: Vec<&'a Sample>,
}

impl Row<'_> {
    /// This side's values.
    pub fn values(&self, side: Side) -> Vec<f64> {
        let samples = self.samples.iter().filter(|sample| sample.side == side);
        samples.map(|sample| sample.value).collect()
    }

    /// This controller's value over the other one's, of each pair that has both.
    pub fn ratios(&self) -> Vec<f64> {
        let of = |side, pair| {
            self.samples
                .iter()
                .find(|s| s.side == side && s.pair == pair)
        };
        let pairs = self
            .samples
            .iter()
            .map(|sample| sample.pair)
            .max()
            .unwrap_or(0);
        let ratio = |pair| Some(of(Side::Ours, pair)?.value / of(Side::Peer, pair)?.value);
        (0..=pairs)
            .filter_map(ratio)
            .filter(|ratio| ratio.is_finite())
            .collect()
    }

    pub fn goal(&self) -> Option<Goal> {
        let mut goals = GOALS.iter().filter(|(workload, measure, _)| {
            *workload == self.workload && *measure == self.measure
        });
        goals.next().map(|(_, _, goal)| *goal)
    }
}

/// The rows, in the order in which they were measured first.
pub fn rows(samples: &[Sample]) -> Vec<Row<'_>> {
    let mut rows = Vec::<Row>::new();
    for sample in samples {
        let place = rows
            .iter_mut()
            .find(|row| row.workload == sample.workload && row.measure == sample.measure);
        match place {
            Some(row) => row.samples.push(sample),
            None => rows.push(Row {
                workload: &sample.workload,
                measure: &sample.measure,
                samples: vec![sample],
            }),
        }
    }
    // `W4 20/s` before `W4 100/s`, and both before `W10`.
    let number = |row: &Row<'_>| row.workload.split(' ').next().map(str::len);
    rows.sort_by_key(|row| {
        (
            number(row),
            &row.workload[..2],
            row.workload.len(),
            row.workload,
        )
    });
    rows
}

/// The tables, in Markdown: what was measured, and the requests by kind.
pub fn tables(samples: &[Sample]) -> String {
    let (mut measures, mut requests) = (String::new(), String::new());
    for row in rows(samples) {
        let [ours, peer] = [Side::Ours, Side::Peer].map(|side| spread(&row.values(side), number));
        let bare = quantile(&row.values(Side::Bare), 0.5).map_or(String::new(), number);
        let Row {
            workload, measure, ..
        } = row;
        if let Some(kind) = measure.strip_prefix("requests: ") {
            let _ = writeln!(requests, "| {workload} | {kind} | {ours} | {peer} |");
        } else if !(ours.is_empty() && peer.is_empty()) {
            let ratio = spread(&row.ratios(), |ratio| format!("{ratio:.2}×"));
            let goal = row.goal().map_or(String::new(), |goal| goal.to_string());
            let _ = writeln!(
                measures,
                "| {workload} | {measure} | {bare} | {ours} | {peer} | {ratio} | {goal} |"
            );
        }
    }
    format!(
        "| workload | measure | bare writes | foo-controller | controller-runtime | ratio | goal |\n|---|---|---|---|---|---|---|\n{measures}\n\
         | workload | requests | foo-controller | controller-runtime |\n|---|---|---|---|\n{requests}"
    )
}

impl Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(most) => write!(f, "≤ {most:.2}×"),
            Self::AtMost(most) => write!(f, "≤ {}", number(*most)),
            Self::AtLeast(least) => write!(f, "≥ {}", number(*least)),
        }
    }
}

/// The median, and from where to where they go if they differ.
fn spread(values: &[f64], show: impl Fn(f64) -> String) -> String {
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
