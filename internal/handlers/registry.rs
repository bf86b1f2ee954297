//! The registry: kinds by name, with the schemas that enqueue enforces.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::declared::{DeclarationVersion, DeclaredKinds, KnownKind};
use super::http::{HttpHandler, PushHandler, host_of_url};
use super::panicked::caught;
use super::report::FinishedReports;
use super::{Context, Failure, Handler, Kind, Outcome, Panicked, Room, wording};
use tickr_config::KindConfig;
use tickr_job::{DeclaredKind, Edition, Editions, KindOptions, Name, RetryPolicy, limits};

/// Defaults for jobs of a kind that set no options of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct KindDefaults {
    /// Number of attempts that a job may use.
    pub max_attempts: u32,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Backoff between attempts.
    pub retry: RetryPolicy,
}

impl Default for KindDefaults {
    fn default() -> Self {
        Self { max_attempts: 5, timeout: Duration::from_secs(300), retry: RetryPolicy::default() }
    }
}

impl KindDefaults {
    /// Return the first field with a value that no job may have, with the reason.
    fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !(1..=limits::MAX_ATTEMPTS).contains(&self.max_attempts) {
            Some(("max_attempts", "must be 1 to 100"))
        } else if self.timeout < Duration::from_millis(1) || self.timeout > limits::MAX_TIMEOUT {
            Some(("timeout", "must be 1 ms to 24 hours"))
        } else {
            self.retry.problem()
        }
    }

    /// Stop a program whose code gives this kind defaults that no job may have.
    fn assert_legal(&self, kind: &Name) {
        let problem = self.problem().map(|(field, reason)| format!("{field} of kind {kind} {reason}"));
        assert!(problem.is_none(), "the default {}", problem.unwrap_or_default());
    }

    /// Change the defaults as `[kinds.<kind>]` of the configuration requires. `retry_base`, `retry_factor` or `retry_cap`
    /// replaces a table of delays, because the operator asks for a curve.
    #[doc(hidden)]
    pub fn change(&mut self, changes: &KindConfig) {
        self.max_attempts = changes.max_attempts.unwrap_or(self.max_attempts);
        self.timeout = changes.timeout.unwrap_or(self.timeout);
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let retry = &mut self.retry;
        let asks_for_curve =
            changes.retry_base.is_some() || changes.retry_cap.is_some() || changes.retry_factor.is_some();
        if asks_for_curve && !retry.delays_ms.is_empty() {
            *retry = RetryPolicy::default();
        }
        let (base_ms, cap_ms) = (changes.retry_base.map(ms), changes.retry_cap.map(ms));
        // A base or a cap that the operator gives holds. The one that is left out follows where the two contradict.
        retry.cap_ms = cap_ms.unwrap_or_else(|| retry.cap_ms.max(base_ms.unwrap_or_default()));
        retry.base_ms = base_ms.unwrap_or_else(|| retry.base_ms.min(retry.cap_ms));
        retry.factor = changes.retry_factor.unwrap_or(retry.factor);
    }
}

/// One error in a payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// JSON pointer (RFC 6901) into the payload; empty for the payload as a whole.
    pub pointer: String,
    /// The error, and what would be right.
    pub detail: String,
}

impl Problem {
    /// Make a problem at a JSON pointer.
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

impl Problem {
    /// Turn a parser's error into a JSON pointer and a text for the client.
    #[must_use]
    pub fn in_json(error: serde_path_to_error::Error<serde_json::Error>) -> Self {
        use serde_path_to_error::Segment;
        let mut pointer = String::new();
        for segment in error.path() {
            let word = match segment {
                Segment::Seq { index } => index.to_string(),
                Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
                Segment::Enum { variant } => variant.clone(),
                Segment::Unknown => break,
            };
            pointer.push('/');
            pointer.push_str(&word);
        }
        let said = error.into_inner().to_string();
        let detail = shortened(wording::plain(&said, pointer.rsplit('/').next().unwrap_or_default()));
        if let Some(field) = wording::missing_field(&said) {
            pointer.push('/');
            pointer.push_str(field);
        }
        Self { pointer, detail }
    }
}

/// What a kind says about a payload at enqueue.
#[derive(Debug, Default)]
pub struct Checked {
    /// At most 20 problems of the first step that found any.
    pub problems: Vec<Problem>,
    /// Host that the job would call, if the payload has no problems and its kind knows one.
    pub host: Option<String>,
}

/// Outcome of a call to the code of a kind.
#[derive(Debug)]
pub enum Ran {
    /// The handler returned.
    Returned(Outcome),
    /// The kind's type refused the payload for this reason, so the handler was not started. A binary with another
    /// version of the type may be able to read it.
    Unread(String),
}

type RunFuture = Pin<Box<dyn Future<Output = Ran> + Send>>;

/// Type-erased handler, as the registry holds it.
trait ErasedHandler: Send + Sync {
    fn check(&self, payload: &RawValue) -> Checked;
    fn room(&self) -> Option<&Room> {
        None
    }
    fn run(self: Arc<Self>, payload: Box<RawValue>, ctx: Context) -> RunFuture;
}

struct Erased<H>(H);

impl<H: Handler> ErasedHandler for Erased<H> {
    fn check(&self, payload: &RawValue) -> Checked {
        // Parse the same text that the runner will parse later. A payload that passes here, for example one without
        // duplicate fields, passes there as well.
        match parse_located::<H::Payload>(payload) {
            Ok(typed) => {
                let problems = self.0.check(&typed);
                let host = if problems.is_empty() { typed.host().and_then(within_key) } else { None };
                Checked { problems, host }
            }
            Err(problem) => Checked { problems: vec![problem], host: None },
        }
    }

    fn room(&self) -> Option<&Room> {
        self.0.room()
    }

    fn run(self: Arc<Self>, payload: Box<RawValue>, ctx: Context) -> RunFuture {
        // Parse within the future, which runs in its own task: the payload type is code of the kind, and may panic as
        // well.
        Box::pin(async move {
            let typed = serde_json::from_str::<H::Payload>(payload.get());
            drop(payload);
            match typed {
                Ok(typed) => Ran::Returned(self.0.run(typed, ctx).await),
                Err(error) => Ran::Unread(shortened(error.to_string())),
            }
        })
    }
}

/// In place of the handler of a declared kind. Only its check is called: this process claims no job of the kind.
struct RemoteHandler {
    /// Host of the receiver that a process with its settings calls.
    host: Option<String>,
}

impl ErasedHandler for RemoteHandler {
    fn check(&self, _: &RawValue) -> Checked {
        Checked { problems: Vec::new(), host: self.host.clone() }
    }

    fn run(self: Arc<Self>, _: Box<RawValue>, _: Context) -> RunFuture {
        Box::pin(async { Ran::Returned(Err(Failure::retry("remote workers execute this kind"))) })
    }
}

/// The handler of a declared kind whose jobs this process hands to a receiver.
struct Pushed {
    host: Option<String>,
    handler: PushHandler,
}

impl ErasedHandler for Pushed {
    fn check(&self, _: &RawValue) -> Checked {
        Checked { problems: Vec::new(), host: self.host.clone() }
    }

    fn run(self: Arc<Self>, payload: Box<RawValue>, ctx: Context) -> RunFuture {
        Box::pin(async move { Ran::Returned(self.handler.run(payload, ctx).await) })
    }
}

/// [`Handler`] made of a plain async function.
struct Function<P, F> {
    function: F,
    payload: PhantomData<fn() -> P>,
}

impl<P, F, Fut> Handler for Function<P, F>
where
    P: Kind,
    F: Fn(P, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    type Payload = P;

    fn run(&self, payload: P, ctx: Context) -> impl Future<Output = Outcome> + Send {
        (self.function)(payload, ctx)
    }
}

/// One registered kind.
pub struct Registered {
    name: Name,
    schema: Value,
    edition: Edition,
    validator: jsonschema::Validator,
    defaults: KindDefaults,
    queue: Option<Name>,
    /// An operator declared it.
    is_declared: bool,
    /// This process runs its jobs: it has their handler, or calls their receiver.
    runs_here: bool,
    handler: Arc<dyn ErasedHandler>,
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").field("name", &self.name).field("defaults", &self.defaults).finish_non_exhaustive()
    }
}

impl Registered {
    #[expect(clippy::expect_used, reason = "both are mistakes in the program, found at its first start")]
    fn new<H: Handler>(handler: H) -> Self {
        let name: Name = H::Payload::NAME.parse().expect("a kind's NAME is a legal name");
        let name = name.fixed();
        let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<H::Payload>().to_value();
        let validator = jsonschema::validator_for(&schema).expect("a derived schema is a valid schema");
        let defaults = handler.defaults();
        defaults.assert_legal(&name);
        let edition = Edition::from_schema(&schema);
        let handler = Arc::new(Erased(handler));
        let (queue, is_declared, runs_here) = (None, false, true);
        Self { name, schema, edition, validator, defaults, queue, is_declared, runs_here, handler }
    }

    /// Make the entry of a kind that programs in other languages execute. With an HTTP client, this process calls the
    /// receiver of the kind, if it has one.
    ///
    /// # Errors
    /// Says what is wrong with the schema. A reference to a document elsewhere is wrong as well.
    pub fn declared(kind: &DeclaredKind, client: Option<&Arc<HttpHandler>>) -> Result<Self, String> {
        let host = kind.push.as_ref().and_then(|push| host_of_url(&push.url)).and_then(within_key);
        let (runs_here, handler): (bool, Arc<dyn ErasedHandler>) = match (&kind.push, client) {
            (Some(push), Some(client)) => {
                (true, Arc::new(Pushed { host, handler: PushHandler::new(Arc::clone(client), push.clone())? }))
            }
            _ => (false, Arc::new(RemoteHandler { host })),
        };
        let schema = kind.schema.clone().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        let validator = jsonschema::validator_for(&schema).map_err(|error| shortened(error.to_string()))?;
        Ok(Self {
            name: kind.name.clone(),
            edition: Edition::from_schema(&schema),
            schema,
            validator,
            defaults: KindDefaults {
                max_attempts: kind.max_attempts,
                timeout: Duration::from_millis(kind.timeout_ms),
                retry: kind.retry.clone(),
            },
            queue: kind.queue.clone(),
            is_declared: true,
            runs_here,
            handler,
        })
    }

    /// Make the entry of a kind from its payload type alone, for a process that enqueues its jobs and executes none.
    ///
    /// # Panics
    /// When the kind's name is not legal.
    #[must_use]
    pub fn without_handler<P: Kind>(changes: Option<&KindConfig>) -> Self {
        let function = |_: P, _: Context| async { Err(Failure::retry("this process only enqueues jobs of this kind")) };
        let mut entry = Self::new(Function { function, payload: PhantomData });
        if let Some(changes) = changes {
            entry.defaults.change(changes);
        }
        entry
    }

    /// Name of the kind.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The JSON Schema (2020-12) of its payload.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Version of the kind's type in this binary.
    #[must_use]
    pub fn edition(&self) -> Edition {
        self.edition
    }

    /// Defaults for jobs of the kind that set no options of their own.
    #[must_use]
    pub fn defaults(&self) -> &KindDefaults {
        &self.defaults
    }

    /// Return the defaults that a job keeps from its acceptance on. None for a kind with a handler in the program: the
    /// program that runs the job has its defaults.
    #[must_use]
    pub fn kept_options(&self) -> Option<KindOptions> {
        let timeout_ms = u64::try_from(self.defaults.timeout.as_millis()).unwrap_or(u64::MAX);
        self.is_declared.then(|| KindOptions { timeout_ms, retry: self.defaults.retry.clone() })
    }

    /// Return whether this process runs its jobs: it has their handler, or calls their receiver.
    #[must_use]
    pub fn runs_here(&self) -> bool {
        self.runs_here
    }

    /// Queue of jobs that name none. None: `default`.
    #[must_use]
    pub fn queue(&self) -> Option<&Name> {
        self.queue.as_ref()
    }

    /// Return the places for its jobs in this process, if they need more than a worker each.
    #[doc(hidden)]
    #[must_use]
    pub fn room(&self) -> Option<&Room> {
        self.handler.room()
    }

    /// Check a payload against the schema. If it passes, check it with the type and the handler. Return at most 20
    /// problems of the first step that found any.
    ///
    /// # Errors
    /// [`Panicked`] when the type or the handler panics during the check.
    pub fn check(&self, payload: &RawValue) -> Result<Vec<Problem>, Panicked> {
        self.read(payload).map(|checked| checked.problems)
    }

    /// Check a payload as [`check`](Self::check) does, and find the host that the job would call.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
    pub fn read(&self, payload: &RawValue) -> Result<Checked, Panicked> {
        caught(|| self.checked(payload)).map_err(|message| {
            // Logged without the message, which may quote the payload.
            tracing::error!(kind = %self.name, "the code of a kind panicked while it checked a payload");
            Panicked { kind: self.name.clone(), message }
        })
    }

    fn checked(&self, payload: &RawValue) -> Checked {
        let value: Value = match parse_located(payload) {
            Ok(value) => value,
            Err(problem) => return Checked { problems: vec![problem], host: None },
        };
        let problems: Vec<Problem> = self
            .validator
            .iter_errors(&value)
            .take(20)
            .map(|e| Problem::at(e.instance_path().to_string(), shortened(e.to_string())))
            .collect();
        if problems.is_empty() { self.handler.check(payload) } else { Checked { problems, host: None } }
    }

    /// As [`check`](Self::check), but the texts quote nothing of the payload except names of its fields. For logs and
    /// other places with many readers. For problems that only the handler finds, the result has the pointer alone.
    #[must_use]
    pub fn check_discreetly(&self, payload: &RawValue) -> Vec<Problem> {
        let Ok(value) = serde_json::from_str::<Value>(payload.get()) else {
            return vec![Problem::at("", "is not JSON")];
        };
        let schema = self.validator.iter_errors(&value).take(20);
        let problems: Vec<Problem> =
            schema.map(|e| Problem::at(e.instance_path().to_string(), shortened(e.masked().to_string()))).collect();
        if !problems.is_empty() {
            return problems;
        }
        match self.check(payload) {
            Ok(refused) => refused.into_iter().map(|p| Problem::at(p.pointer, "is refused by the kind")).collect(),
            Err(_) => vec![Problem::at("", "makes the code of the kind panic")],
        }
    }

    /// Read `payload` and start the handler on it. Both happen when the future is polled, and a panic of either comes
    /// out of the future.
    #[must_use]
    pub fn run(&self, payload: Box<RawValue>, ctx: Context) -> RunFuture {
        Arc::clone(&self.handler).run(payload, ctx)
    }
}

/// Parse a payload. Only one that is not a `T` is parsed again to find the place of the problem: the parser that knows
/// the places costs memory for each field.
fn parse_located<T: DeserializeOwned>(payload: &RawValue) -> Result<T, Problem> {
    serde_json::from_str(payload.get()).or_else(|_| {
        let mut reader = serde_json::Deserializer::from_str(payload.get());
        serde_path_to_error::deserialize(&mut reader).map_err(Problem::in_json)
    })
}

/// Cut a host to the length of a key. No name in DNS is as long.
fn within_key(mut host: String) -> Option<String> {
    host.truncate(host.floor_char_boundary(limits::MAX_KEY_BYTES));
    (!host.is_empty()).then_some(host)
}

/// Shorten a validator's message. It quotes the offending value, which may be a megabyte.
fn shortened(mut text: String) -> String {
    if text.len() > 300 {
        text.truncate(text.floor_char_boundary(300));
        text.push('…');
    }
    text
}

/// The kinds that this process can run, and those that it only knows because they were declared.
#[derive(Debug, Default)]
pub struct Registry {
    kinds: BTreeMap<Name, Registered>,
    declared: DeclaredKinds,
    /// Calls the receivers of declared kinds.
    client: Option<Arc<HttpHandler>>,
    /// Where results go that are too large for the rows of their jobs.
    large_results: Option<FinishedReports>,
}

impl Registry {
    /// Make a registry without kinds.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Add a kind whose handler is an async function `fn(Payload, Context) -> Outcome`.
    ///
    /// # Panics
    /// See [`Registry::register_handler`].
    pub fn register<P, F, Fut>(&mut self, function: F) -> &mut Self
    where
        P: Kind,
        F: Fn(P, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        self.register_handler(Function { function, payload: PhantomData })
    }

    /// Add a kind whose handler has its own state.
    ///
    /// # Panics
    /// When the kind's name is not legal or is already registered, or when no job may have its
    /// [defaults](Handler::defaults): 1 to 100 attempts, a time limit of 1 ms to 24 hours, and a backoff without a
    /// [`problem`](RetryPolicy::problem). These are mistakes in the program, not in its input.
    pub fn register_handler<H: Handler>(&mut self, handler: H) -> &mut Self {
        let entry = Registered::new(handler);
        assert!(
            self.kinds.insert(entry.name.clone(), entry).is_none(),
            "kind {} is registered twice",
            H::Payload::NAME
        );
        self
    }

    /// Keep results that are too large for the rows of their jobs among these reports.
    #[doc(hidden)]
    pub fn keep_large_results(&mut self, reports: FinishedReports) {
        self.large_results = Some(reports);
    }

    /// Call the receivers of declared kinds with this client.
    #[doc(hidden)]
    pub fn push_with(&mut self, client: Arc<HttpHandler>) {
        self.client = Some(client);
    }

    /// Return the client that calls the receivers of declared kinds.
    #[doc(hidden)]
    #[must_use]
    pub const fn client(&self) -> Option<&Arc<HttpHandler>> {
        self.client.as_ref()
    }

    /// Return the reports that keep large results.
    #[doc(hidden)]
    #[must_use]
    pub const fn large_results(&self) -> Option<&FinishedReports> {
        self.large_results.as_ref()
    }

    /// Change the defaults of a registered kind. An async function has no [`Handler::defaults`], so this is its only
    /// way to have its own. Return false when no such kind is registered.
    ///
    /// # Panics
    /// When no job may have the changed defaults. [`Registry::register_handler`] has the bounds.
    pub fn set_defaults(&mut self, kind: &str, change: impl FnOnce(&mut KindDefaults)) -> bool {
        let Some(entry) = self.kinds.get_mut(kind) else { return false };
        change(&mut entry.defaults);
        entry.defaults.assert_legal(&entry.name);
        true
    }

    /// Return the kind of this name of which this process has a handler.
    #[must_use]
    pub fn get(&self, kind: &str) -> Option<&Registered> {
        self.kinds.get(kind)
    }

    /// Return the kind of this name whose jobs this process runs: it has their handler, or calls their receiver.
    #[must_use]
    pub fn runnable(&self, kind: &str) -> Option<KnownKind<'_>> {
        self.find(kind).filter(|kind| kind.runs_here())
    }

    /// Names of the kinds whose jobs this process runs, in order.
    #[must_use]
    pub fn runnable_names(&self) -> Vec<Name> {
        let mut names = self.names();
        names.extend(self.declared().iter().filter(|kind| kind.runs_here()).map(|kind| kind.name().clone()));
        names.sort();
        names
    }

    /// Return the kind of this name, whether this process or remote workers run its jobs.
    #[must_use]
    pub fn find(&self, kind: &str) -> Option<KnownKind<'_>> {
        let compiled = self.get(kind).map(KnownKind::Compiled);
        compiled.or_else(|| self.declared.get(kind).map(KnownKind::Declared))
    }

    /// Know these declared kinds from now on, and no others.
    pub fn follow_declared<'k>(&self, declared: impl Iterator<Item = (&'k DeclaredKind, DeclarationVersion)>) {
        self.declared.follow(declared, self.client.as_ref());
    }

    /// Return the declared kinds, in the order of their names, without those of which this process has a handler.
    #[must_use]
    pub fn declared(&self) -> Vec<Arc<Registered>> {
        let mut declared = self.declared.all();
        declared.retain(|kind| !self.kinds.contains_key(kind.name()));
        declared
    }

    /// Names of the kinds that this process knows: those that it can run, and declared ones.
    #[must_use]
    pub fn known_names(&self) -> Vec<Name> {
        let mut names = self.names();
        names.extend(self.declared().iter().map(|kind| kind.name().clone()));
        names
    }

    /// The backoff of every kind that this process knows.
    #[must_use]
    pub fn retry_policies(&self) -> HashMap<Name, RetryPolicy> {
        let policy = |kind: &Registered| (kind.name.clone(), kind.defaults.retry.clone());
        let declared = self.declared();
        self.iter().map(policy).chain(declared.iter().map(|kind| policy(kind))).collect()
    }

    /// The time limit of one attempt, of every kind that this process knows.
    #[must_use]
    pub fn timeouts(&self) -> HashMap<Name, Duration> {
        let timeout = |kind: &Registered| (kind.name.clone(), kind.defaults.timeout);
        let declared = self.declared();
        self.iter().map(timeout).chain(declared.iter().map(|kind| timeout(kind))).collect()
    }

    /// Iterate over all kinds that this process can run, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Registered> {
        self.kinds.values()
    }

    /// Versions of the kinds and of the job options that this binary can read.
    #[must_use]
    pub fn editions(&self) -> Editions {
        let kinds = self.kinds.iter().map(|(name, kind)| (name.clone(), kind.edition)).collect();
        Editions { options: Edition::for_options(), kinds }
    }

    /// Names of all kinds, in order.
    #[must_use]
    pub fn names(&self) -> Vec<Name> {
        self.kinds.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;

    use super::*;

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Parcel {
        to: Address,
        #[schemars(range(max = 50))]
        grams: u32,
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Address {
        street: String,
    }

    impl Kind for Parcel {
        const NAME: &'static str = "parcel";
    }

    #[test]
    fn a_curve_of_the_configuration_replaces_a_table_of_delays() {
        let table = RetryPolicy::table([Duration::from_secs(9)]);
        let kind = KindDefaults { retry: table.clone(), ..KindDefaults::default() };
        let mut asked = kind.clone();
        asked.change(&KindConfig { retry_base: Some(Duration::from_secs(5)), ..KindConfig::default() });
        assert_eq!(asked.retry, RetryPolicy { base_ms: 5_000, ..RetryPolicy::default() });
        let mut kept = kind.clone();
        kept.change(&KindConfig { max_attempts: Some(3), ..KindConfig::default() });
        assert_eq!((kept.retry, kept.max_attempts), (table, 3));
    }

    #[test]
    fn a_base_or_a_cap_of_the_configuration_holds_whatever_the_kind_says() {
        let kind = KindDefaults {
            retry: RetryPolicy { base_ms: 30_000, cap_ms: 600_000, ..RetryPolicy::default() },
            ..KindDefaults::default()
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (retry_base, retry_cap, expected) in [
            (None, seconds(10), (10_000, 10_000)),
            (None, seconds(60), (30_000, 60_000)),
            (seconds(900), None, (900_000, 900_000)),
            (seconds(5), None, (5_000, 600_000)),
            (seconds(5), seconds(10), (5_000, 10_000)),
            (None, None, (30_000, 600_000)),
        ] {
            let mut asked = kind.clone();
            asked.change(&KindConfig { retry_base, retry_cap, ..KindConfig::default() });
            assert_eq!((asked.retry.base_ms, asked.retry.cap_ms), expected, "{retry_base:?} {retry_cap:?}");
        }
    }

    struct Post;

    impl Handler for Post {
        type Payload = Parcel;

        fn check(&self, parcel: &Parcel) -> Vec<Problem> {
            if parcel.to.street.is_empty() { vec![Problem::at("/to/street", "must not be empty")] } else { Vec::new() }
        }

        async fn run(&self, parcel: Parcel, _ctx: Context) -> Outcome {
            super::super::Output::json(&parcel.grams)
        }
    }

    fn registry() -> Registry {
        let mut registry = Registry::new();
        registry.register_handler(Post);
        registry
    }

    fn raw(payload: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(payload).unwrap()
    }

    fn pointers(payload: &Value) -> Vec<String> {
        registry().get("parcel").unwrap().check(&raw(payload)).unwrap().into_iter().map(|p| p.pointer).collect()
    }

    #[test]
    fn problems_point_at_what_is_wrong() {
        use serde_json::json;
        assert!(pointers(&json!({"to": {"street": "Elm"}, "grams": 5})).is_empty());
        assert_eq!(pointers(&json!({"to": {"street": 7}, "grams": 5})), ["/to/street"]);
        assert_eq!(pointers(&json!({"to": {"street": "Elm"}, "grams": 500})), ["/grams"]);
        assert_eq!(pointers(&json!({"to": {"street": ""}, "grams": 5})), ["/to/street"]);
        assert_eq!(pointers(&json!({"to": {"street": "Elm"}, "grams": 5, "x": 1})), [""]);
        assert_eq!(pointers(&json!([])), [""]);
    }

    #[test]
    fn a_field_given_twice_is_found_before_the_runner_stumbles_over_it() {
        let twice = RawValue::from_string(r#"{"to": {"street": "Elm", "street": "Oak"}, "grams": 5}"#.into()).unwrap();
        let problems = registry().get("parcel").unwrap().check(&twice).unwrap();
        assert_eq!(problems[0].pointer, "/to");
        assert!(problems[0].detail.contains("given twice"), "{problems:?}");
    }

    #[test]
    fn a_huge_value_is_not_quoted_back() {
        let problems = registry().get("parcel").unwrap().check(&raw(&Value::String("x".repeat(1 << 20)))).unwrap();
        assert!(problems[0].detail.len() < 400);
    }

    #[tokio::test]
    async fn a_payload_of_another_version_does_not_reach_the_handler() {
        let registry = registry();
        let raw = RawValue::from_string(r#"{"old":true}"#.into()).unwrap();
        let ran = registry.get("parcel").unwrap().run(raw, Context::detached("parcel")).await;
        assert!(matches!(ran, Ran::Unread(why) if why.contains("unknown field `old`")));
    }

    #[test]
    fn defaults_that_no_job_may_have_stop_the_program_when_they_are_registered() {
        type Change = fn(&mut KindDefaults);
        let refused = |change: Change| {
            let set = || registry().set_defaults("parcel", change);
            let panicked = std::panic::catch_unwind(set).expect_err("such defaults are accepted");
            panicked.downcast::<String>().map_or_else(|_| String::new(), |message| *message)
        };
        let cases: [(Change, &str); 5] = [
            (|kind| kind.max_attempts = 0, "the default max_attempts of kind parcel must be 1 to 100"),
            (|kind| kind.max_attempts = 101, "the default max_attempts of kind parcel must be 1 to 100"),
            (|kind| kind.timeout = Duration::ZERO, "the default timeout of kind parcel must be 1 ms to 24 hours"),
            (|kind| kind.timeout = Duration::MAX, "the default timeout of kind parcel must be 1 ms to 24 hours"),
            (|kind| kind.retry.base_ms = 0, "the default base_ms of kind parcel must be 1 to 86400000"),
        ];
        for (change, message) in cases {
            assert_eq!(refused(change), message);
        }
        let longest = |kind: &mut KindDefaults| (kind.max_attempts, kind.timeout) = (100, limits::MAX_TIMEOUT);
        assert!(registry().set_defaults("parcel", longest));
        assert!(!registry().set_defaults("letter", |kind| kind.max_attempts = 0), "there is no such kind");
    }

    struct Endless;

    impl Handler for Endless {
        type Payload = Parcel;

        fn defaults(&self) -> KindDefaults {
            KindDefaults { timeout: Duration::MAX, ..KindDefaults::default() }
        }

        async fn run(&self, _parcel: Parcel, _ctx: Context) -> Outcome {
            Ok(super::super::Output::default())
        }
    }

    #[test]
    #[should_panic(expected = "the default timeout of kind parcel must be 1 ms to 24 hours")]
    fn a_handler_whose_time_limit_no_clock_can_count_is_not_registered() {
        Registry::new().register_handler(Endless);
    }

    #[test]
    #[should_panic(expected = "registered twice")]
    fn a_kind_is_registered_once() {
        registry().register_handler(Post);
    }
}
