//! The addresses that records name by index.

use fairlead_base::{Address, Endpoint};

/// Listening endpoints, servers and source addresses: small arrays, shared by all records.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// Listening endpoints, by [`crate::Record::listen`].
    pub listens: Vec<Endpoint>,
    /// Servers, by [`crate::Record::server`].
    pub servers: Vec<Endpoint>,
    /// Source addresses, by [`crate::Record::nat_addr`].
    pub nats: Vec<Address>,
}

impl Endpoints {
    /// A listening endpoint; the unspecified one for an index that does not exist.
    #[inline]
    pub fn listen(&self, index: u16) -> Endpoint {
        self.listens
            .get(usize::from(index))
            .copied()
            .unwrap_or_default()
    }

    /// A server; the unspecified endpoint for an index that does not exist.
    #[inline]
    pub fn server(&self, index: u16) -> Endpoint {
        self.servers
            .get(usize::from(index))
            .copied()
            .unwrap_or_default()
    }

    /// A source address; the unspecified one for an index that does not exist.
    #[inline]
    pub fn nat(&self, index: u16) -> Address {
        self.nats
            .get(usize::from(index))
            .copied()
            .unwrap_or_default()
    }
}
