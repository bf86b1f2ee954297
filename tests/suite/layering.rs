//! The layers of the code: crates use crates below them only, no circle of files or folders inside `store` and `api`, one module uses
//! each server's crate, and production code does not panic.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::documents::{document, documents, root};

/// The modules from top to bottom. A module may use the modules below it, but not the others on its own level.
const LAYERS: &[&[&str]] = &[
    &["bench", "testing", "conformance"],
    &["app"],
    &["engine", "api", "dashboard"],
    &["client"],
    &["broker", "verify"],
    &["store", "index", "handlers"],
    &["event", "telemetry", "table"],
    &["config"],
    &["job"],
];

/// The modules of the package at the root. Each other module is a crate of its own.
const AT_THE_ROOT: &[&str] = &["app", "bench", "testing", "lib", "cmd"];

/// This module uses no other module, and only programs, tests and the module for tests of handlers use it.
const APART: &str = "services";
const USES_APART: &str = "testing";

/// The modules whose files and folders must not need each other in a circle, each with the names of its root that every
/// file may use. The root puts its folders together, so it needs all of them. It also defines the handle on which the
/// files write their methods, and the state behind the handle. A file may use nothing else of the root: what two files
/// share stands below both. So this list may not grow.
const INSIDE: &[(&str, &[&str])] = &[("store", &["Store", "StoreInner"]), ("api", &["Api"])];

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

/// The crates whose public async functions return boxed futures, so that the crates above do not compile their bodies
/// again. Functions that take a closure or another type of the caller are compiled there in any case, and the future of a
/// migration is not `Send`.
const BOXED: &[&str] = &["store", "index", "broker"];

/// Calls that only tests may contain.
const GIVING_UP: &[&str] = &[".unwrap()", ".unwrap_err()", "todo!(", "unimplemented!(", "dbg!("];

/// Beginnings of names of limits that are not the one word for it.
const OTHER_THAN_MAX: &[&str] = &["MOST_", "LONGEST_"];

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

    /// Return the modules that the line names: crates of the workspace as `tickr_store::`, and in the package at the root
    /// also modules after `crate::` or `tickr::`.
    fn modules(&self) -> Vec<&str> {
        let mut found = Vec::new();
        for (at, _) in self.text.match_indices("tickr_") {
            if !self.text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                let rest = &self.text[at + "tickr_".len()..];
                let word = &rest[..rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len())];
                if rest[word.len()..].starts_with("::") || self.text.trim_start().starts_with("use ") {
                    found.push(word);
                }
            }
        }
        if !AT_THE_ROOT.contains(&self.module.as_str()) {
            return found;
        }
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
                let opened = whole_use.is_none() && import(&text).is_some();
                let (number, text) = match whole_use.take() {
                    Some((first, before)) => (first, before + text.trim()),
                    None => (number, text),
                };
                if (opened || import(&text).is_some()) && !text.contains(';') {
                    whole_use = Some((number, text));
                    continue;
                }
                lines.push(Line { file: file.clone(), number, module: module.clone(), text });
            }
        }
    }
    lines
}

/// Split a line that imports names into its visibility and its path.
fn import(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let (visibility, path) = line.split_at(line.find("use ")?);
    let is_import = visibility.is_empty() || (visibility.starts_with("pub") && visibility.ends_with(' '));
    is_import.then(|| (visibility.trim_end(), path["use ".len()..].trim_end().trim_end_matches(';')))
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
                (Some(_), None) => used != APART || line.module == USES_APART,
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

/// A path of modules, such as `store`, `jobs`, `read`.
type Place = Vec<String>;

/// The files of one module of the library, and how they use each other.
struct Inside {
    root: String,
    /// The lines of each file. The `lib.rs` or `mod.rs` of a folder is a file of its own, named like the folder.
    files: BTreeMap<Place, Vec<String>>,
    /// Names that a file hands on: a user of such a name uses the file that defines it.
    handed_on: BTreeMap<(Place, String), Place>,
    /// Names of the root that files use although they may not.
    of_the_root: Vec<String>,
    /// For each file the files that it uses, with one name of the use.
    uses: BTreeMap<Place, BTreeMap<Place, String>>,
}

/// Expand the groups in the path of an import.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.split(" as ").next().unwrap().trim().to_owned()];
    };
    let group = &rest[..rest.rfind('}').unwrap()];
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in group.chars() {
        match c {
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        parts.last_mut().unwrap().push(c);
    }
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(|part| expanded(&format!("{}{part}", before.trim()))).collect()
}

/// Return the paths of two or more names in a line of code, such as `crate::rows::Row`.
fn paths(line: &str) -> Vec<&str> {
    let part_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let paths = line.split(|c: char| !part_of_path(c)).map(|path| path.trim_end_matches(':'));
    paths.filter(|path| path.contains("::") && !path.starts_with(':')).collect()
}

impl Inside {
    /// Read the uses of names between the files of one module, from lines of code and the names of its root that every
    /// file may use.
    fn of(root: &str, files: BTreeMap<Place, Vec<String>>, handles: &[&str]) -> Self {
        let mut inside = Self {
            root: root.to_owned(),
            files,
            handed_on: BTreeMap::new(),
            of_the_root: Vec::new(),
            uses: BTreeMap::new(),
        };
        let (mut used, mut handed_on) = (Vec::<(Place, Place)>::new(), BTreeMap::new());
        for (file, lines) in &inside.files {
            let is_root = file.len() == 1;
            for line in lines {
                let Some((visibility, path)) = import(line) else {
                    used.extend(
                        paths(line).into_iter().filter_map(|path| Some((file.clone(), inside.whole(file, path)?))),
                    );
                    continue;
                };
                for path in expanded(path).iter().filter_map(|path| inside.whole(file, path.trim_end_matches("::self")))
                {
                    // What the root imports is below `crate` for all its files, whether it is `pub` or not.
                    if !visibility.is_empty() || is_root {
                        handed_on.insert((file.clone(), path.last().unwrap().clone()), path);
                    } else {
                        used.push((file.clone(), path));
                    }
                }
            }
        }
        inside.handed_on = handed_on;
        used.extend(inside.methods());
        for (file, path) in used.into_iter().filter(|(file, _)| file.len() > 1) {
            let Some((to, name)) = inside.definition(path) else { continue };
            if to.len() > 1 && to != file {
                inside.uses.entry(file).or_default().entry(to).or_insert(name);
            } else if to.len() == 1 && !handles.contains(&name.as_str()) {
                inside.of_the_root.push(format!("{} uses {name} of {root}/lib.rs", file.join("/")));
            }
        }
        inside
    }

    /// Return the path that begins with the crate, if `path` leads to a module or name inside.
    fn whole(&self, file: &Place, path: &str) -> Option<Place> {
        let mut names: Vec<&str> = path.split("::").collect();
        let mut whole = match names[0] {
            "crate" => vec![self.root.clone()],
            "self" | "super" => file.clone(),
            child if self.files.contains_key(&[file.as_slice(), &[child.to_owned()]].concat()) => {
                names.insert(0, "self");
                file.clone()
            }
            _ => return None,
        };
        for name in &names {
            match *name {
                "crate" | "self" => {}
                "super" => drop(whole.pop()),
                name => whole.push(name.to_owned()),
            }
        }
        (whole.first() == Some(&self.root) && whole.len() > 1).then_some(whole)
    }

    /// Return the file that defines what a path names, and the name. Follows names that a file hands on.
    fn definition(&self, mut path: Place) -> Option<(Place, String)> {
        for _ in 0..8 {
            let depth = (1..=path.len()).take_while(|depth| self.files.contains_key(&path[..*depth])).last()?;
            let file = path[..depth].to_vec();
            let Some(name) = path.get(depth) else { return Some((file.clone(), file.last()?.clone())) };
            match self.handed_on.get(&(file.clone(), name.clone())) {
                Some(from) => path = [from.as_slice(), &path[depth + 1..]].concat(),
                None => return Some((file, name.clone())),
            }
        }
        None
    }

    /// Return the uses of methods that another file has written on the handle. The methods that the root writes are part
    /// of the handle.
    fn methods(&self) -> Vec<(Place, Place)> {
        let mut written: BTreeMap<&str, Vec<&Place>> = BTreeMap::new();
        let mut called: Vec<(&Place, &str)> = Vec::new();
        for (file, lines) in self.files.iter().filter(|(file, _)| file.len() > 1) {
            let mut of_handle = false;
            for line in lines {
                if !line.starts_with([' ', '}']) && !line.is_empty() {
                    of_handle = line.starts_with("impl Store {");
                }
                if !of_handle {
                    continue;
                }
                let name = |text: &'_ str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
                if let Some((before, rest)) = line.strip_prefix("    ").and_then(|line| line.split_once("fn "))
                    && !before.starts_with(' ')
                {
                    written.entry(&rest[..name(rest)]).or_default().push(file);
                }
                let calls = line.split("self.").skip(1).filter(|call| call[name(call)..].starts_with(['(', ':']));
                called.extend(calls.map(|call| (file, &call[..name(call)])));
            }
        }
        let used = called.into_iter().filter_map(|(file, name)| match written.get(name)?.as_slice() {
            [from] => Some((file.clone(), [from.as_slice(), &[name.to_owned()]].concat())),
            _ => None,
        });
        used.collect()
    }

    /// Return the uses between the folders. A file beside the folders counts as a folder.
    fn rooms(&self) -> BTreeMap<Place, BTreeMap<Place, String>> {
        let mut rooms: BTreeMap<Place, BTreeMap<Place, String>> = BTreeMap::new();
        for (from, uses) in &self.uses {
            for (to, name) in uses.iter().filter(|(to, _)| to[1] != from[1]) {
                let name = format!("{} for {name} of {}", from[1..].join("/"), to[1..].join("/"));
                rooms.entry(from[..2].to_vec()).or_default().entry(to[..2].to_vec()).or_insert(name);
            }
        }
        rooms
    }
}

/// Return the shortest circle through each node that has one, in words. Equal circles are returned once.
fn circles(uses: &BTreeMap<Place, BTreeMap<Place, String>>) -> BTreeSet<String> {
    let mut found: BTreeMap<BTreeSet<&Place>, String> = BTreeMap::new();
    for start in uses.keys() {
        // The way to each node that can be reached from `start`, nearest first.
        let (mut ways, mut seen) = (std::collections::VecDeque::from([vec![start]]), BTreeSet::new());
        while let Some(way) = ways.pop_front() {
            for to in uses.get(*way.last().unwrap()).into_iter().flat_map(BTreeMap::keys) {
                let next = [way.as_slice(), &[to]].concat();
                if to == start {
                    let steps =
                        next.windows(2).map(|step| format!(" -> {} ({})", step[1].join("/"), uses[step[0]][step[1]]));
                    let words = format!("{}{}", start.join("/"), steps.collect::<String>());
                    found.entry(way.iter().copied().collect()).or_insert(words);
                    ways.clear();
                    break;
                }
                if seen.insert(to) {
                    ways.push_back(next);
                }
            }
        }
    }
    found.into_values().collect()
}

/// Inside `store` and `api`, a file uses only files below it, and a folder only folders below it. So each can be read
/// and changed without those above it.
#[test]
fn no_files_and_no_folders_need_each_other() {
    let lines = code();
    for (root, handles) in INSIDE {
        let mut files: BTreeMap<Place, Vec<String>> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.module == *root) {
            let file = line.file.strip_prefix("internal").unwrap().with_extension("");
            let mut path: Place = file.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
            path.pop_if(|name| name == "mod" || name == "lib");
            files.entry(path).or_default().push(line.text.clone());
        }
        let inside = Inside::of(root, files, handles);
        let (files, uses) = (inside.files.len(), inside.uses.values().map(BTreeMap::len).sum::<usize>());
        assert!(files > 30 && uses > 2 * files, "only {files} files of {root} with {uses} uses were read");
        assert!(inside.of_the_root.is_empty(), "names that belong in a file:\n{}", inside.of_the_root.join("\n"));
        for (what, circles) in [("files", circles(&inside.uses)), ("folders", circles(&inside.rooms()))] {
            let words: Vec<String> = circles.into_iter().collect();
            assert!(words.is_empty(), "circles of {what} in {root}:\n{}", words.join("\n"));
        }
    }
}

#[test]
fn the_reader_of_uses_sees_every_kind_of_circle() {
    let read = |sources: &[(&str, &str)]| {
        let source = |(path, text): &(&str, &str)| {
            (path.split('/').map(str::to_owned).collect(), text.lines().map(str::to_owned).collect())
        };
        Inside::of("store", sources.iter().map(source).collect(), &["Store"])
    };
    let root = ("store", "pub use a::one::One;\nuse b::Two;\npub struct Store;\nfn loose() {}");
    let circle = |sources: &[(&str, &str)]| {
        let inside = read(sources);
        assert!(inside.of_the_root.is_empty(), "{:?}", inside.of_the_root);
        let (files, rooms) = (circles(&inside.uses), circles(&inside.rooms()));
        (files.into_iter().collect::<Vec<_>>().join("; "), rooms.into_iter().collect::<Vec<_>>().join("; "))
    };
    // Down only, by a group, by the front door and by a path within a line.
    let down = [root, ("store/a", ""), ("store/a/one", "use crate::{Store, b::{Two, three}};"), ("store/b", "")];
    assert_eq!(circle(&down), (String::new(), String::new()));
    for back in ["use crate::One;", "use super::a::one::{self, One};", "    let x = crate::One::new();"] {
        let (files, rooms) = circle(&[root, down[1], down[2], ("store/b", back)]);
        assert!(files.starts_with("store/a/one -> store/b (Two) -> store/a/one ("), "{files}");
        assert!(rooms.starts_with("store/a -> store/b (a/one for Two of b) -> store/a (b for "), "{rooms}");
    }
    // Two folders that need each other through different files: no circle of files, but one of folders.
    let apart = [root, ("store/a/one", "use super::super::b::Two;"), ("store/b", "use crate::a::two::x;")];
    let (files, rooms) = circle(&[apart[0], ("store/a", ""), apart[1], ("store/a/two", ""), apart[2]]);
    assert!(files.is_empty() && rooms.starts_with("store/a -> store/b"), "{files}; {rooms}");
    // A `mod.rs` and a file of its folder, and a method that another file has written on the handle.
    let (files, _) =
        circle(&[root, ("store/a", "use one::One;\npub struct Base;"), ("store/a/one", "use super::Base;")]);
    assert!(files.starts_with("store/a -> store/a/one (One) -> store/a (Base)"), "{files}");
    let method = "impl Store {\n    pub async fn go(&self) {}\n}\nuse crate::b::Two;";
    let (files, _) = circle(&[root, ("store/c", method), ("store/b", "impl Store {\n    fn x() { self.go() }\n}")]);
    assert!(files.starts_with("store/b -> store/c (go) -> store/b (Two)"), "{files}");
    // A name that the root defines and that is not its handle.
    let loose = read(&[root, ("store/b", "use crate::{Store, loose};")]);
    assert_eq!(loose.of_the_root, ["store/b uses loose of store/lib.rs"]);
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
fn every_loop_of_a_runner_starts_again_after_a_panic() {
    // `keep_running` takes the tracker; a task that is spawned on it directly ends with its first panic.
    let bare = ["fetching.spawn(", "looping.spawn("];
    let ends = code().into_iter().filter(|line| bare.iter().any(|spawn| line.text.contains(spawn)));
    let wrong: Vec<String> = ends.map(|line| line.place()).collect();
    assert!(wrong.is_empty(), "loops outside keep_running:\n{}", wrong.join("\n"));
}

#[test]
fn nothing_gives_up_with_a_panic() {
    let given_up = code().into_iter().filter(|line| GIVING_UP.iter().any(|word| line.text.contains(word)));
    let wrong: Vec<String> = given_up.map(|line| line.place()).collect();
    assert!(wrong.is_empty(), "outside tests:\n{}", wrong.join("\n"));
}

/// A stranger searches for `MAX_`.
#[test]
fn constants_for_limits_are_named_max() {
    let is_other = |name: &str| OTHER_THAN_MAX.iter().any(|word| name.starts_with(word));
    let lines = code().into_iter();
    let others =
        lines.filter(|line| ["const ", "static "].iter().any(|word| line.text.split(word).skip(1).any(is_other)));
    let wrong: Vec<String> = others.map(|line| line.place()).collect();
    assert!(wrong.is_empty(), "name them MAX_…:\n{}", wrong.join("\n"));
}

#[test]
fn the_futures_of_the_lower_crates_are_boxed() {
    let lines = code();
    let mut wrong = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some((_, function)) = line.text.split_once("pub async fn ") else { continue };
        if !BOXED.contains(&line.module.as_str()) || line.file.ends_with("store/migrate/mod.rs") {
            continue;
        }
        let signature: String =
            lines[at..].iter().map(|line| line.text.as_str()).take_while(|text| *text != "{").collect();
        let signature = signature.split('{').next().unwrap_or("");
        let is_generic =
            function.split('(').next().is_some_and(|name| name.contains('<')) || signature.contains("impl ");
        let mut above = lines[..at].iter().rev().take_while(|line| line.text.trim_start().starts_with("#["));
        if !is_generic && !above.any(|line| line.text.contains("#[boxed]")) {
            wrong.push(line.place());
        }
    }
    assert!(wrong.is_empty(), "without #[boxed]:\n{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_sources_reads_what_it_should() {
    let text = "use crate::job::{\n    JobId,\n};\n#[cfg(test)]\nmod tests {\n    x.unwrap();\n}\nfn f() {}\n";
    let kept: Vec<usize> = without_tests(text).into_iter().map(|(number, _)| number).collect();
    assert_eq!(kept, [1, 2, 3, 8]);
    let of = |module: &str, text: &str| Line { file: "f".into(), number: 1, module: module.into(), text: text.into() };
    let line = |text: &str| of("app", text);
    assert_eq!(of("api", "use tickr_job::{JobId}; tickr_store::x(crate::jobs::y)").modules(), ["job", "store"]);
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

/// The head of each `lib.rs` and `mod.rs` lists the files of its folder. A file that is not listed is one that no newcomer finds.
#[test]
fn the_head_of_every_module_names_every_file_of_it() {
    let internal = root().join("internal");
    let mut sources = Vec::new();
    files(&internal, &mut sources);
    let (mut wrong, mut heads) = (Vec::new(), 0);
    for head in sources.iter().filter(|path| path.ends_with("mod.rs") || path.ends_with("lib.rs")) {
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
