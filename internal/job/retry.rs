//! The delay before a failed job runs again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Exponential backoff: `min(base × factor^(n−1), cap)` after the n-th used attempt, ± `jitter`.
///
/// The jitter spreads jobs that failed together, so that a target that recovers is not overloaded again. The resulting
/// time is written to MySQL with the verdict; no process sleeps until then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { base_ms: 1_000, factor: 2.0, cap_ms: 60_000, jitter: 0.1 }
    }
}

impl RetryPolicy {
    /// Return the delay after the `burned`-th used attempt (1 = the first). The caller draws `chance` from 0.0..=1.0.
    #[must_use]
    pub fn delay(&self, burned: u32, chance: f64) -> Duration {
        let exponent = i32::try_from(burned.saturating_sub(1)).unwrap_or(i32::MAX);
        let cap = self.cap_ms as f64;
        let plain = (self.base_ms as f64 * self.factor.powi(exponent)).min(cap);
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
        } else {
            None
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
            let policy = RetryPolicy { base_ms: base, factor, cap_ms: cap, jitter };
            if policy.problem().is_none() {
                prop_assert!(policy.delay(u32::MAX, 1.0) <= Duration::from_secs(14 * 24 * 60 * 60));
            }
        }
    }
}
