//! The rights that the Redis user needs, and the question whether it has them.
//!
//! Redis answers NOPERM to a command that the user may not run. Commands that a runner needs seldom would fail weeks
//! after the start. So each command is tried once, on a key of its own, before the first use of the index, and again
//! after each NOPERM. Redis checks the rights before everything else, so only NOPERM counts here, and any server may be
//! asked: a replica, or one without free memory.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::keys::Keys;

/// Digest of the script `return 1`, for a call that changes nothing.
const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// Every command that the index sends, with arguments. `KEY` stands for a key that no other code uses. Some of the
/// commands make it, and the last ones delete it.
const COMMANDS: &[&[&str]] = &[
    &["EXISTS", "KEY"],
    &["TYPE", "KEY"],
    &["DEL", "KEY"],
    &["GET", "KEY"],
    &["SET", "KEY", "1", "PX", "1000"],
    &["INCR", "KEY"],
    &["DEL", "KEY"],
    &["LPUSH", "KEY", "1"],
    &["RPUSH", "KEY", "1"],
    &["LTRIM", "KEY", "0", "0"],
    &["LLEN", "KEY"],
    &["LRANGE", "KEY", "0", "0"],
    &["RPOP", "KEY", "1"],
    &["BRPOP", "KEY", "0.001"],
    &["DEL", "KEY"],
    &["HSET", "KEY", "f", "1"],
    &["HGET", "KEY", "f"],
    &["HEXISTS", "KEY", "f"],
    &["HKEYS", "KEY"],
    &["HGETALL", "KEY"],
    &["HDEL", "KEY", "f"],
    &["ZADD", "KEY", "1", "m"],
    &["ZCARD", "KEY"],
    &["ZMSCORE", "KEY", "m"],
    &["ZRANGE", "KEY", "0", "0"],
    &["ZREVRANGE", "KEY", "0", "0"],
    &["ZRANGEBYSCORE", "KEY", "1", "1"],
    &["ZREMRANGEBYRANK", "KEY", "0", "0"],
    &["ZREM", "KEY", "m"],
    &["XADD", "KEY", "NOMKSTREAM", "*", "e", "1"],
    &["XRANGE", "KEY", "-", "+", "COUNT", "1"],
    &["XREVRANGE", "KEY", "+", "-", "COUNT", "1"],
    &["MULTI"],
    &["EXEC"],
    &["TIME"],
    &["SCAN", "0", "MATCH", "KEY", "COUNT", "1"],
    &["SCRIPT", "LOAD", "return 1"],
    &["EVALSHA", DIGEST, "1", "KEY"],
    &["EXPIRE", "KEY", "1"],
    &["DEL", "KEY"],
];

/// Check that the user of this connection may send every command about the keys of the index. The error names what is
/// missing.
pub(super) async fn check(conn: &mut MultiplexedConnection, keys: &Keys) -> RedisResult<()> {
    let mut pipe = redis::pipe();
    pipe.ignore_errors();
    for words in COMMANDS {
        let command = pipe.cmd(words[0]);
        for word in &words[1..] {
            command.arg(if *word == "KEY" { keys.rights.as_str() } else { word });
        }
    }
    let answers: Vec<RedisResult<Value>> = pipe.query_async(conn).await?;
    let refused = COMMANDS.iter().zip(answers).filter_map(|(words, answer)| Some((*words, answer.err()?)));
    let refused: Vec<_> = refused.filter(|(_, error)| is_about_rights(error)).collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(RedisError::from((ErrorKind::Client, "the redis user lacks rights", describe(&refused, &keys.all))))
}

/// Texts of Redis about a command that its user may not send: alone, in a script, and in a script of Redis 7.0.
const REFUSALS: [&str; 3] = ["NOPERM", "ACL failure", "The user executing the script can't"];

/// Return whether Redis refused a command because its user may not send it, alone or in a script.
pub(super) fn is_about_rights(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) || {
        let text = error.to_string();
        REFUSALS.iter().any(|refusal| text.contains(refusal))
    }
}

fn describe(refused: &[(&[&str], RedisError)], pattern: &str) -> String {
    // Redis names a key only as "a key" or "one of the keys".
    let about_keys = |error: &RedisError| error.to_string().contains(" key");
    let mut missing: Vec<String> = Vec::new();
    for (words, _) in refused.iter().filter(|(_, error)| !about_keys(error)) {
        let name = name_of(words);
        if !missing.contains(&name) {
            missing.push(name);
        }
    }
    if refused.iter().any(|(_, error)| about_keys(error)) {
        missing.push(format!("~{pattern}"));
    }
    format!("its rule lacks {}", missing.join(" "))
}

/// Return the word for a command in a rule.
fn name_of(words: &[&str]) -> String {
    match words {
        ["SCRIPT", sub, ..] => format!("+script|{}", sub.to_lowercase()),
        [command, ..] => format!("+{}", command.to_lowercase()),
        [] => String::new(),
    }
}

/// Return the rights of a rule that are enough, in the order of the alphabet: the words for commands.
#[must_use]
pub fn rights() -> Vec<String> {
    let mut words: Vec<String> = COMMANDS.iter().map(|words| name_of(words)).collect();
    words.sort_unstable();
    words.dedup();
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the commands in a script.
    fn commands_of(script: &str) -> impl Iterator<Item = String> {
        script.split("redis.call('").skip(1).filter_map(|rest| rest.split('\'').next()).map(str::to_lowercase)
    }

    #[test]
    fn every_command_of_a_script_is_tried() {
        let scripts = [
            include_str!("lists.lua"),
            include_str!("hint.lua"),
            include_str!("move.lua"),
            include_str!("take.lua"),
            include_str!("first.lua"),
            include_str!("refilled.lua"),
        ];
        let rights = rights();
        let mut found = 0;
        for command in scripts.into_iter().flat_map(commands_of) {
            assert!(rights.contains(&format!("+{command}")), "{command}");
            found += 1;
        }
        assert!(found > 20, "{found}");
    }

    /// Return the commands that this code names in full.
    fn named_in(code: &str) -> impl Iterator<Item = String> {
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        code.split("cmd(\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_lowercase)
    }

    #[test]
    fn every_command_that_the_code_names_is_tried() {
        let sources = [
            include_str!("event_stream.rs"),
            include_str!("fetch.rs"),
            include_str!("guide.rs"),
            include_str!("health.rs"),
            include_str!("lib.rs"),
            include_str!("link.rs"),
            include_str!("partition.rs"),
        ];
        // The settings of the server are read if the user may. A connection to a cluster asks it for its slots.
        let others = ["info", "cluster"];
        let rights = rights();
        let mut found = 0;
        for command in sources.into_iter().flat_map(named_in).filter(|command| !others.contains(&command.as_str())) {
            assert!(rights.contains(&format!("+{command}")), "{command}");
            found += 1;
        }
        assert!(found > 5, "{found}");
    }

    #[test]
    fn what_is_missing_is_named_as_in_a_rule() {
        let denied = |text: &str| RedisError::from((ErrorKind::Extension, "NOPERM", text.to_owned()));
        let command = "this user has no permissions to run the 'brpop' command";
        let key = "this user has no permissions to access one of the keys used as arguments";
        let refused: [(&[&str], RedisError); 4] = [
            (&["BRPOP", "KEY"], denied(command)),
            (&["SCRIPT", "LOAD"], denied("this user has no permissions to run the 'script|load' command")),
            (&["DEL", "KEY"], denied(key)),
            (&["DEL", "KEY"], denied(key)),
        ];
        assert_eq!(describe(&refused, "{tickr}:*"), "its rule lacks +brpop +script|load ~{tickr}:*");
        assert!(is_about_rights(&denied(command)));
        assert!(!is_about_rights(&RedisError::from((ErrorKind::Extension, "OOM", "command not allowed".to_owned()))));
    }
}
