//! A log as responses: which file, how many bytes, to which client.

use std::collections::HashMap;

use fairlead_content::BlockSize;
use fairlead_trace::{BYTES_UNKNOWN, Requests};

use crate::error::LabError;
use crate::table::grouped;

/// Responses with a body, in the order in which they are played back: the log's own, unless its
/// rows are in no order ([`STEPS_BACK_MAX`]). All columns have one value per response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Responses {
    /// Number of the file.
    pub file: Vec<u32>,
    /// Bytes of the body, at least 1.
    pub bytes: Vec<u64>,
    /// Number of the client.
    pub client: Vec<u32>,
    /// By file: its length, which is that of its longest response.
    pub file_bytes: Vec<u64>,
    /// By file: responses.
    pub file_requests: Vec<u64>,
    /// Rows left out because the log does not give the size.
    pub without_size: u64,
    /// Rows left out because nothing was sent.
    pub empty: u64,
    /// Rows left out because their size is larger than [`RESPONSE_BYTES_MAX`].
    pub too_large: u64,
    /// Rows whose time is before that of the row before.
    pub stepped_back: u64,
    /// True if rows were sorted by time.
    pub is_sorted: bool,
    /// From the first response to the last, s.
    pub span_s: f64,
}

/// A server logs responses in order of completion, with the time of the request, so time steps back
/// now and then. If it does for more than this share of the rows, they are in no order and are
/// sorted by time.
pub const STEPS_BACK_MAX: f64 = 0.1;

/// Larger sizes in a log are taken for errors: 64 TiB.
pub const RESPONSE_BYTES_MAX: u64 = 1 << 46;

impl Responses {
    /// Of a log.
    ///
    /// # Errors
    /// When the log has no sizes, or no objects.
    pub fn of(requests: &Requests, name: &str) -> Result<Self, LabError> {
        let rows = requests.len();
        let steps = requests.time_us.windows(2);
        let back = steps.filter(|pair| pair[1] < pair[0]).count();
        let mut out = Self {
            stepped_back: back as u64,
            is_sorted: back as f64 > STEPS_BACK_MAX * rows as f64,
            ..Self::default()
        };
        let mut order: Vec<usize> = Vec::new();
        if out.is_sorted {
            order = (0..rows).collect();
            order.sort_by_key(|row| requests.time_us[*row]);
        }
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        for at in 0..rows {
            let row = order.get(at).copied().unwrap_or(at);
            let bytes = requests.bytes[row];
            if bytes == BYTES_UNKNOWN {
                out.without_size += 1;
            } else if bytes == 0 {
                out.empty += 1;
            } else if bytes > RESPONSE_BYTES_MAX {
                out.too_large += 1;
            } else {
                let next = numbers.len() as u32;
                let file = *numbers.entry(requests.object[row]).or_insert(next);
                out.push(file, bytes, requests.client[row]);
            }
        }
        out.span_s = match (requests.time_us.iter().min(), requests.time_us.iter().max()) {
            (Some(first), Some(last)) => (last - first) as f64 / 1e6,
            _ => 0.0,
        };
        let has_objects = requests.object.iter().any(|object| *object != 0);
        out.check(name, has_objects)?;
        Ok(out)
    }

    /// Of files by number and sizes, all of one client.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let mut out = Self::default();
        for (file, bytes) in pairs {
            out.push(file, bytes, 0);
        }
        out
    }

    /// Responses.
    pub fn len(&self) -> usize {
        self.file.len()
    }

    /// True without a response.
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// Bytes of all responses.
    pub fn response_bytes(&self) -> u64 {
        let add = |sum: u64, bytes: &u64| sum.saturating_add(*bytes);
        self.bytes.iter().fold(0, add)
    }

    /// Files with a response.
    pub fn distinct_files(&self) -> u64 {
        let seen = self.file_requests.iter().filter(|count| **count > 0);
        seen.count() as u64
    }

    /// Bytes of all files.
    pub fn data_set_bytes(&self) -> u64 {
        let add = |sum: u64, bytes: &u64| sum.saturating_add(*bytes);
        self.file_bytes.iter().fold(0, add)
    }

    /// Blocks of all files of at most `file_bytes_max` bytes.
    pub fn blocks(&self, block: BlockSize, file_bytes_max: u64) -> u64 {
        let files = self.file_bytes.iter();
        files
            .filter(|bytes| **bytes <= file_bytes_max)
            .fold(0, |sum: u64, bytes| {
                sum.saturating_add(block.blocks(*bytes))
            })
    }

    /// What was left out, in words.
    pub fn notes(&self) -> Vec<String> {
        let reasons = [
            (self.without_size, "the log does not give their size"),
            (self.empty, "nothing was sent"),
            (self.too_large, "their size is larger than 64 TiB"),
        ];
        let left_out = reasons.into_iter().filter(|(count, _)| *count > 0);
        let mut notes: Vec<String> = left_out
            .map(|(count, why)| format!("{} rows are left out: {why}", grouped(count)))
            .collect();
        if self.stepped_back > 0 {
            let done = if self.is_sorted {
                "they are sorted"
            } else {
                "their order is kept"
            };
            let count = grouped(self.stepped_back);
            notes.push(format!("time steps back {count} times in the rows; {done}"));
        }
        notes
    }

    fn push(&mut self, file: u32, bytes: u64, client: u32) {
        if self.file_bytes.len() <= file as usize {
            self.file_bytes.resize(file as usize + 1, 0);
            self.file_requests.resize(file as usize + 1, 0);
        }
        self.file.push(file);
        self.bytes.push(bytes);
        self.client.push(client);
        let longest = &mut self.file_bytes[file as usize];
        *longest = bytes.max(*longest);
        self.file_requests[file as usize] += 1;
    }

    fn check(&self, name: &str, has_objects: bool) -> Result<(), LabError> {
        let problem = if self.is_empty() && self.without_size > 0 {
            "the log has no response sizes, so the content on the bus is unknown; use a log with \
             a size in each row"
        } else if self.is_empty() {
            "the log has no response with a body"
        } else if !has_objects {
            "the log does not say which objects were sent; use a log with a path in each row"
        } else {
            return Ok(());
        };
        Err(LabError::option(name, "", problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(rows: &[(i64, u64, u64)]) -> Requests {
        Requests {
            time_us: rows.iter().map(|row| row.0).collect(),
            object: rows.iter().map(|row| row.1).collect(),
            bytes: rows.iter().map(|row| row.2).collect(),
            client: vec![0; rows.len()],
            ..Requests::default()
        }
    }

    #[test]
    fn responses_are_those_with_bytes() {
        let log = requests(&[
            (1, 88, 30),
            (5, 77, 10),
            (6, 77, 20),
            (7, 77, 0),
            (8, 77, BYTES_UNKNOWN),
            (9, 77, 1 << 60),
        ]);
        let responses = Responses::of(&log, "x").unwrap();
        assert_eq!(responses.file, [0, 1, 1]);
        assert_eq!(responses.bytes, [30, 10, 20]);
        assert_eq!(responses.file_bytes, [30, 20]);
        assert_eq!((responses.empty, responses.without_size), (1, 1));
        assert_eq!(responses.notes().len(), 3);
        assert_eq!(responses.response_bytes(), 60);
        assert_eq!(responses.data_set_bytes(), 50);
    }

    #[test]
    fn rows_keep_their_order_unless_they_have_none() {
        let mut rows: Vec<(i64, u64, u64)> = (0..20).map(|at| (at, 7, 1 + at as u64)).collect();
        rows.swap(3, 4);
        let kept = Responses::of(&requests(&rows), "x").unwrap();
        assert_eq!(
            (kept.bytes[3], kept.stepped_back, kept.is_sorted),
            (5, 1, false)
        );
        rows.reverse();
        let sorted = Responses::of(&requests(&rows), "x").unwrap();
        assert!(sorted.is_sorted && sorted.bytes.is_sorted());
        assert!(sorted.notes()[0].contains("they are sorted"));
    }

    #[test]
    fn a_log_without_sizes_or_objects_is_refused() {
        let refused = |rows: &[(i64, u64, u64)]| {
            let error = Responses::of(&requests(rows), "a.log").unwrap_err();
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        let unknown = refused(&[(1, 5, BYTES_UNKNOWN)]);
        assert!(
            unknown.contains("a.log: the log has no response sizes"),
            "{unknown}"
        );
        assert!(refused(&[(1, 5, 0)]).contains("no response with a body"));
        assert!(refused(&[(1, 0, 9), (2, 0, 9)]).contains("which objects"));
    }
}
