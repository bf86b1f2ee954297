//! The machine's own stalls, by small writes of a test: a bound of tickr does not hold for a machine that stands still.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::NaiveDateTime;
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::Instant;

use super::{TestApp, connect, database};

/// Part of a time without a beat that does not count as a stall. Under load a small write takes tens of milliseconds.
const USUAL: Duration = Duration::from_millis(500);

/// Shortest stall that is an outage of its own: commands of a runner run into their limits of time, and it may do
/// without Redis for a while.
const OUTAGE: Duration = Duration::from_secs(1);

/// A small write ten times a second, to a table of the test's own. It is committed as an enqueue is, and never waits
/// for Redis or for a row of tickr: a disk or a processor that stalls holds up both.
pub(crate) struct Pulse {
    /// When each write was answered.
    beats: Arc<Mutex<Vec<Instant>>>,
    /// Nothing is known of the time before.
    began: Instant,
    writes: tokio::task::JoinHandle<()>,
}

impl Pulse {
    pub(crate) async fn start(tickr: &TestApp) -> Self {
        Self::at(tickr.config.mysql_url().unwrap().expose()).await
    }

    /// Start a pulse in the database of this URL, for a test without an app.
    pub(crate) async fn at(url: &str) -> Self {
        let table = "CREATE TABLE IF NOT EXISTS pulse (beats BIGINT NOT NULL); INSERT INTO pulse VALUES (0)";
        let mut own = connect(url).await;
        own.execute(sqlx::raw_sql(table)).await.unwrap();
        let (beats, began) = (Arc::<Mutex<Vec<Instant>>>::default(), Instant::now());
        let noted = Arc::clone(&beats);
        let writes = tokio::spawn(async move {
            while sqlx::query("UPDATE pulse SET beats = beats + 1").execute(&mut own).await.is_ok() {
                noted.lock().unwrap().push(Instant::now());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { beats, began, writes }
    }

    /// Start a pulse in a database of its own on the servers that tests share, for a test that counts the statements of
    /// its own database or freezes its own server. Return the name and the URL of that database, too.
    pub(crate) async fn apart() -> (Self, String, String) {
        let (name, url) = database().await;
        (Self::at(&url).await, name, url)
    }

    /// Check that the machine was watched until now.
    pub(crate) fn assert_watching(&self) {
        assert!(!self.writes.is_finished(), "the machine was not watched until the end");
    }

    /// Return the longest time without a beat between two moments.
    pub(crate) fn longest_pause(&self, from: Instant, to: Instant) -> Duration {
        self.pauses(from, to).into_iter().map(|(_, pause)| pause).max().unwrap_or_default()
    }

    /// Check that less time than `bound` has passed since a moment, apart from the time for which the machine stood
    /// still.
    pub(crate) fn assert_within(&self, bound: Duration, since: Instant, what: &str) {
        let took = self.time_since(since);
        println!("{what}: {took:?} beside stalls of the machine");
        assert!(took < bound, "{what}: {took:?} beside stalls of the machine");
    }

    /// Return the time since a moment, apart from the time for which the machine stood still.
    pub(crate) fn time_since(&self, since: Instant) -> Duration {
        self.assert_watching();
        self.time_between(since, Instant::now())
    }

    /// Return the time between two moments, apart from the time for which the machine stood still.
    pub(crate) fn time_between(&self, from: Instant, to: Instant) -> Duration {
        let stalled: Duration = self.pauses(from, to).into_iter().map(|(_, pause)| pause.saturating_sub(USUAL)).sum();
        (to - from).saturating_sub(stalled)
    }

    /// Return the time between two moments, apart from the time for which the machine stood still. It begins anew at
    /// the end of a stall that was an outage.
    pub(crate) fn time_after_outages(&self, from: Instant, to: Instant) -> Duration {
        let outage = self.pauses(from, to).into_iter().rfind(|(_, pause)| *pause > OUTAGE);
        self.time_between(outage.map_or(from, |(end, _)| end), to)
    }

    /// Check that less time than `bound` has passed since a moment, apart from the time for which the machine stood
    /// still. A stall that was an outage is one more fault, so the time begins anew at its end.
    pub(crate) fn assert_recovered(&self, bound: Duration, since: Instant, what: &str) {
        self.assert_watching();
        let took = self.time_after_outages(since, Instant::now());
        println!("{what}: {took:?} beside stalls of the machine");
        assert!(took < bound, "{what}: {took:?} beside stalls of the machine");
    }

    /// Return for how long nothing at all was written between two moments, apart from usual pauses of up to a fifth of
    /// a second.
    pub(crate) fn stood_still(&self, from: Instant, to: Instant) -> Duration {
        let pauses = self.pauses(from, to).into_iter().map(|(_, pause)| pause);
        pauses.filter(|pause| *pause > Duration::from_millis(200)).sum()
    }

    /// Return by how much the latest of these attempts, `which` of the table `attempts`, started after it was due. The
    /// time for which the machine stood still does not count, and after a stall that was an outage it begins anew.
    pub(crate) async fn latest_start(&self, tickr: &TestApp, which: &str) -> Duration {
        self.assert_watching();
        let mut mysql = tickr.mysql().await;
        // When the clock of MySQL said what, by that of the test. The quickest answer is the most exact one.
        let mut answers = Vec::new();
        for _ in 0..10 {
            let asked = Instant::now();
            let time = sqlx::query_scalar::<_, NaiveDateTime>("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut mysql).await;
            answers.push((asked.elapsed(), asked, time.unwrap()));
        }
        let (took, asked, time) = answers.into_iter().min().unwrap();
        let moment = |of: NaiveDateTime| asked + took / 2 - (time - of).to_std().unwrap_or_default();
        let starts = format!("SELECT execute_at, started_at FROM attempts WHERE {which}");
        let starts: Vec<(NaiveDateTime, NaiveDateTime)> =
            sqlx::query_as(AssertSqlSafe(starts)).fetch_all(&mut mysql).await.unwrap();
        let latest = starts.iter().map(|(due, started)| (*started - *due).num_milliseconds()).max().unwrap();
        let late = starts.iter().map(|(due, started)| self.time_after_outages(moment(*due), moment(*started)));
        let late = late.max().unwrap();
        println!("{} attempts, late by {latest} ms at worst, by {late:?} beside stalls of the machine", starts.len());
        late
    }

    /// Return whether the machine stood still since a moment for so long that it was an outage.
    pub(crate) fn saw_outage(&self, since: Instant) -> bool {
        self.assert_watching();
        self.longest_pause(since, Instant::now()) > OUTAGE
    }

    /// Return for how long the machine stood still since a moment.
    pub(crate) fn stalled_since(&self, since: Instant) -> Duration {
        self.assert_watching();
        let now = Instant::now();
        (now - since).saturating_sub(self.time_between(since, now))
    }

    /// Return what a stall of the machine since a moment may add to the time until the attempts of a dead runner are
    /// found, in milliseconds: itself, and another lease, for which no runner is judged then.
    pub(crate) fn leeway_ms(&self, since: Instant, lease_s: i64) -> i64 {
        let stalled_ms = i64::try_from(self.stalled_since(since).as_millis()).unwrap();
        if stalled_ms == 0 { 0 } else { stalled_ms + 1_000 + lease_s * 1_000 }
    }

    /// Check that the latest of these attempts started within a second of its due time, apart from the longest stall of
    /// the machine since a moment.
    pub(crate) fn assert_prompt(&self, late_ms: i64, since: Instant) {
        self.assert_watching();
        let late = Duration::from_millis(u64::try_from(late_ms).unwrap());
        let pause = self.longest_pause(since, Instant::now());
        assert!(late.saturating_sub(pause) < Duration::from_secs(1), "{late:?} late, beside a stall of {pause:?}");
    }

    /// Return the times without a beat between two moments, each with its end.
    fn pauses(&self, from: Instant, to: Instant) -> Vec<(Instant, Duration)> {
        let (from, beats) = (from.max(self.began), self.beats.lock().unwrap());
        let (mut last, mut pauses) = (from, Vec::new());
        for beat in beats.iter().copied().filter(|beat| (from..to).contains(beat)).chain([to]) {
            pauses.push((beat, beat.saturating_duration_since(last)));
            last = beat;
        }
        pauses
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.writes.abort();
    }
}
