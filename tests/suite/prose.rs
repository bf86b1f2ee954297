//! The language of comments and documents: the actor has a name, and documentation says what is, not what is asked. The
//! lines of the dashboard and of documents: no formatter breaks them, so a test keeps them narrow.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::documents::{Document, documents};

/// Folders whose Rust sources are read.
const ROOTS: &[&str] = &["internal", "cmd", "tests", "examples", "benches"];
/// Words for an actor without a name. A comment names the client, the runner, the operator or MySQL instead.
const NAMELESS: &[&str] =
    &["whoever", "whomever", "nobody", "somebody", "someone", "everybody", "everyone", "anybody", "anyone"];
/// Words that open a question.
const QUESTIONS: &[&str] = &["What", "Who", "Whom", "Whose", "How", "When", "Where", "Why", "Which", "Whether"];
/// Most columns of a line, as rustfmt and the formatter of scripts have it.
const MAX_COLUMNS: usize = 120;
/// Most nameless actors among 1,000 lines of comment or document.
const MAX_NAMELESS: usize = 2;
/// Most pieces of documentation, or of a document, among 100 that open with a question.
const MAX_QUESTIONS: usize = 5;

/// The comments of all sources, or the text of all documents, counted.
#[derive(Default)]
struct Prose {
    lines: usize,
    nameless: Vec<String>,
    /// Pieces: blocks of documentation; headings, paragraphs and list items of documents.
    pieces: usize,
    questions: Vec<String>,
}

impl Prose {
    fn read(&mut self, file: &Path) {
        let mut in_doc = false;
        for (number, line) in fs::read_to_string(file).unwrap().lines().enumerate() {
            let line = line.trim_start();
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            if let Some(text) = doc.or_else(|| line.strip_prefix("//")) {
                let place = format!("{}:{}", file.display(), number + 1);
                self.note(&place, text, doc.is_some() && !in_doc);
            }
            in_doc = doc.is_some();
        }
    }

    /// Read the text of a document. A line of a table or of a paragraph opens nothing.
    fn read_document(&mut self, document: &Document) {
        let mut in_paragraph = false;
        for (number, line) in document.lines_of_prose() {
            let line = line.trim();
            let number_off = line.trim_start_matches(|c: char| c.is_ascii_digit());
            let marked = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'));
            let marked = marked.or_else(|| line.strip_prefix("- ")).or_else(|| number_off.strip_prefix(". "));
            if !line.is_empty() {
                let opens = marked.is_some() || !in_paragraph && !line.starts_with('|');
                self.note(&format!("{}:{number}", document.name), line, opens);
            }
            in_paragraph = !line.is_empty() && !line.starts_with('#');
        }
    }

    /// Count one line, which may be the first of a piece.
    fn note(&mut self, place: &str, text: &str, opens: bool) {
        let found = || format!("{place}: {}", text.trim());
        self.lines += 1;
        let words = text.split(|c: char| !c.is_alphanumeric());
        let nameless = words.filter(|word| NAMELESS.contains(&word.to_lowercase().as_str())).count();
        self.nameless.extend((0..nameless).map(|_| found()));
        if opens {
            self.pieces += 1;
            let words = text.split(|c: char| !c.is_alphanumeric());
            let word = words.into_iter().find(|word| word.starts_with(char::is_alphabetic));
            if word.is_some_and(|word| QUESTIONS.contains(&word)) {
                self.questions.push(found());
            }
        }
    }

    fn assert_plain(&self) {
        println!(
            "{} lines: {:.1} nameless actors among 1,000; {} pieces: {:.1} % open with a question",
            self.lines,
            1_000.0 * self.nameless.len() as f64 / self.lines as f64,
            self.pieces,
            100.0 * self.questions.len() as f64 / self.pieces as f64,
        );
        let (nameless, questions) = (&self.nameless, &self.questions);
        assert!(nameless.len() * 1_000 < MAX_NAMELESS * self.lines, "name the actor:\n{}", nameless.join("\n"));
        assert!(questions.len() * 100 < MAX_QUESTIONS * self.pieces, "say what is:\n{}", questions.join("\n"));
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
    assert!(prose.lines > 5_000 && prose.pieces > 3_000, "the sources were not found: {} files", files.len());
    prose.assert_plain();
}

#[test]
fn documents_name_the_actor_and_open_with_no_question() {
    let mut prose = Prose::default();
    for document in &documents() {
        prose.read_document(document);
    }
    assert!(prose.lines > 2_000 && prose.pieces > 800, "{} lines, {} pieces", prose.lines, prose.pieces);
    prose.assert_plain();
}

#[test]
fn the_measure_of_documents_sees_nameless_actors_and_questions() {
    let text = "# What it is\n\nNobody reads\nWhat follows.\n\n```sh\nHow\n```\n- **Why** not\n- so\n| When | Who |\n";
    let mut prose = Prose::default();
    prose.read_document(&Document { name: "x.md".to_owned(), text: text.to_owned() });
    assert_eq!(prose.nameless, ["x.md:3: Nobody reads"]);
    assert_eq!(prose.questions, ["x.md:1: # What it is", "x.md:9: - **Why** not"]);
    assert_eq!((prose.lines, prose.pieces), (6, 4));
}

#[test]
fn the_lines_of_the_documents_fit_120_columns() {
    let mut long = Vec::new();
    for document in documents() {
        for (number, line) in document.lines_of_prose() {
            let columns = line.chars().count();
            // A row of a table cannot be broken, and neither can a link.
            let breaks = line.trim_start_matches(['-', ' ']).contains(' ');
            if columns > MAX_COLUMNS && !line.starts_with('|') && breaks {
                long.push(format!("{}:{number}: {columns} columns", document.name));
            }
        }
    }
    assert!(long.is_empty(), "break these lines:\n{}", long.join("\n"));
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
