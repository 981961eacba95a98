//! The workloads. Each run of one has a control plane of its own, new and warmed up; those that need the same Foos follow one
//! another on it.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use crate::{
    cluster::{Cluster, Options},
    collector::Collector,
    load::{self, DEPLOYMENTS, FOOS, LEASE, Load, Watch, names},
    process::{Meter, Subject},
    report::{Sample, Side, quantile},
};

/// Nobody asked for a resync.
const NO_RESYNC: Duration = Duration::from_hours(10);

/// The workloads of every pair.
const ALWAYS: [&str; 4] = ["W1", "W2", "W3", "W9"];

/// Foos a second in W4.
const RATES: [u32; 3] = [20, 100, 300];

/// How much of everything.
pub struct Scale {
    pub pairs: usize,
    /// In how many of them, the first ones, more is done than W1 to W3.
    pub thorough: usize,
    /// Foos of W1, W2, W8 and W10.
    pub some: usize,
    /// Foos of W3, W5, W6 and W7.
    pub many: usize,
    /// Foos of W9.
    pub most: usize,
    /// How long each rate of W4 is kept up.
    pub steady: Duration,
    /// The period of W5's three resyncs.
    pub resync: Duration,
}

/// The runs, and what they have measured.
pub struct Bench {
    scale: Scale,
    /// `W1` to `W10`.
    wanted: BTreeSet<String>,
    pub samples: Vec<Sample>,
    pair: usize,
    begun: Instant,
}

impl Bench {
    pub fn new(scale: Scale, wanted: BTreeSet<String>) -> Self {
        Self {
            scale,
            wanted,
            samples: Vec::new(),
            pair: 0,
            begun: Instant::now(),
        }
    }

    /// All that is wanted, the sides by turns.
    pub async fn run(&mut self) {
        for pair in 0..self.scale.pairs {
            self.pair = pair;
            if pair >= self.scale.thorough {
                self.wanted.retain(|workload| ALWAYS.contains(&&**workload));
            }
            let mut sides = [Side::Ours, Side::Peer];
            if pair % 2 == 1 {
                sides.reverse();
            }
            if self.wants_any(&["W1", "W2", "W4"]) {
                self.bare().await;
            }
            if self.wants_any(&["W1", "W2", "W4", "W8", "W10"]) {
                for side in sides {
                    self.some(side).await;
                    if side == Side::Ours && self.wants_any(&["W10"]) {
                        self.exporting().await;
                    }
                }
            }
            if self.wants_any(&["W3", "W5", "W6", "W7"]) {
                for side in sides {
                    self.many(side).await;
                }
            }
        }
        self.pair = 0;
        if self.wants_any(&["W9"]) {
            for side in [Side::Ours, Side::Peer] {
                let plane = Plane::start().await;
                let mut run = Run::start(&plane, side, &[]).await;
                self.create(&mut run, "W9", self.scale.most).await;
            }
        }
    }

    /// W1, W2 and W4 without a controller: the same writes, by the loader's connections.
    async fn bare(&mut self) {
        let plane = Plane::start().await;
        let names = names("foo", self.scale.some);
        let begun = Instant::now();
        let done = plane.load.each(&names, async |client, name| {
            let foo = load::create_foo(client, name).await;
            load::serve_foo(client, &foo).await;
        });
        self.note("W1", Side::Bare, "time, s", seconds(begun, &done.await));
        let begun = Instant::now();
        let done = plane.load.each(&names, async |client, name| {
            let foo = load::scale(client, FOOS, name, 2).await;
            load::scale(client, DEPLOYMENTS, name, 2).await;
            load::tell_foo(client, &foo).await;
        });
        self.note("W2", Side::Bare, "time, s", seconds(begun, &done.await));
        if self.wants_any(&["W4"]) {
            let foos = Watch::new(plane.load.client(), FOOS).await;
            let mut deployments = Watch::new(plane.load.client(), DEPLOYMENTS).await;
            let server = Load::new(&plane.cluster).await;
            let serving = tokio::spawn(async move { server.serve(foos).await });
            for a_second in RATES {
                self.steady(&plane, Side::Bare, &mut deployments, a_second)
                    .await;
            }
            serving.abort();
        }
    }

    /// W1, then W2, W8 and W4 with its Foos there.
    async fn some(&mut self, side: Side) {
        let plane = Plane::start().await;
        let mut run = Run::start(&plane, side, &[]).await;
        let names = self.create(&mut run, "W1", self.scale.some).await;
        self.scale_all(&mut run, &names).await;
        if self.wants_any(&["W8"]) {
            self.storm(&mut run, &names).await;
        }
        if self.wants_any(&["W4"]) {
            for a_second in RATES {
                let meter = Meter::start(&plane.cluster, &run.subject);
                let workload = self
                    .steady(&plane, side, &mut run.deployments, a_second)
                    .await;
                run.subject.rest().await;
                self.note_used(&workload, side, &meter);
            }
        }
    }

    /// W10: W1 with all its telemetry exported, to a collector on the same machine.
    async fn exporting(&mut self) {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/collector.yaml");
        let mut collector = Collector::start_with(&config).await;
        let plane = Plane::start().await;
        let more = ["--otlp-endpoint", &collector.endpoint()];
        let mut run = Run::start(&plane, Side::Ours, &more).await;
        self.create(&mut run, "W10", self.scale.some).await;
        for measure in ["time, s", "CPU, s", "peak memory, MiB"] {
            let name = measure.split(',').next().unwrap();
            let value = |workload| self.measured(Side::Ours, workload, measure);
            let [with, without] = ["W10", "W1"].map(|workload| value(workload).unwrap());
            self.note(
                "W10",
                Side::Ours,
                &format!("of W1's {name}, %"),
                100.0 * with / without,
            );
        }
        let log = run.subject.end();
        let drops = log.matches("no room for is dropped").count();
        self.note(
            "W10",
            Side::Ours,
            "times that spans were dropped",
            drops as f64,
        );
        collector.stop().await;
        let log = collector.log();
        let batches = log.split("\"spans\": ").skip(1).map(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
            digits.parse::<f64>().unwrap()
        });
        self.note("W10", Side::Ours, "spans", batches.sum());
    }

    /// W3, then W6, W5 and W7 with its Foos there.
    async fn many(&mut self, side: Side) {
        let plane = Plane::start().await;
        let mut run = Run::start(&plane, side, &[]).await;
        self.create(&mut run, "W3", self.scale.many).await;
        let Run {
            deployments,
            subject,
            ..
        } = run;
        drop(subject);
        if !self.wants_any(&["W5", "W6", "W7"]) {
            return;
        }
        let mut run = self.cold_start(&plane, side, deployments).await;
        if self.pair == 0 && self.wants_any(&["W5"]) {
            self.rest(&run).await;
        }
        if self.wants_any(&["W7"]) {
            self.takeover(&mut run).await;
        }
    }

    /// W1, W3, W9 and W10: Foos at once, until each has its Deployment and reports so.
    async fn create(&mut self, run: &mut Run<'_>, workload: &str, count: usize) -> Vec<String> {
        let names = names("foo", count);
        let meter = Meter::start(&run.plane.cluster, &run.subject);
        let begun = Instant::now();
        let load = run.plane.load.each(&names, async |client, name| {
            load::create_foo(client, name).await;
        });
        let (_, deployed, reported) = tokio::join!(
            load,
            run.deployments
                .until(count, |d| is_foo(d) && d.metadata.generation == 1),
            run.foos.until(count, |foo| is_foo(foo) && foo.is_told(1)),
        );
        let time = seconds(begun, &deployed).max(seconds(begun, &reported));
        run.subject.rest().await;
        self.note(workload, run.side, "time, s", time);
        self.note(
            workload,
            run.side,
            "a Foo, ms",
            time * 1000.0 / count as f64,
        );
        self.note_used(workload, run.side, &meter);
        if workload == "W1" {
            self.compare_to_bare(workload, run.side, time);
        }
        names
    }

    /// W2: one replica more for every Foo, until each Deployment has it and each Foo reports so.
    async fn scale_all(&mut self, run: &mut Run<'_>, names: &[String]) {
        let meter = Meter::start(&run.plane.cluster, &run.subject);
        let begun = Instant::now();
        let load = run.plane.load.each(names, async |client, name| {
            load::scale(client, FOOS, name, 2).await;
        });
        let (_, scaled, reported) = tokio::join!(
            load,
            run.deployments
                .until(names.len(), |d| is_foo(d) && d.spec.replicas == Some(2)),
            run.foos
                .until(names.len(), |foo| is_foo(foo) && foo.is_told(2)),
        );
        let time = seconds(begun, &scaled).max(seconds(begun, &reported));
        run.subject.rest().await;
        self.note("W2", run.side, "time, s", time);
        self.note_used("W2", run.side, &meter);
        self.compare_to_bare("W2", run.side, time);
    }

    /// W8: every Deployment changed by hand, until each is as its Foo says.
    async fn storm(&mut self, run: &mut Run<'_>, names: &[String]) {
        let meter = Meter::start(&run.plane.cluster, &run.subject);
        let begun = Instant::now();
        let load = run.plane.load.each(names, async |client, name| {
            load::scale(client, DEPLOYMENTS, name, 5).await;
        });
        // Created, scaled, changed by hand, put right.
        let is_right = |d: &load::Object| {
            is_foo(d) && d.metadata.generation >= 4 && d.spec.replicas == Some(2)
        };
        let mut right = HashMap::new();
        tokio::join!(
            load,
            run.deployments.gather(&mut right, names.len(), is_right)
        );
        run.subject.rest().await;
        let wrong = names.len() - right.len();
        self.note("W8", run.side, "wrong after a minute", wrong as f64);
        self.note("W8", run.side, "time, s", seconds(begun, &right));
        self.note_used("W8", run.side, &meter);
    }

    /// W4: Foos at a steady rate.
    async fn steady(
        &mut self,
        plane: &Plane,
        side: Side,
        deployments: &mut Watch,
        a_second: u32,
    ) -> String {
        let workload = format!("W4 {a_second}/s");
        let prefix = format!("foo-at-{a_second}");
        let names = names(&prefix, (self.scale.steady * a_second).as_secs() as usize);
        let load = plane.load.at_rate(a_second, &names, async |client, name| {
            load::create_foo(client, name).await;
        });
        let new = |d: &load::Object| d.metadata.name.starts_with(&prefix);
        let (created, deployed) = tokio::join!(load, deployments.until(names.len(), new));
        let end = created.values().max().copied().unwrap();
        let late = deployed.values().filter(|at| **at > end).count();
        self.note_latencies(&workload, side, &latencies(&created, &deployed));
        self.note(&workload, side, "left at the end", late as f64);
        workload
    }

    /// W6: a start with all Foos and Deployments there, and one Foo that waits: until it has its Deployment.
    async fn cold_start<'a>(
        &mut self,
        plane: &'a Plane,
        side: Side,
        mut deployments: Watch,
    ) -> Run<'a> {
        let client = plane.load.client();
        load::delete(client, LEASE).await;
        release_lease(&plane.cluster).await;
        load::create_foo(client, "late").await;
        let requests = plane.cluster.audit().len();
        let begun = Instant::now();
        let subject = Subject::start(&plane.cluster, side, "bench-1", self.scale.resync, &[]);
        let late = deployments.until(1, |d| d.metadata.name == "late").await;
        let time = seconds(begun, &late);
        subject.rest().await;
        let meter = Meter::of_all(&plane.cluster, &subject, requests);
        self.note("W6", side, "time to the first write, s", time);
        self.note_used("W6", side, &meter);
        let foos = Watch::new(client, FOOS).await;
        Run {
            plane,
            side,
            subject,
            deployments,
            foos,
        }
    }

    /// W5: nothing happens, over three resyncs.
    async fn rest(&mut self, run: &Run<'_>) {
        let meter = Meter::start(&run.plane.cluster, &run.subject);
        let time = self.scale.resync * 3;
        sleep(time).await;
        for (measure, value) in meter.used() {
            if measure == "CPU, s" {
                self.note(
                    "W5",
                    run.side,
                    "of a core, %",
                    value * 100.0 / time.as_secs_f64(),
                );
            }
            self.note("W5", run.side, &measure, value);
        }
    }

    /// W7: the leader is asked to stop amid 20 Foos a second, and a standby with warm caches takes over.
    async fn takeover(&mut self, run: &mut Run<'_>) {
        let plane = run.plane;
        let standby = Subject::start(&plane.cluster, run.side, "bench-2", NO_RESYNC, &[]);
        standby.rest().await;
        let meter = Meter::start(&plane.cluster, &standby);
        let names = names("foo-meanwhile", 80);
        let load = plane.load.at_rate(20, &names, async |client, name| {
            load::create_foo(client, name).await;
        });
        let new = |d: &load::Object| d.metadata.name.starts_with("foo-meanwhile");
        let stop = async {
            sleep(Duration::from_secs(1)).await;
            run.subject.terminate();
        };
        let (created, deployed, ()) =
            tokio::join!(load, run.deployments.until(names.len(), new), stop);
        standby.rest().await;
        let longest = latencies(&created, &deployed)
            .into_iter()
            .fold(0.0, f64::max);
        self.note(
            "W7",
            run.side,
            "Lease to first write, ms",
            meter.lease_to_write() * 1000.0,
        );
        self.note("W7", run.side, "longest wait, ms", longest);
        self.note_used("W7", run.side, &meter);
    }

    fn wants_any(&self, workloads: &[&str]) -> bool {
        workloads
            .iter()
            .any(|workload| self.wanted.contains(*workload))
    }

    /// What this side was measured to be in this pair.
    fn measured(&self, side: Side, workload: &str, measure: &str) -> Option<f64> {
        let is_it = |s: &&Sample| {
            s.side == side && s.pair == self.pair && s.workload == workload && s.measure == measure
        };
        Some(self.samples.iter().find(is_it)?.value)
    }

    fn compare_to_bare(&mut self, workload: &str, side: Side, time: f64) {
        if let Some(bare) = self.measured(Side::Bare, workload, "time, s") {
            self.note(
                workload,
                side,
                "of the bare writes' speed, %",
                100.0 * bare / time,
            );
        }
    }

    fn note_latencies(&mut self, workload: &str, side: Side, latencies: &[f64]) {
        for (measure, q) in [("p50, ms", 0.5), ("p99, ms", 0.99), ("longest, ms", 1.0)] {
            self.note(workload, side, measure, quantile(latencies, q).unwrap());
        }
    }

    fn note_used(&mut self, workload: &str, side: Side, meter: &Meter) {
        for (measure, value) in meter.used() {
            self.note(workload, side, &measure, value);
        }
    }

    fn note(&mut self, workload: &str, side: Side, measure: &str, value: f64) {
        let pair = self.pair;
        let at = self.begun.elapsed().as_secs();
        eprintln!(
            "{at:>4} s, pair {}: {side:?} {workload} {measure}: {value:.3}",
            pair + 1
        );
        let (workload, measure) = (workload.to_owned(), measure.to_owned());
        self.samples.push(Sample {
            workload,
            measure,
            side,
            pair,
            value,
        });
    }
}

/// A control plane that has done some of what it is about to be asked.
struct Plane {
    load: Load,
    cluster: Cluster,
}

impl Plane {
    async fn start() -> Self {
        let cluster = Cluster::start(Options {
            audit: true,
            controllers: false,
        });
        cluster.install_crd().await;
        release_lease(&cluster).await;
        let load = Load::new(&cluster).await;
        load.each(&names("warm", 100), async |client, name| {
            let foo = load::create_foo(client, name).await;
            load::serve_foo(client, &foo).await;
        })
        .await;
        for resource in [FOOS, DEPLOYMENTS] {
            load::delete(load.client(), resource).await;
        }
        Self { load, cluster }
    }
}

/// Neither side waits to take the Lease, as ours does for a lease where there is none (H12).
async fn release_lease(cluster: &Cluster) {
    cluster.release_lease("default", "foo-controller").await;
}

/// A controller that leads, on a control plane, and what is seen of its work.
struct Run<'a> {
    plane: &'a Plane,
    side: Side,
    subject: Subject,
    deployments: Watch,
    foos: Watch,
}

impl<'a> Run<'a> {
    async fn start(plane: &'a Plane, side: Side, more: &[&str]) -> Self {
        let client = plane.load.client();
        let mut deployments = Watch::new(client, DEPLOYMENTS).await;
        let foos = Watch::new(client, FOOS).await;
        let subject = Subject::start(&plane.cluster, side, "bench-1", NO_RESYNC, more);
        load::create_foo(client, "first").await;
        deployments.until(1, |d| d.metadata.name == "first").await;
        subject.rest().await;
        Self {
            plane,
            side,
            subject,
            deployments,
            foos,
        }
    }
}

/// One of those that are counted.
fn is_foo(object: &load::Object) -> bool {
    object.metadata.name.starts_with("foo-0")
}

/// Until the last of them.
fn seconds(begun: Instant, done: &HashMap<String, Instant>) -> f64 {
    let last = done.values().max().expect("something was done");
    (*last - begun).as_secs_f64()
}

/// From the answer to each create until the Deployment was seen, in milliseconds.
fn latencies(created: &HashMap<String, Instant>, deployed: &HashMap<String, Instant>) -> Vec<f64> {
    let latency = |(name, at): (&String, &Instant)| {
        deployed[name].saturating_duration_since(*at).as_secs_f64() * 1000.0
    };
    created.iter().map(latency).collect()
}
