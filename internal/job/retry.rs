//! The delay before a failed job runs again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::limits;

/// Backoff. Either exponential: `min(base × factor^(n−1), cap)` after the n-th used attempt. Or a table: the n-th delay
/// of `delays_ms`, and the last one when the table is over. Both ± `jitter`.
///
/// A kind has one (`KindDefaults::retry`), and a job may have its own, which is stored with its options. A binary
/// refuses a stored policy with a field that it does not know, so a new field also gets a value in
/// [`Edition::for_options`](crate::Edition::for_options).
///
/// The jitter spreads jobs that failed together, so that a target that recovers is not overloaded again. The resulting
/// time is written to MySQL with the verdict; no process sleeps until then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// Delay after the first failure, in milliseconds.
    pub base_ms: u64,
    /// Growth from one delay to the next; 1.0 keeps it constant.
    pub factor: f64,
    /// Longest delay before jitter, in milliseconds.
    pub cap_ms: u64,
    /// Share of the delay by which it varies up and down, 0.0 to 1.0.
    pub jitter: f64,
    /// Delays after the first, the second, … used attempt, in milliseconds. If there are any, they apply instead of
    /// `base_ms`, `factor` and `cap_ms`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delays_ms: Vec<u64>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { base_ms: 1_000, factor: 2.0, cap_ms: 60_000, jitter: 0.1, delays_ms: Vec::new() }
    }
}

impl RetryPolicy {
    /// Make a policy of exact delays: after the first used attempt, after the second, and so on. The last one repeats.
    #[must_use]
    pub fn table(delays: impl IntoIterator<Item = Duration>) -> Self {
        let millis = |delay: Duration| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Self { jitter: 0.0, delays_ms: delays.into_iter().map(millis).collect(), ..Self::default() }
    }

    /// Return the delay after the `burned`-th used attempt (1 = the first). The caller draws `chance` from 0.0..=1.0.
    #[must_use]
    pub fn delay(&self, burned: u32, chance: f64) -> Duration {
        let place = burned.saturating_sub(1);
        let in_table = self.delays_ms.get(place as usize).or(self.delays_ms.last());
        let plain = match in_table {
            Some(delay) => *delay as f64,
            None => {
                let exponent = i32::try_from(place).unwrap_or(i32::MAX);
                (self.base_ms as f64 * self.factor.powi(exponent)).min(self.cap_ms as f64)
            }
        };
        let spread = 1.0 + self.jitter.clamp(0.0, 1.0) * (2.0 * chance.clamp(0.0, 1.0) - 1.0);
        Duration::from_secs_f64((plain * spread).max(0.0) / 1_000.0)
    }

    /// Return the first invalid field of the policy with the reason, or `None` if all are valid.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
        if self.base_ms == 0 || self.base_ms > DAY_MS {
            Some(("base_ms", "must be 1 to 86400000"))
        } else if self.cap_ms < self.base_ms || self.cap_ms > 7 * DAY_MS {
            Some(("cap_ms", "must be at least base_ms and at most 604800000"))
        } else if !(1.0..=100.0).contains(&self.factor) {
            Some(("factor", "must be 1 to 100"))
        } else if !(0.0..=1.0).contains(&self.jitter) {
            Some(("jitter", "must be 0 to 1"))
        } else if self.delays_ms.len() > MAX_DELAYS {
            Some(("delays_ms", "must be at most 100 delays"))
        } else if self.delays_ms.iter().any(|delay| !(1..=7 * DAY_MS).contains(delay)) {
            Some(("delays_ms", "must be delays of 1 to 604800000"))
        } else {
            None
        }
    }
}

/// Maximum number of delays of a table: a job has at most this many attempts.
const MAX_DELAYS: usize = limits::MAX_ATTEMPTS as usize;

/// Backoff as a client requests it. What is left out is that of the kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryRequest {
    /// Delay after the first failure, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ms: Option<u64>,
    /// Growth from one delay to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Longest delay before jitter, in milliseconds. If it is left out, it is at least `base_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_ms: Option<u64>,
    /// Share of the delay by which it varies up and down. With `delays_ms` it is 0 if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    /// Delays after the first, the second, … used attempt, in milliseconds. Not together with `base_ms`, `factor` or
    /// `cap_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays_ms: Option<Vec<u64>>,
}

impl RetryRequest {
    /// Return the policy of a job of a kind with this policy of its own.
    #[must_use]
    pub fn over(&self, kind: &RetryPolicy) -> RetryPolicy {
        let usual = RetryPolicy::default();
        if let Some(delays_ms) = self.delays_ms.clone() {
            return RetryPolicy { jitter: self.jitter.unwrap_or(0.0), delays_ms, ..usual };
        }
        let base_ms = self.base_ms.unwrap_or(kind.base_ms);
        RetryPolicy {
            base_ms,
            factor: self.factor.unwrap_or(kind.factor),
            cap_ms: self.cap_ms.unwrap_or(kind.cap_ms.max(base_ms)),
            jitter: self.jitter.unwrap_or(kind.jitter),
            // A job that asks for exponential backoff does not get the table of its kind.
            delays_ms: if self.only_jitter() { kind.delays_ms.clone() } else { Vec::new() },
        }
    }

    fn only_jitter(&self) -> bool {
        self.base_ms.is_none() && self.factor.is_none() && self.cap_ms.is_none()
    }

    /// Return the first invalid field with the reason, for a job of a kind with this policy of its own, or `None` if
    /// all are valid.
    #[must_use]
    pub fn problem(&self, kind: &RetryPolicy) -> Option<(&'static str, &'static str)> {
        match &self.delays_ms {
            Some(delays) if delays.is_empty() => Some(("delays_ms", "must have at least one delay")),
            Some(_) if !self.only_jitter() => {
                Some(("delays_ms", "may not be given together with base_ms, factor or cap_ms"))
            }
            _ => self.over(kind).problem(),
        }
    }

    /// Return the number of attempts for which the table has delays: one more than its delays.
    #[must_use]
    pub fn attempts(&self) -> Option<u32> {
        let delays = u32::try_from(self.delays_ms.as_ref()?.len()).ok()?;
        Some(delays.saturating_add(1).min(limits::MAX_ATTEMPTS))
    }
}

impl From<RetryPolicy> for RetryRequest {
    /// Request every value of this policy.
    fn from(policy: RetryPolicy) -> Self {
        let RetryPolicy { base_ms, factor, cap_ms, jitter, delays_ms } = policy;
        if delays_ms.is_empty() {
            let (base_ms, factor, cap_ms) = (Some(base_ms), Some(factor), Some(cap_ms));
            Self { base_ms, factor, cap_ms, jitter: Some(jitter), delays_ms: None }
        } else {
            Self { jitter: Some(jitter), delays_ms: Some(delays_ms), ..Self::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_doubles_from_a_second_to_a_minute() {
        let policy = RetryPolicy::default();
        let delays: Vec<u64> = (1..=9).map(|n| policy.delay(n, 0.5).as_millis() as u64).collect();
        assert_eq!(delays, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]);
    }

    #[test]
    fn a_table_gives_its_delays_in_order_and_repeats_the_last() {
        let policy = RetryPolicy::table([1, 2, 4].map(Duration::from_secs));
        let delays: Vec<u64> = (1..=5).map(|n| policy.delay(n, 1.0).as_millis() as u64).collect();
        assert_eq!(delays, [1_000, 2_000, 4_000, 4_000, 4_000]);
        assert_eq!(policy.problem(), None);
        let wrong = |delays_ms| RetryPolicy { delays_ms, ..RetryPolicy::default() }.problem().map(|(field, _)| field);
        assert_eq!(wrong(vec![0]), Some("delays_ms"));
        assert_eq!(wrong(vec![604_800_001]), Some("delays_ms"));
        assert_eq!(wrong(vec![1; 101]), Some("delays_ms"));
    }

    #[test]
    fn what_a_request_leaves_out_is_that_of_the_kind() {
        let kind = RetryPolicy { base_ms: 500, factor: 3.0, cap_ms: 20_000, jitter: 0.2, delays_ms: Vec::new() };
        let asks = RetryRequest { factor: Some(1.0), ..RetryRequest::default() };
        assert_eq!(asks.over(&kind), RetryPolicy { factor: 1.0, ..kind.clone() });
        // A longer first delay than the cap of the kind raises the cap.
        let asks = RetryRequest { base_ms: Some(30_000), ..RetryRequest::default() };
        assert_eq!((asks.over(&kind).cap_ms, asks.problem(&kind)), (30_000, None));
        let asks = RetryRequest { cap_ms: Some(100), ..RetryRequest::default() };
        assert_eq!(asks.problem(&kind).map(|(field, _)| field), Some("cap_ms"));
        for policy in [kind.clone(), RetryPolicy::table([Duration::from_secs(3)])] {
            assert_eq!(RetryRequest::from(policy.clone()).over(&kind), policy);
        }
    }

    #[test]
    fn a_table_is_exact_and_excludes_exponential_backoff() {
        let kind = RetryPolicy::default();
        let table = RetryRequest { delays_ms: Some(vec![10, 20]), ..RetryRequest::default() };
        assert_eq!((table.over(&kind).jitter, table.attempts()), (0.0, Some(3)));
        assert_eq!(table.problem(&kind), None);
        let both = RetryRequest { base_ms: Some(5), ..table };
        assert_eq!(both.problem(&kind).map(|(field, _)| field), Some("delays_ms"));
        let empty = RetryRequest { delays_ms: Some(Vec::new()), ..RetryRequest::default() };
        assert_eq!(empty.problem(&kind).map(|(field, _)| field), Some("delays_ms"));
        // The table of a kind holds for a job that changes only the jitter.
        let of_kind = RetryPolicy::table([Duration::from_secs(7)]);
        let asks = RetryRequest { jitter: Some(0.5), ..RetryRequest::default() };
        assert_eq!(asks.over(&of_kind), RetryPolicy { jitter: 0.5, ..of_kind.clone() });
        let asks = RetryRequest { base_ms: Some(5), ..RetryRequest::default() };
        assert!(asks.over(&of_kind).delays_ms.is_empty());
    }

    proptest! {
        #[test]
        fn delays_stay_within_their_jitter(burned in 0_u32..=u32::MAX, chance in 0.0_f64..=1.0) {
            let policy = RetryPolicy::default();
            let (middle, drawn) = (policy.delay(burned, 0.5).as_secs_f64(), policy.delay(burned, chance).as_secs_f64());
            prop_assert!(drawn >= middle * 0.899 && drawn <= middle * 1.101);
            prop_assert!(drawn <= 66.0);
        }

        #[test]
        fn absurd_policies_neither_panic_nor_pass(base in any::<u64>(), factor in any::<f64>(), cap in any::<u64>(), jitter in any::<f64>()) {
            let policy = RetryPolicy { base_ms: base, factor, cap_ms: cap, jitter, delays_ms: Vec::new() };
            if policy.problem().is_none() {
                prop_assert!(policy.delay(u32::MAX, 1.0) <= Duration::from_secs(14 * 24 * 60 * 60));
            }
        }
    }
}
