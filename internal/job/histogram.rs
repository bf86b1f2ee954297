//! A histogram of durations on a logarithmic scale: small, fast to update, and merged by addition.

use std::time::Duration;

/// Number of buckets of the scale.
const BUCKETS: usize = 256;
/// The finest resolution, as a power of two of microseconds: 16 µs.
const UNIT_BITS: u32 = 4;
/// Each doubling is divided into this power of two of buckets: eight.
const CUT_BITS: u32 = 3;

/// Counts of durations in 256 buckets: 16 µs wide up to 128 µs, then eight buckets per doubling, up to 76 hours. Longer
/// durations count as the longest.
///
/// A duration that is read back differs from the counted one by at most [`MAX_ERROR`](Self::MAX_ERROR), a
/// seventeenth, from 128 µs on, and by at most 8 µs below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u32; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

/// The error for stored counts that no version of tickr writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stored duration counts that cannot be read")]
pub struct InvalidHistogram;

impl Histogram {
    /// Maximum relative error of a duration that is read back.
    pub const MAX_ERROR: f64 = 1.0 / 17.0;
    /// Longest stored form, in bytes; the columns have this width.
    pub const MAX_BYTES: usize = BUCKETS * 6;

    /// Count one duration.
    pub fn count(&mut self, duration: Duration) {
        let count = &mut self.counts[bucket(duration)];
        *count = count.saturating_add(1);
    }

    /// Add the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
    }

    /// Return the number of durations counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// Return the duration that this share (0.0 to 1.0) of the counted durations did not exceed, or `None` if none were
    /// counted.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        self.percentiles([share]).map(|[found]| found)
    }

    /// Return several percentiles at once. `shares` must ascend.
    #[must_use]
    pub fn percentiles<const N: usize>(&self, shares: [f64; N]) -> Option<[Duration; N]> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let mut steps = self.counts.iter().enumerate();
        let (mut seen, mut bucket) = (0, 0);
        Some(shares.map(|share| {
            let rank = ((total as f64 * share).ceil() as u64).clamp(1, total);
            while seen < rank {
                let Some((at, count)) = steps.next() else { break };
                (seen, bucket) = (seen + u64::from(*count), at);
            }
            Duration::from_secs_f64(middle(bucket) / 1e6)
        }))
    }

    /// Return the stored form: for each bucket with a count, the bucket number in one byte and the count as LEB128.
    /// Concatenated stored forms are the stored form of their sum.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (bucket, count) in (0_u8..=u8::MAX).zip(self.counts).filter(|(_, count)| *count > 0) {
            bytes.push(bucket);
            let mut rest = count;
            while rest > 0x7f {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
        bytes
    }

    /// Read the stored form.
    ///
    /// # Errors
    /// [`InvalidHistogram`] if the bytes are cut off or a count exceeds 32 bits.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidHistogram> {
        let mut histogram = Self::default();
        let mut bytes = bytes.iter();
        while let Some(bucket) = bytes.next() {
            let mut count: u64 = 0;
            for shift in (0..35).step_by(7) {
                let byte = *bytes.next().ok_or(InvalidHistogram)?;
                count |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
                if shift == 28 {
                    return Err(InvalidHistogram);
                }
            }
            let count = u32::try_from(count).map_err(|_| InvalidHistogram)?;
            let sum = &mut histogram.counts[usize::from(*bucket)];
            *sum = sum.saturating_add(count);
        }
        Ok(histogram)
    }
}

/// Return the bucket of a duration. It costs a few shifts, because it runs for each attempt.
fn bucket(duration: Duration) -> usize {
    let units = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX) >> UNIT_BITS;
    if units < 1 << CUT_BITS {
        return units as usize;
    }
    let doublings = units.ilog2() - CUT_BITS;
    let cut = (units >> doublings) as usize & ((1 << CUT_BITS) - 1);
    (((doublings as usize + 1) << CUT_BITS) + cut).min(BUCKETS - 1)
}

/// Return the duration that a bucket is read back as, in microseconds. It has the same relative distance to both ends
/// of the bucket, or the same absolute distance where all buckets are as wide as the first.
fn middle(bucket: usize) -> f64 {
    let (doublings, cut) = (bucket >> CUT_BITS, bucket & ((1 << CUT_BITS) - 1));
    let unit = f64::from(1 << UNIT_BITS);
    if doublings == 0 {
        return unit * (cut as f64 + 0.5);
    }
    let width = unit * 2_f64.powi(doublings as i32 - 1);
    let low = width * ((1 << CUT_BITS) + cut) as f64;
    let high = low + width;
    2.0 * low * high / (low + high)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn from_durations(durations: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for us in durations {
            histogram.count(Duration::from_micros(*us));
        }
        histogram
    }

    proptest! {
        #[test]
        fn a_duration_is_read_back_within_the_error_that_is_promised(us in 0_u64..(1 << 38)) {
            let read = from_durations(&[us]).percentile(0.5).unwrap().as_secs_f64() * 1e6;
            let error = (read - us as f64).abs();
            prop_assert!(error <= 8.0 || (us >= 128 && error <= us as f64 * Histogram::MAX_ERROR + 1.0), "{us} {read}");
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_list(
            mut list in prop::collection::vec(128_u64..(1 << 36), 1..300),
            share in 0.0_f64..=1.0,
        ) {
            let read = from_durations(&list).percentile(share).unwrap().as_secs_f64() * 1e6;
            list.sort_unstable();
            let rank = ((list.len() as f64 * share).ceil() as usize).clamp(1, list.len());
            let exact = list[rank - 1] as f64;
            prop_assert!((read - exact).abs() <= exact * Histogram::MAX_ERROR + 1.0, "{exact} {read}");
        }

        #[test]
        fn stored_forms_one_behind_the_other_are_the_sum(
            one in prop::collection::vec(0_u64..(1 << 40), 0..200),
            two in prop::collection::vec(0_u64..1_000, 0..200),
        ) {
            let (one, two) = (from_durations(&one), from_durations(&two));
            let mut sum = one.clone();
            sum.add(&two);
            let stored = [one.to_bytes(), two.to_bytes()].concat();
            prop_assert_eq!(Histogram::from_bytes(&stored).unwrap(), sum);
            prop_assert!(one.to_bytes().len() <= Histogram::MAX_BYTES);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Histogram::from_bytes(&bytes);
        }
    }

    #[test]
    fn the_ends_of_the_scale() {
        assert_eq!(from_durations(&[]).percentile(0.5), None);
        assert_eq!(from_durations(&[u64::MAX, 1 << 38]).counts[BUCKETS - 1], 2);
        assert_eq!(from_durations(&[(1 << 38) - 1]).counts[BUCKETS - 1], 1);
        let mut full = from_durations(&[5]);
        full.counts = [u32::MAX; BUCKETS];
        full.count(Duration::ZERO);
        assert_eq!(full.to_bytes().len(), Histogram::MAX_BYTES);
        assert_eq!(Histogram::from_bytes(&full.to_bytes()).unwrap(), full);
        assert_eq!(Histogram::from_bytes(&[7]), Err(InvalidHistogram));
        assert_eq!(Histogram::from_bytes(&[7, 0xff, 0xff, 0xff, 0xff, 0x7f]), Err(InvalidHistogram));
    }
}
