//! Owns a real control plane for tests and the demo: etcd and kube-apiserver on free loopback ports, in their own directory.
//!
//! It leaves nothing behind, however its parent ends. At the end of stdin, and on SIGINT, SIGTERM or SIGHUP, it stops its
//! children and removes its directory. If it is killed, the kernel kills its children, and the next supervisor removes the
//! directory.
//!
//! `xtask cluster [--audit] [--controllers]` prints one JSON line when it is ready (see [`operator_testkit::cluster::Ready`]).
//! Then it answers each line on stdin with `{}` or `{"error": …}`. `kill`, `start`, `freeze` and `thaw` affect the API server;
//! `second FLAGS` starts another API server on the same etcd. `--audit` keeps an audit log. `--controllers` adds
//! kube-controller-manager, kube-scheduler and a kwok node whose pods become Ready.
//!
//! `xtask cluster --memory` serves the control plane in memory instead, and prints the same line. It takes no commands. `bin` is
//! the directory of kubectl on `PATH`.

use std::{
    env, fs,
    io::{BufRead, Write},
    path::PathBuf,
    process::ExitCode,
};

use operator_testkit::{
    ADMIN,
    cluster::{
        Ready,
        control_plane::{self, ControlPlane, Folder, Result},
    },
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
};

// One thread: a child is bound to the thread that spawned it, which must live as long as the process.
#[tokio::main(flavor = "current_thread")]
pub async fn run(arguments: &[String]) -> ExitCode {
    match supervise(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("control plane: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn supervise(arguments: &[String]) -> Result<()> {
    if arguments == ["--memory"] {
        return until_end(in_memory(), stdin().1).await;
    }
    let (mut audit, mut controllers) = (false, false);
    for argument in arguments {
        match argument.as_str() {
            "--audit" => audit = true,
            "--controllers" => controllers = true,
            other => {
                let wanted = "want --memory alone, --audit, --controllers or nothing";
                return Err(format!("{other}: {wanted}").into());
            }
        }
    }
    let bin = control_plane::programs()?;
    let mut plane = ControlPlane::new(bin, audit, controllers)?;
    let (lines, stdin_ended) = stdin();
    let result = until_end(serve(&mut plane, lines), stdin_ended).await;
    plane.stop().await;
    result
}

/// Runs until stdin ends or a signal arrives.
async fn until_end(
    serving: impl Future<Output = Result<()>>,
    stdin_ended: oneshot::Receiver<()>,
) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        result = serving => result,
        _ = stdin_ended => Ok(()),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// Serves the control plane in memory, where all pods of Deployments are available at once.
async fn in_memory() -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path);
    let bin: Option<PathBuf> = folders.find(|folder| folder.join("kubectl").is_file());
    let plane = operator_testkit::ControlPlane::new();
    plane.run_pods();
    let served = plane.serve().await?;
    let folder = Folder::new()?;
    let kubeconfig = folder.path.join("admin.kubeconfig");
    fs::write(&kubeconfig, served.kubeconfig(ADMIN))?;
    say(&serde_json::to_value(Ready {
        kubeconfig,
        server: served.url(),
        tokens: [(ADMIN.to_owned(), ADMIN.to_owned())].into(),
        pids: [].into(),
        audit_log: None,
        bin: bin.ok_or("kubectl is not on PATH")?,
        dir: folder.path.clone(),
    })?)?;
    std::future::pending().await
}

/// Returns the lines of stdin, and a signal at its end. A separate thread reads stdin: tokio's stdin would prevent the process
/// from exiting.
fn stdin() -> (mpsc::UnboundedReceiver<String>, oneshot::Receiver<()>) {
    let (line, lines) = mpsc::unbounded_channel();
    let (open, ended) = oneshot::channel();
    std::thread::spawn(move || {
        let _open = open;
        for read in std::io::stdin()
            .lock()
            .lines()
            .map_while(std::io::Result::ok)
        {
            if line.send(read).is_err() {
                return;
            }
        }
    });
    (lines, ended)
}

async fn serve(plane: &mut ControlPlane, mut lines: mpsc::UnboundedReceiver<String>) -> Result<()> {
    plane.start().await?;
    say(&serde_json::to_value(plane.ready())?)?;
    while let Some(line) = lines.recv().await {
        let (command, flags) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let done = match command {
            "kill" => plane.kill_apiserver().await,
            "start" => plane.start_apiserver().await,
            "freeze" => plane.signal_apiserver(rustix::process::Signal::STOP),
            "thaw" => plane.signal_apiserver(rustix::process::Signal::CONT),
            "second" => {
                let flags: Vec<&str> = flags.split_whitespace().collect();
                plane.start_second_apiserver(&flags).await
            }
            other => Err(format!("{other}: want kill, start, freeze, thaw or second").into()),
        };
        say(&match done {
            Ok(()) => serde_json::json!({}),
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        })?;
    }
    // The select in `supervise` ends when stdin does.
    std::future::pending().await
}

fn say(line: &serde_json::Value) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}
