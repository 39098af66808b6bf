//! What the switch tells the outside: one event a decision, a refusal, a connection's end.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant};
use fairlead_wire::{Asked, Fault};

use crate::config::{PoolId, Treatment};
use crate::engine::ConnectionId;

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
        /// What the client asked for.
        subject: Asked,
    },
    /// A client's connection became one of a listening socket of this machine: nothing more is
    /// known of it.
    Given {
        /// The client.
        client: Endpoint,
        /// The listening endpoint it connected to.
        listen: Endpoint,
        /// Index of the service.
        service: u16,
        /// Index of the route within the service.
        route: u16,
        /// Where the socket listens.
        listener: Endpoint,
        /// As in [`Event::Decided`].
        subject: Asked,
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
        subject: Asked,
        /// Of a malformed head: which rule it breaks, and where.
        fault: Option<Fault>,
    },
    /// A spliced connection is over.
    Closed {
        /// Its name.
        id: ConnectionId,
        /// The client.
        client: Endpoint,
        /// The listening endpoint it connected to.
        listen: Endpoint,
        /// Index of the service.
        service: u16,
        /// Index of the route within the service; of one that an earlier run chose and that leads
        /// elsewhere by now, 65,534; of a pair that a proxy handed off, 65,535.
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
        /// What is known of its set-up, if that was kept: this run has set it up, and there was
        /// room (`Config::details_bytes`).
        details: Option<Box<Details>>,
    },
    /// A later request belongs to another pool than its connection, for the first time in an hour
    /// by these two routes. It was counted.
    LaterRequest {
        /// The client.
        client: Endpoint,
        /// Index of the service.
        service: u16,
        /// Index of the connection's route within the service.
        route: u16,
        /// That of the route that the request would take; `None` where none matches.
        would_be: Option<u16>,
        /// The connection was closed.
        closes: bool,
    },
    /// A server became available for connections, or is not any more, for another reason than that
    /// it answers or does not ([`Event::Server`]).
    Availability {
        /// The server.
        server: Endpoint,
        /// The pool.
        pool: PoolId,
        /// Why it gets no connections; `None` where it gets some.
        unavailable: Option<Unavailable>,
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

/// What is kept of the set-up of a connection until its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// What the client asked for.
    pub subject: Asked,
    /// From the client's first bytes to the decision.
    pub head: Duration,
    /// From the SYN to the server's answer; unknown where a fast path outside saw the answer.
    pub connect: Option<Duration>,
    /// Servers that were tried before.
    pub retries: u8,
    /// The status of the first HTTP response, where the engine has seen it.
    pub status: Option<u16>,
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
    /// A later request belonged to another pool, and the service has such connections closed.
    LaterRequest,
    /// No packet for the half-closed time after one side had closed.
    HalfClosedTimeout,
    /// The server did not acknowledge bytes that the switch held for it.
    PreambleUnacked,
    /// The client opened a new connection from the same address and port.
    Replaced,
    /// Ended by the operator.
    Aborted,
    /// Ended by an order to end this one, or those of its server.
    Killed,
    /// Its server went down, and the pool has `on_down = "reset"`.
    ServerDown,
}

impl End {
    /// All ends, in a fixed order.
    pub const ALL: [Self; 12] = [
        Self::Finished,
        Self::ResetByClient,
        Self::ResetByServer,
        Self::IdleTimeout,
        Self::MaxLifetime,
        Self::LaterRequest,
        Self::HalfClosedTimeout,
        Self::PreambleUnacked,
        Self::Replaced,
        Self::Aborted,
        Self::Killed,
        Self::ServerDown,
    ];

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::ResetByClient => "reset_by_client",
            Self::ResetByServer => "reset_by_server",
            Self::IdleTimeout => "idle_timeout",
            Self::MaxLifetime => "max_lifetime",
            Self::LaterRequest => "later_request",
            Self::HalfClosedTimeout => "half_closed_timeout",
            Self::PreambleUnacked => "preamble_unacked",
            Self::Replaced => "replaced",
            Self::Aborted => "aborted",
            Self::Killed => "killed",
            Self::ServerDown => "server_down",
        }
    }
}

/// What the operator ordered of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Admin {
    /// It gets connections.
    #[default]
    Ready,
    /// It gets no new connections; health checks go on.
    Drain,
    /// It gets no new connections and no health checks.
    Maintenance,
}

impl Admin {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ready, Self::Drain, Self::Maintenance];

    /// The word in orders, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Drain => "drain",
            Self::Maintenance => "maint",
        }
    }
}

/// Why a server gets no connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unavailable {
    /// By the operator's order.
    Maintenance,
    /// By the operator's order, until it is given another.
    Draining,
    /// Its weight is 0.
    NoWeight,
    /// Its health checks fail.
    CheckFailed,
    /// It refused connections, or left them unanswered, too often in a row.
    Ejected,
    /// It did not answer the last probe or connection.
    NotAnswering,
}

impl Unavailable {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Maintenance,
        Self::Draining,
        Self::NoWeight,
        Self::CheckFailed,
        Self::Ejected,
        Self::NotAnswering,
    ];

    /// The word in lists, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Maintenance => "maint",
            Self::Draining => "drain",
            Self::NoWeight => "no_weight",
            Self::CheckFailed => "check_failed",
            Self::Ejected => "ejected",
            Self::NotAnswering => "not_answering",
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
