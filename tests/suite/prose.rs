//! The language of comments: the actor has a name, and documentation says what is, not what is asked. The lines of the
//! dashboard: its formatter leaves templates alone, so a test keeps them narrow.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose Rust sources are read.
const ROOTS: &[&str] = &["internal", "cmd", "tests", "examples", "benches"];
/// Words for an actor without a name. A comment names the client, the runner, the operator or MySQL instead.
const NAMELESS: &[&str] =
    &["whoever", "whomever", "nobody", "somebody", "someone", "everybody", "everyone", "anybody", "anyone"];
/// Words that open a question.
const QUESTIONS: &[&str] = &["What", "Who", "Whom", "Whose", "How", "When", "Where", "Why", "Which", "Whether"];
/// Most columns of a line, as rustfmt and the formatter of scripts have it.
const MAX_COLUMNS: usize = 120;
/// Most nameless actors among 1,000 lines of comment.
const MAX_NAMELESS: usize = 2;
/// Most pieces of documentation among 100 that open with a question.
const MAX_QUESTIONS: usize = 5;

/// The comments of all sources, counted.
#[derive(Default)]
struct Prose {
    lines: usize,
    nameless: Vec<String>,
    docs: usize,
    questions: Vec<String>,
}

impl Prose {
    fn read(&mut self, file: &Path) {
        let mut in_doc = false;
        for (number, line) in fs::read_to_string(file).unwrap().lines().enumerate() {
            let line = line.trim_start();
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            if let Some(text) = doc.or_else(|| line.strip_prefix("//")) {
                self.lines += 1;
                let words = text.split(|c: char| !c.is_alphanumeric());
                let found = || format!("{}:{}: {line}", file.display(), number + 1);
                let nameless = words.filter(|word| NAMELESS.contains(&word.to_lowercase().as_str())).count();
                self.nameless.extend((0..nameless).map(|_| found()));
                if doc.is_some() && !in_doc {
                    self.docs += 1;
                    let opens = text.split_whitespace().next().unwrap_or_default();
                    if QUESTIONS.contains(&opens.trim_end_matches(|c: char| !c.is_alphanumeric())) {
                        self.questions.push(found());
                    }
                }
            }
            in_doc = doc.is_some();
        }
    }
}

fn sources(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("target") && !path.ends_with("vendor") {
                sources(&path, extension, found);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

#[test]
fn comments_name_the_actor_and_open_with_no_question() {
    let mut files = Vec::new();
    for root in ROOTS {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(root), "rs", &mut files);
    }
    files.sort();
    let mut prose = Prose::default();
    for file in &files {
        prose.read(file);
    }
    println!(
        "{} lines of comment: {:.1} nameless actors among 1,000; {} pieces of documentation: {:.1} % open with a question",
        prose.lines,
        1_000.0 * prose.nameless.len() as f64 / prose.lines as f64,
        prose.docs,
        100.0 * prose.questions.len() as f64 / prose.docs as f64,
    );
    assert!(prose.lines > 5_000 && prose.docs > 3_000, "the sources were not found: {} files", files.len());
    assert!(
        prose.nameless.len() * 1_000 < MAX_NAMELESS * prose.lines,
        "name the actor:\n{}",
        prose.nameless.join("\n")
    );
    assert!(prose.questions.len() * 100 < MAX_QUESTIONS * prose.docs, "say what is:\n{}", prose.questions.join("\n"));
}

/// The scripts of the dashboard, without those of other projects.
fn scripts() -> Vec<PathBuf> {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("internal/dashboard/assets"), "js", &mut files);
    assert!(files.len() > 30, "the scripts were not found: {}", files.len());
    files.sort();
    files
}

#[test]
fn the_lines_of_the_dashboard_fit_120_columns() {
    let mut long = Vec::new();
    for file in scripts() {
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let columns = line.chars().count();
            if columns > MAX_COLUMNS {
                long.push(format!("{}:{}: {columns} columns", file.display(), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "break these templates, but keep the spaces between words:\n{}", long.join("\n"));
}

#[test]
fn the_dashboard_names_the_actor() {
    let mut found = Vec::new();
    for file in &scripts() {
        for (number, line) in fs::read_to_string(file).unwrap().lines().enumerate() {
            // `anyone` is the name that the API gives to a caller without a key.
            let nameless = |word: &str| word != "anyone" && NAMELESS.contains(&word.to_lowercase().as_str());
            if line.split(|c: char| !c.is_alphanumeric()).any(nameless) {
                found.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "name the actor:\n{}", found.join("\n"));
}
