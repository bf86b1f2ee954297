//! The leases of runners. In most tests an attempt must not be lost because the machine stood still, so the usual lease
//! is longer than such stalls.

use std::time::Duration;

use tickr::config::Config;

/// The shortest lease that an operator can set, for tests in which a lease has to end. A runner judges others only
/// after it has watched them for a part of its own lease, and for a whole one after an outage. So the runner that
/// recovers the attempts needs it as well as the one that loses them. Attempts of other systems and of remote workers
/// time out in the same way.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(2);

/// Give a runner the short lease.
pub(crate) fn short_lease(config: &mut Config) {
    config.lease = SHORT_LEASE;
}

/// Let a runner execute no job of the test, and soon recover the attempts that other runners lose.
pub(crate) fn bystander(config: &mut Config) {
    (config.queues, config.lease) = (vec!["elsewhere".into()], SHORT_LEASE);
}
