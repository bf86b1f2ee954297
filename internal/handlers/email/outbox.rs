//! Mails as files, for development and for programs that collect mails from a folder. A file names the recipients of
//! `bcc` in a header, which the program has to remove when it sends the mail.

use std::fs::{self, DirBuilder, DirEntry, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

use tickr_job::{AttemptToken, JobId};

/// Unfinished files that have not changed for this long are removed, because their runner was killed: no attempt takes
/// longer than a day.
const UNFINISHED: Duration = Duration::from_secs(86_400);
/// Shortest time between two searches for them.
const REST: Duration = Duration::from_secs(3_600);

/// A folder with `<job id>.eml` files.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    dir: PathBuf,
    /// The last search for unfinished files.
    searched: Arc<Mutex<Option<Instant>>>,
}

/// Error: a mail could not be written into the outbox.
#[derive(Debug, thiserror::Error)]
#[error("write the mail to {}: {source}", path.display())]
pub(super) struct OutboxError {
    path: PathBuf,
    source: io::Error,
}

impl Outbox {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, searched: Arc::default() }
    }

    /// Write the mail of a job, completely or not at all. A repetition replaces the file of an earlier attempt.
    pub(super) async fn put(&self, job: JobId, attempt: AttemptToken, bytes: Vec<u8>) -> Result<PathBuf, OutboxError> {
        let path = self.dir.join(format!("{job}.eml"));
        // The temporary file has the attempt in its name, so that a late attempt and its successor do not write the
        // same file.
        let aside = self.dir.join(format!(".{job}.{attempt}.part"));
        let (target, unsearched) = (path.clone(), self.is_search_due().then(|| self.dir.clone()));
        let work = move || {
            if let Some(dir) = unsearched {
                remove_unfinished(&dir);
            }
            write(&aside, &target, &bytes)
        };
        let written = spawn_blocking(work).await.unwrap_or_else(|error| Err(error.into()));
        match written {
            Ok(()) => Ok(path),
            Err(source) => Err(OutboxError { path, source }),
        }
    }

    /// Return whether the folder is to be searched for unfinished files, and remember that it is.
    fn is_search_due(&self) -> bool {
        let mut searched = self.searched.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = searched.is_none_or(|last| last.elapsed() >= REST);
        if is_due {
            *searched = Some(Instant::now());
        }
        is_due
    }
}

/// Remove files that killed runners left unfinished. A file that cannot be removed now may be removed by a later search.
fn remove_unfinished(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten().filter(is_left_behind) {
        let _ = fs::remove_file(entry.path());
    }
}

fn is_left_behind(entry: &DirEntry) -> bool {
    let is_old = |metadata: Metadata| {
        let age = metadata.modified().ok().and_then(|changed| changed.elapsed().ok());
        metadata.is_file() && age.is_some_and(|age| age >= UNFINISHED)
    };
    // Metadata of the entry itself: a link is not a file.
    entry.file_name().to_str().is_some_and(is_name_aside) && entry.metadata().is_ok_and(is_old)
}

/// Return whether this is the name of an unfinished file. Programs may have files of their own in the folder.
fn is_name_aside(name: &str) -> bool {
    let ids = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".part")).and_then(|ids| ids.split_once('.'));
    // The token of an attempt has the form of an id.
    ids.is_some_and(|ids| [ids.0, ids.1].iter().all(|id| id.parse::<JobId>().is_ok()))
}

fn write(aside: &Path, target: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = target.parent().unwrap_or(Path::new("."));
    // Only the owner may read the folder: the mails are private, and so are the names of the jobs that sent them.
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let finished = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(aside, target)
    })();
    if finished.is_err() {
        // Remove the useless rest. It may not exist, so an error is ignored.
        let _ = fs::remove_file(aside);
        return finished;
    }
    // The file's name is an entry of the folder, so the folder must be synced as well.
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_repetition_replaces_the_file_and_leaves_nothing_aside() {
        let dir = tempfile::tempdir().unwrap();
        let outbox = Outbox::new(dir.path().join("deep/outbox"));
        let job = JobId::new();
        let path = outbox.put(job, AttemptToken::new(), b"one".to_vec()).await.unwrap();
        assert_eq!(outbox.put(job, AttemptToken::new(), b"two".to_vec()).await.unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"two");
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [format!("{job}.eml").as_str()]);
    }

    #[tokio::test]
    async fn a_mail_removes_what_killed_runners_left_a_day_ago_and_no_file_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let (job, token) = (JobId::new(), AttemptToken::new());
        let (mine, young) = (format!(".{job}.{token}.part"), format!(".{}.{token}.part", JobId::new()));
        let finished = format!("{}.eml", JobId::new());
        let others = [".x.part".to_owned(), format!(".{job}.part"), format!("{job}.{token}.part"), finished, young];
        let leave = |name: &str, age: Duration| {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        };
        others[..4].iter().for_each(|name| leave(name, 2 * UNFINISHED));
        leave(&others[4], UNFINISHED / 2);
        let is_there = |name: &String| dir.path().join(name).exists();
        let outbox = Outbox::new(dir.path().to_owned());
        for is_searched in [true, false] {
            leave(&mine, 2 * UNFINISHED);
            outbox.put(JobId::new(), AttemptToken::new(), b"one".to_vec()).await.unwrap();
            assert_eq!(is_there(&mine), !is_searched, "a search follows another one an hour later");
            assert!(others.iter().all(is_there));
        }
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let outbox = Outbox::new(dir.path().join("file"));
        let error = outbox.put(JobId::new(), AttemptToken::new(), Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains(".eml"), "{error}");
    }
}
