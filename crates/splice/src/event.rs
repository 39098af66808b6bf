//! What the switch tells the outside: one event a decision, a refusal, a connection's end.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant};
use fairlead_wire::Fault;

use crate::config::{PoolId, Treatment};

/// Something an operator may want to log. Events wait in a bounded queue; the ones that find it
/// full are counted ([`DropReason::EventLost`]) and gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server was chosen and is being connected.
    Decided {
        /// The client.
        client: Endpoint,
        /// The listening endpoint it connected to.
        listen: Endpoint,
        /// Index of the service.
        service: u16,
        /// Index of the route within the service.
        route: u16,
        /// The pool.
        pool: PoolId,
        /// The server.
        server: Endpoint,
        /// 0 for the first choice, 1 for the first retry, …
        attempt: u8,
        /// How the connection is served.
        treatment: Treatment,
        /// `GET example.com/path`, a TLS server name, or empty; at most 256 bytes.
        subject: String,
    },
    /// A client was turned away.
    Refused {
        /// The client.
        client: Endpoint,
        /// The listening endpoint it connected to.
        listen: Endpoint,
        /// Index of the service.
        service: u16,
        /// Why.
        reason: DropReason,
        /// The HTTP status it was told, where it was told one.
        status: Option<u16>,
        /// As in [`Event::Decided`].
        subject: String,
        /// Of a malformed head: which rule it breaks, and where.
        fault: Option<Fault>,
    },
    /// A spliced connection is over.
    Closed {
        /// The client.
        client: Endpoint,
        /// The listening endpoint it connected to.
        listen: Endpoint,
        /// Index of the service.
        service: u16,
        /// Index of the route within the service; of one that an earlier run chose and that leads
        /// elsewhere by now, 65,535.
        route: u16,
        /// The pool, if the server is in one still.
        pool: Option<PoolId>,
        /// The server.
        server: Endpoint,
        /// The address and port that the server saw.
        source: Endpoint,
        /// How it was served, if the route is known.
        treatment: Option<Treatment>,
        /// Stream bytes from client to server.
        bytes_in: u64,
        /// Stream bytes from server to client.
        bytes_out: u64,
        /// When its record was made.
        opened: Instant,
        /// How long it lived.
        duration: Duration,
        /// How it ended.
        end: End,
    },
    /// A server's state changed, in one of the pools that it stands in: each judges it by its own
    /// connections.
    Server {
        /// The server.
        server: Endpoint,
        /// The pool.
        pool: PoolId,
        /// What it is now.
        state: ServerState,
        /// The options it honours, where it has answered.
        offers: Option<Offers>,
        /// The server has shown fewer options, or smaller ones, than in answers before: from now
        /// on clients are offered no more than these.
        fewer: bool,
    },
}

/// How a spliced connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// Both sides closed and acknowledged each other's FIN.
    Finished,
    /// The client sent RST.
    ResetByClient,
    /// The server sent RST.
    ResetByServer,
    /// No packet for the idle time.
    IdleTimeout,
    /// Its service's longest lifetime was over.
    MaxLifetime,
    /// No packet for the half-closed time after one side had closed.
    HalfClosedTimeout,
    /// The server did not acknowledge bytes that the switch held for it.
    PreambleUnacked,
    /// The client opened a new connection from the same address and port.
    Replaced,
    /// Ended by the operator.
    Aborted,
}

impl End {
    /// All ends, in a fixed order.
    pub const ALL: [Self; 9] = [
        Self::Finished,
        Self::ResetByClient,
        Self::ResetByServer,
        Self::IdleTimeout,
        Self::MaxLifetime,
        Self::HalfClosedTimeout,
        Self::PreambleUnacked,
        Self::Replaced,
        Self::Aborted,
    ];

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::ResetByClient => "reset_by_client",
            Self::ResetByServer => "reset_by_server",
            Self::IdleTimeout => "idle_timeout",
            Self::MaxLifetime => "max_lifetime",
            Self::HalfClosedTimeout => "half_closed_timeout",
            Self::PreambleUnacked => "preamble_unacked",
            Self::Replaced => "replaced",
            Self::Aborted => "aborted",
        }
    }
}

/// What is known of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerState {
    /// Not yet heard of.
    Unknown,
    /// Its last probe or connection was answered.
    Up,
    /// Its last probe or connection was refused or not answered.
    Down,
}

impl ServerState {
    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// TCP options that a server has been seen to honour in its SYN-ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offers {
    /// The maximum segment size it announced, bytes.
    pub mss: u16,
    /// Its window scale (RFC 7323), if it takes part.
    pub window_scale: Option<u8>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Timestamps (RFC 7323).
    pub timestamps: bool,
}

impl Offers {
    /// What two servers, or two hosts behind one address, both honour.
    pub fn intersection(self, other: Self) -> Self {
        let scales = self.window_scale.zip(other.window_scale);
        Self {
            mss: self.mss.min(other.mss),
            // All must take part; the largest scale can express every server's window.
            window_scale: scales.map(|(one, other)| one.max(other)),
            sack: self.sack && other.sack,
            timestamps: self.timestamps && other.timestamps,
        }
    }
}
