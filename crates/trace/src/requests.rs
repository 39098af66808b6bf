//! What a log has: one row a request.

use fairlead_base::Address;

/// In [`Requests::bytes`]: the log does not say.
pub const BYTES_UNKNOWN: u64 = u64::MAX;

/// The client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's address.
    pub address: Address,
    /// True if the log has a name or a number, and the address is a stable hash of it
    /// ([`crate::address_of_name`]).
    pub named: bool,
}

/// What times count from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// 1 January 1970, UTC.
    #[default]
    Unix,
    /// A beginning of the log's own.
    Own,
}

/// Requests in file order, in columns. All columns but `clients` have one value per row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// What `time_us` counts from.
    pub origin: Origin,
    /// Microseconds since the origin. May step back: logs are in the order of completion.
    pub time_us: Vec<i64>,
    /// Number of the client: an index into `clients`.
    pub client: Vec<u32>,
    /// Clients by number, in the order of their first request.
    pub clients: Vec<Client>,
    /// The client's port; 0 where the log has none.
    pub port: Vec<u16>,
    /// Bytes of the response; [`BYTES_UNKNOWN`] where the log does not say.
    pub bytes: Vec<u64>,
    /// Stable hash of the object's name ([`crate::hash64`]), or its number where the trace has
    /// numbers; 0 where unknown.
    pub object: Vec<u64>,
    /// Status of the response; 0 where unknown.
    pub status: Vec<u16>,
}

impl Requests {
    /// Rows.
    pub fn len(&self) -> usize {
        self.time_us.len()
    }

    /// True without a row.
    pub fn is_empty(&self) -> bool {
        self.time_us.is_empty()
    }

    /// Sorts by time; rows of equal time keep their order. Client numbers stay.
    pub fn sort_by_time(&mut self) {
        if self.time_us.is_sorted() {
            return;
        }
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|row| self.time_us[*row]);
        fn gather<T: Copy>(column: &mut Vec<T>, order: &[usize]) {
            *column = order.iter().map(|row| column[*row]).collect();
        }
        gather(&mut self.time_us, &order);
        gather(&mut self.client, &order);
        gather(&mut self.port, &order);
        gather(&mut self.bytes, &order);
        gather(&mut self.object, &order);
        gather(&mut self.status, &order);
    }
}
