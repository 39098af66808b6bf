//! The port to a fast path: something outside the engine that forwards packets of spliced
//! connections by itself, from the same [`Record`].
//!
//! At any moment a connection is in one hand. While the fast path has it, the fast path alone moves
//! the numbers in [`Tracking`]; the engine takes it back before it looks at a packet of that
//! connection, and gives it again when nothing but translation is left to do.

use fairlead_base::FlowKey;

use crate::record::Record;
use crate::table::Line;

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
        }
    }

    /// Brings a record up to it.
    pub fn apply_to(&self, record: &mut Record) {
        record.client_nxt = self.client_nxt;
        record.server_nxt = self.server_nxt;
        record.client_wraps = self.client_wraps;
        record.server_wraps = self.server_wraps;
        record.last_active = self.last_active;
    }
}

/// Something that forwards packets of spliced connections by itself.
pub trait FastPath: core::fmt::Debug + Send {
    /// Gives it a connection, found by these two keys. False when it has no room or failed: the
    /// engine goes on with the connection, and tries again at a later packet.
    fn give(&mut self, line: Line, record: &Record, client: &FlowKey, server: &FlowKey) -> bool;

    /// Takes a connection back; its keys go on leading to it. Packets that are on their way through
    /// the fast path at this moment may still be forwarded.
    fn take(&mut self, line: Line) -> Tracking;

    /// What it has seen so far of a connection that it has.
    fn peek(&self, line: Line) -> Tracking;

    /// Forgets a connection that was given once, in whichever hand it is.
    fn forget(&mut self, line: Line, client: &FlowKey, server: &FlowKey);
}
