//! Redis Sentinel: several servers that watch a master, and promote a replica of it when it is gone.

use std::collections::HashMap;
use std::sync::Arc;

use redis::RedisResult;
use tokio::task::JoinSet;

use super::guide::Guide;
use super::servers::{Access, Address, Opinion, Word, newest};

/// The sentinels of a URL.
pub(super) struct Sentinels {
    /// The name by which they know the master.
    name: String,
    each: Vec<Arc<Guide>>,
}

impl Sentinels {
    pub(super) fn new(name: String, addresses: &[Address], access: &Access) -> RedisResult<Self> {
        let each: RedisResult<_> = addresses.iter().map(|address| Guide::new(address, access).map(Arc::new)).collect();
        Ok(Self { name, each: each? })
    }

    /// Return the word about the master. `known` is the epoch of the last word. All sentinels are asked at the same
    /// time, so that one that hangs costs no time.
    pub(super) async fn master(&self, known: u64) -> RedisResult<Word> {
        let mut asked = JoinSet::new();
        for sentinel in &self.each {
            let (sentinel, name) = (Arc::clone(sentinel), self.name.clone());
            asked.spawn(async move { ask(&sentinel, &name).await });
        }
        newest(asked, known, "no sentinel names the master").await
    }
}

async fn ask(sentinel: &Guide, name: &str) -> Result<Opinion, String> {
    let mut question = redis::pipe();
    question.cmd("SENTINEL").arg("MASTER").arg(name);
    let (said,): (HashMap<String, String>,) = sentinel.ask(&question).await?;
    opinion(&said).ok_or_else(|| format!("{}: an answer without an address", sentinel.address()))
}

fn opinion(said: &HashMap<String, String>) -> Option<Opinion> {
    let host = said.get("ip").filter(|host| !host.is_empty())?.clone();
    let port = said.get("port")?.parse().ok()?;
    let epoch = said.get("config-epoch").and_then(|text| text.parse().ok()).unwrap_or(0);
    Some(Opinion { epoch, master: Address { host, port } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_a_sentinel_has_the_address_and_the_epoch() {
        let said = |pairs: &[(&str, &str)]| {
            opinion(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        let master = Address { host: "10.0.0.5".to_owned(), port: 6_379 };
        let full = [("name", "main"), ("ip", "10.0.0.5"), ("port", "6379"), ("config-epoch", "7")];
        assert_eq!(said(&full), Some(Opinion { epoch: 7, master }));
        assert_eq!(said(&full[..2]), None);
    }
}
