use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// One of each command, with every field in use.
fn commands() -> Vec<Command> {
    let from = Side::Server;
    let (len, address, bytes) = (0x1234, 0x0102_0304_0506_0708, u64::MAX);
    std::vec![
        Command::Handoff {
            kind: Kind::Pair,
            unwritten: [7, u32::MAX],
        },
        Command::Restore { wait_ms: 200 },
        Command::Send { from, len, address },
        Command::Received { from, bytes },
        Command::Control {
            control: Control::RestoreAfter,
            argument: 65_536,
        },
        Command::Forward { from, len, address },
        Command::Post { len, address },
        Command::OsReceive { from, len, address },
        Command::OsAcknowledge { from, bytes },
        Command::OsControl {
            happening: Happening::Reset,
            from,
            bytes,
        },
        Command::OsResource {
            resource: Resource::HeldBytes,
            level: 3,
        },
        Command::OsRestore {
            cause: Cause::Pressure,
            within_ms: 1_000,
        },
    ]
}

#[test]
fn there_are_twelve_commands_and_each_comes_back_with_its_answers() {
    let all = commands();
    let ops: Vec<Op> = all.iter().map(Command::op).collect();
    assert_eq!(ops, Op::ALL);
    assert_eq!(ops.len(), 12);
    for command in all {
        let cid = Cid::new(0xabc, 9);
        let messages = [
            Message::command(cid, command),
            Message::done(cid, command.op(), 5),
            Message::refused(cid, command.op(), Refusal::Busy),
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }
}

#[test]
fn the_bytes_are_where_the_table_says() {
    let unwritten = [0x0403_0201, 0x0807_0605];
    let kind = Kind::Pair;
    let message = Message::command(Cid::new(0x11, 0x22), Command::Handoff { kind, unwritten });
    let bytes = [0x11, 0, 0, 0x22, 1, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(message.encode(), bytes);
    let refused = Message::refused(Cid::new(0, 0), Op::OsRestore, Refusal::Gone);
    let bytes = [0, 0, 0, 0, 12, 0xc0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(refused.encode(), bytes);
}

#[test]
fn what_is_impossible_is_named() {
    let decode = |op: u8, flags: u8, len: u8, arg: u8| {
        let mut bytes = [0; MESSAGE_BYTES];
        (bytes[4], bytes[5], bytes[6], bytes[8]) = (op, flags, len, arg);
        Message::decode(&bytes).map(|_| ())
    };
    let cases = [
        // op, flags, len, arg
        (0, 0, 0, 0, Err(Error::Op)),
        (13, 0, 0, 0, Err(Error::Op)),
        (1, 0, 0, 0, Err(Error::Flags)),
        (1, 5, 0, 0, Err(Error::Flags)),
        (1, 1, 1, 0, Err(Error::Len)),
        (1, 1 | FROM_SERVER, 0, 0, Err(Error::Flags)),
        (2, 0, 9, 0, Ok(())),
        (2, 1, 9, 0, Err(Error::Flags)),
        (2, 0, 0, 1, Err(Error::Arg)),
        (3, FROM_SERVER, 1, 1, Ok(())),
        (3, 1, 1, 1, Err(Error::Flags)),
        (4, 0, 1, 0, Err(Error::Len)),
        (5, 8, 0, 0, Err(Error::Flags)),
        (7, FROM_SERVER, 0, 0, Err(Error::Flags)),
        (10, 1 | FROM_SERVER, 0, 7, Ok(())),
        (10, FROM_SERVER, 0, 0, Err(Error::Flags)),
        (12, 4, 1, 1, Err(Error::Arg)),
        (1, REFUSED, 0, 0, Err(Error::Flags)),
        (1, ANSWER | 1, 0, 0, Err(Error::Flags)),
        (1, ANSWER, 1, 0, Err(Error::Len)),
        (1, ANSWER | REFUSED, 0, 0, Err(Error::Arg)),
        (1, ANSWER | REFUSED, 0, 1, Ok(())),
        (1, ANSWER | REFUSED, 0, 255, Err(Error::Arg)),
    ];
    for (op, flags, len, arg, expected) in cases {
        let case = (op, flags, len, arg);
        assert_eq!(decode(op, flags, len, arg), expected, "{case:?}");
    }
}

#[test]
fn a_number_has_a_line_and_a_generation() {
    let cid = Cid::new(Cid::LINES - 1, 255);
    assert_eq!((cid.line(), cid.generation()), (Cid::LINES - 1, 255));
    assert_eq!(cid.0, u32::MAX);
}

proptest! {
    /// Every 16 bytes are a message with exactly these bytes, or a named error.
    #[test]
    fn bytes_have_one_meaning(bytes: [u8; MESSAGE_BYTES], op in 0_u8..14, small: bool) {
        let mut bytes = bytes;
        bytes[4] = op;
        if small {
            bytes[5] &= 0xd7;
            bytes[6..].fill(0);
        }
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }
}
