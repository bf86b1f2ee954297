//! A whole runner inside a test.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::servers::place;
use crate::app::App;
use crate::client::{Client, JobStatus};
use crate::config::Config;
use crate::handlers::{Kind, Registry};
use crate::job::{Actor, Filter, JobId};
use crate::store::{ActionOutcome, Store};

/// Longest wait of [`TestRunner::wait`]. It is generous, because the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time between two reads while a test waits.
const STEP: Duration = Duration::from_millis(10);
/// Most jobs of a kind that are read.
const MAX_READ: u32 = 1_000;

/// Why a test cannot go on.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A runner in this process, with a database, a Redis prefix, a folder and a port of its own. Call [`stop`](Self::stop)
/// at the end of the test.
#[derive(Debug)]
pub struct TestRunner {
    app: App,
    config: Config,
    folder: PathBuf,
}

/// Start a runner with these kinds and the built-in ones.
///
/// # Errors
/// When the server programs are not installed, or the runner cannot start.
pub async fn start(kinds: Registry) -> Result<TestRunner, Error> {
    start_with(kinds, |_| {}).await
}

/// Start a runner with a changed configuration.
///
/// # Errors
/// As [`start`].
pub async fn start_with(kinds: Registry, change: impl FnOnce(&mut Config)) -> Result<TestRunner, Error> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let place = tokio::task::spawn_blocking(place).await??;
    Store::create_database(&place.mysql).await?;
    let mut config = Config::for_tests(&place.mysql, &place.redis);
    config.test_kinds = false;
    config.redis_prefix = place.prefix;
    config.outbox_dir = Some(place.folder.join("outbox"));
    config.reports_dir = place.folder.join("reports");
    change(&mut config);
    Ok(TestRunner { app: Box::pin(App::start(&config, kinds)).await?, config, folder: place.folder })
}

impl TestRunner {
    /// Return a client of this runner.
    #[must_use]
    pub fn client(&self) -> Client {
        self.app.client()
    }

    /// Return the running parts.
    #[must_use]
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Return the configuration of the runner, with the URLs of its servers.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Return the base URL of the API.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.app.addr())
    }

    /// Wait until the job has ended, and return it. A job that waits for a later time or for its next attempt is waited
    /// for as well: [`make_due`](Self::make_due) spares the test that time.
    ///
    /// # Errors
    /// When there is no such job, MySQL cannot be read, or the job has not ended after a minute.
    pub async fn wait(&self, id: JobId) -> Result<JobStatus, Error> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let job = self.client().status(id).await?.ok_or_else(|| format!("there is no job {id}"))?;
            if job.state.is_end() {
                return Ok(job);
            }
            if Instant::now() >= deadline {
                return Err(format!("job {id} has not ended within {DEADLINE:?}: {job:?}").into());
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// Make a waiting or retrying job due now, however far away its time is.
    ///
    /// # Errors
    /// When the job is in another state, when it waits for its turn (for its parents, for a job in front of it with its
    /// order key, or at a limit), or when MySQL cannot be reached.
    pub async fn make_due(&self, id: JobId) -> Result<(), Error> {
        match self.app.broker().run_now(id, &Actor::tickr()).await? {
            outcome if outcome.is_done() => Ok(()),
            ActionOutcome::Missing => Err(format!("there is no job {id}").into()),
            ActionOutcome::Refused(state) => Err(format!("job {id} is {state}, so its time cannot be changed").into()),
            ActionOutcome::Held(_) => {
                let turn = "for its parents, for a job in front of it with its order key, or at a limit";
                Err(format!("job {id} waits {turn}, so it cannot be made due").into())
            }
            outcome => Err(format!("the time of job {id} cannot be changed: {outcome:?}").into()),
        }
    }

    /// Read all jobs of a kind with their payloads, oldest first, in whatever state they are. At most the newest 1,000.
    ///
    /// # Errors
    /// When MySQL cannot be read, or a payload is not of this type.
    pub async fn jobs<K: Kind>(&self) -> Result<Vec<(JobId, K)>, Error> {
        let store = self.app.broker().store();
        let kind = K::NAME.parse()?;
        let filter = Filter { kind: Some(kind), ..Filter::default() };
        let mut jobs = Vec::new();
        for job in store.list(filter, None, MAX_READ).await?.jobs.into_iter().rev() {
            let read = store.job(job.id).await?;
            let payload = read.and_then(|(job, _)| job.payload);
            if let Some(payload) = payload {
                jobs.push((job.id, serde_json::from_str(payload.get())?));
            }
        }
        Ok(jobs)
    }

    /// Stop the runner and remove its files. The database goes with the private servers, when the process ends.
    pub async fn stop(self) {
        self.app.stop(CancellationToken::new()).await;
        let _ = tokio::fs::remove_dir_all(self.folder).await;
    }
}

/// Check that a job of the kind with such a payload was enqueued, in whatever state it is now. Return its id. The
/// newest 1,000 jobs of the kind are looked at.
///
/// # Panics
/// When there is none among these, with their payloads, or when MySQL cannot be read.
pub async fn assert_enqueued<K: Kind>(runner: &TestRunner, wanted: impl Fn(&K) -> bool) -> JobId {
    let jobs = runner.jobs::<K>().await.unwrap_or_else(|error| panic!("the {} jobs cannot be read: {error}", K::NAME));
    if let Some((id, _)) = jobs.iter().find(|(_, payload)| wanted(payload)) {
        return *id;
    }
    let payloads: Vec<String> = jobs.iter().filter_map(|(_, payload)| serde_json::to_string(payload).ok()).collect();
    let (kind, count) = (K::NAME, payloads.len());
    let which = if count < MAX_READ as usize { "there are" } else { "older ones were not read; the newest" };
    panic!("no {kind} job has such a payload; {which} {count}: [{}]", payloads.join(", "));
}
