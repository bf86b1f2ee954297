//! `tickr rebuild`: empty the index, so that the runners fill it again from the store.

use anyhow::Context as _;
use clap::{ArgMatches, Command};
use tickr::app::index_of;
use tickr::config::{Flags, Subset};

use crate::CommandResult;

pub(crate) fn command() -> Command {
    let command = Command::new("rebuild").about("Rebuild the Redis index from MySQL").long_about(
        "Delete everything that Redis holds for this prefix. Every runner notices within a second and fills Redis \
         again from MySQL. This is safe at any time: a job that Redis delivers twice is claimed once, because claims \
         are made in MySQL.",
    );
    let settings = [
        "redis_url",
        "redis_ca_file",
        "redis_cert_file",
        "redis_key_file",
        "redis_prefix",
        "index_partitions",
        "table_prefix",
        "log",
        "log_format",
    ];
    Flags::args(command, Subset::Only(&settings))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let loaded = crate::load(matches, &["redis_url"])?;
    let config = loaded.config;
    crate::runtime()?.block_on(async {
        let index = index_of(&config)?;
        let keys = index.forget().await.with_context(|| {
            let url = config.redis_url().map(ToString::to_string).unwrap_or_default();
            format!("tried {url}; TICKR_REDIS_URL or --redis-url names another Redis")
        })?;
        println!("forgot {keys} Redis keys; the runners feed Redis again from MySQL within a second");
        Ok(())
    })
}
