//! The layers of the code: imports go down only, one module uses each server's crate, and production code does not
//! panic.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::documents::{document, documents, root};

/// The modules from top to bottom. A module may use the modules below it, but not the others on its own level.
const LAYERS: &[&[&str]] = &[
    &["bench"],
    &["app"],
    &["engine", "api", "dashboard"],
    &["broker", "verify"],
    &["store", "index", "handlers"],
    &["event", "telemetry", "table"],
    &["config"],
    &["job"],
];

/// This module uses no other module, and only programs and tests use it.
const APART: &str = "services";

/// Crates, and the modules that may name them.
const DOORS: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("redis", &["index"]),
    ("axum", &["api", "dashboard", "app"]),
    ("hyper", &["app"]),
    ("hyper_util", &["app"]),
    ("tower_http", &["api", "dashboard"]),
    ("rust_embed", &["dashboard"]),
    ("clap", &["config", "app", "cmd"]),
];

/// Calls that only tests may contain.
const GIVING_UP: &[&str] = &[".unwrap()", ".unwrap_err()", "todo!(", "unimplemented!(", "dbg!("];

/// A line of code outside tests and comments, with its position.
struct Line {
    file: PathBuf,
    number: usize,
    /// The module of the library, or `cmd`.
    module: String,
    text: String,
}

impl Line {
    fn place(&self) -> String {
        format!("{}:{}: {}", self.file.display(), self.number, self.text.trim())
    }

    /// Return whether the line names `word::` or `word;` as a path of its own, and not as the end of another path.
    fn names(&self, word: &str) -> bool {
        self.text.match_indices(word).any(|(at, _)| {
            let before = self.text[..at].chars().next_back();
            let after = &self.text[at + word.len()..];
            let apart = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':' && c != '.');
            let imported = self.text.trim_start().starts_with("use ") && after.trim_start().starts_with([';', ' ']);
            apart && (after.starts_with("::") || imported)
        })
    }

    /// Return the modules of this library that the line names with `crate::` or `tickr::`.
    fn modules(&self) -> Vec<&str> {
        let mut found = Vec::new();
        for root in ["crate::", "tickr::"] {
            for (at, _) in self.text.match_indices(root) {
                if self.text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                    continue;
                }
                let rest = &self.text[at + root.len()..];
                let word = |text: &'_ str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
                match rest.strip_prefix('{') {
                    // `use crate::{job, store::Store}`: the first name of each part at this depth.
                    Some(group) => {
                        let (mut depth, mut start) = (0, true);
                        for (at, c) in group.char_indices() {
                            match c {
                                '{' => depth += 1,
                                '}' => depth -= 1,
                                ',' if depth == 0 => start = true,
                                c if start && depth == 0 && !c.is_whitespace() => {
                                    found.push(&group[at..at + word(&group[at..])]);
                                    start = false;
                                }
                                _ => {}
                            }
                            if depth < 0 {
                                break;
                            }
                        }
                    }
                    None => found.push(&rest[..word(rest)]),
                }
            }
        }
        found
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
    found.sort();
}

/// Read all code that is built into the program: without comments, and without `#[cfg(test)]` modules and their files.
fn code() -> Vec<Line> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lines = Vec::new();
    for part in ["internal", "cmd"] {
        let mut sources = Vec::new();
        files(&root.join(part), &mut sources);
        let texts: Vec<(PathBuf, String)> =
            sources.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
        let tests: Vec<PathBuf> = texts.iter().flat_map(|(path, text)| test_files(path, text)).collect();
        for (path, text) in texts.iter().filter(|(path, _)| !tests.contains(path)) {
            let file = path.strip_prefix(root).unwrap().to_owned();
            let below = file.strip_prefix(part).unwrap().with_extension("");
            let first = below.components().next().unwrap().as_os_str().to_str().unwrap().to_owned();
            let module = if part == "cmd" { "cmd".to_owned() } else { first };
            let mut whole_use: Option<(usize, String)> = None;
            for (number, text) in without_tests(text) {
                let text = text.split("//").next().unwrap_or("").to_owned();
                // An import over several lines counts as one.
                let opened = whole_use.is_none() && text.trim_start().trim_start_matches("pub ").starts_with("use ");
                let (number, text) = match whole_use.take() {
                    Some((first, before)) => (first, before + text.trim()),
                    None => (number, text),
                };
                if (opened || text.trim_start().trim_start_matches("pub ").starts_with("use ")) && !text.contains(';') {
                    whole_use = Some((number, text));
                    continue;
                }
                lines.push(Line { file: file.clone(), number, module: module.clone(), text });
            }
        }
    }
    lines
}

/// Return the files of modules that are declared under `#[cfg(test)]` without a body.
fn test_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = lines.iter().enumerate().filter(|(_, line)| **line == "#[cfg(test)]").map(|(at, _)| at);
    let named =
        at.filter_map(|at| lines[at + 1..].iter().find_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')));
    let is_root = path.file_name().is_some_and(|name| name == "mod.rs" || name == "lib.rs" || name == "main.rs");
    let dir = if is_root { path.parent().unwrap().to_owned() } else { path.with_extension("") };
    named.map(|name| dir.join(format!("{name}.rs"))).collect()
}

/// Return the numbered lines outside `#[cfg(test)] mod … { … }`. Such a module ends with a brace in the column of its
/// start.
fn without_tests(text: &str) -> Vec<(usize, String)> {
    let (mut kept, mut pending, mut inside) = (Vec::new(), false, None::<String>);
    for (at, line) in text.lines().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if let Some(of) = &inside {
            if line == format!("{of}}}") {
                inside = None;
            }
            continue;
        }
        if line.trim() == "#[cfg(test)]" {
            pending = true;
            continue;
        }
        if pending && line.trim_end().ends_with('{') {
            inside = Some(indent.to_owned());
            pending = false;
            continue;
        }
        pending &= line.trim_start().starts_with('#');
        kept.push((at + 1, line.to_owned()));
    }
    kept
}

fn depth(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn imports_go_down_only() {
    let lines = code();
    assert!(lines.len() > 5_000, "only {} lines were read", lines.len());
    let mut wrong = Vec::new();
    for line in lines.iter().filter(|line| !matches!(line.module.as_str(), "lib" | "cmd")) {
        for used in line.modules().into_iter().filter(|used| *used != line.module) {
            let fine = match (depth(&line.module), depth(used)) {
                (Some(from), Some(to)) => from < to,
                // A name in the crate's root, such as `tickr::run`, belongs to no module.
                (Some(_), None) => used != APART,
                (None, _) => false,
            };
            if !fine {
                wrong.push(format!("{} ({} may not use {used})", line.place(), line.module));
            }
        }
    }
    assert!(wrong.is_empty(), "imports that go up or sideways:\n{}", wrong.join("\n"));
    // The map above has every module.
    let mut modules: Vec<&str> = lines.iter().map(|line| line.module.as_str()).collect();
    modules.dedup();
    let unknown: Vec<&&str> =
        modules.iter().filter(|m| depth(m).is_none() && !["lib", "cmd", APART].contains(*m)).collect();
    assert!(unknown.is_empty(), "modules without a layer: {unknown:?}");
}

#[test]
fn each_server_has_one_door() {
    let mut wrong = Vec::new();
    for line in code() {
        for (name, doors) in DOORS {
            // `services` has a file named `redis`, and the store uses names of its own that look like the crate.
            let own = line.module == APART && *name == "redis";
            if line.names(name) && !doors.contains(&line.module.as_str()) && !own {
                wrong.push(format!("{} ({name} belongs to {doors:?})", line.place()));
            }
        }
    }
    assert!(wrong.is_empty(), "crates used outside their module:\n{}", wrong.join("\n"));
}

#[test]
fn nothing_gives_up_with_a_panic() {
    let given_up = code().into_iter().filter(|line| GIVING_UP.iter().any(|word| line.text.contains(word)));
    let wrong: Vec<String> = given_up.map(|line| line.place()).collect();
    assert!(wrong.is_empty(), "outside tests:\n{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_sources_reads_what_it_should() {
    let text = "use crate::job::{\n    JobId,\n};\n#[cfg(test)]\nmod tests {\n    x.unwrap();\n}\nfn f() {}\n";
    let kept: Vec<usize> = without_tests(text).into_iter().map(|(number, _)| number).collect();
    assert_eq!(kept, [1, 2, 3, 8]);
    let line = |text: &str| Line { file: "f".into(), number: 1, module: "m".into(), text: text.into() };
    assert_eq!(line("use crate::{job, store::Store};").modules(), ["job", "store"]);
    assert_eq!(line("let x = crate::api::openapi(); tickr::event::E").modules(), ["api", "event"]);
    assert!(line("use redis;").names("redis") && line("a(redis::cmd(x))").names("redis"));
    assert!(!line("self::redis::plan()").names("redis") && !line("my_redis::x").names("redis"));
}

#[test]
fn the_documents_have_the_configuration_table_of_this_binary() {
    let page = document("docs/CONFIGURATION.md").text;
    let (before, rest) = page.split_once("<!-- configuration: tickr config --reference -->\n").unwrap();
    let (table, after) = rest.split_once("<!-- end of configuration -->").unwrap();
    let mark = "<!-- configuration: tickr config --reference -->";
    let whole =
        format!("{before}{mark}\n{}\n<!-- end of configuration -->{after}", tickr::config::markdown_table().trim());
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("CONFIGURATION.md");
    fs::write(&made, whole).unwrap();
    assert!(
        table.trim() == tickr::config::markdown_table().trim(),
        "docs/CONFIGURATION.md is not what the sources say; copy {}",
        made.display()
    );
}

/// Every `module::test` between back quotes in the documents is a test that runs.
#[test]
fn the_documents_name_tests_that_exist() {
    let mut named = 0;
    for document in documents() {
        for quoted in document.quoted() {
            let Some((module, test)) = quoted.split_once("::") else { continue };
            let plain = |name: &str| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c))
            };
            let source = root().join("tests/suite").join(module).with_extension("rs");
            if plain(module) && plain(test) && source.exists() {
                let source = fs::read_to_string(&source).unwrap();
                assert!(
                    source.contains(&format!("fn {test}(")),
                    "{} names {quoted}, which does not exist",
                    document.name
                );
                named += 1;
            }
        }
    }
    assert!(named > 150, "{named}");
}

/// Every source file between back quotes in the documents exists, from the root, or below `internal/` or `tests/`.
#[test]
fn the_documents_name_source_files_that_exist() {
    let mut sources = Vec::new();
    for part in ["internal", "cmd", "tests", "examples"] {
        below(&root().join(part), &mut sources);
    }
    let mut named = 0;
    for document in documents() {
        for quoted in document.quoted() {
            let is_source = [".rs", ".lua", ".sh", ".js"].iter().any(|end| quoted.ends_with(end));
            if !is_source || quoted.contains([' ', '*', '…']) {
                continue;
            }
            let places = ["", "internal", "tests", "tests/suite"].map(|folder| root().join(folder).join(&quoted));
            // A bare name may be anywhere.
            let somewhere = !quoted.contains('/') && sources.iter().any(|path| path.ends_with(&quoted));
            assert!(
                somewhere || places.iter().any(|path| path.exists()),
                "{} names {quoted}, which does not exist",
                document.name
            );
            named += 1;
        }
    }
    assert!(named > 60, "{named}");
}

/// Collect every file below a folder.
fn below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { below(&path, found) } else { found.push(path) }
    }
}

/// Every link of a document leads to a file, and to a heading of it.
#[test]
fn the_links_of_the_documents_lead_somewhere() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for from in documents() {
        for link in from.links().into_iter().filter(|link| !link.contains("://")) {
            count += 1;
            let (path, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(path, anchor)| (path, Some(anchor)));
            let folder = Path::new(&from.name).parent().unwrap();
            let target = if path.is_empty() { root().join(&from.name) } else { root().join(folder).join(path) };
            if !target.exists() {
                wrong.push(format!("{}: {link}: no such file", from.name));
            } else if let Some(anchor) = anchor {
                let target = target.canonicalize().unwrap();
                let to = documents().into_iter().find(|to| root().join(&to.name).canonicalize().unwrap() == target);
                if !to.is_some_and(|to| to.anchors().iter().any(|heading| heading == anchor)) {
                    wrong.push(format!("{}: {link}: no such heading", from.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
    assert!(count > 50, "only {count} links were read");
    // The index has every page.
    let index = document("docs/README.md");
    let pages = documents().into_iter().filter_map(|page| Some(page.name.strip_prefix("docs/")?.to_owned()));
    let missing: Vec<String> =
        pages.filter(|page| page != "README.md" && !index.links().iter().any(|link| link == page)).collect();
    assert!(missing.is_empty(), "docs/README.md does not name {missing:?}");
}

/// The map of ARCHITECTURE.md names every part of the library, and nothing that does not exist.
#[test]
fn the_map_of_the_architecture_is_whole() {
    let map = document("ARCHITECTURE.md").blocks_of("text").remove(0).text;
    let mut named = Vec::new();
    for line in map.lines() {
        let inside = line.len() - line.trim_start().len();
        let Some(word) = line.split_whitespace().next().filter(|_| inside == 0 || inside == 2) else { continue };
        let path = if inside == 0 { word.to_owned() } else { format!("internal/{word}") };
        assert!(root().join(&path).exists(), "the map names {path}, which does not exist");
        named.push(path.trim_end_matches('/').to_owned());
    }
    for part in ["internal", "tests"] {
        for entry in fs::read_dir(root().join(part)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // No parts: the tour itself, the settings of a tool, and a table.
            let other = ["lib.rs", "contract", "MUTATIONS.md"].contains(&name.as_str());
            assert!(other || named.contains(&format!("{part}/{name}")), "the map does not name {part}/{name}");
        }
    }
}

/// The head of each `mod.rs` lists the files of its folder. A file that is not listed is one that no newcomer finds.
#[test]
fn the_head_of_every_module_names_every_file_of_it() {
    let internal = root().join("internal");
    let mut sources = Vec::new();
    files(&internal, &mut sources);
    let (mut wrong, mut heads) = (Vec::new(), 0);
    for head in sources.iter().filter(|path| path.ends_with("mod.rs") || **path == internal.join("lib.rs")) {
        let text = fs::read_to_string(head).unwrap();
        let map: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let folder = head.parent().unwrap();
        heads += 1;
        let mut parts: Vec<String> = Vec::new();
        for source in sources.iter().filter(|path| *path != head) {
            let Ok(below) = source.strip_prefix(folder) else { continue };
            let first = Path::new(below.components().next().unwrap().as_os_str()).with_extension("");
            parts.push(first.to_str().unwrap().to_owned());
        }
        parts.dedup();
        let tests = test_files(head, &text);
        for part in parts.iter().filter(|part| !tests.contains(&folder.join(part).with_extension("rs"))) {
            let forms = [format!("`{part}`"), format!("`{part}.rs`"), format!("`{part}/`"), format!("`{part}/mod.rs`")];
            // rustdoc links may give a name its path, as in [`bench`](mod@bench).
            if !forms.iter().any(|form| map.contains(form)) {
                wrong.push(format!("{} does not name {part}", head.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(heads > 10, "only {heads} heads were read");
    assert!(wrong.is_empty(), "maps with gaps:\n{}", wrong.join("\n"));
}
