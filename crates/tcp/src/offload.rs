//! The port to a fast path: something outside the engine that forwards packets of spliced
//! connections by itself, from the same [`Record`].
//!
//! At any moment one of the two holds a connection. While the fast path holds it, it alone moves
//! what is in [`Tracking`]. The engine reclaims a connection before it looks at one of its packets,
//! and offloads it again when nothing is left to do but to translate, and to follow it to its end.
//!
//! | trait | what the fast path does by itself |
//! |---|---|
//! | [`FlowOffload`] | forwards packets of joined connections |
//! | [`SynOffload`] | answers SYNs, refuses under overload |
//! | [`ConnectOffload`] | joins a connection when its server answers; optional |
//! | [`Preconnect`] | begins connections with servers chosen beforehand; optional |
//! | [`PairOffload`] | forwards packets of pairs; optional |

use fairlead_base::{Endpoint, FlowKey};

use crate::endpoints::Endpoints;
use crate::join::{Join, Joined};
use crate::record::{Record, State};
use crate::second::{Second, Seen};
use crate::table::Line;
use crate::ticket::{Begun, Ticket};

/// What a fast path has seen of a connection while it held it: the fields of [`Record`] that
/// forwarding moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracking {
    /// [`Record::client_nxt`].
    pub client_nxt: u32,
    /// [`Record::server_nxt`].
    pub server_nxt: u32,
    /// [`Record::client_wraps`].
    pub client_wraps: u16,
    /// [`Record::server_wraps`].
    pub server_wraps: u16,
    /// [`Record::last_active`].
    pub last_active: u32,
    /// [`Record::state`]: a fast path may follow FINs and RSTs.
    pub state: State,
    /// [`Record::flags`].
    pub flags: u8,
}

impl Tracking {
    /// What a record says.
    pub fn of(record: &Record) -> Self {
        Self {
            client_nxt: record.client_nxt,
            server_nxt: record.server_nxt,
            client_wraps: record.client_wraps,
            server_wraps: record.server_wraps,
            last_active: record.last_active,
            state: record.state,
            flags: record.flags,
        }
    }

    /// Brings a record up to it.
    pub fn apply_to(&self, record: &mut Record) {
        record.client_nxt = self.client_nxt;
        record.server_nxt = self.server_nxt;
        record.client_wraps = self.client_wraps;
        record.server_wraps = self.server_wraps;
        record.last_active = self.last_active;
        record.state = self.state;
        record.flags = self.flags;
    }
}

/// What SYNs to a listening endpoint are answered with, by whoever answers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOffer {
    /// Index of the listening endpoint.
    pub listen: u16,
    /// Maximum segment size advertised to clients, bytes.
    pub mss: u16,
    /// Window of SYN-ACKs, bytes.
    pub window: u16,
    /// Window scale offered to those who scale.
    pub window_scale: Option<u8>,
    /// Which of the last two scales that is ([`crate::Promise::scale_parity`]).
    pub scale_parity: bool,
    /// Selective acknowledgements are offered.
    pub sack: bool,
    /// Timestamps are offered.
    pub timestamps: bool,
    /// The fast path answers; otherwise SYNs go to the engine.
    pub answer: bool,
    /// Clients speak first: the last ACK of a handshake, if its cookie is good, needs no answer.
    pub await_client: bool,
    /// There are, or were, tickets for it.
    pub begin: bool,
    /// Some connections become sockets of this machine.
    pub host: bool,
}

/// What a fast path keeps from an engine that does not keep up. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// This share of SYNs, of 2³².
    pub syns: u32,
    /// Strangers' segments that prove no handshake by a cookie, and what comes to a service's
    /// address and concerns none: other ports, other protocols, fragments.
    pub unproven: bool,
}

/// Forwards packets of pairs by itself.
pub trait PairOffload {
    /// Learns the addresses that a pair's record names by index: they are nobody's configuration.
    /// To be called before any of its packets can come. `notes` are kept for a later run. False
    /// when it cannot.
    fn place_pair(
        &mut self,
        line: Line,
        record: &Record,
        endpoints: &Endpoints,
        notes: &[u8],
    ) -> bool;

    /// Learns what a pair's record lacks, and what has been seen of its client and its server. To
    /// be called before [`FlowOffload::offload`]. False when it cannot.
    fn describe_pair(&mut self, line: Line, second: &Second, seen: &[Option<Seen>; 2]) -> bool;

    /// What has been seen of a pair's ends, by now.
    fn pair_seen(&self, line: Line) -> [Option<Seen>; 2];

    /// Forgets what [`Self::describe_pair`] said. To be called after [`FlowOffload::remove`].
    fn forget_pair(&mut self, line: Line);
}

/// Answers SYNs by itself, and refuses what an overloaded engine cannot look at.
pub trait SynOffload {
    /// Says what SYNs to an endpoint are answered with from now on.
    fn set_offer(&mut self, listen: Endpoint, offer: &ListenOffer);

    /// Answers nothing to this endpoint any more: an earlier run listened there, this one does not.
    fn withdraw_offer(&mut self, listen: Endpoint);

    /// Refuses this from now on, because the engine does not keep up.
    fn set_refusal(&mut self, refusal: Refusal);
}

/// Forwards packets of joined connections by itself.
pub trait FlowOffload {
    /// True when it may lose keys that it was told. It then answers SYNs on tuples that have a
    /// connection as if they had none, and the engine hears of them by the data that follows.
    fn may_lose_keys(&self) -> bool;

    /// A connection was put on record under this key of its client's: packets of that key are the
    /// engine's from now on, SYNs too. It may have been armed before that. A connection that is
    /// begun under this key has taken its ticket by now ([`Preconnect::next_taken`]), or is given
    /// up.
    fn register(&mut self, line: Line, client: &FlowKey);

    /// Hands a connection over, found by these two keys. False when there is no room, or on
    /// failure: the engine goes on with the connection, and tries again at a later packet.
    fn offload(&mut self, line: Line, record: &Record, client: &FlowKey, server: &FlowKey) -> bool;

    /// Takes a connection back; its keys go on leading to it. Packets that are on their way through
    /// the fast path at this moment may still be forwarded.
    fn reclaim(&mut self, line: Line) -> Tracking;

    /// What was seen so far of a connection that was handed over.
    fn tracking(&self, line: Line) -> Tracking;

    /// Stores what the engine knows of a connection that the engine holds, for a run after this
    /// one.
    fn persist(&mut self, line: Line, record: &Record);

    /// A server was given up: its key leads to the connection no more, if ever it did.
    fn release_server(&mut self, line: Line, server: &FlowKey);

    /// Removes a connection that was registered or handed over, whoever holds it. Its keys may
    /// lead to its line until [`Self::flush`], but no packet of theirs is taken for one of the
    /// line's next connection.
    fn remove(&mut self, line: Line, client: &FlowKey, server: &FlowKey);

    /// Keeps these connections of an earlier run, with their clients' and their servers' keys, and
    /// removes everything else of that run.
    fn restore(&mut self, adopted: &[(Line, FlowKey, FlowKey)]);

    /// Does what was put off. To be called when timers have been dealt with.
    fn flush(&mut self);
}

/// Joins connections by itself when their servers answer.
pub trait ConnectOffload {
    /// Leaves it to join a connection whose server has been sent a SYN: `record` is as it is to be
    /// then, but for what the server's SYN-ACK says. `slot` is a small number that no other armed
    /// connection has, `keys` are the client's and the server's. False when it cannot: the engine
    /// waits for the SYN-ACK itself.
    ///
    /// Until [`Self::disarm`] no packet of the connection changes anything without this fast path.
    fn arm(
        &mut self,
        line: Line,
        slot: u32,
        record: &Record,
        join: &Join<'_>,
        keys: [&FlowKey; 2],
    ) -> bool;

    /// What became of an armed connection: `None` while it has not been joined. Once joined, it is
    /// as if it had been handed over.
    fn joined(&self, line: Line) -> Option<Joined>;

    /// Takes an armed connection back, unless it has been joined meanwhile. Its keys go on leading
    /// to it.
    fn disarm(&mut self, line: Line) -> Option<Joined>;
}

/// Begins connections by itself, by [tickets](crate::ticket).
pub trait Preconnect {
    /// How many lanes of tickets there are; at least one.
    fn lanes(&self) -> u16;

    /// Lets it begin a connection. False when it cannot.
    fn issue(&mut self, ticket: &Ticket<'_>) -> bool;

    /// The next ticket of a lane that has been taken, in the order in which they were issued. Its
    /// connection is armed, or joined already, under both keys.
    fn next_taken(&mut self, lane: u16) -> Option<Begun>;

    /// Takes all tickets of a lane back that nobody has taken, and appends line and place of each
    /// to `gone`. Those that have been taken come by [`Self::next_taken`] as before.
    fn revoke(&mut self, lane: u16, gone: &mut Vec<(Line, u32)>);

    /// Says to which lane heads with this hash ([`fairlead_wire::http::plain_hash`]) lead.
    fn learn_head(&mut self, head: u64, lane: u16);

    /// The client's key of this line leads to another connection now, which was begun after it.
    fn client_key_superseded(&mut self, line: Line);
}

/// What a listening socket of this machine must know to take a connection over whose handshake the
/// switch has answered with a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTerms {
    /// Where it listens.
    pub listener: Endpoint,
    /// The client's maximum segment size, bytes.
    pub mss: u16,
    /// The client's window scale, and the one that was offered to it; `None` without scaling.
    pub scales: Option<(u8, u8)>,
    /// Selective acknowledgements were agreed upon.
    pub sack: bool,
    /// Timestamps were.
    pub timestamps: bool,
    /// The number of the first segment.
    pub first: u32,
    /// Where nobody listens, the first segment is dropped, not answered with a RST: the client
    /// sends it again, and the engine decides anew.
    pub again: bool,
}

/// How far a connection is that may outlive its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The client's next number, behind the bytes that are given.
    pub client_nxt: u32,
    /// The server's next number.
    pub server_nxt: u32,
    /// The first bytes of the request that is given.
    pub method: [u8; 4],
    /// How long it may sleep, seconds.
    pub sleep_max_s: u32,
}

/// A connection that outlived its socket, or may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleeper {
    /// It has no socket now; otherwise it was woken, and its socket is being made.
    pub is_asleep: bool,
    /// The client's next number.
    pub client_nxt: u32,
    /// The server's next number.
    pub server_nxt: u32,
    /// To whom it is given.
    pub listener: Endpoint,
}

/// A client's packet that was held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The packet, from its IP header on.
    pub packet: Vec<u8>,
    /// Nobody came to listen in time.
    pub is_late: bool,
}

/// Gives connections to listening sockets of this machine: the first segment that the engine sends
/// under a client's key after [`Self::give`] or [`Self::wake`] becomes a connection of the
/// listener, and those behind it reach that connection.
pub trait HostHandoff: core::fmt::Debug + Send {
    /// Announces such segments. With `progress` the connection outlives its socket if it is idle
    /// when that closes. False when it cannot.
    fn give(&mut self, client: &FlowKey, terms: &HostTerms, progress: Option<&Progress>) -> bool;

    /// Whether somebody listens there; also true where that is not known. An answer may be some
    /// milliseconds old.
    fn listens(&mut self, listener: Endpoint) -> bool;

    /// The same, as it is now.
    fn listens_now(&mut self, listener: Endpoint) -> bool;

    /// Keeps a request that is about to be given: `packet` from its IP header on, whose payload
    /// begins at the first number, and ends before the second. If its socket ends without having
    /// read it, [`Self::next_held`] has it.
    fn keep(&mut self, client: &FlowKey, numbers: (u32, u32), packet: &[u8]);

    /// Holds a client's packet until somebody listens, for so long at most. Of one client the last
    /// packet is held. False when no more can be held.
    fn hold(
        &mut self,
        client: &FlowKey,
        listener: Endpoint,
        wait: core::time::Duration,
        packet: &[u8],
    ) -> bool;

    /// The next packet that waits no longer.
    fn next_held(&mut self) -> Option<Held>;

    /// What is known of a connection that outlived its socket; `None` of all others.
    fn sleeper(&self, client: &FlowKey) -> Option<Sleeper>;

    /// Announces that a sleeper's next segments follow, up to the number `client_nxt`: `method` is
    /// their beginning. A listener is waited for so long. False when it cannot.
    fn wake(
        &mut self,
        client: &FlowKey,
        client_nxt: u32,
        method: [u8; 4],
        wait: core::time::Duration,
    ) -> bool;

    /// A sleeper is over: nothing of its client is heard any more.
    fn end(&mut self, client: &FlowKey);

    /// The next sleeper whose time is over, which its client has yet to learn.
    fn next_expired(&mut self) -> Option<(FlowKey, Sleeper)>;
}

/// A fast path: what the engine is given to hand connections over to.
pub trait FastPath: FlowOffload + SynOffload + core::fmt::Debug + Send {
    /// Where connections are left to be joined; `None` where the engine joins all of them.
    fn connect(&mut self) -> Option<&mut dyn ConnectOffload>;

    /// Where tickets are issued; `None` where the engine begins all connections. With one there is
    /// [`Self::connect`], too.
    fn preconnect(&mut self) -> Option<&mut dyn Preconnect>;

    /// Where pairs are handed over; `None` where the engine keeps them.
    fn pairs(&mut self) -> Option<&mut dyn PairOffload>;
}
