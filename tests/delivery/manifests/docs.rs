//! The documentation: README and `docs/`. Its [`commands`] work, its links and cited sections exist, and every alert has a
//! section.

pub mod commands;

use std::{collections::BTreeSet, fs, path::PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use serde_json::Value;

use super::{CODE, files, root, sources};

/// A Markdown file.
pub struct Document {
    path: PathBuf,
    pub sections: Vec<Section>,
    /// Code blocks with their languages.
    pub blocks: Vec<(String, String)>,
    /// Inline code.
    pub inline: Vec<String>,
    links: Vec<String>,
}

/// The text under a heading, up to the next heading of any level.
#[derive(Default)]
pub struct Section {
    pub title: String,
    pub text: String,
}

impl Document {
    fn read(path: PathBuf) -> Self {
        let source = fs::read_to_string(&path).unwrap();
        let mut document = Self {
            path,
            sections: vec![Section::default()],
            blocks: Vec::new(),
            inline: Vec::new(),
            links: Vec::new(),
        };
        let (mut in_title, mut in_block) = (false, false);
        let mut begin = 0;
        for (event, range) in Parser::new_ext(&source, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => {
                    let before = document.sections.last_mut().unwrap();
                    source[begin..range.start].clone_into(&mut before.text);
                    begin = range.end;
                    document.sections.push(Section::default());
                    in_title = true;
                }
                Event::End(TagEnd::Heading(_)) => in_title = false,
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(language) => language.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    document.blocks.push((language, String::new()));
                    in_block = true;
                }
                Event::End(TagEnd::CodeBlock) => in_block = false,
                Event::Text(text) if in_block => {
                    document.blocks.last_mut().unwrap().1.push_str(&text);
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push(dest_url.into_string());
                }
                Event::Text(text) if in_title => {
                    document.sections.last_mut().unwrap().title.push_str(&text);
                }
                Event::Code(code) => {
                    if in_title {
                        document.sections.last_mut().unwrap().title.push_str(&code);
                    }
                    document.inline.push(code.into_string());
                }
                _ => {}
            }
        }
        let last = document.sections.last_mut().unwrap();
        source[begin..].clone_into(&mut last.text);
        document
    }

    /// Returns the only section with this title.
    pub fn section(&self, title: &str) -> &Section {
        let mut found = self.sections.iter().filter(|there| there.title == title);
        let section = found.next();
        assert!(found.next().is_none(), "{title}");
        section.unwrap_or_else(|| panic!("{} has no {title:?}", self.path.display()))
    }

    /// Returns the anchors that GitHub generates from the headings.
    fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        for section in &self.sections {
            let kept = section.title.chars().filter_map(|c| match c {
                ' ' => Some('-'),
                '-' | '_' => Some(c),
                _ => c.is_alphanumeric().then_some(c),
            });
            let anchor = kept.collect::<String>().to_lowercase();
            let numbered = (1..).map(|number| format!("{anchor}-{number}"));
            let mut names = [anchor.clone()].into_iter().chain(numbered);
            names.find(|name| anchors.insert(name.clone())).unwrap();
        }
        anchors
    }
}

/// Reads a document of the project.
pub fn document(path: &str) -> Document {
    Document::read(root().join(path))
}

/// Returns the documents for users: README, and then `docs/`.
pub fn documents() -> Vec<Document> {
    let mut docs = files(&root().join("docs"), "md");
    docs.sort();
    docs.insert(0, root().join("README.md"));
    docs.into_iter().map(Document::read).collect()
}

/// The file and heading of each link exist, and so does each path in inline code. README links every file of `docs/`.
#[test]
fn linked_files_and_headings_exist() {
    const FOLDERS: [&str; 8] = [
        "docs", "tests", "benches", "crates", "deploy", "src", "xtask", ".github",
    ];
    let folders = FOLDERS.map(|folder| files(&root().join(folder), "md"));
    let mut all = folders.concat();
    all.extend(["README.md", "CHANGELOG.md", "AGENTS.md"].map(|name| root().join(name)));
    let mut broken = Vec::new();
    for path in all {
        let document = Document::read(path);
        for code in &document.inline {
            let folder = code.split_once('/').map(|(folder, _)| folder);
            let is_path = folder.is_some_and(|folder| FOLDERS.contains(&folder))
                && code.bytes().all(|byte| byte.is_ascii_graphic());
            if is_path && !root().join(code).exists() {
                broken.push(format!("{}: {code}", document.path.display()));
            }
        }
        for link in &document.links {
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                document.path.clone()
            } else {
                document.path.parent().unwrap().join(file)
            };
            let leads = target.exists()
                && (anchor.is_empty() || Document::read(target).anchors().contains(anchor));
            if !leads {
                broken.push(format!("{}: {link}", document.path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");

    let linked = document("README.md").links;
    for document in &documents()[1..] {
        let path = document.path.strip_prefix(root()).unwrap();
        let path = path.to_str().unwrap();
        assert!(linked.iter().any(|link| link == path), "{path}");
    }
}

/// CI runs every ignored test. Cargo does not report a filter that matches no test.
#[test]
fn ci_runs_every_ignored_test() {
    let scripts = [".ci/run", "Makefile", "tests/node/e2e.sh"]
        .map(|path| fs::read_to_string(root().join(path)).unwrap());
    let lines = scripts.iter().flat_map(|script| script.lines());
    let runs = lines.filter_map(|line| Some(line.split_once(" --ignored ")?.1));
    let runs = runs.filter_map(|run| run.split(" --skip ").next());
    let filters: Vec<_> = runs
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches('\''))
        .filter(|word| word.len() > 4)
        .collect();
    let folders = CODE.map(|folder| sources(&root().join(folder)));
    let mut ignored = 0;
    for path in folders.into_iter().flatten() {
        let [folder, module] = [path.parent().unwrap().file_name(), path.file_stem()]
            .map(|name| name.unwrap().to_str().unwrap());
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.lines().map(str::trim);
        while let Some(line) = lines.next() {
            if !line.starts_with("#[ignore") || line.contains("another test runs it") {
                continue;
            }
            let name = lines.find_map(|line| line.split_once("fn ")?.1.split_once('('));
            let name = format!("{folder}::{module}::{}", name.unwrap().0);
            let is_run = filters.iter().any(|filter| name.contains(filter));
            assert!(is_run, "CI does not run {name}");
            ignored += 1;
        }
    }
    assert!(ignored > 20, "{ignored}");
}

/// The documented versions of Kubernetes are the pinned versions, and `doctor` does not warn about them. `make test` uses one
/// version, and a workflow tests the others.
#[test]
fn supported_versions_of_kubernetes_are_tested() {
    let mut pinned = BTreeSet::new();
    for path in files(&root().join("crates/testkit/src/cluster/kubernetes"), "sum") {
        let minor = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let sums = fs::read_to_string(&path).unwrap();
        let version = sums.lines().find_map(|line| {
            let rest = line.strip_prefix("k8s.io/kubernetes v")?;
            Some(rest.split(' ').next()?.to_owned())
        });
        pinned.insert((minor, version.unwrap()));
    }
    let page = document("docs/operations.md");
    let rows = page.section("Kubernetes versions").text.lines();
    let documented = rows.filter_map(|row| {
        let (minor, rest) = row.strip_prefix("| 1")?.split_once(" | ")?;
        Some((format!("1{minor}"), rest.split_once(' ')?.0.to_owned()))
    });
    assert_eq!(documented.collect::<BTreeSet<_>>(), pinned);
    let doctor =
        fs::read_to_string(root().join("crates/runtime/src/cmd/doctor/server.rs")).unwrap();
    for (name, pinned) in [("OLDEST", pinned.first()), ("NEWEST", pinned.last())] {
        let minor = pinned.unwrap().0.strip_prefix("1.").unwrap();
        let line = format!("const {name}: u32 = {minor};");
        assert!(doctor.contains(&line), "doctor has no {line:?}");
    }
    let workflow = root().join(".github/workflows/kubernetes.yml");
    let workflow = fs::read_to_string(workflow).unwrap();
    let workflow: Value = serde_saphyr::from_str(&workflow).unwrap();
    let default = fs::read_to_string(root().join("crates/testkit/src/cluster/build.sh")).unwrap();
    let others = pinned
        .into_iter()
        .map(|(minor, _)| minor)
        .filter(|minor| !default.contains(&format!("\ndefault={minor} ")));
    assert_eq!(
        workflow["jobs"]["test"]["strategy"]["matrix"]["kubernetes"],
        serde_json::json!(others.collect::<Vec<_>>())
    );
}

/// docs/make-it-yours.md lists every test file for authors of another operator.
#[test]
fn make_it_yours_has_every_test_program() {
    let page = document("docs/make-it-yours.md");
    let said = &page.section("The tests").text;
    let tests = root().join("tests");
    let programs = sources(&tests).into_iter().filter(|path| {
        let is_one = path
            .ancestors()
            .skip(1)
            .take(2)
            .any(|folder| folder == tests);
        is_one && !path.ends_with("mod.rs")
    });
    for path in programs {
        let path = path.strip_prefix(root()).unwrap().display();
        assert!(said.contains(&format!("`{path}`")), "{path}");
    }
}

/// README is short enough to read in one go. Details are in `docs/`.
#[test]
fn readme_is_short() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 150);
}

/// Every section exists that code cites in the form: docs/design.md, "How it works".
#[test]
fn sections_cited_by_code_exist() {
    for file in CODE.map(|folder| sources(&root().join(folder))) {
        for file in file {
            let text = fs::read_to_string(&file).unwrap();
            // A citation may continue on the next line of a comment or string. Quotes in a string are escaped.
            let words = text.split(|c: char| c.is_whitespace() || c == '\\' || c == '/');
            let words: Vec<_> = words.filter(|word| !matches!(*word, "" | "!")).collect();
            let text = words.join(" ");
            let mut rest = &*text;
            while let Some((_, cited)) = rest.split_once("docs ") {
                rest = cited;
                let title = cited
                    .split_once(".md, \"")
                    .filter(|(name, _)| {
                        name.bytes()
                            .all(|byte| byte == b'-' || byte.is_ascii_lowercase())
                    })
                    .and_then(|(name, title)| Some((name, title.split_once('"')?.0)));
                if let Some((name, title)) = title {
                    document(&format!("docs/{name}.md")).section(title.trim());
                }
            }
        }
    }
}

/// Each alert has a section under its name, with its severity and its duration before it fires.
#[test]
fn every_alert_has_a_section() {
    let rules = fs::read_to_string(root().join("deploy/components/prometheus/rules.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&rules).unwrap();
    let groups = rules["spec"]["groups"].as_array().unwrap();
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    let alerts: Vec<&Value> = rules.filter(|rule| rule["alert"].is_string()).collect();
    let operations = document("docs/operations.md");
    for alert in &alerts {
        let section = operations.section(alert["alert"].as_str().unwrap());
        let lasts = alert["for"]
            .as_str()
            .map_or("at once".to_owned(), |time| format!("after {time}"));
        let severity = alert["labels"]["severity"].as_str().unwrap();
        let begins = format!("Severity: {severity}, {lasts}. ");
        let text = section.text.trim_start();
        assert!(text.starts_with(&begins), "{}: {begins}", section.title);
    }
    let titles = operations.sections.iter().map(|section| &*section.title);
    let documented: Vec<_> = titles
        .filter(|title| title.starts_with("FooController"))
        .collect();
    let names: Vec<_> = alerts
        .iter()
        .map(|alert| alert["alert"].as_str().unwrap())
        .collect();
    assert_eq!(documented, names, "in the rules' order, and no others");
}

/// Every code block has a tested type: commands are run ([`commands`]), configuration is parsed, and pictures are marked as
/// text.
#[test]
fn every_code_block_has_a_tested_type() {
    for Document { path, blocks, .. } in documents() {
        for (language, text) in blocks {
            match &*language {
                "console" => assert!(text.starts_with("$ "), "{}: {text}", path.display()),
                // A command on the page applies the patch.
                "text" | "diff" => {}
                "yaml" => {
                    let _: Value = serde_saphyr::from_str(&text).unwrap();
                }
                "toml" => {
                    let _: toml::Table = text.parse().unwrap();
                }
                other => panic!("{}: {other:?}: {text}", path.display()),
            }
        }
    }
}
