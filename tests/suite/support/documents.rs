//! The documents of the repository, cut into blocks, commands, quoted spans and links.

use std::fs;
use std::path::{Path, PathBuf};

/// The documents outside `docs/`.
const OTHERS: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benches/peers/README.md",
    "migrations/README.md",
    "tests/MUTATIONS.md",
];

/// One Markdown file.
pub(crate) struct Document {
    /// The path below the root of the repository.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// One fenced block of a document.
pub(crate) struct Block {
    /// The document and the line of the opening fence, for messages.
    pub(crate) place: String,
    /// The first word behind the fence, such as `toml`.
    pub(crate) language: String,
    pub(crate) text: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Return every document.
pub(crate) fn documents() -> Vec<Document> {
    let mut paths: Vec<PathBuf> = OTHERS.iter().map(|name| root().join(name)).collect();
    pages(&root().join("docs"), &mut paths);
    let documents: Vec<Document> = paths
        .into_iter()
        .map(|path| Document {
            text: fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
            name: path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(),
        })
        .collect();
    assert!(documents.len() > 20, "only {} documents were read", documents.len());
    documents
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "md") {
            found.push(path);
        }
    }
}

/// Return the document of this name.
pub(crate) fn document(name: &str) -> Document {
    documents().into_iter().find(|document| document.name == name).unwrap_or_else(|| panic!("no document {name}"))
}

impl Document {
    /// Return the fenced blocks in order.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut open) = (Vec::new(), None::<(usize, Block)>);
        for (at, line) in self.text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            match (line.trim_start().strip_prefix("```"), open.take()) {
                (Some(language), None) => {
                    let language = language.split([',', ' ']).next().unwrap_or_default().to_owned();
                    let place = format!("{}:{}", self.name, at + 1);
                    open = Some((indent, Block { place, language, text: String::new() }));
                }
                (Some(_), Some((_, block))) => blocks.push(block),
                (None, Some((indent, mut block))) => {
                    block.text.push_str(line.get(indent..).unwrap_or_default());
                    block.text.push('\n');
                    open = Some((indent, block));
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{} ends within a block", self.name);
        blocks
    }

    /// Return the blocks of one language.
    pub(crate) fn blocks_of(&self, language: &str) -> Vec<Block> {
        self.blocks().into_iter().filter(|block| block.language == language).collect()
    }

    /// Return the one block of a language.
    pub(crate) fn block(&self, language: &str) -> String {
        let mut blocks = self.blocks_of(language);
        assert_eq!(blocks.len(), 1, "{} {language}", self.name);
        blocks.remove(0).text
    }

    /// Return the lines outside fenced blocks, with their numbers.
    pub(crate) fn lines_of_prose(&self) -> Vec<(usize, &str)> {
        let (mut lines, mut inside) = (Vec::new(), false);
        for (at, line) in self.text.lines().enumerate() {
            let fence = line.trim_start().starts_with("```");
            if !inside && !fence {
                lines.push((at + 1, line));
            }
            inside ^= fence;
        }
        lines
    }

    /// Return the text without its fenced blocks.
    pub(crate) fn prose(&self) -> String {
        self.lines_of_prose().into_iter().flat_map(|(_, line)| [line, "\n"]).collect()
    }

    /// Return what is between back quotes in the prose.
    pub(crate) fn quoted(&self) -> Vec<String> {
        self.prose().split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// Return the targets of the links in the prose.
    pub(crate) fn links(&self) -> Vec<String> {
        let prose = self.prose();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        targets.map(|(target, _)| target.to_owned()).collect()
    }

    /// Return the anchors of the headings, as GitHub makes them.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let prose = self.prose();
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        headings
            .map(|line| {
                let words = line.trim_start_matches('#').trim().to_lowercase();
                words
                    .chars()
                    .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
                    .collect::<String>()
                    .replace(' ', "-")
            })
            .collect()
    }
}

impl Block {
    /// Return the commands of a shell block, each as its words. A command continues after a backslash at the end of a
    /// line, and within quotes. Comments are left out, and `;` separates commands.
    pub(crate) fn commands(&self) -> Vec<Vec<String>> {
        commands(&self.text).unwrap_or_else(|wrong| panic!("{}: {wrong}", self.place))
    }
}

fn commands(script: &str) -> Result<Vec<Vec<String>>, &'static str> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut chars = script.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => {
                let text = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some(end) if end == c => break,
                        // A shell would send the name of the variable in place of its value.
                        Some('$') if c == '\'' => return Err("a variable is within single quotes"),
                        Some(inner) => text.push(inner),
                        None => return Err("a quote is not closed"),
                    }
                }
            }
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(plain) => word.get_or_insert_default().push(plain),
            },
            '#' if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            '\n' | ';' => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    Ok(commands)
}

#[test]
fn the_reader_of_documents_reads_blocks_links_and_commands() {
    let text = "# One, two\n[a](b.md#c) `d::e`\n```sh\nx 'y z' \\\n  w # no\n```\n   ```toml\n   a = 1\n   ```\n";
    let document = Document { name: "a.md".into(), text: text.into() };
    let blocks = document.blocks();
    assert_eq!(
        blocks.iter().map(|b| (&*b.language, &*b.text)).collect::<Vec<_>>(),
        [("sh", "x 'y z' \\\n  w # no\n"), ("toml", "a = 1\n"),]
    );
    assert_eq!(blocks[0].commands(), [["x", "y z", "w"]]);
    assert_eq!(document.links(), ["b.md#c"]);
    assert_eq!(document.quoted(), ["d::e"]);
    assert_eq!(document.anchors(), ["one-two"]);
    assert_eq!(commands("a; b 'c\nd'$X\"e\"\n").unwrap(), [vec!["a"], vec!["b", "c\nd$Xe"]]);
    assert!(commands("a 'b").is_err());
    assert!(commands("a '$X'").is_err() && commands("a \"$X\" '{'$X'}'").is_ok());
}
