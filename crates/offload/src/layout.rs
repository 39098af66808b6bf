//! The shared memory of one program and the card. Every number in it that the program writes is
//! checked by the card at each use; the card keeps copies of its own numbers and never reads them
//! back.
//!
//! | part | bytes |
//! |---|---|
//! | [`head`] | one page |
//! | the command ring | [`COMMANDS`] messages of 16 bytes |
//! | [`mod@line`]s | [`LINES`] of [`LINE_BYTES`] |
//! | buffers | for each line [`SEND_BYTES`], then [`RECEIVE_BYTES`] |

/// Connections of one program. Line 0 is not used.
pub const LINES: u32 = 1_024;
/// Messages that the command ring holds.
pub const COMMANDS: u32 = 8_192;
/// Bytes of a message.
pub const COMMAND_BYTES: usize = fairlead_handoff::MESSAGE_BYTES;
/// Bytes from the program that have not reached the card's kernel, for each connection.
pub const SEND_BYTES: u32 = 256 << 10;
/// Bytes from the peer that the program has not read, for each connection.
pub const RECEIVE_BYTES: u32 = 64 << 10;
/// Files that a program can name.
pub const FILES: u16 = 512;
/// Ranges of files that wait in one connection.
pub const RANGES: u32 = 8;
/// Bytes of a line.
pub const LINE_BYTES: usize = 128;

const PAGE: usize = 4_096;
const COMMANDS_AT: usize = PAGE;
const LINES_AT: usize = COMMANDS_AT + COMMANDS as usize * COMMAND_BYTES;
const BUFFERS_AT: usize = LINES_AT + LINES as usize * LINE_BYTES;
const BUFFER_BYTES: usize = (SEND_BYTES + RECEIVE_BYTES) as usize;

/// Bytes of the whole; pages that nobody touched take no memory.
pub const BYTES: usize = BUFFERS_AT + LINES as usize * BUFFER_BYTES;

const _: () = assert!(BUFFERS_AT.is_multiple_of(PAGE) && BUFFER_BYTES.is_multiple_of(PAGE));
const _: () = assert!(head::REASONS + 4 * crate::Reason::COUNT <= PAGE);
const _: () = assert!(COMMANDS.is_power_of_two() && SEND_BYTES.is_power_of_two());
const _: () = assert!(RECEIVE_BYTES.is_power_of_two());

/// Places of words, bytes from the beginning. Each has a cache line of its own.
pub mod head {
    /// Messages that the program has written.
    pub const WRITTEN: usize = 0;
    /// Messages that the card has taken.
    pub const TAKEN: usize = 64;
    /// Not 0: the card sleeps, and wants the doorbell. Who rings it, makes it 0.
    pub const ASLEEP: usize = 128;
    /// How many more connections the card takes.
    pub const ROOM: usize = 192;
    /// Doorbells that the program has rung, for reports.
    pub const RUNG: usize = 256;
    /// How often the operator has said that connections which were given back may be handed off.
    pub const TAKES: usize = 320;
    /// How often the program has counted each [`crate::Reason`], by their order.
    pub const REASONS: usize = 1_024;
}

/// Places of a line's words, bytes from its beginning: the program's in one cache line, the card's
/// in the next.
pub mod line {
    /// Bytes that the program has read from the receive buffer.
    pub const READ: usize = 0;
    /// Not 0: the next bytes that come want a token.
    pub const WANTS_TOKEN: usize = 4;
    /// Not 0: room in the send buffer is waited for.
    pub const WANTS_ROOM: usize = 8;
    /// Ranges of files that the program has sent.
    pub const RANGES_SENT: usize = 12;

    /// Bytes that the card has put into the receive buffer.
    pub const RECEIVED: usize = 64;
    /// Bytes that the card has taken from the send buffer.
    pub const TAKEN: usize = 68;
    /// Flags; see [`super::state`].
    pub const STATE: usize = 72;
    /// The error of a connection that failed (errno).
    pub const ERROR: usize = 76;
    /// Not 0: the card waits for room in the receive buffer.
    pub const FULL: usize = 80;
    /// Ranges of files that the card has sent.
    pub const RANGES_DONE: usize = 84;
}

/// Flags of [`line::STATE`].
pub mod state {
    /// The peer has ended its stream.
    pub const FINISHED: u32 = 1;
    /// The connection has failed, or was reset.
    pub const RESET: u32 = 2;
    /// The card wants it taken back.
    pub const WANTED_BACK: u32 = 4;
    /// By an order of the operator's: it stays with the host until [`super::head::TAKES`] changes.
    pub const GIVEN: u32 = 8;
}

/// Where a message of the command ring is.
pub fn command_at(number: u32) -> usize {
    COMMANDS_AT + (number % COMMANDS) as usize * COMMAND_BYTES
}

/// Where a word of a line is.
pub fn word_at(number: u32, word: usize) -> usize {
    debug_assert!(number < LINES && word < LINE_BYTES);
    LINES_AT + number as usize * LINE_BYTES + word
}

/// Where a line's send buffer is.
pub fn send_at(number: u32) -> usize {
    debug_assert!(number < LINES);
    BUFFERS_AT + number as usize * BUFFER_BYTES
}

/// Where its receive buffer is.
pub fn receive_at(number: u32) -> usize {
    send_at(number) + SEND_BYTES as usize
}
