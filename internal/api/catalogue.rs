//! The catalogue of problems: what each code means, what to do about it, and whether to try again. `docs/PROBLEMS.md` and
//! `/docs` are made from it.

use std::fmt::Write as _;

use super::problem::Code;

/// Does the same request make sense again?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// It would be refused again: change it first.
    Changed,
    /// After the time in `Retry-After`, with an `Idempotency-Key` if it enqueues something.
    Later,
    /// When somebody has done something about it.
    Mended,
}

impl Again {
    /// For people.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Changed => "Not as it is",
            Self::Later => "After `Retry-After` seconds, with growing pauses",
            Self::Mended => "When the cause is mended",
        }
    }
}

/// What there is to say about one code.
pub(super) struct Entry {
    /// What it means.
    pub(super) meaning: &'static str,
    /// What whoever gets it should do.
    pub(super) remedy: &'static str,
    /// Whether the same request makes sense again.
    pub(super) again: Again,
}

/// The entry of a code.
pub(super) const fn entry(code: Code) -> Entry {
    let (meaning, remedy, again) = match code {
        Code::InvalidJson => (
            "The body is not JSON, or ended before its time.",
            "Send one JSON value in UTF-8, whole. `detail` says at which line and column reading ended.",
            Again::Changed,
        ),
        Code::TooDeep => (
            "The body is nested more than 64 levels deep.",
            "Flatten the payload, or pass a reference to it.",
            Again::Changed,
        ),
        Code::Unauthorized => (
            "A key or token is needed, or the one given is not known, or was revoked.",
            "Send `Authorization: Bearer` with a key (`tickr keys create`) or a token of `TICKR_API_TOKENS`.",
            Again::Changed,
        ),
        Code::Forbidden => (
            "The key is good for other things or kinds; or the job is another producer's; or the API is open, and a page of another site asked, a proxy sent the request on, or the host was reached under a name that is not known as its own.",
            "Use a key with the scope or kind that `detail` names; name the host in `TICKR_HTTP_HOSTS`, or make a key.",
            Again::Changed,
        ),
        Code::NotFound => (
            "There is nothing at this path, or no job or report of that name. Ended jobs are deleted behind their retention. A large report is served by the runner that made it alone; `detail` names it.",
            "Check the id or name; `/openapi.json` lists the paths.",
            Again::Changed,
        ),
        Code::MethodNotAllowed => {
            ("The path does not take this method.", "Use one of the methods in the `Allow` header.", Again::Changed)
        }
        Code::RequestTimeout => (
            "The body did not arrive within `TICKR_HTTP_BODY_TIMEOUT`. Nothing of it was carried out; of an import, what was answered stands.",
            "Send it again over a better line; large amounts go through `/v1/jobs/import`.",
            Again::Later,
        ),
        Code::WrongState => (
            "The job is in a state in which this is not possible; `current_state` says in which. Nothing was changed.",
            "Read the job and decide anew.",
            Again::Changed,
        ),
        Code::KeyTaken => (
            "An unfinished job has this unique key, and `on_conflict` forbids to go on; `holder` and `current_state` describe it. Nothing was written.",
            "Wait for that job, choose another key, or ask for `on_conflict` `return` or `replace`. Another producer's job is replaced by an admin key alone.",
            Again::Changed,
        ),
        Code::NameTaken => (
            "A name belongs to one thing for ever, and something has or had this one. Nothing was changed.",
            "Choose another name.",
            Again::Changed,
        ),
        Code::IdempotencyInProgress => (
            "A request with this Idempotency-Key is under way and did not end in time. Nothing was changed by this one.",
            "Send it again: it gets the first one's answer, or is carried out if that one failed.",
            Again::Later,
        ),
        Code::PreconditionFailed => (
            "What is to be changed is not what `If-Match` says any more. Nothing was changed.",
            "Read it, decide anew, and send its new ETag.",
            Again::Changed,
        ),
        Code::TooLarge => (
            "The body, or a line of an import, is larger than `TICKR_BODY_LIMIT`.",
            "Pass a reference to large data in the payload; the operator may raise the limit up to 1 MiB.",
            Again::Changed,
        ),
        Code::UnsupportedMediaType => (
            "The body is not declared as what this call takes.",
            "Send `Content-Type: application/json`, or `application/x-ndjson` for an import.",
            Again::Changed,
        ),
        Code::InvalidRequest => (
            "The request can be read, and is not what this call takes. Each of `errors` points at a place in the body by JSON pointer, or names a query parameter or a header.",
            "Mend what `errors` point at.",
            Again::Changed,
        ),
        Code::UnknownKind => (
            "No handler of this kind is registered in the runner that was asked.",
            "Use one of `/v1/kinds`, or deploy the runner that has the kind first.",
            Again::Changed,
        ),
        Code::InvalidPayload => (
            "The payload does not fit the schema of its kind; `errors` say where and why.",
            "Mend the payload; `/v1/kinds` has the schemas.",
            Again::Changed,
        ),
        Code::IdempotencyConflict => (
            "This Idempotency-Key belongs to another request, which was carried out. Nothing was changed.",
            "Make a key for each request, and keep it for the tries of that request only.",
            Again::Changed,
        ),
        Code::InvalidId => (
            "The id in the path is not an id.",
            "Use the id that the enqueue answered: a hyphenated UUID.",
            Again::Changed,
        ),
        Code::InvalidCursor => (
            "The cursor was not made by this listing with this filter.",
            "Use `next_cursor` of the last page with the same filter, unchanged; or begin anew without one.",
            Again::Changed,
        ),
        Code::AlreadyReplayed => (
            "The dead letter was replayed already; `replayed_as` says as which job. Nothing was made.",
            "Look at that job; if it failed as well, replay that one.",
            Again::Changed,
        ),
        Code::DeclaredInConfig => (
            "The configuration declares this, and would put it back at the next start. Nothing was changed.",
            "Change the configuration, and start the runners with it.",
            Again::Changed,
        ),
        Code::PreviousUnfinished => (
            "The previous job of this schedule has not ended, and the schedule lets none overlap. Nothing was done.",
            "Wait for that job, or cancel it.",
            Again::Changed,
        ),
        Code::RunnerStopped => (
            "The runner has stopped, or was found dead. Nothing was changed.",
            "Look for its successor in `/v1/runners`: a process that starts again is another runner.",
            Again::Changed,
        ),
        Code::TooMany => ("There may not be more of these. Nothing was changed.", "Remove some first.", Again::Changed),
        Code::Overloaded => (
            "More waits here than is allowed: for the store, or as open connections, streams, imports, or searches and counts. Nothing was accepted.",
            "Wait as long as `Retry-After` says and try again, on another runner if there is one; operators see `tickr_http_clients_turned_away_total`, `tickr_searches_refused_total` and the limits in the configuration.",
            Again::Later,
        ),
        Code::Internal => (
            "A defect in tickr or its set-up. Whether something was changed is not known.",
            "Look for the `x-request-id` of the answer in the log of the runner, and report it.",
            Again::Mended,
        ),
        Code::Stopping => (
            "This runner stops. Nothing was accepted by this request, but what an import has answered stands.",
            "Ask another runner, or this one's successor.",
            Again::Later,
        ),
        Code::StoreUnavailable => (
            "MySQL cannot be reached. Nothing was changed as far as tickr knows: a commit whose answer was lost may have arrived.",
            "Try again; with an `Idempotency-Key` nothing is done twice.",
            Again::Later,
        ),
        Code::IndexUnavailable => (
            "Redis does not answer. Jobs are accepted and run without it; only what is about Redis alone cannot be done.",
            "Look after Redis. When it is back, runners feed it again by themselves.",
            Again::Later,
        ),
    };
    Entry { meaning, remedy, again }
}

/// `docs/PROBLEMS.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from(
        "# Problems\n\nMade from the sources of the API (`internal/api/catalogue.rs`); a test compares. Every answer with a \
         status from 400 on, but for those\nof `/readyz`, is an RFC 9457 problem document, `application/problem+json`, with \
         these fields:\n\n\
         | field | holds |\n|---|---|\n\
         | `type` | `urn:tickr:problem:` and the code; stable |\n\
         | `code` | the code; stable, for programs |\n\
         | `status` | the HTTP status |\n\
         | `title` | the code in words |\n\
         | `detail` | this occurrence in words, for people; may change |\n\
         | `errors` | what exactly is wrong: `pointer` (a JSON pointer into the body, or the name of a parameter or header) and `detail` |\n\
         | `current_state` | the state of the job, with `wrong_state` and `key_taken` |\n\
         | `holder` | the job that has the unique key, with `key_taken` of a single job |\n\n\
         Heads that are no HTTP are answered by the server below the API with an empty body: 400 when they are broken, 414 \
         and 431 when they\nare too large. A client that is too slow with its head, or with reading its answer, is cut off.\n",
    );
    for code in Code::ALL {
        let Entry { meaning, remedy, again } = entry(code);
        let _ = write!(
            text,
            "\n## `{}`\n\n**{} {}.** {meaning}\n\n- What to do: {remedy}\n- Again: {}\n",
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
