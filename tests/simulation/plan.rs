//! What a seed expands to: the configuration, who there is, and what happens when. `Display` says all of it.

use std::{fmt, time::Duration};

use super::{
    api::Others,
    trace::{Role, Time, seconds},
    users::Deed,
};

/// A whole schedule.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whence the replicas' own random numbers and the network's times are drawn, too.
    pub seed: u64,
    pub settings: Settings,
    /// One for each replica that is there from the beginning.
    pub replicas: Vec<Machine>,
    /// How many API servers there are, 1 to 3.
    pub servers: usize,
    /// Whether the fencing component is installed.
    pub fencing: bool,
    /// What happens, in any order.
    pub steps: Vec<Step>,
    /// From when on nothing is to happen any more: everything is right by then.
    pub rest: Time,
    /// When the world ends.
    pub end: Time,
}

/// What is configured, where it is not as it ships.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub workers: u32,
    pub resync: Duration,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    pub image: &'static str,
    /// 0: no limit.
    pub max_rollouts: usize,
    /// Whose Foos are looked after; `None`: all.
    pub namespace: Option<&'static str>,
}

impl Action {
    /// What replicas are configured with from now on.
    pub fn settings(&self) -> Option<&Settings> {
        match self {
            Self::Start { settings, .. } | Self::Replace { settings, .. } => settings.as_ref(),
            Self::Upgrade { settings } => Some(settings),
            _ => None,
        }
    }
}

/// Where a replica runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// How far its clocks go in a second of the world, in thousandths: 900 to 1100.
    pub rate: u32,
    /// How far its time of day is off, in milliseconds.
    pub wall: i64,
}

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub struct Step {
    pub at: Time,
    pub what: What,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum What {
    /// Somebody does something.
    Action(Action),
    /// Something goes wrong, for so long; what does not last is over at once.
    Fault(Fault, Duration),
    /// Every fault that still goes on is over, but for those that are to last to the end: what is frozen thaws, who was killed
    /// for good starts again.
    Heal,
}

/// What users and others do, by a request to the first API server that is there.
#[derive(Clone, Debug)]
pub enum Action {
    /// One of a few Foos or Deployments, by number, or the Lease.
    User(Deed),
    /// Creates a Foo; of a spec that users do not write, by [`Action::Request`].
    Create {
        foo: String,
        deployment: String,
        replicas: Option<i32>,
    },
    /// Changes `spec.replicas`.
    Scale { foo: String, replicas: i32 },
    /// Changes `spec.deploymentName`.
    Rename { foo: String, deployment: String },
    /// Deletes a Foo, by `Background`, `Foreground` or `Orphan`.
    Delete { foo: String, policy: &'static str },
    /// Any request. The path begins with `/`, the body is as it is sent, a PATCH is a merge patch.
    Request {
        user: &'static str,
        method: http::Method,
        path: String,
        body: serde_json::Value,
    },
    /// SIGTERM; the replica's place stays empty.
    Stop { replica: usize },
    /// A new pod in a place that is empty, with the plan's settings or others.
    Start {
        replica: usize,
        settings: Option<Settings>,
    },
    /// SIGTERM, and a new pod in its place once it has ended: a rolling update goes from place to place.
    Replace {
        replica: usize,
        settings: Option<Settings>,
    },
    /// A Deployment's rolling update to pods with these settings: there is one more than there should be, and never one less
    /// that is ready.
    Upgrade { settings: Settings },
}

/// What goes wrong. A replica is one of those that there are to be when it begins, by number.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Killed; what comes after.
    Crash { replica: usize, then: Then },
    /// SIGSTOP, and SIGCONT when it is over.
    Freeze { replica: usize },
    /// The machine sleeps: its timers stand still, its clock of deadlines does not.
    Suspend { replica: usize },
    /// The time of day jumps by so many milliseconds, and back when it is over.
    WallJump { replica: usize, by: i64 },
    /// The time of day stands still.
    WallStill { replica: usize },
    /// Nothing goes through, of these, in this direction.
    Partition { of: Calls, way: Way },
    /// All takes so much longer, in this direction.
    Slow { of: Calls, way: Way, by: Duration },
    /// Something happens to the n-th such call from now on (from 1), or, without a number, to each while it lasts. One with a
    /// number waits for its call as long as there is one; its duration does not count.
    Call {
        of: Calls,
        nth: Option<u32>,
        happens: Happens,
    },
    /// Connections are reset now: those of these calls that are open.
    Reset { of: Calls },
    /// An API server is killed, and starts anew when it is over.
    Kill { server: usize },
    /// An API server stands still: what it is sent waits.
    Pause { server: usize },
    /// Its caches are late by so much.
    Behind { server: usize, by: Duration },
    /// Its caches stay where they are.
    Stuck { server: usize },
    /// Its caches are being filled: watches are put off (429).
    Cold { server: usize },
    /// It cannot stream lists, and pages have fewer objects than are asked for.
    NoWatchList { server: usize },
    /// All that etcd and the caches know of the past is forgotten: watches from there begin anew (410).
    Compact,
    /// A backup of now is restored when it is over, and the API servers start anew. As etcd and Kubernetes would have it
    /// (`--bump-revision`, `--mark-compacted`).
    Restore,
    /// Nobody may do this.
    Revoke {
        verb: &'static str,
        resource: &'static str,
    },
    /// The definition of Foos is removed, with all Foos, and put back when it is over.
    NoDefinition,
    /// The fencing component is removed, and put back when it is over; or, where it is not installed, the other way round.
    Fencing,
    /// Where the fencing component is installed, its record is removed, or else its policy and binding; and put back when it is
    /// over.
    FencingPart { record: bool },
    /// Somebody has a policy of theirs.
    Policy(Others),
    /// The pods of one of the users' Deployments do not become available, or a quota refuses them. The Deployment reports it.
    NoPods { deployment: u8, refused: bool },
    /// The garbage collector does nothing: what is to go stays.
    NoCollector,
    /// The Foos' namespace is deleted; when it is over, it is created again, and so are the Foos that were in it.
    NoNamespace,
}

impl Fault {
    /// What happens to each such call while it lasts.
    pub const fn each(of: Calls, happens: Happens) -> Self {
        let nth = None;
        Self::Call { of, nth, happens }
    }

    /// How long it may go on when all is healed.
    pub fn is_noticed_in(&self) -> Option<Duration> {
        match self {
            Self::Call { happens, .. } => happens.is_noticed_in(),
            _ => None,
        }
    }

    /// The API server that it is about, if it is about one.
    pub fn server(&self) -> Option<usize> {
        match self {
            Self::Partition { of, .. }
            | Self::Slow { of, .. }
            | Self::Call { of, .. }
            | Self::Reset { of } => of.server,
            Self::Kill { server }
            | Self::Pause { server }
            | Self::Behind { server, .. }
            | Self::Stuck { server }
            | Self::Cold { server }
            | Self::NoWatchList { server } => Some(*server),
            _ => None,
        }
    }

    /// The replica that it is about, if it is about one.
    pub fn replica_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Crash { replica, .. }
            | Self::Freeze { replica }
            | Self::Suspend { replica }
            | Self::WallJump { replica, .. }
            | Self::WallStill { replica } => Some(replica),
            Self::Partition { of, .. }
            | Self::Slow { of, .. }
            | Self::Call { of, .. }
            | Self::Reset { of } => of.replica.as_mut(),
            _ => None,
        }
    }

    /// Whether it is about what a machine takes for the time of day.
    pub fn is_of_the_clock(&self) -> bool {
        matches!(self, Self::WallJump { .. } | Self::WallStill { .. })
    }

    /// Whether it may be felt by this replica.
    pub fn is_about(&self, replica: usize) -> bool {
        match self {
            Self::Crash { replica: its, .. }
            | Self::Freeze { replica: its }
            | Self::Suspend { replica: its }
            | Self::WallJump { replica: its, .. }
            | Self::WallStill { replica: its } => *its == replica,
            Self::Partition { of, .. }
            | Self::Slow { of, .. }
            | Self::Call { of, .. }
            | Self::Reset { of } => of.replica.is_none_or(|its| its == replica),
            Self::NoPods { .. } | Self::NoCollector => false,
            _ => true,
        }
    }
}

/// Who comes after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The same pod's next container, after this time.
    Container(Duration),
    /// Another pod, after this time.
    Pod(Duration),
    /// Nobody, until all is healed.
    Nobody,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Both,
    Requests,
    Answers,
}

/// Which calls; `None`: whichever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub replica: Option<usize>,
    pub role: Option<Role>,
    pub server: Option<usize>,
    /// As in [`Call::verb`](super::trace::Call::verb); `"write"` is each of create, update, patch and delete.
    pub verb: Option<&'static str>,
    /// As in [`Call::resource`](super::trace::Call::resource).
    pub resource: Option<&'static str>,
}

impl Calls {
    /// Those of this verb to this resource.
    pub const fn of(verb: &'static str, resource: &'static str) -> Self {
        Self {
            replica: None,
            role: None,
            server: None,
            verb: Some(verb),
            resource: Some(resource),
        }
    }
}

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happens {
    /// It never arrives: the connection breaks when the kernel has sent it long enough.
    RequestLost,
    /// It arrives so much later, or never if the kernel gives it up before.
    RequestLate(Duration),
    /// It is carried out, and the answer never comes.
    AnswerLost,
    AnswerLate(Duration),
    /// The connection is refused, or reset before the request is out, or hangs while it is made.
    Refused,
    ResetBefore,
    ConnectHangs,
    /// It is carried out, and the connection is reset in place of an answer.
    ResetAfter,
    /// It is carried out, and half of the answer comes before the connection is cut: of a watch, half of its next line.
    Cut,
    /// It is answered with this, carried out or not.
    Status {
        code: u16,
        retry_after: Option<u32>,
        applied: bool,
    },
    /// A proxy's page, with 200.
    Html,
    /// A watch ends so soon, says nothing (`Silent`), or nothing any more once it has said by a bookmark how far it is
    /// (`FallsSilent`), or something that is no event.
    WatchEnds(Duration),
    WatchSilent,
    WatchFallsSilent,
    WatchGarbage,
    /// The replica is killed before it is sent, when it is carried out, or when the answer has come.
    CrashBefore(Then),
    CrashAt(Then),
    CrashAfter(Then),
}

impl Happens {
    /// As an API server refuses.
    pub const fn refused(code: u16, retry_after: Option<u32>) -> Self {
        Self::Status {
            code,
            retry_after,
            applied: false,
        }
    }

    /// What healing does not end, whoever reads it has to notice: for how long it may go on, by the slowest clock.
    pub fn is_noticed_in(&self) -> Option<Duration> {
        match self {
            // No watch may be silent for five minutes;
            Self::WatchSilent => Some(Duration::from_secs(340)),
            // nor for 150 s once it has had a bookmark, of which there is one each minute.
            Self::WatchFallsSilent => Some(Duration::from_mins(4)),
            _ => None,
        }
    }
}

impl Default for Settings {
    /// As it ships.
    fn default() -> Self {
        Self {
            workers: 2,
            resync: Duration::from_secs(30),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            image: "nginx:latest",
            max_rollouts: 10,
            namespace: None,
        }
    }
}

impl Machine {
    /// With right clocks.
    pub const SOUND: Self = Self {
        rate: 1000,
        wall: 0,
    };
}

impl Plan {
    /// Without anything that happens.
    pub fn calm(seed: u64, replicas: usize, servers: usize, end: Time) -> Self {
        Self {
            seed,
            settings: Settings::default(),
            replicas: vec![Machine::SOUND; replicas],
            servers,
            fencing: false,
            steps: Vec::new(),
            rest: end,
            end,
        }
    }

    pub fn act(&mut self, at: Time, action: Action) {
        self.steps.push(Step {
            at,
            what: What::Action(action),
        });
    }

    /// How long what healing does not end may go on after it.
    pub fn is_noticed_in(&self) -> Option<Duration> {
        let faults = self.steps.iter().filter_map(|step| match &step.what {
            What::Fault(fault, _) => fault.is_noticed_in(),
            _ => None,
        });
        faults.max()
    }

    pub fn fault(&mut self, at: Time, fault: Fault, lasts: Duration) {
        self.steps.push(Step {
            at,
            what: What::Fault(fault, lasts),
        });
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            settings,
            replicas,
            servers,
            fencing,
            steps,
            rest,
            end,
        } = self;
        writeln!(
            f,
            "seed {seed}: {} replicas, {servers} API servers, at rest from {} to {}",
            replicas.len(),
            seconds(*rest),
            seconds(*end)
        )?;
        writeln!(f, "{settings:?}, fencing: {fencing}")?;
        for (number, machine) in replicas.iter().enumerate() {
            if *machine != Machine::SOUND {
                writeln!(f, "replica {number}: {machine:?}")?;
            }
        }
        let mut steps: Vec<_> = steps.iter().collect();
        steps.sort_by_key(|step| step.at);
        for Step { at, what } in steps {
            writeln!(f, "{:>9} {what}", seconds(*at))?;
        }
        Ok(())
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Action(action) => write!(f, "{action:?}"),
            Self::Fault(fault, lasts) if lasts.is_zero() => write!(f, "fault: {fault:?}"),
            Self::Fault(fault, lasts) => write!(f, "fault: {fault:?} for {lasts:?}"),
            Self::Heal => f.write_str("all faults are over"),
        }
    }
}

/// Draws that do not depend on one another: the same seed, purpose and number give the same, whatever else is drawn.
pub fn draw(seed: u64, purpose: &str, number: u64) -> u64 {
    let start = purpose
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    mix(mix(start ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ number)
}

/// The end of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
