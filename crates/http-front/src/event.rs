//! What the front tells the outside.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint};
use fairlead_splice::backends::ServerId;
use fairlead_splice::config::PoolId;
use fairlead_wire::Asked;

/// A request is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The client.
    pub client: Endpoint,
    /// The listening endpoint that it connected to.
    pub listen: Endpoint,
    /// Index of the service.
    pub service: u16,
    /// Index of the route within the service, and its pool; `None` where no route was chosen.
    pub to: Option<(u16, PoolId)>,
    /// The server that it was sent to last.
    pub server: Option<(ServerId, Endpoint)>,
    /// What was asked for.
    pub asked: Asked,
    /// The status that the client was sent, if it was sent one.
    pub status: Option<u16>,
    /// Bytes of the request, head included.
    pub bytes_in: u64,
    /// Bytes of the response, head included.
    pub bytes_out: u64,
    /// From its head to its end.
    pub duration: Duration,
    /// How often it was sent once more.
    pub retries: u8,
    /// How it ended.
    pub end: RequestEnd,
    /// Why it was refused, if it was.
    pub reason: Option<DropReason>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestEnd {
    /// The whole response was sent.
    Served,
    /// Its head, or its body's chunks, break a rule; or no route matches.
    Refused,
    /// No server could be reached.
    NoServer,
    /// The server's response breaks a rule, so that its end is in doubt.
    BadResponse,
    /// The server's connection ended before its response.
    ServerLost,
    /// The client's connection ended before the response did.
    ClientLost,
    /// Nothing moved for [`PerRequest::stalled`](fairlead_splice::config::PerRequest::stalled).
    Stalled,
    /// It became a connection of another protocol, which is over.
    Upgraded,
    /// It became a connection of another protocol, which was handed off: the front copies it no
    /// more.
    HandedOff,
    /// Ended by the operator.
    Aborted,
}

impl RequestEnd {
    /// All ends, in a fixed order.
    pub const ALL: [Self; 10] = [
        Self::Served,
        Self::Refused,
        Self::NoServer,
        Self::BadResponse,
        Self::ServerLost,
        Self::ClientLost,
        Self::Stalled,
        Self::Upgraded,
        Self::HandedOff,
        Self::Aborted,
    ];

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Refused => "refused",
            Self::NoServer => "no_server",
            Self::BadResponse => "bad_response",
            Self::ServerLost => "server_lost",
            Self::ClientLost => "client_lost",
            Self::Stalled => "stalled",
            Self::Upgraded => "upgraded",
            Self::HandedOff => "handed_off",
            Self::Aborted => "aborted",
        }
    }
}
