//! The table of safeguards and the script that takes them out. Both have the same cuts, the code still contains what is
//! cut, and the tests exist. This checks everything about `make mutants` that needs no build.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Marks a row of the table whose safeguard cannot be taken out by a replacement of text. It needs no entry in the
/// script.
const BY_HAND: &str = " (by hand)";

/// One call of `mutant` in the script.
struct Mutant {
    name: String,
    cuts: Vec<Cut>,
    tests: Vec<String>,
}

/// One replacement: the file, the old text and the new text.
struct Cut {
    files: Vec<String>,
    old: String,
    new: String,
}

impl Mutant {
    /// Return its row in the table: the files in the order in which they are cut, without the common prefix.
    fn line(&self) -> (String, String) {
        let mut files: Vec<&str> = Vec::new();
        for file in self.cuts.iter().flat_map(|cut| &cut.files) {
            let file = file.strip_prefix("internal/").unwrap_or(file);
            if !files.contains(&file) {
                files.push(file);
            }
        }
        let tests: Vec<String> = self.tests.iter().map(|test| format!("`{test}`")).collect();
        (files.join(" "), tests.join(" "))
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_else(|_| panic!("no file {path}"))
}

/// Split a script into words as a shell does, up to a closing brace on a line of its own.
fn words(script: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut chars = script.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => {
                let quoted: String = chars.by_ref().take_while(|inner| *inner != c).collect();
                word.get_or_insert_default().push_str(&quoted);
            }
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(plain) => word.get_or_insert_default().push(plain),
            },
            c if c.is_whitespace() => match word.take() {
                Some(end) if end == "}" => return words,
                whole => words.extend(whole),
            },
            c => word.get_or_insert_default().push(c),
        }
    }
    panic!("the list of safeguards has no end");
}

fn mutants(script: &str) -> Vec<Mutant> {
    let (_, list) = script.split_once("\nmutants() {\n").expect("a list of safeguards");
    let mut mutants = Vec::new();
    for entry in words(list).split(|word| word == "mutant").skip(1) {
        let (name, mut rest) = entry.split_first().expect("a safeguard without a name");
        let mut cuts = Vec::new();
        while let [files, old, new, others @ ..] = rest
            && ["internal/", "cmd/", "tools/"].iter().any(|folder| files.starts_with(folder))
        {
            let files = files.split(' ').map(str::to_owned).collect();
            cuts.push(Cut { files, old: old.clone(), new: new.clone() });
            rest = others;
        }
        mutants.push(Mutant { name: name.clone(), cuts, tests: rest.to_vec() });
    }
    mutants
}

/// Return the rows of the table: the safeguard, the files, and the tests that turn red.
fn table(document: &str) -> Vec<[String; 3]> {
    let (_, table) = document.split_once("| safeguard taken out | in | turns red |\n|---|---|---|\n").expect("a table");
    let lines = table.lines().take_while(|line| line.starts_with('|'));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [name, files, tests] = cells.as_slice() else { panic!("not three cells: {line}") };
            [*name, *files, *tests].map(str::to_owned)
        })
        .collect()
}

/// Return whether this is a test that runs by default.
fn is_test(name: &str) -> bool {
    let Some((module, test)) = name.split_once("::") else { return false };
    let source = read(&format!("tests/suite/{module}.rs"));
    let lines: Vec<&str> = source.lines().collect();
    let named = format!("fn {test}(");
    let Some(at) = lines.iter().position(|line| line.contains(&named)) else { return false };
    let attributes: Vec<&&str> = lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).collect();
    attributes.iter().any(|line| line.contains("test")) && attributes.iter().all(|line| !line.starts_with("#[ignore"))
}

#[test]
fn every_safeguard_that_is_taken_out_is_there_and_has_a_test() {
    let mutants = mutants(&read("tests/mutations.sh"));
    assert!(mutants.len() > 100, "only {} were read", mutants.len());
    let (mut wrong, mut names) = (Vec::new(), BTreeSet::new());
    for Mutant { name, cuts, tests } in &mutants {
        if !names.insert(name) {
            wrong.push(format!("{name}: twice"));
        }
        if cuts.is_empty() || tests.is_empty() {
            wrong.push(format!("{name}: cuts nothing, or names no test"));
        }
        let mut sources = BTreeMap::<&str, String>::new();
        for Cut { files, old, new } in cuts {
            for file in files {
                let source = sources.entry(file.as_str()).or_insert_with(|| read(file));
                if old.is_empty() || old == new || !source.contains(old.as_str()) {
                    wrong.push(format!("{name}: {file} does not say, or keeps: {old}"));
                }
                *source = source.replace(old.as_str(), new);
            }
        }
        wrong.extend(tests.iter().filter(|test| !is_test(test)).map(|test| format!("{name}: no test {test}")));
    }
    assert!(wrong.is_empty(), "tests/mutations.sh:\n{}", wrong.join("\n"));
}

#[test]
fn the_table_of_safeguards_is_what_the_script_takes_out() {
    let mutants = mutants(&read("tests/mutations.sh"));
    let taken_out: BTreeMap<&str, (String, String)> =
        mutants.iter().map(|mutant| (mutant.name.as_str(), mutant.line())).collect();
    let (mut wrong, mut listed) = (Vec::new(), BTreeSet::new());
    let table = table(&read("tests/MUTATIONS.md"));
    for [name, files, tests] in &table {
        if !listed.insert(name.as_str()) {
            wrong.push(format!("the table has twice: {name}"));
        }
        match taken_out.get(name.as_str()) {
            Some((in_files, by_tests)) if (in_files, by_tests) == (files, tests) => {}
            Some((in_files, by_tests)) => wrong.push(format!("the script says: | {name} | {in_files} | {by_tests} |")),
            None if name.ends_with(BY_HAND) => {}
            None => wrong.push(format!("the script has not: {name}")),
        }
    }
    let missing = taken_out.iter().filter(|(name, _)| !listed.contains(*name));
    wrong.extend(missing.map(|(name, (files, tests))| format!("the table has not: | {name} | {files} | {tests} |")));
    assert!(wrong.is_empty(), "tests/MUTATIONS.md and tests/mutations.sh:\n{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_the_script_reads_as_a_shell_does() {
    let read = words("    mutant 'a \"b\" c' x/y.rs \\\n        '{\n}' '' \"d's\" e::f\n}\nmore 'words");
    assert_eq!(read, ["mutant", "a \"b\" c", "x/y.rs", "{\n}", "", "d's", "e::f"]);
    let script = "\nmutants() {\n    mutant 'a' 'internal/b.rs cmd/c.rs' d e internal/b.rs f '' g::h i::j\n}\n";
    let mutants = mutants(script);
    assert_eq!((mutants.len(), mutants[0].cuts.len()), (1, 2));
    assert_eq!(mutants[0].line(), ("b.rs cmd/c.rs".to_owned(), "`g::h` `i::j`".to_owned()));
}
