//! The settings of the chat, from variables. Those of tickr are `TICKR_*`.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;

use super::kinds::Sizes;

/// Every setting of the chat, with its variable.
pub(crate) struct Settings {
    /// `CHAT_ADDR`: address of the listener, on loopback. Port 0 takes a free one.
    pub(crate) addr: SocketAddr,
    /// `CHAT_PUSH_URL`: the push service. Without it no push is sent.
    pub(crate) push_url: Option<String>,
    /// `CHAT_EXPIRY_MS`: age at which a message is not delivered any more.
    pub(crate) expiry: Duration,
    /// `CHAT_PRESENCE_MS`: time after which a user of a killed server is offline. Servers refresh it twice as often.
    pub(crate) presence_ttl: Duration,
    /// `CHAT_WRITE_UP_TO` and `CHAT_PUSH_UP_TO`: the sizes of groups at which the fan-out changes.
    pub(crate) sizes: Sizes,
    /// `CHAT_COUNTS_MS`: time from the first change of a count to its update.
    pub(crate) counts_every: Duration,
    /// `CHAT_TOKEN_SEED`: for tests, which let the tokens of two servers collide.
    pub(crate) token_seed: Option<u64>,
}

impl Settings {
    pub(crate) fn from_env() -> anyhow::Result<Self> {
        let millis = |name, default: Duration| anyhow::Ok(value(name)?.map_or(default, Duration::from_millis));
        let addr = value("CHAT_ADDR")?.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 7_080)));
        // A name is enough to sign in, so no other machine may.
        anyhow::ensure!(addr.ip().is_loopback(), "CHAT_ADDR must be a loopback address: the chat has no passwords");
        let push: usize = value("CHAT_PUSH_UP_TO")?.unwrap_or(1_000);
        let settings = Self {
            addr,
            push_url: value("CHAT_PUSH_URL")?,
            expiry: millis("CHAT_EXPIRY_MS", Duration::from_secs(30 * 24 * 60 * 60))?,
            presence_ttl: millis("CHAT_PRESENCE_MS", Duration::from_secs(60))?,
            sizes: Sizes { write: value("CHAT_WRITE_UP_TO")?.unwrap_or(push.min(100)), push },
            counts_every: millis("CHAT_COUNTS_MS", Duration::from_secs(60))?,
            token_seed: value("CHAT_TOKEN_SEED")?,
        };
        // The delivery of a message is a job with this expiry.
        let longest = Duration::from_secs(366 * 24 * 60 * 60);
        anyhow::ensure!(
            (Duration::from_millis(1)..=longest).contains(&settings.expiry),
            "CHAT_EXPIRY_MS must be 1 to {} (366 days)",
            longest.as_millis()
        );
        anyhow::ensure!(settings.presence_ttl >= Duration::from_millis(100), "CHAT_PRESENCE_MS must be 100 or more");
        // Each delivery of a group is a follow-up job, and a job may have a thousand.
        anyhow::ensure!(settings.sizes.push <= 1_000, "CHAT_PUSH_UP_TO must be 1000 or less");
        // The rows of an inbox are written by deliveries, and a group above the larger size has none.
        anyhow::ensure!(
            settings.sizes.write <= settings.sizes.push,
            "CHAT_WRITE_UP_TO must be CHAT_PUSH_UP_TO or less: a message that is not pushed gets no row in an inbox"
        );
        Ok(settings)
    }
}

/// Read a variable, if it is set.
fn value<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(name: &str) -> anyhow::Result<Option<T>> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty());
    text.map(|text| text.parse().with_context(|| format!("{name} is {text:?}"))).transpose()
}
