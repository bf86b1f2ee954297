//! Redis without the index's scripts, for `tickr bench`: it writes the entries of a rebuild with plain pipelined
//! commands, and reads the server's counters. It has a connection of its own.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, AsyncTypedCommands, RedisResult};

use super::keys::Keys;
use super::{Entry, Index, IndexError};

/// Commands in one pipeline.
const PIPELINE: usize = 1_000;

/// A connection for plain commands.
pub struct BareIndex {
    conn: MultiplexedConnection,
    keys: Keys,
}

impl std::fmt::Debug for BareIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BareIndex")
    }
}

impl Index {
    /// Open a connection for plain commands under the keys of this index, or of its first partition.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis does not answer.
    #[boxed]
    pub async fn bare(&self) -> Result<BareIndex, IndexError> {
        // No limit on the response time: it is what the benchmark measures.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let partition = &self.first().shared;
        let opened = partition.servers.connect(&config).await;
        let (conn, _) = opened.map_err(IndexError::driver("open a connection for plain commands"))?;
        Ok(BareIndex { conn, keys: partition.keys.clone() })
    }
}

impl BareIndex {
    /// Add every entry to the sorted set, with one ZADD each and a thousand in one pipeline. Return how many entries
    /// the set has then.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn add_all(&mut self, entries: &[Entry]) -> Result<usize, IndexError> {
        for page in entries.chunks(PIPELINE) {
            let mut pipe = redis::pipe();
            for entry in page {
                pipe.zadd(&self.keys.waiting, entry.member(), entry.execute_at.timestamp_millis()).ignore();
            }
            let added: RedisResult<()> = pipe.query_async(&mut self.conn).await;
            added.map_err(IndexError::driver("add entries"))?;
        }
        self.conn.zcard(&self.keys.waiting).await.map_err(IndexError::driver("count entries"))
    }

    /// Return the number of commands that the server has executed since it started, without those that ask about the
    /// server itself.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis does not answer.
    #[boxed]
    pub async fn commands(&mut self) -> Result<u64, IndexError> {
        let text: RedisResult<String> = redis::cmd("INFO").arg("commandstats").query_async(&mut self.conn).await;
        Ok(count_commands(&text.map_err(IndexError::driver("read the server's counters"))?))
    }

    /// Return the processor time that the server has used since it started, in the program and in the kernel.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis does not answer.
    #[boxed]
    pub async fn processor_time(&mut self) -> Result<Duration, IndexError> {
        let text: RedisResult<String> = redis::cmd("INFO").arg("cpu").query_async(&mut self.conn).await;
        Ok(used_time(&text.map_err(IndexError::driver("read the server's processor time"))?))
    }

    /// Return the memory that the contents of the server take up, in bytes, without its connections and buffers.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis does not answer.
    #[boxed]
    pub async fn dataset_bytes(&mut self) -> Result<u64, IndexError> {
        let text: RedisResult<String> = redis::cmd("INFO").arg("memory").query_async(&mut self.conn).await;
        Ok(dataset_size(&text.map_err(IndexError::driver("read the server's memory"))?))
    }

    /// Return the version of the server.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis does not answer.
    #[boxed]
    pub async fn version(&mut self) -> Result<String, IndexError> {
        let text: RedisResult<String> = redis::cmd("INFO").arg("server").query_async(&mut self.conn).await;
        let text = text.map_err(IndexError::driver("read the server's version"))?;
        let version = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.unwrap_or("of an unknown version").trim().to_owned())
    }
}

/// Add up the calls in `INFO commandstats`, such as `cmdstat_zadd:calls=7,usec=9,…`. Commands inside a script count as
/// well.
fn count_commands(text: &str) -> u64 {
    let calls = text.lines().filter_map(|line| {
        let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        if name == "info" || name.starts_with("client") {
            return None;
        }
        figures.split(',').next()?.parse::<u64>().ok()
    });
    calls.sum()
}

/// Return the size in `INFO memory`, such as `used_memory_dataset:7`.
fn dataset_size(text: &str) -> u64 {
    let size = text.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"));
    size.and_then(|size| size.trim().parse().ok()).unwrap_or_default()
}

/// Add up the seconds in `INFO cpu`, such as `used_cpu_sys:1.25`, without those of child processes.
fn used_time(text: &str) -> Duration {
    let seconds = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or_default()
    };
    Duration::try_from_secs_f64(seconds("used_cpu_sys") + seconds("used_cpu_user")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_is_that_of_the_server_without_its_children() {
        let text = "# CPU\r\nused_cpu_sys_children:8.0\r\nused_cpu_user_children:8.0\r\nused_cpu_sys:1.250000\r\n\
                    used_cpu_user:2.500000\r\nused_cpu_sys_main_thread:1.0\r\nused_cpu_user_main_thread:2.0\r\n";
        assert_eq!(used_time(text), Duration::from_millis(3_750));
        assert_eq!(used_time("used_cpu_sys:-1"), Duration::ZERO);
    }

    #[test]
    fn the_size_of_the_contents_is_not_that_of_the_server() {
        let text = "# Memory\r\nused_memory:9\r\nused_memory_dataset:7\r\nused_memory_dataset_perc:70.00%\r\n";
        assert_eq!(dataset_size(text), 7);
        assert_eq!(dataset_size(""), 0);
    }

    #[test]
    fn commands_are_counted_but_for_questions_about_the_server() {
        let text = "# Commandstats\r\ncmdstat_zadd:calls=7,usec=9,usec_per_call=1.2\r\ncmdstat_info:calls=3,usec=1\r\n\
                    cmdstat_client|setinfo:calls=2,usec=1\r\ncmdstat_brpop:calls=5,usec=0\r\n";
        assert_eq!(count_commands(text), 12);
        assert_eq!(count_commands(""), 0);
    }
}
