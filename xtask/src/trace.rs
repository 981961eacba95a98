//! Shows the traces of one Foo that a collector has received. `xtask trace FOLDER FOO` waits for its first reconcile and prints
//! it as a tree. `xtask trace FOLDER FOO PAGE` writes all its reconciles so far as waterfalls to the HTML file PAGE.

use std::{
    fs,
    path::Path,
    process::ExitCode,
    thread::sleep,
    time::{Duration, Instant},
};

use operator_testkit::collector::{Received, page};

const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);

pub fn run(arguments: &[String]) -> ExitCode {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        [folder, foo] => print(folder.as_ref(), foo),
        [folder, foo, file] => write(folder.as_ref(), foo, file.as_ref()),
        _ => Err("want FOLDER FOO [PAGE]".into()),
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("trace: {error}");
    ExitCode::FAILURE
}

fn print(folder: &Path, foo: &str) -> Result<(), String> {
    let started = Instant::now();
    loop {
        let received = Received::read(folder);
        // Logs are exported separately. The first reconcile of a Foo logs at least the created Deployment.
        if let Some(first) = received.reconciles(foo).first()
            && !first.logs.is_empty()
        {
            print!("{first}");
            return Ok(());
        }
        if started.elapsed() > DEADLINE {
            return Err(format!(
                "{}: no reconcile of {foo} within {DEADLINE:?}",
                folder.display()
            ));
        }
        sleep(POLL);
    }
}

fn write(folder: &Path, foo: &str, file: &Path) -> Result<(), String> {
    let received = Received::read(folder);
    let title = format!("What the controller did to {foo}");
    let page = page(&title, &received.reconciles(foo));
    fs::write(file, page).map_err(|error| format!("{}: {error}", file.display()))
}
