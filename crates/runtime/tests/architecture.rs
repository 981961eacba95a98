//! Each room (top-level module) imports only from the rooms below it, and files have no import cycles. Test code is exempt.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Each room and the rooms that it may import.
const ROOMS: [(&str, &[&str]); 9] = [
    ("api", &[]),
    ("config", &["api"]),
    ("telemetry", &["api", "config"]),
    ("client", &["api", "config", "telemetry"]),
    ("election", &["api", "config", "telemetry", "client"]),
    ("cache", &["api", "config", "telemetry", "client"]),
    (
        "reconcile",
        &["api", "config", "telemetry", "client", "cache"],
    ),
    (
        "controller",
        &["api", "config", "telemetry", "client", "cache", "reconcile"],
    ),
    (
        "cmd",
        &[
            "api",
            "config",
            "telemetry",
            "client",
            "election",
            "cache",
            "reconcile",
            "controller",
        ],
    ),
];

/// Path of a module from the root of the crate.
type Module = Vec<String>;

/// Modules with a file of their own, and the paths that each file names.
#[derive(Default)]
struct Sources {
    files: BTreeMap<Module, PathBuf>,
    named: BTreeSet<(Module, Module)>,
}

fn is(token: Option<&TokenTree>, word: &str) -> bool {
    token.is_some_and(|token| token.to_string() == word)
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    is(tokens.first(), ":") && is(tokens.get(1), ":")
}

/// Whether an attribute is a `cfg` of tests.
fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string();
    let words = text.split(|letter: char| !letter.is_alphanumeric());
    text.starts_with("cfg")
        && !text.starts_with("cfg_attr")
        && words.into_iter().any(|word| word == "test")
}

/// Returns the length of an item, which ends with a semicolon or a block.
fn item(tokens: &[TokenTree]) -> usize {
    // The braces of `use a::{b, c};` are not its end.
    let is_use = tokens.iter().take(3).any(|it| it.to_string() == "use");
    let end = tokens.iter().position(|token| match token {
        TokenTree::Group(group) => !is_use && group.delimiter() == Delimiter::Brace,
        token => token.to_string() == ";",
    });
    end.map_or(tokens.len(), |end| end + 1)
}

/// Adds the paths that begin with `prefix` and continue in `tokens`. Returns the number of tokens that it consumed.
fn paths(prefix: &[String], tokens: &[TokenTree], found: &mut Vec<Module>) -> usize {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while is_path_separator(&tokens[at..]) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(name)) => path.push(name.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                let mut rest = &inner[..];
                while let Some(first) = rest.first() {
                    let mut path = path.clone();
                    path.push(first.to_string());
                    let length = 1 + paths(&path, &rest[1..], found);
                    let comma = rest[length..].iter().position(|it| it.to_string() == ",");
                    rest = comma.map_or(&[], |comma| &rest[length + comma + 1..]);
                }
                return at + 3;
            }
            _ => break,
        }
        at += 3;
    }
    found.push(path);
    at
}

impl Sources {
    fn read(&mut self, module: &Module, file: &Path) {
        self.files.insert(module.clone(), file.to_owned());
        let text = fs::read_to_string(file).unwrap();
        let tokens: TokenStream = text.parse().unwrap();
        self.walk(module, module, file, tokens);
    }

    /// Reads the tokens of `module`, which is `of` or an inline module of its file.
    fn walk(&mut self, of: &Module, module: &Module, file: &Path, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at + 1..];
            let after_path = at >= 2 && is_path_separator(&tokens[at - 2..]);
            at += 1;
            match token {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    let Some(TokenTree::Group(attribute)) = rest.first() else {
                        continue;
                    };
                    at += 1;
                    if is_for_tests(attribute) {
                        at += item(&rest[1..]);
                    }
                }
                TokenTree::Group(group) if !after_path => {
                    self.walk(of, module, file, group.stream());
                }
                TokenTree::Ident(word) if *word == "mod" => {
                    let Some(TokenTree::Ident(name)) = rest.first() else {
                        continue;
                    };
                    let mut inner = module.clone();
                    inner.push(name.to_string());
                    at += 2;
                    match &rest[1] {
                        TokenTree::Group(group) => self.walk(of, &inner, file, group.stream()),
                        _ => self.declared(&inner, file),
                    }
                }
                TokenTree::Ident(word) if !after_path && is_path_separator(rest) => {
                    let mut found = Vec::new();
                    let word = word.to_string();
                    at += paths(&[word], rest, &mut found);
                    let found = found
                        .into_iter()
                        .filter_map(|path| self.resolve(module, &path));
                    let found: Vec<_> = found.map(|path| (of.clone(), path)).collect();
                    self.named.extend(found);
                }
                _ => {}
            }
        }
    }

    fn declared(&mut self, module: &Module, parent: &Path) {
        let name = module.last().unwrap();
        let folder = match parent.file_stem().unwrap().to_str().unwrap() {
            "lib" | "mod" => parent.parent().unwrap().to_owned(),
            _ => parent.with_extension(""),
        };
        let file = folder.join(format!("{name}.rs"));
        let file = Some(file).filter(|file| file.exists());
        let file = file.unwrap_or_else(|| folder.join(name).join("mod.rs"));
        self.read(module, &file);
    }

    /// Returns the path from the root of the crate that `path` in `module` names, or `None` outside of the crate.
    fn resolve(&self, module: &Module, path: &[String]) -> Option<Module> {
        let mut whole = match &*path[0] {
            "crate" => Module::new(),
            "self" => module.clone(),
            "super" => module[..module.len() - 1].to_vec(),
            child => {
                let inner = [&module[..], &[child.to_owned()]].concat();
                self.files.contains_key(&inner).then_some(inner)?
            }
        };
        for name in &path[1..] {
            match &**name {
                "super" => drop(whole.pop()),
                "self" => {}
                name => whole.push(name.to_owned()),
            }
        }
        Some(whole)
    }

    /// Returns the longest prefix of a path that is a module with its own file.
    fn file_of<'a>(&self, path: &'a [String]) -> &'a [String] {
        let ends = (0..=path.len()).rev();
        let mut prefixes = ends.map(|end| &path[..end]);
        prefixes
            .find(|path| self.files.contains_key(*path))
            .unwrap()
    }
}

fn name(module: &[String]) -> String {
    module.join("::")
}

#[test]
fn modules_import_only_lower_modules() {
    let mut sources = Sources::default();
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    sources.read(&Module::new(), &lib);
    assert!(sources.files.len() > 100, "the files are not found");

    let mut imports = BTreeMap::<&[String], BTreeSet<&[String]>>::new();
    let mut wrong = Vec::new();
    for (from, path) in sources.named.iter().filter(|(from, _)| !from.is_empty()) {
        let to = sources.file_of(path);
        let room = ROOMS.iter().find(|(room, _)| *room == from[0]);
        let (room, below) = room.unwrap_or_else(|| panic!("{} is in no room", name(from)));
        match to.first() {
            None => wrong.push(format!(
                "{} imports {} through lib.rs: name the module that defines it",
                name(from),
                name(path)
            )),
            Some(other) if other != room && !below.contains(&&**other) => wrong.push(format!(
                "{} imports {}: {room} may import {below:?} only",
                name(from),
                name(path)
            )),
            Some(_) if to != &from[..] => drop(imports.entry(from).or_default().insert(to)),
            Some(_) => {}
        }
    }
    assert!(imports.len() > 80, "the imports are not found");

    // Direct and indirect imports.
    let mut all = imports.clone();
    loop {
        let mut more = false;
        for from in imports.keys() {
            let known = &all[from];
            let next: BTreeSet<_> = known
                .iter()
                .filter_map(|to| all.get(to))
                .flatten()
                .copied()
                .collect();
            if !next.is_subset(known) {
                all.get_mut(from).unwrap().extend(next);
                more = true;
            }
        }
        if !more {
            break;
        }
    }
    for (from, direct) in &imports {
        for to in direct {
            if all.get(to).is_some_and(|back| back.contains(from)) {
                wrong.push(format!(
                    "{} imports {}, and the other way round",
                    name(from),
                    name(to)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A program of another repository prints these messages.
#[test]
fn no_message_names_a_path_of_this_repository() {
    let mut sources = Sources::default();
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    sources.read(&Module::new(), &lib);
    let mut wrong = Vec::new();
    for path in sources.files.values() {
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]\nmod").next().unwrap_or_default();
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let names = ["docs/", "deploy/", "components/"];
        let code = code.filter(|line| names.iter().any(|name| line.contains(name)));
        wrong.extend(code.map(|line| format!("{}: {line}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
