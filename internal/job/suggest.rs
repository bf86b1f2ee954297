//! "Did you mean …": the known name nearest to a misspelt one.

/// Return the candidate with the fewest edits, if it is near enough to be a likely typing error.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // At most a third of the letters may be wrong; with more it is another word.
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (edits(word, candidate), candidate))
        .filter(|(edits, _)| *edits <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Compute the Levenshtein distance with one row of memory. Names are short, so quadratic time is acceptable.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("workers", "workers"), 0);
    }

    #[test]
    fn finds_slips_and_leaves_strangers_alone() {
        let names = ["workers", "queues", "mysql_url", "redis_url"];
        assert_eq!(nearest("worker", names), Some("workers"));
        assert_eq!(nearest("mysql-url", names), Some("mysql_url"));
        assert_eq!(nearest("database", names), None);
    }
}
