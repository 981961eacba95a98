//! The command line: from flags to the configuration, the run and the exit code.

use std::cell::Cell;
use std::ffi::OsStr;
use std::future::Future;
use std::io::{self, BufWriter, Write};
use std::iter;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use futures::FutureExt as _;
use rustix::process::{Pid, kill_process};
use serde::de::DeserializeOwned;
use tokio::runtime::Builder as RuntimeBuilder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{
    api::conversion::Definition,
    cache::readiness::namespace::RequiredAccess,
    client::{
        cluster::{Cluster, as_for_kubectl},
        fence::{FenceLayer, term::Term},
    },
    cmd::{
        access, convert, doctor, migrate,
        names::{self, Names},
        plan, run,
    },
    config::{self, app::App, build_info, environment::Host, sources::ConfigErrors},
    controller::builder::Builder,
    telemetry::{
        self, Telemetry,
        log::{LogLevel, stderr},
        object_state::{ObjectName, parse},
    },
};

/// Longest time to flush a blocked standard error before the process exits. [`LAST_LINE`] applies after a second signal.
const LAST_LINES: Duration = Duration::from_millis(500);
const LAST_LINE: Duration = Duration::from_millis(50);

/// Flag of `doctor` that selects one object.
const OBJECT: &str = "object";

/// Flags of `plan`.
const OUTPUT: &str = "output";
const CHECK: &str = "check";
const TEXT_OR_JSON: [&str; 2] = ["text", "json"];

/// Flags of `convert`.
const LISTEN: &str = "listen";
const CERT_DIR: &str = "cert-dir";

/// Exit code of `plan` with [`CHECK`] if a step is needed, and of an incomplete plan. These are the codes of `kubectl diff`.
const CHANGES: u8 = 1;
const INCOMPLETE: u8 = 2;

/// Runs the program: parses the flags, loads the configuration, calls [`run`](crate::run), and returns the exit code.
///
/// The command `crd` prints `crds`. An element is a `CustomResourceDefinition`, or the [`Definition`] of one with a conversion
/// webhook. `build` receives the application's settings and declares the controllers.
///
/// # Panics
/// If `build` declares a [`Kind`](crate::Kind) with a part of the names of one of the CRDs: the same group and kind, or the same
/// group and plural, but not all of these names and a served version. No CRD would install such a type. Without debug
/// assertions, the command `run` does not check this: the schemas of the CRDs would stay in its memory.
pub fn main<C: DeserializeOwned, D: Into<Definition>>(
    app: &'static App,
    crds: impl FnOnce() -> Vec<D>,
    build: impl FnOnce(&mut Builder, C),
) -> ExitCode {
    let crds = || crds().into_iter().map(Into::into).collect();
    let code = match run(app, crds, build) {
        Ok(code) => code,
        // Also --help and --version: clap supplies their exit code.
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
        // `config | head -1`: the reader needs no more lines.
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Plan(plan::Error::Output(error)))
            if error.kind() == io::ErrorKind::BrokenPipe =>
        {
            ExitCode::from(INCOMPLETE)
        }
        Err(failure) => {
            for line in failure.to_string().lines() {
                stderr::line(&format!("error: {line}"));
            }
            match failure {
                Failure::Plan(_) => ExitCode::from(INCOMPLETE),
                Failure::Run(error) if error.is_configuration() => ExitCode::from(2),
                Failure::Telemetry(_) => ExitCode::from(2),
                Failure::Convert(convert::Error::NoConversion | convert::Error::Listen(_)) => {
                    ExitCode::from(2)
                }
                _ => ExitCode::FAILURE,
            }
        }
    };
    stderr::flush(LAST_LINES);
    code
}

/// An error that ends the program.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Usage(#[from] clap::Error),
    #[error(transparent)]
    Configuration(#[from] ConfigErrors),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("process 1 is not this program: run reload in a container of the controller")]
    NotTheController,
    #[error("the CustomResourceDefinition cannot be written as YAML: {0}")]
    Crd(#[from] serde_saphyr::ser::Error),
    #[error(transparent)]
    Telemetry(#[from] telemetry::Error),
    #[error(transparent)]
    Run(#[from] run::Error),
    #[error(transparent)]
    Migrate(#[from] migrate::Error),
    #[error(transparent)]
    Convert(#[from] convert::Error),
    #[error(transparent)]
    Plan(#[from] plan::Error),
    #[error("stopped before the migration was complete: run migrate again")]
    Stopped,
}

impl From<doctor::Error> for Failure {
    fn from(error: doctor::Error) -> Self {
        match error {
            doctor::Error::Telemetry(error) => error.into(),
            doctor::Error::Run(error) => error.into(),
        }
    }
}

fn run<C: DeserializeOwned>(
    app: &'static App,
    crds: impl FnOnce() -> Vec<Definition>,
    build: impl FnOnce(&mut Builder, C),
) -> Result<ExitCode, Failure> {
    let mut host = Host::of_this_process();
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let mut command = command(app);
    if let Some(name) = plugin(&program) {
        // The default, `run`, would start a controller on the user's machine.
        command = command.bin_name(name).subcommand_required(true);
        host = as_for_kubectl(host);
    }
    let flags = command.try_get_matches_from(iter::once(program).chain(args))?;
    let is_run = matches!(flags.subcommand(), None | Some(("run", _)));
    let crds = if is_run && !cfg!(debug_assertions) {
        Vec::new()
    } else {
        crds()
    };
    let printed: Vec<_> = crds.iter().map(Names::of).collect();
    let build = |builder: &mut Builder, settings: C| {
        build(builder, settings);
        names::check(&builder.needs(), &printed);
    };
    match flags.subcommand() {
        Some(("crd", _)) => io::stdout().write_all(yaml(app, &crds)?.as_bytes())?,
        Some(("rbac", flags)) => {
            print(app, &host, flags, build, access::cluster_role)?;
        }
        Some(("fencing-policy", flags)) => {
            print(app, &host, flags, build, access::fencing_policy)?;
        }
        Some(("config", flags)) => {
            let (_, settings) = config::load(app, flags, host.variables())?;
            write!(io::stdout(), "{settings}")?;
        }
        Some(("reload", _)) => ask_to_reload()?,
        Some(("doctor", flags)) => return examine(app, &host, flags, crds, build),
        Some(("convert", flags)) => serve_conversions(app, &host, flags, crds)?,
        Some(("migrate", flags)) => rewrite(app, &host, flags, &crds)?,
        Some(("plan", flags)) => return preview(app, &host, flags, build),
        run => {
            drop(crds);
            serve(app, &host, run.map_or(&flags, |(_, flags)| flags), build)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of this program as a plugin of kubectl: `kubectl tea` for a file named `kubectl-tea`. In the name of the
/// file, `-` separates words, and `_` replaces `-` (kubectl, `pkg/cmd/plugin.go`).
fn plugin(program: &OsStr) -> Option<String> {
    let words = Path::new(program)
        .file_stem()?
        .to_str()?
        .strip_prefix("kubectl-")?;
    let words = words.split('-').map(|word| word.replace('_', "-"));
    Some(
        iter::once("kubectl".to_owned())
            .chain(words)
            .collect::<Vec<_>>()
            .join(" "),
    )
}

/// Returns the version, with the commit if the build recorded it. clap needs a `'static` text.
fn version(app: &App) -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| match build_info::commit() {
        Some(commit) => format!("{} ({commit})", app.version),
        None => app.version.to_owned(),
    })
}

/// Returns the command line that [`main`] parses, for example to generate a manual page or shell completions.
#[must_use]
pub fn command(app: &'static App) -> Command {
    Command::new(app.name)
        .version(version(app))
        .about(app.about)
        .after_help(format!(
            "Every key can be set in the file of --config and in the environment: backoff.max is \
             {prefix}BACKOFF__MAX. Flags override the environment, the environment overrides the \
             file, and the file overrides the defaults. Without --config, {prefix}CONFIG names the file.\n\nExit codes: 0 \
             stopped on request, 1 failed, 2 invalid configuration or usage.",
            prefix = app.env_prefix()
        ))
        .args(config::args(app))
        .subcommand(
            Command::new("run")
                .about("Run the controller (default)"),
        )
        .subcommand(Command::new("crd").about("Print the CustomResourceDefinitions"))
        .subcommand(Command::new("rbac").about(
            "Print the ClusterRole that the controllers need",
        ))
        .subcommand(Command::new("fencing-policy").about(
            "Print the admission policy that rejects writes of a replica that does not lead. The fencing component has its \
             binding and record",
        ))
        .subcommand(Command::new("reload").about(
            "Make the controller in this container apply a changed log.level, as SIGHUP does",
        ))
        .subcommand(
            Command::new("config")
                .about("Print the configuration in force as TOML, with the origin of each value"),
        )
        .subcommand(
            Command::new("doctor")
                .about(
                    "Check the cluster as the controller uses it, without changes, and print a line for each check; exit \
                     with 1 if one is an error. With --object=[KIND/]NAMESPACE/NAME, report why this object is not written",
                )
                .arg(
                    Arg::new(OBJECT)
                        .long(OBJECT)
                        .value_name("[KIND/]NAMESPACE/NAME")
                        .value_parser(parse)
                        .help(
                            "Report why this object is not written, and check only its namespace. KIND is needed if the \
                             program has several kinds. A cluster-scoped object is KIND/NAME",
                        ),
                ),
        )
        .subcommand(
            Command::new("plan")
                .about(
                    "Print the requests that this version would send first for each object, and send none. Exit with 2 if the \
                     plan is incomplete",
                )
                .arg(
                    Arg::new(OUTPUT)
                        .long(OUTPUT)
                        .short('o')
                        .value_name("FORMAT")
                        .value_parser(TEXT_OR_JSON)
                        .default_value("text")
                        .help("Format of the plan; json has one object per line"),
                )
                .arg(
                    Arg::new(CHECK)
                        .long(CHECK)
                        .action(ArgAction::SetTrue)
                        .help("Exit with 1 if a request is needed"),
                ),
        )
        .subcommand(
            Command::new("convert")
                .about(
                    "Serve the conversion webhook of the program's CustomResourceDefinitions, if one has versions with \
                     different schemas. Needs no permissions",
                )
                .arg(
                    Arg::new(CERT_DIR)
                        .long(CERT_DIR)
                        .value_name("FOLDER")
                        .value_parser(value_parser!(PathBuf))
                        .required(true)
                        .help("Folder with tls.crt and tls.key, reloaded when they change"),
                )
                .arg(
                    Arg::new(LISTEN)
                        .long(LISTEN)
                        .value_name("ADDRESS")
                        .value_parser(value_parser!(SocketAddr))
                        .default_value("[::]:9443")
                        .help("Address of the webhook"),
                ),
        )
        .subcommand(Command::new("migrate").about(
            "Rewrite every object in the stored version of its CustomResourceDefinition, and remove the other versions from \
             status.storedVersions",
        ))
}

/// Sends SIGHUP to process 1 of this container, the controller. The image contains no other program that can.
fn ask_to_reload() -> Result<(), Failure> {
    let ours = std::env::current_exe()?;
    if std::fs::read_link("/proc/1/exe").ok() != Some(ours) {
        return Err(Failure::NotTheController);
    }
    kill_process(Pid::INIT, rustix::process::Signal::HUP).map_err(io::Error::from)?;
    Ok(())
}

/// Returns the CRDs as YAML documents for `kubectl apply`.
fn yaml(app: &App, crds: &[Definition]) -> Result<String, Failure> {
    let crds = crds.iter().map(Definition::crd);
    let documents: Result<Vec<_>, _> = crds.map(serde_saphyr::to_string).collect();
    Ok(format!(
        "# Generated by `{} crd`.\n{}",
        app.name,
        documents?.join("---\n")
    ))
}

/// Prints a manifest that follows from the declarations of `build`.
fn print<C: DeserializeOwned>(
    app: &'static App,
    host: &Host,
    flags: &ArgMatches,
    build: impl FnOnce(&mut Builder, C),
    manifest: impl FnOnce(&App, &RequiredAccess) -> String,
) -> Result<(), Failure> {
    let (_, settings) = config::load(app, flags, host.variables())?;
    let part = settings.application();
    let runtime = RuntimeBuilder::new_current_thread().build()?;
    let _entered = runtime.enter();
    let needs = access::declared(app, host, |builder| build(builder, part));
    Ok(io::stdout().write_all(manifest(app, &needs).as_bytes())?)
}

/// Prints the report of `doctor`, and returns failure if it contains an error.
fn examine<C: DeserializeOwned>(
    app: &'static App,
    host: &Host,
    flags: &ArgMatches,
    crds: Vec<Definition>,
    build: impl FnOnce(&mut Builder, C),
) -> Result<ExitCode, Failure> {
    let (config, settings) = config::load(app, flags, host.variables())?;
    let part = settings.application();
    let build = |builder: &mut Builder| build(builder, part);
    let runtime = RuntimeBuilder::new_current_thread().enable_all().build()?;
    let object = flags.get_one::<ObjectName>(OBJECT);
    let report = runtime.block_on(doctor::examine(app, host, config, object, crds, build));
    // Does not wait for a DNS lookup in a blocking thread.
    runtime.shutdown_background();
    let report = report?;
    write!(io::stdout(), "{report}")?;
    Ok(if report.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the command `plan`. The log contains errors only, such as a panic.
fn preview<C: DeserializeOwned>(
    app: &'static App,
    host: &Host,
    flags: &ArgMatches,
    build: impl FnOnce(&mut Builder, C),
) -> Result<ExitCode, Failure> {
    let (config, settings) = config::load(app, flags, host.variables())?;
    let part = settings.application();
    let build = |builder: &mut Builder| build(builder, part);
    let format = match flags.get_one::<String>(OUTPUT).map(String::as_str) {
        Some("json") => plan::Format::Json,
        _ => plan::Format::Text,
    };
    let log = config::Log {
        level: "error".to_owned(),
        ..config.log.clone()
    };
    telemetry::log_only(app, &log)?;
    let runtime = RuntimeBuilder::new_current_thread().enable_all().build()?;
    let mut out = BufWriter::new(io::stdout().lock());
    let planned = runtime.block_on(async {
        let stop = stop_asked().map_err(plan::Error::Output)?;
        tokio::select! {
            planned = plan::plan(app, host, &config, &settings, format, &mut out, build) => planned,
            () = stop => Err(plan::Error::Stopped),
        }
    });
    // Does not wait for a DNS lookup in a blocking thread.
    runtime.shutdown_background();
    let summary = planned?;
    Ok(match summary.is_incomplete() {
        true => ExitCode::from(INCOMPLETE),
        false if summary.has_steps() && flags.get_flag(CHECK) => ExitCode::from(CHANGES),
        false => ExitCode::SUCCESS,
    })
}

/// Runs the command `migrate`. There is no election, so its term does not end.
fn rewrite(
    app: &'static App,
    host: &Host,
    flags: &ArgMatches,
    crds: &[Definition],
) -> Result<(), Failure> {
    let (config, _) = config::load(app, flags, host.variables())?;
    let runtime = RuntimeBuilder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let telemetry = Telemetry::start(app, host, &config)?;
        let (metrics, stop) = (telemetry.metrics(), pin!(stop_asked()?));
        let work = async {
            let cluster = Cluster::find(app, host, &config).await;
            let cluster = cluster.map_err(run::Error::from)?;
            let fence = FenceLayer::new(watch::channel(Some(Term::unlimited())).1, &metrics);
            let (client, ..) = cluster.fenced(&fence, &metrics);
            Ok(migrate::migrate(&client, crds).await?)
        };
        let ended = tokio::select! {
            ended = work => ended,
            () = stop => Err(Failure::Stopped),
        };
        telemetry.finish(config.shutdown_timeout).await;
        ended
    });
    // Does not wait for a DNS lookup in a blocking thread.
    runtime.shutdown_background();
    result
}

/// Runs the command `convert`.
fn serve_conversions(
    app: &'static App,
    host: &Host,
    flags: &ArgMatches,
    crds: Vec<Definition>,
) -> Result<(), Failure> {
    let (config, _) = config::load(app, flags, host.variables())?;
    let flag = |missing: &str| io::Error::other(format!("--{missing} is needed"));
    let options = convert::Options {
        listen: *flags.get_one(LISTEN).ok_or_else(|| flag(LISTEN))?,
        certificates: flags
            .get_one::<PathBuf>(CERT_DIR)
            .cloned()
            .ok_or_else(|| flag(CERT_DIR))?,
    };
    let runtime = RuntimeBuilder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let telemetry = Telemetry::start(app, host, &config)?;
        tokio::spawn(reload(
            app,
            host.clone(),
            flags.clone(),
            telemetry.level(),
            signal(SignalKind::hangup())?,
        ));
        let (metrics, stop) = (telemetry.metrics(), stop_asked()?);
        let result = convert::run(host, crds, options, &config, metrics, stop).await;
        telemetry.finish(Duration::ZERO).await;
        Ok(result?)
    });
    // A read of the certificate may hang.
    runtime.shutdown_background();
    result
}

fn serve<C: DeserializeOwned>(
    app: &'static App,
    host: &Host,
    flags: &ArgMatches,
    build: impl FnOnce(&mut Builder, C),
) -> Result<(), Failure> {
    let (config, settings) = config::load(app, flags, host.variables())?;
    // A single thread is enough: a reconcile takes half a millisecond of CPU, and the API server needs ten times that for its
    // requests. More threads cost a fifth more CPU, for notifications between them, and 1 MiB of memory.
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
        let build = |builder: &mut Builder| build(builder, part);
        let (cluster, metrics) = (Cluster::find(app, host, &config).await, telemetry.metrics());
        let result = match cluster {
            Ok(cluster) => run::run(host, cluster, config, metrics, stop, build).await,
            Err(error) => Err(error.into()),
        };
        let took = asked.get().map_or(Duration::ZERO, |asked| asked.elapsed());
        telemetry.finish(limit.saturating_sub(took)).await;
        Ok(result?)
    });
    // Remaining tasks have had their time: `shutdown_timeout`.
    runtime.shutdown_background();
    result
}

/// Applies `log.level` of the current configuration at each SIGHUP, and no other setting. An invalid configuration changes
/// nothing.
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
                    "SIGHUP: applied the configured log.level"
                );
            }
            Err(problems) => {
                let problems: Vec<&str> = problems.lines().collect();
                tracing::warn!(
                    "SIGHUP: invalid configuration, nothing changed: {}",
                    problems.join("; ")
                );
            }
        }
    }
}

/// Returns a future that completes at SIGINT or SIGTERM. A second signal ends the process with exit code 1.
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
