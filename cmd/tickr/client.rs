//! The HTTP client of the commands. It uses the public API and nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use reqwest::header::{AUTHORIZATION, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tickr::client::trusting;

use crate::WrongUsage;
use crate::json::Json;
use crate::print::{encoded, printable};
use crate::stream::CONNECT;

/// URL of a tickr that was started without settings.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7070";
/// Pauses between tries, before jitter.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(200);
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(3);
/// Longest time of a call, from its connection to the end of its answer.
const MAX_CALL: Duration = Duration::from_secs(90);
/// Time that a repeated call has for its answer when it begins at the end of the patience: longer than a runner waits
/// for a lock.
pub(crate) const LAST_CALL: Duration = Duration::from_secs(10);
/// Longest time for which a listing waits for its next page.
const PAGE_PATIENCE: Duration = Duration::from_secs(30);

/// The arguments of every command that talks to a running tickr.
pub(crate) fn args(command: Command) -> Command {
    command
        .arg(
            Arg::new("url")
                .long("url")
                .env("TICKR_URL")
                // It may have a password, with which every command refuses it.
                .hide_env_values(true)
                .default_value(DEFAULT_URL)
                .help("Base URL of a running tickr"),
        )
        .arg(
            Arg::new("token")
                .long("token")
                .env("TICKR_TOKEN")
                .hide_env_values(true)
                .help("Token of an API key, if the API requires one"),
        )
}

/// The argument of commands that change something: the idempotency key.
pub(crate) fn idempotency_key() -> Arg {
    Arg::new("idempotency-key")
        .long("idempotency-key")
        .value_name("KEY")
        .help("Idempotency key: repeats with the same key change nothing and get the first response")
}

/// Parameters of a filter, as flags: name in the API, flag, name of the value, help. `q` is a query that can express
/// all the others.
const FILTER: [(&str, &str, &str, &str); 19] = [
    ("state", "state", "STATE", "Only jobs in this state"),
    ("kind", "kind", "NAME", "Only jobs of this kind"),
    ("queue", "queue", "NAME", "Only jobs of this queue"),
    ("schedule", "schedule", "NAME", "Only jobs made by this schedule"),
    (
        "created_after",
        "created-after",
        "MOMENT",
        "Only jobs accepted at this time or later, such as 2026-11-01 or 2026-11-01T10:00:00Z",
    ),
    ("created_before", "created-before", "MOMENT", "Only jobs accepted before this time"),
    ("due_after", "due-after", "MOMENT", "Only jobs due at this time or later"),
    ("due_before", "due-before", "MOMENT", "Only jobs due before this time"),
    ("finished_after", "finished-after", "MOMENT", "Only jobs that ended at this time or later"),
    ("finished_before", "finished-before", "MOMENT", "Only jobs that ended before this time"),
    ("unique_key", "unique-key", "KEY", "Only jobs with this unique key"),
    ("order_key", "order-key", "KEY", "Only jobs with this order key"),
    ("limit_key", "limit-key", "KEY", "Only jobs with this limit key"),
    ("batch", "batch", "ID", "Only jobs that this batch counts"),
    ("host", "host", "HOST", "Only jobs that call this host, such as example.com or example.com:8443"),
    ("tag", "tag", "TAG", "Only jobs with this tag"),
    ("error", "error", "TEXT", "Only jobs whose last unsuccessful attempt has this text in its error"),
    ("fingerprint", "group", "GROUP", "Only failed jobs of this group; `tickr dead-letters groups` lists the groups"),
    (
        "q",
        "query",
        "WORDS",
        "Filter as one query, as in the dashboard: 'state:failed kind:email created:<2h payload.user.id:42'",
    ),
];

/// The arguments of commands that take a filter.
pub(crate) fn filter() -> impl Iterator<Item = Arg> {
    FILTER.iter().map(|(name, flag, value, help)| {
        let arg = Arg::new(*name).long(*flag).value_name(*value).help(*help);
        if *name == "q" { arg.short('q') } else { arg }
    })
}

/// Read the filter from the flags. The names are those of the API's parameters.
pub(crate) fn filter_given(matches: &ArgMatches) -> Vec<(&'static str, String)> {
    let given = |name: &'static str| matches.get_one::<String>(name).map(|value| (name, value.clone()));
    FILTER.iter().filter_map(|(name, ..)| given(name)).collect()
}

/// An answer other than the wanted one.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
struct Refusal {
    status: StatusCode,
    /// Time after which the server wants to be asked again; zero if it does not say.
    after: Duration,
    /// Code of a problem of tickr; empty for an answer of another program.
    code: String,
    said: String,
}

impl Refusal {
    /// Return whether the request may have been carried out: a proxy may have handed it on or cut the answer, tickr may
    /// have lost the confirmation of MySQL, and another request with its idempotency key may be under way.
    fn leaves_open(&self) -> bool {
        self.is_unreadable()
            || self.status.is_server_error()
            || self.status == StatusCode::CONFLICT && !self.after.is_zero()
    }

    /// Return whether the status is one of success and the body cannot be read: it is cut, or not of tickr.
    fn is_unreadable(&self) -> bool {
        self.status.is_success()
    }

    /// Return whether tickr says that the request was not carried out, now or at an earlier try with its idempotency
    /// key. A refusal of the caller, or for the moment, says nothing about earlier tries.
    fn is_final(&self) -> bool {
        let is_of_caller = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&self.status);
        let is_of_moment = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&self.status)
            || !self.after.is_zero();
        !self.code.is_empty()
            && !self.is_of_used_key()
            && self.status.is_client_error()
            && !is_of_caller
            && !is_of_moment
    }

    /// Return whether another request with the key was carried out, such as an earlier run whose answer was lost.
    fn is_of_used_key(&self) -> bool {
        self.code == "idempotency_conflict"
    }

    /// Return whether another runner may have a different opinion: during a rollout only some know a new kind.
    fn is_of_runner(&self) -> bool {
        self.code == "unknown_kind"
    }
}

/// A request with an idempotency key that got no good answer.
pub(crate) enum Failed {
    /// It was not carried out.
    NotDone(anyhow::Error),
    /// It may have been carried out.
    Unknown(anyhow::Error),
}

/// Return whether another request with the idempotency key of this call was carried out.
pub(crate) fn is_for_a_used_key(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(Refusal::is_of_used_key)
}

/// Return whether a call that failed may work in a moment: while a server restarts or is busy, or a proxy cannot reach
/// its server or cuts an answer.
fn may_pass(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) => {
            let status = refusal.status;
            status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() || refusal.is_unreadable()
        }
        None => error.downcast_ref::<reqwest::Error>().is_some_and(|error| !error.is_builder()),
    }
}

/// Say that an answer with this status comes from another program, such as a proxy in front of tickr.
pub(crate) fn not_of_tickr(url: &str, status: StatusCode) -> String {
    format!("{url} answered {status}, which is not an answer of tickr")
}

/// Return whether a request may have been carried out although no good answer came.
pub(crate) fn may_be_done(error: &anyhow::Error) -> bool {
    let is_lost =
        error.downcast_ref::<reqwest::Error>().is_some_and(|error| !error.is_connect() && !error.is_builder());
    is_lost || error.downcast_ref::<Refusal>().is_some_and(Refusal::leaves_open)
}

/// Return whether tickr answered that there is no such thing.
pub(crate) fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == "not_found")
}

/// Return whether the time of a call was over before its answer was there.
fn is_timeout(error: &anyhow::Error) -> bool {
    error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_timeout)
}

/// Return whether no request with this idempotency key can ever be sent.
fn is_unsendable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_builder)
}

/// HTTP client of one running tickr.
pub(crate) struct Client {
    base: reqwest::Url,
    /// The base URL without a slash at its end. It has no user and no password.
    url: String,
    /// The value of the header `Authorization`, marked as secret.
    authorization: Option<HeaderValue>,
    actor: String,
    http: reqwest::Client,
}

impl Client {
    pub(crate) fn from_matches(matches: &ArgMatches) -> anyhow::Result<Self> {
        Self::from_matches_or(matches, DEFAULT_URL)
    }

    /// Do the same as [`from_matches`](Self::from_matches), with this URL where the caller names none.
    pub(crate) fn from_matches_or(matches: &ArgMatches, usual: &str) -> anyhow::Result<Self> {
        // An empty variable counts as not set, as for settings: a compose file passes `TICKR_TOKEN=`.
        let text = |name: &str| matches.get_one::<String>(name).map(|text| text.trim()).filter(|text| !text.is_empty());
        let is_named = matches.value_source("url") != Some(ValueSource::DefaultValue);
        let base = base_url(text("url").filter(|_| is_named).unwrap_or(usual))?;
        let authorization = text("token").map(authorization).transpose()?;
        let http = trusting(&base, || reqwest::Client::builder().timeout(MAX_CALL).connect_timeout(CONNECT))?;
        let url = base.as_str().trim_end_matches('/').to_owned();
        Ok(Self { base, url, authorization, actor: actor(), http })
    }

    /// The base URL, for clients of other kinds.
    pub(crate) const fn base(&self) -> &reqwest::Url {
        &self.base
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Json> {
        self.call(self.http.get(self.address(path)?)).await
    }

    /// Send a GET. Repeat it until `end` while the server cannot answer, for example because it restarts. `say` is
    /// called with a message at the first failure, and when the server answers again.
    pub(crate) async fn get_until(&self, path: &str, end: Instant, say: impl Fn(&str)) -> anyhow::Result<Json> {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.get(path).await {
                Ok(answer) => {
                    if pause > FIRST_PAUSE {
                        say(&format!("{} is back", self.url));
                    }
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !may_pass(&error) {
                return Err(error);
            }
            if pause == FIRST_PAUSE {
                say(&format!("no answer now ({error:#}); trying again"));
            }
            let wanted = error.downcast_ref::<Refusal>().map(|refusal| refusal.after).unwrap_or_default();
            tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0).max(wanted).min(left)).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Read a page of a listing. A page behind the first one is requested again while the server is busy or restarts:
    /// otherwise the pages before it would be lost.
    pub(crate) async fn get_page(&self, path: &str, is_first: bool) -> anyhow::Result<Json> {
        let patience = if is_first { Duration::ZERO } else { PAGE_PATIENCE };
        self.get_until(path, Instant::now() + patience, |_| {}).await
    }

    /// Read pages until there are as many rows as the flag `limit` requests. `path` ends with `?` or `&`. Return the
    /// last page, with the rows of all in `data`.
    pub(crate) async fn get_pages(&self, path: &str, matches: &ArgMatches) -> anyhow::Result<Json> {
        let wanted = *matches.get_one::<u32>("limit").unwrap_or(&20) as usize;
        let (mut rows, mut cursor) = (Vec::new(), String::new());
        loop {
            let size = (wanted - rows.len()).clamp(1, 200);
            let page = self.get_page(&format!("{path}limit={size}{cursor}"), cursor.is_empty()).await?;
            rows.extend(page.rows("data"));
            rows.truncate(wanted);
            let next = page.get("next_cursor").and_then(Value::as_str).map(encoded);
            match next {
                Some(next) if rows.len() < wanted => cursor = format!("&cursor={next}"),
                _ => return Ok(page.with("data", &Json::list(&rows))),
            }
        }
    }

    /// Get a response that is a text. A problem document becomes an error, as in [`read`](Self::read).
    pub(crate) async fn get_text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.send(self.http.get(self.address(path)?)).await?;
        if response.status().is_success() {
            return Ok(response.text().await?);
        }
        bail!("{} answered with {}", self.url, self.read(response).await?)
    }

    /// Send a GET, and return the response with whatever status it has.
    pub(crate) async fn probe(&self, path: &str) -> anyhow::Result<reqwest::Response> {
        self.send(self.http.get(self.address(path)?)).await
    }

    /// Send a PUT: for changes that have the same result however often they are repeated.
    pub(crate) async fn put(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Json> {
        self.change(self.http.put(self.address(path)?).json(body), false).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Json> {
        self.change(self.http.patch(self.address(path)?).json(body), false).await
    }

    pub(crate) async fn delete(&self, path: &str) -> anyhow::Result<Json> {
        self.change_silently(self.http.delete(self.address(path)?)).await
    }

    /// Send a DELETE whose answer has a body.
    pub(crate) async fn delete_and_read(&self, path: &str) -> anyhow::Result<Json> {
        self.change(self.http.delete(self.address(path)?), false).await
    }

    /// Send a POST without fields, whose answer has no body.
    pub(crate) async fn tell(&self, path: &str) -> anyhow::Result<()> {
        self.change_silently(self.http.post(self.address(path)?).json(&json!({}))).await.map(drop)
    }

    /// Send a POST that changes nothing, such as a preview.
    pub(crate) async fn ask(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Json> {
        self.call(self.http.post(self.address(path)?).json(body)).await
    }

    /// Send a POST, with an idempotency key if there is one. A repeated request with the same idempotency key changes
    /// nothing and gets the first response.
    pub(crate) async fn post(&self, path: &str, body: &impl Serialize, key: Option<&String>) -> anyhow::Result<Json> {
        let request = self.http.post(self.address(path)?).json(body);
        match key {
            Some(key) => self.change(request.header("Idempotency-Key", key), true).await,
            None => self.change(request, false).await,
        }
    }

    /// Send a POST with this idempotency key. When it may have been carried out although no good answer came, repeat it
    /// for as long as `patience`: the answer to a repeated request says how the first one ended. If the request
    /// `may_be_repeated`, an earlier command may have sent it with this key, so only a refusal shows that it was not
    /// carried out. `say` is called with a message at the first failure.
    pub(crate) async fn post_until_known(
        &self,
        path: &str,
        body: &impl Serialize,
        key: &str,
        may_be_repeated: bool,
        patience: Duration,
        say: impl Fn(&str),
    ) -> Result<Json, Failed> {
        let address = self.address(path).map_err(|error| Failed::NotDone(error.into()))?;
        let (mut pause, mut end, began) = (FIRST_PAUSE, None::<Instant>, Instant::now());
        loop {
            let left = end.map_or(patience, |end| end.saturating_duration_since(Instant::now()));
            let longest = (left + LAST_CALL).min(MAX_CALL);
            let request = self.http.post(&address).json(body).timeout(longest);
            let request = request.header("Idempotency-Key", key);
            let error = match self.call(request).await.and_then(|answer| self.with_a_body(answer)) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let refusal = error.downcast_ref::<Refusal>();
            let may_be_done = may_be_done(&error);
            let is_final = |refusal: &Refusal| refusal.is_final() && (end.is_none() || !refusal.is_of_runner());
            if refusal.is_some_and(is_final) || is_unsendable(&error) {
                return Err(Failed::NotDone(error));
            }
            if end.is_none() && !may_be_done {
                return Err(if may_be_repeated { Failed::Unknown(error) } else { Failed::NotDone(error) });
            }
            let wanted = refusal.map(|refusal| refusal.after).unwrap_or_default();
            // A server that takes the request and says nothing has used up the patience meanwhile.
            let first = if is_timeout(&error) { began } else { Instant::now() };
            let left = end.get_or_insert_with(|| first + patience).saturating_duration_since(Instant::now());
            if left.is_zero() || (!may_pass(&error) && wanted.is_zero()) {
                return Err(Failed::Unknown(error));
            }
            if pause == FIRST_PAUSE {
                say(&format!("no answer now ({error:#}); trying again"));
            }
            tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0).max(wanted).min(left)).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Return the URL of a path. Refuse a part that is empty, `.` or `..`, also if it is percent-encoded: it would lead to
    /// another path.
    pub(crate) fn address(&self, path: &str) -> Result<String, WrongUsage> {
        let (parts, _) = path.split_once('?').unwrap_or((path, ""));
        if parts.split('/').skip(1).any(|part| matches!(part, "" | "." | ".." | "%2E" | "%2E%2E")) {
            return Err(WrongUsage("an id or a name is neither empty nor `.` nor `..`".into()));
        }
        Ok(format!("{}{path}", self.url))
    }

    /// Base URL of the tickr that this client calls.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Send a request with the token and the name of the caller.
    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<reqwest::Response> {
        let request = match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        };
        let (http, request) = request.header("tickr-actor", &self.actor).build_split();
        let request = request.context("the request cannot be sent")?;
        let (is_read, is_keyed) = (request.method() == Method::GET, request.headers().contains_key("idempotency-key"));
        let response = http.execute(request).await.map_err(|error| {
            let said = if is_read || error.is_connect() {
                format!(
                    "no tickr answers at {}; start one with `tickr dev`, or name another with --url or TICKR_URL",
                    self.url
                )
            } else {
                format!("{} did not answer, and the change may have been made; {}", self.url, way_on(is_keyed))
            };
            anyhow::Error::new(error).context(said)
        })?;
        // The client follows no redirect.
        if response.status().is_redirection() {
            let to = response.headers().get(LOCATION).map(HeaderValue::as_bytes).unwrap_or_default();
            let to = printable(&String::from_utf8_lossy(to));
            bail!("{} redirects to {to}; name the URL behind the redirect with --url or TICKR_URL", self.url);
        }
        Ok(response)
    }

    async fn call(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Json> {
        self.read(self.send(request).await?).await
    }

    /// Send a request that changes something, and read the answer, which has a body. An answer such as that of a proxy
    /// that lost its server leaves open whether the change was made, and the error says so.
    async fn change(&self, request: reqwest::RequestBuilder, is_keyed: bool) -> anyhow::Result<Json> {
        let answered = self.call(request).await.and_then(|answer| self.with_a_body(answer));
        answered.map_err(|error| told_as_open(error, is_keyed))
    }

    /// Do the same without an idempotency key, where the answer may have no body.
    async fn change_silently(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Json> {
        self.call(request).await.map_err(|error| told_as_open(error, false))
    }

    /// Refuse an answer without a body where tickr sends one.
    fn with_a_body(&self, answer: Json) -> anyhow::Result<Json> {
        if !answer.is_null() {
            return Ok(answer);
        }
        let said = format!("{}: this is not a tickr server, or its answer was cut: it has no body", self.url);
        Err(Refusal { status: StatusCode::NO_CONTENT, after: Duration::ZERO, code: String::new(), said }.into())
    }

    /// Read a response. A problem document becomes an error that tells the operator what is wrong.
    pub(crate) async fn read(&self, response: reqwest::Response) -> anyhow::Result<Json> {
        let status = response.status();
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null.into());
        }
        let after = response.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse::<u64>().ok());
        let after = Duration::from_secs(after.unwrap_or_default());
        let refusal = |code, said| Err(anyhow::Error::new(Refusal { status, after, code, said }));
        let refused = |said: String| refusal(String::new(), said);
        let broke_off = || format!("the answer of {} broke off; a change may have been made all the same", self.url);
        let bytes = response.bytes().await.with_context(broke_off)?;
        let body = Json::parse(&bytes);
        if status.is_success() {
            let cut = |error| format!("{}: this is not a tickr server, or its answer was cut: {error}", self.url);
            return body.or_else(|error| refused(cut(error)));
        }
        let body = body.map(Json::into_value).unwrap_or_default();
        let word = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        if word("code").is_empty() {
            return refused(not_of_tickr(&self.url, status));
        }
        let mut lines = format!("{} ({})", word("detail"), word("code"));
        for error in body.get("errors").and_then(Value::as_array).into_iter().flatten() {
            let part = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
            lines.push_str(&format!("\n  {}: {}", part("pointer"), part("detail")));
        }
        refusal(word("code"), lines)
    }
}

/// Say of a failed change that it may have been made, if the error leaves that open.
fn told_as_open(error: anyhow::Error, is_keyed: bool) -> anyhow::Error {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) if refusal.leaves_open() && refusal.code != "stopping" => {
            error.context(format!("the change may have been made; {}", way_on(is_keyed)))
        }
        _ => error,
    }
}

/// Return the advice for a change of which it is not known whether it was made.
const fn way_on(is_keyed: bool) -> &'static str {
    if is_keyed { "repeat it with the same --idempotency-key" } else { "look before you repeat it" }
}

/// Return the id of what a request made. An answer without an id is not one of tickr. It may be that of a proxy, which
/// may have handed the request on.
pub(crate) fn id_of(made: &Value) -> anyhow::Result<String> {
    let id = made.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
    id.map(str::to_owned)
        .context("the answer has no id: this is not a tickr server; the change may have been made all the same")
}

/// Read the URL of a running tickr. An error quotes no password of it.
fn base_url(text: &str) -> Result<reqwest::Url, WrongUsage> {
    let right = "write it as in --url http://127.0.0.1:7070";
    let wrong = |what: &str| WrongUsage(format!("--url or TICKR_URL {what}; {right}"));
    // The comma could stand in a host: `http://a,http://b` is the host `a,http`.
    if text.split(',').skip(1).any(|more| more.trim_start().starts_with("http")) {
        return Err(wrong("names several servers, and a command takes one"));
    }
    let url = reqwest::Url::parse(text).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("has neither http:// nor https:// at its beginning"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(WrongUsage(
            "--url or TICKR_URL has a user or a password; the API takes --token or TICKR_TOKEN".into(),
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("has a part behind ? or #"));
    }
    Ok(url)
}

/// Return the value of the header for a token. An error does not quote it.
fn authorization(token: &str) -> Result<HeaderValue, WrongUsage> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| WrongUsage("--token or TICKR_TOKEN has a character that no token has".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Name of the caller for the audit, such as `ada@build-7`: user and host.
fn actor() -> String {
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |text: &str| text.chars().filter(char::is_ascii_graphic).take(31).collect::<String>();
    [plain(&user), plain(&host)].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("@")
}
