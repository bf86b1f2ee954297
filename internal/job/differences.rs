//! The traits that failed jobs have more often than jobs that passed.
//!
//! Two samples of jobs are compared trait by trait: a tag, a key, a runner, a value in the payload. The measure is the
//! difference of the two shares. Shares of samples vary by chance, so a trait is ranked by the *least* difference that
//! agrees with the samples: the lower end of a confidence interval (Agresti and Caffo, 2000). The confidence of 99 %
//! holds for all compared traits together (Bonferroni), so among thousands of traits none stands out by chance alone.

use std::collections::HashMap;
use std::fmt;

use super::PayloadPath;

/// Failed jobs that a trait must have at least.
const MIN_FAILED: u64 = 5;
/// Jobs of each sample from which on they are compared.
const MIN_SAMPLE: u64 = 10;
/// Least difference of the shares that is worth a look.
const MIN_DIFFERENCE: f64 = 0.05;
/// Probability that any trait without influence is found, of all compared ones together.
const ERROR_RATE: f64 = 0.01;
/// Most differences in one answer.
const MAX_FOUND: usize = 20;

/// A property in which jobs may differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attribute {
    /// Kind of the job.
    Kind,
    /// Queue of the job.
    Queue,
    /// Host that the job calls.
    Host,
    /// Unique key.
    UniqueKey,
    /// Order key.
    OrderKey,
    /// Limit key.
    LimitKey,
    /// A tag. A job may have several.
    Tag,
    /// Runner that executed the last attempt.
    Runner,
    /// Machine of that runner.
    RunnerHost,
    /// Version of that runner.
    Version,
    /// Number of attempts used.
    Attempts,
    /// A field at the top of the payload.
    Payload(String),
}

impl Attribute {
    /// Return whether jobs without a value are worth a trait of their own.
    const fn may_be_absent(&self) -> bool {
        matches!(self, Self::Host | Self::UniqueKey | Self::OrderKey | Self::LimitKey | Self::Payload(_))
    }

    /// Return the words of the filter bar that find jobs with this value, if the filter has a field for it. `value` is
    /// JSON.
    #[must_use]
    pub fn search(&self, value: &str) -> Option<String> {
        let text = serde_json::from_str::<String>(value);
        // A filter text has no line breaks and other control characters.
        if text.as_ref().is_ok_and(|text| text.is_empty() || text.chars().any(char::is_control)) {
            return None;
        }
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let field = match self {
            Self::Kind => "kind",
            Self::Queue => "queue",
            Self::Host => "host",
            Self::UniqueKey => "unique_key",
            Self::OrderKey => "order",
            Self::LimitKey => "limit",
            Self::Tag => "tag",
            Self::Runner | Self::RunnerHost | Self::Version | Self::Attempts => return None,
            Self::Payload(field) => {
                format!("\"{field}\"").parse::<PayloadPath>().ok()?;
                let wanted = text.map_or_else(|_| value.to_owned(), |text| quoted(&text));
                return Some(format!("{self}:{wanted}"));
            }
        };
        Some(format!("{field}:{}", quoted(&text.ok()?)))
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kind => "kind",
            Self::Queue => "queue",
            Self::Host => "host",
            Self::UniqueKey => "unique_key",
            Self::OrderKey => "order_key",
            Self::LimitKey => "limit_key",
            Self::Tag => "tag",
            Self::Runner => "runner",
            Self::RunnerHost => "runner_host",
            Self::Version => "version",
            Self::Attempts => "attempts",
            Self::Payload(field) => {
                let plain = field.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-') && !field.is_empty();
                return if plain { write!(f, "payload.{field}") } else { write!(f, "payload.\"{field}\"") };
            }
        })
    }
}

/// The traits of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobTraits {
    /// Attributes with their values as JSON.
    pub values: Vec<(Attribute, String)>,
    /// Fields of the payload whose value is no trait, such as lists and long texts.
    pub fields: Vec<String>,
    /// True if the payload was read.
    pub has_payload: bool,
}

impl JobTraits {
    /// Add a value that is a text.
    pub fn add(&mut self, attribute: Attribute, value: &str) {
        self.values.push((attribute, serde_json::Value::from(value).to_string()));
    }
}

/// Counts of the traits of a number of jobs.
#[derive(Clone, Debug, Default)]
pub struct TraitCounts {
    /// Number of jobs.
    pub jobs: u64,
    /// Number of jobs whose payload was read.
    pub payloads: u64,
    values: HashMap<Attribute, HashMap<String, u64>>,
    /// Jobs that have any value.
    present: HashMap<Attribute, u64>,
}

impl TraitCounts {
    /// Most fields of payloads that are counted in one sample.
    const MAX_FIELDS: usize = 500;

    /// Count a failed job.
    pub fn add(&mut self, job: &JobTraits) {
        self.count(job, |_, _| true);
    }

    /// Count a job that passed, as far as its traits are those of failed jobs.
    pub fn add_as_in(&mut self, job: &JobTraits, failed: &Self) {
        self.count(job, |attribute, value| failed.of(attribute, value) >= MIN_FAILED);
    }

    fn count(&mut self, job: &JobTraits, keeps: impl Fn(&Attribute, &str) -> bool) {
        self.jobs += 1;
        self.payloads += u64::from(job.has_payload);
        let mut tagged = false;
        for (attribute, value) in &job.values {
            if *attribute != Attribute::Tag || !std::mem::replace(&mut tagged, true) {
                self.note_present(attribute.clone());
            }
            if keeps(attribute, value) {
                *self.values.entry(attribute.clone()).or_default().entry(value.clone()).or_default() += 1;
            }
        }
        for field in &job.fields {
            self.note_present(Attribute::Payload(field.clone()));
        }
    }

    fn note_present(&mut self, attribute: Attribute) {
        if self.present.len() < Self::MAX_FIELDS || self.present.contains_key(&attribute) {
            *self.present.entry(attribute).or_default() += 1;
        }
    }

    fn of(&self, attribute: &Attribute, value: &str) -> u64 {
        self.values.get(attribute).and_then(|values| values.get(value)).copied().unwrap_or_default()
    }

    /// Return the number of jobs that may have this attribute.
    const fn base(&self, attribute: &Attribute) -> u64 {
        if matches!(attribute, Attribute::Payload(_)) { self.payloads } else { self.jobs }
    }

    fn without(&self, attribute: &Attribute) -> u64 {
        self.base(attribute).saturating_sub(self.present.get(attribute).copied().unwrap_or_default())
    }
}

/// A trait that failed jobs have more often.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The attribute.
    pub attribute: Attribute,
    /// Its value as JSON; absent if the jobs have no value.
    pub value: Option<String>,
    /// Failed jobs with the trait, and the number that was compared.
    pub failed: (u64, u64),
    /// Jobs that passed with the trait, and the number that was compared.
    pub passed: (u64, u64),
    /// The least difference of the shares that agrees with the samples.
    pub at_least: f64,
}

/// The differences of two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Differences {
    /// The differences, the greatest first.
    pub found: Vec<Difference>,
    /// Number of traits that were compared.
    pub compared: u64,
}

/// Compare failed jobs with jobs that passed.
#[must_use]
pub fn differences(failed: &TraitCounts, passed: &TraitCounts) -> Differences {
    let mut candidates = Vec::new();
    let mut put = |attribute: &Attribute, value: Option<&str>, with: u64, without: u64| {
        let (of_failed, of_passed) = (failed.base(attribute), passed.base(attribute));
        if with >= MIN_FAILED && of_failed >= MIN_SAMPLE && of_passed >= MIN_SAMPLE {
            let (value, attribute) = (value.map(str::to_owned), attribute.clone());
            let (failed, passed) = ((with, of_failed), (without, of_passed));
            candidates.push(Difference { attribute, value, failed, passed, at_least: 0.0 });
        }
    };
    for (attribute, values) in &failed.values {
        for (value, count) in values {
            put(attribute, Some(value), *count, passed.of(attribute, value));
        }
    }
    let mut known: Vec<&Attribute> = failed.present.keys().chain(passed.present.keys()).collect();
    known.sort_unstable();
    known.dedup();
    for attribute in known.into_iter().filter(|attribute| attribute.may_be_absent()) {
        put(attribute, None, failed.without(attribute), passed.without(attribute));
    }
    let compared = candidates.len() as u64;
    let width = deviations(ERROR_RATE / candidates.len().max(1) as f64);
    for one in &mut candidates {
        one.at_least = least_difference(one.failed, one.passed, width);
    }
    let mut found: Vec<Difference> = candidates.into_iter().filter(|one| one.at_least >= MIN_DIFFERENCE).collect();
    found.sort_by(|a, b| {
        let order = b.at_least.total_cmp(&a.at_least);
        order.then_with(|| (&a.attribute, &a.value).cmp(&(&b.attribute, &b.value)))
    });
    found.truncate(MAX_FOUND);
    Differences { found, compared }
}

/// Return the lower end of the interval for the difference of two shares, `width` standard deviations below its middle.
/// One success and one failure are added to each sample, which keeps the interval honest for small samples.
fn least_difference(a: (u64, u64), b: (u64, u64), width: f64) -> f64 {
    let share = |(with, of): (u64, u64)| {
        let of = of as f64 + 2.0;
        let share = (with as f64 + 1.0) / of;
        (share, share * (1.0 - share) / of)
    };
    let ((first, one), (second, other)) = (share(a), share(b));
    first - second - width * (one + other).sqrt()
}

/// Return how many standard deviations a normal variable exceeds with this probability, below 0.5. The error of the
/// approximation is less than 0.00045 (Abramowitz and Stegun 26.2.23).
fn deviations(probability: f64) -> f64 {
    let t = (-2.0 * probability.ln()).sqrt();
    let over = (0.010_328 * t + 0.802_853).mul_add(t, 2.515_517);
    let under = ((0.001_308 * t + 0.189_269).mul_add(t, 1.432_788)).mul_add(t, 1.0);
    t - over / under
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn job(values: &[(Attribute, &str)]) -> JobTraits {
        let mut job = JobTraits { has_payload: true, ..JobTraits::default() };
        for (attribute, value) in values {
            job.add(attribute.clone(), value);
        }
        job
    }

    fn region() -> Attribute {
        Attribute::Payload("region".to_owned())
    }

    #[test]
    fn the_quantiles_are_those_of_the_normal_distribution() {
        for (probability, wanted) in [(0.05, 1.6449), (0.01, 2.3263), (0.001, 3.0902), (1e-6, 4.7534)] {
            assert!((deviations(probability) - wanted).abs() < 0.000_5, "{probability}");
        }
    }

    #[test]
    fn a_value_that_most_failures_and_few_successes_have_comes_first() {
        let (mut failed, mut passed) = (TraitCounts::default(), TraitCounts::default());
        for n in 0..300 {
            let place = if n % 20 == 0 { "us" } else { "eu" };
            let tag = if n % 2 == 0 { "night" } else { "day" };
            failed.add(&job(&[(region(), place), (Attribute::Tag, tag), (Attribute::Queue, "default")]));
        }
        for n in 0..900 {
            let place = if n % 10 < 3 { "eu" } else { "us" };
            let tag = if n % 5 < 2 { "night" } else { "day" };
            passed.add_as_in(&job(&[(region(), place), (Attribute::Tag, tag), (Attribute::Queue, "default")]), &failed);
        }
        let differences = differences(&failed, &passed);
        let first = &differences.found[0];
        assert_eq!((&first.attribute, first.value.as_deref()), (&region(), Some("\"eu\"")), "{differences:?}");
        assert_eq!((first.failed, first.passed), ((285, 300), (270, 900)));
        assert!(first.at_least > 0.5 && first.at_least < 0.65, "{differences:?}");
        assert_eq!(differences.found.len(), 1, "ten points more of a tag may be chance: {differences:?}");
    }

    #[test]
    fn a_field_that_failures_lack_is_found_as_absent() {
        let (mut failed, mut passed) = (TraitCounts::default(), TraitCounts::default());
        let with = JobTraits { fields: vec!["lines".to_owned()], has_payload: true, ..JobTraits::default() };
        let without = JobTraits { has_payload: true, ..JobTraits::default() };
        for n in 0..100 {
            failed.add(if n < 90 { &without } else { &with });
            passed.add_as_in(if n < 5 { &without } else { &with }, &failed);
        }
        let found = differences(&failed, &passed).found;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].value.as_deref(), found[0].failed, found[0].passed), (None, (90, 100), (5, 100)));
    }

    /// Each round compares two samples of the same jobs. One finding in a hundred rounds is within the error rate.
    #[test]
    fn samples_of_the_same_jobs_show_no_difference() {
        let mut random = StdRng::seed_from_u64(7);
        let mut draw = || {
            let mut job = JobTraits { has_payload: true, ..JobTraits::default() };
            for field in 0..20 {
                let value = random.random_range(0..(field + 2));
                job.values.push((Attribute::Payload(format!("f{field}")), value.to_string()));
            }
            job.add(Attribute::Tag, if random.random_bool(0.3) { "a" } else { "b" });
            job
        };
        let mut wrong = 0;
        for _ in 0..100 {
            let (mut failed, mut passed) = (TraitCounts::default(), TraitCounts::default());
            (0..200).for_each(|_| failed.add(&draw()));
            (0..400).for_each(|_| passed.add_as_in(&draw(), &failed));
            wrong += differences(&failed, &passed).found.len();
        }
        assert!(wrong <= 3, "{wrong}");
    }

    #[test]
    fn small_samples_are_not_compared() {
        let (mut failed, mut passed) = (TraitCounts::default(), TraitCounts::default());
        (0..9).for_each(|_| failed.add(&job(&[(region(), "eu")])));
        (0..500).for_each(|_| passed.add_as_in(&job(&[(region(), "us")]), &failed));
        assert_eq!(differences(&failed, &passed), Differences::default());
    }

    #[test]
    fn a_value_leads_to_the_jobs_that_have_it() {
        let search = |attribute: Attribute, value: &str| attribute.search(value);
        assert_eq!(search(Attribute::Tag, "\"a b\"").unwrap(), "tag:\"a b\"");
        assert_eq!(search(region(), "\"e\\\"u\"").unwrap(), "payload.region:\"e\\\"u\"");
        assert_eq!(search(Attribute::Payload("a b".into()), "1.10").unwrap(), "payload.\"a b\":1.10");
        assert_eq!(search(Attribute::Payload("a\"b".into()), "1"), None, "the filter has no such path");
        assert_eq!(search(region(), "\"two\\nlines\""), None);
        assert_eq!(search(Attribute::Version, "\"1.2\""), None);
        for (attribute, value) in [(region(), "\"e\\\\u\""), (Attribute::OrderKey, "\"x\"")] {
            let mut filter = crate::Filter::default();
            let words = attribute.search(value).unwrap();
            crate::query::add(&mut filter, &words, chrono::Utc::now()).unwrap();
        }
    }
}
