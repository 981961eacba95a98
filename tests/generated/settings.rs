//! Documentation generated from the table of settings: the tables of the reference, and the comments of the shipped file.

use std::fmt::Write as _;

use foo_controller::APP;
use operator_runtime::config::{self, Key};

/// Maximum line length of the shipped file.
const WIDTH: usize = 120;

/// Returns `docs/configuration.md` with current tables.
pub fn reference(text: &str) -> String {
    let text = between(text, "keys", &keys());
    between(&text, "variables", &variables())
}

/// Returns `config/foo-controller.toml` with a comment for each key. The head of the file stays as it is.
pub fn defaults(text: &str) -> String {
    let (head, body) = text.split_once("\n\n").unwrap();
    let mut defaults = format!("{head}\n\n");
    let mut section = String::new();
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.replace(']', ".");
        } else if let Some((name, _)) = line.split_once(" = ") {
            let name = format!("{section}{name}");
            let key = config::keys(&APP).find(|key| key.name == name);
            let key = key.unwrap_or_else(|| panic!("there is no key {name}"));
            comment(&mut defaults, &key.meaning());
        }
        defaults.push_str(line);
        defaults.push('\n');
    }
    defaults
}

/// Appends `text` as a comment, wrapped at [`WIDTH`].
fn comment(to: &mut String, text: &str) {
    let mut line = "#".to_owned();
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(to, "{line}");
            "#".clone_into(&mut line);
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(to, "{line}");
}

/// Returns a table for each heading of `--help`.
fn keys() -> String {
    let mut tables = String::new();
    let keys: Vec<&Key> = config::keys(&APP).collect();
    for keys in keys.chunk_by(|a, b| a.heading == b.heading) {
        let _ = write!(
            tables,
            "\n### {}\n\n| key | flag | environment variable | default | value | meaning |\n|---|---|---|---|---|---|\n",
            keys[0].heading
        );
        for key in keys {
            let _ = writeln!(
                tables,
                "| `{}` | `--{}` | `{}` | {} | {} | {} |",
                key.name,
                key.flag,
                key.variable(&APP),
                code(&config::default_of(&APP, key)),
                key.rule,
                key.help,
            );
        }
    }
    tables + "\n"
}

fn variables() -> String {
    let mut table =
        "\n| variable | default | value | otherwise | meaning |\n|---|---|---|---|---|\n"
            .to_owned();
    for variable in config::variables() {
        let _ = writeln!(
            table,
            "| `{}` | {} | {} | {} | {} |",
            variable.name,
            code(variable.default),
            variable.rule,
            if variable.is_strict() {
                "**refused**"
            } else {
                "ignored"
            },
            variable.help,
        );
    }
    table + "\n"
}

fn code(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("`{text}`")
    }
}

/// Returns `text` with new content between the two markers of `name`.
fn between(text: &str, name: &str, generated: &str) -> String {
    let [begin, end] = [
        format!("<!-- {name}: `make generate` writes what follows -->\n"),
        format!("<!-- end of {name} -->\n"),
    ];
    let (before, rest) = text.split_once(&begin).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    format!("{before}{begin}{generated}{end}{after}")
}
