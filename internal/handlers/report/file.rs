//! Report files: written aside under a hidden name, made durable, then renamed. Whoever lists or downloads the folder
//! only ever sees whole reports.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Format;
use crate::job::{AttemptToken, JobId};

/// A file in the making. Dropped before [`PartFile::publish`], it is removed.
#[derive(Debug)]
pub(super) struct PartFile {
    file: File,
    dir: PathBuf,
    part: String,
    name: String,
    bytes: u64,
}

/// The name of a job's report: the same for every attempt, so that a repetition replaces instead of piling up.
pub(super) fn name(stem: &str, job: JobId, format: Format) -> String {
    format!("{stem}-{job}.{}", format.extension())
}

impl PartFile {
    /// Begin `name` in `dir`, which is made if it is missing.
    ///
    /// The hidden name carries the attempt's token: an attempt that lost its lease and does not know it yet must not
    /// write into, or publish, the half-written file of its successor.
    pub(super) fn create(dir: &Path, name: &str, token: AttemptToken) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
        let part = format!(".{name}.{}.part", token.uuid().simple());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(dir.join(&part))?;
        Ok(Self { file, dir: dir.to_owned(), part, name: name.to_owned(), bytes: 0 })
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The folder, for the scratch files of a writer.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Wait until the content is on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Give the synced file its name, replacing what an earlier attempt of the job left there.
    pub(super) fn publish(mut self) -> io::Result<()> {
        fs::rename(self.dir.join(&self.part), self.dir.join(&self.name))?;
        self.part.clear();
        // The rename is durable only when the folder is.
        File::open(&self.dir)?.sync_all()
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.part.is_empty() {
            // What cannot be removed now, sweep removes later.
            let _ = fs::remove_file(self.dir.join(&self.part));
        }
    }
}

/// A finished report, opened.
#[derive(Debug)]
pub struct ReportFile {
    /// The content.
    pub file: File,
    /// Its plain name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// When it was finished.
    pub modified: SystemTime,
    /// The media type that belongs to its extension.
    pub content_type: &'static str,
}

/// Open the report called `name` in `dir`, for a download or an attachment. Blocks for as long as the disk does.
///
/// Every name that is not one of ours is simply not found: one with separators, hidden, without a report's extension,
/// or leading out of the folder by a symbolic link.
///
/// # Errors
/// [`io::ErrorKind::NotFound`], or what the disk says.
pub fn open(dir: &Path, name: &str) -> io::Result<ReportFile> {
    let not_found = || io::Error::new(io::ErrorKind::NotFound, "no such report");
    let format = name.rsplit_once('.').and_then(|(_, extension)| Format::of_extension(extension));
    let format = format.filter(|_| is_plain(name)).ok_or_else(not_found)?;

    let path = dir.join(name);
    // Without following a link; then make sure that what was opened is what was looked at.
    let seen = fs::symlink_metadata(&path)?;
    if !seen.is_file() {
        return Err(not_found());
    }
    let file = File::open(&path)?;
    let opened = file.metadata()?;
    if (seen.dev(), seen.ino()) != (opened.dev(), opened.ino()) {
        return Err(not_found());
    }
    Ok(ReportFile {
        file,
        name: name.to_owned(),
        size_bytes: opened.len(),
        modified: opened.modified()?,
        content_type: format.content_type(),
    })
}

/// May this stand in a file name, first to last? Letters, digits, `_ . -`, beginning with a letter or digit.
pub(super) fn is_plain(name: &str) -> bool {
    let legal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    let bytes = name.as_bytes();
    bytes.len() <= 200 && bytes.first().is_some_and(u8::is_ascii_alphanumeric) && bytes.iter().all(legal)
}

/// Remove reports that have not changed for `keep`, and hidden parts that have not for `keep_parts`, which a runner
/// that was killed left behind. Gives the number removed, at most `limit`; other files are left alone.
///
/// # Errors
/// When the folder cannot be read. A file that cannot be removed is skipped.
pub fn sweep(dir: &Path, keep: Duration, keep_parts: Duration, limit: usize) -> io::Result<usize> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let removable = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let keep = match name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".part")) {
            Some(_) => keep_parts,
            None if is_plain(name) && Format::of_extension(name.rsplit_once('.')?.1).is_some() => keep,
            None => return None,
        };
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        let age = metadata.modified().ok()?.elapsed().ok()?;
        (age >= keep).then(|| entry.path())
    };
    let paths = entries.filter_map(Result::ok).filter_map(|entry| removable(&entry));
    Ok(paths.filter(|path| fs::remove_file(path).is_ok()).take(limit).count())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn part(dir: &Path) -> PartFile {
        let mut part = PartFile::create(dir, "jobs-1.csv", AttemptToken::new()).unwrap();
        part.write_all(b"a,b\r\n").unwrap();
        part
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_report_appears_whole_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("reports");
        let unfinished = part(&dir);
        assert!(names(&dir).iter().all(|name| name.starts_with('.') && name.ends_with(".part")));
        drop(unfinished);
        assert!(names(&dir).is_empty());

        let finished = part(&dir);
        assert_eq!(finished.bytes(), 5);
        finished.sync().unwrap();
        finished.publish().unwrap();
        assert_eq!(names(&dir), ["jobs-1.csv"]);
        let mode = fs::metadata(dir.join("jobs-1.csv")).unwrap().permissions().mode();
        assert_eq!(mode & 0o137, 0, "{mode:o}");
        part(&dir).publish().unwrap();
        assert_eq!(names(&dir), ["jobs-1.csv"], "a repetition replaces");
    }

    #[test]
    fn only_reports_can_be_opened() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("reports");
        part(&dir).publish().unwrap();
        fs::write(root.path().join("secret.csv"), "s").unwrap();
        fs::write(dir.join(".hidden.csv"), "s").unwrap();
        fs::write(dir.join("notes.txt"), "s").unwrap();
        fs::create_dir(dir.join("folder.csv")).unwrap();
        symlink(root.path().join("secret.csv"), dir.join("link.csv")).unwrap();

        let report = open(&dir, "jobs-1.csv").unwrap();
        assert_eq!((report.size_bytes, report.content_type), (5, "text/csv; charset=utf-8"));
        for name in [
            "",
            ".",
            "..",
            "../secret.csv",
            "..%2fsecret.csv",
            "/etc/passwd",
            "a/../jobs-1.csv",
            ".hidden.csv",
            "notes.txt",
            "folder.csv",
            "link.csv",
            "jobs-1.csv\0",
            "jobs-1.CSV",
            "csv",
            "gone.csv",
        ] {
            let error = open(&dir, name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{name:?}");
        }
    }

    #[test]
    fn the_sweep_removes_what_is_old_and_ours() {
        let root = tempfile::tempdir().unwrap();
        part(root.path()).publish().unwrap();
        fs::write(root.path().join(".jobs-2.csv.0.part"), "p").unwrap();
        fs::write(root.path().join("notes.txt"), "n").unwrap();
        let hour = Duration::from_secs(3_600);
        assert_eq!(sweep(root.path(), hour, hour, 10).unwrap(), 0);
        assert_eq!(sweep(root.path(), hour, Duration::ZERO, 10).unwrap(), 1);
        assert_eq!(sweep(root.path(), Duration::ZERO, hour, 0).unwrap(), 0);
        assert_eq!(sweep(root.path(), Duration::ZERO, hour, 10).unwrap(), 1);
        assert_eq!(names(root.path()), ["notes.txt"]);
        assert_eq!(sweep(&root.path().join("none"), hour, hour, 10).unwrap(), 0);
    }
}
