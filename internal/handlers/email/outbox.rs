//! Mails as files, for development and for programs that collect mails from a folder. A file names the recipients of
//! `bcc` in a header, which the program has to remove when it sends the mail.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use tickr_job::{AttemptToken, JobId};

/// A folder with `<job id>.eml` files.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    dir: PathBuf,
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
        Self { dir }
    }

    /// Write the mail of a job, completely or not at all. A repetition replaces the file of an earlier attempt.
    pub(super) async fn put(&self, job: JobId, attempt: AttemptToken, bytes: Vec<u8>) -> Result<PathBuf, OutboxError> {
        let path = self.dir.join(format!("{job}.eml"));
        // The temporary file has the attempt in its name, so that a late attempt and its successor do not write the
        // same file.
        let aside = self.dir.join(format!(".{job}.{attempt}.part"));
        let target = path.clone();
        let written = spawn_blocking(move || write(&aside, &target, &bytes)).await.unwrap_or_else(|e| Err(e.into()));
        match written {
            Ok(()) => Ok(path),
            Err(source) => Err(OutboxError { path, source }),
        }
    }
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
    async fn a_folder_that_cannot_be_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let outbox = Outbox::new(dir.path().join("file"));
        let error = outbox.put(JobId::new(), AttemptToken::new(), Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains(".eml"), "{error}");
    }
}
