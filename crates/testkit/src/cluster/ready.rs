//! Shared by the supervisor and its clients: the first output line, and child processes that do not outlive their parent.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use serde::{Deserialize, Serialize};

/// First line of the supervisor on stdout, as JSON. It is written when the API server answers `/readyz` with `ok`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Ready {
    /// Kubeconfig of the user `admin`, who has all permissions.
    pub kubeconfig: PathBuf,
    /// Address of the API server, `https://127.0.0.1:PORT`. A restart does not change it.
    pub server: String,
    /// Bearer tokens by user name. `replica-1` to `replica-4` have the permissions of `admin`, under names that the audit log
    /// distinguishes. So do `bench-1`, `bench-2` and `bench-load`, whose request bodies are not logged.
    pub tokens: BTreeMap<String, String>,
    /// Process ids by program name. A restart changes that of the API server.
    pub pids: BTreeMap<String, u32>,
    /// Audit log with one JSON object per line, if enabled.
    pub audit_log: Option<PathBuf>,
    /// Directory of the programs, including `kubectl`.
    pub bin: PathBuf,
    /// Directory of all files of this control plane, removed when it stops.
    pub dir: PathBuf,
}

/// Returns a command whose process the kernel kills when the spawning thread ends. This needs `setpriv` (util-linux). Without
/// it, as on macOS, the process may outlive a killed parent.
pub fn bound_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let setpriv = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("setpriv").is_file()));
    if setpriv {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}
