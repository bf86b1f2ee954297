//! Kinds by name, with the schemas that guard enqueue.

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::panicked::caught;
use super::{Context, Handler, Kind, Outcome, Panicked, wording};
use crate::job::{Edition, Editions, Name, RetryPolicy};

/// What jobs of a kind get when they ask for nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KindDefaults {
    /// Attempts that may be burned.
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

/// One thing that is wrong with a payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where: a JSON pointer (RFC 6901) into the payload; empty for the payload as a whole.
    pub pointer: String,
    /// What, and what would be right.
    pub detail: String,
}

impl Problem {
    /// A problem at a JSON pointer.
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

impl Problem {
    /// What a parser says, as a JSON pointer and a text.
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

/// How the code of a kind came back.
#[derive(Debug)]
pub enum Ran {
    /// The handler returned.
    Returned(Outcome),
    /// The payload is not what the kind's type takes, for this reason, so the handler was not started. A binary with
    /// another version of the type may be able to read it.
    Unread(String),
}

type RunFuture = Pin<Box<dyn Future<Output = Ran> + Send>>;

/// The typed handler behind a type that the registry can hold.
trait ErasedHandler: Send + Sync {
    fn check(&self, payload: &RawValue) -> Vec<Problem>;
    fn run(self: Arc<Self>, payload: Box<RawValue>, ctx: Context) -> RunFuture;
}

struct Erased<H>(H);

impl<H: Handler> ErasedHandler for Erased<H> {
    fn check(&self, payload: &RawValue) -> Vec<Problem> {
        // The very text that the runner will parse: what passes here does not stumble there, over a field that is
        // given twice, for example.
        let mut reader = serde_json::Deserializer::from_str(payload.get());
        match serde_path_to_error::deserialize::<_, H::Payload>(&mut reader) {
            Ok(typed) => self.0.check(&typed),
            Err(error) => vec![Problem::in_json(error)],
        }
    }

    fn run(self: Arc<Self>, payload: Box<RawValue>, ctx: Context) -> RunFuture {
        // Within the future, which runs in a task of its own: the payload type is code of the kind, and may panic as well.
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

/// A plain async function as a [`Handler`].
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
    handler: Arc<dyn ErasedHandler>,
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").field("name", &self.name).field("defaults", &self.defaults).finish_non_exhaustive()
    }
}

impl Registered {
    /// The kind's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The JSON Schema (2020-12) of its payload.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Which version of the kind's type this binary has.
    #[must_use]
    pub fn edition(&self) -> Edition {
        self.edition
    }

    /// What its jobs get when they ask for nothing else.
    #[must_use]
    pub fn defaults(&self) -> &KindDefaults {
        &self.defaults
    }

    /// Everything that is wrong with `payload`, at most 20 problems: against the schema first, then what only the
    /// type and the handler know.
    ///
    /// # Errors
    /// [`Panicked`] when the type or the handler panics over it.
    pub fn check(&self, payload: &RawValue) -> Result<Vec<Problem>, Panicked> {
        caught(|| self.problems(payload)).map_err(|message| {
            // Without the message, which may quote the payload.
            tracing::error!(kind = %self.name, "the code of a kind panicked while it checked a payload");
            Panicked { kind: self.name.clone(), message }
        })
    }

    fn problems(&self, payload: &RawValue) -> Vec<Problem> {
        let mut reader = serde_json::Deserializer::from_str(payload.get());
        let value: Value = match serde_path_to_error::deserialize(&mut reader) {
            Ok(value) => value,
            Err(error) => return vec![Problem::in_json(error)],
        };
        let problems: Vec<Problem> = self
            .validator
            .iter_errors(&value)
            .take(20)
            .map(|e| Problem::at(e.instance_path().to_string(), shortened(e.to_string())))
            .collect();
        if problems.is_empty() { self.handler.check(payload) } else { problems }
    }

    /// As [`check`](Self::check), in words that quote nothing of the payload but names of its fields: for places that
    /// others read, such as a log. Where the handler alone finds fault, only the place is told.
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

    /// Read `payload` and start the handler on it, both when the future is polled. A panic of either comes out of the future.
    #[must_use]
    pub fn run(&self, payload: Box<RawValue>, ctx: Context) -> RunFuture {
        Arc::clone(&self.handler).run(payload, ctx)
    }
}

/// A validator quotes the offending value, which may be a megabyte.
fn shortened(mut text: String) -> String {
    if text.len() > 300 {
        let end = (0..=300).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The kinds that this process can run.
#[derive(Debug, Default)]
pub struct Registry {
    kinds: BTreeMap<Name, Registered>,
}

impl Registry {
    /// Without any kind.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Add an async function `fn(Payload, Context) -> Outcome`.
    ///
    /// # Panics
    /// As [`Registry::register_handler`].
    pub fn register<P, F, Fut>(&mut self, function: F) -> &mut Self
    where
        P: Kind,
        F: Fn(P, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        self.register_handler(Function { function, payload: PhantomData })
    }

    /// Add a handler with state of its own.
    ///
    /// # Panics
    /// When the kind's name is not legal or is taken: a mistake in the program, not in its input.
    #[expect(clippy::expect_used, reason = "both are mistakes in the program, found at its first start")]
    pub fn register_handler<H: Handler>(&mut self, handler: H) -> &mut Self {
        let name: Name = H::Payload::NAME.parse().expect("a kind's NAME is a legal name");
        let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<H::Payload>().to_value();
        let validator = jsonschema::validator_for(&schema).expect("a derived schema is a valid schema");
        let defaults = handler.defaults();
        let handler = Arc::new(Erased(handler));
        let edition = Edition::of_schema(&schema);
        let entry = Registered { name: name.clone(), schema, edition, validator, defaults, handler };
        assert!(self.kinds.insert(name, entry).is_none(), "kind {} is registered twice", H::Payload::NAME);
        self
    }

    /// Change the defaults of a kind, as the configuration asks. False when no such kind is registered.
    pub fn set_defaults(&mut self, kind: &str, change: impl FnOnce(&mut KindDefaults)) -> bool {
        self.kinds.get_mut(kind).map(|entry| change(&mut entry.defaults)).is_some()
    }

    /// The kind of that name.
    #[must_use]
    pub fn get(&self, kind: &str) -> Option<&Registered> {
        self.kinds.get(kind)
    }

    /// Every kind, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Registered> {
        self.kinds.values()
    }

    /// Which versions of its kinds and of a job's options this binary reads.
    #[must_use]
    pub fn editions(&self) -> Editions {
        let kinds = self.kinds.iter().map(|(name, kind)| (name.clone(), kind.edition)).collect();
        Editions { options: Edition::of_options(), kinds }
    }

    /// The names of all kinds, in order.
    #[must_use]
    pub fn names(&self) -> Vec<Name> {
        self.kinds.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::Deserialize;

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
    #[should_panic(expected = "registered twice")]
    fn a_kind_is_registered_once() {
        registry().register_handler(Post);
    }
}
