//! The port to a fast path: something outside the engine that forwards packets of spliced
//! connections by itself, from the same [`Record`].
//!
//! At any moment a connection is in one hand. While the fast path has it, it alone moves what is in
//! [`Tracking`]; the engine takes it back before it looks at a packet of it, and gives it
//! again when nothing is left to do but to translate, and to follow it to its end.

use fairlead_base::{Endpoint, FlowKey};

use crate::join::{Join, Joined};
use crate::record::{Record, State};
use crate::table::Line;
use crate::ticket::{Begun, Ticket};

/// What a fast path has seen of a connection while it had it: the fields of [`Record`] that
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
    /// Maximum segment size that clients are told, bytes.
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

/// Something that forwards packets of spliced connections, and answers SYNs, by itself.
pub trait FastPath: core::fmt::Debug + Send {
    /// Says what SYNs to an endpoint are answered with from now on.
    fn set_offer(&mut self, listen: Endpoint, offer: &ListenOffer);

    /// Answers nothing to this endpoint any more: an earlier run listened there, this one does not.
    fn withdraw_offer(&mut self, _listen: Endpoint) {}

    /// Refuses this from now on, because the engine does not keep up. Only who answers SYNs can.
    fn refuse(&mut self, _refusal: Refusal) {}

    /// True when it may lose keys that it was told. It then answers SYNs on tuples that have a
    /// connection as if they had none, and the engine hears of them by the data that follows.
    fn may_lose_keys(&self) -> bool {
        false
    }

    /// A connection was put on record under this key of its client's: packets of that key are the
    /// engine's from now on, SYNs too. It may have been armed before that. Who begins a connection
    /// under it has taken its ticket by now ([`Self::begun`]), or gives it up.
    fn introduce(&mut self, line: Line, client: &FlowKey);

    /// Gives it a connection, found by these two keys. False when it has no room or failed: the
    /// engine goes on with the connection, and tries again at a later packet.
    fn give(&mut self, line: Line, record: &Record, client: &FlowKey, server: &FlowKey) -> bool;

    /// Leaves it to join a connection whose server has been sent a SYN: `record` is as it is to be
    /// then, but for what the server's SYN-ACK says. `slot` is a small number that no other armed
    /// connection has, `keys` are the client's and the server's. False when it cannot: the engine
    /// waits for the SYN-ACK itself.
    ///
    /// Until [`Self::disarm`] no packet of the connection changes anything without this fast path.
    fn arm(
        &mut self,
        _line: Line,
        _slot: u32,
        _record: &Record,
        _join: &Join<'_>,
        _keys: [&FlowKey; 2],
    ) -> bool {
        false
    }

    /// What became of an armed connection: `None` while it has not been joined. Once joined, it is
    /// as if it had been given.
    fn joined(&self, _line: Line) -> Option<Joined> {
        None
    }

    /// Takes an armed connection back, unless it has been joined meanwhile. Its keys go on leading
    /// to it.
    fn disarm(&mut self, _line: Line) -> Option<Joined> {
        None
    }

    /// How many lanes of tickets it has; 0: it begins no connections.
    fn lanes(&self) -> u16 {
        0
    }

    /// Lets it begin a connection. False when it cannot.
    fn issue(&mut self, _ticket: &Ticket<'_>) -> bool {
        false
    }

    /// The next ticket of a lane that has been taken, in the order in which they were issued. Its
    /// connection is armed, or joined already, under both keys.
    fn begun(&mut self, _lane: u16) -> Option<Begun> {
        None
    }

    /// Takes all tickets of a lane back that nobody has taken; tells `gone` line and place of
    /// each. Those that have been taken come by [`Self::begun`] as before.
    fn revoke(&mut self, _lane: u16, _gone: &mut Vec<(Line, u32)>) {}

    /// Says where heads with this hash ([`fairlead_wire::http::plain_hash`]) lead.
    fn learn(&mut self, _head: u64, _lane: u16) {}

    /// The client's key of this line leads elsewhere: to a connection that was begun after it.
    fn succeeded(&mut self, _line: Line) {}

    /// A server was given up: its key leads to the connection no more, if ever it did.
    fn leave_server(&mut self, _line: Line, _server: &FlowKey) {}

    /// Takes a connection back; its keys go on leading to it. Packets that are on their way through
    /// the fast path at this moment may still be forwarded.
    fn take(&mut self, line: Line) -> Tracking;

    /// Keeps what the engine knows of a connection that the engine has, for a run after this one.
    fn keep(&mut self, _line: Line, _record: &Record) {}

    /// What it has seen so far of a connection that it has.
    fn peek(&self, line: Line) -> Tracking;

    /// Says which connections of an earlier run go on, with their clients' and their servers' keys:
    /// everything else that it has of that run is to be forgotten.
    fn reconcile(&mut self, _adopted: &[(Line, FlowKey, FlowKey)]) {}

    /// Forgets a connection that was introduced or given, in whichever hand it is. Its keys may
    /// lead to its line until [`Self::flush`], but no packet of theirs is taken for one of the
    /// line's next connection.
    fn forget(&mut self, line: Line, client: &FlowKey, server: &FlowKey);

    /// Does what it has put off. To be called when timers have been dealt with.
    fn flush(&mut self) {}
}
