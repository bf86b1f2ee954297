//! Report files. A file is written under a hidden name, synced, and then renamed, so that listings and downloads only
//! see complete reports.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Format;
use tickr_job::{AttemptToken, JobId};

/// A file that is being written. It is removed if it is dropped before [`PartFile::publish`].
#[derive(Debug)]
pub(super) struct PartFile {
    file: File,
    dir: PathBuf,
    part: String,
    name: String,
    bytes: u64,
}

/// Name of a job's report. It is the same for every attempt, so that a repetition replaces the file instead of adding
/// one.
pub(super) fn name(stem: &str, job: JobId, format: Format) -> String {
    format!("{stem}-{job}.{}", format.extension())
}

/// The parts of a report's name. A file with any other name is not a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportName {
    /// The job that made the report.
    pub(super) job: JobId,
    pub(super) format: Format,
}

impl ReportName {
    /// Parse a name that [`name`] made.
    pub(super) fn parse(name: &str) -> Option<Self> {
        /// Length of a job's id with hyphens.
        const ID: usize = 36;
        let (rest, extension) = name.rsplit_once('.').filter(|_| is_plain(name))?;
        let format = Format::from_extension(extension)?;
        // A plain name is ASCII, so it can be split at any byte.
        let (stem, id) = rest.split_at(rest.len().checked_sub(ID)?);
        let job: JobId = id.parse().ok().filter(|job: &JobId| job.to_string() == id)?;
        stem.strip_suffix('-').filter(|stem| !stem.is_empty())?;
        Some(Self { job, format })
    }
}

impl PartFile {
    /// Create a file for the report `name` in `dir`. Create the folder if it is missing.
    ///
    /// The hidden name contains the token of the attempt. An attempt that lost its lease without knowing it must not
    /// write into the unfinished file of its successor, and must not publish that file.
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

    /// The folder, for temporary files of a writer.
    #[cfg(feature = "xlsx")]
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Name of the file after it is published.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Open the file for reading from its beginning.
    pub(super) fn read(&self) -> io::Result<File> {
        File::open(self.dir.join(&self.part))
    }

    /// Wait until the content is on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Give the synced file its name. This replaces the file of an earlier attempt of the job.
    pub(super) fn publish(mut self) -> io::Result<()> {
        fs::rename(self.dir.join(&self.part), self.dir.join(&self.name))?;
        self.part.clear();
        // The rename is durable only after the folder is synced.
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
            // A file that cannot be removed now is removed later by `sweep`.
            let _ = fs::remove_file(self.dir.join(&self.part));
        }
    }
}

/// An open finished report.
#[derive(Debug)]
pub struct ReportFile {
    /// The content.
    pub file: File,
    /// Name of the file, without a path.
    pub name: String,
    /// Size of the file.
    pub size_bytes: u64,
    /// Time when the file was finished.
    pub modified: SystemTime,
    /// Media type, by the extension of the file.
    pub content_type: &'static str,
}

/// Open the report `name` in `dir`, for a download or an attachment. The call blocks on the disk.
///
/// Only reports are found. These are not: names with separators, hidden names, names without a job's id or a report's
/// extension, folders and symbolic links.
///
/// # Errors
/// [`io::ErrorKind::NotFound`], or an error of the disk.
pub(super) fn open(dir: &Path, name: &str) -> io::Result<ReportFile> {
    let not_found = || io::Error::new(io::ErrorKind::NotFound, "no such report");
    let ReportName { format, .. } = ReportName::parse(name).ok_or_else(not_found)?;

    let path = dir.join(name);
    // `symlink_metadata` follows no link. The comparison below makes sure that the opened file is the one that was
    // examined.
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

/// True for a text of letters, digits and `_ . -` that starts with a letter or digit and has at most 200 bytes.
pub(super) fn is_plain(name: &str) -> bool {
    let legal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    let bytes = name.as_bytes();
    bytes.len() <= 200 && bytes.first().is_some_and(u8::is_ascii_alphanumeric) && bytes.iter().all(legal)
}

/// Remove reports that have not changed for `keep`, and hidden files that have not changed for `keep_parts`, which
/// killed runners left behind. Return the number of removed files, at most `limit`. Other files are left alone.
///
/// # Errors
/// When the folder cannot be read. A file that cannot be removed is skipped.
pub(super) fn sweep(dir: &Path, keep: Duration, keep_parts: Duration, limit: usize) -> io::Result<usize> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let removable = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let keep = match name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".part")) {
            Some(part) => part.rsplit_once('.').and_then(|(name, _)| ReportName::parse(name)).map(|_| keep_parts)?,
            None => ReportName::parse(name).map(|_| keep)?,
        };
        // Metadata of the entry itself: a link is not a file.
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

    const NAME: &str = "jobs-0190b0a3-0000-7000-8000-000000000001.csv";

    fn part(dir: &Path) -> PartFile {
        let mut part = PartFile::create(dir, NAME, AttemptToken::new()).unwrap();
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
        assert_eq!(names(&dir), [NAME]);
        let mode = fs::metadata(dir.join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o137, 0, "{mode:o}");
        part(&dir).publish().unwrap();
        assert_eq!(names(&dir), [NAME], "a repetition replaces");
    }

    #[test]
    fn only_reports_can_be_opened() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("reports");
        part(&dir).publish().unwrap();
        let [secret, folder, link] = ["secret", "folder", "link"].map(|stem| NAME.replace("jobs", stem));
        fs::write(root.path().join(&secret), "s").unwrap();
        fs::write(dir.join(format!(".{NAME}")), "s").unwrap();
        fs::write(dir.join("notes.txt"), "s").unwrap();
        fs::write(dir.join("notes.csv"), "s").unwrap();
        fs::create_dir(dir.join(&folder)).unwrap();
        symlink(root.path().join(&secret), dir.join(&link)).unwrap();

        let report = open(&dir, NAME).unwrap();
        assert_eq!((report.size_bytes, report.content_type), (5, "text/csv; charset=utf-8"));
        for name in [
            "",
            ".",
            "..",
            &format!("../{secret}"),
            &format!("..%2f{secret}"),
            "/etc/passwd",
            &format!("a/../{NAME}"),
            &format!(".{NAME}"),
            "notes.txt",
            "notes.csv",
            &folder,
            &link,
            &format!("{NAME}\0"),
            &NAME.replace("csv", "CSV"),
            &NAME.replace("0190b0a3", "0190B0A3"),
            "csv",
            &NAME.replace("jobs", "gone"),
        ] {
            let error = open(&dir, name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{name:?}");
        }
    }

    #[test]
    fn the_name_of_a_report_names_its_job() {
        let job = JobId::new();
        for stem in ["a", "a-b", "x.y_z-1"] {
            for format in Format::ALL {
                assert_eq!(ReportName::parse(&name(stem, job, format)), Some(ReportName { job, format }));
            }
        }
        let id = job.to_string();
        for other in [
            format!("{id}.csv"),
            format!("-{id}.csv"),
            format!("a{id}.csv"),
            format!("a-{}.csv", id.to_uppercase()),
            format!("a-{}.csv", job.uuid().simple()),
            format!("a-{id}.txt"),
            format!("a-{id}"),
            format!("é-{id}.csv"),
            "a.csv".to_owned(),
        ] {
            assert_eq!(ReportName::parse(&other), None, "{other}");
        }
    }

    #[test]
    fn the_sweep_removes_what_is_old_and_ours() {
        let root = tempfile::tempdir().unwrap();
        part(root.path()).publish().unwrap();
        fs::write(root.path().join(format!(".{NAME}.0.part")), "p").unwrap();
        let foreign = [".vimrc.part", "2026-01.csv", "jobs-1.csv", "notes.txt"];
        for name in foreign {
            fs::write(root.path().join(name), "n").unwrap();
        }
        let hour = Duration::from_secs(3_600);
        assert_eq!(sweep(root.path(), hour, hour, 10).unwrap(), 0);
        assert_eq!(sweep(root.path(), hour, Duration::ZERO, 10).unwrap(), 1);
        assert_eq!(sweep(root.path(), Duration::ZERO, hour, 0).unwrap(), 0);
        assert_eq!(sweep(root.path(), Duration::ZERO, hour, 10).unwrap(), 1);
        assert_eq!(names(root.path()), foreign);
        assert_eq!(sweep(&root.path().join("none"), hour, hour, 10).unwrap(), 0);
    }
}
