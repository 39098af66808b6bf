//! The twelve commands, their answers, and their 16 bytes.
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0–3 | `cid` | the connection: line and generation; of a handoff, the owner's own number |
//! | 4 | `op` | the command, 1 to 12 |
//! | 5 | `flags` | bit 7: an answer; else what the command says below |
//! | 6–7 | `len` | bytes or milliseconds |
//! | 8–15 | `arg` | an address, a count, or what is answered |
//!
//! All numbers are little-endian. A field that a command does not use must be 0, so each message
//! has one encoding.

use crate::refusal::Refusal;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 16;

/// Set in `flags` of an answer.
const ANSWER: u8 = 0x80;
/// Set beside it when the answer is a refusal.
const REFUSED: u8 = 0x40;
/// Set in `flags` where a direction is meant: from the server, not from the client.
const FROM_SERVER: u8 = 0x10;

/// Names a handed-off connection: a line of the ledger, and how often that line was used before,
/// modulo 256, so that a late message does not reach the line's next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cid(pub u32);

impl Cid {
    /// One more than the highest line.
    pub const LINES: u32 = 1 << 24;

    /// A line in its generation.
    pub fn new(line: u32, generation: u8) -> Self {
        debug_assert!(line < Self::LINES);
        Self(u32::from(generation) << 24 | line & (Self::LINES - 1))
    }

    /// The line of the ledger.
    pub fn line(self) -> u32 {
        self.0 & (Self::LINES - 1)
    }

    /// The line's generation.
    pub fn generation(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

/// The end that bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// From the client; of a single connection, from its peer.
    Client,
    /// From the server; of a single connection, from its application.
    Server,
}

impl Side {
    /// Both, the client first.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];

    fn flag(self) -> u8 {
        match self {
            Self::Client => 0,
            Self::Server => FROM_SERVER,
        }
    }
}

/// Declares a field's values: number, name.
macro_rules! values {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$value_doc:meta])+ $variant:ident = $number:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$value_doc])+ $variant = $number,)+ }

        impl $name {
            /// All values, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The value with this number.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

values! {
    /// The command of a message. `ch_nic_…` go to the carrier, `ch_os_…` to the owner.
    Op {
        /// `ch_nic_handoff`
        Handoff = 1,
        /// `ch_nic_restore`
        Restore = 2,
        /// `ch_nic_send`
        Send = 3,
        /// `ch_nic_recvd`
        Received = 4,
        /// `ch_nic_ctrl`
        Control = 5,
        /// `ch_nic_forward`
        Forward = 6,
        /// `ch_nic_post`
        Post = 7,
        /// `ch_os_recv`
        OsReceive = 8,
        /// `ch_os_ack`
        OsAcknowledge = 9,
        /// `ch_os_ctrl`
        OsControl = 10,
        /// `ch_os_resource`
        OsResource = 11,
        /// `ch_os_restore`
        OsRestore = 12,
    }
}

impl Op {
    /// The paper's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Handoff => "ch_nic_handoff",
            Self::Restore => "ch_nic_restore",
            Self::Send => "ch_nic_send",
            Self::Received => "ch_nic_recvd",
            Self::Control => "ch_nic_ctrl",
            Self::Forward => "ch_nic_forward",
            Self::Post => "ch_nic_post",
            Self::OsReceive => "ch_os_recv",
            Self::OsAcknowledge => "ch_os_ack",
            Self::OsControl => "ch_os_ctrl",
            Self::OsResource => "ch_os_resource",
            Self::OsRestore => "ch_os_restore",
        }
    }
}

values! {
    /// What is handed off.
    Kind {
        /// Two connected sockets between which their owner copies.
        Pair = 1,
        /// A connection that only a cookie knows so far.
        Newcomer = 2,
        /// An idle connection whose process has left.
        Sleeper = 3,
        /// One socket of an unmodified application.
        Single = 4,
    }
}

values! {
    /// What [`Command::Control`] asks for; its argument, where it has one, in parentheses.
    Control {
        /// Close in order, both ways.
        Close = 1,
        /// Close by RST.
        Abort = 2,
        /// End the stream towards the server.
        ShutdownToServer = 3,
        /// End the stream towards the client.
        ShutdownToClient = 4,
        /// Keep-alive probes (idle time in ms; 0: none).
        KeepAlive = 5,
        /// The user timeout (ms; 0: the system's).
        UserTimeout = 6,
        /// Restore when a number of bytes from the server has passed (bytes).
        RestoreAfter = 7,
    }
}

values! {
    /// What [`Command::OsControl`] reports of one direction.
    Happening {
        /// A FIN ended it.
        Finished = 1,
        /// A RST ended both.
        Reset = 2,
        /// Nothing was seen for too long.
        TimedOut = 3,
        /// The carrier ended the connection: it stops, or its owner did not take it back.
        GivenUp = 4,
        /// What was asked by [`Command::Control`] is done.
        Done = 5,
    }
}

values! {
    /// What a carrier may run out of.
    Resource {
        /// Lines for connections.
        Lines = 1,
        /// Bytes that it holds for ends that have not acknowledged them.
        HeldBytes = 2,
        /// Restores in this second.
        Restores = 3,
    }
}

values! {
    /// Why a carrier wants a connection taken back.
    Cause {
        /// A segment has an option that cannot be translated.
        Option = 1,
        /// Segments are too large for the path.
        PathMtu = 2,
        /// The configuration does not allow it any more.
        Configuration = 3,
        /// Resources are scarce.
        Pressure = 4,
        /// It was idle longest.
        Idle = 5,
        /// A sleeper's client speaks again.
        Wake = 6,
        /// An operator asked for it.
        Order = 7,
    }
}

/// A command, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Hand this connection off. The state, and descriptors, come beside the message.
    Handoff {
        /// What is handed off.
        kind: Kind,
        /// Bytes that the owner has read from a side and not yet written to the other.
        unwritten: [u32; 2],
    },
    /// Give the connection back now.
    Restore {
        /// How long to wait for a quiet point, ms.
        wait_ms: u16,
    },
    /// Bytes for an end, at an address that both know.
    Send {
        /// The end that they come from.
        from: Side,
        /// Their number.
        len: u16,
        /// Where.
        address: u64,
    },
    /// The application has taken received bytes: window credit.
    Received {
        /// The end that they came from.
        from: Side,
        /// Their number.
        bytes: u64,
    },
    /// Close, abort, an option.
    Control {
        /// What is asked.
        control: Control,
        /// Its argument.
        argument: u64,
    },
    /// A packet of the connection that reached the host.
    Forward {
        /// The end that it came from.
        from: Side,
        /// Its length, bytes.
        len: u16,
        /// Where it is.
        address: u64,
    },
    /// A buffer for received bytes.
    Post {
        /// Its length, bytes.
        len: u16,
        /// Where it is.
        address: u64,
    },
    /// Bytes have been received.
    OsReceive {
        /// The end that they come from.
        from: Side,
        /// Their number.
        len: u16,
        /// Where.
        address: u64,
    },
    /// Bytes of [`Command::Send`] have been acknowledged.
    OsAcknowledge {
        /// The end that they came from.
        from: Side,
        /// Their number.
        bytes: u64,
    },
    /// A direction has ended, or a control is done.
    OsControl {
        /// What happened.
        happening: Happening,
        /// The end that the direction begins at.
        from: Side,
        /// Bytes that passed in this direction while the connection was handed off.
        bytes: u64,
    },
    /// What is left of a resource.
    OsResource {
        /// Of which.
        resource: Resource,
        /// How much.
        level: u64,
    },
    /// Take the connection back.
    OsRestore {
        /// Why.
        cause: Cause,
        /// Within this time, ms.
        within_ms: u16,
    },
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Do this.
    Command(Command),
    /// It is done; of a handoff, the value is the connection's [`Cid`].
    Done(Op, u64),
    /// It is not done.
    Refused(Op, Refusal),
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The connection; of a handoff and its answer, the owner's own number.
    pub cid: Cid,
    /// What it says.
    pub body: Body,
}

/// What is wrong with 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Error {
    /// The command's number is not one of the twelve.
    Op,
    /// `flags` has a bit or value that this command has not.
    Flags,
    /// `len` is used where the command has none.
    Len,
    /// `arg` has a value that this command has not.
    Arg,
}

impl Error {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Op => "no such command",
            Self::Flags => "impossible flags",
            Self::Len => "impossible length",
            Self::Arg => "impossible argument",
        }
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Error {}

impl Command {
    /// Its number and name.
    pub fn op(&self) -> Op {
        match self {
            Self::Handoff { .. } => Op::Handoff,
            Self::Restore { .. } => Op::Restore,
            Self::Send { .. } => Op::Send,
            Self::Received { .. } => Op::Received,
            Self::Control { .. } => Op::Control,
            Self::Forward { .. } => Op::Forward,
            Self::Post { .. } => Op::Post,
            Self::OsReceive { .. } => Op::OsReceive,
            Self::OsAcknowledge { .. } => Op::OsAcknowledge,
            Self::OsControl { .. } => Op::OsControl,
            Self::OsResource { .. } => Op::OsResource,
            Self::OsRestore { .. } => Op::OsRestore,
        }
    }

    /// Its `flags`, `len` and `arg`.
    fn fields(&self) -> (u8, u16, u64) {
        match *self {
            Self::Handoff { kind, unwritten } => {
                let [client, server] = unwritten;
                (kind as u8, 0, u64::from(server) << 32 | u64::from(client))
            }
            Self::Restore { wait_ms } => (0, wait_ms, 0),
            Self::Send { from, len, address }
            | Self::Forward { from, len, address }
            | Self::OsReceive { from, len, address } => (from.flag(), len, address),
            Self::Received { from, bytes } | Self::OsAcknowledge { from, bytes } => {
                (from.flag(), 0, bytes)
            }
            Self::Control { control, argument } => (control as u8, 0, argument),
            Self::Post { len, address } => (0, len, address),
            Self::OsControl {
                happening,
                from,
                bytes,
            } => (happening as u8 | from.flag(), 0, bytes),
            Self::OsResource { resource, level } => (resource as u8, 0, level),
            Self::OsRestore { cause, within_ms } => (cause as u8, within_ms, 0),
        }
    }

    fn decode(op: Op, flags: u8, len: u16, arg: u64) -> Result<Self, Error> {
        let from = match flags & FROM_SERVER {
            0 => Side::Client,
            _ => Side::Server,
        };
        let only_side = flags & !FROM_SERVER == 0;
        let address = arg;
        let command = match op {
            Op::Handoff => Self::Handoff {
                kind: Kind::from_number(flags).ok_or(Error::Flags)?,
                unwritten: [arg as u32, (arg >> 32) as u32],
            },
            Op::Restore => Self::Restore { wait_ms: len },
            Op::Send => Self::Send { from, len, address },
            Op::Received => Self::Received { from, bytes: arg },
            Op::Control => Self::Control {
                control: Control::from_number(flags).ok_or(Error::Flags)?,
                argument: arg,
            },
            Op::Forward => Self::Forward { from, len, address },
            Op::Post => Self::Post { len, address },
            Op::OsReceive => Self::OsReceive { from, len, address },
            Op::OsAcknowledge => Self::OsAcknowledge { from, bytes: arg },
            Op::OsControl => Self::OsControl {
                happening: Happening::from_number(flags & !FROM_SERVER).ok_or(Error::Flags)?,
                from,
                bytes: arg,
            },
            Op::OsResource => Self::OsResource {
                resource: Resource::from_number(flags).ok_or(Error::Flags)?,
                level: arg,
            },
            Op::OsRestore => Self::OsRestore {
                cause: Cause::from_number(flags).ok_or(Error::Flags)?,
                within_ms: len,
            },
        };
        match op {
            Op::Restore | Op::Post if flags != 0 => return Err(Error::Flags),
            Op::Send | Op::Received | Op::Forward | Op::OsReceive | Op::OsAcknowledge
                if !only_side =>
            {
                return Err(Error::Flags);
            }
            _ => {}
        }
        // What no field of the command takes up must be 0.
        let (_, used_len, used_arg) = command.fields();
        match () {
            () if used_len != len => Err(Error::Len),
            () if used_arg != arg => Err(Error::Arg),
            () => Ok(command),
        }
    }
}

impl Message {
    /// A command.
    pub fn command(cid: Cid, command: Command) -> Self {
        let body = Body::Command(command);
        Self { cid, body }
    }

    /// The answer to a command: done.
    pub fn done(cid: Cid, op: Op, value: u64) -> Self {
        let body = Body::Done(op, value);
        Self { cid, body }
    }

    /// The answer to a command: refused.
    pub fn refused(cid: Cid, op: Op, reason: Refusal) -> Self {
        let body = Body::Refused(op, reason);
        Self { cid, body }
    }

    /// Its 16 bytes.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let (op, (flags, len, arg)) = match self.body {
            Body::Command(command) => (command.op(), command.fields()),
            Body::Done(op, value) => (op, (ANSWER, 0, value)),
            Body::Refused(op, reason) => (op, (ANSWER | REFUSED, 0, reason as u64)),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&self.cid.0.to_le_bytes());
        bytes[4] = op as u8;
        bytes[5] = flags;
        bytes[6..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..].copy_from_slice(&arg.to_le_bytes());
        bytes
    }

    /// Reads 16 bytes. What it accepts, [`Self::encode`] gives back byte by byte.
    ///
    /// # Errors
    /// Which field has an impossible value.
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, Error> {
        let [c0, c1, c2, c3, op, flags, l0, l1, arg @ ..] = *bytes;
        let cid = Cid(u32::from_le_bytes([c0, c1, c2, c3]));
        let len = u16::from_le_bytes([l0, l1]);
        let arg = u64::from_le_bytes(arg);
        let op = Op::from_number(op).ok_or(Error::Op)?;
        let body = match flags & (ANSWER | REFUSED) {
            0 => Body::Command(Command::decode(op, flags, len, arg)?),
            _ if flags & !(ANSWER | REFUSED) != 0 || flags & ANSWER == 0 => {
                return Err(Error::Flags);
            }
            _ if len != 0 => return Err(Error::Len),
            ANSWER => Body::Done(op, arg),
            _ => Body::Refused(op, Refusal::from_number(arg).ok_or(Error::Arg)?),
        };
        Ok(Self { cid, body })
    }
}

#[cfg(test)]
mod tests;
