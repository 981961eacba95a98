//! Made of the command line: the completions of shells, and the manual page. The package has them, the program none of it.

use clap_complete::Shell;
use clap_mangen::Man;
use foo_controller::APP;

/// The shells that get completions.
pub const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];
/// The manual page.
pub const MANUAL: &str = "man.1";

/// The files of `nix/share`, which flake.nix installs by the names that each shell, and man, look for.
pub fn files() -> impl Iterator<Item = (String, String)> {
    let completions = SHELLS.map(|shell| (completion(shell), complete(shell)));
    completions
        .into_iter()
        .chain([(MANUAL.to_owned(), manual())])
}

/// The file of a shell's completions.
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
    // clap_complete takes the hyphen in a program's name for the one before a subcommand, in some places: none of its cases would
    // be found.
    let [one, other] = ["__", "__subcmd__"].map(|hyphen| APP.name.replace('-', hyphen));
    text.replace(&other, &one)
}

fn manual() -> String {
    let command = operator_runtime::command(&APP).disable_help_subcommand(true);
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text).unwrap();
    let mut text = String::from_utf8(text).unwrap();
    // All commands take the same flags: they are told of here, and have no page of their own to refer to.
    for command in command.get_subcommands() {
        let page = format!("{}-{}(1)", APP.name, command.get_name()).replace('-', "\\-");
        text = text.replace(&page, command.get_name());
    }
    text
}
