//! Mutation tests: remove each protection of `mutants.toml`, one at a time, and check that the simulation finds a violation.
//!
//! All mutants are built at once, in a copy of the workspace that has each protection beside its replacement. An environment
//! variable selects the active mutants. The shipped code has neither. The copy and its build are below the build directory.

use std::{
    collections::BTreeMap,
    fmt, fs, iter,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use operator_simulation::command::VIOLATED;
use serde::Deserialize;

/// Runs that must find a mutant: first seeds, then the scripts with every fault at every place.
const RUNS: [&str; 2] = ["--seeds=2000", "--exhaustive"];

/// Run of a single operator that must find a mutant.
const OF_ONE: &str = "--seeds=300";

/// Longest time without progress. Without some protections a run never ends, which counts as found.
const PATIENCE: Duration = Duration::from_mins(5);

/// Code that the copy adds to the workspace. `is` returns whether the mutant of this number is active.
const IS_TAKEN_OUT: &str = r#"
extern crate self as operator_runtime;
#[doc(hidden)]
pub mod mutant {
    static TAKEN_OUT: std::sync::LazyLock<Vec<usize>> = std::sync::LazyLock::new(|| {
        let numbers = std::env::var("MUTANTS").unwrap_or_default();
        numbers.split(',').filter_map(|number| number.parse().ok()).collect()
    });
    pub fn is(number: usize) -> bool {
        TAKEN_OUT.contains(&number)
    }
}
"#;

/// Protection, and the code that replaces it.
#[derive(Deserialize)]
pub struct Mutant {
    pub name: String,
    /// Invariants, separated by spaces. At least one must find the mutant.
    pub finder: String,
    #[serde(flatten)]
    pub edit: Edit,
    /// Edits that are made with it.
    #[serde(default)]
    pub also: Vec<Edit>,
    /// Names of mutants that are active with it.
    #[serde(default)]
    pub with: Vec<String>,
    /// Maps operators, each a [`Subject`](operator_simulation::Subject), to invariants. Their seeds must violate at least one.
    #[serde(default)]
    pub programs: BTreeMap<String, String>,
}

/// Replacement of an expression or a statement.
#[derive(Deserialize)]
pub struct Edit {
    pub file: String,
    /// Text that occurs once in the file, and contains `old` once.
    at: Option<String>,
    pub old: String,
    pub new: String,
}

impl Mutant {
    pub fn edits(&self) -> impl Iterator<Item = &Edit> {
        iter::once(&self.edit).chain(&self.also)
    }
}

impl Edit {
    pub fn at(&self) -> &str {
        self.at.as_ref().unwrap_or(&self.old)
    }

    /// Returns the text with `new` beside `old`. `new` is used if the mutant of this number is active.
    fn apply(&self, number: usize, text: &str) -> String {
        let (at, Self { old, new, .. }) = (self.at(), self);
        assert_eq!(text.matches(at).count(), 1, "{at}");
        let both =
            format!("if operator_runtime::mutant::is({number}) {{ {new} }} else {{ {old} }}");
        let both = if old.ends_with(';') {
            both
        } else {
            format!("({both})")
        };
        text.replacen(at, &at.replacen(old, &both, 1), 1)
    }
}

/// Returns the root of the workspace.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

pub fn all() -> Vec<Mutant> {
    #[derive(Deserialize)]
    struct Table {
        mutant: Vec<Mutant>,
    }
    let table = root().join("tests/simulation/mutants.toml");
    let table: Table = toml::from_str(&fs::read_to_string(table).unwrap()).unwrap();
    table.mutant
}

/// Runs the mutants whose names contain one of `parts`, which are separated by `|`, and prints the result of each. Returns
/// whether there are any and all were found as specified.
pub fn run(parts: &str) -> bool {
    let all = all();
    let folder = builds().join("mutants");
    let program = build(&all, &folder.join("workspace"), &folder.join("builds"));
    let (mut tried, mut missed) = (0, Vec::new());
    let chosen = all.iter().enumerate();
    let is_chosen = |mutant: &Mutant| parts.split('|').any(|part| mutant.name.contains(part));
    for (number, mutant) in chosen.filter(|(_, mutant)| is_chosen(mutant)) {
        let Mutant {
            name,
            finder,
            with,
            programs,
            ..
        } = mutant;
        let with = with
            .iter()
            .map(|name| all.iter().position(|other| other.name == *name));
        let numbers = iter::once(number).chain(with.map(Option::unwrap));
        let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
        let others = programs.iter().map(|(name, finder)| {
            let operator = vec![format!("--program={name}")];
            (operator, &[OF_ONE][..], finder)
        });
        let of_all = (Vec::new(), &RUNS[..], finder);
        for (operator, runs, finder) in iter::once(of_all).chain(others) {
            let all = Runs {
                program: &program,
                operator: &operator,
                numbers: &numbers,
                folder: &folder,
            };
            tried += 1;
            if !all.find((name, finder), runs) {
                missed.push(name.clone());
            }
        }
    }
    println!(
        "{tried} runs of mutants, {} not found as they should be{}{}",
        missed.len(),
        if missed.is_empty() { "" } else { ": " },
        missed.join("; ")
    );
    tried > 0 && missed.is_empty()
}

/// Runs of the program with a mutant, and with the mutants of its `with`.
struct Runs<'a> {
    program: &'a Path,
    /// Arguments that choose an operator. Empty: all.
    operator: &'a [String],
    numbers: &'a [String],
    folder: &'a Path,
}

impl Runs<'_> {
    fn violation(&self, arguments: &[&str], numbers: &[String]) -> Option<Found> {
        let operator = self.operator.iter().map(String::as_str);
        let arguments: Vec<_> = arguments.iter().copied().chain(operator).collect();
        violation(self.program, &arguments, &numbers.join(","), self.folder)
    }

    /// Prints whether an invariant of these finds the mutant in these runs, and returns it.
    fn find(&self, (name, finder): (&str, &str), runs: &[&str]) -> bool {
        let begun = Instant::now();
        let mut runs = runs.iter();
        let found =
            runs.find_map(|what| self.violation(&["--first", "--tell", what], self.numbers));
        let is_as_named = |by: &str| {
            finder
                .split(' ')
                .any(|named| by.split(' ').any(|by| by == named))
        };
        let verdict = match &found {
            None => "NOT FOUND",
            Some(found) if found.cases.is_empty() => "FOUND, BUT NOT BY A CASE",
            // A violation that also occurs with the protection does not count.
            Some(found) if self.is_violated_anyway(found) => "FOUND WITHOUT IT AS WELL",
            Some(found) if is_as_named(&found.by) => "found",
            Some(_) => "FOUND BY ANOTHER",
        };
        let seconds = begun.elapsed().as_secs();
        let found = found.map_or_else(String::new, |found| found.to_string());
        let operator = self.operator.join(" ");
        println!("{verdict} in {seconds} s ({finder}): {name}: {operator} {found}");
        verdict == "found"
    }

    /// Returns whether the case also has a violation if only the mutants of `with` are active. The plan is the same, even if
    /// another replica leads or the call of the fault does not occur.
    fn is_violated_anyway(&self, found: &Found) -> bool {
        let (mut cases, with) = (found.cases.iter(), &self.numbers[1..]);
        cases.any(|case| self.violation(&[&format!("--case={case}")], with).is_some())
    }
}

/// Violation that a run of the program has found.
struct Found {
    /// Number of the case. The lowest is reported.
    number: usize,
    /// Name of the case. If the program ended early: the names of all cases that had begun and not ended.
    cases: Vec<String>,
    /// Invariants, separated by spaces.
    by: String,
    said: String,
}

impl Found {
    fn of(line: &str) -> Option<Self> {
        let mut parts = line.strip_prefix(VIOLATED)?.splitn(4, '\t');
        Some(Self {
            number: parts.next()?.parse().ok()?,
            cases: vec![parts.next()?.to_owned()],
            by: parts.next()?.to_owned(),
            said: parts.next()?.to_owned(),
        })
    }

    /// Returns the violation of a run that did not end as it should. `progress` is its standard error.
    fn of_the_run(said: String, progress: &str) -> Self {
        let told = |what: &str| {
            let lines = progress.lines().filter_map(|line| line.split_once('\t'));
            let its = lines.filter(|(first, _)| *first == what);
            its.map(|(_, name)| name.to_owned()).collect::<Vec<_>>()
        };
        let mut cases = told("begins");
        for ended in told("ends") {
            let begun = cases.iter().position(|case| *case == ended);
            begun.map(|begun| cases.remove(begun));
        }
        Self {
            number: 0,
            cases,
            by: "run".to_owned(),
            said,
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cases = self.cases.join(" or ");
        write!(f, "{cases} violates {}: {}", self.by, self.said)
    }
}

/// Returns the build directory, in which this program is `release/simulate`, or a test in `debug/deps`.
pub fn builds() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let mut folders = this.ancestors();
    let profile = folders.find(|folder| folder.ends_with("release") || folder.ends_with("debug"));
    profile.and_then(Path::parent).unwrap().to_owned()
}

/// Builds the simulation with all mutants, and returns its path.
fn build(all: &[Mutant], workspace: &Path, builds: &Path) -> PathBuf {
    write(all, workspace);
    let what = [
        "build",
        "--profile",
        "bench",
        "--workspace",
        "--bin",
        "simulate",
    ];
    cargo(workspace, &what, builds);
    builds.join("release/simulate")
}

/// Writes the workspace with all mutants.
pub fn write(all: &[Mutant], workspace: &Path) {
    copy_workspace(workspace, |file, text| {
        let edits = all.iter().enumerate();
        let edits =
            edits.flat_map(|(number, mutant)| mutant.edits().map(move |edit| (number, edit)));
        let edits = edits.filter(|(_, edit)| edit.file == file);
        let text = edits.fold(text, |text, (number, edit)| edit.apply(number, &text));
        if file == "crates/runtime/src/lib.rs" {
            text + IS_TAKEN_OUT
        } else {
            text
        }
    });
}

/// Runs cargo in this workspace, with this build directory.
pub fn cargo(workspace: &Path, what: &[&str], builds: &Path) {
    // Not the cargo that built this program: rustup must choose the toolchain of the workspace.
    let mut cargo = Command::new("cargo");
    // Cargo sets these variables for a test. They would make cargo run build scripts again and compile the dependents.
    for (name, _) in std::env::vars_os() {
        let told = ["CARGO_MANIFEST_", "CARGO_PKG_"];
        if told
            .iter()
            .any(|told| name.to_string_lossy().starts_with(told))
        {
            cargo.env_remove(name);
        }
    }
    let built = cargo
        .args(what)
        .args(["--quiet", "--locked", "--target-dir"])
        .arg(builds)
        .current_dir(workspace)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
}

/// Copies the files that git lists, after `edit` has changed them.
fn copy_workspace(to: &Path, edit: impl Fn(&str, String) -> String) {
    let from = root();
    let files = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(from)
        .output()
        .unwrap();
    assert!(files.status.success(), "git ls-files: {}", files.status);
    let files = String::from_utf8(files.stdout).unwrap();
    for file in files.split_terminator('\0') {
        let (from, to) = (from.join(file), to.join(file));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let new = match String::from_utf8(fs::read(&from).unwrap()) {
            Ok(text) => edit(file, text).into_bytes(),
            Err(no_text) => no_text.into_bytes(),
        };
        // Cargo rebuilds files with a new modification time.
        if fs::read(&to).ok().as_ref() != Some(&new) {
            fs::write(&to, new).unwrap();
        }
    }
}

/// Returns the first violation that these runs of the program find.
fn violation(program: &Path, runs: &[&str], numbers: &str, folder: &Path) -> Option<Found> {
    let [found, progress] = ["found", "progress"].map(|name| folder.join(name));
    let mut program = Command::new(program)
        .args(runs)
        .env("MUTANTS", numbers)
        .stdout(fs::File::create(&found).unwrap())
        .stderr(fs::File::create(&progress).unwrap())
        .spawn()
        .unwrap();
    let (mut length, mut since) = (0, Instant::now());
    loop {
        if let Some(ended) = program.try_wait().unwrap() {
            let found = fs::read_to_string(&found).unwrap();
            let first = found.lines().filter_map(Found::of);
            let first = first.min_by_key(|found| found.number);
            let ended_itself = || {
                let said = fs::read_to_string(&progress).unwrap();
                Found::of_the_run("the simulation itself ended".to_owned(), &said)
            };
            return (!ended.success()).then(|| first.unwrap_or_else(ended_itself));
        }
        let now = fs::metadata(&progress).unwrap().len();
        if now != length {
            (length, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            program.kill().unwrap();
            program.wait().unwrap();
            let what = format!("a run that ends nowhere, within {PATIENCE:?}");
            let said = fs::read_to_string(&progress).unwrap();
            return Some(Found::of_the_run(what, &said));
        }
        sleep(Duration::from_millis(100));
    }
}
