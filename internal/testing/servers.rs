//! The servers of the tests of one process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::services::{Options, Services, ServicesError};

/// The private servers, once they are started. Their guards stop them when the process ends.
static SERVERS: Mutex<Option<Services>> = Mutex::new(None);

/// A database, a Redis and a folder that no other test has.
#[derive(Debug)]
pub(super) struct TestSpace {
    pub(super) mysql: String,
    pub(super) redis: String,
    pub(super) prefix: String,
    pub(super) folder: PathBuf,
}

/// Return a place on the servers of this process. The first call starts them, which takes up to a few seconds. The
/// variables `TICKR_TEST_MYSQL_URL` (without a database) and `TICKR_TEST_REDIS_URL` name others.
pub(super) fn place() -> Result<TestSpace, ServicesError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let name = format!("t{}_{}", NEXT.fetch_add(1, Ordering::Relaxed), &nonce[..8]);
    let root = root();
    let folder = root.join(&name);
    let given = |variable: &str| std::env::var(variable).ok().filter(|url| !url.is_empty());
    let (mysql, redis) = match (given("TICKR_TEST_MYSQL_URL"), given("TICKR_TEST_REDIS_URL")) {
        (Some(mysql), Some(redis)) => {
            let (base, query) =
                mysql.split_once('?').map_or((mysql.as_str(), None), |(base, query)| (base, Some(query)));
            let url = format!("{}/{name}", base.trim_end_matches('/'));
            (query.map_or_else(|| url.clone(), |query| format!("{url}?{query}")), redis)
        }
        _ => {
            let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
            let servers = match &mut *servers {
                Some(servers) => servers,
                none => none.insert(Services::start(&Options::ephemeral_under(&root))?),
            };
            (servers.mysql_url(&name), servers.redis_url())
        }
    };
    Ok(TestSpace { mysql, redis, prefix: name, folder })
}

/// A folder beside the program of the test, which is inside `target` and belongs to the user who built it.
fn root() -> PathBuf {
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(std::path::Path::parent).map(|folder| folder.join("tickr-tests"));
    beside.unwrap_or_else(|| PathBuf::from("target/tickr-tests"))
}
