//! The shape of the code: imports go down only, each server has one door, and nothing gives up with a panic.

use std::fs;
use std::path::{Path, PathBuf};

/// From top to bottom. Whoever stands higher may use whoever stands lower; neighbours on one line keep apart.
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

/// Stands apart: uses nothing of the rest, and only programs and tests use it.
const APART: &str = "services";

/// A crate, and the modules that may name it.
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

/// What has no place outside tests.
const GIVING_UP: &[&str] = &[".unwrap()", ".unwrap_err()", "todo!(", "unimplemented!(", "dbg!("];

/// A line of code outside tests and comments, with where it stands.
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

    /// Is `word::` or `word;` named here as a path of its own, not as the end of another?
    fn names(&self, word: &str) -> bool {
        self.text.match_indices(word).any(|(at, _)| {
            let before = self.text[..at].chars().next_back();
            let after = &self.text[at + word.len()..];
            let apart = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':' && c != '.');
            let imported = self.text.trim_start().starts_with("use ") && after.trim_start().starts_with([';', ' ']);
            apart && (after.starts_with("::") || imported)
        })
    }

    /// The modules of this library that the line names with `crate::` or `tickr::`.
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
                    // `use crate::{job, store::Store}`: the first word of each part at this depth.
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

/// Everything that is built into the program: without comments, without `#[cfg(test)]` modules and their files.
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

/// The files of modules that are declared under `#[cfg(test)]` without a body.
fn test_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = lines.iter().enumerate().filter(|(_, line)| **line == "#[cfg(test)]").map(|(at, _)| at);
    let named =
        at.filter_map(|at| lines[at + 1..].iter().find_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')));
    let is_root = path.file_name().is_some_and(|name| name == "mod.rs" || name == "lib.rs" || name == "main.rs");
    let dir = if is_root { path.parent().unwrap().to_owned() } else { path.with_extension("") };
    named.map(|name| dir.join(format!("{name}.rs"))).collect()
}

/// Numbered lines outside `#[cfg(test)] mod … { … }`, which ends with a brace in its own column.
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
                // A name of the crate's root, such as `tickr::run`, is nobody's module.
                (Some(_), None) => used != APART,
                (None, _) => false,
            };
            if !fine {
                wrong.push(format!("{} ({} may not use {used})", line.place(), line.module));
            }
        }
    }
    assert!(wrong.is_empty(), "imports that go up or sideways:\n{}", wrong.join("\n"));
    // The map above is whole.
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
            // `services` has a file about Redis, and the store's own names are not the crate's.
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
fn the_readme_has_the_configuration_table_of_this_binary() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("<!-- configuration: tickr config --reference -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- end of configuration -->").unwrap();
    assert_eq!(table.trim(), tickr::config::markdown_table().trim(), "paste the output of `tickr config --reference`");
}

/// Every `module::test` between back quotes in the documents is one that runs.
#[test]
fn the_documents_name_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for document in ["README.md", "ARCHITECTURE.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        for quoted in text.split('`').skip(1).step_by(2) {
            let Some((module, test)) = quoted.split_once("::") else { continue };
            let plain = |name: &str| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c))
            };
            let source = root.join("tests/suite").join(module).with_extension("rs");
            if plain(module) && plain(test) && source.exists() {
                let source = fs::read_to_string(&source).unwrap();
                assert!(source.contains(&format!("fn {test}(")), "{document} names {quoted}, which there is not");
                named += 1;
            }
        }
    }
    assert!(named > 40, "{named}");
}
