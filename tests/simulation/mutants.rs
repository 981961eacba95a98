//! Takes each protection of `mutants.toml` out, one at a time, and has the simulation find that it is gone.
//!
//! All of them are built at once, in a copy of the workspace, in which each stands beside what is there without it; an
//! environment variable says which are taken out. What ships has neither. The copy, and what is built of it, are below the
//! folder of builds.

use std::{
    fs, iter,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use serde::Deserialize;

/// How a line begins that says what was found.
pub const VIOLATED: &str = "violated: ";

/// What a mutant may live through: so many seeds, and then the scripts, with every fault at every place.
const RUNS: [&str; 2] = ["--seeds=2000", "--exhaustive"];

/// Without some protections a run ends nowhere, which is found, too: so long it takes a hundred of them at most.
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
    /// The invariant that should show it; others may be faster.
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

/// Tries those whose names contain `part`; prints of each what found it. Returns how many were not found.
pub fn run(part: &str) -> usize {
    let all = all();
    let folder = builds().join("mutants");
    let program = build(&all, &folder.join("workspace"), &folder.join("builds"));
    let (mut tried, mut missed) = (0, Vec::new());
    let chosen = all.iter().enumerate();
    for (number, mutant) in chosen.filter(|(_, mutant)| mutant.name.contains(part)) {
        let Mutant {
            name, finder, with, ..
        } = mutant;
        let with = with
            .iter()
            .map(|name| all.iter().position(|other| other.name == *name));
        let numbers = iter::once(number).chain(with.map(Option::unwrap));
        let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
        let begun = Instant::now();
        let violation = RUNS
            .iter()
            .find_map(|what| violation(&program, what, &numbers.join(","), &folder));
        tried += 1;
        let seconds = begun.elapsed().as_secs();
        if let Some(violation) = violation {
            println!("found in {seconds} s ({finder}): {name}: {violation}");
        } else {
            println!("NOT FOUND in {seconds} s ({finder}): {name}");
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

/// The simulation, with all of them in it.
fn build(all: &[Mutant], workspace: &Path, builds: &Path) -> PathBuf {
    let edit = |file: &str, text: String| {
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
    };
    copy_workspace(workspace, edit);
    // Not the one that built this program: rustup has to see which toolchain the workspace asks for.
    let built = Command::new("cargo")
        .args(["build", "--quiet", "--locked", "--profile", "bench"])
        .args(["--example", "simulate", "--target-dir"])
        .arg(builds)
        .current_dir(workspace)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    builds.join("release/examples/simulate")
}

/// The files that git knows of, as `edit` has them.
fn copy_workspace(to: &Path, edit: impl Fn(&str, String) -> String) {
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
fn violation(program: &Path, runs: &str, numbers: &str, folder: &Path) -> Option<String> {
    let [found, progress] = ["found", "progress"].map(|name| folder.join(name));
    let mut program = Command::new(program)
        .args(["--first", runs])
        .env("MUTANTS", numbers)
        .stdout(fs::File::create(&found).unwrap())
        .stderr(fs::File::create(&progress).unwrap())
        .spawn()
        .unwrap();
    let (mut length, mut since) = (0, Instant::now());
    loop {
        if let Some(ended) = program.try_wait().unwrap() {
            let found = fs::read_to_string(&found).unwrap();
            let mut violations = found.lines().filter_map(|line| line.strip_prefix(VIOLATED));
            let said = violations.next().unwrap_or("the simulation itself ended");
            return (!ended.success()).then(|| said.to_owned());
        }
        let now = fs::metadata(&progress).unwrap().len();
        if now != length {
            (length, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            program.kill().unwrap();
            program.wait().unwrap();
            return Some(format!("a run that ends nowhere, within {PATIENCE:?}"));
        }
        sleep(Duration::from_millis(100));
    }
}
