//! Dot plots as SVG, in colours that are legible on white and on black.

use std::fmt::Write as _;

use super::{
    conditions::Conditions,
    report::{Goal, OF_ALL, Results, Side, number, quantile, ratio, spread},
};

const WIDTH: f64 = 950.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 180.0;
const TOP: f64 = 62.0;
const ROW: f64 = 24.0;

const GREY: &str = "#888888";
const OURS: &str = "#d9730d";
const TUNED: &str = "#2f81f7";
const DEFAULTS: &str = "#9a6dd7";
const KUBE_RS: &str = "#2da44e";

/// Plots this controller's figures relative to the peers', for all measures with a ratio goal. A dot is a pair; the bar is the
/// goal.
pub fn ratios(results: &Results) -> String {
    let mut plot = Plot::new(
        "What foo-controller needs, of what controller-runtime needs",
        "← less is better; 1 is as much; a dot is a pair, the bar is the goal against the tuned one",
        |value| value,
        2.0,
        &[0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0],
    );
    for row in results.rows() {
        let tuned = row.ratios(Side::Ours, Side::Tuned);
        if let (Some(Goal::Ratio(goal)), false) = (row.goal(), tuned.is_empty()) {
            let words = row.workload.words(&results.scale);
            let measure = row.measure.split(", ").next().unwrap();
            plot.row(&format!("{words}: {measure}"), &spread(&tuned, ratio));
            plot.tick(goal);
            for value in row.ratios(Side::Ours, Side::Defaults) {
                plot.dot(value, DEFAULTS);
            }
            for value in tuned {
                plot.dot(value, TUNED);
            }
        }
    }
    let legend = [
        ("of the tuned one's", TUNED),
        ("of the one's with defaults", DEFAULTS),
    ];
    plot.finish(&legend, results)
}

/// Plots the latencies at steady rates, over the Foos of all pairs.
pub fn latencies(results: &Results) -> String {
    let mut plot = Plot::new(
        "From a Foo's creation until its Deployment, or its status, is there, ms",
        "← less is better; of 1,000 Foos and more of each side, of all pairs; on the right foo-controller / tuned",
        |value| value.max(1.0).log10(),
        10_000.0,
        &[1.0, 10.0, 100.0, 1_000.0, 10_000.0],
    );
    for row in results.rows() {
        if !row.measure.contains(OF_ALL) {
            continue;
        }
        let sides = [
            (Side::Bare, GREY),
            (Side::KubeRs, KUBE_RS),
            (Side::Defaults, DEFAULTS),
            (Side::Tuned, TUNED),
            (Side::Ours, OURS),
        ];
        let medians = sides.map(|(side, _)| quantile(&row.values(side), 0.5));
        let words = row.workload.words(&results.scale);
        let measure = row.measure.replace(OF_ALL, "");
        let measure = measure.split(',').next().unwrap();
        let text = [medians[3], medians[2]].map(|median| median.map_or(String::new(), number));
        plot.row(&format!("{words}: {measure}"), &text.join(" / "));
        for ((_, colour), median) in sides.iter().zip(medians) {
            if let Some(median) = median {
                plot.dot(median, colour);
            }
        }
    }
    let legend = [
        ("foo-controller", OURS),
        ("controller-runtime, tuned", TUNED),
        ("controller-runtime, defaults", DEFAULTS),
        ("kube-rs", KUBE_RS),
        ("bare writes", GREY),
    ];
    plot.finish(&legend, results)
}

struct Plot {
    svg: String,
    scale: fn(f64) -> f64,
    most: f64,
    marks: Vec<f64>,
    rows: f64,
}

impl Plot {
    fn new(title: &str, axis: &str, scale: fn(f64) -> f64, most: f64, marks: &[f64]) -> Self {
        let mut plot = Self {
            svg: String::new(),
            scale,
            most,
            marks: marks.to_vec(),
            rows: 0.0,
        };
        plot.text(10.0, 18.0, "start", title);
        plot.text(10.0, 36.0, "start", axis);
        plot
    }

    /// Returns the horizontal position of a value.
    fn x(&self, value: f64) -> f64 {
        let share = (self.scale)(value.min(self.most)) / (self.scale)(self.most);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    /// Returns the vertical middle of the current row.
    fn y(&self) -> f64 {
        TOP + (self.rows - 0.5) * ROW
    }

    fn row(&mut self, name: &str, value: &str) {
        self.rows += 1.0;
        self.text(LEFT - 10.0, self.y() + 4.0, "end", name);
        self.text(WIDTH, self.y() + 4.0, "end", value);
    }

    fn dot(&mut self, value: f64, colour: &str) {
        let (x, y) = (self.x(value), self.y());
        let _ = writeln!(
            self.svg,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="5" fill="{colour}" fill-opacity="0.7"/>"#
        );
    }

    fn tick(&mut self, value: f64) {
        self.line(self.x(value), self.y() - 9.0, self.y() + 9.0, 2.0);
    }

    fn line(&mut self, x: f64, from: f64, to: f64, width: f64) {
        let _ = writeln!(
            self.svg,
            r#"<line x1="{x:.1}" x2="{x:.1}" y1="{from:.1}" y2="{to:.1}" stroke="{GREY}" stroke-width="{width}"/>"#
        );
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let _ = writeln!(
            self.svg,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{GREY}">{text}</text>"#
        );
    }

    /// Adds the legend and the source of the figures. It names the cores, because load generator and controllers share them.
    fn finish(mut self, legend: &[(&str, &str)], results: &Results) -> String {
        let bottom = TOP + self.rows * ROW;
        for mark in self.marks.clone() {
            self.line(self.x(mark), TOP, bottom, 0.5);
            self.text(self.x(mark), TOP - 8.0, "middle", &number(mark));
        }
        let mut x = 16.0;
        for (name, colour) in legend {
            let _ = writeln!(
                self.svg,
                r#"<circle cx="{x:.1}" cy="{:.1}" r="5" fill="{colour}"/>"#,
                bottom + 20.0
            );
            self.text(x + 10.0, bottom + 24.0, "start", name);
            x += 200.0;
        }
        let Conditions {
            commit,
            date,
            cores,
            ..
        } = &results.conditions;
        let from = format!(
            "{date} UTC, commit {commit}, {cores} cores for all: API server, etcd, load, controller"
        );
        self.text(10.0, bottom + 46.0, "start", &from);
        let height = bottom + 56.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n{}</svg>\n",
            self.svg
        )
    }
}
