//! Requests with unknown or revoked API keys: they are counted by address, logged at a bounded rate, and delayed.
//!
//! An API key has 256 random bits and a token at least 20 characters, so guessing does not succeed. It should still be
//! visible and cost little. A request without an API key does not count, and a request with a valid one is never
//! delayed.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The address that a request comes from. Behind a proxy it is the address of the last proxy.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// Number of failed requests of one address that are answered without delay.
const FREE: u32 = 5;
/// Each further failed request of an address is delayed `STEP` longer than the one before, but at most `LONGEST`.
const STEP: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(1);
/// Time without a failed request after which an address is forgotten.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Maximum number of addresses that are counted separately. All further addresses are counted as one.
const MAX_ADDRESSES: usize = 1_024;
/// Minimum time between two log lines.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// The recent failed requests, by address.
#[derive(Debug, Default)]
pub struct FailedLogins {
    recent: Mutex<RecentFailures>,
}

#[derive(Debug, Default)]
struct RecentFailures {
    by: HashMap<IpAddr, (u32, Instant)>,
    told: Option<Instant>,
    untold: u64,
}

/// The consequence of a failed request.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    delay: Duration,
    /// The number of failed requests of this address, and of those that were not logged since the last line. `None`
    /// when no line is due.
    tell: Option<(u32, u64)>,
}

impl FailedLogins {
    /// Count and log a request with an unknown API key. Return how long to delay the response.
    pub(crate) fn record_failure(&self, peer: Option<Peer>) -> Duration {
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(address)| address.to_canonical());
        let verdict = self.count(address, Instant::now());
        if let Some((tries, untold)) = verdict.tell {
            tracing::warn!(%address, tries, untold, "refused an API key that is unknown or revoked");
        }
        verdict.delay
    }

    fn count(&self, address: IpAddr, now: Instant) -> Verdict {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut address = network(address);
        if recent.by.len() >= MAX_ADDRESSES && !recent.by.contains_key(&address) {
            recent.by.retain(|_, (_, last)| now.saturating_duration_since(*last) < REMEMBERED);
            if recent.by.len() >= MAX_ADDRESSES {
                address = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            }
        }
        let (tries, last) = recent.by.entry(address).or_insert((0, now));
        if now.saturating_duration_since(*last) >= REMEMBERED {
            *tries = 0;
        }
        *tries = tries.saturating_add(1);
        *last = now;
        let tries = *tries;
        let due = recent.told.is_none_or(|told| now.saturating_duration_since(told) >= TOLD_EVERY);
        let tell = due.then_some((tries, recent.untold));
        if due {
            recent.told = Some(now);
            recent.untold = 0;
        } else {
            recent.untold += 1;
        }
        Verdict { delay: STEP.saturating_mul(tries.saturating_sub(FREE)).min(LONGEST), tell }
    }
}

/// Return the unit that is counted: an IPv4 address, or the /64 network of an IPv6 address, because one client may have
/// all addresses of such a network.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_slowed_by_address_told_at_a_bounded_rate_and_forgotten() {
        let failed_logins = FailedLogins::default();
        let began = Instant::now();
        let (one, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let ms = Duration::from_millis;
        for n in 1..=5 {
            let verdict = failed_logins.count(one, began);
            assert_eq!(verdict, Verdict { delay: ms(0), tell: (n == 1).then_some((1, 0)) });
        }
        assert_eq!(failed_logins.count(one, began).delay, ms(100));
        for _ in 0..1_000 {
            failed_logins.count(one, began);
        }
        assert_eq!(failed_logins.count(one, began).delay, ms(1_000));
        // Another address is not delayed, and its log line has the number of requests that were not logged.
        assert_eq!(failed_logins.count(other, began + ms(1_000)), Verdict { delay: ms(0), tell: Some((1, 1_006)) });
        assert_eq!(failed_logins.count(one, began + Duration::from_secs(61)).delay, ms(0));
    }

    #[test]
    fn addresses_without_end_take_bounded_memory_and_are_slowed_together() {
        let failed_logins = FailedLogins::default();
        let now = Instant::now();
        for n in 0..5_000_u32 {
            failed_logins.count(IpAddr::V4(Ipv4Addr::from_bits(n)), now);
        }
        assert!(failed_logins.recent.lock().unwrap().by.len() <= MAX_ADDRESSES + 1);
        assert_eq!(failed_logins.count(IpAddr::V4(Ipv4Addr::from_bits(6_000)), now).delay, LONGEST);
        // One IPv6 network counts as one client.
        let six = |n: u128| IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8_u128 << 96) + n));
        assert_eq!(network(six(1)), network(six(u128::from(u64::MAX))));
        assert_ne!(network(six(1)), network(six(1 << 64)));
    }
}
