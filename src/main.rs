//! The command line: flags → configuration → run → exit code.

use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{ArgMatches, Command};
use foo_controller::config::{self, Config, Problems};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

fn main() -> ExitCode {
    // Nothing can be done about a standard error that does not take what it is given.
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // --help and --version, too, come here; clap knows what they exit with.
        Err(Failure::Usage(answer)) => {
            let _ = answer.print();
            ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2))
        }
        Err(Failure::Configuration(problems)) => {
            for problem in problems.lines() {
                let _ = writeln!(io::stderr(), "error: {problem}");
            }
            ExitCode::from(2)
        }
        // `foo-controller config | head -1`: the reader has what it wanted.
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "error: {failure}");
            ExitCode::FAILURE
        }
    }
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
    #[error(transparent)]
    Run(#[from] placeholder::Error),
}

fn run() -> Result<(), Failure> {
    let flags = command().try_get_matches()?;
    match flags.subcommand() {
        Some(("crd", _)) => io::stdout().write_all(placeholder::crd().as_bytes())?,
        Some(("config", flags)) => {
            let (_, settings) = config::load(flags, std::env::vars_os())?;
            write!(io::stdout(), "{settings}")?;
        }
        Some((_, flags)) => serve(flags)?,
        None => serve(&flags)?,
    }
    Ok(())
}

/// The crate's version, and the commit where the build says it.
static VERSION: LazyLock<String> = LazyLock::new(|| match option_env!("FOO_CONTROLLER_COMMIT") {
    Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
    None => env!("CARGO_PKG_VERSION").to_owned(),
});

fn command() -> Command {
    Command::new("foo-controller")
        .version(VERSION.as_str())
        .about(env!("CARGO_PKG_DESCRIPTION"))
        .after_help(
            "Every key can stand in the file of --config, and in the environment: backoff.max is \
             FOO_CONTROLLER__BACKOFF__MAX. Flags go over the environment, the environment over the \
             file, the file over the defaults.\n\nExit codes: 0 asked to stop, 1 failed, 2 bad \
             configuration or usage.",
        )
        .args(config::args())
        .subcommand(
            Command::new("run")
                .about("Run the controller; what happens, too, where no command is given"),
        )
        .subcommand(Command::new("crd").about("Print the CustomResourceDefinition of Foo"))
        .subcommand(
            Command::new("config")
                .about("Print the configuration in force as TOML, with the origin of each value"),
        )
}

fn serve(flags: &ArgMatches) -> Result<(), Failure> {
    let (config, _) = config::load(flags, std::env::vars_os())?;
    let runtime = Runtime::new()?;
    let result = runtime.block_on(async { Ok(placeholder::run(config, stop_asked()?).await?) });
    // What is left has had its time: the work was drained within `shutdown_timeout`.
    runtime.shutdown_background();
    result
}

/// Completes at SIGINT or SIGTERM. From then on, another one ends the process with 1 (row P2).
///
/// # Errors
/// The handlers cannot be installed.
fn stop_asked() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        next(&mut interrupt, &mut terminate).await;
        tokio::spawn(async move {
            next(&mut interrupt, &mut terminate).await;
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

/// Stands in for what the library will give: `foo_controller::run` and `foo_controller::api::crd`.
mod placeholder {
    use super::{Config, Future};

    #[derive(Debug, thiserror::Error)]
    #[error("nothing to run yet")]
    pub struct Error;

    #[expect(clippy::unused_async, reason = "as the real one")]
    pub async fn run(_config: Config, _shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        Err(Error)
    }

    pub fn crd() -> &'static str {
        "# the CustomResourceDefinition\n"
    }
}
