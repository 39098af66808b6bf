//! What spliced connections carried, counted as each of them ends.

/// The longest connections of each class but the last, milliseconds.
pub const DURATION_LIMITS_MS: [u64; 10] = [
    10, 30, 100, 300, 1_000, 3_000, 10_000, 60_000, 600_000, 3_600_000,
];

/// Spliced connections that are over, of one service or to one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Stream bytes from clients to servers.
    pub bytes_in: u64,
    /// Stream bytes from servers to clients.
    pub bytes_out: u64,
    /// How long they lived, all together, milliseconds.
    pub lived_ms: u64,
    /// How many of them lived up to each of [`DURATION_LIMITS_MS`] and longer than the one before;
    /// the last class has those that lived longer than all.
    pub by_duration: [u64; DURATION_LIMITS_MS.len() + 1],
}

impl Carried {
    /// Counts a connection that is over.
    pub(crate) fn add(&mut self, bytes_in: u64, bytes_out: u64, lived_ms: u64) {
        self.bytes_in = self.bytes_in.saturating_add(bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(bytes_out);
        self.lived_ms = self.lived_ms.saturating_add(lived_ms);
        let class = DURATION_LIMITS_MS.partition_point(|limit| *limit < lived_ms);
        self.by_duration[class] += 1;
    }

    /// How many connections that were.
    pub fn connections(&self) -> u64 {
        self.by_duration.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_is_in_the_first_class_that_holds_it() {
        let mut carried = Carried::default();
        for lived_ms in [0, 10, 11, 3_600_000, 3_600_001, u64::MAX] {
            carried.add(1, 2, lived_ms);
        }
        let mut classes = [0; 11];
        (classes[0], classes[1], classes[9], classes[10]) = (2, 1, 1, 2);
        assert_eq!(carried.by_duration, classes);
        assert_eq!(carried.connections(), 6);
        assert_eq!((carried.bytes_in, carried.bytes_out), (6, 12));
        assert_eq!(carried.lived_ms, u64::MAX, "it stays there");
    }
}
