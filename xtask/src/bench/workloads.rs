//! The workloads. Workloads on the same Foos run in sequence on one control plane.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    bare::{Bare, Work},
    conditions::Conditions,
    load::names,
    meter::Meter,
    plane::{NO_RESYNC, Plane, Run, is_foo, latencies, seconds},
    process::{Subject, has_shipped},
    report::{
        ALL, CPU, DEPLOYED, EXPORTING, OF_ALL, PEAK, REPORTED, SPEED, Sample, Scale, Side,
        Workload, quantile,
    },
    watch::{Object, Watch},
    writes::{self, DEPLOYMENTS, FOOS, LEASE},
};
use operator_testkit::collector::Collector;

use Workload::{Correct, Create, Export, HandOver, Idle, Many, Most, Resync, Start, Steady};

/// Foos created per second.
const RATES: [u32; 3] = [20, 100, 300];

/// Suffix for the end of a latency.
const DEPLOYMENT: &str = "";
const STATUS: &str = " until the status";

/// Reported quantiles of the latencies.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("longest", 1.0)];

/// Foos created per second during a takeover, so that some are always waiting.
const MEANWHILE: u32 = 100;

/// Runs and their samples.
pub struct Bench {
    scale: Scale,
    /// Workloads to run, as in [`Workload::NAMES`].
    wanted: BTreeSet<String>,
    pub samples: Vec<Sample>,
    /// Latencies of all pairs in milliseconds, by rate, side and end.
    latencies: BTreeMap<(u32, Side, &'static str), Vec<f64>>,
    /// Conditions, set when the first control plane has started.
    pub conditions: Option<Conditions>,
    pair: usize,
    begun: Instant,
}

impl Bench {
    pub fn new(scale: Scale, wanted: BTreeSet<String>) -> Self {
        Self {
            scale,
            wanted,
            samples: Vec::new(),
            latencies: BTreeMap::new(),
            conditions: None,
            pair: 0,
            begun: Instant::now(),
        }
    }

    /// Runs the selected workloads with the sides alternately. Workloads without a ratio run once.
    pub async fn run(&mut self) {
        for pair in 0..self.scale.pairs {
            self.pair = pair;
            let mut sides: Vec<Side> = match pair {
                0 => self.scale.sides.into(),
                even if even % 2 == 0 => vec![Side::Ours, Side::Shipped, Side::Tuned],
                _ => vec![Side::Tuned, Side::Shipped, Side::Ours],
            };
            sides.retain(|side| *side != Side::Shipped || has_shipped());
            // The bare writes alternate, too.
            if pair % 2 == 0 {
                self.some_bare().await;
            }
            if self.wants_any(&["create", "scale", "correct", "steady", "export"]) {
                for side in &sides {
                    self.some(*side).await;
                    if *side == Side::Ours && self.wants_any(&["export"]) {
                        self.exporting().await;
                    }
                }
            }
            // The steady rates need as many Foos of the other sides as of these.
            for other in self.scale.sides {
                let is_build = *other == Side::Shipped;
                if !is_build && !sides.contains(other) && self.wants_any(&["steady"]) {
                    let plane = self.plane().await;
                    let mut run = Run::start(&plane, *other, &[]).await;
                    self.rates(&mut run).await;
                }
            }
            if pair % 2 == 1 {
                self.some_bare().await;
            }
            self.note_speeds();
            if pair == 0 && self.wants_any(&["many"]) {
                let plane = self.plane().await;
                self.bare(&plane, Many, self.scale.many).await;
            }
            if self.wants_any(&["many", "start", "idle", "hand-over", "resync"]) {
                for side in &sides {
                    self.many(*side).await;
                }
            }
            if self.wants_any(&["most"]) {
                for side in &sides {
                    let plane = self.plane().await;
                    let mut run = Run::start(&plane, *side, &[]).await;
                    self.create(&mut run, Most, self.scale.most).await;
                }
            }
        }
        self.pair = 0;
        for ((rate, side, until), all) in std::mem::take(&mut self.latencies) {
            for (name, q) in QUANTILES {
                let measure = format!("{name}{until}{OF_ALL}, ms");
                self.note(Steady(rate), side, &measure, quantile(&all, q).unwrap());
            }
        }
    }

    async fn plane(&mut self) -> Plane {
        let plane = Plane::start().await;
        if self.conditions.is_none() {
            self.conditions = Some(Conditions::of(&plane.cluster).await);
        }
        plane
    }

    /// Measures the bare writes for the workloads with few Foos.
    async fn some_bare(&mut self) {
        if !self.wants_any(&["create", "scale", "steady"]) {
            return;
        }
        let plane = self.plane().await;
        for workload in [Create, Workload::Scale] {
            self.bare(&plane, workload, self.scale.some).await;
        }
        if !self.wants_any(&["steady"]) {
            return;
        }
        let mut new = Watch::new(plane.load.client(), FOOS).await;
        let mut foos = Watch::new(plane.load.client(), FOOS).await;
        let mut deployments = Watch::new(plane.load.client(), DEPLOYMENTS).await;
        let bare = Arc::new(Bare::new(&plane.cluster).await);
        let writers = bare.clone();
        let writing = tokio::spawn(async move {
            writers.write(usize::MAX, Work::Create).await;
        });
        let seeing = tokio::spawn(async move {
            while let Some((_, foo)) = new.next().await {
                if foo.is_new() {
                    bare.add(foo);
                }
            }
        });
        for a_second in RATES {
            let watches = (&mut deployments, &mut foos);
            self.steady(&plane, Side::Bare, watches, a_second).await;
        }
        seeing.abort();
        writing.abort();
    }

    /// Measures the same writes without a controller.
    async fn bare(&mut self, plane: &Plane, workload: Workload, count: usize) {
        let names = names("foo", count);
        let bare = Arc::new(Bare::new(&plane.cluster).await);
        let writers = bare.clone();
        let work = match workload {
            Workload::Scale => Work::Scale,
            _ => Work::Create,
        };
        let writing = tokio::spawn(async move { writers.write(count, work).await });
        let begun = Instant::now();
        let load = plane.load.each(&names, async |client, name| {
            bare.add(match work {
                Work::Create => writes::create_foo(client, name).await,
                Work::Scale => writes::scale(client, FOOS, name, 2).await,
            });
        });
        load.await;
        let written = writing.await.unwrap();
        let since = |at: Option<Instant>| (at.unwrap() - begun).as_secs_f64();
        let deployed = since(written.deployment);
        let reported = deployed.max(since(written.status));
        let all = reported.max(since(written.event));
        for (measure, value) in [(DEPLOYED, deployed), (REPORTED, reported), (ALL, all)] {
            self.note(workload, Side::Bare, measure, value);
        }
    }

    /// Runs the workloads with few Foos.
    async fn some(&mut self, side: Side) {
        let plane = self.plane().await;
        let mut run = Run::start(&plane, side, &[]).await;
        let names = self.create(&mut run, Create, self.scale.some).await;
        self.scale_all(&mut run, &names).await;
        if self.wants_any(&["correct"]) {
            self.correct(&mut run, &names).await;
        }
        // Saves time: the API server determines these latencies.
        if self.wants_any(&["steady"]) && side != Side::Shipped {
            self.rates(&mut run).await;
        }
    }

    /// Creates Foos at each rate, until all work is done.
    async fn rates(&mut self, run: &mut Run<'_>) {
        let side = run.side;
        for a_second in RATES {
            let workload = Steady(a_second);
            let meter = Meter::start(&run.plane.cluster, &run.subject);
            let watches = (&mut run.deployments, &mut run.foos);
            let reported = self.steady(run.plane, side, watches, a_second).await;
            run.subject.rest().await;
            let (_, last) = meter.events();
            let all = (reported - meter.begun).as_secs_f64().max(last);
            self.note(workload, side, ALL, all);
            self.note_used(workload, side, &meter);
        }
    }

    /// Exports all telemetry to a collector on the same machine.
    async fn exporting(&mut self) {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/collector.yaml");
        let mut collector = Collector::start_with(&config).await;
        let plane = self.plane().await;
        let more = ["--otlp-endpoint", &collector.endpoint()];
        let mut run = Run::start(&plane, Side::Ours, &more).await;
        self.create(&mut run, Export, self.scale.some).await;
        for (measure, share) in [
            (ALL, EXPORTING),
            (CPU, "CPU: of what it is without, %"),
            (PEAK, "peak memory: of what it is without, %"),
        ] {
            let [with, without] = [Export, Create]
                .map(|workload| self.measured(Side::Ours, workload, measure).unwrap());
            self.note(Export, Side::Ours, share, 100.0 * with / without);
        }
        let log = run.subject.end();
        let drops = log.matches("queue full, dropping").count();
        self.note(
            Export,
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
        self.note(Export, Side::Ours, "spans", batches.sum());
    }

    /// Runs the workloads with many Foos.
    async fn many(&mut self, side: Side) {
        let plane = self.plane().await;
        let mut run = Run::start(&plane, side, &[]).await;
        self.create(&mut run, Many, self.scale.many).await;
        let Run {
            deployments,
            subject,
            ..
        } = run;
        drop(subject);
        if self.wants_any(&["start", "idle", "hand-over"]) {
            let mut run = self.start(&plane, side, deployments).await;
            if self.wants_any(&["idle"]) {
                let lasts = self.scale.idle;
                self.at_rest(Idle, &plane, side, &run.subject, lasts).await;
            }
            if self.wants_any(&["hand-over"]) {
                self.hand_over(&mut run).await;
            }
        }
        if self.pair == 0 && self.wants_any(&["resync"]) {
            self.resync(&plane, side).await;
        }
    }

    /// Creates Foos as fast as possible, until each has its Deployment, its status and its event.
    async fn create(&mut self, run: &mut Run<'_>, workload: Workload, count: usize) -> Vec<String> {
        let names = names("foo", count);
        let meter = Meter::start(&run.plane.cluster, &run.subject);
        let load = run.plane.load.each(&names, async |client, name| {
            writes::create_foo(client, name).await;
        });
        let (_, deployed, reported) = tokio::join!(
            load,
            run.deployments
                .until(count, |d| is_foo(d) && d.metadata.generation == 1),
            run.foos
                .until(count, |foo| is_foo(foo) && foo.is_reported(1)),
        );
        self.note_times(workload, run, &meter, [&deployed, &reported])
            .await;
        names
    }

    /// Adds a replica to every Foo, until each has its Deployment, its status and its event.
    async fn scale_all(&mut self, run: &mut Run<'_>, names: &[String]) {
        let meter = Meter::start(&run.plane.cluster, &run.subject);
        let load = run.plane.load.each(names, async |client, name| {
            writes::scale(client, FOOS, name, 2).await;
        });
        let (_, scaled, reported) = tokio::join!(
            load,
            run.deployments
                .until(names.len(), |d| is_foo(d) && d.spec.replicas == Some(2)),
            run.foos
                .until(names.len(), |foo| is_foo(foo) && foo.is_reported(2)),
        );
        self.note_times(Workload::Scale, run, &meter, [&scaled, &reported])
            .await;
    }

    /// Edits every Deployment, until each matches its Foo again.
    async fn correct(&mut self, run: &mut Run<'_>, names: &[String]) {
        let meter = Meter::start(&run.plane.cluster, &run.subject);
        let load = run.plane.load.each(names, async |client, name| {
            writes::scale(client, DEPLOYMENTS, name, 5).await;
        });
        // The generation after creation, scaling, edit and correction is 4.
        let is_right =
            |d: &Object| is_foo(d) && d.metadata.generation >= 4 && d.spec.replicas == Some(2);
        let mut right = HashMap::new();
        tokio::join!(
            load,
            run.deployments.gather(&mut right, names.len(), is_right)
        );
        run.subject.rest().await;
        let wrong = names.len() - right.len();
        self.note(Correct, run.side, "wrong after a minute", wrong as f64);
        let deployed = seconds(meter.begun, &right);
        let (_, last) = meter.events();
        self.note(Correct, run.side, DEPLOYED, deployed);
        self.note(Correct, run.side, ALL, deployed.max(last));
        self.note_used(Correct, run.side, &meter);
    }

    /// Creates Foos at a steady rate, at least `Scale::some` over all pairs. Returns when the last status was seen.
    async fn steady(
        &mut self,
        plane: &Plane,
        side: Side,
        (deployments, foos): (&mut Watch, &mut Watch),
        a_second: u32,
    ) -> Instant {
        let prefix = format!("foo-at-{a_second}");
        let count = (self.scale.steady * a_second).as_secs() as usize;
        let count = count.max(self.scale.some.div_ceil(self.scale.pairs));
        let names = names(&prefix, count);
        let begun = Instant::now();
        let load = plane.load.at_rate(a_second, &names, async |client, name| {
            writes::create_foo(client, name).await;
        });
        let new = |it: &Object| it.metadata.name.starts_with(&prefix);
        let (created, deployed, reported) = tokio::join!(
            load,
            deployments.until(count, new),
            foos.until(count, |foo| new(foo) && foo.is_reported(1)),
        );
        let end = created.values().max().copied().unwrap();
        let late = deployed.values().filter(|at| **at > end).count();
        let workload = Steady(a_second);
        for (until, seen) in [(DEPLOYMENT, &deployed), (STATUS, &reported)] {
            let latencies = latencies(&created, seen);
            for (name, q) in &QUANTILES[..2] {
                let measure = format!("{name}{until}, ms");
                self.note(workload, side, &measure, quantile(&latencies, *q).unwrap());
            }
            let all = self.latencies.entry((a_second, side, until)).or_default();
            all.extend(latencies);
        }
        let rate = count as f64 / (end - begun).as_secs_f64();
        self.note(workload, side, "created a second", rate);
        self.note(workload, side, "left at the end", late as f64);
        reported.into_values().max().unwrap()
    }

    /// Starts a controller with all Foos and Deployments in place and one Foo without a Deployment, until that Deployment
    /// exists.
    async fn start<'a>(&mut self, plane: &'a Plane, side: Side, mut deployments: Watch) -> Run<'a> {
        let client = plane.load.client();
        writes::delete(client, LEASE).await;
        plane.release_lease().await;
        writes::create_foo(client, "late").await;
        let requests = plane.cluster.audit().len();
        let begun = Instant::now();
        let subject = Subject::start(&plane.cluster, side, "bench-1", NO_RESYNC, &[]);
        let late = deployments.until(1, |d| d.metadata.name == "late").await;
        let time = seconds(begun, &late);
        subject.rest().await;
        let meter = Meter::of_all(&plane.cluster, &subject, requests);
        self.note(Start, side, "time to the first write, s", time);
        self.note_used(Start, side, &meter);
        let foos = Watch::new(client, FOOS).await;
        Run {
            plane,
            side,
            subject,
            deployments,
            foos,
        }
    }

    /// Measures an idle controller.
    async fn at_rest(
        &mut self,
        workload: Workload,
        plane: &Plane,
        side: Side,
        subject: &Subject,
        lasts: Duration,
    ) {
        let meter = Meter::start(&plane.cluster, subject);
        sleep(lasts).await;
        let used = meter.used();
        let cpu = used.iter().find(|(measure, _)| measure == CPU).unwrap().1;
        let share = cpu * 100.0 / lasts.as_secs_f64();
        self.note(workload, side, "of a core, %", share);
        for (measure, value) in used {
            self.note(workload, side, &measure, value);
        }
    }

    /// Measures the second resync. The first compares the listed objects with the desired state. (The peer's resyncs are up to
    /// a tenth late. kube-rs has no common resync: it requeues each Foo after its reconcile.)
    async fn resync(&mut self, plane: &Plane, side: Side) {
        let period = self.scale.resync;
        writes::delete(plane.load.client(), LEASE).await;
        plane.release_lease().await;
        let subject = Subject::start(&plane.cluster, side, "bench-1", period, &[]);
        sleep(period.mul_f64(1.2)).await;
        self.at_rest(Resync, plane, side, &subject, period).await;
    }

    /// Stops the leader while Foos are created. A standby takes over. Its caches are warm, but not with kube-rs.
    async fn hand_over(&mut self, run: &mut Run<'_>) {
        let plane = run.plane;
        let standby = Subject::start(&plane.cluster, run.side, "bench-2", NO_RESYNC, &[]);
        standby.rest().await;
        let meter = Meter::start(&plane.cluster, &standby);
        let names = names("foo-meanwhile", 4 * MEANWHILE as usize);
        let load = plane.load.at_rate(MEANWHILE, &names, async |client, name| {
            writes::create_foo(client, name).await;
        });
        let new = |d: &Object| d.metadata.name.starts_with("foo-meanwhile");
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
            HandOver,
            run.side,
            "Lease to first write, ms",
            meter.lease_to_write() * 1000.0,
        );
        self.note(HandOver, run.side, "longest wait, ms", longest);
        self.note_used(HandOver, run.side, &meter);
    }

    fn wants_any(&self, workloads: &[&str]) -> bool {
        workloads
            .iter()
            .any(|workload| self.wanted.contains(*workload))
    }

    /// Returns a value measured for this side in this pair.
    fn measured(&self, side: Side, workload: Workload, measure: &str) -> Option<f64> {
        let is_it = |s: &&Sample| {
            s.side == side && s.pair == self.pair && s.workload == workload && s.measure == measure
        };
        Some(self.samples.iter().find(is_it)?.value)
    }

    /// Records the times of the last Deployment, status and event, the missing events and the resource use.
    async fn note_times(
        &mut self,
        workload: Workload,
        run: &Run<'_>,
        meter: &Meter<'_>,
        [deployed, reported]: [&HashMap<String, Instant>; 2],
    ) {
        run.subject.rest().await;
        let (deployments, expected) = (seconds(meter.begun, deployed), deployed.len());
        let statuses = deployments.max(seconds(meter.begun, reported));
        let (events, last) = meter.events();
        let all = statuses.max(last);
        self.note(workload, run.side, DEPLOYED, deployments);
        self.note(workload, run.side, REPORTED, statuses);
        self.note(workload, run.side, ALL, all);
        let dropped = expected.saturating_sub(events);
        self.note(workload, run.side, "events not written", dropped as f64);
        self.note_used(workload, run.side, meter);
    }

    /// Records each side's speed relative to the bare writes, in this pair.
    fn note_speeds(&mut self) {
        for workload in [Create, Workload::Scale] {
            let bare = self.measured(Side::Bare, workload, ALL);
            for side in self.scale.sides {
                if let Some((bare, all)) = bare.zip(self.measured(*side, workload, ALL)) {
                    self.note(workload, *side, SPEED, 100.0 * bare / all);
                }
            }
        }
    }

    fn note_used(&mut self, workload: Workload, side: Side, meter: &Meter) {
        for (measure, value) in meter.used() {
            self.note(workload, side, &measure, value);
        }
    }

    fn note(&mut self, workload: Workload, side: Side, measure: &str, value: f64) {
        let pair = self.pair;
        let at = self.begun.elapsed().as_secs();
        let name = workload.words(&self.scale);
        eprintln!(
            "{at:>4} s, pair {}: {side:?}: {name}: {measure}: {value:.3}",
            pair + 1
        );
        let measure = measure.to_owned();
        self.samples.push(Sample {
            workload,
            measure,
            side,
            pair,
            value,
        });
    }
}
