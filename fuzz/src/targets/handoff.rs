//! `handoff`: arbitrary 16-byte messages, and arbitrary orders to a ledger.

use fairlead_handoff::message::Kind;
use fairlead_handoff::{
    Body, Budget, Cid, Command, Facts, Ledger, Limits, MESSAGE_BYTES, Message, Op, Owner, Phase,
    Policy, Refusal, Side,
};

use super::Target;
use crate::novelty::{note, note_size};

pub(super) const TARGET: Target = Target {
    name: "handoff",
    about: "messages of an owner: one meaning each; the ledger stays within its limits",
    run,
    bytes_max: 64 * MESSAGE_BYTES,
    tokens: &[
        &[0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 1, 2, 0, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 1, 5, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 1, 4, 0x10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 1, 1, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 1, 1, 0xc0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0],
    ],
};

const LIMITS: Limits = Limits {
    connections: 8,
    owners: 3,
    moving: 4,
    kept_free: 2,
    budget: Budget {
        connections: 5,
        restores_per_second: 3,
    },
};

fn run(bytes: &[u8]) {
    let mut ledger = Ledger::new(LIMITS, Policy::All);
    for (now, bytes) in bytes.chunks_exact(MESSAGE_BYTES).enumerate() {
        let bytes = bytes.try_into().expect("chunks of this size");
        match Message::decode(bytes) {
            Ok(message) => {
                assert_eq!(message.encode(), *bytes, "one encoding");
                ledger.counts.message(&message);
                if let Body::Command(command) = message.body {
                    let user = u32::from(bytes[15] % 4);
                    obey(&mut ledger, message.cid, &command, Owner(user), now as u64);
                }
            }
            Err(error) => {
                ledger.counts.malformed();
                note("handoff.error", error as u64);
            }
        }
        ledger.check_invariants();
    }
    note_size("handoff.connections", ledger.len() as usize);
    let given: u64 = Op::ALL.iter().map(|&op| ledger.counts.given(op)).sum();
    assert!(given as usize <= bytes.len() / MESSAGE_BYTES);
}

/// Does what a carrier would, as far as the ledger goes.
fn obey(ledger: &mut Ledger, cid: Cid, command: &Command, owner: Owner, now_ms: u64) {
    note("handoff.op", command.op() as u64);
    let phase = ledger.find(cid).map(|entry| entry.phase);
    match (*command, phase) {
        (Command::Handoff { unwritten, .. }, _) => {
            let facts = Facts {
                free_lines: unwritten[0],
                ..Facts::default()
            };
            match ledger.enter(owner, Kind::Pair, &facts, now_ms) {
                Ok(cid) => assert_eq!(ledger.find(cid).map(|e| e.phase), Some(Phase::Entering)),
                Err(reason) => note("handoff.refused", reason as u64),
            }
        }
        (Command::Restore { .. }, Some(Phase::Carried)) => {
            if let Err(reason) = ledger.leave(cid, now_ms) {
                note("handoff.restore_refused", reason as u64);
            }
        }
        (Command::Restore { .. }, Some(Phase::Leaving)) => ledger.restored(cid),
        (Command::Restore { .. }, _) => assert!(ledger.leave(cid, now_ms).is_err()),
        (Command::OsRestore { .. }, Some(Phase::Leaving)) => {
            ledger.stays(cid, Refusal::Busy, now_ms);
        }
        (Command::Forward { .. }, Some(Phase::Entering)) => ledger.carried(cid, 1, now_ms),
        (Command::Control { .. }, Some(Phase::Entering)) => ledger.stayed(cid, Refusal::State),
        (Command::Control { .. }, Some(_)) => assert!(ledger.ended(cid).is_some()),
        (Command::Received { from, bytes }, _) => ledger.seen(cid, from, bytes),
        _ => ledger.seen(cid, Side::Client, now_ms),
    }
}
