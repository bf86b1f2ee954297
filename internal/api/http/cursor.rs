//! The cursors of listings. A cursor is opaque. It has a digest of the listing and its filter, so that it is not
//! accepted by another listing or with another filter.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::http::problem::{Code, Problem};
use tickr_job::limits;

/// Number of entries of a page unless the client asks for another one.
const PAGE_SIZE: u32 = 50;
/// Most entries of a page.
const MAX_PAGE_SIZE: u32 = 200;

/// Return the size of a page, and add a problem to `problems` if it is out of range.
pub(crate) fn read_page_size(asked: Option<u32>, problems: &mut Vec<tickr_handlers::Problem>) -> u32 {
    let size = asked.unwrap_or(PAGE_SIZE);
    if !(1..=MAX_PAGE_SIZE).contains(&size) {
        problems.push(tickr_handlers::Problem::at("limit", format!("must be 1 to {MAX_PAGE_SIZE}")));
    }
    size
}

/// Return the size of a page of a listing that has no other parameters to check.
pub(crate) fn page_size(asked: Option<u32>) -> Result<u32, Problem> {
    let mut problems = Vec::new();
    let size = read_page_size(asked, &mut problems);
    if problems.is_empty() {
        return Ok(size);
    }
    Err(Problem::new(Code::InvalidRequest, "invalid listing; `errors` says why").at("", problems))
}

/// Check a cursor that is an order key or the key of a limit.
pub(crate) fn check_key(after: Option<&str>) -> Result<(), Problem> {
    if after.is_none_or(|key| key.len() <= limits::MAX_KEY_BYTES) {
        return Ok(());
    }
    let here = tickr_handlers::Problem::at("after", format!("must be at most {} bytes", limits::MAX_KEY_BYTES));
    Err(Problem::new(Code::InvalidRequest, "invalid listing; `errors` says why").at("", vec![here]))
}

/// The digest of a listing and its filter.
pub(crate) struct Listing([u8; 6]);

impl Listing {
    /// Make the digest. `name` identifies the listing; `filter` is everything that narrows it.
    pub(crate) fn new(name: &str, filter: &impl std::fmt::Debug) -> Self {
        let digest = Sha256::digest(format!("{name} {filter:?}").as_bytes());
        Self(std::array::from_fn(|at| digest[at]))
    }

    /// Make the cursor of a position: the sort key of the last row of a page.
    pub(crate) fn cursor(&self, place: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode([place, &self.0].concat())
    }

    /// Return the position of a cursor, if there is one.
    pub(crate) fn place(&self, cursor: Option<&str>) -> Result<Option<Vec<u8>>, Problem> {
        cursor.map(|cursor| self.open_cursor(cursor).ok_or_else(Self::wrong)).transpose()
    }

    /// Return the position of a cursor in a listing that is ordered by id.
    pub(crate) fn id(&self, cursor: Option<&str>) -> Result<Option<Uuid>, Problem> {
        let place = self.place(cursor)?;
        place.map(|place| Uuid::from_slice(&place).map_err(|_| Self::wrong())).transpose()
    }

    fn open_cursor(&self, cursor: &str) -> Option<Vec<u8>> {
        let mut bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let sealed = bytes.split_off(bytes.len().checked_sub(self.0.len())?);
        (sealed == self.0).then_some(bytes)
    }

    pub(crate) fn wrong() -> Problem {
        Problem::new(Code::InvalidCursor, "send next_cursor of a page with the same filter, unchanged")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_belong_to_their_listing_and_filter() {
        let (all, failed, other) =
            (Listing::new("jobs", &""), Listing::new("jobs", &"failed"), Listing::new("audit", &""));
        let id = Uuid::now_v7();
        let cursor = all.cursor(id.as_bytes());
        assert_eq!(all.id(Some(&cursor)).ok().flatten(), Some(id));
        assert!(failed.id(Some(&cursor)).is_err() && other.id(Some(&cursor)).is_err());
        assert_eq!(all.id(None).ok().flatten(), None);
        for forged in ["", "x", "AAAA", &cursor[1..], &format!("{cursor}A"), &all.cursor(b"short")] {
            assert!(all.id(Some(forged)).is_err(), "{forged}");
        }
    }
}
