//! What is counted, and what the cache holds.

/// Counters since the start, and what is in the cache now.
///
/// `accesses`, `hits`, `misses`, `migrations` and the like are what the lab counts on the same
/// packets: those of connections that are on record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Look-ups for connections that are on record: hits and misses.
    pub accesses: u64,
    /// Session identifiers that were there.
    pub hits: u64,
    /// Session identifiers that were not there, whose connection the table knew.
    pub misses: u64,
    /// Session identifiers that were not there, and whose connection the table did not know
    /// either: no line was spent on them.
    pub strangers: u64,
    /// Hits whose line was not this packet's connection (the same client on another service, or an
    /// earlier connection of the same tuple), so that the table was asked all the same.
    pub mismatches: u64,
    /// Lines moved into another of their sets.
    pub migrations: u64,
    /// Hits in a set of a second function.
    pub second_lookup_hits: u64,
    /// Newcomers that were not given a line.
    pub bypasses: u64,
    /// Lines given up for others.
    pub evictions: u64,
    /// Of these, lines that were ON.
    pub evicted_on: u64,
    /// Now: lines that were touched within the ON time.
    pub on_lines: u64,
    /// Now: lines in use.
    pub occupied: u64,
    /// Now: how many sets have so many lines in use, from none to all ways.
    pub sets_by_occupancy: Vec<u64>,
}

impl Report {
    /// Hits of all accesses, 0 to 1; 0 before the first.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.accesses.max(1) as f64
    }

    /// Lines in use in the emptiest set.
    pub fn occupancy_min(&self) -> u64 {
        let first = self.sets_by_occupancy.iter().position(|sets| *sets > 0);
        first.unwrap_or(0) as u64
    }

    /// Lines in use in the mean of all sets.
    pub fn occupancy_mean(&self) -> f64 {
        let sets: u64 = self.sets_by_occupancy.iter().sum();
        self.occupied as f64 / sets.max(1) as f64
    }

    /// Lines in use in the fullest set.
    pub fn occupancy_max(&self) -> u64 {
        let last = self.sets_by_occupancy.iter().rposition(|sets| *sets > 0);
        last.unwrap_or(0) as u64
    }

    /// Counts sets by the lines that they have in use.
    pub(crate) fn by_occupancy(occupancy: &[u32], ways: u32) -> Vec<u64> {
        let mut sets = vec![0; ways as usize + 1];
        for lines in occupancy {
            sets[(*lines).min(ways) as usize] += 1;
        }
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupancy_is_summed_up() {
        let report = Report {
            accesses: 8,
            hits: 6,
            occupied: 7,
            sets_by_occupancy: Report::by_occupancy(&[1, 1, 3, 2], 4),
            ..Report::default()
        };
        assert_eq!(report.sets_by_occupancy, [0, 2, 1, 1, 0]);
        assert_eq!((report.occupancy_min(), report.occupancy_max()), (1, 3));
        assert!((report.occupancy_mean() - 1.75).abs() < 1e-9);
        assert!((report.hit_ratio() - 0.75).abs() < 1e-9);
        let nothing = Report::default();
        assert_eq!((nothing.occupancy_min(), nothing.occupancy_max()), (0, 0));
        assert_eq!((nothing.hit_ratio(), nothing.occupancy_mean()), (0.0, 0.0));
    }
}
