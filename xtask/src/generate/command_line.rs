//! Files generated from the command line: shell completions and the manual page. They are part of the package, not of the
//! program.

use clap_complete::Shell;
use clap_mangen::Man;
use foo_controller::APP;

/// Shells with completions.
pub const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];
/// File of the manual page.
pub const MANUAL: &str = "man.1";

/// Returns the files of `nix/share`. flake.nix installs them under the names that each shell and man expect.
pub fn files() -> impl Iterator<Item = (String, String)> {
    let completions = SHELLS.map(|shell| (completion(shell), complete(shell)));
    completions
        .into_iter()
        .chain([(MANUAL.to_owned(), manual())])
}

/// Returns the file name of a shell's completions.
pub fn completion(shell: Shell) -> String {
    format!("completion.{shell}")
}

fn complete(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(
        shell,
        &mut operator_runtime::command(&APP),
        APP.name,
        &mut text,
    );
    let text = String::from_utf8(text).unwrap();
    // In some places, clap_complete takes the hyphen in the program's name for the separator before a subcommand. Then no case
    // of the completion would match.
    let [one, other] = ["__", "__subcmd__"].map(|hyphen| APP.name.replace('-', hyphen));
    text.replace(&other, &one)
}

fn manual() -> String {
    let command = operator_runtime::command(&APP).disable_help_subcommand(true);
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text).unwrap();
    let mut text = String::from_utf8(text).unwrap();
    // All subcommands have the same flags, which this page describes. They have no separate pages to refer to.
    for command in command.get_subcommands() {
        let page = format!("{}-{}(1)", APP.name, command.get_name()).replace('-', "\\-");
        text = text.replace(&page, command.get_name());
    }
    text
}
