//! Takes each protection of `mutants.toml` out, one at a time, and has the simulation find that it is gone.
//!
//! All of them are built at once, in a copy of the workspace, in which each stands beside what is there without it; an
//! environment variable says which are taken out. What ships has neither. The copy, and what is built of it, are below the
//! folder of builds.

use std::{
    fmt, fs, iter,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use serde::Deserialize;

/// How a line begins that says what was found; of many cases it goes on with the number of the case, its name and the
/// invariants, between tabs.
pub const VIOLATED: &str = "violated: ";

/// What a mutant may live through: so many seeds, and then the scripts, with every fault at every place.
const RUNS: [&str; 2] = ["--seeds=2000", "--exhaustive"];

/// Without some protections a run ends nowhere, which is found, too: so long one takes at most.
const PATIENCE: Duration = Duration::from_mins(5);

/// What the copy has beside the workspace: whether the protection of this number is taken out.
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

/// A protection, and what is in its place when it is taken out.
#[derive(Deserialize)]
pub struct Mutant {
    pub name: String,
    /// The invariants one of which shows it, with a space between them.
    pub finder: String,
    #[serde(flatten)]
    pub edit: Edit,
    /// What is taken out with it.
    #[serde(default)]
    pub also: Vec<Edit>,
    /// The names of others that are.
    #[serde(default)]
    pub with: Vec<String>,
}

/// An expression or a statement, and another one.
#[derive(Deserialize)]
pub struct Edit {
    pub file: String,
    /// What is in the file once, and has `old` in it once.
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

    /// The text with `new` beside `old`, for when the protection of this number is taken out.
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

/// All of them.
pub fn all() -> Vec<Mutant> {
    #[derive(Deserialize)]
    struct Table {
        mutant: Vec<Mutant>,
    }
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/mutants.toml");
    let table: Table = toml::from_str(&fs::read_to_string(table).unwrap()).unwrap();
    table.mutant
}

/// Tries those whose names contain one of `parts`, which have `|` between them; prints of each what found it. Whether there are some,
/// and all were found as they should be.
pub fn run(parts: &str) -> bool {
    let all = all();
    let folder = builds().join("mutants");
    let program = build(&all, &folder.join("workspace"), &folder.join("builds"));
    let (mut tried, mut missed) = (0, Vec::new());
    let chosen = all.iter().enumerate();
    let is_chosen = |mutant: &Mutant| parts.split('|').any(|part| mutant.name.contains(part));
    for (number, mutant) in chosen.filter(|(_, mutant)| is_chosen(mutant)) {
        let Mutant {
            name, finder, with, ..
        } = mutant;
        let with = with
            .iter()
            .map(|name| all.iter().position(|other| other.name == *name));
        let numbers = iter::once(number).chain(with.map(Option::unwrap));
        let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
        let begun = Instant::now();
        let found = RUNS.iter().find_map(|what| {
            let runs = ["--first", "--tell", what];
            violation(&program, &runs, &numbers.join(","), &folder)
        });
        tried += 1;
        let is_as_named = |by: &str| {
            finder
                .split(' ')
                .any(|named| by.split(' ').any(|by| by == named))
        };
        let verdict = match &found {
            None => "NOT FOUND",
            Some(found) if found.cases.is_empty() => "FOUND, BUT NOT BY A CASE",
            // What is violated with the protection is not found by taking it out.
            Some(found) if is_violated_anyway(&program, found, &numbers[1..], &folder) => {
                "FOUND WITHOUT IT AS WELL"
            }
            Some(found) if is_as_named(&found.by) => "found",
            Some(_) => "FOUND BY ANOTHER",
        };
        if verdict != "found" {
            missed.push(name.clone());
        }
        let seconds = begun.elapsed().as_secs();
        let found = found.map_or_else(String::new, |found| found.to_string());
        println!("{verdict} in {seconds} s ({finder}): {name}: {found}");
    }
    println!(
        "{tried} mutants, {} not found as they should be{}{}",
        missed.len(),
        if missed.is_empty() { "" } else { ": " },
        missed.join("; ")
    );
    tried > 0 && missed.is_empty()
}

/// What a run of the program has found.
struct Found {
    /// Of all that it found, the first.
    number: usize,
    /// In which case; of several that had begun, in one of them.
    cases: Vec<String>,
    /// The invariants, with a space between them.
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

    /// The simulation did not come to its end, which said this on the way.
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

/// Whether the case is violated with nothing taken out but what is taken out `with` the protection: the same plan, whoever leads in
/// it then, and whether there is the call that it is about.
fn is_violated_anyway(program: &Path, found: &Found, with: &[String], folder: &Path) -> bool {
    let (mut cases, with) = (found.cases.iter(), with.join(","));
    cases.any(|case| violation(program, &[&format!("--case={case}")], &with, folder).is_some())
}

/// This program is `BUILDS/release/examples/simulate`, or `BUILDS/debug/deps/integration`.
pub fn builds() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(3).unwrap().to_owned()
}

/// The simulation, with all of them in it.
fn build(all: &[Mutant], workspace: &Path, builds: &Path) -> PathBuf {
    write(all, workspace);
    let what = ["build", "--profile", "bench", "--example", "simulate"];
    cargo(workspace, &what, builds);
    builds.join("release/examples/simulate")
}

/// The workspace with all of them in it.
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

/// What cargo makes of it, in this folder of builds.
pub fn cargo(workspace: &Path, what: &[&str], builds: &Path) {
    // Not the one that built this program: rustup has to see which toolchain the workspace asks for.
    let mut cargo = Command::new("cargo");
    // What cargo tells a test of its package, build scripts would be run again for, and what depends on them compiled.
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

/// The files that git knows of, as `edit` has them.
fn copy_workspace(to: &Path, edit: impl Fn(&str, String) -> String) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"));
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
        // Cargo builds anew what has another time.
        if fs::read(&to).ok().as_ref() != Some(&new) {
            fs::write(&to, new).unwrap();
        }
    }
}

/// What these runs of the program find first, if they find anything.
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
