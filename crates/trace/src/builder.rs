//! Columns while a file is read.

use fairlead_base::{Address, Endpoint};

use crate::accesses::TIME_MAX_US;
use crate::hash::address_of_name;
use crate::intern::{NameTable, NumberTable};
use crate::reason::Step;
use crate::requests::{BYTES_UNKNOWN, Client, Requests};
use crate::{Reason, field};

/// The longest name of a client, bytes: as long as names of the DNS are, and a bit.
const NAME_BYTES_MAX: usize = 255;

/// What stands in place of a client that the server does not know: nothing (`-`), or the other end
/// of a Unix socket (nginx).
const UNKNOWN: [&[u8]; 2] = [b"-", b"unix:"];

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) time_us: i64,
    pub(crate) client: u32,
    pub(crate) port: u16,
    pub(crate) bytes: u64,
    pub(crate) object: u64,
    pub(crate) status: u16,
}

impl Row {
    /// A request with known time and client.
    #[inline]
    pub(crate) fn new(time_us: i64, client: u32) -> Self {
        Self {
            time_us,
            client,
            port: 0,
            bytes: BYTES_UNKNOWN,
            object: 0,
            status: 0,
        }
    }
}

/// Fills [`Requests`].
#[derive(Debug)]
pub(crate) struct Builder {
    requests: Requests,
    v4: NumberTable,
    names: NameTable,
    clients_max: u32,
    keeps_unknown: bool,
    stepped_back: u64,
}

impl Builder {
    pub(crate) fn new(clients_max: u32) -> Self {
        Self {
            requests: Requests::default(),
            v4: NumberTable::default(),
            names: NameTable::default(),
            clients_max: clients_max.min(u32::MAX - 1),
            keeps_unknown: false,
            stepped_back: 0,
        }
    }

    /// Takes requests without a known client as those of one client, instead of passing them over.
    pub(crate) fn keep_unknown_clients(&mut self) {
        self.keeps_unknown = true;
    }

    pub(crate) fn requests_mut(&mut self) -> &mut Requests {
        &mut self.requests
    }

    pub(crate) fn rows(&self) -> u64 {
        self.requests.time_us.len() as u64
    }

    /// How often time stepped back.
    pub(crate) fn stepped_back(&self) -> u64 {
        self.stepped_back
    }

    pub(crate) fn finish(self) -> Requests {
        self.requests
    }

    #[inline]
    pub(crate) fn push(&mut self, row: Row) -> Result<Step, Reason> {
        check_time(row.time_us)?;
        let requests = &mut self.requests;
        if requests
            .time_us
            .last()
            .is_some_and(|last| *last > row.time_us)
        {
            self.stepped_back += 1;
        }
        requests.time_us.push(row.time_us);
        requests.client.push(row.client);
        requests.port.push(row.port);
        requests.bytes.push(row.bytes);
        requests.object.push(row.object);
        requests.status.push(row.status);
        Ok(Step::Row)
    }

    /// The number of a client given as text: an address of either family, or a name. A port after
    /// it is ignored.
    #[inline]
    pub(crate) fn client(&mut self, text: &[u8]) -> Result<u32, Reason> {
        Ok(self.client_and_port(text)?.0)
    }

    /// The number of a client given as text, and the port after it; 0 without a port.
    #[inline]
    pub(crate) fn client_and_port(&mut self, text: &[u8]) -> Result<(u32, u16), Reason> {
        if let Some(address) = field::v4(text) {
            return Ok((self.client_v4(address)?, 0));
        }
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            return Err(Reason::Client);
        }
        if UNKNOWN.contains(&text) && !self.keeps_unknown {
            return Err(Reason::NoClient);
        }
        if let Some(octets) = field::v6(text) {
            return Ok((self.client_v6(octets)?, 0));
        }
        let (bare, port) = field::host_and_port(text);
        if bare.len() < text.len()
            && let Ok(client) = self.client_at(bare)
        {
            return Ok((client, port));
        }
        // Of a name with further colons nobody knows what the last one stands before.
        if port != 0 && memchr::memchr(b':', bare).is_none() {
            return Ok((self.client_named(bare)?, port));
        }
        Ok((self.client_named(text)?, 0))
    }

    /// The number of a client by its address.
    #[inline]
    pub(crate) fn client_at(&mut self, text: &[u8]) -> Result<u32, Reason> {
        match field::v4(text) {
            Some(address) => self.client_v4(address),
            None => self.client_v6(field::v6(text).ok_or(Reason::Client)?),
        }
    }

    #[inline]
    pub(crate) fn client_v4(&mut self, address: u32) -> Result<u32, Reason> {
        let next = self.requests.clients.len() as u32;
        let (number, fresh) = self.v4.number(u64::from(address), next);
        if fresh {
            self.add(Address::v4(address.to_be_bytes()), false)?;
        }
        Ok(number)
    }

    pub(crate) fn client_v6(&mut self, octets: [u8; 16]) -> Result<u32, Reason> {
        let address = Address::v6(octets);
        if address.is_v4() {
            return self.client_v4(u32::from_be_bytes(address.v4_octets()));
        }
        let next = self.requests.clients.len() as u32;
        // No name begins with a zero byte: lines have none in front of an address.
        let mut key = [0u8; 17];
        key[1..].copy_from_slice(&octets);
        let (number, fresh) = self.names.number(&key, next);
        if fresh {
            self.add(address, false)?;
        }
        Ok(number)
    }

    /// A client by its name, or by its number as text.
    #[inline]
    pub(crate) fn client_named(&mut self, name: &[u8]) -> Result<u32, Reason> {
        self.client_with(name, || address_of_name(name))
    }

    /// A client by its name, with the address derived from it.
    #[inline]
    pub(crate) fn client_with(
        &mut self,
        name: &[u8],
        address: impl FnOnce() -> Address,
    ) -> Result<u32, Reason> {
        let next = self.requests.clients.len() as u32;
        let (number, fresh) = self.names.number(name, next);
        if fresh {
            self.add(address(), true)?;
        }
        Ok(number)
    }

    /// A new client that the caller identifies itself.
    #[cold]
    pub(crate) fn add(&mut self, address: Address, named: bool) -> Result<u32, Reason> {
        let number = self.requests.clients.len() as u32;
        if number >= self.clients_max {
            return Err(Reason::Clients);
        }
        self.requests.clients.push(Client { address, named });
        Ok(number)
    }
}

/// Is it a time that rows may have?
#[inline]
pub(crate) fn check_time(time_us: i64) -> Result<(), Reason> {
    if time_us.unsigned_abs() > TIME_MAX_US.unsigned_abs() {
        return Err(Reason::Time);
    }
    Ok(())
}

/// One access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) time_us: i64,
    pub(crate) key: Endpoint,
    pub(crate) hint: u8,
}
