//! Two connections that a proxy copies between, as one record: or why not.
//!
//! Each leg's state is what Linux tells of a socket in repair mode (tcp(7), `TCP_REPAIR`), read
//! while no packet can change it. It is input like any other: a state that contradicts itself is
//! refused.
//!
//! | refused | because |
//! |---|---|
//! | [`Unlike::State`] | one leg is not established in both directions |
//! | [`Unlike::QueueNotEmpty`] | queues are not translated: bytes would be lost |
//! | [`Unlike::Family`] | a record has one family |
//! | [`Unlike::SameSocket`] | both legs are one connection, or each is the other's end |
//! | [`Unlike::Timestamps`] | an end that agreed to them drops segments without (RFC 7323, 3.2) |
//! | [`Unlike::Sack`] | blocks would reach an end that did not agree to them |
//! | [`Unlike::Mss`] | an end sends larger segments than the other accepts |
//! | [`Unlike::Scale`] | a window could never be shown to the other end |
//! | [`Unlike::Ecn`] | marks of one leg would mean nothing on the other |
//! | [`Unlike::Inconsistent`] | the state contradicts itself |

use fairlead_base::Endpoint;

use crate::record::{Record, Side, State, flag};
use crate::second::{PAIR_ROUTE, Second, Seen};

/// `TCP_ESTABLISHED` of Linux.
pub const ESTABLISHED: u8 = 1;

/// The largest window scale (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;

/// The largest window.
const WINDOW_MAX: u32 = 1 << 30;

/// A window must be able to reach this number of units of the scale by which the other end reads
/// it: with fewer, rounding down would keep it closed.
const UNITS_MIN: u32 = 4;

/// One connection of the proxy's, as its socket has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The proxy's address and port.
    pub local: Endpoint,
    /// The end's address and port.
    pub peer: Endpoint,
    /// Linux's number of the state; see [`ESTABLISHED`].
    pub state: u8,
    /// The number of the next byte that the end will send.
    pub rcv_nxt: u32,
    /// The number of the next byte that the proxy would write.
    pub write_seq: u32,
    /// Bytes received and not read.
    pub unread: u32,
    /// Bytes written and not acknowledged.
    pub unacknowledged: u32,
    /// Timestamps, if agreed: the socket's own clock now, and the end's last value.
    pub timestamps: Option<Stamps>,
    /// Selective acknowledgements were agreed.
    pub sack: bool,
    /// Window scales, if agreed: the end's, and the socket's own.
    pub scales: Option<Scales>,
    /// ECN was agreed.
    pub ecn: bool,
    /// The largest segment that the end accepts, bytes, as it said in its SYN.
    pub mss: u16,
    /// The largest segment that the socket said it accepts.
    pub own_mss: u16,
    /// The end's window now, and the largest it has had, bytes.
    pub window: u32,
    /// See [`Self::window`].
    pub window_max: u32,
    /// What the socket has promised behind [`Self::rcv_nxt`], bytes.
    pub promised: u32,
}

/// Timestamps of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// The socket's own clock now.
    pub own: u32,
    /// The last value that came from the end.
    pub peer: u32,
}

/// Window scales of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scales {
    /// Of windows that the end sends.
    pub peer: u8,
    /// Of windows that the socket sends.
    pub own: u8,
}

/// Why two connections do not become one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Unlike {
    /// One is not established in both directions.
    State,
    /// Bytes are in a queue.
    QueueNotEmpty,
    /// One is IPv4, the other IPv6.
    Family,
    /// Both are one connection, or the two ends of one.
    SameSocket,
    /// Only one has timestamps.
    Timestamps,
    /// Only one has selective acknowledgements.
    Sack,
    /// An end may send larger segments than the other accepts.
    Mss,
    /// A window cannot be translated within what its receiver offered.
    Scale,
    /// Only one has ECN.
    Ecn,
    /// The state contradicts itself.
    Inconsistent,
}

impl Unlike {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::State,
        Self::QueueNotEmpty,
        Self::Family,
        Self::SameSocket,
        Self::Timestamps,
        Self::Sack,
        Self::Mss,
        Self::Scale,
        Self::Ecn,
        Self::Inconsistent,
    ];
}

/// Two connections as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// The client's end, and where it connected to.
    pub client: Endpoint,
    /// The proxy's address and port that the client knows.
    pub listen: Endpoint,
    /// The server's end.
    pub server: Endpoint,
    /// The proxy's address and port that the server knows.
    pub source: Endpoint,
    /// [`Record::seq_delta`].
    pub seq_delta: u32,
    /// [`Record::ts_delta`].
    pub ts_delta: u32,
    /// The next number of the client's stream.
    pub client_nxt: u32,
    /// The next number of the server's stream.
    pub server_nxt: u32,
    /// Both legs have timestamps.
    pub timestamps: bool,
    /// The second constants.
    pub second: Second,
    /// Bytes by which the window shown to the client falls behind what the proxy had promised it,
    /// and the same for the server: such bytes in flight come twice.
    pub narrowed: [u32; 2],
}

impl Pairing {
    /// Pairs the leg of a client and that of a server.
    ///
    /// # Errors
    /// What stands against it.
    pub fn of(client: &Leg, server: &Leg) -> Result<Self, Unlike> {
        for leg in [client, server] {
            check(leg)?;
        }
        if client.local.addr.is_v4() != server.local.addr.is_v4() {
            return Err(Unlike::Family);
        }
        let key = |leg: &Leg| (leg.local, leg.peer);
        let turned = (server.peer, server.local);
        if key(client) == key(server) || key(client) == turned {
            return Err(Unlike::SameSocket);
        }
        let (ts_delta, ts) = stamps(client, server)?;
        if client.sack != server.sack {
            return Err(Unlike::Sack);
        }
        if client.ecn != server.ecn {
            return Err(Unlike::Ecn);
        }
        // What the client was told that it may send must be what the server accepts.
        if client.own_mss > server.mss || server.own_mss > client.mss {
            return Err(Unlike::Mss);
        }
        let second = Second {
            seq: server.write_seq.wrapping_sub(client.rcv_nxt),
            ts,
            client_shift: shift(client, server)?,
            server_shift: shift(server, client)?,
        };
        Ok(Self {
            client: client.peer,
            listen: client.local,
            server: server.peer,
            source: server.local,
            seq_delta: client.write_seq.wrapping_sub(server.rcv_nxt),
            ts_delta,
            client_nxt: client.rcv_nxt,
            server_nxt: server.rcv_nxt,
            timestamps: client.timestamps.is_some(),
            second,
            narrowed: [
                client.promised.saturating_sub(server.window),
                server.promised.saturating_sub(client.window),
            ],
        })
    }

    /// The record, with addresses at these places of [`crate::Endpoints`].
    pub fn record(&self, listen: u16, server: u16, nat_addr: u16, now_ms: u32) -> Record {
        Record {
            client_addr: self.client.addr,
            client_port: self.client.port,
            listen,
            server,
            nat_addr,
            nat_port: self.source.port,
            route: PAIR_ROUTE,
            seq_delta: self.seq_delta,
            ts_delta: self.ts_delta,
            client_isn: self.client_nxt.wrapping_sub(1),
            server_isn: self.server_nxt.wrapping_sub(1),
            client_nxt: self.client_nxt,
            server_nxt: self.server_nxt,
            last_active: now_ms,
            state: State::Spliced,
            flags: if self.timestamps { flag::TIMESTAMPS } else { 0 },
            ..Record::default()
        }
    }

    /// What the legs of a pair would be now, had it never left them: what they were before, brought
    /// up to its record and to what was last seen of both ends. Nothing is in flight.
    pub fn returned(
        before: [Leg; 2],
        record: &Record,
        second: &Second,
        seen: [Option<Seen>; 2],
    ) -> [Leg; 2] {
        let [mut client, mut server] = before;
        client.rcv_nxt = record.client_nxt;
        client.write_seq = record.server_nxt.wrapping_add(record.seq_delta);
        server.rcv_nxt = record.server_nxt;
        server.write_seq = record.client_nxt.wrapping_add(second.seq);
        let bytes = |window: u16, scale: Option<u8>| u32::from(window) << scale.unwrap_or(0);
        let peer = |leg: &Leg| leg.scales.map(|scales| scales.peer);
        let own = |leg: &Leg| leg.scales.map(|scales| scales.own);
        // Windows of the server are noted as the client sees them.
        if let Some(seen) = seen[0] {
            client.window = bytes(seen.window, peer(&client));
            let shown = second.of(Side::Client).window(seen.window);
            server.promised = bytes(shown, own(&server));
            go_on(&mut server, seen, second.ts);
        }
        if let Some(seen) = seen[1] {
            client.promised = bytes(seen.window, own(&client));
            server.window = client.promised;
            go_on(&mut client, seen, record.ts_delta);
        }
        for (leg, seen) in [&mut client, &mut server].into_iter().zip(seen) {
            leg.window_max = leg.window_max.max(leg.window);
            let value = seen.and_then(|seen| seen.timestamp);
            if let (Some(stamps), Some(value)) = (&mut leg.timestamps, value) {
                stamps.peer = value;
            }
        }
        [client, server]
    }
}

/// The clock of a leg goes on where the other end's has been, as this leg's end saw it.
fn go_on(leg: &mut Leg, seen: Seen, ts_add: u32) {
    if let (Some(stamps), Some(value)) = (&mut leg.timestamps, seen.timestamp) {
        stamps.own = value.wrapping_add(ts_add).wrapping_add(1);
    }
}

/// A leg alone.
fn check(leg: &Leg) -> Result<(), Unlike> {
    if leg.state != ESTABLISHED {
        return Err(Unlike::State);
    }
    if leg.unread != 0 || leg.unacknowledged != 0 {
        return Err(Unlike::QueueNotEmpty);
    }
    let ends = [leg.local, leg.peer];
    let no_address = |end: &Endpoint| end.port == 0 || end.addr.0 == [0; 16];
    let scale = |scales: Scales| scales.peer > SCALE_MAX || scales.own > SCALE_MAX;
    if ends.iter().any(no_address)
        || leg.local.addr.is_v4() != leg.peer.addr.is_v4()
        || leg.local == leg.peer
        || leg.scales.is_some_and(scale)
        || leg.mss == 0
        || leg.own_mss == 0
        || leg.window > leg.window_max
        || leg.window_max > WINDOW_MAX
        || leg.promised > WINDOW_MAX
    {
        return Err(Unlike::Inconsistent);
    }
    Ok(())
}

/// What is added to the server's timestamps, and to the client's: each end's clock goes on where
/// the proxy's has been, as the other end saw it.
fn stamps(client: &Leg, server: &Leg) -> Result<(u32, u32), Unlike> {
    match (client.timestamps, server.timestamps) {
        (None, None) => Ok((0, 0)),
        (Some(to_client), Some(to_server)) => Ok((
            to_client.own.wrapping_sub(to_server.peer),
            to_server.own.wrapping_sub(to_client.peer),
        )),
        _ => Err(Unlike::Timestamps),
    }
}

/// The correction of windows that `from` sends, for the end of `to`: it reads them by the scale
/// that the proxy said there.
fn shift(from: &Leg, to: &Leg) -> Result<i8, Unlike> {
    let sent = from.scales.map_or(0, |scales| scales.peer);
    let read = to.scales.map_or(0, |scales| scales.own);
    let units = from.window_max >> read;
    if read > sent && units < UNITS_MIN {
        return Err(Unlike::Scale);
    }
    Ok(sent as i8 - read as i8)
}

#[cfg(test)]
mod tests;
