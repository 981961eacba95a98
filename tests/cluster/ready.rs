//! What the supervisor and those who start it have in common: its first line, and how a child is kept from outliving its
//! parent.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use serde::{Deserialize, Serialize};

/// The supervisor's first line on stdout, as JSON: the API server answers `/readyz` with `ok`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Ready {
    /// A kubeconfig of the user `admin`, who may do everything.
    pub kubeconfig: PathBuf,
    /// The API server's address, `https://127.0.0.1:PORT`; it stays the same when the server is started again.
    pub server: String,
    /// Bearer tokens by user name: `admin`, and `replica-1` to `replica-3`, who may do the same under a name that the audit
    /// log can distinguish; also `bench-1`, `bench-2` and `bench-load`, of whose writes it does not keep the bodies.
    pub tokens: BTreeMap<String, String>,
    /// Process ids by program name. The API server's is another one after it was started again.
    pub pids: BTreeMap<String, u32>,
    /// The audit log, one JSON object a line, when it was asked for.
    pub audit_log: Option<PathBuf>,
    /// The folder of the programs, `kubectl` among them.
    pub bin: PathBuf,
    /// The folder that holds everything of this control plane and vanishes with it.
    pub dir: PathBuf,
}

/// A command whose process the kernel kills when the thread that spawned it ends, however it ends. That takes `setpriv`
/// (util-linux); without it, as on macOS, the process may outlive a parent that was killed.
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
