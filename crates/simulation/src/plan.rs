//! The plan of a run: the configuration, the replicas, and the steps with their times. `Display` prints all of it.

use std::{fmt, sync::Arc, time::Duration};

use operator_testkit::api_server::Others;

use super::{
    program::Program,
    request::Request,
    subject::Meddling,
    trace::{Role, Time, seconds},
    world::World,
};

/// A whole schedule.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Also the source of the replicas' random numbers and of the latencies.
    pub seed: u64,
    pub program: &'static dyn Program,
    pub settings: Settings,
    /// Machines of the initial replicas.
    pub replicas: Vec<Machine>,
    /// Number of API servers, 1 to 3.
    pub servers: usize,
    /// Whether the fencing component is installed.
    pub fencing: bool,
    /// Steps in any order.
    pub steps: Vec<Step>,
    /// Start of the rest: the desired state has been reached, and the replicas should do nothing more.
    pub rest: Time,
    /// End of the run.
    pub end: Time,
}

/// Settings that a plan may change.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub workers: u32,
    pub resync: Duration,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    /// Image of the owned pods, if the program has this setting.
    pub image: &'static str,
    /// Number of concurrent rollouts, if the program limits them. 0: no limit.
    pub max_rollouts: usize,
    /// Namespace to watch; `None`: all.
    pub namespace: Option<&'static str>,
}

/// An action of the users of one program.
pub trait User: fmt::Debug + Send + Sync {
    /// Carries it out, and ignores errors of the API server. Returns the last status code.
    fn act(&self, world: &mut World) -> u16;
}

impl Action {
    /// An action of the program's users.
    pub fn user(action: impl User + 'static) -> Self {
        Self::User(Arc::new(action))
    }

    /// Returns the settings that replicas have from now on, if the action changes them.
    pub fn settings(&self) -> Option<&Settings> {
        match self {
            Self::Start { settings, .. } | Self::Replace { settings, .. } => settings.as_ref(),
            Self::Upgrade { settings } => Some(settings),
            _ => None,
        }
    }
}

/// Machine of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Clock rate in thousandths, 900 to 1100.
    pub rate: u32,
    /// Offset of the time of day, in milliseconds.
    pub wall: i64,
}

/// A step and its time.
#[derive(Clone, Debug)]
pub struct Step {
    pub at: Time,
    pub what: What,
}

/// Content of a step.
#[derive(Clone, Debug)]
pub enum What {
    /// An action of a user or another client.
    Action(Action),
    /// A fault and its duration; zero for an instantaneous fault.
    Fault(Fault, Duration),
    /// Ends all active faults, except those that last to the end of the run. Frozen replicas thaw. Replicas that were killed
    /// without a successor start again.
    Heal,
}

/// An action of a user or another client: a request to the first running API server, or a change of the replicas.
#[derive(Clone, Debug)]
pub enum Action {
    /// An action of the program's users.
    User(Arc<dyn User>),
    /// A request of a user.
    Request(Request),
    /// A user's action on the `pick`-th object that it may concern.
    Meddle { what: Meddling, pick: u64 },
    /// SIGTERM; the replica's place stays empty.
    Stop { replica: usize },
    /// A new pod in an empty place, with the plan's settings or others.
    Start {
        replica: usize,
        settings: Option<Settings>,
    },
    /// SIGTERM, then a new pod in the same place.
    Replace {
        replica: usize,
        settings: Option<Settings>,
    },
    /// A rolling update of the Deployment to pods with these settings: one surplus pod, and never fewer ready pods than
    /// desired.
    Upgrade { settings: Settings },
}

/// A fault. Replica numbers count the places that should have a pod when it begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// SIGKILL, and the successor.
    Crash { replica: usize, then: Then },
    /// SIGSTOP, and SIGCONT at the end.
    Freeze { replica: usize },
    /// The machine sleeps: its timers stop, its clock of deadlines does not.
    Suspend { replica: usize },
    /// The time of day jumps by `by` milliseconds, and back at the end, if any.
    WallJump { replica: usize, by: i64 },
    /// The time of day stops.
    WallStill { replica: usize },
    /// Drops the messages of these calls in this direction.
    Partition { of: Calls, way: Way },
    /// Delays the messages of these calls in this direction.
    Slow { of: Calls, way: Way, by: Duration },
    /// Affects the n-th such call from now on (from 1), or without a number each call while the fault lasts. With a number it
    /// waits for its call, and ignores its duration.
    Call {
        of: Calls,
        nth: Option<u32>,
        happens: Happens,
    },
    /// Resets the open connections of these calls.
    Reset { of: Calls },
    /// Kills an API server, which restarts at the end.
    Kill { server: usize },
    /// Pauses an API server: requests wait.
    Pause { server: usize },
    /// Delays the caches of an API server.
    Behind { server: usize, by: Duration },
    /// The caches of an API server receive no more versions.
    Stuck { server: usize },
    /// The caches of an API server are being filled: it rejects watches (429).
    Cold { server: usize },
    /// An API server cannot stream lists, and its pages are smaller than requested.
    NoWatchList { server: usize },
    /// Removes the history from etcd and the caches: a watch of an older version fails (410).
    Compact,
    /// Takes a backup, restores it at the end, and restarts the API servers. As etcd and Kubernetes recommend
    /// (`--bump-revision`, `--mark-compacted`).
    Restore,
    /// Revokes a permission of the controller.
    Revoke {
        verb: &'static str,
        resource: &'static str,
    },
    /// Removes the first CRD of the program, with all its objects, and installs it again at the end.
    NoDefinition,
    /// Removes the fencing component, and installs it again at the end. If the plan has no fencing, the other way round.
    Fencing,
    /// Removes a part of the installed fencing component: its record, or else its policy and binding. Installs it again at the
    /// end.
    FencingPart { record: bool },
    /// Installs an admission policy of another party.
    Policy(Others),
    /// The pods of the Deployment of this number do not become available, or a quota rejects them. The Deployment reports it.
    NoPods { deployment: u8, refused: bool },
    /// Stops the garbage collector.
    NoCollector,
    /// Deletes the namespace of the users' objects. At the end it is created again, with the objects of custom types.
    NoNamespace,
}

impl Fault {
    /// Returns a fault of each such call while it lasts.
    pub const fn each(of: Calls, happens: Happens) -> Self {
        let nth = None;
        Self::Call { of, nth, happens }
    }

    /// Returns how long it may outlast the heal.
    pub fn is_noticed_in(&self) -> Option<Duration> {
        match self {
            Self::Call { happens, .. } => happens.is_noticed_in(),
            _ => None,
        }
    }

    /// Returns the affected API server, if there is only one.
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

    /// Returns the affected replica, if there is only one.
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

    /// Returns whether it changes the time of day of a machine.
    pub fn is_of_the_clock(&self) -> bool {
        matches!(self, Self::WallJump { .. } | Self::WallStill { .. })
    }

    /// Returns whether it may affect this replica.
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

/// Successor after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The next container of the same pod, after this delay.
    Container(Duration),
    /// Another pod, after this delay.
    Pod(Duration),
    /// No successor until all faults are healed.
    Nobody,
}

/// Direction of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Both,
    Requests,
    Answers,
}

/// Selection of calls; `None` matches any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub replica: Option<usize>,
    pub role: Option<Role>,
    pub server: Option<usize>,
    /// As in [`Call::verb`](super::trace::Call::verb); `"write"` matches create, update, patch and delete.
    pub verb: Option<&'static str>,
    /// As in [`Call::resource`](super::trace::Call::resource).
    pub resource: Option<&'static str>,
}

impl Calls {
    /// Selects the calls of this verb to this resource.
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

/// Fault of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happens {
    /// The request never arrives. The connection breaks when the kernel gives up.
    RequestLost,
    /// The request is late by this time. If the kernel gives up first, it never arrives.
    RequestLate(Duration),
    /// The call is carried out, but the response never arrives.
    AnswerLost,
    AnswerLate(Duration),
    /// The connection is refused, is reset before the request is sent, or cannot be established.
    Refused,
    ResetBefore,
    ConnectHangs,
    /// The call is carried out, but the connection is reset instead of a response.
    ResetAfter,
    /// The call is carried out, but the connection breaks after half of the response (for a watch, after half of its next
    /// line).
    Cut,
    /// The response has this status. `applied`: the call is carried out nevertheless.
    Status {
        code: u16,
        retry_after: Option<u32>,
        applied: bool,
    },
    /// An admission webhook holds the write for this time and then fails open. If the `timeout=` of the write ends first, the API
    /// server answers 504 and writes nothing. It does not notice that the sender has closed the connection.
    Hangs(Duration),
    /// Status 200 with the HTML page of a proxy.
    Html,
    /// Status 200 with an object of another kind.
    OtherKind,
    /// The first half of the response, which then ends without an error of the connection.
    Truncated,
    /// A list without objects and without a version, or a watch that ends before its first event.
    Empty,
    /// Every page of a list names a next page. `Endless` repeats the same token. `Circle` repeats the objects up to 500 per page,
    /// with a new token each time.
    Endless,
    Circle,
    /// The version of a list is not a number.
    NoVersion,
    /// A watch begins with an `ERROR` event.
    ErrorEvent(u16),
    /// A write returns success, but changes nothing.
    Ignored,
    /// A watch ends after this time, sends nothing (`Silent`), sends nothing after the next bookmark (`FallsSilent`), or sends
    /// invalid data.
    WatchEnds(Duration),
    WatchSilent,
    WatchFallsSilent,
    WatchGarbage,
    /// The replica is killed before it sends the request, when the call is carried out, or when it has the response.
    CrashBefore(Then),
    CrashAt(Then),
    CrashAfter(Then),
}

impl Happens {
    /// Returns an error response without effect.
    pub const fn refused(code: u16, retry_after: Option<u32>) -> Self {
        Self::Status {
            code,
            retry_after,
            applied: false,
        }
    }

    /// Returns how long the fault may outlast the heal, which leaves it to its reader. Long enough for the slowest clock.
    pub fn is_noticed_in(&self) -> Option<Duration> {
        match self {
            // A watch may be silent for five minutes.
            Self::WatchSilent => Some(Duration::from_secs(340)),
            // After a bookmark, it may be silent for 150 s. There is a bookmark each minute.
            Self::WatchFallsSilent => Some(Duration::from_mins(4)),
            _ => None,
        }
    }
}

impl Default for Settings {
    /// As shipped.
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
    /// Correct clocks.
    pub const SOUND: Self = Self {
        rate: 1000,
        wall: 0,
    };
}

impl Plan {
    /// Returns a plan without steps.
    pub fn calm(
        program: &'static dyn Program,
        seed: u64,
        replicas: usize,
        servers: usize,
        end: Time,
    ) -> Self {
        Self {
            seed,
            program,
            settings: Settings::default(),
            replicas: vec![Machine::SOUND; replicas],
            servers,
            fencing: false,
            steps: Vec::new(),
            rest: end,
            end,
        }
    }

    pub fn act(&mut self, at: Time, action: impl Into<Action>) {
        self.steps.push(Step {
            at,
            what: What::Action(action.into()),
        });
    }

    /// Returns how long a fault of the plan may outlast the heal.
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
            program,
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
            "seed {seed} of {program:?}: {} replicas, {servers} API servers, at rest from {} to {}",
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

/// Returns a random number for seed, purpose and number. It does not depend on other draws.
pub fn draw(seed: u64, purpose: &str, number: u64) -> u64 {
    let start = purpose
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    mix(mix(start ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ number)
}

/// Mixer of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
