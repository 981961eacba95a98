//! The command line: flags → configuration → run → exit code.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{ArgMatches, Command};
use futures::FutureExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use rustix::process::{Pid, kill_process};
use serde::de::DeserializeOwned;
use tokio::runtime::Builder as RuntimeBuilder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::{
    client::cluster::Cluster,
    cmd::{doctor, run},
    config::{self, app::App, build_info, environment::Host, sources::Problems},
    controller::builder::Builder,
    reconcile::reconciler::Reconciler,
    telemetry::{
        self, Telemetry,
        log::{LogLevel, stderr},
    },
};

/// How long the end of the process waits for a standard error that does not take the last lines; and after a second signal.
const LAST_LINES: Duration = Duration::from_millis(500);
const LAST_LINE: Duration = Duration::from_millis(50);

/// The whole program: flags → configuration → [`run`](crate::run) → exit code. `crds` are printed by its command `crd`;
/// `build` declares what is watched, and is given the application's part of the configuration.
pub fn main<R: Reconciler, C: DeserializeOwned>(
    app: &'static App,
    crds: impl FnOnce() -> Vec<CustomResourceDefinition>,
    build: impl FnOnce(&mut Builder<R::Primary>, C) -> R,
) -> ExitCode {
    let code = match run(app, crds, build) {
        Ok(code) => code,
        // --help and --version, too, come here; clap knows what they exit with.
        Err(Failure::Usage(answer)) => {
            let _ = answer.print();
            ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2))
        }
        Err(Failure::Configuration(problems)) => {
            for problem in problems.lines() {
                stderr::line(&format!("error: {problem}"));
            }
            ExitCode::from(2)
        }
        // `config | head -1`: the reader has what it wanted.
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            stderr::line(&format!("error: {failure}"));
            match failure {
                Failure::Run(error) if error.is_configuration() => ExitCode::from(2),
                Failure::Telemetry(_) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    };
    stderr::flush(LAST_LINES);
    code
}

/// Why the program did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Usage(#[from] clap::Error),
    #[error(transparent)]
    Configuration(#[from] Problems),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("process 1 is not this program: reload is to be run in a container of the controller")]
    NotTheController,
    #[error("the CustomResourceDefinition cannot be written as YAML: {0}")]
    Crd(#[from] serde_saphyr::ser::Error),
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    #[error(transparent)]
    Run(#[from] run::Error),
}

impl From<doctor::Error> for Failure {
    fn from(error: doctor::Error) -> Self {
        match error {
            doctor::Error::Telemetry(error) => error.into(),
            doctor::Error::Run(error) => error.into(),
        }
    }
}

fn run<R: Reconciler, C: DeserializeOwned>(
    app: &'static App,
    crds: impl FnOnce() -> Vec<CustomResourceDefinition>,
    build: impl FnOnce(&mut Builder<R::Primary>, C) -> R,
) -> Result<ExitCode, Failure> {
    let (host, flags) = (Host::of_this_process(), command(app).try_get_matches()?);
    match flags.subcommand() {
        Some(("crd", _)) => io::stdout().write_all(yaml(&crds())?.as_bytes())?,
        Some(("config", flags)) => {
            let (_, settings) = config::load(app, flags, host.variables())?;
            write!(io::stdout(), "{settings}")?;
        }
        Some(("reload", _)) => ask_to_reload()?,
        Some(("doctor", flags)) => return examine(app, &host, flags, crds(), build),
        Some((_, flags)) => serve(app, &host, flags, build)?,
        None => serve(app, &host, &flags, build)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The version, and the commit where the build says it. For clap, which takes a text that lives as long as the process.
fn version(app: &App) -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| match build_info::commit() {
        Some(commit) => format!("{} ({commit})", app.version),
        None => app.version.to_owned(),
    })
}

/// The command line of an application, of which [`main`] takes its flags: for a manual page, or a shell's completions.
#[must_use]
pub fn command(app: &'static App) -> Command {
    Command::new(app.name)
        .version(version(app))
        .about(app.about)
        .after_help(format!(
            "Every key can be in the file of --config, and in the environment: backoff.max is \
             {prefix}BACKOFF__MAX. Flags go over the environment, the environment over the \
             file, the file over the defaults. Without --config the file is what {prefix}CONFIG names.\n\nExit codes: 0 asked to stop, 1 failed, 2 bad \
             configuration or usage.",
            prefix = app.env_prefix()
        ))
        .args(config::args(app))
        .subcommand(
            Command::new("run")
                .about("Run the controller; what happens, too, where no command is given"),
        )
        .subcommand(Command::new("crd").about("Print the CustomResourceDefinitions"))
        .subcommand(Command::new("reload").about(
            "Have the controller of this container take over a changed log.level, as SIGHUP does",
        ))
        .subcommand(
            Command::new("config")
                .about("Print the configuration in force as TOML, with the origin of each value"),
        )
        .subcommand(Command::new("doctor").about(
            "Look at the cluster as the controller would, change nothing, and print a line for each check; exits with 1 \
             where one of them is an error",
        ))
}

/// Sends SIGHUP to the controller of this container, in which there is nothing else that could.
fn ask_to_reload() -> Result<(), Failure> {
    let ours = std::env::current_exe()?;
    if std::fs::read_link("/proc/1/exe").ok() != Some(ours) {
        return Err(Failure::NotTheController);
    }
    kill_process(Pid::INIT, rustix::process::Signal::HUP).map_err(io::Error::from)?;
    Ok(())
}

/// What is applied to a cluster: one document for each.
fn yaml(crds: &[CustomResourceDefinition]) -> Result<String, Failure> {
    let documents: Result<Vec<_>, _> = crds.iter().map(serde_saphyr::to_string).collect();
    Ok(format!(
        "# Generated by `make generate` from the types in src.\n{}",
        documents?.join("---\n")
    ))
}

/// Prints what is found in the cluster, and says whether something is wrong.
fn examine<R: Reconciler, C: DeserializeOwned>(
    app: &'static App,
    host: &Host,
    flags: &ArgMatches,
    crds: Vec<CustomResourceDefinition>,
    build: impl FnOnce(&mut Builder<R::Primary>, C) -> R,
) -> Result<ExitCode, Failure> {
    let (config, settings) = config::load(app, flags, host.variables())?;
    let part = settings.application();
    let build = |builder: &mut Builder<R::Primary>| build(builder, part);
    let runtime = RuntimeBuilder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(doctor::examine(app, host, config, crds, build));
    // A name that is still being resolved is not waited for.
    runtime.shutdown_background();
    let report = report?;
    write!(io::stdout(), "{report}")?;
    Ok(if report.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn serve<R: Reconciler, C: DeserializeOwned>(
    app: &'static App,
    host: &Host,
    flags: &ArgMatches,
    build: impl FnOnce(&mut Builder<R::Primary>, C) -> R,
) -> Result<(), Failure> {
    let (config, settings) = config::load(app, flags, host.variables())?;
    // One thread is enough: an object takes half a millisecond of it, its requests the API server ten times that. More
    // threads would have to notify one another of each answer, which costs a fifth more, and a MiB.
    let runtime = RuntimeBuilder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let telemetry = Telemetry::start(app, host, &config)?;
        tracing::info!("configuration: {}", settings.line());
        tokio::spawn(reload(
            app,
            host.clone(),
            flags.clone(),
            telemetry.level(),
            signal(SignalKind::hangup())?,
        ));
        let (limit, part) = (config.shutdown_timeout, settings.application());
        let asked = Cell::new(None);
        let stop = stop_asked()?.map(|()| asked.set(Some(Instant::now())));
        let build = |builder: &mut Builder<R::Primary>| build(builder, part);
        let (cluster, metrics) = (Cluster::find(app, host, &config).await, telemetry.metrics());
        let result = match cluster {
            Ok(cluster) => run::run(host, cluster, config, metrics, stop, build).await,
            Err(error) => Err(error.into()),
        };
        let took = asked.get().map_or(Duration::ZERO, |asked| asked.elapsed());
        telemetry.finish(limit.saturating_sub(took)).await;
        Ok(result?)
    });
    // What is left has had its time: the work was drained within `shutdown_timeout`.
    runtime.shutdown_background();
    result
}

/// At each SIGHUP, what the configuration says by now is logged, and nothing else of it counts. One that is
/// wrong changes nothing.
async fn reload(
    app: &'static App,
    host: Host,
    flags: ArgMatches,
    level: LogLevel,
    mut hangup: Signal,
) {
    while hangup.recv().await.is_some() {
        match config::load(app, &flags, host.variables()) {
            Ok((config, _)) => {
                level.set(&config.log.level);
                tracing::info!(
                    log.level = config.log.level,
                    "SIGHUP: log.level as configured now"
                );
            }
            Err(problems) => {
                let problems: Vec<&str> = problems.lines().collect();
                tracing::warn!(
                    "SIGHUP: the configuration is wrong, nothing changes: {}",
                    problems.join("; ")
                );
            }
        }
    }
}

/// Completes at SIGINT or SIGTERM. From then on, another one ends the process with 1.
///
/// # Errors
/// The handlers cannot be installed.
fn stop_asked() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        next(&mut interrupt, &mut terminate).await;
        tracing::info!("stopping: running work may finish, unless a second signal comes");
        tokio::spawn(async move {
            next(&mut interrupt, &mut terminate).await;
            stderr::flush(LAST_LINE);
            std::process::exit(1);
        });
    })
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
