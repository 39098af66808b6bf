//! Live connections, one by one: for lists, and for orders about single ones.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use fairlead_base::{Address, Endpoint, Instant};
use fairlead_tcp::{Line, Record, State};

use super::Switch;
use super::offload::Custody;
use super::timer::quiet_ms;
use crate::backends::ServerId;
use crate::config::PoolId;

/// Names a connection: its line, and its client's initial sequence number, so that a line that has
/// been used again is not mistaken for the connection before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    line: u32,
    isn: u32,
}

impl ConnectionId {
    /// The name of the connection on this line.
    pub(super) fn of(line: Line, record: &Record) -> Self {
        Self {
            line: line.0,
            isn: record.client_isn,
        }
    }

    /// Its line.
    pub fn line(self) -> u32 {
        self.line
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:08x}", self.line, self.isn)
    }
}

/// A text that names no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a connection: expected two hexadecimal numbers, as in 1a2f-9c01e4d2")]
pub struct BadConnectionId;

impl FromStr for ConnectionId {
    type Err = BadConnectionId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| {
            let digits = (1..=8).contains(&part.len()) && !part.starts_with('+');
            let number = digits.then(|| u32::from_str_radix(part, 16).ok());
            number.flatten().ok_or(BadConnectionId)
        };
        let (line, isn) = text.split_once('-').ok_or(BadConnectionId)?;
        Ok(Self {
            line: number(line)?,
            isn: number(isn)?,
        })
    }
}

/// Which connections are meant: all that agree with every field that is not `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// This one.
    pub id: Option<ConnectionId>,
    /// Those of a service, by its index.
    pub service: Option<u16>,
    /// Those of a pool.
    pub pool: Option<PoolId>,
    /// Those of a server.
    pub server: Option<ServerId>,
    /// Those of clients of a network: its address and the length of its prefix.
    pub client: Option<(Address, u8)>,
    /// Those on which nothing has passed for so long.
    pub idle_over: Option<Duration>,
}

/// A live connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its name.
    pub id: ConnectionId,
    /// The client.
    pub client: Endpoint,
    /// Where it connected to.
    pub listen: Endpoint,
    /// The service's index.
    pub service: u16,
    /// The route's index within its service, once it is decided.
    pub route: Option<u16>,
    /// The server, once one is chosen, and its pool.
    pub server: Option<(ServerId, PoolId, Endpoint)>,
    /// Where it is.
    pub state: State,
    /// How long it has lived.
    pub age: Duration,
    /// How long nothing has passed.
    pub idle: Duration,
    /// Stream bytes from client to server so far.
    pub bytes_in: u64,
    /// Stream bytes from server to client so far.
    pub bytes_out: u64,
}

impl Switch {
    /// Puts the selected connections of `lines` lines, from line `from` on, into `found`. The line
    /// to go on with; `None` at the end.
    pub fn connections(
        &self,
        now: Instant,
        selection: &Selection,
        (from, lines): (u32, u32),
        found: &mut Vec<Connection>,
    ) -> Option<u32> {
        let end = self.table.high_water().min(from.saturating_add(lines));
        for line in (from..end).map(Line) {
            if self.is_selected(now, line, selection) {
                found.push(self.connection(now, line));
            }
        }
        (end < self.table.high_water()).then_some(end)
    }

    pub(super) fn is_selected(&self, now: Instant, line: Line, selection: &Selection) -> bool {
        let record = self.table.record(line);
        let has_server = record.state.is_live() || record.state == State::SynSent;
        let in_setup = matches!(record.state, State::Established | State::Answering);
        let is_ticket = matches!(self.custody(line), Custody::Ticket { .. });
        if !has_server && !in_setup || is_ticket {
            return false;
        }
        let id = ConnectionId::of(line, record);
        let server = has_server
            .then(|| self.places.server(record.server))
            .flatten();
        let service = self.listen_services[usize::from(record.listen)];
        let idle = || Duration::from_millis(quiet_ms(Self::now_ms(now), record.last_active).into());
        selection.id.is_none_or(|one| one == id)
            && selection.service.is_none_or(|one| one == service)
            && selection.server.is_none_or(|one| server == Some(one))
            && selection
                .pool
                .is_none_or(|pool| server.is_some_and(|id| self.backends.server(id).0 == pool))
            && selection
                .client
                .is_none_or(|(network, bits)| is_within(record.client_addr, network, bits))
            && selection.idle_over.is_none_or(|over| idle() >= over)
    }

    fn connection(&self, now: Instant, line: Line) -> Connection {
        let record = self.table.record(line);
        let endpoints = self.table.endpoints();
        let has_server = record.state.is_live() || record.state == State::SynSent;
        let server = has_server
            .then(|| self.places.server(record.server))
            .flatten();
        let decided = has_server || record.state == State::Answering;
        let lived = self.table.lived_ms(line, now.as_millis());
        let joined = record.state.is_live();
        Connection {
            id: ConnectionId {
                line: line.0,
                isn: record.client_isn,
            },
            client: record.client(),
            listen: endpoints.listen(record.listen),
            service: self.listen_services[usize::from(record.listen)],
            route: (decided && has_server).then_some(record.route),
            server: server.map(|id| {
                let (pool, server) = self.backends.server(id);
                (id, pool, server.endpoint)
            }),
            state: record.state,
            age: Duration::from_millis(lived),
            idle: Duration::from_millis(quiet_ms(Self::now_ms(now), record.last_active).into()),
            bytes_in: if joined { record.bytes_in() } else { 0 },
            bytes_out: if joined { record.bytes_out() } else { 0 },
        }
    }
}

/// Whether an address is of a network.
fn is_within(address: Address, network: Address, bits: u8) -> bool {
    if address.is_v4() != network.is_v4() {
        return false;
    }
    // Addresses of IPv4 are the last four bytes of sixteen.
    let bits = u32::from(bits) + if address.is_v4() { 96 } else { 0 };
    let [one, other] = [address, network].map(|one| u128::from_be_bytes(one.0));
    bits == 0 || (one ^ other).leading_zeros() >= bits.min(128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_shown() {
        let id: ConnectionId = "1a2f-9c01e4d2".parse().unwrap();
        assert_eq!(id.to_string(), "1a2f-9c01e4d2");
        for text in [
            "",
            "-",
            "1",
            "1-",
            "-1",
            "x-1",
            "1-123456789",
            "1-+2",
            "1-2-3",
        ] {
            assert!(text.parse::<ConnectionId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_network_has_the_addresses_that_share_its_prefix() {
        let v4 = |last| Address::v4([192, 0, 2, last]);
        assert!(is_within(v4(7), v4(0), 24) && is_within(v4(7), v4(7), 32));
        assert!(is_within(v4(7), Address::v4([0; 4]), 0));
        assert!(!is_within(v4(7), v4(8), 32) && !is_within(v4(200), v4(0), 25));
        let v6 = Address::v6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(is_within(v6, v6, 128) && !is_within(v6, v4(0), 0));
    }
}
