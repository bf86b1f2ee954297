//! The catalogue of problems: the meaning of each code, its remedy, and whether a retry makes sense. `docs/PROBLEMS.md`
//! and `/docs` are generated from it.

use std::fmt::Write as _;

use crate::api::http::problem::Code;

/// Advice on sending the same request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// It would be refused again. The client must change it first.
    Changed,
    /// After the time in `Retry-After`. A request that enqueues should carry an `Idempotency-Key`.
    Later,
    /// After an operator has fixed the cause.
    Mended,
}

impl Again {
    /// Return the advice in words, for people.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Changed => "No. Correct the request first.",
            Self::Later => "Yes, after `Retry-After` seconds, then with growing pauses.",
            Self::Mended => "Only after the cause is fixed.",
        }
    }
}

/// The texts about one code.
pub(crate) struct Entry {
    /// Meaning of the code, for the client.
    pub(crate) meaning: &'static str,
    /// Action that the client or the operator should take.
    pub(crate) remedy: &'static str,
    /// Advice on sending the same request again.
    pub(crate) again: Again,
}

/// Return the entry of a code.
pub(crate) const fn entry(code: Code) -> Entry {
    let (meaning, remedy, again) = match code {
        Code::InvalidJson => (
            "The body is not JSON, or it ended too early.",
            "Send one complete JSON value in UTF-8. `detail` names the line and column at which the parser stopped.",
            Again::Changed,
        ),
        Code::TooDeep => (
            "The body is nested more than 64 levels deep.",
            "Flatten the payload, or store the data elsewhere and send a reference to it.",
            Again::Changed,
        ),
        Code::Unauthorized => (
            "The request has no API key or token, or tickr does not know the one that it has, or the API key was revoked.",
            "Send `Authorization: Bearer` with an API key (`tickr keys create`) or a token of `TICKR_API_TOKENS`.",
            Again::Changed,
        ),
        Code::Forbidden => (
            "The API key has another scope or other kinds. Or the job belongs to another producer. Or the API is open (it has no API keys yet), and the request came from a web page of another site, through a proxy, or under a host name that tickr does not know as its own.",
            "Use an API key with the scope or kind that `detail` names. For an open API, add the host name to `TICKR_HTTP_HOSTS`, or create an API key.",
            Again::Changed,
        ),
        Code::NotFound => (
            "The path does not exist, or there is no object with this id or name. Ended jobs are deleted after their retention. A large report is served only by the runner that made it; `detail` names that runner.",
            "Check the id or name; `/openapi.json` lists the paths.",
            Again::Changed,
        ),
        Code::MethodNotAllowed => {
            ("The path does not support this method.", "Use one of the methods in the `Allow` header.", Again::Changed)
        }
        Code::RequestTimeout => (
            "The body did not arrive within `TICKR_HTTP_BODY_TIMEOUT`. Nothing was done. For an import, the lines that were already answered keep their outcome.",
            "Send it again over a faster connection. Use `/v1/jobs/import` for large numbers of jobs.",
            Again::Later,
        ),
        Code::WrongState => (
            "The state of the job or bulk operation does not allow this. For a job, `current_state` names the state. Nothing was changed.",
            "Read the job or bulk operation again, then decide what to do.",
            Again::Changed,
        ),
        Code::KeyTaken => (
            "An unfinished job has this unique key, and the request may neither return nor replace that job. For a single job, `holder` and `current_state` describe it. Nothing was written.",
            "Wait for that job, choose another unique key, or send `on_conflict` `return` or `replace`. Only an admin key may replace the job of another producer.",
            Again::Changed,
        ),
        Code::NameTaken => (
            "An API key has or had this name. A name is never used for a second API key. Nothing was changed.",
            "Choose another name.",
            Again::Changed,
        ),
        Code::IdempotencyInProgress => (
            "Another request with this idempotency key is under way and did not end in time. This request changed nothing.",
            "Send it again. It then gets the response of the first request, or is carried out if the first request failed.",
            Again::Later,
        ),
        Code::PreconditionFailed => (
            "The object does not have an ETag that `If-Match` names, or `If-None-Match: *` was sent and the object exists. Nothing was changed.",
            "Read the object again, decide what to do, and send its new ETag.",
            Again::Changed,
        ),
        Code::TooLarge => (
            "The body, or one line of an import, is larger than `TICKR_BODY_LIMIT`.",
            "Store large data elsewhere and send a reference in the payload. An operator may raise the limit up to 1 MiB.",
            Again::Changed,
        ),
        Code::UnsupportedMediaType => (
            "The `Content-Type` of the body is not one that this call accepts.",
            "Send `Content-Type: application/json`, or `application/x-ndjson` for an import.",
            Again::Changed,
        ),
        Code::InvalidRequest => (
            "The request could be read, but is not what this call accepts. Each entry of `errors` names a position in the body (a JSON pointer), a query parameter or a header.",
            "Correct what `errors` names.",
            Again::Changed,
        ),
        Code::UnknownKind => (
            "The runner that answered has no handler for this kind.",
            "Use a kind of `/v1/kinds`, or deploy a runner that has this kind first.",
            Again::Changed,
        ),
        Code::InvalidPayload => (
            "The payload does not fit the schema of its kind. `errors` says where and why.",
            "Correct the payload. `/v1/kinds` has the schemas.",
            Again::Changed,
        ),
        Code::IdempotencyConflict => (
            "This idempotency key belongs to another request, which was carried out. This request changed nothing.",
            "Use a new idempotency key for each request. Use it again only to repeat the same request.",
            Again::Changed,
        ),
        Code::InvalidId => (
            "The id in the path is malformed.",
            "Use the id that tickr returned: a hyphenated UUID for a job or bulk operation, 16 hexadecimal digits for a group of dead letters.",
            Again::Changed,
        ),
        Code::InvalidCursor => (
            "The cursor does not come from this listing with this filter.",
            "Send `next_cursor` of the last page, unchanged, with the same filter. Or start again without a cursor.",
            Again::Changed,
        ),
        Code::AlreadyReplayed => (
            "The dead letter was already replayed; `replayed_as` names the new job. No other job was made.",
            "Read the new job. If it failed as well, replay that one.",
            Again::Changed,
        ),
        Code::DeclaredInConfig => (
            "A configuration file declares this schedule and would restore it at the next start of a runner. Nothing was changed.",
            "Change the configuration file and restart the runners.",
            Again::Changed,
        ),
        Code::PreviousUnfinished => (
            "The previous job of this schedule has not ended, and the overlap policy does not allow a second one. Nothing was done.",
            "Wait for that job, cancel it, or trigger the schedule with `overlap=allow`.",
            Again::Changed,
        ),
        Code::RunnerStopped => (
            "The runner has stopped, or was found dead. Nothing was changed.",
            "Look for its successor in `/v1/runners`. A process that starts again is a new runner with a new id.",
            Again::Changed,
        ),
        Code::TooMany => (
            "The limit for these objects is reached. Nothing was changed.",
            "Remove or revoke some first.",
            Again::Changed,
        ),
        Code::Overloaded => (
            "This runner has reached a limit: requests that wait for MySQL, open connections, streams, imports, downloads, or searches and counts. Nothing was accepted. For an import, the lines that were already answered keep their outcome.",
            "Wait for the time in `Retry-After` and try again, on another runner if there is one. Operators find the numbers in `tickr_http_clients_turned_away_total` and `tickr_searches_refused_total`, and the limits in the configuration.",
            Again::Later,
        ),
        Code::Internal => (
            "A defect in tickr or in its setup. It is not known whether something was changed.",
            "Search the log of the runner for the `x-request-id` of the response, and report the defect.",
            Again::Mended,
        ),
        Code::Stopping => (
            "This runner is shutting down. Nothing was accepted. For an import, the lines that were already answered keep their outcome.",
            "Send the request to another runner, or to this one after its restart.",
            Again::Later,
        ),
        Code::StoreUnavailable => (
            "MySQL cannot be reached, or its tables are being migrated. As far as tickr knows, nothing was changed. A commit whose confirmation was lost may have been made.",
            "Try again. With an `Idempotency-Key` nothing is done twice.",
            Again::Later,
        ),
        Code::IndexUnavailable => (
            "Redis does not answer. Jobs are accepted and executed without it. Only requests about Redis itself fail.",
            "Repair Redis. When it answers again, the runners fill it by themselves.",
            Again::Later,
        ),
    };
    Entry { meaning, remedy, again }
}

/// Return the text of `docs/PROBLEMS.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from(
        "# Problems\n\nGenerated from `internal/api/http/problem_table.rs`; a test compares the two. Every response with a \
         status of 400 or more, except those\nof `/readyz`, is an RFC 9457 problem document (`application/problem+json`) with \
         these fields:\n\n\
         | field | holds |\n|---|---|\n\
         | `type` | `urn:tickr:problem:` followed by the code; stable |\n\
         | `code` | the code; stable, for programs |\n\
         | `status` | the HTTP status |\n\
         | `title` | the code in words |\n\
         | `detail` | a description of this occurrence, for people; may change |\n\
         | `errors` | the single faults: `pointer` (a JSON pointer into the body, or the name of a parameter or header) and `detail` |\n\
         | `current_state` | the state of the job, with `wrong_state`, `key_taken` and `previous_unfinished` |\n\
         | `holder` | the job in the way, with `key_taken` of a single job and with `previous_unfinished` |\n\
         | `replayed_as` | the job that replayed the dead letter, with `already_replayed` |\n\n\
         The server below the API answers malformed request heads with an empty body: 400 when they are not HTTP, 414 \
         and 431 when they\nare too large. It closes the connection of a client that sends its head, or reads the response, too slowly.\n",
    );
    for code in Code::ALL {
        let Entry { meaning, remedy, again } = entry(code);
        let _ = write!(
            text,
            "\n## `{}`\n\n**{} {}.** {meaning}\n\n- What to do: {remedy}\n- Retry: {}\n",
            code.word(),
            code.status().as_u16(),
            code.title(),
            again.words(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema as _;

    use super::*;
    use crate::api::Problem;
    use axum::response::IntoResponse as _;

    #[test]
    fn the_catalogue_has_every_code_once_and_says_when_to_come_back() {
        let schema = serde_json::to_value(Code::schema()).unwrap();
        let text = schema.to_string();
        let mut words: Vec<String> = Code::ALL.iter().map(|code| code.word()).collect();
        for word in &words {
            assert!(text.contains(&format!("\"{word}\"")), "{word} is not in the schema");
        }
        let count = schema["enum"].as_array().or_else(|| schema["oneOf"].as_array()).map_or(0, Vec::len);
        assert_eq!(words.len(), count, "{text}");
        words.sort();
        words.dedup();
        assert_eq!(words.len(), Code::ALL.len());
        for code in Code::ALL {
            let answer = Problem::new(code, "x").into_response();
            let comes_back = answer.headers().contains_key("retry-after");
            assert_eq!(comes_back, entry(code).again == Again::Later, "{}", code.word());
        }
    }
}
