//! The table of problems: each code with its status, its meaning, its remedy, and whether a retry makes sense.
//! `docs/PROBLEMS.md` and `/docs` are generated from it.

use std::fmt::Write as _;

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

/// Most columns of a line of `docs/PROBLEMS.md` outside tables.
const MAX_COLUMNS: usize = 120;

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

/// Define the problem codes, and all that is said about each of them.
macro_rules! problems {
    ($($(#[$doc:meta])* $code:ident => {
        status: $status:ident,
        title: $title:literal,
        meaning: $meaning:literal,
        remedy: $remedy:literal,
        again: $again:ident,
    })*) => {
        /// The problem codes. They are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Code {
            $($(#[$doc])* $code,)*
        }

        impl Code {
            /// All codes, in the order of their statuses.
            pub(crate) const ALL: &[Self] = &[$(Self::$code),*];

            pub(crate) const fn status(self) -> StatusCode {
                match self {
                    $(Self::$code => StatusCode::$status,)*
                }
            }

            pub(crate) const fn title(self) -> &'static str {
                match self {
                    $(Self::$code => $title,)*
                }
            }

            /// Return the texts about the code.
            pub(crate) const fn entry(self) -> Entry {
                match self {
                    $(Self::$code => Entry { meaning: $meaning, remedy: $remedy, again: Again::$again },)*
                }
            }
        }
    };
}

problems! {
    /// 400: the body is not JSON.
    InvalidJson => {
        status: BAD_REQUEST,
        title: "The body is not JSON",
        meaning: "The body is not JSON, or it ended too early.",
        remedy: "Send one complete JSON value in UTF-8. `detail` names the line and column at which the parser stopped.",
        again: Changed,
    }
    /// 400: the body is nested more than 64 levels deep.
    TooDeep => {
        status: BAD_REQUEST,
        title: "The body is nested too deeply",
        meaning: "The body is nested more than 64 levels deep.",
        remedy: "Flatten the payload, or store the data elsewhere and send a reference to it.",
        again: Changed,
    }
    /// 401: an API key or token is needed, or the given one is not known.
    Unauthorized => {
        status: UNAUTHORIZED,
        title: "A valid API key or token is needed",
        meaning: "The request has no API key or token, or tickr does not know the one that it has, or the API key was revoked.",
        remedy: "Send `Authorization: Bearer` with an API key (`tickr api-keys create`) or a token of `TICKR_API_TOKENS`.",
        again: Changed,
    }
    /// 403: the caller may not do this; for an API key, the detail names the scope, kinds or queues in question.
    Forbidden => {
        status: FORBIDDEN,
        title: "The caller may not do this",
        meaning: "The API key has another scope, or may not use this kind or queue. Or the job belongs to another producer. Or the API is open (it has no API keys yet), and the request came from a web page of another site, through a proxy, or under a host name that tickr does not know as its own.",
        remedy: "Use an API key that may do this: `detail` and `errors` name the scope, kind or queue. For an open API, add the host name to `TICKR_HTTP_HOSTS`, or create an API key.",
        again: Changed,
    }
    /// 404: the path or the object does not exist.
    NotFound => {
        status: NOT_FOUND,
        title: "Not found",
        meaning: "The path does not exist, or there is no object with this id or name. Ended jobs are deleted after their retention. A large report is served only by the runner that made it; `detail` names that runner.",
        remedy: "Check the id or name; `/openapi.json` lists the paths.",
        again: Changed,
    }
    /// 405: the path does not support this method.
    MethodNotAllowed => {
        status: METHOD_NOT_ALLOWED,
        title: "Method not allowed",
        meaning: "The path does not support this method.",
        remedy: "Use one of the methods in the `Allow` header.",
        again: Changed,
    }
    /// 408: the body did not arrive in time.
    RequestTimeout => {
        status: REQUEST_TIMEOUT,
        title: "The body took too long",
        meaning: "The body did not arrive within `TICKR_HTTP_BODY_TIMEOUT`. Nothing was done. For an import, the lines that were already answered keep their outcome.",
        remedy: "Send it again over a faster connection. Use `/v1/jobs/import` for large numbers of jobs.",
        again: Later,
    }
    /// 409: the state of the job, batch or bulk operation does not allow this; for a job, `current_state` names the state.
    WrongState => {
        status: CONFLICT,
        title: "Not possible in the current state",
        meaning: "The state of the job, batch or bulk operation does not allow this. For a job, `current_state` names the state. Nothing was changed.",
        remedy: "Read the job, batch or bulk operation again, then decide what to do.",
        again: Changed,
    }
    /// 409: another job has this unique key.
    UniqueKeyTaken => {
        status: CONFLICT,
        title: "Another job has this unique key",
        meaning: "An unfinished job has this unique key, or one that completed and keeps it for its `unique_for_ms`, and the request may neither return nor replace that job. For a single job, `holder` and `current_state` describe it. Nothing was written.",
        remedy: "Wait for that job, choose another unique key, or send `on_conflict` `return` or `replace`. Only an admin key may replace the job of another producer.",
        again: Changed,
    }
    /// 409: another bulk operation releases this group of dead letters.
    ReleaseRunning => {
        status: CONFLICT,
        title: "The group is being released already",
        meaning: "A bulk operation with the action `replay` releases this group of dead letters. Two at a time would release it at twice the rate that was chosen. Nothing was changed. `detail` names the operation that runs.",
        remedy: "Wait until that operation has ended, resume it if it is paused, or cancel it with `POST /v1/operations/{id}/cancel`.",
        again: Changed,
    }
    /// 409: an API key has or had this name, and a name is never used for a second one.
    NameTaken => {
        status: CONFLICT,
        title: "The name is taken",
        meaning: "An API key has or had this name. A name is never used for a second API key. Nothing was changed.",
        remedy: "Choose another name.",
        again: Changed,
    }
    /// 409: the dead letter was already replayed; `replayed_as` names the new job.
    AlreadyReplayed => {
        status: CONFLICT,
        title: "The dead letter was already replayed",
        meaning: "The dead letter was already replayed; `replayed_as` names the new job. No other job was made.",
        remedy: "Read the new job. If it failed as well, replay that one.",
        again: Changed,
    }
    /// 409: a request with this idempotency key is under way; Retry-After says when to try again.
    IdempotencyInProgress => {
        status: CONFLICT,
        title: "A request with this idempotency key is under way",
        meaning: "Another request with this idempotency key is under way and did not end in time. This request changed nothing.",
        remedy: "Send it again. It then gets the response of the first request, or is carried out if the first request failed.",
        again: Later,
    }
    /// 409: a configuration file declares the schedule, and only the file may change it.
    DeclaredInConfig => {
        status: CONFLICT,
        title: "A configuration file owns the schedule",
        meaning: "A configuration file declares this schedule and would restore it at the next start of a runner. Nothing was changed.",
        remedy: "Change the configuration file and restart the runners.",
        again: Changed,
    }
    /// 409: the previous job of the schedule has not ended, and the overlap policy does not allow a second one.
    PreviousUnfinished => {
        status: CONFLICT,
        title: "The previous job has not ended",
        meaning: "The previous job of this schedule has not ended, and the overlap policy does not allow a second one. Nothing was done.",
        remedy: "Wait for that job, cancel it, or trigger the schedule with `overlap=allow`.",
        again: Changed,
    }
    /// 409: this runner cannot read the schedule; the detail names the part that it cannot read.
    UnreadableSchedule => {
        status: CONFLICT,
        title: "This runner cannot read the schedule",
        meaning: "A newer version of tickr wrote this schedule, or a person changed it in MySQL, and this runner cannot read the part that `detail` names. Nothing was changed.",
        remedy: "Replace the schedule with a PUT, delete it, or send the request to a runner of the newer version. If `detail` names the origin, only the newer version can change it.",
        again: Mended,
    }
    /// 409: runners have a handler of this kind, so it cannot be declared.
    KindCompiled => {
        status: CONFLICT,
        title: "Runners have a handler of this kind",
        meaning: "A runner has a handler of this kind in its program, so the kind cannot be declared for remote workers. Nothing was changed.",
        remedy: "Choose another name for the kind, or deploy runners without the handler first.",
        again: Changed,
    }
    /// 409: the runner has stopped and accepts no more requests.
    RunnerStopped => {
        status: CONFLICT,
        title: "The runner has stopped",
        meaning: "The runner has stopped, or was found dead. Nothing was changed.",
        remedy: "Look for its successor in `/v1/runners`. A process that starts again is a new runner with a new id.",
        again: Changed,
    }
    /// 409: the attempt has ended, by another verdict or because its time was up.
    AttemptEnded => {
        status: CONFLICT,
        title: "The attempt has ended",
        meaning: "The attempt with this finish key has ended: with another verdict, because its time was up, or because its runner was lost. Nothing was changed.",
        remedy: "Stop the work. If the job runs again, its next attempt has another finish key.",
        again: Changed,
    }
    /// 412: the object does not meet the request's If-Match or If-None-Match.
    PreconditionFailed => {
        status: PRECONDITION_FAILED,
        title: "The condition of the request is not met",
        meaning: "The object does not have an ETag that `If-Match` names, or `If-None-Match: *` was sent and the object exists. Nothing was changed.",
        remedy: "Read the object again, decide what to do, and send its new ETag.",
        again: Changed,
    }
    /// 413: the body is larger than the limit.
    TooLarge => {
        status: PAYLOAD_TOO_LARGE,
        title: "The body is too large",
        meaning: "The body, or one line of an import, is larger than `TICKR_BODY_LIMIT`.",
        remedy: "Store large data elsewhere and send a reference in the payload. An operator may raise the limit up to 1 MiB.",
        again: Changed,
    }
    /// 415: the `Content-Type` of the body is not one that this call accepts, or the body has a `Content-Encoding`.
    UnsupportedMediaType => {
        status: UNSUPPORTED_MEDIA_TYPE,
        title: "Unsupported media type of the body",
        meaning: "The `Content-Type` of the body is not one that this call accepts, or the body has a `Content-Encoding`, such as `gzip`.",
        remedy: "Send `Content-Type: application/json`, or `application/x-ndjson` for an import. Send the body as it is, not compressed.",
        again: Changed,
    }
    /// 422: the request could be read, but is not what this call accepts; `errors` says where and why.
    InvalidRequest => {
        status: UNPROCESSABLE_ENTITY,
        title: "Invalid request",
        meaning: "The request could be read, but is not what this call accepts. Each entry of `errors` names a position in the body (a JSON pointer), a query parameter or a header.",
        remedy: "Correct what `errors` names.",
        again: Changed,
    }
    /// 422: the runner has no handler for this kind.
    UnknownKind => {
        status: UNPROCESSABLE_ENTITY,
        title: "Unknown kind",
        meaning: "The runner that answered has no handler for this kind, and the kind is not declared.",
        remedy: "Use a kind of `/v1/kinds`, deploy a runner that has this kind first, or declare it with `PUT /v1/kinds/{kind}`.",
        again: Changed,
    }
    /// 422: the payload does not fit the schema of its kind; `errors` says where and why.
    InvalidPayload => {
        status: UNPROCESSABLE_ENTITY,
        title: "The payload does not fit the kind",
        meaning: "The payload does not fit the schema of its kind. `errors` says where and why.",
        remedy: "Correct the payload. `/v1/kinds` has the schemas.",
        again: Changed,
    }
    /// 422: this idempotency key belongs to another request.
    IdempotencyConflict => {
        status: UNPROCESSABLE_ENTITY,
        title: "The idempotency key belongs to another request",
        meaning: "This idempotency key belongs to another request, which was carried out. This request changed nothing.",
        remedy: "Use a new idempotency key for each request. Use it again only to repeat the same request.",
        again: Changed,
    }
    /// 422: the id in the path is malformed.
    InvalidId => {
        status: UNPROCESSABLE_ENTITY,
        title: "Malformed id",
        meaning: "The id in the path is malformed.",
        remedy: "Use the id that tickr returned: a hyphenated UUID for a job, a batch, a bulk operation or a row of the outbox, 16 hexadecimal digits for a group of dead letters.",
        again: Changed,
    }
    /// 422: the cursor does not come from this listing with this filter.
    InvalidCursor => {
        status: UNPROCESSABLE_ENTITY,
        title: "Not a cursor of this listing",
        meaning: "The cursor does not come from this listing with this filter.",
        remedy: "Send `next_cursor` of the last page, unchanged, with the same filter. Or start again without a cursor.",
        again: Changed,
    }
    /// 422: the limit for objects of this type is reached.
    TooMany => {
        status: UNPROCESSABLE_ENTITY,
        title: "A limit on the number of objects is reached",
        meaning: "The limit for these objects is reached. Nothing was changed.",
        remedy: "Remove or revoke some first.",
        again: Changed,
    }
    /// 429: a limit of this runner is reached, such as requests that wait for MySQL; Retry-After says when to try
    /// again.
    Overloaded => {
        status: TOO_MANY_REQUESTS,
        title: "A limit of this runner is reached",
        meaning: "This runner has reached a limit: requests that wait for MySQL, for a result or for jobs, open connections, streams, imports, downloads, or searches, counts and other heavy reads. Nothing was accepted. For an import, the lines that were already answered keep their outcome.",
        remedy: "Wait for the time in `Retry-After` and try again, on another runner if there is one. Operators find the numbers in `tickr_http_clients_turned_away_total` and `tickr_searches_refused_total`, and the limits in the configuration.",
        again: Later,
    }
    /// 500: a defect in tickr or in its setup; the log has the details.
    Internal => {
        status: INTERNAL_SERVER_ERROR,
        title: "Internal error",
        meaning: "A defect in tickr or in its setup. It is not known whether something was changed.",
        remedy: "Search the log of the runner for the `x-request-id` of the response, and report the defect.",
        again: Mended,
    }
    /// 503: this runner is shutting down; send the request to another one, or to this one after its restart.
    Stopping => {
        status: SERVICE_UNAVAILABLE,
        title: "This runner is stopping",
        meaning: "This runner is shutting down. Nothing was accepted. For an import, the lines that were already answered keep their outcome.",
        remedy: "Send the request to another runner, or to this one after its restart.",
        again: Later,
    }
    /// 503: MySQL cannot be reached; Retry-After says when to try again. A commit whose confirmation was lost may have
    /// been made.
    StoreUnavailable => {
        status: SERVICE_UNAVAILABLE,
        title: "MySQL cannot be reached",
        meaning: "MySQL does not answer, its tables are being migrated, another session keeps rows locked, or all connections of this process to it are in use. As far as tickr knows, nothing was changed. A commit whose confirmation was lost may have been made.",
        remedy: "Try again. With an `Idempotency-Key` nothing is done twice.",
        again: Later,
    }
    /// 503: Redis does not answer. Jobs are executed without it; only requests about Redis itself fail.
    IndexUnavailable => {
        status: SERVICE_UNAVAILABLE,
        title: "Redis does not answer",
        meaning: "Redis does not answer. Jobs are accepted and executed without it. Only requests about Redis itself fail.",
        remedy: "Repair Redis. When it answers again, the runners fill it by themselves.",
        again: Later,
    }
}

impl Code {
    pub(crate) fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// Return a paragraph or list item in lines of at most 120 columns.
fn filled(mark: &str, text: &str) -> String {
    let mut lines = mark.to_owned();
    let mut column = mark.len();
    for (at, word) in text.split(' ').enumerate() {
        let width = word.chars().count();
        if at > 0 && column + 1 + width > MAX_COLUMNS {
            let _ = write!(lines, "\n{:1$}", "", mark.len());
            column = mark.len();
        } else if at > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += width;
    }
    lines.push('\n');
    lines
}

/// Return the text of `docs/PROBLEMS.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("# Problems\n\n");
    text += &filled(
        "",
        "Generated from `internal/api/http/problem_table.rs`; a test compares the two. Every response with a status of 400 \
         or more, except those of `/readyz`, is an RFC 9457 problem document (`application/problem+json`) with these \
         fields:",
    );
    text += "\n\
         | field | holds |\n|---|---|\n\
         | `type` | `urn:tickr:problem:` followed by the code; stable |\n\
         | `code` | the code; stable, for programs |\n\
         | `status` | the HTTP status |\n\
         | `title` | the code in words |\n\
         | `detail` | a description of this occurrence, for people; may change |\n\
         | `errors` | the single faults: `pointer` (a JSON pointer into the body, or the name of a parameter or header) and `detail` |\n\
         | `current_state` | the state of the job, with `wrong_state`, `unique_key_taken` and `previous_unfinished` |\n\
         | `holder` | the job in the way, with `unique_key_taken` of a single job and with `previous_unfinished` |\n\
         | `replayed_as` | the job that replayed the dead letter, with `already_replayed` |\n\n";
    text += &filled(
        "",
        "The server below the API answers malformed request heads with an empty body: 400 when they are not HTTP, 414 and \
         431 when they are too large. It closes the connection of a client that sends its head, or reads the response, \
         too slowly.",
    );
    for &code in Code::ALL {
        let Entry { meaning, remedy, again } = code.entry();
        let title = format!("**{} {}.** {meaning}", code.status().as_u16(), code.title());
        let _ = write!(text, "\n## `{}`\n\n{}\n", code.word(), filled("", &title));
        text += &filled("- ", &format!("Remedy: {remedy}"));
        text += &filled("- ", &format!("Retry: {}", again.words()));
    }
    text
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema as _;

    use super::*;
    use crate::Problem;
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
        for &code in Code::ALL {
            let answer = Problem::new(code, "x").into_response();
            let comes_back = answer.headers().contains_key("retry-after");
            assert_eq!(comes_back, code.entry().again == Again::Later, "{}", code.word());
        }
    }

    /// A client that gets the code for another object would take the page for the one of another code.
    #[test]
    fn a_code_that_several_objects_share_names_each_of_them() {
        for (code, objects) in [
            (Code::WrongState, &["job", "batch", "bulk operation"][..]),
            (Code::Forbidden, &["scope", "kind", "queue", "producer"]),
            (Code::InvalidId, &["job", "batch", "bulk operation", "outbox", "dead letters"]),
            (Code::Overloaded, &["MySQL", "result", "connections", "streams", "imports", "downloads", "searches"]),
        ] {
            let Entry { meaning, remedy, .. } = code.entry();
            for object in objects {
                assert!(meaning.contains(object) || remedy.contains(object), "{}: {object}", code.word());
            }
        }
    }
}
