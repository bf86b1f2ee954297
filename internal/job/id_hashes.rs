//! A hash of ids, for maps in memory.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The hash of maps and sets whose keys are ids, such as a [`JobId`](crate::JobId). The usual one is made for texts of
/// any length, and takes several times as long for the 16 bytes of an id.
///
/// Clients may choose ids. The seeds differ from map to map and are not known to them, so they cannot choose ids that
/// collide.
#[derive(Clone, Debug)]
pub struct IdHashes([u64; 2]);

impl Default for IdHashes {
    fn default() -> Self {
        let random = RandomState::new();
        Self([random.hash_one(0_u8), random.hash_one(1_u8)])
    }
}

impl BuildHasher for IdHashes {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { seeds: self.0, hash: 0 }
    }
}

/// The hasher of [`IdHashes`].
#[derive(Clone, Debug)]
pub struct IdHasher {
    seeds: [u64; 2],
    hash: u64,
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // An id is one piece.
        for piece in bytes.chunks(16) {
            let mut id = [0_u8; 16];
            id[..piece.len()].copy_from_slice(piece);
            let id = u128::from_ne_bytes(id);
            let (high, low) = ((id >> 64) as u64, id as u64);
            // Each bit of the id has an effect on the middle of the product, and both halves are added up.
            let product = u128::from(low ^ self.seeds[0] ^ self.hash) * u128::from(high ^ self.seeds[1]);
            self.hash = (product >> 64) as u64 ^ product as u64;
        }
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::JobId;

    #[test]
    fn ids_of_one_moment_are_spread_over_all_places_of_a_map() {
        let hashes = IdHashes::default();
        let ids: Vec<JobId> = (0..10_000).map(|_| JobId::new()).collect();
        let of_ids: HashSet<u64> = ids.iter().map(|id| hashes.hash_one(id)).collect();
        assert_eq!(of_ids.len(), ids.len());
        // A map looks at the low bits first, and at the seven high ones then.
        let low: HashSet<u64> = of_ids.iter().map(|hash| hash % 128).collect();
        let high: HashSet<u64> = of_ids.iter().map(|hash| hash >> 57).collect();
        assert_eq!((low.len(), high.len()), (128, 128));
    }

    #[test]
    fn each_map_has_seeds_of_its_own() {
        let id = JobId::new();
        assert_ne!(IdHashes::default().hash_one(id), IdHashes::default().hash_one(id));
    }
}
