//! Takes each protection of `mutants.toml` out of a copy of the workspace, one at a time, and has the simulation find that
//! it is gone. The copy, and what is built of it, are below the folder of builds, so that the next time is faster.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde::Deserialize;

/// How many seeds a mutant may live through.
const SEEDS: &str = "2000";

/// Without some protections a run ends nowhere, which is found, too.
const PATIENCE: Duration = Duration::from_mins(10);

/// A protection, and what is in its place when it is taken out.
#[derive(Deserialize)]
pub struct Mutant {
    pub name: String,
    pub file: PathBuf,
    pub old: String,
    pub new: String,
    /// The invariant that should show it; others may be faster.
    pub finder: String,
}

/// All of them.
pub fn all() -> Vec<Mutant> {
    #[derive(Deserialize)]
    struct Table {
        mutant: Vec<Mutant>,
    }
    let table: Table = toml::from_str(include_str!("mutants.toml")).unwrap();
    table.mutant
}

/// Tries those whose names contain `part`; prints of each what found it. Returns how many were not found.
pub fn run(part: &str) -> usize {
    let folder = builds().join("mutants");
    let copy = folder.join("workspace");
    copy_workspace(&copy);
    let (mut tried, mut missed) = (0, Vec::new());
    for mutant in all().iter().filter(|mutant| mutant.name.contains(part)) {
        let begun = Instant::now();
        let path = copy.join(&mutant.file);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen(&mutant.old, &mutant.new, 1)).unwrap();
        let found = simulate(&copy, &folder.join("builds"));
        fs::write(&path, text).unwrap();
        tried += 1;
        let seconds = begun.elapsed().as_secs();
        let (name, finder) = (&mutant.name, &mutant.finder);
        if let Some(violation) = found {
            println!("found after {seconds} s ({finder}): {name}: {violation}");
        } else {
            println!("NOT FOUND after {seconds} s ({finder}): {name}");
            missed.push(name.clone());
        }
    }
    println!(
        "{tried} mutants, {} not found{}{}",
        missed.len(),
        if missed.is_empty() { "" } else { ": " },
        missed.join("; ")
    );
    missed.len()
}

/// This program is `BUILDS/release/examples/simulate`.
fn builds() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(3).unwrap().to_owned()
}

/// The files that git knows of, as they are.
fn copy_workspace(to: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(from)
        .output()
        .unwrap();
    assert!(files.status.success(), "git ls-files: {}", files.status);
    let files = String::from_utf8(files.stdout).unwrap();
    for file in files.split_terminator('\0') {
        let (from, to) = (from.join(file), to.join(file));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let new = fs::read(&from).unwrap();
        // Cargo builds anew what has another time.
        if fs::read(&to).ok().as_ref() != Some(&new) {
            fs::write(&to, new).unwrap();
        }
    }
}

/// What the simulation of this workspace finds first.
fn simulate(workspace: &Path, builds: &Path) -> Option<String> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--profile", "bench"])
        .args(["--example", "simulate", "--target-dir"])
        .arg(builds)
        .current_dir(workspace)
        .status()
        .unwrap();
    assert!(built.success(), "a mutant that cannot be built");
    let log = builds.join("simulate.log");
    let mut program = Command::new(builds.join("release/examples/simulate"))
        .args(["--first", "--seeds", SEEDS])
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(ended) = program.try_wait().unwrap() {
            let text = fs::read_to_string(&log).unwrap();
            let said = text.lines().find(|line| !line.contains(" of "));
            let said = said.unwrap_or("it ended").to_owned();
            return (!ended.success()).then_some(said);
        }
        if Instant::now() > deadline {
            program.kill().unwrap();
            program.wait().unwrap();
            return Some(format!("a run that ends nowhere, within {PATIENCE:?}"));
        }
        sleep(Duration::from_millis(100));
    }
}
