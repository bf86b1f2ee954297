//! The HTTP clients of callbacks: one keeps its connections for later calls, the other one closes each after its call.
//!
//! The keeping client limits its idle connections for each authority (scheme, host and port), and not those of all
//! together. Calls to ever new authorities would leave so many open that the process has no files left to accept
//! requests and to reach MySQL. So a bounded number of authorities have a place with the keeping client. An authority
//! loses its place when its last idle connection is closed. Calls to other authorities use the closing client.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::{Client, Url};
use tokio::time::Instant;

use super::CONNECT_TIMEOUT;

/// Time after which an idle connection is closed.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Most idle connections of one runner to all authorities together: a quarter of the files that its unit allows.
const MAX_IDLE: usize = 4_096;
/// The same for a runner with so many workers that few authorities would have a place: half of these files. The most
/// workers, the clients of the API and MySQL need less than the other half.
const MAX_IDLE_OF_MANY: usize = 8_192;
/// More workers than these are many.
const FEW_WORKERS: usize = 512;
/// Most authorities with a place, however few connections each may have.
const MAX_PLACES: usize = 1_024;
/// Time from the end of the last call to an authority until no connection to it is idle. The client looks for old
/// connections once in each idle timeout. A connection that was begun for a call may be open only after that call,
/// which found another one.
const UNTIL_CLOSED: Duration = Duration::from_secs(2 * IDLE_TIMEOUT.as_secs() + CONNECT_TIMEOUT.as_secs());

/// Both clients, and the authorities with a place.
pub(super) struct Clients {
    keeping: Client,
    closing: Client,
    places: ReceiverPlaces,
}

/// The client for one call, until the call is over.
pub(super) struct LentClient<'c> {
    client: &'c Client,
    /// The place of the authority, if it has one.
    place: Option<(&'c ReceiverPlaces, String)>,
}

impl Clients {
    /// Make both clients for a runner with so many workers. `build` gets the most idle connections that a client keeps
    /// to one authority.
    pub(super) fn new<E>(workers: usize, build: impl Fn(usize) -> Result<Client, E>) -> Result<Self, E> {
        let bounds = Bounds::new(workers);
        let places = ReceiverPlaces { most: bounds.places, taken: Mutex::default() };
        Ok(Self { keeping: build(bounds.to_one)?, closing: build(0)?, places })
    }

    /// Return the client for a call to this URL. Hold it until the answer is read.
    pub(super) fn for_call(&self, url: &Url) -> LentClient<'_> {
        let authority = url.origin().ascii_serialization();
        if self.places.begin_call(&authority, Instant::now()) {
            LentClient { client: &self.keeping, place: Some((&self.places, authority)) }
        } else {
            LentClient { client: &self.closing, place: None }
        }
    }
}

/// Bounds of the keeping client. Their product bounds all its idle connections.
struct Bounds {
    /// Idle connections to one authority. Each worker has one call under way at most, so with one for each worker no
    /// call has to open a connection because those of earlier calls were closed. A runner with more than 1,024 workers
    /// keeps no more than these, so that eight authorities have a place.
    to_one: usize,
    /// Authorities with a place.
    places: usize,
}

impl Bounds {
    fn new(workers: usize) -> Self {
        let all = if workers > FEW_WORKERS { MAX_IDLE_OF_MANY } else { MAX_IDLE };
        let to_one = workers.clamp(1, MAX_IDLE_OF_MANY / 8);
        Self { to_one, places: (all / to_one).min(MAX_PLACES) }
    }
}

impl Deref for LentClient<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

impl Drop for LentClient<'_> {
    fn drop(&mut self) {
        if let Some((places, authority)) = &self.place {
            places.end_call(authority, Instant::now());
        }
    }
}

/// The authorities to which the keeping client may have connections.
struct ReceiverPlaces {
    most: usize,
    taken: Mutex<HashMap<String, ReceiverPlace>>,
}

/// One authority.
struct ReceiverPlace {
    /// Calls that are under way.
    calls: usize,
    /// End of the last call.
    used: Instant,
}

impl ReceiverPlaces {
    fn taken(&self) -> MutexGuard<'_, HashMap<String, ReceiverPlace>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begin a call. Return false if the authority has no place and none is free.
    fn begin_call(&self, authority: &str, now: Instant) -> bool {
        let mut taken = self.taken();
        if let Some(place) = taken.get_mut(authority) {
            place.calls += 1;
            return true;
        }
        if taken.len() >= self.most {
            taken.retain(|_, place| place.calls > 0 || now.duration_since(place.used) < UNTIL_CLOSED);
        }
        let is_free = taken.len() < self.most;
        if is_free {
            taken.insert(authority.to_owned(), ReceiverPlace { calls: 1, used: now });
        }
        is_free
    }

    fn end_call(&self, authority: &str, now: Instant) {
        if let Some(place) = self.taken().get_mut(authority) {
            place.calls = place.calls.saturating_sub(1);
            place.used = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_has_an_idle_connection_for_each_worker_and_all_together_have_a_bounded_number() {
        for workers in 0..=4_096 {
            let Bounds { to_one, places } = Bounds::new(workers);
            assert_eq!(to_one, workers.clamp(1, 1_024));
            assert!(places >= 8 && to_one * places <= MAX_IDLE_OF_MANY, "{workers}: {to_one} to each of {places}");
            assert!(workers > FEW_WORKERS || to_one * places <= MAX_IDLE, "{workers}: {to_one} to each of {places}");
        }
        let places = [1, 64, FEW_WORKERS, 1_024, 4_096].map(|workers| Bounds::new(workers).places);
        assert_eq!(places, [MAX_PLACES, 64, 8, 8, 8]);
    }

    #[test]
    fn an_authority_keeps_its_place_until_its_connections_are_closed() {
        let places = ReceiverPlaces { most: 2, taken: Mutex::default() };
        let now = Instant::now();
        let later = now + UNTIL_CLOSED;
        assert!(places.begin_call("a", now) && places.begin_call("b", now) && places.begin_call("b", now));
        assert!(!places.begin_call("c", now) && places.begin_call("a", now));
        for _ in 0..2 {
            places.end_call("a", now);
        }
        places.end_call("b", now);
        // A connection to `a` may still be idle.
        assert!(!places.begin_call("c", later - Duration::from_millis(1)));
        // A call to `b` is still under way.
        assert!(places.begin_call("c", later) && !places.begin_call("a", later));
        assert!(places.begin_call("b", later));
    }
}
